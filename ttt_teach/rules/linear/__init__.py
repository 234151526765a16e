"""Linear attention with or without forgetting: every write is kept, decayed, and none is corrected."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ttt_teach.rules import door
from ttt_teach.rules.linear.chunk import chunkwise
from ttt_teach.rules.linear.definition import definition
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
    run = door.pick("linear", FORMS, form, kernel=True)
    x, size = door.enter(
        q=(q, "B T H K"),
        k=(k, "B T H K"),
        v=(v, "B T H V"),
        log_decay=(log_decay, "B T H", "B T H K", None),
        state=(state, "B H K V", None),
    )
    chunk, factor = door.length("chunk", chunk), door.number("scale", scale, size.dtype)
    decays = door.per_channel(x.log_decay, size)
    if door.tries_kernel(form):
        from ttt_teach.rules.linear import kernel  # Pallas is loaded where a kernel may run, and nowhere else

        q, k, v = (jnp.asarray(z) for z in (q, k, v))
        if door.covers(form, kernel.refusal(q, k, v, x.log_decay, size.dtype, chunk)):
            return kernel.kernel(q, k, v, x.log_decay, x.state, scale=float(scale) if door.known(scale) else factor)
    o, S = door.each_head(
        run,
        tokens=(x.q * factor, x.k, x.v, decays),
        states=(door.start(x.state, size.B, size.H, size.K, size.V, dtype=size.dtype),),
        chunk=chunk,
    )
    return door.leave(o, v), S
