"""Parity: how many ones so far, even or odd? One bit of memory, and a state that must flip."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from ttt_teach.rules import door


def parity(key: Array, batch: int, length: int) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Random bits and, at every position, the parity of the bits up to and including it (MesaNet App. I, Fig. 8).

    The last answer is the parity of the whole string; the others are what a model may be asked on the way. The same
    ``key`` gives the same bits, with and without ``jax_enable_x64``.

    Args: a PRNG key; batch, length static.

    Returns bits, answers ``[B, T]``, int32, 0 or 1. Raises ValueError: batch or length not whole, or below 1.
    """
    shape = door.count("batch", batch), door.count("length", length)
    bits = (jax.random.bits(key, shape, "uint32") & 1).astype("int32")
    return bits, jnp.cumsum(bits, 1, dtype="int32") % 2
