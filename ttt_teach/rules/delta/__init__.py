"""The delta rule: one gradient step on the error of the latest pair."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ttt_teach.rules import door
from ttt_teach.rules.delta.chunk import chunkwise
from ttt_teach.rules.delta.definition import definition
from ttt_teach.rules.delta.recurrent import recurrent

FORMS = {"definition": definition, "recurrent": recurrent, "chunk": chunkwise}


def delta(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    beta: ArrayLike,
    *,
    write_key: ArrayLike | None = None,
    log_decay: ArrayLike | None = None,
    scale: float = 1.0,
    state: ArrayLike | None = None,
    form: str = "auto",
    chunk: int = 64,
) -> tuple[Array, Array]:
    """S_t = S' + beta_t w_t (v_t - S'' k_t)' with S' = gamma_t S_{t-1}; o_t = S_t' (scale q_t) (MesaNet Eq. 3).

    With ``log_decay`` per head this is Gated DeltaNet, per key channel KDA. The decay comes first, so the
    error is measured on the decayed memory. ``write_key`` w (default k) is where the correction is written;
    OSDN writes at d * k and reads at k (OSDN Eq. 2).

    Args:
        q, k, write_key: ``[B, T, H, K]``. v: ``[B, T, H, V]``. beta: step size, ``[B, T, H]``.
        log_decay: log gamma, natural logarithm, <= 0: ``[B, T, H]`` or ``[B, T, H, K]``.
        scale: multiplies q.
        state: S before the first token, ``[B, H, K, V]``; zeros if None.
        form: ``"definition"`` (the gradient step by autodiff), ``"recurrent"`` (a scan; both T K V), ``"chunk"``
            (T K V + T chunk (K + V), matrix products), ``"kernel"`` (the same in kernels for Hopper GPUs: q, k, v and
            write_key in bfloat16 or float16, K = V in {64, 128}, a decay per head or none, chunk 64) or ``"auto"``:
            on such a GPU the kernel for what it covers, else chunk.
        chunk: tokens in a chunk. A NaN in one reaches all outputs of its chunk.

    Returns:
        o ``[B, T, H, V]`` in the dtype of v; S after the last token, ``[B, H, K, V]``, float32 (float64 if any
        input is).

    Raises:
        ValueError: a shape or dtype that disagrees, log_decay > 0, an unknown form, a chunk below 1; for
            ``form="kernel"`` the reason why it does not cover this call.
    """
    run = door.pick("delta", FORMS, form, kernel=True)
    x, size = door.enter(
        q=(q, "B T H K"),
        k=(k, "B T H K"),
        v=(v, "B T H V"),
        beta=(beta, "B T H"),
        write_key=(write_key, "B T H K", None),
        log_decay=(log_decay, "B T H", "B T H K", None),
        state=(state, "B H K V", None),
    )
    chunk, factor = door.length("chunk", chunk), door.number("scale", scale, size.dtype)
    decays = door.per_channel(x.log_decay, size)
    if door.tries_kernel(form):
        from ttt_teach.rules.delta import kernel  # Pallas is loaded where a kernel may run, and nowhere else

        q, k, v, w = (jnp.asarray(z) for z in (q, k, v, k if write_key is None else write_key))
        if door.covers(form, kernel.refusal(q, k, v, w, x.log_decay, size.dtype, chunk)):
            number = float(scale) if door.known(scale) else factor
            return kernel.kernel(q, k, v, x.beta, w, x.log_decay, x.state, scale=number)
    write_key = x.k if x.write_key is None else x.write_key
    o, S = door.each_head(
        run,
        tokens=(
            x.q * factor,
            x.k,
            x.v,
            x.beta,
            write_key,
            decays,
        ),
        states=(door.start(x.state, size.B, size.H, size.K, size.V, dtype=size.dtype),),
        chunk=chunk,
    )
    return door.leave(o, v), S
