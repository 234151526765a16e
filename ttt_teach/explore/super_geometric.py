"""The pictures of notebook 10: each draws arrays that the notebook computed, and makes the words."""

import numpy as np

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes

BLUE, RED, GREEN, PURPLE, BLACK = (COLORS[name] for name in ("blue", "vermilion", "green", "purple", "black"))
MEASURED = {"plain delta rule": (BLACK, "-"), "learned scale": (BLUE, "-")}
BOUNDS = {
    "bound from the mean of q": (GREEN, "--"),
    "promise, this step": (RED, "-."),
    "promise, step made for T": (PURPLE, (0, (4, 1, 1, 1, 1, 1))),
}


def first_below(T, promise, plain):
    """The first of the lengths T at which a promise is below what the plain rule does (at T, or at all), or None."""
    below = np.flatnonzero(promise < plain)
    return int(T[below[0]]) if len(below) else None


def promises(keys, eta, T, logs) -> Picture:
    """F10a. The product of the ratios and its bounds, left as powers of ten, right as ratio per token.

    T ``[N]``; logs: name in MEASURED or BOUNDS -> log10 of the product or bound at each T, NaN where there is none.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.8), gridspec_kw={"top": 0.8, "wspace": 0.32})
    for name, (color, dash) in (MEASURED | BOUNDS).items():
        width = 2.4 if color == PURPLE else 2 if name in MEASURED else 1.6
        left.plot(T, logs[name], ls=dash, color=color, lw=width, label=name)
        right.loglog(T, 10 ** (logs[name] / T), ls=dash, color=color, lw=width)
    left.set(ylim=(-1650, 60), xlabel="tokens T", ylabel="power of ten")
    left.set_title("product of the ratios", fontsize=11)
    right.set(ylim=(1e-4, 3), xlabel="tokens T", xlim=(T[0], T[-1]))
    right.set_title("its T-th root: ratio per token", fontsize=11)
    fig.legend(*left.get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False)
    crossing = first_below(T, logs["promise, this step"], logs["plain delta rule"])
    if np.isnan(logs["promise, this step"]).any():
        kept = "for so long a step there is no promise"
    elif crossing is None:
        kept = f"the promise for this step is above the plain rule at all {T[-1]} tokens"
    else:
        kept = f"the promise for this step falls below the plain rule by token {crossing}"
    at_end = {name: logs[name][-1] for name in MEASURED}
    words = (
        f"{keys} keys, eta {eta:g}: after {T[-1]} tokens the product is 10^{at_end['learned scale']:.0f} with the "
        f"learned scale and 10^{at_end['plain delta rule']:.0f} with the plain delta rule; {kept}."
    )
    return Picture(fig, words, "F10a")


def gates(keys, gates, plain, learned, gap, floor, best, last) -> Picture:
    """F10b. What a fixed scale could do and what the learned one does.

    plain, learned ``[T]``: q of every token; gap: 2 epsilon; floor: what no scale in the box can beat; best, last
    ``[K]``: the best fixed scale and the learned one after the last token.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.8), gridspec_kw={"top": 0.8, "wspace": 0.3})
    T = np.arange(1, len(plain) + 1)
    shown = np.unique(np.geomspace(1, len(T), 40).astype(int)) - 1
    for name, q, (color, dash) in (("plain", plain, (BLACK, "-")), ("learned", learned, (BLUE, "-"))):
        left.loglog(T[shown], (np.cumsum(q) / T)[shown], dash, color=color, lw=2, label=name)
    bottom = 1e-4
    left.axhline(max(gap, bottom), color=GREEN, ls="--", lw=1.6, label="best fixed scale")
    left.axhline(max(floor, bottom), color=RED, ls=":", lw=2, label="floor of the box")
    left.set(ylim=(bottom * 0.7, 1.2), xlabel="tokens so far")
    left.set_yticks([bottom, 1e-3, 1e-2, 1e-1, 1], ["0", "0.001", "0.01", "0.1", "1"])
    left.set_title("mean of q so far", fontsize=11)
    order = np.argsort(best, kind="stable")
    right.plot(best[order], "s", mfc="none", color=GREEN, ms=5, label="best fixed scale")
    right.plot(last[order], ".", color=BLUE, ms=7, label="learned, at the end")
    right.axhline(1, color="0.7", lw=1, zorder=0)
    right.set(ylim=(0.4, 2.1), xlabel="channels, sorted")
    right.set_title("scale d", fontsize=11)
    for axes, columns in ((left, 2), (right, 1)):
        axes.legend(loc="lower left", bbox_to_anchor=(-0.08, 1.1), ncols=columns, frameon=False, columnspacing=1)
    zero = "0" if gap < 1e-20 else f"{gap:.2g}"
    words = (
        f"{keys} keys, gates {gates}: over {len(T)} tokens the mean of q is {plain.mean():.3g} with the plain rule, "
        f"{learned.mean():.3g} with the learned scale, {zero} with the best fixed scale; the box allows "
        f"{'0' if floor == 0 else f'{floor:.2g}'}."
    )
    return Picture(fig, words, "F10b")


def population(mix, runs, L) -> Picture:
    """F10c. The population loss under a learned preconditioner, with the bounds, and the regrets.

    runs: name -> (log10 of the loss over the first, ``[T + 1]``, h_t(D_t) - h_t(D*) of each step, ``[T]``).
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.8), gridspec_kw={"top": 0.8, "wspace": 0.32})
    looks = ((BLUE, "-", 3), (RED, "--", 2), (BLACK, "-", 2))
    ends = {}
    for (name, (loss, excess)), (color, dash, width) in zip(runs.items(), looks, strict=True):
        shown = np.unique(np.geomspace(1, len(excess), 60).astype(int))
        regret = np.cumsum(excess)
        seen = np.array([0, *shown])[: 1 + np.sum(loss[shown] > -200)]  # the rest is below the axes
        left.plot(seen, loss[seen], dash, color=color, lw=width, label=name)
        left.plot(shown, shown * np.log10(2 * L * regret[shown - 1] / shown), ":", color=color, lw=1.6)
        right.loglog(shown, regret[shown - 1], dash, color=color, lw=width)
        ends[name] = loss[-1], regret[-1]
    left.set(ylim=(-160, 15), xlabel="steps", ylabel="power of ten")
    left.set_title("loss left; dotted: its bound", fontsize=11)
    right.set(xlabel="steps", xlim=(1, None))
    right.set_title("regret so far", fontsize=11)
    fig.legend(*left.get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False)
    said = "; ".join(
        f"{name} leaves {'less than 10^-200' if loss < -200 else f'10^{loss:.0f}'} of the loss, regret {regret:.2g}"
        for name, (loss, regret) in ends.items()
    )
    return Picture(fig, f"Mixing {mix:g}, after {len(excess)} steps: {said}.", "F10c")


def flips(share, values) -> Picture:
    """F10d. One key, targets that flip their sign: a memory that jumps, and what each measure says about it.

    share: of the error that a write removes; values ``[T + 1]``: the memory, the first before any token.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.8), gridspec_kw={"top": 0.8})
    t = np.arange(len(values))
    left.plot(t[1:], (-1.0) ** t[1:], "s", mfc="none", color=BLACK, ms=7, label="target")
    left.step(t, values, where="post", color=BLUE, lw=2, label="memory after the write")
    left.axhline(0, color=GREEN, ls=":", lw=1.6, label="best fixed memory")
    left.set(ylim=(-1.4, 1.4), yticks=(-1, 0, 1), xlabel="token")
    a = np.linspace(0.02, 1, 50)
    laws = {
        "error left by the write, squared": ((1 - a) ** 2, BLUE, "-"),
        "error before the next write, squared": ((2 / (2 - a)) ** 2, RED, "--"),
        "population loss above its minimum": (0.5 * (a / (2 - a)) ** 2, GREEN, "-."),
    }
    for name, (y, color, dash) in laws.items():
        right.plot(a, y, dash, color=color, label=name)
    now = (1 - share) ** 2, (2 / (2 - share)) ** 2, 0.5 * (share / (2 - share)) ** 2
    for y, (_, color, _) in zip(now, laws.values(), strict=True):
        right.plot(share, y, "o", color=color, ms=7)
    right.set(ylim=(0, 4.3), xlabel="share a that a write removes")
    left.legend(loc="lower left", bbox_to_anchor=(-0.12, 1), frameon=False)
    right.legend(loc="lower left", bbox_to_anchor=(-0.1, 1), frameon=False)
    words = (
        f"A write removes the share {share:g}: it leaves {now[0]:.3g} of its own squared error, and in the long run "
        f"the next token finds a squared error of {now[1]:.3g} and the population loss is {now[2]:.3g} too high."
    )
    return Picture(fig, words, "F10d")


def heads(names, panels) -> Picture:
    """F10e. Ratio per token (geometric mean of q) of real heads, by text and gates.

    panels: title -> {series: ``[heads]``}; every panel has the same series.
    """
    fig, axes = figure_axes(1, len(panels), figsize=(7.2, 3.8), sharey=True, gridspec_kw={"top": 0.78, "wspace": 0.12})
    looks = ((BLACK, "s"), (PURPLE, "x"), (BLUE, "o"), (GREEN, "D"))
    for ax, (title, series) in zip(axes, panels.items(), strict=True):
        shifts = np.linspace(-0.27, 0.27, len(series))  # marks of nearly equal values lie below each other
        for (name, values), (color, mark), shift in zip(series.items(), looks, shifts, strict=False):
            face = {} if mark == "x" else {"mfc": "none"}
            ax.semilogx(values, np.arange(len(values)) + shift, mark, color=color, ms=5, label=name, **face)
        ax.set(yticks=range(len(names)), yticklabels=names, xlim=(4e-4, 0.4), xlabel="ratio per token")
        ax.set_title(title, fontsize=11)
    axes[0].invert_yaxis()
    fig.subplots_adjust(left=0.2)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=4, frameon=False)
    said = "; ".join(
        f"{title}: " + ", ".join(f"{name} {min(v):.2g} to {max(v):.2g}" for name, v in series.items())
        for title, series in panels.items()
    )
    return Picture(fig, f"Ratio per token of {plural(len(names), 'real head')}. {said}.", "F10e")
