"""The pictures of notebook 12 draw the rates they are given under the right roof, and say the right numbers."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import arithmetic_intensity as pictures
from ttt_teach.theory.intensity import arithmetic_intensity

MACHINE = {
    "cores": 2,
    "bytes_per_number": 2,
    "peak": 100e12,
    "bandwidth": 1e12,
    "widths": [384, 768],
    "tokens": [16, 1024],
    "rates": {"384": [10e12, 60e12], "768": [12e12, 95e12]},
    "layer": {"chunks": [64, 128], "ms": [40.0, 25.0]},
}


def test_one_product_is_under_the_roof():
    picture = pictures.under_the_roof(MACHINE, 16, 384)
    (x, y), *_ = drawn(picture, "this one")
    assert (x, y) == pytest.approx((arithmetic_intensity(16, 384), 10))
    assert "so the memory allows 14.77% of the peak, and the product reached 10.00%" in picture.words
    roof = drawn(picture, "roof")
    assert roof[:, 1] == pytest.approx(np.minimum(100, roof[:, 0]))
    assert "so the arithmetic allows 100.00%" in pictures.under_the_roof(MACHINE, 1024, 768).words


def test_enough_sorts_the_products_by_what_they_reached():
    picture = pictures.enough(0.5, MACHINE)
    assert sorted(map(tuple, drawn(picture, "measured: reached"))) == [(384, 1024), (768, 1024)]
    assert "a width must be above 100; width 384 needs 68 tokens and width 768 needs 58 tokens" in picture.words
    assert "for width 384 none is enough" in pictures.enough(1.0, MACHINE | {"peak": 300e12}).words


def test_the_layer_is_drawn_with_its_floor():
    picture = pictures.layer(MACHINE, np.array([2.0, 1.0]))
    assert drawn(picture, "measured, forward, float32 products")[:, 1] == pytest.approx([40, 25])
    assert "falls from 40 to 25.0 ms, and its products alone would take 2.00 to 1.00" in picture.words


def test_the_own_machine_is_drawn_with_its_own_prediction():
    picture = pictures.own_machine(MACHINE)
    assert drawn(picture, "width 768")[:, 1] == pytest.approx([12e3, 95e3])
    assert "a peak of 100000 GFLOP/s, 1000 GB/s, and products of up to 95% of the peak" in picture.words
