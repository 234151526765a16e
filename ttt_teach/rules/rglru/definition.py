"""The weighted sum over all inputs, written out; no state is carried."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.retention import retention


def entering(
    x: Float[Array, "T D"], input_gate: Float[Array, "T D"], log_decay: Float[Array, "T D"]
) -> Float[Array, "T D"]:
    """sqrt(1 - a_t^2) (i_t * x_t), what Eq. (4) adds to the state.

    1 - a^2 is -expm1(2 log a), which keeps its digits where a is nearly 1. The root has slope infinity at a = 1,
    where nothing enters; there its slope is taken to be 0.
    """
    free = -jnp.expm1(2 * log_decay)
    root = jnp.where(free > 0, jnp.sqrt(jnp.where(free > 0, free, 1)), 0)
    return root * input_gate * x


def definition(
    x: Float[Array, "T D"], input_gate: Float[Array, "T D"], log_decay: Float[Array, "T D"], h: Float[Array, " D"]
) -> tuple[Float[Array, "T D"], Float[Array, " D"]]:
    """h_t = sum_i (a_{i+1} ... a_t) sqrt(1 - a_i^2) (i_i * x_i) over i <= t, plus a_1 ... a_t h_0."""
    u = entering(x, input_gate, log_decay)

    def state(t):
        ζ, ζ0 = retention(log_decay, t)
        return jnp.sum(ζ * u, axis=0) + ζ0 * h

    return jax.vmap(state)(jnp.arange(len(x))), state(len(x) - 1)
