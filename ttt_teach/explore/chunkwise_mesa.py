"""The pictures of notebook 05. Each draws arrays that the notebook computed; only the words are made here."""

import numpy as np
from matplotlib.ticker import NullLocator

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above

BLUE, RED, GREEN = COLORS["blue"], COLORS["vermilion"], COLORS["green"]


def meetings(zeta, chunk) -> Picture:
    """F05a. Which writes a read finds inside its own chunk, and which through the state before it.

    zeta ``[T, T]``: what is left at the read (row) of the write (column), 0 for later writes.
    """
    T = len(zeta)
    own = np.arange(T) // chunk
    inside = own[:, None] == own[None]
    fig, ax = figure_axes(figsize=(6.4, 4.6))
    for some, cmap in ((inside, "Blues"), (~inside, "Oranges")):
        seen = np.where(some & np.tri(T, dtype=bool), zeta, np.nan)
        ax.imshow(seen, cmap=cmap, vmin=-0.4, vmax=1.1, interpolation="nearest")
    for c in range(chunk, T, chunk):
        ax.plot([-0.5, c - 0.5], [c - 0.5, c - 0.5], "-", color=COLORS["black"], lw=0.8)
    ax.set(xlabel="token that wrote", ylabel="token that reads", xticks=range(0, T, 8), yticks=range(0, T, 8))
    ax.text(0.97, 0.93, "blue: inside the chunk", transform=ax.transAxes, ha="right", color=BLUE)
    ax.text(0.97, 0.86, "orange: through the state", transform=ax.transAxes, ha="right", color=RED)
    fig.subplots_adjust(top=0.97)
    met, pairs = int(np.sum(inside & np.tri(T, dtype=bool))), T * (T + 1) // 2
    states = -(-T // chunk) - 1
    words = (
        f"Chunks of {plural(chunk, 'token')}: {met} of {pairs} pairs meet inside a chunk, the other {pairs - met} "
        f"through {plural(states, 'state')} kept at the boundaries."
    )
    return Picture(fig, words, "F05a")


def missing_decay(gammas, once, twice, by_gamma, gamma, chunk) -> Picture:
    """F05b. Left the error of every token without zeta_tc, right its mean for every decay.

    gammas ``[N]``; once, twice ``[T]``: relative errors at this gamma and chunk, with zeta_tc missing in the output,
    and in the solver too; by_gamma: chunk -> (once ``[N]``, twice ``[N]``).
    """
    fig, (left, right) = figure_axes(1, 2, width_ratios=[1.5, 1])
    T = len(once)
    for c in range(chunk, T, chunk):
        left.axvline(c, color="0.85", lw=0.8, ls="-")
    left.plot(once, "-", color=RED, lw=1.2, label="missing in the output")
    left.plot(twice, "--", color=BLUE, lw=1.2, label="and in the solver")
    top = max(1e-3, 1.08 * np.max(once))
    left.set(xlim=(0, T), ylim=(0, top), xlabel="token", ylabel="error / size of output")
    legend_above(left, 2)
    at = np.arange(len(gammas))
    for size, (a, b) in by_gamma.items():
        mine = size == chunk
        right.plot(at, a, "-", color=RED if mine else "0.8", lw=1.6 if mine else 0.9, zorder=3 if mine else 1)
        if mine:
            right.plot(at, b, "--", color=BLUE, zorder=3)
            right.plot(list(gammas).index(gamma), a[list(gammas).index(gamma)], "o", color=RED, zorder=4)
    labels = [f"{g:.4f}".rstrip("0").rstrip(".") for g in gammas]
    right.set(yscale="symlog", ylim=(0, 12), xlabel="gamma")
    right.set_yscale("symlog", linthresh=1e-3)
    right.set(yticks=[0, 1e-2, 1, 10], yticklabels=["0", "0.01", "1", "10"])
    right.set_xticks(at, labels, rotation=60)
    fig.subplots_adjust(bottom=0.24)
    mean, both = (by_gamma[chunk][i][list(gammas).index(gamma)] for i in (0, 1))
    words = (
        f"gamma = {gamma:g}, chunks of {chunk}: without zeta the output is off by {mean:.2g} of its size, "
        f"by {both:.2g} if the solver lacks it too."
    )
    return Picture(fig, words, "F05b")


def gate_errors(tokens, errors, says) -> Picture:
    """F05c. Relative error of zeta between two neighbours, far into a sequence.

    tokens ``[N]``; errors: name -> ``[N]``, NaN where the way gave NaN; says: what the gates are, to open the words.
    """
    fig, ax = figure_axes()
    ends, lost = {}, {}
    for name, error in errors.items():
        seen = np.isfinite(error)
        (line,) = ax.loglog(tokens[seen], np.maximum(error[seen], 1e-9), label=name, lw=1.4)
        ends[name] = error[seen][-1]
        if not seen.all():
            lost[name] = tokens[~seen][0]
            ax.plot(tokens[seen][-1], ends[name], "X", ms=9, color=line.get_color())
    ax.set(xlabel="token", ylabel="relative error of one gate", ylim=(1e-8, 3), yticks=[1e-8, 1e-6, 1e-4, 1e-2, 1])
    legend_above(ax, 3)
    gone = "".join(f"the {name} is NaN from token {t} on; " for name, t in lost.items())
    left = ", ".join(f"the {name} is off by {end:.1g}" for name, end in ends.items() if name not in lost)
    return Picture(fig, f"{says}, float32: {gone}at token {tokens[-1]} {left}.", "F05c")


def cost(sizes, arithmetic, waiting, chunk, wait) -> Picture:
    """F05d. What a solver round costs a token, in FLOPs: those it makes, and those that could be made while it waits.

    sizes ``[N]``: 1, 2, 3, ... tokens in a chunk; arithmetic, waiting ``[N]``; chunk: one of the sizes; wait: FLOPs
    missed in one wait.
    """
    fig, ax = figure_axes()
    total = arithmetic + waiting
    i, best = list(sizes).index(chunk), np.argmin(total)
    at = np.unique(np.geomspace(1, len(sizes), 60).astype(int)) - 1  # enough to draw
    for line, dashes, color, label in (
        (arithmetic, "--", BLUE, "arithmetic"),
        (waiting, ":", RED, "waiting"),
        (total, "-", COLORS["black"], "both"),
    ):
        ax.loglog(sizes[at], line[at], dashes, color=color, label=label)
    ax.plot(chunk, total[i], "o", color=COLORS["black"], ms=8)
    ax.plot(sizes[best], total[best], "*", color=GREEN, ms=13, label="least")
    ax.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    ax.set(xlabel="tokens in a chunk", ylabel="FLOPs a token and round", ylim=(1e4, 3e7))
    ax.xaxis.set_minor_locator(NullLocator())
    legend_above(ax, 4)
    words = (
        f"C = {chunk}, a wait worth {wait:.0e} FLOPs: {arithmetic[i] / arithmetic[0]:.2f} times the arithmetic of "
        f"chunks of 1, {total[i] / total[best]:.2f} times the least total, which is at C = {sizes[best]}."
    )
    return Picture(fig, words, "F05d")


def valley(chunks, times, fits) -> Picture:
    """F05f. Measured times against the chunk. times: heads -> ms ``[N]``; fits: heads -> (a, b, d) of a/C + b + d C."""
    fig, ax = figure_axes()
    at = np.geomspace(chunks[0], chunks[-1], 60)
    for (heads, ms), color, mark in zip(times.items(), (BLUE, RED), "os", strict=False):
        a, b, d = fits[heads]
        ax.loglog(at, a / at + b + d * at, "-", color=color, lw=1, label=f"a/C + b + dC, {plural(heads, 'head')}")
        ax.plot(chunks, ms, mark, color=color, ms=6, label=f"measured, {plural(heads, 'head')}")
    ax.set_xticks(chunks, [f"{C:.0f}" for C in chunks])
    ax.set_yticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.set(xlabel="tokens in a chunk", ylabel="milliseconds")
    legend_above(ax, 2)
    best = [f"{ms.min():.1f} ms at C = {chunks[np.argmin(ms)]:.0f} with {plural(h, 'head')}" for h, ms in times.items()]
    return Picture(fig, f"The least times are {' and '.join(best)}.", "F05f")


def memory(lengths, by_length, chunks, by_chunk, at_length, at_chunk) -> Picture:
    """F05e. Numbers kept for the gradient. by_length, by_chunk: name of the form -> numbers, ``[N]`` each."""
    fig, (left, right) = figure_axes(1, 2)
    for name, kept in by_length.items():
        left.loglog(lengths, kept, label=name)
    for kept in by_chunk.values():
        right.loglog(chunks, kept)
    left.set(xlabel=f"tokens, C = {at_chunk}", ylabel="numbers kept")
    right.set(xlabel=f"tokens in a chunk, T = {at_length}")
    right.set(ylim=left.get_ylim())
    left.set_xticks(lengths, [str(x) for x in lengths])
    right.set_xticks(chunks, [str(x) for x in chunks])
    for ax in (left, right):
        ax.xaxis.set_minor_locator(NullLocator())
    legend_above(left, 2)
    last = {name: kept[-1] for name, kept in by_length.items()}
    most, least = max(last, key=last.get), min(last, key=last.get)
    words = (
        f"At {lengths[-1]} tokens {most} keeps {last[most] / 1e6:.1f} million numbers, {least} "
        f"{last[least] / 1e6:.2f} million: {last[most] / last[least]:.0f} times fewer."
    )
    return Picture(fig, words, "F05e")
