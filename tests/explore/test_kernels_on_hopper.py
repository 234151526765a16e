"""The pictures of notebook 20 draw the counts, predictions and measurements they are given."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.bench.rungs import Rung
from ttt_teach.explore import kernels_on_hopper as pictures

NONE = {"forward": None, "both": None}


def rung(name, predicted, measured):
    return Rung("linear", name, "", predicted, measured, "", "2030-01-01", "")


RUNGS = {
    "linear": [
        rung("first", {"forward": 0.5, "both": 2.0}, {"forward": 1.0, "both": None}),
        rung("forgotten", NONE, NONE),
        rung("last", {"forward": 0.25, "both": None}, {"forward": 0.2, "both": 1.0}),
    ]
}
FLOORS = {"linear": {"forward": 0.1, "both": 0.4}}


def ratio(median):
    return {"median": median, "quartiles": [0.9 * median, 1.1 * median]}


RESULTS = {
    "date": "2030-01-01",
    "device": "some GPU",
    "rows": {
        "mesa": {
            "forward": {"ratio": {"kernel": {"a": ratio(2.0), "b": ratio(0.5)}}},
            "forward+backward": {"ratio": {"kernel": {"a": ratio(4.0)}}},
            "errors": {
                "of": {"B": 1},
                "kernel": {"o": {"o": 1e-3}, "1": {"dq": 2e-3}, "0.0001": {"dq": 2e-3}, "1e-06": {"dq": 3e-3}},
                "a": {"o": {"o": 1e-3}, "1": {"dq": 4e-3}, "0.0001": {"dq": 0.2}, "1e-06": {"dq": None}},
            },
        },
        "failed": {"failed": "RuntimeError"},
    },
}


def test_the_room_of_a_block_is_that_of_the_formula():
    picture = pictures.room(64, 128, 16 * 2048 * 12)
    assert drawn(picture, "KB")[:, 1] == pytest.approx([64, 104])
    assert "with two, 128 registers of sums in each of 128 threads, so 3 or 2 such blocks fit" in picture.words
    assert "bytes ask for 0.094 ms" in picture.words
    assert "so 0 or 0 such blocks" in pictures.room(192, 256, 10**5).words


def test_a_ladder_shows_what_there_is_of_each_rung():
    picture = pictures.ladder("linear", RUNGS, FLOORS)
    predicted = drawn(picture, "forward, predicted")
    assert predicted[:, 0] == pytest.approx([0.5, 0.25]) and list(predicted[:, 1]) == [0, 1]
    assert drawn(picture, "with backward, measured")[1, 0] == pytest.approx(1.0)
    assert "2 rungs; measured times are 0.8 to 2 of the predicted, and the floor is 0.1 ms" in picture.words


def test_others_are_drawn_beside_ours_and_the_faster_ones_counted():
    picture = pictures.beside(RESULTS)
    assert drawn(picture, "forward")[:, 0] == pytest.approx([2.0, 0.5])
    assert drawn(picture, "forward+backward")[:, 0] == pytest.approx([4.0])
    assert "of 3 times of others beside ours, 1 is clearly shorter" in picture.words


def test_errors_are_those_of_the_worst_gradient_and_what_is_not_finite_is_not_drawn():
    picture = pictures.errors("mesa", RESULTS)
    assert drawn(picture, "a")[:2, 1] == pytest.approx([4e-3, 0.2]) and np.isnan(drawn(picture, "a")[2, 1])
    assert "kernel 2.0e-03 at 1 and 3.0e-03 at 1e-06; a 4.0e-03 at 1 and not finite at 1e-06." in picture.words
