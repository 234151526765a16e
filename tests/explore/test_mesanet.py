"""The pictures of notebook 07 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import mesanet as pictures


def test_costs_marks_where_attention_reaches_mesa():
    tokens = np.array([1, 10, 100])
    state = {"softmax attention": 200 * tokens, "Mesa": np.full(3, 2000)}
    flops = {"softmax attention": 400 * tokens, "Mesa": np.full(3, 16_000)}
    picture = pictures.costs(tokens, state, flops, (10, 40), 100, 6)
    assert drawn(picture, "Mesa") == pytest.approx(np.array([(t, y) for y in (2000, 16_000) for t in tokens]))
    assert "width 100, 6 solver steps: after token 10 " in picture.words and "after token 40 " in picture.words


def test_accuracy_tells_the_trained_lengths_from_those_beyond():
    right = {"one": np.array([1.0, 1.0, 0.5, 0.7]), "other": np.full(4, 0.25)}
    picture = pictures.accuracy(np.arange(1, 5), right, 2, 30)
    assert drawn(picture, "one")[:, 1] == pytest.approx(right["one"])
    assert "After 30 steps of training: one 100% at length 2 and 60.0% beyond; other 25% at" in picture.words


def test_ones_parts_odd_from_even_and_says_the_last_move():
    margins = {"flips": np.array([1.0, -1.0, 1.0, -1.0]), "settles": np.array([1.0, 0.5, 0.5, 0.25])}
    picture = pictures.ones(np.arange(1, 5), margins)
    assert drawn(picture, "odd number of ones") == pytest.approx(np.array([(1, 1), (3, 1), (1, 1), (3, 0.5)]))
    assert "the last of 4 ones moves the margin of flips 2 and of settles 0.25." in picture.words


def test_towards_gla_says_the_distances_at_one_lam():
    lam = np.array([1.0, 10.0, 100.0])
    picture = pictures.towards_gla(lam, {"a": np.array([0.5, 0.2, 0.02]), "b": np.array([2.0, 0.1, 0.01])}, 10.0)
    assert drawn(picture, "1 / λ") == pytest.approx(np.array([(1, 2), (10, 0.2), (100, 0.02)]))
    assert "At λ = 10 the distance from the read of GLA is: a 20.0%, b 10.0%." in picture.words
