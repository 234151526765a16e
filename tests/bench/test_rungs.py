"""The log of rungs: the committed one, what is refused, the table, and the kernels that notebook 20 defines."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from ttt_teach import linear
from ttt_teach.bench import device, rungs
from ttt_teach.rules import tiles

ENTRY = rungs.Rung(
    "delta", "a", "b", {"forward": 0.5, "both": None}, {"forward": 1.0, "both": 2.0}, "c", "2030-01-01", "d"
)._asdict()


def written(tmp_path, *entries):
    path = tmp_path / "rungs.json"
    path.write_text(json.dumps(entries))
    return path


def test_the_committed_log_is_of_rules_that_are_measured():
    climbed = rungs.load()
    assert set(climbed) <= set(device.CASES)
    for some in climbed.values():
        names = [rung.rung for rung in some]
        assert len(set(names)) == len(names)
        assert all(rung.changed and rung.date and rung.commit for rung in some)


def test_a_rung_is_refused_that_lacks_something(tmp_path):
    with pytest.raises(ValueError, match="holds a rung with .*; expected"):
        rungs.load(written(tmp_path, {k: v for k, v in ENTRY.items() if k != "outcome"}))
    with pytest.raises(ValueError, match="measured of 'a' is .*; expected ms above 0, or null"):
        rungs.load(written(tmp_path, ENTRY | {"measured": {"forward": 0.0, "both": None}}))


def test_the_table_says_how_far_off_a_prediction_was(tmp_path):
    _, rule, line = rungs.table(rungs.load(written(tmp_path, ENTRY)))
    assert rule == "delta" and line.split() == "a 0.5 / - 1 / 2 2 / -".split()


def test_the_kernels_of_the_notebook_lower_for_cuda_at_both_widths():
    """Their numbers are checked in the notebook."""
    found = rungs.kernels()
    assert list(found) == [rung.rung for rung in rungs.load()["linear"]][2:6]
    q = jnp.zeros((1, 128, 1, 128), jnp.bfloat16)
    for name in ("first", "fourth"):
        lowered = jax.jit(found[name]).trace(q, q, q, tiles.sums(jnp.zeros(q.shape[:3], jnp.float32)))
        assert "mosaic_gpu" in lowered.lower(lowering_platforms=("cuda",)).as_text()


def test_each_rung_is_measured_and_compared(monkeypatch):
    monkeypatch.setattr(device, "ROUNDS", 2)
    monkeypatch.setattr(device, "TURN", 0.1)
    args, _ = device.draw(device.CASES["linear"]._replace(sizes={"B": 1, "T": 70, "H": 1, "D": 8}))
    calls = {
        "recurrent": partial(linear, form="recurrent"),
        "chunk": linear,
        "double": lambda **x: linear(**x, scale=2.0),
    }
    lines = [line.split() for line in rungs.ladder(calls, args)]
    assert [line[0] for line in lines] == list(calls)
    assert [float(line[-1]) for line in lines[1:]] == [0.0, pytest.approx(1.0)] and float(lines[0][-1]) < 4e-3
    assert all(float(line[1]) > 0 for line in lines)


def test_what_is_measured_takes_what_it_is_given():
    args, _ = jax.eval_shape(lambda: device.draw(device.CASES["linear"]))
    for name, call in rungs.contestants().items():
        if name != "package":
            o, S = jax.eval_shape(lambda call=call: call(**device.draw(device.CASES["linear"])[0]))
            assert o.shape == args["v"].shape and S.shape == (16, 12, 128, 128)
