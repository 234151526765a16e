"""The pictures of notebook 01 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import fast_weights as pictures


@pytest.mark.parametrize(
    ("T", "firsts"), [(1, [0]), (7, [0, 1, 3]), (8, [0, 1, 3]), (512, [2**n - 1 for n in range(9)])]
)
def test_ages_are_binned_from_the_latest_on(T, firsts):
    found, miss = pictures.by_age(np.arange(T)[::-1] * np.ones((2, 1)))  # the square is the age
    assert found.tolist() == firsts
    assert miss[0] == 0
    assert miss[1:] == pytest.approx([np.sqrt(1.5 * n) for n in firsts[1:]])  # ages n to 2 n


class TestTruncatedExponential:
    errors = np.array([[0.9, 0.8], [0.5, 0.2], [0.1, 0.004]])

    def draw(self, degree):
        return pictures.truncated_exponential(degree, (-1, 2), [0, 2, 4], self.errors, [1, 561, 58905])

    def test_draws_the_series(self):
        x, y = drawn(self.draw(2), "series up to degree 2").T
        assert y == pytest.approx(1 + x + x**2 / 2)

    def test_says_the_range_of_the_errors_and_the_features(self):
        words = self.draw(4).words
        assert "off by 0.004 to 0.1 of their size, with 58,905 features" in words


def test_a_gate_is_heard_up_to_the_first_age_below_the_noise():
    ratio = {"random keys": np.array([4, 2, 0.5, 2.0]), "real keys": np.array([0.9, 0.8, 0.1, 0.1])}
    words = pictures.decay(0.75, np.ones(4), ratio).words
    assert "gamma 0.75, effective length 4 tokens" in words
    assert "for the last 2 on random keys and the last 0 on real keys; the newest pair stands at 4 and 0.9" in words


def test_a_signal_that_is_always_above_the_noise_is_heard_at_every_age():
    ratio = {"random keys": np.full(4, 3.0), "real keys": np.full(4, 2.0)}
    assert "the last 4 on random keys and the last 4 on real keys" in pictures.decay(0.5, np.ones(4), ratio).words


def test_steps_say_what_a_write_leaves_and_what_is_missed():
    squares = {"delta rule": np.full((2, 8), 4.0), "Longhorn": np.full((2, 8), 0.25)}
    picture = pictures.steps(3.0, "some keys", squares)
    assert "leaves -2 of the error with the delta rule and 0.25 with Longhorn" in picture.words
    assert "(some keys) the reads miss, in units of a value: delta rule by 2 and Longhorn by 0.5" in picture.words
    assert drawn(picture, "Longhorn")[:, 1] == pytest.approx(0.5)


def test_a_memory_that_blows_up_gets_no_number():
    squares = {"delta rule": np.full((2, 8), 1e18), "Longhorn": np.full((2, 8), 0.25)}
    assert "delta rule by more than a million and Longhorn" in pictures.steps(4.0, "some keys", squares).words


def test_blocks_mark_the_heads_at_their_size():
    errors = np.array([[0.9, 0.8], [0.6, 0.5]])
    squares = np.array([[0.25, 0.16, 0.16, 0.04], [0.25, 0.16, 0.16, 0.04]])
    words = pictures.blocks(2, 1.0, [1, 2], errors, squares).words
    assert "2 pairs in one step: the eight heads read their pairs back with errors from 0.500 to 0.600" in words
    assert "the newest pair with 0.200, those of age 1 and more with 0.400" in words
    assert "1 pair in one step" in pictures.blocks(1, 1.0, [1, 2], errors, squares).words
