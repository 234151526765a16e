"""The pictures of notebook 09 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import preconditioned_delta as pictures


def test_a_geometric_mean_survives_a_ratio_of_zero():
    assert pictures.geometric_mean(np.array([0.25, 4.0])) == pytest.approx(1)
    assert pictures.geometric_mean(np.array([[1.0, 1e-4], [1.0, 0.0]]), 1) == pytest.approx([1e-2, 1e-150])


def test_bins_leave_out_the_rest():
    assert pictures.binned(np.arange(7), 3).tolist() == [[0, 1], [2, 3], [4, 5]]


def test_contraction_says_the_sign_and_counts_what_it_cannot_show():
    words = pictures.contraction(2.5, (-1.5) ** np.arange(5)).words
    assert "a write leaves 2.25 of the squared error, and the error changes sign at every write" in words
    assert "After 4 writes it is 5.1 of the first; 2 marks outside the picture" in words
    assert "at no write. After 1 write it is 0.5 of the first." in pictures.contraction(0.5, np.array([1, 0.5])).words
    assert "it is nothing but rounding of the first." in pictures.contraction(1.0, np.array([1, 1e-17])).words


def test_drifting_says_the_growth_of_one_write():
    sizes = 1.1 ** np.arange(21)
    picture = pictures.drifting(0.4, 0.35, 1 / sizes, sizes)
    assert "leaves 0.42 of its own squared error, and the memory changes by the factor 1.100 a write" in picture.words
    assert drawn(picture, "a scale that moves with the key")[:, 1] == pytest.approx(sizes)


def test_orders_say_the_difference_at_the_printed_step():
    apart = {"beta 0.2": np.array([1e-5, 0.1]), "beta 0.7": np.array([2e-5, 0.3])}
    local = {name: (np.array([0.5, 0.4]), np.array([0.5, 0.1])) for name in apart}
    picture = pictures.orders((0.003, 3.0), 0.003, apart, local)
    assert "0.003 the outputs of the two orders differ by 1.0e-05 of their size (beta 0.2)" in picture.words
    assert "at most by 0.3 in the picture; the residual ratio of the figure's order is down to 0.25" in picture.words
    assert drawn(picture, "beta 0.7")[:, 1] == pytest.approx(apart["beta 0.7"])


def test_guards_say_where_half_of_the_step_is_lost():
    sizes = np.geomspace(1e-6, 1, 7)
    shares = {c: sizes**2 / (sizes**2 + c) for c in (0.0, 1e-6, 1e-12)}
    picture = pictures.guards(sizes, shares)
    assert "with 1e-06 added to the denominator half of the step is lost at a residual of 1.0e-03" in picture.words
    assert drawn(picture, "as printed")[:, 1] == pytest.approx(1)


class TestLearning:
    d = np.linspace(1, 1.5, 32)[None, :, None] * np.ones((2, 1, 3))

    def test_says_the_scale_and_the_ratio(self):
        words = pictures.learning(0.3, 0.5, self.d, np.full((2, 32), 0.04), 2.0).words
        assert "after 32 tokens the mean scale is 1.500, the channels lie between 1.500 and 1.500" in words
        assert "starts at 0.25 and ends at 0.04." in words

    def test_a_ratio_below_the_axis_gets_no_number(self):
        assert "ends below 1e-8." in pictures.learning(0.3, 0.5, self.d, np.zeros((2, 32)), 2.0).words


def test_tuned_says_the_ratio_at_the_chosen_step():
    ratios = {"one number": (np.array([0.2, 0.1]), np.array([0.3, 0.15])), "many": (np.ones(2), np.array([0.5, 0.6]))}
    words = pictures.tuned("drawn", np.array([0.1, 1.0]), 0.4, ratios, {"one number": 1, "many": 0}).words
    assert "the delta rule leaves 0.4 of a squared error, and at the chosen steps it is 0.15 with one number" in words
    assert words.endswith("and 0.5 with many.")


def test_unseen_compares_with_the_delta_rule():
    back = {"OSDN": np.array([0.91, 0.95]), "twin": np.array([0.9, 0.94])}
    words = pictures.unseen(np.array([0.1, 1.0]), np.array([0.18, 0.1]), back, (0.2, 0.9)).words
    assert "From the delta rule to eta 1 the residual ratio falls from 0.200 to 0.100" in words
    assert "rises from 0.900 to 0.950 with OSDN." in words
