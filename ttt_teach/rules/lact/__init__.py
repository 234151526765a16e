"""Large-chunk test-time training: a SwiGLU network as the memory, one step of its weights a chunk."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ttt_teach.rules import door
from ttt_teach.rules.lact.chunk import chunkwise
from ttt_teach.rules.lact.definition import SwiGLU, definition, length
from ttt_teach.rules.lact.recurrent import recurrent
from ttt_teach.solvers.newton_schulz import SCHED5

FORMS = {"definition": definition, "recurrent": recurrent, "chunk": chunkwise}


class LaCTState(NamedTuple):
    """All that a later call needs, of a size that does not depend on the chunk."""

    weights: SwiGLU  # the fast weights W the last token was read with
    momentum: SwiGLU | None  # the momentum buffer M; None without momentum
    norms: SwiGLU  # length of each row of the initial weights, [B, H, M] [B, H, M] [B, H, V]
    pending: SwiGLU  # the unfinished chunk's directions, summed
    pending_momentum: Array | None  # [B, H], the momentum of its tokens, summed; None without momentum
    count: Array  # [], int32: tokens in the unfinished chunk, which is written when the next one comes to a full one


def lact(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    lr: ArrayLike,
    weights: SwiGLU | None,
    *,
    chunk: int,
    order: str | Sequence[tuple[int, int, bool, bool]] = "apply-update",
    muon: bool | Sequence[tuple[float, float, float]] = True,
    momentum: ArrayLike | None = None,
    state: LaCTState | None = None,
    form: str = "auto",
) -> tuple[Array, LaCTState]:
    """o_t = f_W(q_t), f_W(x) = out (silu(gate x) * (up x)); a chunk moves W up sum_t <f_W(k_t), v_t> (LaCT Eqs. 5-7).

    A write takes d, the sum over the chunk of each matrix's ascent direction times its own rates, all at the W before
    it; M <- beta M + d with beta the mean momentum of the chunk (without momentum M = d); then W <- W + Muon(M), and
    every row of W back to its initial norm n0: W / (|W| + 1e-5) n0. With Muon only the ratios of the rates matter,
    as long as |M| is far above its 1e-7.

    Args:
        q, k: ``[B, T, H, K]``. v: ``[B, T, H, V]``. lr: ``[B, T, H, 3]``, the rates of gate, up, out.
        weights: the initial W, ``[B, H, M, K] [B, H, M, K] [B, H, V, M]`` or without B. A state carries its own:
            there they need only fit, and may be None.
        chunk: tokens in a chunk, C.
        order: ``"apply-update"``: each chunk is read, then written, so o_t sees no token of its own chunk and none
            after it (language). The last chunk, full or not, is only read and stays pending in the state: any split
            into calls gives the same. ``"update-apply"``: each chunk of this call, the ragged last one too, is
            written, then read. Or a schedule, entries ``(start, end, update, apply)`` in the order in which they run:
            tokens start to end are written, read, or written and then read; the outputs follow one another (view
            synthesis, video). These two write whole entries, so a split at their borders gives the same; a chunk
            that an apply-update call left pending stays so.
        muon: True for the five steps of the language models (``SCHED5``), a sequence of (a, b, c) for others
            (``CONST5``: view synthesis, video; none: d / |d|), False for the plain step.
        momentum: in (0, 1), ``[B, T, H]``.
        state: from an earlier call with the same chunk, and momentum in both or in neither.
        form: ``"definition"`` (autodiff of the stated loss), ``"recurrent"`` (token by token),
            ``"chunk"``: 9 products of T M K in all, and with Muon 15 of M K min(M, K) for each matrix and chunk. Its
            gradient takes about 3.5 times as long, and keeps the tokens and, of each chunk, W before and after the
            step and the step's direction (with momentum M too). It has gradients of gradients, but no forward mode
            (jvp). A gradient in a whole state needs ``allow_int``, for its count. ``"kernel"``: the same for Hopper
            GPUs, q, k, v in bfloat16 or float16 and K, V, M multiples of 128: factors of products in 16 bits, sums
            and weights in float32. A call that begins without a state, in the order "apply-update", is its fastest.
            It has no gradients of gradients. ``"auto"``: on such a GPU the kernel for what it covers, else chunk.

    Returns:
        o ``[B, T, H, V]`` (a schedule: as many tokens as it reads) in the dtype of v; LaCTState, float32 (float64 if
        any input is).

    Raises:
        ValueError: a shape or dtype that disagrees, momentum outside (0, 1), weights that are no SwiGLU, an order,
            schedule, state or chunk of another kind, an unknown form; for ``form="kernel"`` the reason why it does not
            cover this call.
    """
    run = door.pick("lact", FORMS, form, kernel=True)
    chunk = door.length("chunk", chunk)
    _check_kinds(weights, momentum, state)
    x, size = door.enter(
        q=(q, "B T H K"),
        k=(k, "B T H K"),
        v=(v, "B T H V"),
        lr=(lr, "B T H rates"),
        momentum=(momentum, "B T H", None),
        **_matrices("weights", weights, "B H", "H"),
        **({} if state is None else _layouts(state)),
    )
    if size.rates != 3:
        raise ValueError(f"lr has shape {list(x.lr.shape)}; expected [B, T, H, 3]: the rates of gate, up and out")
    door.require("momentum", x.momentum, lambda m: (m > 0) & (m < 1), "momentum between 0 and 1")
    order = _order(order, size.T)
    W, M, norms, pending, pending_momentum, count = _first(x, size) if state is None else _carried(x, state, chunk)
    tokens = x.q, x.k, x.v
    if door.tries_kernel(form):
        from ttt_teach.rules.lact import kernel  # Pallas is loaded where a kernel may run, and nowhere else

        given = tuple(jnp.asarray(z) for z in (q, k, v))
        if door.covers(form, kernel.refusal(*given, size)):
            run, tokens = kernel.kernel, given
    o, (W, M, pending, pending_momentum) = door.each_head(
        run,
        tokens=(*tokens, x.lr, x.momentum),
        states=(W, M, pending, pending_momentum, jax.tree.map(lambda n0: n0[..., None], norms)),
        shared=(count,),
        chunk=chunk,
        order=order,
        muon=muon_steps(muon),
    )
    count = jnp.int32(0) if count is None else count
    if order == "apply-update" and size.T:
        count = (count + (size.T - 1)) % chunk + 1  # a full chunk counts C until the next token has it written
    return door.leave(o, v), LaCTState(W, M, norms, pending, pending_momentum, count)


def _first(x, size) -> LaCTState:
    """Before the first token. A count of None says so to a form, which then knows where the chunks are."""
    W = SwiGLU(*(jnp.broadcast_to(w, (size.B, size.H, *w.shape[-2:])) for w in _part(x, "weights")))
    M = pending = jax.tree.map(jnp.zeros_like, W)
    pending_momentum = jnp.zeros((size.B, size.H), size.dtype)
    if x.momentum is None:
        M = pending_momentum = None
    return LaCTState(W, M, SwiGLU(*(length(w)[..., 0] for w in W)), pending, pending_momentum, None)


def _carried(x, state: LaCTState, chunk: int) -> LaCTState:
    count = jnp.asarray(state.count)
    if count.ndim or not jnp.issubdtype(count.dtype, jnp.integer):
        raise ValueError(f"state.count is {count.dtype} of shape {list(count.shape)}; expected one whole number")
    door.require("state.count", count, lambda n: (n >= 0) & (n <= chunk), f"0 to chunk = {chunk} tokens")
    W, M, norms, pending = (_part(x, f"state.{name}") for name in ("weights", "momentum", "norms", "pending"))
    return LaCTState(W, M, norms, pending, vars(x)["state.pending_momentum"], count.astype(jnp.int32))


def _part(x, name: str) -> SwiGLU | None:
    fields = [vars(x).get(f"{name}.{field}") for field in SwiGLU._fields]
    return None if fields[0] is None else SwiGLU(*fields)


def _layouts(state: LaCTState) -> dict[str, tuple]:
    layouts = {"state.pending_momentum": (state.pending_momentum, "B H", None)}
    for name in ("weights", "momentum", "pending"):
        layouts |= _matrices(f"state.{name}", getattr(state, name), "B H")
    return layouts | _matrices("state.norms", state.norms, "B H", axes=("M", "M", "V"))


def _matrices(name: str, part: SwiGLU | None, *leading: str, axes=("M K", "M K", "V M")) -> dict[str, tuple]:
    """``{"name.gate": (array, layouts), ...}`` for the door."""
    if part is None:
        return {}
    if not isinstance(part, SwiGLU) or any(x is None for x in part):
        raise ValueError(f"{name} is {_kind(part)}; expected SwiGLU(gate, up, out) of three arrays")
    fields = zip(SwiGLU._fields, part, axes, strict=True)
    return {f"{name}.{field}": (x, *(f"{lead} {own}" for lead in leading)) for field, x, own in fields}


def _kind(x) -> str:
    return "None" if x is None else f"a {type(x).__name__}"


def _check_kinds(weights, momentum, state) -> None:
    if state is None:
        if weights is None:
            raise ValueError("weights is None; expected SwiGLU(gate, up, out), or a state that carries them")
        return
    if not isinstance(state, LaCTState):
        raise ValueError(f"state is {_kind(state)}; expected LaCTState")
    for name in ("weights", "norms", "pending"):
        if getattr(state, name) is None:
            raise ValueError(f"state.{name} is None; expected SwiGLU(gate, up, out)")
    for name in ("momentum", "pending_momentum"):
        if (getattr(state, name) is None) != (momentum is None):
            raise ValueError(
                f"momentum is {_kind(momentum)}, state.{name} {_kind(getattr(state, name))}; expected both or neither"
            )


def _order(order, T: int) -> str | tuple:
    """As plain, hashable data."""
    if isinstance(order, str) and order in ("apply-update", "update-apply"):
        return order
    if isinstance(order, str) or not isinstance(order, Sequence):
        raise ValueError(
            f"order is {order!r}; expected 'apply-update', 'update-apply' or a sequence of (start, end, update, apply)"
        )
    return tuple(_entry(entry, T) for entry in order)


def _entry(entry, T: int) -> tuple[int, int, bool, bool]:
    if isinstance(entry, Sequence) and len(entry) == 4:
        start, end, update, apply = entry
        whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in (start, end))
        if whole and 0 <= start < end <= T and all(flag in (False, True) for flag in (update, apply)):
            return int(start), int(end), bool(update), bool(apply)
    raise ValueError(
        f"order holds {entry!r}; expected (start, end, update, apply), 0 <= start < end <= T = {T}, and two booleans"
    )


def muon_steps(muon: bool | Sequence) -> tuple | None:
    """The triples of the Newton-Schulz steps, or None without Muon."""
    if isinstance(muon, bool):
        return SCHED5 if muon else None
    if isinstance(muon, Sequence) and all(isinstance(step, Sequence) and len(step) == 3 for step in muon):
        if all(isinstance(x, Real) and math.isfinite(x) for step in muon for x in step):
            return tuple(tuple(float(x) for x in step) for step in muon)
    raise ValueError(f"muon is {muon!r}; expected True, False or a sequence of (a, b, c), finite numbers")
