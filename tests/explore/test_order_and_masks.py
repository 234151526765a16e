"""The pictures of notebook 14 draw the masks they are given and count what is in them."""

import csv
import io

import numpy as np
import pytest

from ttt_teach import SwiGLU, lact
from ttt_teach.explore import order_and_masks as pictures

T, CHUNK = 6, 3
I, J = np.indices((T, T))
EARLIER = J // CHUNK < I // CHUNK  # apply, then update


def drawn(picture, artist):
    rows = csv.DictReader(io.StringIO(picture.csv))
    return [(float(r["x"]), float(r["y"]), float(r["value"] or np.nan)) for r in rows if r["artist"] == artist]


def test_dependencies_draws_the_mask_and_counts_it():
    picture = pictures.dependencies(EARLIER | (I < J), I == J, "some order", CHUNK, [(0, 3, "1"), (3, 6, "2")])
    cells = {(x, y): value for x, y, value in drawn(picture, "image0")}
    assert cells[0, 0] == 0 and cells[0, 3] == 1 and cells[5, 0] == 1 and len(cells) == T * T
    assert [(x, y) for x, y, _ in drawn(picture, "line0")] == [(n, n) for n in range(T)]
    assert "some order, 6 tokens in chunks of 3: an output depends on 4.0 writes on average" in picture.words
    assert (
        "15 pairs of an output and a later token, 0 of the 6 tokens read their own write, 6 their own query"
        in picture.words
    )


@pytest.mark.parametrize(("window", "missed"), [(1, 6), (2, 2), (3, 0)])
def test_combined_marks_what_neither_gives(window, missed):
    picture = pictures.combined(EARLIER, (J <= I) & (J > I - window), CHUNK, window)
    assert len(drawn(picture, "line0")) == missed
    assert picture.words.endswith(f"and {missed} are missed.")
    assert f"Window {window}, chunk 3: of the 21 pairs" in picture.words


def test_recall_says_where_it_is_worst():
    lines = {"delta rule": np.ones(4), "LaCT": np.array([0, 0.5, 1, 1]), "with the window": np.array([1, 0.5, 1, 1])}
    words = pictures.recall(np.arange(4), lines, lines["with the window"], 2, 1).words
    assert "at 1 age out of 4, the worst is age 1 with 0.500" in words
    lines["with the window"] = np.ones(4)
    assert "at 0 ages out of 4, all are recalled" in pictures.recall(np.arange(4), lines, np.ones(4), 2, 2).words


def test_decodes_says_the_largest_error_of_each():
    names = ("the window alone", "frozen weights", "weights alone", "the whole state")
    errors = {name: np.array([0.0, 0.5 / 10**n]) for n, name in enumerate(names)}
    words = pictures.decodes(np.arange(4, 6), errors, 4, 2).words
    assert "Prefill of 4 tokens, chunk 2" in words and "the window alone: 0.50; frozen weights: 0.05" in words
    errors["the whole state"] = np.full(2, 1e-16)
    assert "the whole state: rounding" in pictures.decodes(np.arange(4, 6), errors, 4, 2).words


def test_perform_gives_what_lact_gives_and_no_more_entries_than_it_has():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, T, 1, 2)).astype(np.float32)
    lr = rng.uniform(0.5, 1.5, size=(1, T, 1, 3)).astype(np.float32)
    weights = SwiGLU(*(rng.normal(size=(1, 2, 2)).astype(np.float32) for _ in range(3)))
    order = [(0, 2, True, False), (0, T, False, True)]
    wanted, _ = lact(q, k, v, lr, weights, chunk=T, order=order)
    np.testing.assert_allclose(pictures.perform(order, q, k, v, lr, weights), wanted, rtol=2e-4, atol=2e-4)
    with pytest.raises(ValueError, match="33 entries; expected 32"):
        pictures.perform(order[:1] * 33, q, k, v, lr, weights)
