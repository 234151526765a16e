"""The pictures of notebook 11. Each draws arrays that the notebook computed; only the words are made here."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.ticker import NullLocator

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above

BLUE, RED, GREEN, PURPLE = (COLORS[name] for name in ("blue", "vermilion", "green", "purple"))
MARKS = "osD^v"


def misplaced(errors, tokens, means, chunks, place, chunk) -> Picture:
    """F11a. Left the error of each token with the wrong key in one place, right its mean for every chunk and place.

    errors ``[T]`` at tokens ``[T]``; means: place -> ``[len(chunks)]``; place and chunk are those of errors.
    """
    fig, (left, right) = figure_axes(1, 2, width_ratios=[1.3, 1])
    for c in range(chunk, tokens[-1] + 1, chunk) if chunk >= 16 else ():
        left.axvline(c, color="0.85", lw=0.8, ls="-")
    left.plot(tokens[::4], errors[::4], "-", color=RED, lw=1.2)
    left.set(xlabel="token", ylabel="error / size of output", ylim=(0, max(1e-3, 1.1 * errors.max())))
    at = np.arange(len(chunks))
    for mark, (name, mean) in zip(MARKS, means.items(), strict=False):
        mine = name == place
        right.plot(
            at, mean, "-" + mark, color=RED if mine else "0.45", lw=2 if mine else 0.8, ms=6 if mine else 4, label=name,
            zorder=3 if mine else 1,
        )  # fmt: skip
    right.plot(list(chunks).index(chunk), means[place][list(chunks).index(chunk)], "o", color=RED, ms=11, mfc="none")
    right.set(xlabel="tokens in a chunk", ylim=(0, 1.1 * max(mean.max() for mean in means.values())))
    right.set_xticks(at, [str(c) for c in chunks])
    handles, labels = right.get_legend_handles_labels()
    left.legend(handles, labels, loc="lower left", bbox_to_anchor=(-0.05, 1), ncols=3, frameon=False, fontsize=9)
    fig.subplots_adjust(top=0.83)
    mean = means[place][list(chunks).index(chunk)]
    first = "zero" if errors[tokens < chunk].max(initial=0) < 1e-12 else "not zero"
    words = (
        f"{place}, chunks of {plural(chunk, 'token')}: the output is off by {100 * mean:.2g} % of its size; "
        f"in the first chunk the error is {first}."
    )
    return Picture(fig, words, "F11a")


def clips(tokens, scales, redone, bounds, eta, says) -> Picture:
    """F11b. Left some scales of one head, right which chunks of which heads had to be done again.

    scales ``[channels, tokens]``; redone ``[heads, chunks]``, bool; bounds (lo, hi); says: whose scales.
    """
    fig, (left, right) = figure_axes(1, 2, width_ratios=[1.3, 1])
    for bound in bounds:
        if np.isfinite(bound):
            left.axhline(bound, color="0.6", lw=0.8, ls="-")
    left.plot(tokens, scales.T, "-", color=BLUE, lw=1)
    left.set(xlabel="token", ylabel="scale d", ylim=(0.4, max(2.2, 1.05 * scales.max())), title=says)
    left.title.set_fontsize(10)
    right.imshow(redone, cmap=ListedColormap(["#dce8f2", RED]), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    heads, chunks = redone.shape
    right.set(xlabel="chunk", ylabel="head", yticks=range(heads), xticks=range(chunks), title="done again: orange-red")
    right.title.set_fontsize(10)
    together = redone.any(0).mean()
    words = (
        f"eta = {eta:g}, upper bound {bounds[1]:g}: {redone.sum()} of {redone.size} chunks had to be done again, "
        f"{100 * redone.mean():.1f} %; at {100 * together:.0f} % of the positions some head had to; "
        f"the largest scale drawn ends at {scales[:, -1].max():.3f}."
    )
    return Picture(fig, words, "F11b")


def forgetting(tokens, low, middle, high, retentions, shares, retention) -> Picture:
    """F11c. Left least, median and largest scale along a long text, right the share of chunks done again.

    low, middle, high ``[N]`` over all heads and channels; shares ``[len(retentions)]``.
    """
    fig, (left, right) = figure_axes(1, 2, width_ratios=[1.3, 1])
    left.fill_between(tokens, low, high, color=COLORS["sky"], alpha=0.4, lw=0)
    left.plot(tokens, middle, "-", color=BLUE)
    left.axhline(0.5, color="0.6", lw=0.8, ls="-")
    left.set(xlabel="token", ylabel="scale d: all, and median", ylim=(0.4, 1.35))
    at, mine = np.arange(len(retentions)), list(retentions).index(retention)
    right.bar(at, 100 * shares, color=[RED if n == mine else "0.75" for n in at])
    right.set_xticks(at, [f"{r:g}" for r in retentions], rotation=45)
    right.set(xlabel="retention r", ylabel="chunks done again, %", ylim=(0, 105))
    fig.subplots_adjust(bottom=0.22, wspace=0.35)
    bottom = tokens[np.argmax(high <= 0.5)] if (high <= 0.5).any() else None
    when = (
        f"every scale is on the lower bound at token {bottom}"
        if bottom
        else f"the largest scale ends at {high[-1]:.2f}"
    )
    words = f"r = {retention:g}: {100 * shares[mine]:.0f} % of the chunks had to be done again, and {when}."
    return Picture(fig, words, "F11c")


def two_updates(reads, aware, blind, beta, blocks, ratios) -> Picture:
    """F11d. Left how far each update moves d for what the scaled key reads, right the error left on real keys.

    reads ``[N]``: <d, s>; aware, blind ``[N]``: the factor of s; blocks ``[M]``: first tokens; ratios: name -> ``[M]``.
    """
    fig, (left, right) = figure_axes(1, 2)
    opposite = aware * blind <= 0
    left.fill_between(reads, -1.2, 1.2, where=opposite, color="0.9", lw=0)
    left.axhline(0, color="0.6", lw=0.8, ls="-")
    left.plot(reads, aware, "-", color=BLUE, label="beta-aware")
    left.plot(reads, blind, "--", color=RED, label="1.3B: as if beta were 1")
    left.set(xlabel="<d, s>", ylabel="push along s, in eta", ylim=(-1.05, 0.6), xlim=(reads[0], reads[-1]))
    legend_above(left, 1)
    for (name, ratio), line, color in zip(ratios.items(), ("-", "--", ":"), (BLUE, RED, "0.2"), strict=True):
        right.plot(blocks, ratio, line, color=color, label=name, lw=2 if line == ":" else 1.5)
    right.set(xlabel="token", ylabel="error left, geometric mean", ylim=(0, None))
    legend_above(right, 1)
    fig.subplots_adjust(top=0.72, wspace=0.36)
    ends = ", ".join(f"{name} {ratio[-1]:.3f}" for name, ratio in ratios.items())
    words = f"beta = {beta:g}: one update aims at <d, s> = {1 / beta:.3g}, the other at 1; left at the end: {ends}."
    return Picture(fig, words, "F11d")


def cost(chunks, parts, chunk, width, calls) -> Picture:
    """F11e. FLOPs of a token by part against the chunk. parts: name -> ``[N]``; calls: in a row."""
    fig, ax = figure_axes()
    total = sum(parts.values())
    for (name, flops), line, color in zip(parts.items(), ("-", "--", "-."), (BLUE, RED, GREEN), strict=True):
        ax.loglog(chunks, flops, line, color=color, label=name)
    ax.loglog(chunks, total, ":", color=COLORS["black"], label="all", lw=2)
    i = list(chunks).index(chunk)
    ax.plot(chunk, total[i], "o", color=COLORS["black"], ms=8)
    ax.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlabel="tokens in a chunk", ylabel="FLOPs a token", ylim=(0.5, 3e6))
    legend_above(ax, 4)
    shares = ", ".join(f"{name} {100 * flops[i] / total[i]:.1f} %" for name, flops in parts.items())
    words = (
        f"C = {chunk}, width {width}: {total[i]:,.0f} FLOPs a token ({shares}), and the sweep of 2048 "
        f"tokens has {calls:,} calls in a row."
    )
    return Picture(fig, words, "F11e")


def times(measured, date) -> Picture:
    """F11f. Milliseconds of the rules in bench/results. measured: rule -> {"output": (recurrent, chunk), ...}."""
    fig, axes = figure_axes(1, 2)
    for ax, what in zip(axes, ("output", "gradient"), strict=True):
        at = np.arange(len(measured))
        for n, (form, color, hatch) in enumerate((("token by token", "0.6", "//"), ("in chunks", BLUE, ""))):
            ms = [each[what][n] for each in measured.values()]
            ax.bar(at + 0.4 * (n - 0.5), ms, 0.38, color=color, hatch=hatch, edgecolor="white", label=form)
        ax.set_xticks(at, list(measured))
        ax.set(xlabel=what, ylabel="milliseconds")
    legend_above(axes[0], 2)
    fig.subplots_adjust(wspace=0.36)
    o = measured["osdn"]
    words = (
        f"Measured on {date}: osdn's output takes {o['output'][0]:g} ms token by token and {o['output'][1]:g} in "
        f"chunks, its gradient {o['gradient'][0]:g} and {o['gradient'][1]:g}."
    )
    return Picture(fig, words, "F11f")
