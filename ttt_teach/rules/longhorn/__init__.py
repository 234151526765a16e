"""Longhorn: the delta rule's loss, stepped implicitly. No beta is too large."""

import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ttt_teach.rules import door
from ttt_teach.rules.longhorn.chunk import chunkwise
from ttt_teach.rules.longhorn.definition import definition
from ttt_teach.rules.longhorn.recurrent import recurrent

FORMS = {"definition": definition, "recurrent": recurrent, "chunk": chunkwise}


def longhorn(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    beta: ArrayLike,
    *,
    scale: float = 1.0,
    state: ArrayLike | None = None,
    form: str = "auto",
    chunk: int = 64,
) -> tuple[Array, Array]:
    """S_t = argmin_S |S - S_{t-1}|_F^2 + beta_t |v_t - S'k_t|^2; o_t = S_t' (scale q_t) (arXiv 2407.14207).

    Its closed form is the delta rule with the step beta / (1 + beta |k|^2): the error at k_t shrinks by the factor
    1 / (1 + beta |k|^2), between 1 (beta 0 writes nothing) and 0 (a huge beta stores the pair exactly), where the
    delta rule's 1 - beta |k|^2 overshoots, and diverges beyond beta |k|^2 = 2.

    This is the exact minimum with one beta per token. The paper's layer has a beta per value channel, and its code
    keeps only the diagonal of k k' (1 - step k^2 on each channel of the state), which is another rule.

    Args:
        q, k: ``[B, T, H, K]``. v: ``[B, T, H, V]``. beta: weight of the new pair, >= 0, ``[B, T, H]``.
        scale: multiplies q.
        state: S before the first token, ``[B, H, K, V]``; zeros if None.
        form: ``"definition"`` (the minimum by a direct solve at every token, T K^3, of a
            system of condition number 1 + beta |k|^2, so it loses as many digits), ``"recurrent"`` (a scan, T K V),
            ``"chunk"`` or ``"auto"`` (matrix products, T K V + T chunk (K + V)).
        chunk: tokens per chunk.

    Returns:
        o ``[B, T, H, V]`` in the dtype of v; S after the last token, ``[B, H, K, V]``, float32 (float64 if any
        input is).

    Raises:
        ValueError: a shape or dtype that disagrees, beta negative or infinite, an unknown form, chunk < 1.
    """
    run = door.pick("longhorn", FORMS, form)
    x, size = door.enter(
        q=(q, "B T H K"),
        k=(k, "B T H K"),
        v=(v, "B T H V"),
        beta=(beta, "B T H"),
        state=(state, "B H K V", None),
    )
    door.require(
        "beta",
        x.beta,
        lambda beta: (beta >= 0) & np.isfinite(beta),
        "beta >= 0 and finite: it weights a squared error",
    )
    o, S = door.each_head(
        run,
        tokens=(x.q * door.number("scale", scale, size.dtype), x.k, x.v, x.beta),
        states=(door.start(x.state, size.B, size.H, size.K, size.V, dtype=size.dtype),),
        chunk=door.length("chunk", chunk),
    )
    return door.leave(o, v), S
