"""The pictures of notebook 04 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import conjugate_gradient as pictures


class TestDescentPaths:
    A = np.array([[3.0, 1.0], [1.0, 2.0]])
    x_star = np.array([0.6, 0.2])

    def test_draws_the_iterates_and_says_the_error_left_in_the_A_norm(self):
        path = np.array([[0.0, 0.0], [0.3, 0.1]])  # halfway, so half the error in any norm
        picture = pictures.descent_paths(self.A, self.x_star, path, np.array([[0.0, 0.0], self.x_star]))
        assert drawn(picture, "steepest descent") == pytest.approx(path)
        assert "1 step:" in picture.words and "50.0%" in picture.words and "0.0% (in" in picture.words

    def test_the_outer_ellipse_is_the_points_as_far_as_the_start(self):
        ellipse = pictures._ellipse(self.A, self.x_star, 1.7)
        points = ellipse.get_patch_transform().transform([(np.cos(t), np.sin(t)) for t in np.linspace(0, 2 * np.pi, 9)])
        e = points - self.x_star
        assert np.sqrt(np.einsum("ni,ij,nj->n", e, self.A, e)) == pytest.approx(1.7)


@pytest.mark.parametrize("degree", [0, 1, 5])
def test_chebyshev_is_1_at_zero_and_as_large_as_it_says_on_the_interval(degree):
    value, bound = pictures.chebyshev(np.array([0.0, *np.linspace(2, 50, 4001)]), 2.0, 50.0, degree)
    root = np.sqrt(50 / 2)
    rho = (root - 1) / (root + 1)
    assert value[0] == pytest.approx(1)
    assert np.abs(value[1:]).max() == pytest.approx(bound)
    assert bound == pytest.approx(2 / (rho**-degree + rho**degree))


def test_the_polynomial_is_zero_at_its_roots_and_the_words_weigh_it():
    spectrum, weights = np.array([1.0, 2.0, 8.0]), np.array([0.5, 0.25, 0.25])
    picture = pictures.polynomials(spectrum, weights, np.array([2.0, 8.0]), 2, "A spectrum")
    dots = drawn(picture, "at the eigenvalues")
    left = (1 - 1 / 2) * (1 - 1 / 8)  # at the eigenvalue 1; zero at the other two
    assert dots == pytest.approx(np.array([(1, left), (2, 0), (8, 0)]))
    assert f"leaves {np.sqrt(0.5) * left:.2g} of the error" in picture.words


def stopping(eps):
    true, recurred = np.array([1.0, 0.1, 0.01, 0.01]), np.array([1.0, 0.1, 0.01, 0.001])
    return pictures.stopping(true, recurred, {"one": np.ones(4), "two": np.ones(4)}, eps, 0.25)


class TestStopping:
    def test_marks_the_stop_where_the_carried_residual_meets_eps(self):
        assert drawn(stopping(0.05), "stop") == pytest.approx(np.array([(2, 0.01)]))
        assert "stops after 2 steps" in stopping(0.05).words and "there too" in stopping(0.05).words

    def test_says_when_the_true_residual_never_gets_there(self):
        assert "stops after 3 steps" in stopping(0.005).words and "never there" in stopping(0.005).words

    def test_says_when_there_is_no_stop(self):
        assert "does not stop within 3 steps" in stopping(1e-9).words


def test_storage_counts_negative_eigenvalues_and_draws_their_size():
    picture = pictures.storage(np.array([-0.5, 0.25, 4.0]), np.array([1.0, 3.0]), 0.25, "float16")
    assert drawn(picture, "negative, by size") == pytest.approx(np.array([(1, 0.5)]))
    assert "1 eigenvalue negative" in picture.words and "3.0e+00" in picture.words


def test_guard_says_how_far_the_ends_are_from_the_law():
    ends = {"|q| = 1": np.array([1.0, 0.3]), "|q| = 0.1": np.array([0.1, 0.1])}
    picture = pictures.guard(np.array([1, 100]), ends, np.array([1.0, 0.2]))
    assert "After 100 guarded steps every residual is between 0.5 and 1.5 times 2.0e-01" in picture.words


class TestStepsByToken:
    def test_says_the_fewest_the_most_and_the_hardest(self):
        panels = {"layer 1": {"head 0": [1, 2], "head 1": [9, 11]}, "layer 4": {"head 0": [4, 4], "head 1": [5, 6]}}
        words = pictures.steps_by_token([7, 15], panels, "To 0.1", "F04g").words
        assert "from 1.5 steps (layer 1 head 0) to 10.0 (layer 1 head 1); the hardest token takes 11." in words

    def test_more_than_eight_lines_have_no_legend(self):
        assert "head 8" not in self.many(9) and "head 7" in self.many(8)

    def many(self, heads):
        lines = {f"head {h}": [20, 30 - h] for h in range(heads)}
        picture = pictures.steps_by_token([1, 2], {"yours": lines}, "To 0.1", "F04g")
        return picture.svg
