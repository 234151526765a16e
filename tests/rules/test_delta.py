"""The delta rule: what one step of size 1 must do; golden files of DeltaNet, Gated DeltaNet and KDA."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules import golden
from tests.rules.contract import Contract
from ttt_teach import delta
from ttt_teach.rules.delta import FORMS


class TestDelta(Contract):
    rule = staticmethod(delta)
    forms = tuple(FORMS)
    kernel = True

    def draw(self, seed=0, *, B=1, T=12, H=2, own_write_key=True, **rest):
        args = super().draw(seed, B=B, T=T, H=H, **rest)
        rng = np.random.default_rng(seed + 1)
        args["beta"] = rng.uniform(0, 1, (B, T, H))
        return args | ({"write_key": args["k"] * rng.uniform(0.5, 1.5, args["k"].shape)} if own_write_key else {})

    def keys(self, k):
        return {"k": k, "write_key": k}

    def test_the_step_is_minus_beta_times_the_gradient(self, form):
        """The loss is stated here again, and differentiated in S; a nudged step size gives another S."""
        args = self.draw(20, T=1, H=1, decay=None, own_write_key=False)
        q, k, v, β, S = (args[n][0, 0, 0] if n != "state" else args[n][0, 0] for n in ("q", "k", "v", "beta", "state"))
        slope = jax.grad(lambda S: jnp.sum((v - jnp.einsum("kv,k->v", S, k)) ** 2) / 2)(S)
        got = delta(**args, form=form)[1][0, 0]
        golden.check_close("S", got, S - β * slope, 1e-15)
        assert np.abs(got - (S - (β + 1e-6) * slope)).max() > 1e-8

    def test_a_full_step_stores_the_pair(self, form):
        """beta |k|^2 = 1: the latest pair reads back exactly, whatever was there; beta = 2 reflects its error."""
        args = self.draw(21, T=3, decay=None, own_write_key=False)
        for β, sign in ((1.0, 0.0), (2.0, -1.0)):
            one = args | {n: args[n][:, :1] for n in ("q", "k", "v", "beta")}
            one["beta"] = np.full_like(one["beta"], β)
            before = one["v"][:, 0] - np.einsum("bhkv,bhk->bhv", args["state"], one["k"][:, 0])
            after = one["v"][:, 0] - np.einsum("bhkv,bhk->bhv", delta(**one, form=form)[1], one["k"][:, 0])
            assert np.abs(after - sign * before).max() < 1e-14

    def test_beta_of_zero_writes_nothing(self, form):
        args = self.draw(22, decay=None)
        args["beta"] = np.zeros_like(args["beta"])
        np.testing.assert_array_equal(delta(**args, form=form)[1], args["state"])

    def test_write_key_defaults_to_the_key(self, form):
        args = self.draw(23, own_write_key=False)
        o, S = delta(**args, form=form)
        same = delta(**args, write_key=args["k"], form=form)
        np.testing.assert_array_equal(o, same[0])
        np.testing.assert_array_equal(S, same[1])

    def test_write_key_decides_where_and_key_decides_what(self, form):
        """S_t - S' = beta w u': its columns lie along the write key, its size is the error read at the key."""
        args = self.draw(24, T=1, H=1, decay=None)
        w = np.array([2.0, -1.0, 0.5, 0.0]).reshape(1, 1, 1, 4)
        change = (delta(**args | {"write_key": w}, form=form)[1] - args["state"])[0, 0]
        u = args["v"][0, 0, 0] - args["state"][0, 0].T @ args["k"][0, 0, 0]
        golden.check_close("change", change, args["beta"].item() * np.outer(w, u), 1e-14)


AXES = {"q": "BTHK", "k": "BTHK", "v": "BTHV", "beta": "BTH", "h0": "BHKV", "w": "BTHV", "w_ht": "BHKV"}
SIZE = {"T": 257, "H": 2, "K": 16, "V": 16}


@cache
def golden_rule(form):
    def apply(q, k, v, beta, g, h0, scale):
        shared = v.shape[2] // q.shape[2]  # grouped values: value head j uses query and key head j // shared
        q, k = (jnp.repeat(x, shared, axis=2) for x in (q, k))
        o, S = delta(q, k, v, beta, log_decay=g, scale=scale, state=h0, form=form, chunk=8)
        return {"o": o, "ht": S}

    return apply


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("file", "name"), [(f, c) for f in ("delta_rule", "gdn", "kda") for c in golden.read(f)])
def test_golden(file, name, form):
    case = golden.read(file)[name]
    axes = AXES | {"g": "BTHK" if file == "kda" else "BTH"}
    pad = None if name == "tiny_gva" else partial(golden.padded, axes=axes, size=SIZE)  # it has heads of its own
    inputs = ("q", "k", "v", "beta", "g", "h0")
    golden.check_case(case, golden_rule(form), inputs, numbers={"scale": golden.scale_of(case)}, pad=pad)
