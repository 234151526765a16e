"""The weighted sum over all retained pairs, written out; no state is carried."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.retention import retention


def definition(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    log_decay: Float[Array, "T C"],
    S: Float[Array, "K V"],
) -> tuple[Float[Array, "T V"], Float[Array, "K V"]]:
    """o_t = sum_i v_i ((zeta_ti k_i) . q_t) over i <= t, and the last S as the same sum without q. C is 1 or K."""

    def memory(t):
        ζ, ζ0 = retention(log_decay, t)
        return (ζ * k).T @ v + ζ0[:, None] * S

    o = jax.vmap(lambda t, q: memory(t).T @ q)(jnp.arange(len(q)), q)
    return o, memory(len(q) - 1)
