"""Softmax over all pairs, written out."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def definition(
    q: Float[Array, "T K"], k: Float[Array, "T K"], v: Float[Array, "T V"], *, window: int
) -> tuple[Float[Array, "T V"], tuple]:
    """o_i = sum_j p_ij v_j with p_i the softmax of q_i . k_j over the tokens j that i sees: i - window < j <= i."""
    i, j = jnp.arange(len(q))[:, None], jnp.arange(len(q))[None]
    seen = (j <= i) & (j > i - window)
    return jax.nn.softmax(jnp.where(seen, q @ k.T, -jnp.inf), axis=-1) @ v, ()
