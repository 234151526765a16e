"""The pictures of notebook 06. Each draws arrays that the notebook computed; only the words are made here."""

import numpy as np

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above

BLUE, RED, GREEN, BLACK = (COLORS[name] for name in ("blue", "vermilion", "green", "black"))
GREY = "0.45"
GREEK = {"beta": "β", "gamma": "γ", "lam": "λ"}  # as the text writes them


def two_budgets(errors, of_x, of_u, forward, backward) -> Picture:
    """F06a. How far each gradient is off, with a number of steps for x and another for u.

    errors: name of an input -> relative error of its gradient; of_x, of_u: relative errors of the two solves.
    """
    fig, ax = figure_axes(figsize=(6.4, 3.2))
    rows = np.arange(len(errors))[::-1]
    for at, dashes, color, label in ((of_x, "--", RED, "error of x"), (of_u, ":", GREEN, "error of u")):
        ax.axvline(at, color=color, ls=dashes, lw=1.6, label=label)
    ax.semilogx(list(errors.values()), rows, "o", color=BLUE, ms=8, label="gradient")
    ax.set(xlim=(1e-9, 5), ylim=(-0.6, len(errors) - 0.4), xlabel="relative error", ylabel="gradient of")
    ax.set_yticks(rows, [_symbol(name) for name in errors])
    legend_above(ax, 3)
    worst = max(errors, key=errors.get)
    words = (
        f"{plural(forward, 'step')} forward (x off by {of_x:.1e}), {backward} backward (u off by {of_u:.1e}): "
        f"the gradient of q is off by {errors['q']:.1e}, that of v by {errors['v']:.1e}, "
        f"the worst is that of {_symbol(worst)} with {errors[worst]:.1e}."
    )
    return Picture(fig, words, "F06a")


def against_steps(lines, level) -> Picture:
    """F06b. Relative distances of gradients after 0, 1, 2 ... steps.

    lines: name -> ``[steps + 1]``: those of the implicit and of the unrolled gradient, and of the solution; level:
    where the words count the steps.
    """
    fig, ax = figure_axes()
    for (name, line), (color, dashes) in zip(lines.items(), ((BLUE, "-"), (RED, "--"), (GREY, ":")), strict=True):
        ax.semilogy(line, dashes, color=color, label=name)
    ax.axhline(level, color="0.8", lw=1, ls="-", zorder=0)
    ax.annotate(f"{level:.0%}", (1, level), xycoords=("axes fraction", "data"), color=GREY, ha="right", va="bottom")
    ax.set(xlabel="steps, in both passes", ylabel="relative distance", ylim=(1e-13, 5), yticks=[1e-12, 1e-8, 1e-4, 1])
    ax.set(xlim=(0, max(map(len, lines.values())) - 1))
    legend_above(ax, 2)
    (one, a), (two, b) = list(lines.items())[:2]
    words = (
        f"To {level:g} of the exact gradient it is {plural(first_below(a, level), 'step')} for {one} and "
        f"{plural(first_below(b, level), 'step')} for {two}."
    )
    return Picture(fig, words, "F06b")


def first_below(line, level) -> int:
    """The first index from which on the line stays at or below the level; its length if it never does."""
    above = np.flatnonzero(np.asarray(line) > level)
    return int(above[-1]) + 1 if len(above) else 0


def trained(lams, exact, truncated, ends, steps) -> Picture:
    """F06c. The loss against lam, solved exactly and with a few steps, and where three descents end.

    exact, truncated ``[N]``: losses at lams ``[N]``; ends: name of a gradient -> lam, and there the loss with the few
    steps (a filled mark; none for the exact gradient, which does not know them) and the exact loss (a hollow one).
    """
    fig, ax = figure_axes()
    ax.semilogx(lams, exact, "--", color=GREY, lw=1.4, label="loss, exact solve")
    ax.semilogx(lams, truncated, "-", color=BLACK, label=f"loss, {plural(steps, 'step')}")
    for (name, (lam, loss, solved)), mark, color in zip(ends.items(), "^so", (GREY, RED, BLUE), strict=True):
        filled = name != "exact"
        ax.plot(lam, solved, mark, color=color, ms=8, mfc="white", label=None if filled else f"{name} gradient")
        if filled:
            ax.plot(lam, loss, mark, color=color, ms=9, label=f"{name} gradient")
    ax.set(xlabel="λ", ylabel="loss", ylim=(3, 9))
    legend_above(ax, 3)
    told = ", ".join(f"{lam:.2g} ({name})" for name, (lam, *_) in ends.items())
    unrolled, implicit = (ends[name] for name in ("unrolled", "implicit"))
    words = (
        f"{plural(steps, 'step')}: the gradients end at λ {told}; solved with these steps the implicit end has "
        f"{implicit[1] / unrolled[1] - 1:.2%} more loss than the unrolled one, solved exactly "
        f"{1 - implicit[2] / unrolled[2]:.1%} less."
    )
    return Picture(fig, words, "F06c")


def tolerances(eps, errors, forward) -> Picture:
    """F06d. Errors of gradients against the relative tolerance of the backward solve.

    errors: name -> ``[len(eps)]``; forward: the relative tolerance of the forward solve.
    """
    fig, ax = figure_axes()
    for (name, line), mark in zip(errors.items(), "osd^", strict=False):
        ax.loglog(eps, line, marker=mark, ms=5, label=_symbol(name))
    ax.axvline(forward, color="0.8", lw=1, ls="-", zorder=0)
    ax.set(xlabel="tolerance of the backward solve", ylabel="relative error of the gradient")
    ax.invert_xaxis()
    legend_above(ax, 4)
    at = int(np.argmin(np.abs(np.log(np.asarray(eps) / forward))))
    told = ", ".join(f"{_symbol(name)} {line[at]:.1e} and {line[-1]:.1e}" for name, line in errors.items())
    words = (
        f"Forward tolerance {forward:g}: errors with a backward tolerance of {eps[at]:g} and of {eps[-1]:g} are {told}."
    )
    return Picture(fig, words, "F06d")


def guarded(steps, with_guard, without, upstream, at) -> Picture:
    """F06e. Relative errors of two gradients against steps, with an additive constant and without.

    steps ``[N]``; with_guard, without: name of the gradient -> ``[N]``; upstream: scale of the gradient that
    arrives; at: the number of steps that the words speak of.
    """
    fig, ax = figure_axes()
    for lines, color, how in ((with_guard, RED, "with 1e-5"), (without, BLUE, "without")):
        for (name, line), dashes in zip(lines.items(), ("-", "--"), strict=True):
            ax.semilogy(steps, line, dashes, color=color, label=f"{_symbol(name)}, {how}")
    ax.axvline(at, color="0.8", lw=1, ls="-", zorder=0)
    here = int(np.flatnonzero(np.asarray(steps) == at)[0])
    for lines, color in ((with_guard, RED), (without, BLUE)):
        for line in lines.values():
            ax.plot(at, line[here], "o", color=color, ms=6)
    ax.set(xlabel="steps", ylabel="relative error", ylim=(1e-14, 3), yticks=[1e-12, 1e-8, 1e-4, 1])
    legend_above(ax, 2)
    told = ", ".join(f"{line[here]:.2g} ({_symbol(name)})" for name, line in with_guard.items())
    best = max(line[here] for line in without.values())
    words = (
        f"Upstream {upstream:g}, {plural(at, 'step')}: with 1e-5 in both denominators the gradients are off by {told}, "
        f"without it by at most {best:.1e}."
    )
    return Picture(fig, words, "F06e")


def _symbol(name):
    return GREEK.get(name, name)
