"""The pictures of notebook 08 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import solver_budget as pictures


def test_needs_names_the_easiest_and_the_hardest_head():
    picture = pictures.needs(np.array([7, 15]), ["a", "b"], np.array([[2, 4], [9, 20]]), "Mixed", 1e-4)
    assert (
        "Mixed, eps = 0.0001: 8.8 steps on average, 3.0 in a and 14.5 in b; the hardest token takes 20."
        in picture.words
    )
    assert ",20" in picture.csv


def test_predictors_draw_both_guesses_and_say_the_correlations():
    points = {"short": (np.array([2.0, 30.0]), np.array([5, 9]), np.array([4, 8]))}
    picture = pictures.predictors(points, {"condition": [-0.5, 0.25], "promise": [0.75, 1.0]})
    assert drawn(picture, "short") == pytest.approx(np.array([(2, 4), (30, 8), (5, 4), (9, 8)]))
    assert "condition is -0.50 to 0.25, with the promise 0.75 to 1.00" in picture.words


class TestCuts:
    tokens = np.array([1, 2])

    def test_compares_root_mean_squares(self):
        uniform, adaptive = np.array([[3.0, 0.3], [4.0, 0.4]]), np.full((2, 2), 0.01)
        picture = pictures.cuts(self.tokens, uniform, adaptive, 5, 1e-2, "All")
        assert drawn(picture, "uniform, all heads")[:, 1] == pytest.approx(np.sqrt([12.5, 0.125]))
        assert drawn(picture, "uniform, median")[:, 1] == pytest.approx([3.5, 0.35])
        assert "The uniform cut has 251 times the error" in picture.words

    def test_says_when_the_uniform_cut_is_better(self):
        words = pictures.cuts(self.tokens, np.full((1, 2), 0.1), np.full((1, 2), 0.2), 3, 0.4, "All").words
        assert "only 0.5 times" in words


def test_recall_draws_the_loss_above_the_full_one():
    steps = (np.array([1, 2]), np.array([1.0, 0.6]))
    picture = pictures.recall(
        steps, (np.array([1.5, 3.0]), np.array([0.7, 0.5])), {"1 step": [0.1, 0.2, 0.3, 0.4]}, 0.5
    )
    assert drawn(picture, "uniform") == pytest.approx(np.array([(1, 0.5), (2, 0.1)]))
    assert drawn(picture, "adaptive")[1, 1] == pytest.approx(1e-8)  # nothing lost is drawn as next to nothing
    assert "loses 15.0 points of accuracy in the first half of the stream and 35.0 in the second" in picture.words


def test_lockstep_says_both_ends():
    picture = pictures.lockstep(np.array([1, 2, 4]), {"together": [0.6, 0.4, 0.3], "apart": [0.6, 0.6, 0.5]}, 0.6)
    assert drawn(picture, "apart")[:, 1] == pytest.approx([60, 60, 50])
    assert "by 60 if every system stops alone and by 30 if 4 wait for each other (together)" in picture.words


def test_equal_time_draws_far_and_near_and_says_the_last():
    one = np.array([1.0, 2.0]), np.array([0.9, 0.5]), np.array([0.8, 0.1])
    picture = pictures.equal_time({"steps": one}, "2 cores", "2026-01-01")
    assert drawn(picture, "steps") == pytest.approx(np.array([(1, 0.9), (2, 0.5), (1, 0.8), (2, 0.1)]))
    assert "steps 0.50 far and 0.10 near. Measured on 2 cores, 2026-01-01" in picture.words
