"""The layer around a fast-weight rule: MesaNet compares rules in one and the same layer, so it is written once."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from ttt_teach.nn.parts import Linear, ShortConv, check_input, check_state, over_last, rms_norm, unit, wide
from ttt_teach.rules.delta import delta
from ttt_teach.rules.door import count
from ttt_teach.rules.linear import linear

# Forget gates at the start, from the first head to the last: a memory of about 10 to about 1000 tokens. Our choice.
FORGET_START = (0.9, 0.999)
# |z| below which a signed gate tanh(z / 2) counts as this small: its logarithm has no gradient at 0.
SMALLEST_SIGNED = 1e-6


class Features(NamedTuple):
    """What the layer gives its rule."""

    q: Float[Array, "B T H K"]  # of length 1
    k: Float[Array, "B T H K"]  # of length 1
    v: Float[Array, "B T H V"]
    beta: Float[Array, "B T H"]  # in (0, 1)
    log_decay: Float[Array, "B T H"] | None  # log |gamma|
    sign: Float[Array, "B T H"] | None  # of gamma, if it may be negative


class FastWeightsState(NamedTuple):
    """All that a later call needs. Its size does not depend on the number of tokens read."""

    tail: Float[Array, "B J1 C"]  # the last inputs of the convolution
    memory: Any  # of the rule: S, or MesaState(G, H)
    sign: Float[Array, "B H"] | None  # the product of all signs so far, by which v and o are turned


class FastWeights(eqx.Module):
    """x -> short convolution and SiLU -> q, k, v and gates -> a rule -> RMSNorm per head -> projection (App. E).

    q and k have length 1; beta_t = sigmoid(x_t w + b) and gamma_t likewise, one number per head and token.

    With ``negative_decay`` gamma_t = tanh(z_t / 2) = 2 sigmoid(z_t) - 1 lies in (-1, 1) (App. I). Rules take |gamma|,
    and the signs go into the values: with s_t = sign(gamma_1) ... sign(gamma_t), the rule reads s_t v_t and its output
    is multiplied by s_t. Every rule here is linear in the values, so this *is* S_t = gamma_t S_{t-1} + k_t v_t' and the
    gated delta rule with the signed gamma, exactly.

    Args:
        dim: width of the residual stream. heads; head_dim: K = V of each.
        conv: width of the convolution. gated: whether there are forget gates; else nothing is forgotten.
        negative_decay: gates in (-1, 1).

    ``mixer(x [B, T, dim], state=None) -> (y [B, T, dim], state)``: x in the dtype of the parameters; the memory in
    float32, or float64 if they are. Any T, 0 too. A subclass is a rule: it says in :meth:`rule` what is done with the
    features.

    Raises:
        ValueError: a size that is no whole number >= 1, x of another shape or dtype, a state of another batch,
            negative_decay without gates.
    """

    project: Linear
    conv: ShortConv
    input_gate: Linear
    forget_gate: Linear | None
    norm: eqx.nn.RMSNorm
    out: Linear
    heads: int = eqx.field(static=True)
    negative_decay: bool = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int = 128,
        conv: int = 4,
        gated: bool = True,
        negative_decay: bool = False,
        key: PRNGKeyArray,
    ):
        dim, heads = count("dim", dim), count("heads", heads)
        width = heads * count("head_dim", head_dim)
        if negative_decay and not gated:
            raise ValueError("negative_decay is True; expected False in a layer without forget gates (gated is False)")
        keys = jax.random.split(key, 5)
        self.project = Linear(dim, 3 * width, key=keys[0])
        self.conv = ShortConv(3 * width, conv, key=keys[1])
        self.input_gate = Linear(dim, heads, bias=True, key=keys[2])
        self.forget_gate = _forget_gate(dim, heads, negative_decay, keys[3]) if gated else None
        self.norm = rms_norm(head_dim)
        self.out = Linear(width, dim, key=keys[4])
        self.heads, self.negative_decay = heads, negative_decay

    @abc.abstractmethod
    def rule(self, features: Features, memory) -> tuple[Float[Array, "B T H V"], Any]:
        """What one layer does otherwise than another."""

    def gates(
        self, x: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T H"], Float[Array, "B T H"] | None, Float[Array, "B T H"] | None]:
        """beta, log |gamma| and the sign of gamma. The logarithms are never taken of a rounded gate."""
        beta = jax.nn.sigmoid(wide(self.input_gate(x)))
        if self.forget_gate is None:
            return beta, None, None
        z = wide(self.forget_gate(x))
        if not self.negative_decay:
            return beta, jax.nn.log_sigmoid(z), None
        size = jnp.maximum(jnp.abs(z), SMALLEST_SIGNED)
        log_tanh = jnp.log(-jnp.expm1(-size)) - jnp.log1p(jnp.exp(-size))
        return beta, log_tanh, jnp.where(z < 0, -1, 1).astype(z.dtype)

    def features(
        self, x: Float[Array, "B T D"], tail: Float[Array, "B J1 C"] | None = None
    ) -> tuple[Features, Float[Array, "B J1 C"]]:
        """q, k, v and gates of every token, and the tail that the convolution leaves."""
        y, tail = self.conv(self.project(x), tail)
        q, k, v = (
            y.reshape(*x.shape[:2], self.heads, self.norm.shape[0]) for y in jnp.split(jax.nn.silu(y), 3, axis=-1)
        )
        return Features(unit(q), unit(k), v, *self.gates(x)), tail

    def __call__(
        self, x: Float[Array, "B T D"], state: FastWeightsState | None = None
    ) -> tuple[Float[Array, "B T D"], FastWeightsState]:
        check_input(x, len(self.project.weight), self.project.weight.dtype)
        check_state(state, FastWeightsState)
        tail, memory, turned = state or (None, None, None)
        if state is not None and (turned is not None) != self.negative_decay:
            has, wants = ("a sign", "none") if turned is not None else ("no sign", "one")
            raise ValueError(f"state has {has}; expected {wants}, since negative_decay is {self.negative_decay}")
        features, tail = self.features(x, tail)
        if features.sign is None:
            o, memory = self.rule(features, memory)
        else:
            before = jnp.ones((len(x), self.heads), features.sign.dtype) if turned is None else turned
            s = jnp.cumprod(jnp.concatenate([before[:, None], features.sign], axis=1), axis=1)
            s, turned = s[:, 1:], s[:, -1]
            o, memory = self.rule(features._replace(v=s[..., None].astype(x.dtype) * features.v), memory)
            o = s[..., None].astype(o.dtype) * o
        y = self.out(over_last(self.norm, o).reshape(*x.shape[:2], len(self.out.weight)))
        return y, FastWeightsState(tail, memory, turned)


def _forget_gate(dim: int, heads: int, negative_decay: bool, key) -> Linear:
    """Heads begin with memories of different lengths; with signs, between keeping and flipping."""
    gate = Linear(dim, heads, bias=True, key=key)
    low, high = np.log(FORGET_START) - np.log1p(-np.array(FORGET_START))
    start = low + (high - low) * (np.arange(heads) + 0.5) / heads
    bias = jnp.zeros(heads) if negative_decay else jnp.asarray(start, gate.bias.dtype)
    return eqx.tree_at(lambda gate: gate.bias, gate, bias)


class GLA(FastWeights):
    """Gated linear attention, one gate per head: S_t = gamma_t S_{t-1} + beta_t k_t v_t', o_t = S_t'q_t (Eqs. 1-2).

    Not GLA's own layer, whose gates are one per key channel: the paper compares rules in one layer (Sec. 4).
    """

    def rule(self, features, memory):
        q, k, v, beta, log_decay, _ = features
        return linear(q, beta[..., None] * wide(k), v, log_decay=log_decay, state=memory)


class DeltaNet(FastWeights):
    """The gated delta rule, S_t = S + beta_t k_t (v_t - S'k_t)' from S = gamma_t S_{t-1} (Eq. 3); o_t = S_t'q_t.

    ``gated=False`` is DeltaNet, with gates it is Gated DeltaNet.
    """

    def rule(self, features, memory):
        q, k, v, beta, log_decay, _ = features
        return delta(q, k, v, beta, log_decay=log_decay, state=memory)
