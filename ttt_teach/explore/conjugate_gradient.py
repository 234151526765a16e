"""The pictures of notebook 04. Each draws arrays that the notebook computed; only the words are made here."""

import numpy as np
from matplotlib.patches import Ellipse

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above
from ttt_teach.solvers import steps_to

BLUE, RED, GREEN = COLORS["blue"], COLORS["vermilion"], COLORS["green"]


def descent_paths(A, x_star, descent, conjugate) -> Picture:
    """F04a. Two paths over the ellipses on which the error has one A-norm.

    A ``[2, 2]``; x_star ``[2]``; descent, conjugate ``[steps + 1, 2]``: iterates, from the same start.
    """
    fig, ax = figure_axes(figsize=(6.4, 4.2))
    start = _norm(A, descent[0] - x_star)
    for share in (1, 0.6, 0.3):
        ax.add_patch(_ellipse(A, x_star, share * start))
    ax.plot(*descent.T, "o-", color=RED, ms=4, label="steepest descent")
    ax.plot(*conjugate.T, "s--", color=BLUE, ms=5, label="conjugate gradients")
    ax.plot(*x_star, "*", color=COLORS["black"], ms=13, label="solution", zorder=3)
    ax.set(xlim=(-0.12, 1.32), ylim=(-0.16, 0.72), aspect="equal")
    ax.set(xlabel="x, first entry", ylabel="x, second entry", xticks=[0, 0.5, 1], yticks=[0, 0.5])
    legend_above(ax, 3)
    steps = len(descent) - 1
    left = [_norm(A, path[-1] - x_star) / start for path in (descent, conjugate)]
    words = (
        f"Condition number {np.linalg.cond(A):.3g}, {plural(steps, 'step')}: steepest descent has "
        f"{left[0]:.1%} of its error left, conjugate gradients {left[1]:.1%} (in the A-norm)."
    )
    return Picture(fig, words, "F04a")


def _norm(A, e):
    return np.sqrt(e @ A @ e)


def _ellipse(A, centre, radius) -> Ellipse:
    """The points at this distance from the centre in the A-norm."""
    eigenvalues, vectors = np.linalg.eigh(A)
    width, height = 2 * radius / np.sqrt(eigenvalues)
    angle = np.degrees(np.arctan2(*vectors[::-1, 0]))
    return Ellipse(centre, width, height, angle=angle, fill=False, edgecolor="0.75")


def polynomials(eigenvalues, weights, roots, steps, name) -> Picture:
    """F04b. The polynomial of conjugate gradients after some steps, and Chebyshev's of that degree.

    eigenvalues ``[D]``; weights ``[D]``: share of each in the squared A-norm of the start error (below a
    hundredth of the largest its dot is small); roots: those of the polynomial; name: of the spectrum.
    """
    low, high = eigenvalues.min(), eigenvalues.max()
    waves = (low + high - (high - low) * np.cos(np.linspace(0, np.pi, 70))) / 2  # as dense as Chebyshev's zeros
    at = np.sort(np.concatenate([np.geomspace(0.8 * low, 1.1 * high, 70), waves]))
    mine, here = (np.prod(1 - x[:, None] / roots, axis=1) for x in (at, eigenvalues))
    theirs, guarantee = chebyshev(at, low, high, steps)
    fig, ax = figure_axes()
    ax.axhline(0, color="0.8", lw=1, ls="-")
    ax.plot(at, np.clip(theirs, -1.5, 1.5), "--", color=RED, lw=1.4, label="Chebyshev's")
    ax.plot(at, np.clip(mine, -1.5, 1.5), "-", color=BLUE, label="of conjugate gradients")
    weighty = weights > 0.01 * weights.max()
    dots = np.clip(here, -1.5, 1.5)
    for some, size, label in ((weighty, 6, "at the eigenvalues"), (~weighty, 3, None)):
        ax.plot(eigenvalues[some], dots[some], "o", color=COLORS["black"], ms=size, label=label)
    ax.set(xscale="log", ylim=(-1.2, 1.2), yticks=[-1, 0, 1])
    ax.set(xlabel="eigenvalue of H + Λ", ylabel="value of the polynomial")
    legend_above(ax, 3)
    words = (
        f"{name}, {plural(steps, 'step')}: the polynomial of conjugate gradients leaves "
        f"{np.sqrt(np.sum(weights * here**2)):.2g} of the error; Chebyshev's guarantees {guarantee:.2g}."
    )
    return Picture(fig, words, "F04b")


def chebyshev(at, low, high, degree) -> tuple[np.ndarray, float]:
    """E04.17 at the points ``at``: Chebyshev's polynomial of a degree, and its largest size on [low, high]."""
    T = np.polynomial.chebyshev.Chebyshev.basis(degree)
    at_zero = T((high + low) / (high - low))
    return T((high + low - 2 * at) / (high - low)) / at_zero, 1 / at_zero


def stopping(true, recurred, bounds, eps, lam) -> Picture:
    """F04c. Relative residuals of one float32 solve, the bounds, and where the tolerance ``eps`` stops it.

    true, recurred ``[steps + 1]``; bounds: name -> ``[steps + 1]``.
    """
    fig, ax = figure_axes()
    for (name, bound), dashes in zip(bounds.items(), ("--", ":"), strict=True):
        ax.semilogy(bound, dashes, color="0.45", lw=1.4, label=name)
    ax.semilogy(recurred, "-.", color=RED, lw=1.5, label="carried along")
    ax.semilogy(true, "-", color=BLUE, label="recomputed")
    ax.axhline(eps, color=GREEN, lw=1, ls="-")
    stop = steps_to(recurred, eps)
    stops = recurred[stop] <= eps * recurred[0]
    if stops:
        ax.plot(stop, recurred[stop], "o", ms=9, mfc="none", mec=COLORS["black"], mew=1.6, label="stop")
    ax.set(
        xlim=(0, len(true) - 1),
        ylim=(1e-9, 30),
        yticks=[1e-8, 1e-4, 1],
        xlabel="step",
        ylabel="residual / first residual",
    )
    legend_above(ax, 3)
    met = f"stops after {plural(stop, 'step')}" if stops else f"does not stop within {plural(stop, 'step')}"
    reached = "there too" if np.min(true) <= eps else "never there"
    words = (
        f"lam = {lam:g}, eps = {eps:g}: float32 {met}; the recomputed residual gets down to "
        f"{np.min(true):.1e}, so it is {reached}."
    )
    return Picture(fig, words, "F04c")


def storage(eigenvalues, residual, lam, dtype) -> Picture:
    """F04d. Left the spectrum of H + Λ with H as stored, right what conjugate gradients make of it.

    eigenvalues ``[D]`` ascending; residual ``[steps + 1]``, relative; dtype: how H was stored.
    """
    fig, (left, right) = figure_axes(1, 2)
    order = np.arange(1, len(eigenvalues) + 1)
    for sign, color, mark, label in ((1, BLUE, "o", "positive"), (-1, RED, "x", "negative, by size")):
        some = sign * eigenvalues > 0
        left.semilogy(order[some], np.abs(eigenvalues[some]), mark, color=color, ms=5, label=label)
    left.set(xlim=(0, len(order) + 1), ylim=(1e-5, 2e3), yticks=[1e-4, 1e-2, 1, 100])
    left.set(xlabel="number", ylabel="eigenvalue of H + Λ")
    legend_above(left, 2)
    right.semilogy(residual, "-", color=BLUE)
    right.axhline(1, color="0.8", lw=1, ls="-")
    right.set(xlim=(0, len(residual) - 1), ylim=(1e-12, 1e3), yticks=[1e-12, 1e-8, 1e-4, 1])
    right.set(xlabel="step", ylabel="residual / first residual")
    negative = int(np.sum(eigenvalues < 0))
    verdict = f"{plural(negative, 'eigenvalue')} negative" if negative else "positive definite"
    words = (
        f"H in {dtype}, lam = {lam:g}: {verdict}, the smallest eigenvalue is {eigenvalues[0]:.2g}; the "
        f"residual ends at {residual[-1]:.1e} of where it began."
    )
    return Picture(fig, words, "F04d")


def guard(steps, residuals, law) -> Picture:
    """F04e. Absolute residuals with an additive guard, one line for each size of q, and the law they end on.

    steps, law ``[N]``; residuals: name -> ``[N]``.
    """
    fig, ax = figure_axes()
    for name, residual in residuals.items():
        ax.loglog(steps, residual, label=name)
    ax.loglog(steps, law, color="0.45", lw=5, alpha=0.4, ls="-", zorder=0, label="the law")
    ax.set(xlabel="step", ylabel="residual, not divided by |q|", ylim=(1e-6, 10), yticks=[1e-6, 1e-4, 1e-2, 1])
    legend_above(ax, 4)
    last = [residual[-1] / law[-1] for residual in residuals.values()]
    words = (
        f"After {steps[-1]} guarded steps every residual is between {min(last):.2g} and {max(last):.2g} "
        f"times {law[-1]:.1e}, whatever the size of q was."
    )
    return Picture(fig, words, "F04e")


def steps_by_token(tokens, panels, says, figure) -> Picture:
    """F04f and F04g. Steps needed at each token.

    tokens ``[N]``; panels: title -> (label -> steps ``[N]``), side by side, with the same labels; says: what
    is counted, to open the words.
    """
    fig, axes = figure_axes(1, len(panels), sharey=True, squeeze=False)
    for ax, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for label, line in lines.items():
            ax.plot(tokens, line, lw=1.4, label=label)
        ax.set(xlabel=f"token, {title}", yticks=range(0, 60, 10))
    most = max(np.max(line) for lines in panels.values() for line in lines.values())
    axes[0, 0].set(ylabel="steps", ylim=(0, max(30, most + 2)))
    if len(lines) <= 8:
        legend_above(axes[0, 0], 4)
    mean = {f"{title} {label}": np.mean(line) for title, ls in panels.items() for label, line in ls.items()}
    low, high = min(mean, key=mean.get), max(mean, key=mean.get)
    words = (
        f"{says}: means over {len(tokens)} tokens run from {mean[low]:.1f} steps ({low}) to {mean[high]:.1f} "
        f"({high}); the hardest token takes {most:.0f}."
    )
    return Picture(fig, words, figure)
