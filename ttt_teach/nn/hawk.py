"""Hawk's recurrent block (arXiv 2402.19427, Sec. 2.3-2.4): a vector state beside a gate."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from ttt_teach.nn.parts import Linear, ShortConv, check_input, check_state, wide
from ttt_teach.rules.door import count
from ttt_teach.rules.rglru import rglru

C = 8.0  # Eq. (3): a_t = a^(C r_t)
DECAY_START = (0.9, 0.999)  # a^C of the channels at the start is uniform in this range


class HawkState(NamedTuple):
    tail: Float[Array, "B J1 W"]  # the last inputs of the convolution
    h: Float[Array, "B W"]


class Hawk(eqx.Module):
    """W_o (GeLU(W_1 x) * RG-LRU(conv(W_2 x))), with W_1, W_2 from dim to width.

    The gates of the RG-LRU are r = sigmoid(W_a y + b_a) and i = sigmoid(W_x y + b_x), of the convolution's output y,
    and log a_t = -8 r_t softplus(-Lambda) (Eqs. 1-4), with full matrices as the equations are printed.

    The authors' code (recurrentgemma) differs: its W_a and W_x are block diagonal, its other maps have biases too, the
    first token enters whole (h_1 = i_1 x_1, without the root of Eq. 4), and at the start a itself, not a^8, lies in
    0.9 ... 0.999.

    ``mixer(x [B, T, dim], state=None) -> (y [B, T, dim], state)``.
    """

    gate: Linear
    enter: Linear
    conv: ShortConv
    recurrence_gate: Linear
    input_gate: Linear
    retention: Float[Array, " W"]  # Lambda: a = sigmoid(Lambda)
    out: Linear

    def __init__(self, dim: int, width: int, *, conv: int = 4, key: PRNGKeyArray):
        keys = jax.random.split(key, 7)
        dim, width = count("dim", dim), count("width", width)
        self.gate = Linear(dim, width, key=keys[0])
        self.enter = Linear(dim, width, key=keys[1])
        self.conv = ShortConv(width, conv, key=keys[2])
        self.recurrence_gate = Linear(width, width, bias=True, key=keys[3])
        self.input_gate = Linear(width, width, bias=True, key=keys[4])
        start = jax.random.uniform(keys[5], (width,), minval=DECAY_START[0], maxval=DECAY_START[1])
        self.retention = -jnp.log(jnp.expm1(-jnp.log(start) / C))  # softplus(-Lambda) = -log a
        self.out = Linear(width, dim, key=keys[6])

    def __call__(
        self, x: Float[Array, "B T D"], state: HawkState | None = None
    ) -> tuple[Float[Array, "B T D"], HawkState]:
        check_input(x, len(self.enter.weight), self.enter.weight.dtype)
        check_state(state, HawkState)
        tail, h = state or (None, None)
        y, tail = self.conv(self.enter(x), tail)
        r, i = (jax.nn.sigmoid(wide(gate(y))) for gate in (self.recurrence_gate, self.input_gate))
        log_decay = -C * r * jax.nn.softplus(-wide(self.retention))[None, None]
        o, h = rglru(y, i, log_decay, state=h)
        return self.out(jax.nn.gelu(self.gate(x)) * o), HawkState(tail, h)
