"""The file that notebook 12 reads holds what the benchmark measures, and the benchmark measures."""

import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from ttt_teach.bench import roofline


def test_the_committed_rates_are_of_the_products_measured_today():
    measured = json.loads((Path(roofline.__file__).parent / "results" / "roofline_h200.json").read_text())
    assert (tuple(measured["widths"]), tuple(measured["tokens"])) == (roofline.WIDTHS, roofline.TOKENS)
    assert {int(h): len(rates) for h, rates in measured["rates"].items()} == dict.fromkeys(
        roofline.WIDTHS, len(roofline.TOKENS)
    )
    layer = measured["layer"]
    assert (layer["sequences"], layer["length"], layer["width"]) == (
        roofline.SEQUENCES,
        roofline.LENGTH,
        roofline.WIDTH,
    )
    assert tuple(layer["chunks"]) == roofline.CHUNKS and len(layer["ms"]) == len(roofline.CHUNKS)


def test_a_rate_is_work_over_time(monkeypatch):
    """So many products that the bytes asked for move, and no fewer than one."""
    seen = []
    monkeypatch.setattr(roofline, "seconds", lambda f, *args, rounds: seen.append(f(*args).shape) or 2.0)
    assert roofline.product_rate(4, 8, jnp.float32, 10 * 4 * (64 + 64)) == pytest.approx(10 * 2 * 4 * 64 / 2)
    assert roofline.product_rate(4, 8, jnp.float32, 0) == pytest.approx(2 * 4 * 64 / 2)
    assert seen == [(10, 4, 8), (1, 4, 8)]
    assert roofline.bandwidth(jnp.float32, 8000) == pytest.approx(8000 / 2)


def test_a_layer_is_timed_for_every_chunk():
    assert len(roofline.layer_ms([8, 16], 40, 4, jnp.float32, rounds=1)) == 2
