"""The pictures of notebook 15. Each draws numbers that the notebook computed; only the words are made here."""

import numpy as np
from matplotlib.ticker import NullLocator

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above

BLUE, RED, GREEN, PURPLE, GREY = (*(COLORS[name] for name in ("blue", "vermilion", "green", "purple")), "0.45")


def states(tokens, width, fixed, cache, window) -> Picture:
    """F15a. Numbers that a layer of this width keeps after so many tokens.

    fixed: layer -> numbers, whatever the tokens; cache, window: of attention to all tokens and to the last ones.
    """
    fig, ax = figure_axes(figsize=(7.2, 3.4))
    fig.subplots_adjust(left=0.34, right=0.93, top=0.97, bottom=0.16)
    bars = {"attention to all tokens": cache, "attention to a window": window} | fixed
    at = np.arange(len(bars))[::-1]
    ax.barh(at, list(bars.values()), 0.62, color=[RED, RED, *[BLUE] * len(fixed)])
    for y, numbers in zip(at, bars.values(), strict=True):
        ax.annotate(f"{numbers / 1e6:.2f}", (numbers, y), (4, 0), textcoords="offset points", va="center", fontsize=9)
    ax.set(
        xscale="log",
        xlim=(1e5, 6e8),
        yticks=at,
        yticklabels=bars,
        xlabel="numbers kept by a layer; beside a bar: in millions",
    )
    ax.xaxis.set_minor_locator(NullLocator())
    below = sum(cache > numbers for numbers in fixed.values())
    words = (
        f"After {plural(tokens, 'token')} a layer of width {width} keeps a cache of {cache / 1e6:.2f} million numbers: "
        f"more than {below} of the {len(fixed)} blue bars, which do not grow."
    )
    return Picture(fig, words, "F15a")


def late(shards, data, counts, errors, cosines, right, wrong) -> Picture:
    """F15b. What it does to a step if each shard of a chunk has its own Muon and the average is taken.

    errors, cosines: tokens -> one number a count; right, wrong: singular values of one matrix's step, descending.
    """
    fig, (left, ax) = figure_axes(1, 2, figsize=(7.2, 3.6), gridspec_kw={"top": 0.78, "wspace": 0.28})
    place = np.arange(1, len(right) + 1)
    left.plot(place, right, "-", color=BLUE, label="added up, then Muon")
    left.plot(place, wrong, "--", color=RED, label="Muon, then averaged")
    left.set(ylim=(0, 1.25), xlim=(0, len(right) + 1), xlabel="singular value of the step, by size")
    left.set_title(f"size, {data}", fontsize=11)
    ax.axhline(0, color="0.8", lw=1, ls="-")
    for (name, error), color, mark, dash in zip(errors.items(), (GREEN, PURPLE), "os", ("-", "--"), strict=True):
        ax.semilogx(counts, error, dash, color=color, marker=mark, ms=5, base=2, label=name)
    at = list(counts).index(shards)
    ax.plot(shards, errors[data][at], "o", ms=12, mfc="none", mec="black")
    ax.set(xticks=counts, xticklabels=counts, ylim=(-0.04, 1), xlabel="shards of a chunk")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_title("error of the step", fontsize=11)
    for axes in (left, ax):
        axes.legend(loc="lower left", bbox_to_anchor=(-0.04, 1.1), ncols=1, frameon=False, fontsize=9)
    words = (
        f"{plural(shards, 'shard').capitalize()}, {data}: averaging after Muon is off by {errors[data][at]:.0%} of the "
        f"step, its cosine with the right step is {cosines[data][at]:.2f}, and the singular values of one matrix lie "
        f"between {wrong[-1]:.2f} and {wrong[0]:.2f}."
    )
    return Picture(fig, words, "F15b")


def links(devices, link, chunks, by_tokens, by_heads, muon, hidden, cross, models) -> Picture:
    """F15c. Time to send, and for the Muon that all devices repeat, over the time of a device's products.

    chunks ``[N]``: tokens; by_tokens, muon ``[N]``, by_heads one number; hidden: tokens from which the read hides the
    all-reduce; cross: tokens at which both splits send as much; models: name -> tokens of its chunk.
    """
    fig, ax = figure_axes(figsize=(7.2, 3.8))
    fig.subplots_adjust(bottom=0.15, left=0.11)
    ax.axhline(1, color="0.75", lw=1, ls="-")
    for row, (name, tokens) in enumerate(models.items()):
        ax.axvline(tokens, color=GREY, lw=1, ls=":")
        ax.annotate(name, (tokens, 2e-3), (3, 14 * row), textcoords="offset points", fontsize=9, color="0.3")
    ax.loglog(chunks, by_tokens, "-", color=BLUE, label="tokens split: all-reduce")
    ax.loglog(chunks, np.full(len(chunks), by_heads), "--", color=RED, label="heads split: all-to-all")
    ax.loglog(chunks, muon, "-.", color=GREEN, label="tokens split: Muon repeated")
    ax.set(
        xlim=(chunks[0], chunks[-1]), ylim=(1e-3, 1e4), xlabel="tokens in a chunk", ylabel="time / time of the products"
    )
    ax.plot(hidden, 1 / 3, "o", ms=9, mfc="none", mec="black", label="as long as the read")  # a third of the products
    legend_above(ax, 2)
    words = (
        f"{devices} devices, links of {link} GB/s: the read of a chunk takes as long as its all-reduce from "
        f"{hidden:,.0f} tokens on; splitting heads sends less up to {cross:,.0f} tokens."
    )
    return Picture(fig, words, "F15c")
