"""The pictures of notebook 12: rates of products under a roofline. Each draws numbers that the notebook has."""

import numpy as np

from ttt_teach.explore.picture import Picture
from ttt_teach.explore.style import COLORS, figure_axes, legend_above
from ttt_teach.theory.intensity import arithmetic_intensity, roof, tokens_needed

BLUE, RED, GREEN, PURPLE, GREY = *(COLORS[c] for c in ("blue", "vermilion", "green", "purple")), "0.6"
WIDTH_STYLES = ((BLUE, "o", "-"), (RED, "s", "--"), (GREEN, "^", "-."), (PURPLE, "D", ":"))


def rate(machine, b, h) -> float:
    """What was measured for b tokens of width h, FLOP/s."""
    return machine["rates"][str(h)][machine["tokens"].index(b)]


def under_the_roof(machine, b, h) -> Picture:
    """F12a. All products measured on a machine under its roof, and what Eq. 3 allows one of them and it reached."""
    fig, ax = figure_axes(figsize=(6.4, 4.0))
    peak, bandwidth = machine["peak"], machine["bandwidth"]
    r = np.geomspace(0.4, 2000, 200)
    ax.loglog(r, roof(r, peak, bandwidth) / 1e12, "-", color=BLUE, label="roof")
    ax.axvline(peak / bandwidth, color=GREY, lw=1, ls=":")
    everything = [
        (arithmetic_intensity(t, w), rate(machine, t, w)) for w in machine["widths"] for t in machine["tokens"]
    ]
    ax.loglog(*np.array(everything).T * [[1], [1e-12]], ".", color=GREY, ms=6, label="all products measured")
    intensity, reached = arithmetic_intensity(b, h), rate(machine, b, h)
    ax.loglog(intensity, reached / 1e12, "o", color=RED, ms=9, label="this one")
    ax.set(xlabel="FLOPs a byte; dotted: the ridge", ylabel="TFLOP/s", xlim=(0.4, 2000), ylim=(1.5, 1500))
    legend_above(ax, 3)
    allowed = roof(intensity, peak, bandwidth)
    limit = "the arithmetic" if intensity >= peak / bandwidth else "the memory"
    words = (
        f"{b} tokens of width {h}: {intensity:.3g} FLOPs a byte, so {limit} allows {allowed / peak:.2%} of the peak, "
        f"and the product reached {reached / peak:.2%}."
    )
    return Picture(fig, words, "F12a")


def enough(share, machine) -> Picture:
    """F12b. How many tokens a chunk must have for a share of the peak, against the width."""
    fig, ax = figure_axes(figsize=(6.4, 4.0))
    ridge = machine["peak"] / machine["bandwidth"]
    least = 2 * share * ridge
    widths = np.geomspace(least * 1.0005, 1e4, 300)
    ax.loglog(widths, tokens_needed(share, ridge, widths), "-", color=BLUE, label="Eq. 3 asks for")
    ax.axvline(least, color=RED, ls="--", label="no chunk is enough left of this")
    ax.axhline(2048, color=GREY, lw=1, ls=":")
    for reached, mark, name in ((True, "o", "measured: reached"), (False, "x", "measured: not reached")):
        shown = [
            (h, b)
            for h in machine["widths"]
            for b in machine["tokens"]
            if (rate(machine, b, h) >= share * machine["peak"]) is reached
        ]
        ax.loglog(*np.array(shown).reshape(-1, 2).T, mark, color=GREEN if reached else "black", ms=5, label=name)
    ax.set(xlabel="width h", ylabel="tokens in a chunk; dotted: 2048", xlim=(30, 1e4), ylim=(0.7, 4e4))
    legend_above(ax, 2)
    at = {h: tokens_needed(share, ridge, h) for h in (384, 768)}
    needs = " and ".join(
        f"width {h} needs {int(np.ceil(b))} tokens" if b < np.inf else f"for width {h} none is enough"
        for h, b in at.items()
    )
    words = f"For {share:.0%} of the peak a width must be above {least:.0f}; {needs}."
    return Picture(fig, words, "F12b")


def layer(machine, own_share) -> Picture:
    """F12c. The time of a whole layer against its chunk, and of that the part that the roof accounts for."""
    fig, ax = figure_axes(figsize=(6.4, 3.6))
    chunks, ms = machine["layer"]["chunks"], np.array(machine["layer"]["ms"])
    ax.loglog(chunks, ms, "o-", color=BLUE, label="measured, forward, float32 products")
    ax.loglog(chunks, own_share, "s--", color=RED, label="nine products in bfloat16 under the roof")
    ax.set(xlabel="tokens in a chunk", ylabel="ms", ylim=(0.1, 100), xticks=chunks)
    ax.set_xticks(chunks, [str(c) for c in chunks])
    ax.set_xticks([], minor=True)
    legend_above(ax, 1)
    words = (
        f"From chunks of {chunks[0]} to {chunks[-1]} tokens the layer falls from {ms[0]:.0f} to {ms[-1]:.1f} ms, "
        f"and its products alone would take {own_share[0]:.2f} to {own_share[-1]:.2f}."
    )
    return Picture(fig, words, "F12c")


def own_machine(machine) -> Picture:
    """F12d. Rates against the chunk on the machine that runs this, with Eq. 3's prediction."""
    fig, ax = figure_axes(figsize=(6.4, 4.0))
    tokens = np.array(machine["tokens"])
    for h, (color, mark, dashes) in zip(machine["widths"], WIDTH_STYLES, strict=False):
        allowed = roof(
            arithmetic_intensity(tokens, h, machine["bytes_per_number"]), machine["peak"], machine["bandwidth"]
        )
        ax.loglog(tokens, allowed / 1e9, dashes, color=color, lw=1.2)
        ax.loglog(tokens, np.array(machine["rates"][str(h)]) / 1e9, mark, color=color, ms=6, label=f"width {h}")
    ax.axhline(machine["peak"] / 1e9, color=GREY, lw=1, ls=":")
    ax.set(xlabel="tokens in a chunk; lines: Eq. 3; dotted: the peak", ylabel="GFLOP/s")
    legend_above(ax, 3)
    best = max(max(rates) for rates in machine["rates"].values())
    words = (
        f"On {machine['cores']} cores of this machine: a peak of {machine['peak'] / 1e9:.0f} GFLOP/s, "
        f"{machine['bandwidth'] / 1e9:.0f} GB/s, and products of up to {best / machine['peak']:.0%} of the peak."
    )
    return Picture(fig, words, "F12d")
