"""The pictures of notebook 09. Each draws arrays that the notebook computed; only the words are made here."""

import numpy as np

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above

BLUE, RED, GREEN, PURPLE = (COLORS[name] for name in ("blue", "vermilion", "green", "purple"))
FLOOR = 1e-8  # the end of a logarithmic axis of ratios: what lies below is drawn on it


def geometric_mean(ratios, axis=None):
    """exp of the mean logarithm; a ratio of exactly 0 counts as 1e-300."""
    return np.exp(np.mean(np.log(np.maximum(ratios, 1e-300)), axis=axis))


def binned(x, bins):
    """x ``[..., T]`` in so many equal bins of tokens, ``[..., bins, T // bins]``; the rest at the end is left out."""
    size = x.shape[-1] // bins
    return x[..., : bins * size].reshape(*x.shape[:-1], bins, size)


def contraction(a, errors) -> Picture:
    """F09a. What a write leaves of the squared error, by a, and the error of one pair written again and again.

    errors ``[M + 1]``: signed, in units of the error before the first of M writes.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6), gridspec_kw={"wspace": 0.25})
    x = np.linspace(0, 2.6, 105)
    left.axhspan(0, 1, color="0.92")
    left.plot(x, (1 - x) ** 2, "-", color=BLUE)
    left.plot(a, (1 - a) ** 2, "o", color=RED, ms=9)
    left.set(xlim=(0, 2.6), ylim=(-0.1, 2.6), xlabel="a", xticks=(0, 0.5, 1, 1.5, 2, 2.5))
    left.set_title("share of the squared error left", fontsize=11)
    right.axhline(0, color="0.8", lw=1, ls="-")
    right.axhspan(-1, 1, color="0.92")
    writes = np.arange(len(errors))
    shown = np.abs(errors) <= 3.3
    right.plot(writes[shown], errors[shown], "-o", color=RED, ms=5)
    right.set(xlim=(-0.3, len(errors) - 0.7), ylim=(-3.4, 3.4), xlabel="writes of the same pair")
    right.set_title("error, in units of the first", fontsize=11)
    last = f"{errors[-1]:.2g}" if abs(errors[-1]) > 1e-12 else "nothing but rounding"
    missing = "" if shown.all() else f"; {plural(int((~shown).sum()), 'mark')} outside the picture"
    words = (
        f"a = {a:g}: a write leaves {(1 - a) ** 2:.3g} of the squared error, and the error changes sign "
        f"{'at every write' if a > 1 else 'at no write'}. After {plural(len(errors) - 1, 'write')} it is "
        f"{last} of the first{missing}."
    )
    return Picture(fig, words, "F09a")


def drifting(beta, a, fixed, moving) -> Picture:
    """F09b. Two keys in turn, all targets zero: the size of the memory with one scale, and with one for each key.

    a: of every write; fixed, moving ``[N + 1]``: Frobenius norms, from before the first write on.
    """
    fig, ax = figure_axes()
    writes = np.arange(len(moving))
    ax.axhline(1, color="0.8", lw=1, ls="-")
    ax.semilogy(writes, fixed, "-", color=BLUE, label="the same scale for both keys")
    ax.semilogy(writes, moving, "--", color=RED, label="a scale that moves with the key")
    ax.set(xlabel="writes", ylabel="size of the memory", xlim=(0, writes[-1]), ylim=(1e-4, 1e5))
    legend_above(ax, 2)
    per_write = (moving[-1] / moving[-11]) ** 0.1
    words = (
        f"beta {beta:g}: with the moving scale every write leaves {(1 - a) ** 2:.2f} of its own squared error, and the "
        f"memory changes by the factor {per_write:.3f} a write in the end. With one fixed scale it shrinks."
    )
    return Picture(fig, words, "F09b")


def orders(etas, printed, apart, local) -> Picture:
    """F09c. Writing with the scale before its update (text) and after it (figure).

    printed: the paper's step size; apart: name -> ``[N]``: difference of the outputs, relative; local: name ->
    (``[N]``, ``[N]``): geometric mean of the residual ratio, text and figure.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.8), gridspec_kw={"wspace": 0.3})
    looks = ((BLUE, "-", "o"), (RED, "--", "s"))
    for (name, line), (color, dash, mark) in zip(apart.items(), looks, strict=True):
        text, figure = local[name]
        left.loglog(etas, line, dash, marker=mark, ms=6, mfc="none", color=color, label=name)
        right.semilogx(etas, figure / text, dash, marker=mark, ms=6, mfc="none", color=color)
    for ax in (left, right):
        ax.axvline(printed, color="0.6", lw=1, ls=":")
        ax.set(xlabel="eta; dotted: the paper's")
    left.set_title("outputs differ by", fontsize=11, y=1.13)
    right.set(ylim=(0, 1.05))
    right.set_title("ratio: the figure's over the text's", fontsize=11, y=1.13)
    legend_above(left, 2)
    fig.subplots_adjust(top=0.8)
    (name, line), *_ = apart.items()
    at = list(etas).index(printed)
    lowest = min((figure / text).min() for text, figure in local.values())
    words = (
        f"At the printed step size {printed:g} the outputs of the two orders differ by {line[at]:.1e} of their size "
        f"({name}), at most by {max(line.max() for line in apart.values()):.2g} in the picture; the residual ratio of "
        f"the figure's order is down to {lowest:.2g} of the text's."
    )
    return Picture(fig, words, "F09c")


def guards(sizes, shares) -> Picture:
    """F09d. What is left of the step of the scale when a constant is added to the ratio's denominator.

    sizes ``[N]``: lengths of the residual; shares: constant -> ``[N]``, in units of the closed form's step.
    """
    fig, ax = figure_axes()
    looks = ((BLUE, "-"), (RED, "--"), (GREEN, "-."))
    for (eps, share), (color, dash) in zip(shares.items(), looks, strict=True):
        label = "as printed" if eps == 0 else f"+ {eps:.0e}"
        ax.semilogx(sizes, share, dash, color=color, label=label)
    ax.set(xlabel="length of the residual", ylabel="share of the step", ylim=(-0.03, 1.08), yticks=(0, 0.5, 1))
    legend_above(ax, 3)
    largest = max(shares)
    half = sizes[int(np.argmax(shares[largest] >= 0.5))]
    words = (
        f"As printed, the ratio gives the same step at every size of the residual; with {largest:.0e} added to the "
        f"denominator half of the step is lost at a residual of {half:.1e}, and nearly all below a tenth of that."
    )
    return Picture(fig, words, "F09d")


def learning(eta, beta, d, ratio, hi) -> Picture:
    """F09e. How the scale moves along a text, and what the writes leave.

    d ``[heads, T, K]``: before each token; ratio ``[heads, T]``; hi: the upper bound.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6), gridspec_kw={"wspace": 0.28})
    T = d.shape[1]
    tokens = np.arange(0, T, 8)
    low, high = np.quantile(d[:, ::8], (0.05, 0.95), axis=(0, 2))
    mean = d.mean((0, 2))
    left.fill_between(tokens, low, high, color=BLUE, alpha=0.25, lw=0)
    left.plot(tokens, mean[::8], "-", color=BLUE)
    left.axhline(1 / beta if 1 / beta < hi else hi, color=GREEN, ls="--", lw=1.4)
    left.set(xlim=(0, T), ylim=(0.45, 2.1), xlabel="token; band: 90 % of channels", yticks=(0.5, 1, 1.5, 2))
    left.set_title("scale d; dashed: its goal", fontsize=11)
    bins = 16
    centres = (np.arange(bins) + 0.5) * (T // bins)
    line = geometric_mean(binned(ratio, bins), (0, 2))
    right.set(xlim=(0, T), yscale="log", ylim=(FLOOR, 2))  # first: a line on the floor alone has no range
    right.axhline((1 - beta) ** 2, color=RED, ls="--", lw=1.4)
    right.plot(centres, np.maximum(line, FLOOR), "-o", color=BLUE, ms=4)
    right.set(xlabel="token; dashed: plain delta rule")
    right.set_title("residual ratio", fontsize=11)
    below = line[-1] < FLOOR
    words = (
        f"eta {eta:g}, beta {beta:g}: after {T} tokens the mean scale is {mean[-1]:.3f}, the channels lie between "
        f"{d[:, -1].min():.3f} and {d[:, -1].max():.3f}. The residual ratio starts at {(1 - beta) ** 2:.3g} and ends "
        f"{'below 1e-8' if below else f'at {line[-1]:.3g}'}."
    )
    return Picture(fig, words, "F09e")


def tuned(gates, etas, plain, ratios, chosen) -> Picture:
    """F09f. The residual ratio by step size, for one learned number and for one learned number a channel.

    plain: ratio of the delta rule; ratios: name -> (``[N]`` where the step size was chosen, ``[N]`` elsewhere);
    chosen: name -> index.
    """
    fig, ax = figure_axes(figsize=(6.4, 3.8))
    ax.axhline(plain, color="0.5", ls=":", lw=1.6, label="delta rule")
    for (name, (tune, test)), color, mark in zip(ratios.items(), (GREEN, BLUE), "so", strict=True):
        ax.loglog(etas, np.maximum(tune, FLOOR), "--", color=color, lw=1)
        ax.loglog(etas, np.maximum(test, FLOOR), "-", marker=mark, ms=5, color=color, label=name)
        best = chosen[name]
        ax.plot(etas[best], max(test[best], FLOOR), mark, ms=13, mfc="none", mec=color)
    ax.set(xlabel="eta; dashed: the heads it is chosen on", ylabel="residual ratio")
    legend_above(ax, 3)
    results = " and ".join(f"{test[chosen[name]]:.2g} with {name}" for name, (_, test) in ratios.items())
    words = (
        f"Gates {gates}: the delta rule leaves {plain:.2g} of a squared error, and at the chosen steps it is {results}."
    )
    return Picture(fig, words, "F09f")


def unseen(etas, ratio, back, plain) -> Picture:
    """F09g. A smaller residual ratio against the error of reading all pairs back.

    ratio ``[N]``; back: name -> ``[N]``; plain: (ratio, error) of the delta rule.
    """
    fig, ax = figure_axes()
    ax.plot(*plain, "D", color=COLORS["black"], ms=8, label="delta rule")
    for (name, line), color, dash, mark in zip(back.items(), (BLUE, GREEN), ("-", "--"), "os", strict=True):
        ax.plot(ratio, line, dash, marker=mark, ms=6, mfc="none", color=color, label=name)
    ax.set(xlabel="residual ratio; along each line eta grows, from the right end", ylabel="error of reading back")
    legend_above(ax, 3)
    (first, line), *_ = back.items()
    at = int(np.argmin(ratio))
    words = (
        f"From the delta rule to eta {etas[at]:g} the residual ratio falls from {plain[0]:.3f} to {ratio[at]:.3f}, and "
        f"the error of reading all pairs back rises from {plain[1]:.3f} to {line[at]:.3f} with {first}."
    )
    return Picture(fig, words, "F09g")
