"""The layer of the online scaled delta rule (OSDN Secs. 4.1-4.4, Apps. B, C, F)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from ttt_teach.nn.fast_weights import FastWeights
from ttt_teach.nn.parts import Linear, wide
from ttt_teach.rules.osdn import OSDNState, learner, osdn
from ttt_teach.rules.osdn.sweep import clip

# APF's retention at the start, the one number that the reading names (App. C, of OSKDA). Where it stays there d is on
# its lower bound after some 700 tokens (C11.16): a token adds step_size beta (1 - a) s / |k|^2 to a channel, far less
# than the 1 - r it loses. Nearer to 1 the sigmoid would hardly learn.
RETENTION_START = 0.999
# Of the rule, for a key of no length. Those of the layer have length 1, or are zero.
EPS = 1e-6
FORGET = (None, "head", "channel")
START = ("ones", "projected", "free")


class ScaledFeatures(NamedTuple):
    """``Features``, whose log_decay may be per channel, and what OSDN reads besides."""

    q: Float[Array, "B T H K"]
    k: Float[Array, "B T H K"]
    v: Float[Array, "B T H V"]
    beta: Float[Array, "B T H"]
    log_decay: Float[Array, "B T H"] | Float[Array, "B T H K"] | None
    sign: None
    retention: Float[Array, "B T H"] | None  # r, in (0, 1)


class OSDN(FastWeights):
    """DeltaNet's layer with a write key that is scaled channel by channel, d * k, and d learned while reading (Eq. 4).

    The layer around the rule is that of :class:`DeltaNet`: short convolution and SiLU, q and k of length 1,
    beta = sigmoid(.), RMSNorm per head, projection. On top of it come, each of them optional,

    - ``retention``, APF (Eq. 7): r_t = sigmoid(x_t w + b), one number per head and token, multiplies d before each of
      its steps; H (dim + 1) parameters. It starts at 0.999, our choice. Where it stays below 1 by more than d learns,
      d falls to its lower bound: it is pulled to 0, not to 1.
    - ``forget``: a gate on the memory, which leaves d alone (App. B). "head" is OSGDN, one number per head; "channel"
      OSKDA, one per key channel. The gates are sigmoids here, as in :class:`GLA`; the reading prints only alpha_t.
    - ``start``: d before the first token. "ones" (the 340M model, App. F), or learned, one number per head and key
      channel, 1 before training: "projected" is on the bounds, the paper's D_0; "free" is not projected, D_0*.

    **The 1.3B model** is ``OSDN(dim, heads, retention=True, beta_aware=False, start="projected")``: d learns as if beta
    were 1 while the memory still writes with beta (Apps. B, C). Of it the reading gives the update, that the start
    scale is learned, and that there is a retention. It does not give the step size, the bounds or how D_0 is
    parametrised, and of D_0* only a name, "relaxed initial-scale projection" (Table 14): no equation has a pull towards
    it, so there is none here. A "free" start beyond the bounds scales the first write alone: Eq. 4 projects all others.

    Args:
        dim: width of the residual stream. heads; head_dim: K = V of each. conv: width of the convolution.
        step_size: eta. bounds: (lo, hi) of d. beta_aware: False: d learns as if beta were 1 (see ``ttt_teach.osdn``).

    ``mixer(x [B, T, dim], state=None) -> (y [B, T, dim], state)``: as in :class:`FastWeights`; the state's memory is
    OSDNState(S, d), K more numbers than DeltaNet's K V: a share 1 / V, 0.78 % for V = 128. ValueErrors name the
    argument.
    """

    retention_gate: Linear | None
    d0: Float[Array, "H K"] | None
    forget: str | None = eqx.field(static=True)
    start: str = eqx.field(static=True)
    step_size: float = eqx.field(static=True)
    bounds: tuple[float, float] = eqx.field(static=True)
    beta_aware: bool = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int = 128,
        conv: int = 4,
        forget: str | None = None,
        retention: bool = False,
        step_size: float = 3e-3,
        bounds: tuple[float, float] = (0.5, 2.0),
        beta_aware: bool = True,
        start: str = "ones",
        key: PRNGKeyArray,
    ):
        for name, value, known in (("forget", forget, FORGET), ("start", start, START)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, known))}")
        for name, value in (("retention", retention), ("beta_aware", beta_aware)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}; expected True or False")
        layer, for_channels, for_retention = jax.random.split(key, 3)
        super().__init__(dim, heads, head_dim=head_dim, conv=conv, gated=forget is not None, key=layer)
        if forget == "channel":
            self.forget_gate = _per_channel(self.forget_gate, head_dim, for_channels)
        self.retention_gate = _retention_gate(dim, heads, for_retention) if retention else None
        learner(step_size, bounds, EPS, jnp.float32)  # complains
        within = min(max(1.0, bounds[0]), bounds[1])  # a start outside would have no slope
        self.d0 = None if start == "ones" else jnp.full((heads, head_dim), within)
        self.forget, self.start, self.beta_aware = forget, start, beta_aware
        self.step_size, self.bounds = float(step_size), (float(bounds[0]), float(bounds[1]))

    @property
    def start_scale(self) -> Float[Array, "H K"] | None:
        """d before the first token; None if it is not learned, which is 1."""
        if self.start != "projected":
            return None if self.d0 is None else wide(self.d0)
        d0 = wide(self.d0)
        return jax.vmap(clip, (0, None))(d0, learner(self.step_size, self.bounds, EPS, d0.dtype))

    def gates(self, x):
        beta, log_decay, sign = super().gates(x)
        if self.forget == "channel":
            log_decay = log_decay.reshape(*beta.shape, self.norm.shape[0])
        return beta, log_decay, sign

    def features(self, x, tail=None):
        features, tail = super().features(x, tail)
        gate = self.retention_gate
        return ScaledFeatures(*features, None if gate is None else jax.nn.sigmoid(wide(gate(x)))), tail

    def rule(self, features, memory):
        q, k, v, beta, log_decay, _, retention = features
        if memory is None and self.d0 is not None:
            d = jnp.broadcast_to(self.start_scale, (len(k), *self.d0.shape))
            memory = OSDNState(jnp.zeros((*d.shape, v.shape[-1]), d.dtype), d)
        return osdn(
            q,
            k,
            v,
            beta,
            log_decay=log_decay,
            retention=retention,
            step_size=self.step_size,
            bounds=self.bounds,
            eps=EPS,
            beta_aware=self.beta_aware,
            state=memory,
        )


def _per_channel(gate: Linear, head_dim: int, key: PRNGKeyArray) -> Linear:
    """A forget gate for every key channel, those of a head beginning alike."""
    dim, heads = gate.weight.shape
    channels = Linear(dim, heads * head_dim, bias=True, key=key)
    return eqx.tree_at(lambda gate: gate.bias, channels, jnp.repeat(gate.bias, head_dim))


def _retention_gate(dim: int, heads: int, key: PRNGKeyArray) -> Linear:
    gate = Linear(dim, heads, bias=True, key=key)
    start = float(np.log(RETENTION_START) - np.log1p(-RETENTION_START))
    return eqx.tree_at(lambda gate: gate.bias, gate, jnp.full(heads, start))
