"""The picture of notebook 00: what is kept, against what has been read."""

import numpy as np

from ttt_teach.explore.picture import Picture
from ttt_teach.explore.style import figure_axes

TOKENS = np.geomspace(1, 32768, 61)


def state_picture(width: int) -> Picture:
    """Numbers kept per head after t tokens: attention's cache 2 t d, one matrix d^2, Mesa's two 2 d^2."""
    kept = {
        "softmax attention: every key and value": 2 * TOKENS * width,
        "linear, delta: one matrix": np.full_like(TOKENS, width**2),
        "mesa: two matrices": np.full_like(TOKENS, 2 * width**2),
    }
    fig, ax = figure_axes()
    for label, numbers in kept.items():
        ax.plot(TOKENS, numbers, label=label)
    ax.plot([width], [2 * width**2], "o", color="black", label=f"equal at t = {width}")
    ax.set(xscale="log", yscale="log", ylim=(30, 3e7), xlabel="tokens read, t", ylabel="numbers kept per head")
    ax.legend(frameon=False, loc="upper left", fontsize=9)
    return Picture(
        fig,
        f"At width {width} a key-value cache holds as many numbers as Mesa's two matrices, {2 * width**2}, "
        f"after {width} tokens; before that it is the smaller, after that it grows without end.",
        figure="F00a",
    )
