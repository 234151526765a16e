"""The pictures of notebook 10 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import super_geometric as pictures


class TestPromises:
    T = np.array([1, 10, 100])

    def draw(self, promise):
        logs = {name: -self.T.astype(float) for name in (*pictures.MEASURED, *pictures.BOUNDS)}
        logs |= {"learned scale": np.array([-1, -20, -300.0]), "promise, this step": np.array(promise)}
        return pictures.promises("some", 0.5, self.T, logs)

    def test_says_the_products_and_when_the_promise_is_below_the_plain_rule(self):
        picture = self.draw([1.0, -5.0, -150.0])
        assert "after 100 tokens the product is 10^-300 with the learned scale and 10^-100" in picture.words
        assert "falls below the plain rule by token 100" in picture.words
        assert drawn(picture, "learned scale")[-1].tolist() == [100, -300]

    def test_a_promise_that_never_gets_there(self):
        assert "above the plain rule at all 100 tokens" in self.draw([1.0, 1.0, 1.0]).words

    def test_a_step_without_a_promise(self):
        assert "for so long a step there is no promise" in self.draw([np.nan] * 3).words


@pytest.mark.parametrize(("gap", "said"), [(1e-30, "0 with the best fixed scale"), (0.04, "0.04 with the best")])
def test_gates_draw_the_mean_so_far_and_say_the_gap(gap, said):
    plain, learned = np.array([0.4, 0.2, 0.0]), np.array([0.4, 0.1, 0.1])
    picture = pictures.gates("some", "0.5", plain, learned, gap, 0.0, np.array([2, 1.0]), np.array([1.5, 1.2]))
    assert drawn(picture, "learned")[:, 1] == pytest.approx([0.4, 0.25, 0.2])
    assert drawn(picture, "learned, at the end")[:, 1] == pytest.approx([1.2, 1.5])  # sorted by the best
    assert f"0.2 with the plain rule, 0.2 with the learned scale, {said}" in picture.words
    assert "the box allows 0." in picture.words


def test_population_draws_the_loss_and_says_loss_and_regret():
    excess = np.full(4, 0.25)
    runs = {name: (-np.arange(5.0) * n, n * excess) for n, name in enumerate(("a", "b", "c"), 1)}
    picture = pictures.population(0.5, runs, 1.0)
    assert drawn(picture, "b").tolist() == [[0, 0], [1, -2], [2, -4], [3, -6], [4, -8]]
    assert "after 4 steps: a leaves 10^-4 of the loss, regret 1; b leaves 10^-8" in picture.words


def test_flips_say_what_each_measure_says():
    words = pictures.flips(0.5, np.zeros(5)).words
    assert "the share 0.5: it leaves 0.25 of its own" in words
    assert "a squared error of 1.78 and the population loss is 0.0556 too high" in words


def test_heads_say_the_range_of_every_series():
    panels = {name: {"plain rule": [0.1, 0.2], "eta 1": [0.01, 0.02]} for name in ("x", "y")}
    picture = pictures.heads(["a", "b"], panels)
    heights = [set(drawn(picture, name)[:, 1]) for name in ("plain rule", "eta 1")]
    assert not heights[0] & heights[1]  # marks of equal values do not hide each other
    assert "2 real heads. x: plain rule 0.1 to 0.2, eta 1 0.01 to 0.02; y: " in picture.words
