"""The pictures of notebook 03. Each draws arrays that the notebook computed; only the words are made here."""

import numpy as np

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above

BLUE, RED, GREEN = COLORS["blue"], COLORS["vermilion"], COLORS["green"]


def gate_picture(beta, weighed, scaled, angle, lam) -> Picture:
    """F03a. What is read under the old key, against the input gate of the new pair.

    beta, weighed, scaled ``[N]``: gates from 0 to 1; reads if the gate weighs the pair, if it scales the value alone.
    """
    fig, ax = figure_axes()
    ax.axhline(1, color="0.8", lw=1, ls="-")
    ax.plot(beta, scaled, "--", color=RED, label="the gate scales the value alone")
    ax.plot(beta, weighed, "-", color=BLUE, label="the gate weighs the pair (Mesa)")
    for reads, mark, color in ((scaled, "s", RED), (weighed, "o", BLUE)):
        ax.plot(beta[:1], reads[:1], mark, color=color, ms=7)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.05, 1.05), yticks=[0, 0.5, 1])
    ax.set(xlabel="input gate of the new pair", ylabel="read under the old key")
    legend_above(ax, 2)
    words = (
        f"Keys {angle:g} degrees apart, lam = {lam:g}: with the gate closed the weight reads {weighed[0]:.3f} of the "
        f"old value and the scaled value {scaled[0]:.3f}; with the gate open both read {_plain(weighed[-1])}."
    )
    return Picture(fig, words, "F03a")


def shares_picture(mu, gamma, lam, head) -> Picture:
    """F03b. The share of the unregularised regression that survives in every direction.

    mu ``[D]`` ascending: the eigenvalues of H.
    """
    share = mu[::-1] / (mu[::-1] + lam)
    number = np.arange(1, len(mu) + 1)
    fig, ax = figure_axes()
    ax.axhline(0.5, color="0.8", lw=1, ls="-")
    ax.vlines(number, 0, share, color=BLUE, lw=3)
    ax.plot(number, share, "o", color=BLUE, ms=5, label="share")
    ax.set(xlim=(0, len(mu) + 1), ylim=(0, 1.05), yticks=[0, 0.5, 1])
    ax.set(xlabel="direction, most visited first", ylabel="share kept, μ / (μ + λ)")
    words = (
        f"{head}, gamma = {gamma:g}, lam = {lam:g}: the shares of {len(mu)} directions add up to {share.sum():.2f}; "
        f"{_count(int(np.sum(share > 0.5)), 'direction')} kept by more than half, the least visited to {share[-1]:.2g}."
    )
    return Picture(fig, words, "F03b")


def decayed_picture(distance, lam) -> Picture:
    """F03c. How far the regression with a decayed regulariser reads from the one whose regulariser stays.

    distance: gamma -> ``[T]``, relative to the read, token by token; some 80 tokens of them are drawn.
    """
    fig, ax = figure_axes()
    ax.axhline(1, color="0.8", lw=1, ls="-")
    for gamma, line in distance.items():
        token = np.unique(np.geomspace(1, len(line), 100).astype(int))
        ax.loglog(token, line[token - 1], label=f"gamma {gamma:g}")
    ax.set(ylim=(1e-4, 100), yticks=[1e-4, 1e-2, 1, 100], xlabel="token", ylabel="distance / size of the read")
    legend_above(ax, 3)
    ends = ", ".join(f"{np.median(line[-50:]):.2g} at gamma {gamma:g}" for gamma, line in distance.items())
    words = (
        f"lam = {lam:g}, median of the heads: over the last 50 of {len(line)} tokens the reads part by {ends}, in "
        "units of what Mesa reads."
    )
    return Picture(fig, words, "F03c")


def blow_up(tokens, largest, law, errors, gamma, keys) -> Picture:
    """F03d. Recursive least squares in float32: left the largest entry of P, right the errors of what is read.

    tokens ``[N]``; largest ``[N]``, not finite once it has overflowed; law ``[N]``: 1 / (zeta lam); errors: name ->
    ``[N]``, relative, NaN where they cannot be told.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6))
    finite = np.isfinite(largest)
    left.semilogy(tokens, law, "--", color="0.7", lw=4, label="if never visited")
    left.semilogy(tokens[finite], largest[finite], "-", color=BLUE, label="largest entry")
    left.set(xlabel="token", ylabel="entries of P", ylim=(1e-2, 1e40), yticks=[1, 1e10, 1e20, 1e30])
    for (name, line), look in zip(errors.items(), (("-", RED), ("-.", GREEN), (":", "black")), strict=True):
        right.semilogy(tokens, np.clip(line, 1e-8, 1e3), look[0], color=look[1], label=name)
    right.axhline(1, color="0.8", lw=1, ls="-")
    right.set(xlabel="token", ylabel="error / size of the read", ylim=(1e-8, 1e3), yticks=[1e-8, 1e-4, 1])
    for ax in (left, right):
        ax.set(xlim=(0, tokens[-1]))
        legend_above(ax, 1)
    name, line = next(iter(errors.items()))
    wrong = np.flatnonzero(line > 0.1)
    size = (
        f"the largest entry of P is {largest[-1]:.1e}"
        if finite[-1]
        else f"P is no number from token {tokens[~finite][0]} on"
    )
    verdict = (
        f"{name} reads wrong by a tenth at token {tokens[wrong[0]]}, the first of those drawn"
        if len(wrong)
        else f"{name} is never wrong by more than {np.nanmax(line):.1e}"
    )
    return Picture(fig, f"{keys}, gamma = {gamma:g}: {verdict}; after {tokens[-1]} tokens {size}.", "F03d")


def _plain(x):
    """Three decimals, and no minus before a zero."""
    return f"{round(x, 3) + 0.0:.3f}"


def _count(n, noun):
    return f"{plural(n, noun)} {'is' if n == 1 else 'are'}"
