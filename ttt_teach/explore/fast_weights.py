"""The pictures of notebook 01. Each draws arrays that the notebook computed; only the words are made here."""

import math

import numpy as np

from ttt_teach.explore.picture import Picture
from ttt_teach.explore.style import COLORS, figure_axes

BLUE, RED, GREEN, GREY = COLORS["blue"], COLORS["vermilion"], COLORS["green"], "0.45"
REAL, RANDOM = COLORS["black"], COLORS["purple"]


def by_age(squares):
    """First ages 0, 1, 3, 7, ... of bins that double in width, and the root mean square in each; the rest is left out.

    squares ``[..., T]``: squared errors by position, the latest last.
    """
    T = squares.shape[-1]
    firsts = 2 ** np.arange(int(np.log2(T + 1))) - 1
    newest_first = squares[..., ::-1]
    return firsts, np.sqrt([newest_first[..., n : 2 * n + 1].mean() for n in firsts])


def truncated_exponential(degree, middle, degrees, errors, features) -> Picture:
    """F01a. Left the exponential and its series up to a degree, right what that makes of eight heads' outputs.

    middle: two scores between which most of them lie; degrees ``[N]``; errors ``[N, heads]``: of the outputs,
    relative; features ``[N]``: numbers in phi(k).
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6), gridspec_kw={"top": 0.8})
    scores = np.linspace(-9, 9, 91)
    series = sum(scores**n / math.factorial(n) for n in range(degree + 1))
    left.axvspan(*middle, color="0.9")
    left.semilogy(scores, np.exp(scores), "-", color=BLUE, label="exponential")
    left.semilogy(scores, series, "--", color=RED, label=f"series up to degree {degree}")
    left.set(xlabel="score; grey: where nine of ten lie", ylim=(1e-4, 1e4), xticks=(-8, -4, 0, 4, 8))
    left.set_title("weight of a pair", fontsize=11)
    at = list(degrees).index(degree)
    right.semilogy(degrees, errors, "-", color="0.75", lw=1)
    right.semilogy(np.full(errors.shape[1], degree), errors[at], "o", color=RED, ms=5)
    right.axhline(0.01, color=GREEN, ls=":", lw=1.2)
    right.set(xlabel="degree", ylim=(1e-4, 2), xlim=(-0.5, degrees[-1] + 0.5))
    right.set_title("error of the outputs, eight heads", fontsize=11)
    fig.legend(handles=left.lines, loc="upper center", ncols=2, frameon=False)
    words = (
        f"Degree {degree}: the outputs of the eight heads are off by {errors[at].min():.2g} to "
        f"{errors[at].max():.2g} of their size, with {features[at]:,} features of a key."
    )
    return Picture(fig, words, "F01a")


def decay(gamma, law, measured) -> Picture:
    """F01b. What a forget gate leaves of a pair, and how loud that is against the cross-talk of all others.

    law ``[ages]``: signal over noise; measured: name -> ``[T]``, by age.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6), gridspec_kw={"top": 0.8})
    ages = np.arange(len(law))
    left.plot(ages, gamma**ages, "-", color=BLUE)
    left.axvline(min(1 / (1 - gamma), 1e9), color=GREY, ls=":", lw=1.2)
    left.set(xlim=(0, ages[-1]), ylim=(0, 1.05), yticks=(0, 0.5, 1), xlabel="age; dotted: effective length")
    left.set_title("share left of a write", fontsize=11)
    right.axhline(1, color="0.8", lw=1, ls="-")
    right.semilogy(ages, law, ":", color=GREY, lw=2, label="the law")
    for (name, ratio), (color, mark) in zip(measured.items(), ((RANDOM, "o"), (REAL, "s")), strict=True):
        shown = ages[:: max(1, len(ages) // 16)]
        right.semilogy(shown, ratio[shown], mark, color=color, ms=4, label=name)
    right.set(xlim=(-1, ages[-1]), ylim=(1e-2, 1e2), xlabel="age")
    right.set_title("signal / noise of reading it", fontsize=11)
    fig.legend(*right.get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False)
    heard = {name: int(np.argmax(np.append(ratio, 0) < 1)) for name, ratio in measured.items()}
    words = (
        f"gamma {gamma:g}, effective length {1 / (1 - gamma):.3g} tokens: the signal is above the noise for the last "
        f"{' and the last '.join(f'{n} on {name}' for name, n in heard.items())}; the newest pair stands at "
        f"{' and '.join(f'{ratio[0]:.2g}' for ratio in measured.values())}."
    )
    return Picture(fig, words, "F01b")


def steps(beta, keys, squares) -> Picture:
    """F01c. What a write leaves of the error, by rule, and how well the pairs of a stream are read back after it.

    squares: rule -> ``[sets, T]``: squared errors in units of a value, ``keys`` the name of the stream. The first
    rule steps explicitly, the second implicitly.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6), gridspec_kw={"top": 0.8})
    x = np.linspace(0, 4.2, 85)
    looks = ((RED, "--", "^"), (BLUE, "-", "o"))
    left.axhline(0, color="0.8", lw=1, ls="-")
    left.axhspan(-1, 1, color="0.93")
    left.plot(x, np.exp(-x), ":", color=GREY, label="gradient flow")
    now = (1 - beta, 1 / (1 + beta))
    for law, here, (color, dash, mark) in zip((1 - x, 1 / (1 + x)), now, looks, strict=True):
        left.plot(x, law, dash, color=color)
        left.plot(beta, here, mark, color=color, ms=8)
    left.set(xlim=(0, 4.2), ylim=(-3.4, 1.2), xlabel="beta; keys have length 1", yticks=(-3, -2, -1, 0, 1))
    left.set_title("share left of the error", fontsize=11)
    right.axhline(1, color="0.8", lw=1, ls="-")
    overall = {}
    for (rule, square), (color, dash, mark) in zip(squares.items(), looks, strict=True):
        firsts, miss = by_age(square)
        overall[rule] = np.sqrt(square.mean())
        right.semilogy(np.clip(miss, 1e-2, 1e2), dash, color=color, marker=mark, ms=5, label=rule)
    right.set(ylim=(1e-2, 1.2e2), xticks=range(0, len(firsts), 2), xticklabels=firsts[::2])
    right.set(xlabel="age, from here to the next mark")
    right.set_title(f"error of reading back, {keys}", fontsize=11)
    fig.legend(
        *[a + b for a, b in zip(right.get_legend_handles_labels(), left.get_legend_handles_labels(), strict=True)],
        loc="upper center",
        ncols=3,
        frameon=False,
    )
    much = "more than a million"
    missed = " and ".join(
        f"{rule} by {miss:.3g}" if miss < 1e6 else f"{rule} by {much}" for rule, miss in overall.items()
    )
    words = (
        f"beta {beta:g}: a write leaves {now[0]:.3g} of the error with the delta rule and {now[1]:.3g} with Longhorn. "
        f"After all writes ({keys}) the reads miss, in units of a value: {missed}; 1 is silence."
    )
    return Picture(fig, words, "F01c")


def blocks(n, beta, sizes, errors, squares) -> Picture:
    """F01d. A proximal step that looks at n pairs at once, from one (Longhorn) to all (Mesa).

    sizes ``[N]``; errors ``[N, heads]``: of reading all pairs back; squares ``[heads, T]``: squared errors at n.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6), sharey=True, gridspec_kw={"top": 0.9, "wspace": 0.12})
    at = list(sizes).index(n)
    left.axhline(1, color="0.8", lw=1, ls="-")
    left.semilogx(sizes, errors, "-", color="0.7", lw=1, base=2)
    left.plot(np.full(errors.shape[1], n), errors[at], "o", color=GREEN, ms=5)
    shown = [1, 8, 32, 128, 512]
    left.set(ylim=(0, 1.9), xlabel="pairs looked at in one step", xticks=shown, xticklabels=shown)
    left.set_title("error of reading all pairs back", fontsize=11)
    left.minorticks_off()
    firsts, miss = by_age(squares)
    right.axhline(1, color="0.8", lw=1, ls="-")
    right.plot(np.clip(miss, 0, 1.85), "-o", color=GREEN, ms=5)
    right.set(xticks=range(0, len(firsts), 2), xticklabels=firsts[::2], yticks=(0, 0.5, 1, 1.5))
    right.set(xlabel="age, from here to the next mark")
    right.set_title("by age, mean of eight heads", fontsize=11)
    words = (
        f"beta {beta:g}, {n} {'pair' if n == 1 else 'pairs'} in one step: the eight heads read their pairs back with "
        f"errors from {errors[at].min():.3f} to {errors[at].max():.3f}; the newest pair with {miss[0]:.3f}, those of "
        f"age {firsts[-1]} and more with {miss[-1]:.3f}."
    )
    return Picture(fig, words, "F01d")
