"""OSDN's two guarantees: regret of the learned scale turns into a product of error ratios (OSDN Theorems 5.1, 5.2).

One head, in NumPy: keys k ``[T, K]``, write steps beta ``[T]``, scales d ``[T, K]`` (those of the writes) or ``[K]``
(a fixed one). A token's write leaves the share q_t = (1 - beta_t <d_t, k_t^2>)^2 of its squared error.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import lsq_linear

from ttt_teach.rules import door
from ttt_teach.theory.sizes import at_least, positive


def residual_ratio(d: ArrayLike, k: ArrayLike, beta: ArrayLike) -> np.ndarray:
    """q_t = f_t(S_t) / f_t(S_{t-1}), the squared error after the write over that before (Theorem 5.2), ``[T]``."""
    d, k, beta = _read(d, k, beta)
    return (1 - beta * np.sum(d * k**2, axis=-1)) ** 2


def progress(d: ArrayLike, k: ArrayLike, beta: ArrayLike) -> np.ndarray:
    """h_t(d) = (q_t - 1) / (2 |k_t|^2), the loss whose gradient d follows (Eq. 3), ``[T]``; 0 for a zero key."""
    d, k, beta = _read(d, k, beta)
    n = np.sum(k**2, axis=-1)
    return (residual_ratio(d, k, beta) - 1) / np.where(n > 0, 2 * n, 1)


def slope(d: ArrayLike, k: ArrayLike, beta: ArrayLike) -> np.ndarray:
    """Gradient of h_t: -beta_t (1 - beta_t <d, k_t^2>) k_t^2 / |k_t|^2 (Lemma 4.1), ``[T, K]``; 0 at a zero key."""
    d, k, beta = _read(d, k, beta)
    n = np.sum(k**2, axis=-1)
    left = 1 - beta * np.sum(d * k**2, axis=-1)
    return (-beta * left / np.where(n > 0, n, 1))[:, None] * k**2


def best_scale(k: ArrayLike, beta: ArrayLike, bounds: tuple[float, float] = (0.5, 2.0)) -> np.ndarray:
    """The one d within the bounds that would have been best in hindsight, argmin sum_t h_t(d), ``[K]``.

    A least-squares problem with bounds (h_t is the square of 1 - beta_t <d, k_t^2> over 2 |k_t|^2, less a constant),
    solved by an active set, so exact to rounding. Where several are best, one of them.

    Bounds may be infinite. Raises ValueError unless a number lies within them.
    """
    lo, hi = _bounds(bounds)
    _, k, beta = _read(0.0, k, beta)
    length = np.linalg.norm(k, axis=-1)
    used = length > 0
    rows = beta[used, None] * k[used] ** 2 / length[used, None]
    if lo == hi:
        return np.full(k.shape[1], lo)
    if np.isinf([lo, hi]).all():  # lsq_linear would keep directions that no key has but for rounding, and be far off
        return np.linalg.lstsq(rows, 1 / length[used])[0]
    return lsq_linear(rows, 1 / length[used], (lo, hi), method="bvls", tol=1e-15).x


def regret(d: ArrayLike, k: ArrayLike, beta: ArrayLike, bounds: tuple[float, float] = (0.5, 2.0)) -> float:
    """R_T = sum_t h_t(d_t) - min_d sum_t h_t(d) over the fixed d within the bounds."""
    return float(np.sum(progress(d, k, beta)) - np.sum(progress(best_scale(k, beta, bounds), k, beta)))


def comparator_gap(k: ArrayLike, beta: ArrayLike, bounds: tuple[float, float] = (0.5, 2.0)) -> float:
    """epsilon_T = sum_t q_t(d) / (2 T) at the best fixed d, for unit keys: 0 only if one d writes each exactly."""
    q = residual_ratio(best_scale(k, beta, bounds), k, beta)
    if not q.size:
        raise ValueError(f"k has shape {list(np.shape(k))}; expected at least one token")
    return float(np.mean(q) / 2)


def log_local_bound(gap: ArrayLike, regret: ArrayLike, T: ArrayLike) -> np.ndarray:
    """log of (2 epsilon_T + 2 R_T / T)^T, which sum_t log q_t does not exceed for unit keys (Theorem 5.2).

    The base is the mean of the q_t, and the step is that of the geometric to the arithmetic mean.
    """
    gap, T = at_least("gap", gap, 0), at_least("T", T, 1)
    return T * np.log(2 * gap + 2 * np.asarray(regret) / T)


def log_fixed_step_bound(
    gap: ArrayLike, distance: ArrayLike, step_size: float, T: ArrayLike, curvature: float = 1.0
) -> np.ndarray:
    """log of (Q / T)^T, Q a bound on sum_t q_t when d learns with one step size and unit keys (not in the paper).

    With Q* = 2 epsilon_T T, the sum of the q_t of a fixed scale that starts at ``distance`` from d_1, and
    c = ``curvature`` >= beta_t^2 |k_t^2|^2 for all t (1 is always enough for beta <= 1),

        sqrt(Q) = (sqrt(Q*) + sqrt(Q* + (2 - step_size c) distance^2 / step_size)) / (2 - step_size c)

    Raises ValueError unless 0 < step_size < 2 / c: with longer steps d need not come nearer to anything.
    """
    gap, distance, T = at_least("gap", gap, 0), at_least("distance", distance, 0), at_least("T", T, 1)
    curvature = positive("curvature", curvature)
    left = 2 - step_size * curvature
    if not (step_size > 0 and left > 0):
        raise ValueError(f"step_size is {step_size!r}; expected a number above 0 and below 2 / c = {2 / curvature:g}")
    fixed = 2 * gap * T
    root = (np.sqrt(fixed) + np.sqrt(fixed + left * distance**2 / step_size)) / left
    return T * np.log(root**2 / T)


def log_population_bound(L: ArrayLike, regret: ArrayLike, T: ArrayLike) -> np.ndarray:
    """log of (2 L R_T / T)^T, which (f(S_{T+1}) - f*) / (f(S_1) - f*) does not exceed (Theorem 5.1).

    Of full-gradient steps S - D_t grad f(S) on the population loss: L is the largest eigenvalue of the keys' second
    moment, and R_T the regret of D_t against the moment's pseudo-inverse. The paper asks for steps that never raise
    f; its inequality holds without (notebook 10).
    """
    T = at_least("T", T, 1)
    return T * np.log(2 * positive("L", L) * np.asarray(regret) / T)


def _read(d, k, beta):
    d, k, beta = (np.asarray(x, float) for x in (d, k, beta))
    if k.ndim != 2 or beta.shape != k.shape[:1] or d.shape not in ((), k.shape, k.shape[1:]):
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in (("d", d), ("k", k), ("beta", beta)))
        raise ValueError(f"shapes are {shapes}; expected k [T, K], beta [T], and d [T, K] or [K]")
    for name, x in (("d", d), ("k", k), ("beta", beta)):
        door.require(name, x, np.isfinite, "finite numbers")
    return d, k, beta


def _bounds(bounds) -> tuple[float, float]:
    try:
        lo, hi = map(float, bounds)
    except (TypeError, ValueError):
        raise ValueError(f"bounds is {bounds!r}; expected two numbers (lo, hi)") from None
    if not (lo <= hi and lo < np.inf and hi > -np.inf):
        raise ValueError(f"bounds is {bounds!r}; expected lo <= hi with a finite number between them")
    return lo, hi
