"""The pictures of notebook 05 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import chunkwise_mesa as pictures


@pytest.mark.parametrize(
    "chunk, says",
    [
        (1, "1 token: 4 of 10 pairs meet inside a chunk, the other 6 through 3 states"),
        (2, "2 tokens: 6 of 10 pairs meet inside a chunk, the other 4 through 1 state kept"),
        (3, "3 tokens: 7 of 10 pairs meet inside a chunk, the other 3 through 1 state kept"),
        (4, "4 tokens: 10 of 10 pairs meet inside a chunk, the other 0 through 0 states"),
    ],
)
def test_meetings_counts_the_pairs_of_a_chunk(chunk, says):
    assert says in pictures.meetings(np.tri(4), chunk).words


def test_missing_decay_draws_both_errors_and_says_the_means_of_the_choice():
    by_gamma = {2: (np.array([0.0, 0.5]), np.array([0.0, 0.125])), 4: (np.array([0.0, 0.7]), np.array([0.0, 0.2]))}
    once, twice = np.array([0.0, 0.0, 0.4, 0.6]), np.array([0.0, 0.0, 0.1, 0.2])
    picture = pictures.missing_decay((1.0, 0.9), once, twice, by_gamma, 0.9, 2)
    assert drawn(picture, "missing in the output") == pytest.approx(np.stack([np.arange(4), once], 1))
    assert drawn(picture, "and in the solver") == pytest.approx(np.stack([np.arange(4), twice], 1))
    assert "gamma = 0.9, chunks of 2" in picture.words and "0.5 of its size, by 0.12 if" in picture.words


def test_gate_errors_says_where_a_way_ends_in_nan():
    errors = {"quotient": np.array([1e-7, np.nan, np.nan]), "difference": np.array([1e-7, 1e-5, 2e-3])}
    picture = pictures.gate_errors(np.array([10, 100, 1000]), errors, "Gates of 0.5")
    assert "the quotient is NaN from token 100 on; at token 1000 the difference is off by 0.002." in picture.words
    assert len(drawn(picture, "quotient")) == 1


def test_cost_finds_the_least_sum():
    sizes = np.arange(1, 101)
    picture = pictures.cost(sizes, 10.0 + sizes, 400.0 / sizes, 40, 1e5)
    assert drawn(picture, "least") == pytest.approx(np.array([(20, 50)]))
    assert "4.55 times the arithmetic of chunks of 1, 1.20 times the least total, which is at C = 20" in picture.words


def test_valley_draws_the_fit_and_says_the_fastest_of_the_measured():
    sizes = np.array([8.0, 32.0, 128.0])
    times = {1: np.array([3.0, 2.0, 1.0]), 9: np.array([5.0, 4.0, 6.0])}
    picture = pictures.valley(sizes, times, {1: (8.0, 1.0, 0.0), 9: (8.0, 3.0, 0.01)})
    assert drawn(picture, "a/C + b + dC, 9 heads")[0] == pytest.approx((8, 1 + 3 + 0.08))
    assert "1.0 ms at C = 128 with 1 head and 4.0 ms at C = 32 with 9 heads" in picture.words


def test_memory_compares_the_most_with_the_least_at_the_longest():
    lengths, sizes = np.array([128, 512]), np.array([8, 64])
    by_length = {"the scan": np.array([1e6, 4e6]), "chunks": np.array([1e5, 4e5])}
    picture = pictures.memory(lengths, by_length, sizes, by_length, 512, 64)
    assert "At 512 tokens the scan keeps 4.0 million numbers, chunks 0.40 million: 10 times fewer." in picture.words
