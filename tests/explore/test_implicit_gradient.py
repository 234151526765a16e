"""The pictures of notebook 06 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import implicit_gradient as pictures


def test_two_budgets_draws_every_gradient_and_names_the_worst():
    picture = pictures.two_budgets({"q": 1e-3, "lam": 2e-1, "v": 1e-2}, 1e-2, 1e-3, 6, 1)
    assert drawn(picture, "gradient") == pytest.approx(np.array([(1e-3, 2), (2e-1, 1), (1e-2, 0)]))
    assert "6 steps forward (x off by 1.0e-02), 1 backward (u off by 1.0e-03)" in picture.words
    assert "the worst is that of λ with 2.0e-01" in picture.words


@pytest.mark.parametrize(("line", "want"), [([1, 0.5, 0.01], 2), ([1, 0.01, 0.5, 0.01], 3), ([0.01], 0), ([1, 0.5], 2)])
def test_first_below_is_where_the_line_stays_below(line, want):
    assert pictures.first_below(line, 0.1) == want


def test_against_steps_counts_the_steps_of_the_first_two_lines():
    lines = {"implicit": [1, 0.05, 0.01], "unrolled": [1, 0.5, 0.05], "x": [1, 1, 1]}
    picture = pictures.against_steps(lines, 0.1)
    assert "To 0.1 of the exact gradient it is 1 step for implicit and 2 steps for unrolled" in picture.words
    assert drawn(picture, "unrolled") == pytest.approx(np.array([(0, 1), (1, 0.5), (2, 0.05)]))


def test_trained_says_where_each_gradient_ends_and_what_the_implicit_one_costs():
    ends = {"exact": (0.1, 5.0, 1.0), "unrolled": (0.4, 2.0, 1.6), "implicit": (0.2, 2.5, 1.2)}
    picture = pictures.trained([0.1, 1], [1, 2], [3, 4], ends, 3)
    assert "end at λ 0.1 (exact), 0.4 (unrolled), 0.2 (implicit);" in picture.words
    assert "25.00% more loss than the unrolled one, solved exactly 25.0% less" in picture.words
    assert drawn(picture, "implicit gradient") == pytest.approx(np.array([(0.2, 2.5)]))
    assert drawn(picture, "exact gradient") == pytest.approx(np.array([(0.1, 1.0)]))


def test_tolerances_speaks_of_the_equal_one_and_of_the_last():
    picture = pictures.tolerances([1e-2, 1e-4, 1e-6], {"q": [0.1, 1e-3, 1e-5], "k": [0.1, 2e-3, 1e-3]}, 1e-4)
    assert "of 0.0001 and of 1e-06 are q 1.0e-03 and 1.0e-05, k 2.0e-03 and 1.0e-03" in picture.words


def test_guarded_speaks_of_the_chosen_step():
    wide, tight = {"q": [0.5, 0.2], "lam": [0.6, 0.3]}, {"q": [0.1, 1e-3], "lam": [0.1, 2e-3]}
    picture = pictures.guarded([1, 2], wide, tight, 1e-4, 2)
    assert "Upstream 0.0001, 2 steps:" in picture.words
    assert "off by 0.2 (q), 0.3 (λ), without it by at most 2.0e-03" in picture.words
