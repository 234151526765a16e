"""The pictures of notebook 13 draw the numbers they are given and say the right ones."""

import csv
import io

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import lact_memory as pictures


def test_a_map_says_what_becomes_of_large_and_of_tiny_singular_values():
    sigma = np.array([1e-4, 0.01, 0.1, 1.0])
    before, after = np.array([0.9, 0.1, 1e-3]), np.array([1.1, 0.7, 0.2])
    picture = pictures.newton_schulz_map(1, "some schedule", sigma, 3 * sigma, before, after)
    assert "some schedule, 1 step: singular values from 0.01 to 1 end between 0.03 and 3" in picture.words
    assert "tiny ones grow 3-fold; of a real direction 2 of 3 end within 0.35 of 1" in picture.words
    assert drawn(picture, "after 1 step: some schedule")[:, 1] == pytest.approx(after)


def test_recall_draws_shares_and_says_counts():
    counts = {"some pairs": {memory: np.array([4.0, 8.0]) + n for n, memory in enumerate(pictures.MEMORIES)}}
    counts["other pairs"] = {memory: np.array([1.0, 2.0]) for memory in pictures.MEMORIES}
    picture = pictures.recall_counts((16, 32), counts, 32)
    assert drawn(picture, "matrix, Mesa")[:2] == pytest.approx(np.array([[16, 4 / 16], [32, 8 / 32]]))
    assert "Of 32 pairs written at once are told apart, some pairs: matrix, Mesa 8.0, matrix, Muon 9.0" in picture.words
    assert "other pairs: matrix, Mesa 2.0" in picture.words


def test_noise_says_the_first_the_last_and_the_eighth():
    errors = {name: np.array([0.7, 0.2, 0.003]) for name in ("step", "other step", "answers")}
    words = pictures.rounding_noise((1, 8, 64), errors, np.array([0.8, 0.3, np.nan]), 32).words
    assert words == "step: off by 70% with 1 token, by 20% with 8, and by 0.3% with 64."


def test_what_overflows_is_drawn_as_far_as_it_goes_and_dated():
    names = ("gradient, rows free", "gradient, rows kept", "Muon, rows free", "Muon, rows kept")
    lines = {name: np.array([1.0, 2.0, 4.0, 8.0]) for name in names}
    lines[names[0]] = np.array([1.0, 1e20, np.inf, np.nan])
    picture = pictures.blow_up(lines, lines)
    assert len(drawn(picture, names[0])) == 2  # one point in each panel
    assert "Answers after 3 writes, in units of the first: gradient, rows free overflow at write 2" in picture.words
    assert "Muon, rows kept 8" in picture.words


@pytest.mark.parametrize("law", [{}, {"W1": 0.5, "W2": 0.25}])
def test_a_horizon_draws_the_latest_chunk_first_and_a_law_where_there_is_one(law):
    counts = {"random pairs": np.array([1.0, 2.0, 30.0]), "real pairs": np.array([4.0, 5.0, 6.0])}
    shares = {"W1": np.array([1, 0.5, 0.2, 0.1]), "W2": np.array([1, 0.25, 0.1, 0.0])}
    picture = pictures.horizon(0.5, "kept", counts, shares, law, 64, (1.5, 3))
    assert drawn(picture, "random pairs")[:, 1].tolist() == [30, 2, 1]
    assert "Rows kept, first norm 0.5: of 64 pairs the latest chunk has 30.0 on random pairs and 6.0" in picture.words
    assert "told apart (before its write 1.5 and 3.0), the oldest" in picture.words
    assert (
        "the oldest 1.0 on random pairs and 4.0 on real pairs; a write leaves 0.50 of W1 and 0.25 of W2"
        in picture.words
    )
    lines = [row for row in csv.DictReader(io.StringIO(picture.csv)) if row["axes"] == "1"]
    assert len(lines) == 4 * (2 + len(law))


def test_the_bill_marks_the_chunk_in_use():
    chunks = np.array([100.0, 1000.0])
    ratios = {name: 200 / chunks for name in ("small", "large", "other")}
    picture = pictures.muon_cost(chunks, ratios, dict.fromkeys(ratios, (1000, 0.2)))
    assert "small 0.2 at 1,000 tokens" in picture.words
    assert drawn(picture, "large").tolist() == [[1000, 0.2]]
