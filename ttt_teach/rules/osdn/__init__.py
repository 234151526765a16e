"""Online scaled delta rule: a delta rule that learns, token by token, how strongly to write in each key channel."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from ttt_teach.rules import door
from ttt_teach.rules.osdn.chunk import chunkwise
from ttt_teach.rules.osdn.definition import definition
from ttt_teach.rules.osdn.recurrent import recurrent
from ttt_teach.rules.osdn.sweep import Learner

FORMS = {"definition": definition, "recurrent": recurrent, "chunk": chunkwise}


class OSDNState(NamedTuple):
    """The memory, and the scale of the next write key. For a learned start scale d0 give OSDNState(zeros, d0)."""

    S: Array  # [B, H, K, V]
    d: Array  # [B, H, K]


def osdn(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    beta: ArrayLike,
    *,
    log_decay: ArrayLike | None = None,
    retention: ArrayLike | None = None,
    step_size: ArrayLike = 3e-3,
    bounds: tuple[ArrayLike, ArrayLike] = (0.5, 2.0),
    eps: ArrayLike = 1e-6,
    beta_aware: bool = True,
    scale: float = 1.0,
    state: OSDNState | None = None,
    form: str = "auto",
    chunk: int = 64,
) -> tuple[Array, OSDNState]:
    """S_t = S' + beta_t (d_t k_t) (v_t - S'' k_t)' with S' = gamma_t S_{t-1}; o_t = S_t' (scale q_t) (OSDN Eq. 2).

    The memory is read at k and written at d * k. After each write d follows the gradient of how much the write
    helped, which needs neither v nor S: with s = k^2 and b = beta (1 if not ``beta_aware``),

        d <- clip(r d + step_size b (1 - b <d, s>) s / max(|k|^2, eps), *bounds)     (OSDN Eq. 4; r is APF's, Eq. 7)

    With ``log_decay`` per head this is OSGDN, per key channel OSKDA; both decay S and leave d alone.

    Args:
        q, k: ``[B, T, H, K]``. v: ``[B, T, H, V]``. beta: step size of the write, ``[B, T, H]``.
        log_decay: log gamma, natural logarithm, <= 0: ``[B, T, H]`` or ``[B, T, H, K]``.
        retention: r, how much of d is kept (adaptive preconditioner forgetting), in [0, 1]: ``[B, T, H]``; 1 if None.
        step_size: eta >= 0; 0 keeps d as it is. bounds: (lo, hi) of d, infinite ones too. eps: > 0. Each is a number,
            may be traced, and has a gradient. On a bound the slope of the clip is 1, outside 0.
        beta_aware: False is the update reported for the 1.3B model (OSDN App. C): d learns as if beta were 1.
        scale: multiplies q.
        state: S and d before the first token; zeros and ones if None. A d outside the bounds is used for one write.
        form: ``"definition"`` (both gradients by autodiff), ``"recurrent"`` (a scan), ``"chunk"`` (matrix products),
            ``"kernel"`` (the same in kernels for Hopper GPUs: q, k and v in bfloat16 or float16, K = V in {64, 128}, a
            decay per head or none, no retention, chunk 64) or ``"auto"``: on such a GPU the kernel for what it covers,
            else chunk. All cost T K V, the chunks T chunk (2 K + V) beside.
            In exact arithmetic a token changes no output of earlier ones, nor of other sequences; in chunks it may
            change their rounding (about 5e-7 in float32), since all choose together whether the bounds are met. In
            the kernel each head chooses for itself.
        chunk: tokens in a chunk.

    Returns:
        o ``[B, T, H, V]`` in the dtype of v; OSDNState after the last token, float32 (float64 if any input is).

    Raises:
        ValueError: a shape or dtype that disagrees, log_decay > 0, a retention outside [0, 1], bounds that are not
            two numbers lo <= hi, step_size < 0, eps <= 0, a beta_aware that is no bool, a state of another kind, an
            unknown form, a chunk below 1; for ``form="kernel"`` the reason why it does not cover this call.
    """
    run = door.pick("osdn", FORMS, form, kernel=True)
    if not isinstance(beta_aware, bool):
        raise ValueError(f"beta_aware is {beta_aware!r}; expected True or False")
    if state is not None and not (isinstance(state, tuple) and len(state) == 2):
        raise ValueError(f"state is a {type(state).__name__}; expected OSDNState(S, d)")
    S, d = state or (None, None)
    x, size = door.enter(
        q=(q, "B T H K"),
        k=(k, "B T H K"),
        v=(v, "B T H V"),
        beta=(beta, "B T H"),
        log_decay=(log_decay, "B T H", "B T H K", None),
        retention=(retention, "B T H", None),
        S=(S, "B H K V", None),
        d=(d, "B H K", None),
    )
    door.require("retention", x.retention, lambda r: (r >= 0) & (r <= 1), "a share between 0 and 1")
    chunk, factor = door.length("chunk", chunk), door.number("scale", scale, size.dtype)
    decays, numbers = door.per_channel(x.log_decay, size), learner(step_size, bounds, eps, size.dtype)
    b = x.beta if beta_aware else jnp.ones_like(x.beta)
    d = jnp.ones((size.B, size.H, size.K), size.dtype) if x.d is None else x.d
    if door.tries_kernel(form):
        from ttt_teach.rules.osdn import kernel  # Pallas is loaded where a kernel may run, and nowhere else

        q, k, v = (jnp.asarray(z) for z in (q, k, v))
        if door.covers(form, kernel.refusal(q, k, v, x.log_decay, x.retention, size.dtype, chunk)):
            number = float(scale) if door.known(scale) else factor
            o, state = kernel.kernel(q, k, v, x.beta, b, x.log_decay, x.S, d, numbers, scale=number)
            return o, OSDNState(*state)
    o, (S, d) = door.each_head(
        run,
        tokens=(x.q * factor, x.k, x.v, x.beta, b, x.retention, decays),
        states=(door.start(x.S, size.B, size.H, size.K, size.V, dtype=size.dtype), d),
        shared=(numbers,),
        chunk=chunk,
    )
    return door.leave(o, v), OSDNState(S, d)


def learner(step_size: ArrayLike, bounds: tuple[ArrayLike, ArrayLike], eps: ArrayLike, dtype: DTypeLike) -> Learner:
    """The numbers, checked; each may be traced."""
    try:
        lo, hi = bounds
    except (TypeError, ValueError):
        raise ValueError(f"bounds is {bounds!r}; expected two numbers (lo, hi)") from None
    numbers = ("step_size", step_size), ("bounds", lo), ("bounds", hi), ("eps", eps)
    read = Learner(*(door.number(name, x, dtype) for name, x in numbers))
    door.require("step_size", read.step_size, lambda x: (x >= 0) & np.isfinite(x), "step_size >= 0 and finite")
    door.require("bounds", read.lo, lambda lo: ~np.isnan(lo), "two numbers (lo, hi)")
    if door.known(read.lo):
        door.require("bounds", read.hi, lambda hi: hi >= read.lo, f"hi >= lo, which is {read.lo:g}")
    door.require("eps", read.eps, lambda x: (x > 0) & np.isfinite(x), "eps > 0 and finite, also in the compute dtype")
    return read
