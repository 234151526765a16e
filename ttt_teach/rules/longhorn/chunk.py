"""Longhorn is the delta rule with another step size, so its chunks are the delta rule's."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules import delta
from ttt_teach.rules.longhorn.recurrent import implicit


def chunkwise(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    S: Float[Array, "K V"],
    *,
    chunk: int,
) -> tuple[Float[Array, "T V"], Float[Array, "K V"]]:
    """The delta rule in chunks, written at k, nothing forgotten."""
    step = implicit(beta, jnp.sum(k**2, axis=-1))
    return delta.chunkwise(q, k, v, step, k, jnp.zeros_like(k[:, :1]), S, chunk=chunk)
