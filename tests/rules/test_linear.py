"""Linear attention: the weighted sum, by hand; golden files of four published layers that are this rule."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules import golden
from tests.rules.contract import Contract
from ttt_teach import linear
from ttt_teach.rules.linear import FORMS


class TestLinear(Contract):
    rule = staticmethod(linear)
    forms = tuple(FORMS)
    kernel = True

    def test_the_sum_by_hand(self, form):
        """o_t = sum over i <= t of v_i sum_a q_ta k_ia prod_{i<s<=t} gamma_sa, in plain Python."""
        args = self.draw(B=1, T=5, H=1, K=2, V=2, decay="channel")
        q, k, v, g = (args[n][0, :, 0] for n in ("q", "k", "v", "log_decay"))
        S0 = args["state"][0, 0]
        want = np.zeros_like(v)
        for t in range(5):
            for a in range(2):
                want[t] += q[t, a] * np.prod(np.exp(g[: t + 1, a])) * S0[a]
                for i in range(t + 1):
                    want[t] += q[t, a] * np.prod(np.exp(g[i + 1 : t + 1, a])) * k[i, a] * v[i]
        golden.check_close("o", linear(**args, form=form)[0][0, :, 0], want, 1e-14)

    def test_a_product_that_overflows_stays_where_it_belongs(self, form):
        """q_0 . k_2 and, over the reset before token 2, q_2 . k_0 are infinite in float32, and neither is asked for."""
        q, k = np.ones((2, 1, 4, 1, 1), np.float32)
        q[0, [0, 2]] = k[0, [0, 2]] = 1e20
        gate = np.zeros((1, 4, 1), np.float32)
        gate[0, [1, 2]] = -np.inf
        v = np.full_like(q, 1e-30)
        o, _ = linear(q, k, v, log_decay=gate, form=form)
        np.testing.assert_allclose(np.asarray(o)[0, [1, 3], 0, 0], [1e-30, 1e-10], rtol=1e-6)

    @pytest.mark.parametrize("scale", [np.ones(3), 1j])
    def test_a_scale_that_is_no_real_number_is_named(self, scale):
        with pytest.raises(ValueError, match="scale is .*; expected one real number"):
            linear(**self.draw(), scale=scale)

    def test_scale_multiplies_q(self, form):
        args = self.draw()
        o, _ = linear(**args, scale=0.5, form=form)
        golden.check_close("o", o, linear(**args | {"q": 0.5 * args["q"]}, form=form)[0], 1e-15)


AXES = {"q": "BTHK", "k": "BTHK", "v": "BTHV", "h0": "BHKV", "w": "BTHV", "w_ht": "BHKV"}
SIZE = {"T": 257, "H": 2, "K": 16, "V": 16}
AS_IT_IS = ("gla", "t67_mixed")  # what is not padded, nor starts from a state


@cache
def golden_rule(form):
    def apply(q, k, v, g, scale, h0=None):
        o, S = linear(q, k, v, log_decay=g, scale=scale, state=h0, form=form, chunk=8)
        return {"o": o, "ht": S}

    return apply


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("file", "name"),
    [(f, c) for f in ("linear_attn", "simple_gla", "gla") for c in golden.read(f) if "normalized" not in c],
)
def test_golden(file, name, form):
    case = golden.read(file)[name]
    axes = AXES | {"g": "BTHK" if file == "gla" else "BTH"}
    pad = None if (file, name) == AS_IT_IS else partial(golden.padded, axes=axes, size=SIZE)
    inputs = ("q", "k", "v", "g", "h0")
    golden.check_case(case, golden_rule(form), inputs, numbers={"scale": golden.scale_of(case)}, pad=pad)


@pytest.mark.parametrize("form", FORMS)
def test_golden_normalised(form):
    """Normalised linear attention is the rule with one more value, which is always 1 (additive 1e-10 as stored)."""
    case = golden.read("linear_attn")["tiny_normalized"]

    def apply(q, k, v):
        one = jnp.ones_like(v[..., :1])
        o, S = linear(q, k, jnp.concatenate([v, one], -1), scale=golden.scale_of(case), form=form)
        return {"o": o[..., :-1] / (o[..., -1:] + 1e-10), "ht": S[..., :-1], "zt": S[..., -1][:, None]}

    golden.check_case(case, apply, ("q", "k", "v"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", golden.read("mamba2"))
def test_golden_mamba2(name, form):
    """Mamba2 is scalar-decay linear attention with q = C, k = B, v = dt x, log_decay = dt A."""

    def as_linear(x, dt, A, B, C, h0):
        return {"q": C, "k": B, "v": dt[..., None] * x, "g": dt * A[None, None], "h0": h0}

    axes = {"x": "BTHV", "dt": "BTH", "A": "H", "B": "BTHK", "C": "BTHK", "h0": "BHKV", "w": "BTHV", "w_ht": "BHKV"}
    case, inputs = golden.read("mamba2")[name], ("x", "dt", "A", "B", "C", "h0")
    given, _, weights = golden.arguments(case, inputs, pad=partial(golden.padded, axes=axes, size=SIZE))
    given, back = jax.vjp(as_linear, *(given[n] for n in inputs))
    found, slopes = golden.run(golden_rule(form), given, {"scale": 1.0}, weights)
    golden.compare(case, found, dict(zip(inputs, back(slopes), strict=True)), padded=True)
