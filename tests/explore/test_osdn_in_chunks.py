"""The pictures of notebook 11 draw the numbers they are given and say the right ones."""

import json
from importlib import resources

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import osdn_in_chunks as pictures


@pytest.mark.parametrize("first, says", [(0.0, "in the first chunk the error is zero"), (0.1, "is not zero")])
def test_misplaced_says_the_mean_of_its_place_and_chunk(first, says):
    means = {"in W": np.array([0.04, 0.02]), "in A": np.array([0.0, 0.01])}
    errors = np.array([first, first, 0.2, 0.3])
    picture = pictures.misplaced(errors, np.arange(4), means, (1, 2), "in W", 2)
    assert "in W, chunks of 2 tokens: the output is off by 2 % of its size" in picture.words
    assert says in picture.words
    assert drawn(picture, "in A") == pytest.approx(np.array([(0, 0.0), (1, 0.01)]))


def test_clips_counts_chunks_and_places():
    redone = np.array([[False, True], [False, True], [False, False], [False, False]])
    scales = np.array([[1.0, 1.2], [1.0, 1.5]])
    picture = pictures.clips(np.array([0, 8]), scales, redone, (0.5, 1.5), 0.3, "one head, 2 channels")
    assert "2 of 8 chunks had to be done again, 25.0 %; at 50 % of the positions some head had to" in picture.words
    assert "ends at 1.500" in picture.words


@pytest.mark.parametrize("floor, says", [(0.5, "on the lower bound at token 32"), (0.7, "largest scale ends at 0.70")])
def test_forgetting_says_when_all_lie_on_the_bound(floor, says):
    tokens, high = np.array([0, 32, 64]), np.array([1.0, floor, floor])
    shares = np.array([0.0, 0.25])
    picture = pictures.forgetting(tokens, high - 0.1, high, high, (1.0, 0.9), shares, 0.9)
    assert "r = 0.9: 25 % of the chunks" in picture.words and says in picture.words


def test_two_updates_shades_where_they_disagree():
    reads = np.linspace(0.5, 2.5, 5)
    aware, blind = 0.5 * (1 - 0.5 * reads), 1 - reads
    ratios = {"aware": np.array([0.2, 0.1]), "1.3B": np.array([0.2, 0.3]), "delta rule": np.array([0.25, 0.25])}
    picture = pictures.two_updates(reads, aware, blind, 0.5, np.array([0, 64]), ratios)
    assert "aims at <d, s> = 2, the other at 1; left at the end: aware 0.100, 1.3B 0.300" in picture.words
    assert drawn(picture, "beta-aware")[:, 1] == pytest.approx(aware)


def test_cost_adds_up():
    parts = {"products": np.array([60.0, 100.0]), "triangle": np.array([1.0, 50.0]), "sweep": np.array([39.0, 50.0])}
    picture = pictures.cost(np.array([1, 64]), parts, 64, 32, 96)
    assert drawn(picture, "all") == pytest.approx(np.array([(1, 100), (64, 200)]))
    assert (
        "200 FLOPs a token (products 50.0 %, triangle 25.0 %, sweep 25.0 %), and the sweep of 2048 tokens has 96 calls"
        in picture.words
    )


def test_times_draws_what_was_measured():
    path = resources.files("ttt_teach.bench") / "results" / "rules_cpu.json"
    bench = json.loads(path.read_text())
    picture = pictures.times(bench["ms"], bench["date"])
    o = bench["ms"]["osdn"]["output"]
    assert f"osdn's output takes {o[0]:g} ms token by token and {o[1]:g} in chunks" in picture.words
