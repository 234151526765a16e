"""The pictures of notebook 15 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import lact_at_scale as pictures


def test_states_count_the_layers_that_a_cache_outgrows():
    fixed = {"small": 2e6, "middle": 4e6, "large": 6e6}
    words = pictures.states(700, 3072, fixed, 4.3e6, 1e6).words
    assert "After 700 tokens a layer of width 3072 keeps a cache of 4.30 million numbers" in words
    assert "more than 2 of the 3 blue bars" in words
    assert "After 1 token a layer" in pictures.states(1, 3072, fixed, 6e3, 6e3).words


ERRORS = {"random tokens": [0.0, 0.5, 0.8], "real tokens": [0.0, 0.4, 0.7]}
COSINES = {"random tokens": [1.0, 0.9, 0.7], "real tokens": [1.0, 0.95, 0.75]}


def test_late_says_error_cosine_and_sizes():
    right, wrong = np.array([1.02, 0.98]), np.array([0.9, 0.3])
    picture = pictures.late(4, "real tokens", [1, 2, 4], ERRORS, COSINES, right, wrong)
    assert "4 shards, real tokens: averaging after Muon is off by 70% of the step" in picture.words
    assert (
        "its cosine with the right step is 0.75, and the singular values of one matrix lie between 0.30 and 0.90"
        in picture.words
    )
    assert drawn(picture, "Muon, then averaged")[:, 1] == pytest.approx(wrong)
    assert drawn(picture, "random tokens")[:, 1] == pytest.approx(ERRORS["random tokens"])


def test_one_shard_is_one():
    assert pictures.late(1, "real tokens", [1, 2, 4], ERRORS, COSINES, np.ones(2), np.ones(2)).words.startswith(
        "1 shard,"
    )


def test_links_say_both_thresholds():
    chunks = np.array([1e3, 1e4, 1e5])
    marks = {"language": 2048, "views": 65536}
    picture = pictures.links(8, 450, chunks, 1e4 / chunks, 0.9, 3e4 / chunks, 49777.8, 18432, marks)
    assert "8 devices, links of 450 GB/s" in picture.words
    assert "all-reduce from 49,778 tokens on; splitting heads sends less up to 18,432 tokens" in picture.words
    assert drawn(picture, "tokens split: all-reduce")[:, 1] == pytest.approx(1e4 / chunks)
    assert drawn(picture, "heads split: all-to-all")[:, 1] == pytest.approx(0.9)
