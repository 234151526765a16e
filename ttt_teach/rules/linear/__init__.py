"""Linear attention with or without forgetting: every write is kept, decayed, and none is corrected."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ttt_teach.rules import door, tiles
from ttt_teach.rules.linear.chunk import chunkwise
from ttt_teach.rules.linear.definition import definition
from ttt_teach.rules.linear.kernel import kernel
from ttt_teach.rules.linear.recurrent import recurrent

FORMS = {"definition": definition, "recurrent": recurrent, "chunk": chunkwise}


def linear(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    log_decay: ArrayLike | None = None,
    scale: float = 1.0,
    state: ArrayLike | None = None,
    form: str = "auto",
    chunk: int = 64,
) -> tuple[Array, Array]:
    """o_t = S_t' (scale q_t) with S_t = gamma_t S_{t-1} + k_t v_t' (MesaNet Eqs. 1-2, beta taken into v).

    Without ``log_decay``: linear attention; with one number per head: RetNet, Mamba2, simple GLA;
    with one per key channel: GLA.

    Args:
        q, k: ``[B, T, H, K]``. v: ``[B, T, H, V]``.
        log_decay: log gamma, natural logarithm, <= 0 (-inf forgets all): ``[B, T, H]`` or ``[B, T, H, K]``.
        scale: multiplies q.
        state: S before the first token, ``[B, H, K, V]``; zeros if None.
        form: ``"definition"`` (the weighted sum over all pairs, T^2 K V), ``"recurrent"`` (T K V, a scan),
            ``"chunk"`` (T K V + T chunk (K + V), matrix products), ``"kernel"`` (the same sums in a kernel for Hopper
            GPUs: q, k, v in bfloat16 or float16, K = V in {64, 128}, a decay per head or none, chunk 64) or
            ``"auto"``: on such a GPU the kernel for what it covers, else chunk.
        chunk: tokens in a chunk. A NaN in one reaches all outputs of its chunk.

    Returns:
        o ``[B, T, H, V]`` in the dtype of v; S after the last token, ``[B, H, K, V]``, float32 (float64 if any
        input is).

    Raises:
        ValueError: a shape or dtype that disagrees, log_decay > 0, an unknown form, a chunk below 1; for
            ``form="kernel"`` the reason why it does not cover this call.
    """
    run = door.pick("linear", FORMS, form, kernel)
    x, size = door.enter(
        q=(q, "B T H K"),
        k=(k, "B T H K"),
        v=(v, "B T H V"),
        log_decay=(log_decay, "B T H", "B T H K", None),
        state=(state, "B H K V", None),
    )
    chunk = door.length("chunk", chunk)
    if form == "kernel" or (form == "auto" and tiles.on_hopper()):
        q, k, v = (jnp.asarray(z) for z in (q, k, v))
        why = _not_for_the_kernel(q, k, v, x.log_decay, size.dtype, chunk)
        if why is None:
            return _kernel(q, k, v, x, size, scale)
        if form == "kernel":
            raise ValueError(f"form is 'kernel', which {why}")
    o, S = door.each_head(
        run,
        tokens=(x.q * door.number("scale", scale, size.dtype), x.k, x.v, door.per_channel(x.log_decay, size)),
        states=(door.start(x.state, size.B, size.H, size.K, size.V, dtype=size.dtype),),
        chunk=chunk,
    )
    return door.leave(o, v), S


def _not_for_the_kernel(q, k, v, log_decay, dtype, chunk) -> str | None:
    if chunk != tiles.SIDE:
        return f"takes chunk = {tiles.SIDE}, and chunk is {chunk}"
    if log_decay is not None and log_decay.ndim == 4:
        return "takes one decay per head, and log_decay has one per key channel"
    if dtype != jnp.float32:
        return "sums in float32, and an argument is float64"
    return tiles.refusal(q=q, k=k, v=v) or tiles.no_place()


def _kernel(q, k, v, x, size, scale):
    door.per_channel(x.log_decay, size)  # complains if it is positive
    factor = door.number("scale", scale, size.dtype)
    if door.known(scale):
        return kernel(q, k, v, x.log_decay, x.state, scale=float(scale))
    # It is compiled for a number. One that is known only later goes to q, and is rounded with it.
    return kernel((x.q * factor).astype(q.dtype), k, v, x.log_decay, x.state)
