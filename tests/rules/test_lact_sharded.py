"""LaCT over devices: split by tokens, by heads, by both and over hosts it is what one device computes."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from ttt_teach.bench import hosts
from ttt_teach.rules import door
from ttt_teach.rules.lact import SwiGLU, lact
from ttt_teach.rules.lact.sharded import sharded

# Muon makes up to 500 times as much of rounding in a direction with small singular values; two writes, and back again.
OUTPUTS, GRADIENTS = 1e-13, 1e-11


def test_eight_devices_agree_with_one():
    """Outputs, weights, and gradients in everything; this Python has one device, so another one runs it."""
    quickly = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    env = dict(os.environ, XLA_FLAGS=f"--xla_force_host_platform_device_count=8 {quickly}", JAX_PLATFORMS="cpu")
    command = [sys.executable, "-m", "tests.rules.eight_devices"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert found.pop("gradients of both") < GRADIENTS
    assert max(found.values()) < OUTPUTS and list(found) == ["tokens", "heads", "both", "both, explicit"]


def test_two_hosts_agree_with_one_device():
    said = hosts.rehearse(2).splitlines()
    assert [line.partition(":")[0] for line in said] == [f"host {n} of 2, 2 of 4 devices" for n in range(2)]
    assert max(float(x) for x in re.findall(r"within ([^ ,]+)", " ".join(said))) < OUTPUTS


def test_a_host_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(hosts, "MODULE", "ttt_teach.bench.no_such_module")
    with pytest.raises(RuntimeError, match="a host ended with 1: .*no_such_module"):
        hosts.rehearse(1)


def test_the_host_that_dies_is_heard_although_another_waits(monkeypatch, tmp_path):
    (tmp_path / "dying.py").write_text(
        "import sys, time\nif sys.argv[-1] == '1':\n    sys.exit('host 1 died at once')\ntime.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(hosts, "MODULE", "dying")
    monkeypatch.setattr(hosts, "LIMIT", 30)
    with pytest.raises(RuntimeError, match="a host ended with 1: host 1 died at once"):
        hosts.rehearse(2)


ADDRESS = ["--coordinator", "here:9876"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rehearse", "0"], "hosts is 0; expected a whole number >= 1"),
        (["--rehearse", "-1"], "hosts is -1; expected a whole number >= 1"),
        (["--rehearse", "3"], "hosts * devices is 6; expected a number that divides the 64 tokens of a chunk"),
        (["--rehearse", "2", "--hosts", "2"], "expected no --coordinator, --hosts or --host with it"),
        ([], "expected --coordinator, --hosts and --host, or --rehearse"),
        ([*ADDRESS, "--hosts", "2"], "expected --coordinator, --hosts and --host, or --rehearse"),
        ([*ADDRESS, "--hosts", "2", "--host", "2"], "--host is 2 of --hosts 2; expected one from 0, below --hosts"),
        (["--coordinator", "nope", "--hosts", "1", "--host", "0"], "--coordinator is 'nope'; expected HOST:PORT"),
        (["--coordinator", "here:x", "--hosts", "1", "--host", "0"], "--coordinator is 'here:x'; expected HOST:PORT"),
    ],
)
def test_options_that_start_nothing_are_named(options, message, capsys):
    with pytest.raises(SystemExit):
        hosts.main(options)
    assert message in capsys.readouterr().err


def test_devices_that_no_rehearsal_can_have_are_named():
    with pytest.raises(ValueError, match="devices is 0; expected a whole number >= 1"):
        hosts.rehearse(2, devices=0)


ONE = Mesh(np.array(jax.devices()[:1]), ("devices",))


def arguments(C=4, dtype=np.float64):
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(3, 1, 2, C, 2, 3)).astype(dtype)
    lr = rng.uniform(0.1, 1, (1, 2, C, 2, 3)).astype(dtype)
    return q, k, v, lr, SwiGLU(*rng.normal(size=(3, 2, 3, 3)).astype(dtype))


@pytest.mark.parametrize("mesh", [ONE, jax.make_mesh((1,), ("devices",))], ids=["auto", "explicit"])
def test_a_mesh_of_one_device_is_no_split(mesh):
    q, k, v, lr, W = arguments()
    o, last = sharded(q, k, v, lr, W, mesh=mesh, tokens="devices", muon=False)
    flat = (x.reshape(1, 8, *x.shape[3:]) for x in (q, k, v, lr))
    want, state = lact(*flat, W, chunk=4, muon=False)
    np.testing.assert_allclose(np.reshape(np.asarray(o), want.shape), want, rtol=1e-12)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12), last, state.weights)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": "rows"}, "tokens is 'rows'; expected an axis of the mesh: 'devices'"),
        ({"heads": "rows"}, "heads is 'rows'; expected an axis of the mesh: 'devices'"),
        ({"tokens": ["devices"]}, "tokens is ['devices']; expected an axis of the mesh: 'devices'"),
        ({"tokens": "devices", "heads": "devices"}, "heads is 'devices'; expected another axis than tokens"),
        ({"muon": "yes"}, "muon is 'yes'; expected True, False"),
        ({"momentum": np.full((1, 2, 4, 2), 1.5)}, "momentum holds 1.5; expected momentum between 0 and 1"),
        ({"mesh": None}, "mesh is None; expected a jax.sharding.Mesh"),
        ({"weights": None}, "weights is None; expected SwiGLU(gate, up, out)"),
    ],
)
def test_bad_input_is_named(changed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sharded(**dict(zip(("q", "k", "v", "lr", "weights"), arguments(), strict=True), mesh=ONE) | changed)


@pytest.mark.parametrize("some", [np.s_[:, :0], np.s_[:, :, :0]])
def test_no_tokens_are_refused(some):
    """XLA kills Python where it is to split them over two devices."""
    *tokens, W = arguments()
    with pytest.raises(ValueError, match=r"q has shape .*; expected at least one chunk of one token"):
        sharded(*(x[some] for x in tokens), W, mesh=ONE)


def test_what_lies_on_other_hosts_is_not_looked_at():
    door.require("momentum", SimpleNamespace(is_fully_addressable=False), lambda m: m > 0, "a value that is here")


def test_bad_rates_are_named():
    q, k, v, lr, W = arguments()
    with pytest.raises(ValueError, match=r"lr has shape \[1, 2, 4, 2, 2\]; expected \[B, N, C, H, 3\]"):
        sharded(q, k, v, lr[..., :2], W, mesh=ONE)


def test_a_split_that_leaves_a_rest_is_named():
    mesh = jax.sharding.AbstractMesh((3,), ("devices",))
    with pytest.raises(ValueError, match="tokens is 'devices' of 3 devices; expected one that divides 4"):
        sharded(*arguments(), mesh=mesh, tokens="devices")
