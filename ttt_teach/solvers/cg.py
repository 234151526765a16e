"""Conjugate gradients (Hestenes and Stiefel 1952; MesaNet App. C, Algorithm 1, without its additive guard)."""

import dataclasses
from collections.abc import Callable
from numbers import Real
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

Matvec = Callable[[Float[Array, " D"]], Float[Array, " D"]]


class CGTrace(NamedTuple):
    """What every step did; S is the largest number of steps."""

    x: Float[Array, "S1 D"]  # x_0 ... x_S; after the stop the last one repeats
    residual: Float[Array, " S1"]  # |b - A x_j|, recomputed from x_j
    recurred: Float[Array, " S1"]  # |r_j| as the recurrence carries it, which is what the stopping rule sees
    steps: Int[Array, ""]  # steps taken


@dataclasses.dataclass(frozen=True)
class CG:
    """How to solve: at most ``max_steps`` steps, fewer once |r_j| <= tol |r_0| (MesaNet Sec. 5).

    Plain data, hashable, static under jit. ``max_steps=None`` lets the tolerance decide (see :func:`cg`).
    """

    max_steps: int | None
    tol: float = 0.0

    def __post_init__(self):
        _check(self.max_steps, self.tol)

    def __call__(self, matvec: Matvec, b: Float[Array, " D"], precondition: Matvec | None = None) -> Float[Array, " D"]:
        return cg(matvec, b, max_steps=self.max_steps, tol=self.tol, precondition=precondition)


@dataclasses.dataclass(frozen=True)
class PCG(CG):
    """CG with a preconditioner, which whoever states the system must supply: an approximation of A^-1, as a product.

    It starts from zero as CG does, so |r_0| is |b| and ``tol`` asks for the same residual. M b would be no better a
    start: the first step from zero goes along M b too, and as far as is best. With M = A^-1 one step is enough.
    """


class _Iterate(NamedTuple):
    x: Float[Array, " D"]
    r: Float[Array, " D"]  # residual b - A x, by recurrence
    p: Float[Array, " D"]  # direction of the step to here
    rz: Float[Array, ""]  # r . M r before that step, with M the preconditioner


def cg(
    matvec: Matvec,
    b: Float[Array, " D"],
    x0: Float[Array, " D"] | None = None,
    *,
    max_steps: int | None,
    tol: float = 0.0,
    precondition: Matvec | None = None,
) -> Float[Array, " D"]:
    """Solve A x = b for a symmetric positive definite A given by ``matvec``.

    Stops after ``max_steps`` or once |r_j| <= tol |r_0|, relative to the residual of the start vector. With
    ``max_steps=None`` the cap is 10 D: exact arithmetic ends in D steps, so a tolerance that is still unmet
    then is below what the precision can reach. In any case it stops once |r_j| <= eps^2 |r_0|, with eps the
    machine epsilon of b: the carried residual is then far below the rounding errors of the true one, and
    going on would divide one underflow by another. ``precondition`` applies an approximation of A^-1, symmetric
    and positive definite. A NaN or infinity in A, b or x0 gives NaN, but for b = 0, where A is never looked at. One
    matvec a step, and one for an x0. Not differentiable in reverse (a loop that stops by itself): wrap it in
    ``jax.lax.custom_linear_solve``, as ``rules.mesa`` does.

    Args: b ``[D]``, float32 or float64; x0 ``[D]``, zeros if None; max_steps, tol static.

    Raises ValueError: b not a float vector, x0 of another shape, max_steps < 0, tol < 0, or tol = 0 with no cap.
    """
    _check(max_steps, tol)
    precondition = precondition or (lambda r: r)
    b, x0, unit = _scaled(b, x0)
    start = _start(matvec, b, x0)
    goal = _goal(tol, start)
    cap = 10 * len(b) if max_steps is None else max_steps

    def unfinished(carry):
        j, s = carry
        return (j < cap) & (jnp.linalg.norm(s.r) > goal)

    _, last = jax.lax.while_loop(unfinished, lambda c: (c[0] + 1, _step(matvec, precondition, c[1])), (0, start))
    return unit * _answer(last)


def cg_trace(
    matvec: Matvec,
    b: Float[Array, " D"],
    x0: Float[Array, " D"] | None = None,
    *,
    max_steps: int,
    tol: float = 0.0,
    precondition: Matvec | None = None,
) -> CGTrace:
    """The iteration of :func:`cg`, every iterate kept and its true residual recomputed (one more matvec a step)."""
    _check(max_steps, tol)
    if max_steps is None:
        raise ValueError("max_steps is None; expected a number of steps to keep")
    precondition = precondition or (lambda r: r)
    b, x0, unit = _scaled(b, x0)
    start = _start(matvec, b, x0)
    goal = _goal(tol, start)

    def advance(s, _):
        live = jnp.linalg.norm(s.r) > goal
        s = jax.tree.map(lambda new, old: jnp.where(live, new, old), _step(matvec, precondition, s), s)
        return s, (_answer(s), jnp.linalg.norm(s.r), live)

    _, (x, recurred, live) = jax.lax.scan(advance, start, length=max_steps)
    x = jnp.concatenate([_answer(start)[None], x])
    recurred = jnp.concatenate([jnp.linalg.norm(start.r)[None], recurred])
    residual = jax.vmap(lambda x: jnp.linalg.norm(b - matvec(x)))(x)
    return CGTrace(unit * x, unit * residual, unit * recurred, live.sum())


def steps_to(residual: Float[ArrayLike, "... S1"], tol: float) -> Int[np.ndarray, "..."]:
    """The first step whose residual is <= tol times the first, as the stopping rule sees it; the last if none is.

    residual: of the steps 0 ... S, for any number of runs, as :class:`CGTrace` holds it.
    """
    residual = np.asarray(residual)
    below = residual <= tol * residual[..., :1]
    return np.where(below.any(-1), below.argmax(-1), residual.shape[-1] - 1)


def _start(matvec, b, x0) -> _Iterate:
    """Before the first step there is no direction that the next one must be conjugate to."""
    x, r = (jnp.zeros_like(b), b) if x0 is None else (x0, b - matvec(x0))
    return _Iterate(x, r, jnp.zeros_like(b), jnp.ones((), b.dtype))


def _answer(s: _Iterate) -> Float[Array, " D"]:
    """x, or NaN where the residual is not finite: that ends the loop too, and is no answer."""
    return jnp.where(jnp.isfinite(s.r).all(), s.x, jnp.nan)


def _goal(tol, start: _Iterate) -> Float[Array, ""]:
    """The residual at which to stop; see :func:`cg` for the least that makes sense."""
    return max(tol, float(jnp.finfo(start.r.dtype).eps) ** 2) * jnp.linalg.norm(start.r)


def _step(matvec, precondition, s: _Iterate) -> _Iterate:
    """The next direction, A-conjugate to all before, and along it to where the error in the A-norm is least."""
    z = precondition(s.r)
    rz = s.r @ z
    p = z + _ratio(rz, s.rz) * s.p
    Ap = matvec(p)
    α = _ratio(rz, p @ Ap)
    return _Iterate(s.x + α * p, s.r - α * Ap, p, rz)


def _ratio(a, b):
    """a / b, and 0 for 0 / 0: a system that is solved exactly has nothing left to add (under vmap it still steps)."""
    return jnp.where(a == 0, 0, a / jnp.where(a == 0, 1, b))


def _scaled(b, x0):
    """b and x0 in units of about their largest entry, so that r . r neither underflows nor overflows.

    CG has no scale of its own; a power of two as the unit rounds nothing, so the steps are the same to the bit.
    """
    b = jnp.asarray(b)
    if b.ndim != 1 or not jnp.issubdtype(b.dtype, jnp.floating):
        raise ValueError(f"b is {b.dtype} of shape {list(b.shape)}; expected a float vector [D]")
    x0 = None if x0 is None else jnp.asarray(x0, b.dtype)
    if x0 is not None and x0.shape != b.shape:
        raise ValueError(f"x0 has shape {list(x0.shape)}; expected {list(b.shape)} as b")
    entries = b if x0 is None else jnp.concatenate([b, x0])
    _, exponent = jnp.frexp(jnp.max(jnp.abs(entries), initial=0))  # 0 for zeros
    largest = jnp.finfo(b.dtype).maxexp - 3  # neither the unit nor its reciprocal may overflow
    unit = jnp.ldexp(jnp.ones((), b.dtype), jnp.clip(exponent, -largest, largest))
    return b / unit, None if x0 is None else x0 / unit, unit


def _check(max_steps, tol) -> None:
    if max_steps is not None and (isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 0):
        raise ValueError(f"max_steps is {max_steps!r}; expected a whole number >= 0, or None")
    if isinstance(tol, bool) or not isinstance(tol, Real) or not tol >= 0:
        raise ValueError(f"tol is {tol!r}; expected a number >= 0")
    if max_steps is None and tol == 0:
        raise ValueError("max_steps is None and tol is 0; expected one of them to end the iteration")
