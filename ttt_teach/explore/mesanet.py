"""The pictures of notebook 07. Each draws arrays that the notebook computed; only the words are made here."""

import numpy as np

from ttt_teach.explore.picture import Picture
from ttt_teach.explore.style import COLORS, figure_axes, legend_above

MARKS = ("-", "--", "-.", ":")


def costs(tokens, state, flops, equal, width, steps) -> Picture:
    """F07a. What a head keeps after t tokens, and what token t costs.

    tokens ``[N]``; state, flops: name -> ``[N]``, "Mesa" among them; equal: where attention reaches Mesa in either.
    """
    fig, axes = figure_axes(1, 2)
    for ax, numbers, t, label in zip(axes, (state, flops), equal, ("numbers kept", "FLOPs of token t"), strict=True):
        for name, line in numbers.items():
            ax.loglog(tokens, line, label=name)
        ax.plot(t, numbers["Mesa"][0], "o", color=COLORS["black"], ms=6, zorder=3)
        ax.set(xlabel="tokens read, t", ylabel=f"{label}, one head", ylim=(1e2, 1e9))
        ax.set(xticks=[1, 100, 10_000], yticks=[1e2, 1e4, 1e6, 1e8])
    legend_above(axes[0], 4)
    words = (
        f"Heads of width {width}, {steps} solver steps: after token {equal[0]:.0f} attention keeps more than Mesa, "
        f"and after token {equal[1]:.0f} it also computes more."
    )
    return Picture(fig, words, "F07a")


def accuracy(lengths, right, trained, step) -> Picture:
    """F07b. How often the parity of the first t bits is right, after so many steps of training.

    lengths ``[T]``; right: name -> ``[T]``, shares; trained: the longest length seen in training.
    """
    fig, ax = figure_axes()
    ax.axvspan(0, trained, color="0.93", lw=0)
    ax.axhline(0.5, color="0.7", lw=1, ls="-")
    for (name, share), mark in zip(right.items(), MARKS, strict=False):
        ax.plot(lengths, share, mark, lw=1.8, label=name)
    ax.set(xlim=(0, lengths[-1]), ylim=(0.35, 1.05), yticks=[0.5, 0.75, 1])
    ax.set(xlabel=f"length of the bit string (grey: seen in training, up to {trained})", ylabel="share right")
    legend_above(ax, 2)
    seen = {name: (share[trained - 1], share[trained:].mean()) for name, share in right.items()}
    said = "; ".join(f"{name} {a:.0%} at length {trained} and {b:.1%} beyond" for name, (a, b) in seen.items())
    return Picture(fig, f"After {step} steps of training: {said}.", "F07b")


def ones(lengths, margins) -> Picture:
    """F07c. The margin for "odd" on a string of ones, whose parity alternates.

    lengths ``[T]``; margins: name -> ``[T]``, logit of "odd" minus logit of "even".
    """
    fig, axes = figure_axes(1, len(margins), sharey=True)
    for ax, (name, margin) in zip(axes, margins.items(), strict=True):
        ax.axhline(0, color="0.8", lw=1, ls="-")
        for rest, word, mark, color in ((1, "odd", "o", COLORS["blue"]), (0, "even", "x", COLORS["vermilion"])):
            some = lengths % 2 == rest
            ax.plot(lengths[some], margin[some], mark, color=color, ms=3, label=f"{word} number of ones")
        ax.set(xlabel=f"ones read, {name}")
    axes[0].set(ylabel="margin for odd")
    legend_above(axes[0], 2)
    moved = [f"{name} {np.abs(np.diff(margin))[-1]:.2g}" for name, margin in margins.items()]
    words = (
        f"Reading ones only, where the answer changes with every bit: the last of {lengths[-1]} ones moves the margin "
        f"of {' and of '.join(moved)}."
    )
    return Picture(fig, words, "F07c")


def towards_gla(lam, apart, at) -> Picture:
    """F07d. Relative distance of the Mesa read from G'q / lam, against lam.

    lam ``[N]``; apart: name -> ``[N]``; at: the lam whose distances the words say, one of ``lam``.
    """
    fig, ax = figure_axes()
    for name, distance in apart.items():
        ax.loglog(lam, distance, marker="o", ms=4, label=name)
    first = next(iter(apart.values()))
    ax.loglog(lam, first[-1] * lam[-1] / lam, "-", color="0.6", lw=4, alpha=0.5, zorder=0, label="1 / λ")
    ax.axvline(at, color="0.8", lw=1, ls="-")
    ax.set(xlabel="λ, the same for all channels", ylabel="distance from the GLA read", ylim=(1e-6, 3))
    legend_above(ax, 3)
    here = int(np.argmin(np.abs(np.asarray(lam) - at)))
    said = ", ".join(f"{name} {distance[here]:.1%}" for name, distance in apart.items())
    return Picture(fig, f"At λ = {at:g} the distance from the read of GLA is: {said}.", "F07d")
