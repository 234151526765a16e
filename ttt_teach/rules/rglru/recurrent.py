"""One token after the other."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.rglru.definition import entering


def recurrent(
    x: Float[Array, "T D"], input_gate: Float[Array, "T D"], log_decay: Float[Array, "T D"], h: Float[Array, " D"]
) -> tuple[Float[Array, "T D"], Float[Array, " D"]]:
    """h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t * x_t), channel by channel."""

    def step(h, token):
        u, log_a = token
        h = jnp.exp(log_a) * h + u
        return h, h

    h, o = jax.lax.scan(step, h, (entering(x, input_gate, log_decay), log_decay))
    return o, h
