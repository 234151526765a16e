"""Softmax attention, over everything so far or over a sliding window: no state, all pairs are kept."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ttt_teach.rules import door
from ttt_teach.rules.attention.chunk import chunkwise
from ttt_teach.rules.attention.definition import definition

FORMS = {"definition": definition, "chunk": chunkwise}


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    window: int | None = None,
    scale: float | None = None,
    form: str = "auto",
    chunk: int = 64,
) -> Array:
    """o_i = sum_j softmax_j(scale q_i . k_j) v_j over i - window < j <= i: causal, and the token sees itself.

    With fewer key heads than query heads (grouped queries), query head j reads key and value head j // (HQ / H).
    There is no state to carry, so there is no recurrent form: a cache of keys and values would be the inputs again.

    Args:
        q: ``[B, T, HQ, K]``. k: ``[B, T, H, K]``. v: ``[B, T, H, V]``. HQ a multiple of H.
        window: how many tokens a token sees, itself included; all before it if None.
        scale: multiplies q; K**-0.5 if None.
        form: ``"definition"`` (all pairs at once, T^2 (K + V) and T^2 memory), ``"chunk"`` or ``"auto"`` (the pairs
            seen, in chunks: T window (K + V), and memory O(T), the gradient's too).
        chunk: tokens per chunk.

    Returns:
        o ``[B, T, HQ, V]`` in the dtype of v.

    Raises:
        ValueError: a shape or dtype that disagrees, HQ not a multiple of H, window or chunk not a whole number >= 1,
            an unknown form.
    """
    run = door.pick("attention", FORMS, form)
    x, size = door.enter(q=(q, "B T HQ K"), k=(k, "B T H K"), v=(v, "B T H V"))
    shared = size.HQ // max(size.H, 1)
    if shared * size.H != size.HQ:
        raise ValueError(f"q has {size.HQ} heads; expected a multiple of the {size.H} heads of k and v")
    scale = size.K**-0.5 if scale is None else door.number("scale", scale, size.dtype)
    o, _ = door.each_head(
        run,
        tokens=(x.q * scale, *(jnp.repeat(y, shared, axis=2) for y in (x.k, x.v))),
        states=(),
        window=size.T if window is None else min(door.length("window", window), size.T),
        chunk=door.length("chunk", chunk),
    )
    return door.leave(o, v)
