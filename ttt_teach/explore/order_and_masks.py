"""Notebook 14: the program that runs any schedule, and the pictures of the masks and curves measured with it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above
from ttt_teach.rules.lact import lact

BLUE, RED, GREEN, SKY, ORANGE, BLACK = (
    COLORS[name] for name in ("blue", "vermilion", "green", "sky", "orange", "black")
)
PALE, GREY = "#f2f2f2", "0.45"
NOTHING, WRITTEN, NEAR, BOTH = range(4)  # what an output has of a token: nothing, the memory, the window, or both
ENTRIES = 32  # of a schedule, at most: one shape for all, so that many schedules cost one compilation


def perform(schedule, q, k, v, lr, weights):
    """The outputs ``[B, T, H, V]`` of lact, with Muon, for a schedule; of a token read twice, the last one.

    schedule: ``[(start, end, update, apply), ...]``, at most ``ENTRIES``; q, k, v, lr, weights: as `lact` takes them.
    """
    if len(schedule) > ENTRIES:
        raise ValueError(f"schedule has {len(schedule)} entries; expected {ENTRIES} at most")
    flags = np.zeros((2, ENTRIES, q.shape[1]), bool)  # by entry: which tokens are written, which are read
    for n, (start, end, update, apply) in enumerate(schedule):
        flags[:, n, start:end] = [[update], [apply]]
    return np.asarray(_perform(weights, q, k, v, lr, *flags))


@jax.jit
def _perform(weights, q, k, v, lr, updates, applies):
    T = q.shape[1]
    write = partial(lact, q, k, v, weights=None, chunk=T, order=[(0, T, True, False)])
    read = partial(lact, q, k, v, lr, None, chunk=T, order=[(0, T, False, True)])

    def entry(carry, step):
        state, o = carry
        update, apply = step
        own = jnp.where(update[None, :, None, None], lr, 0)  # rate 0: nothing is added to the sum
        _, written = write(lr=own, state=state)
        state = jax.tree.map(lambda new, old: jnp.where(update.any(), new, old), written, state)
        return (state, jnp.where(apply[None, :, None, None], read(state=state)[0], o)), None

    _, start = lact(*(x[:, :0] for x in (q, k, v, lr)), weights, chunk=T)
    return jax.lax.scan(entry, (start, jnp.zeros_like(v)), (updates, applies))[0][1]


def dependencies(seen, asked, order, chunk, blocks) -> Picture:
    """F14a. Which writes (columns) each output (rows) depends on, and which queries.

    seen, asked ``[T, T]``: booleans, output by token; blocks: ``[(start, end, name), ...]``, the chunks.
    """
    fig, ax = figure_axes(figsize=(6.0, 5.0), gridspec_kw={"left": 0.12, "right": 0.72, "bottom": 0.12, "top": 0.97})
    seen, asked = np.asarray(seen, bool), np.asarray(asked, bool)
    T = len(seen)
    ax.imshow(np.asarray(seen, float), cmap=ListedColormap([PALE, BLUE]), vmin=0, vmax=1, interpolation="nearest")
    outputs, tokens = np.nonzero(asked)
    ax.plot(tokens, outputs, "o", color=ORANGE, ms=6, mec="white", mew=0.8)
    _grid(ax, T, [start for start, _, _ in blocks])
    centres = [(start + end - 1) / 2 for start, end, _ in blocks]
    ax.set_xticks(centres, [name for *_, name in blocks])
    ax.set_yticks(centres, [name for *_, name in blocks])
    ax.set(xlabel="chunk of the token that is changed", ylabel="chunk of the output")
    fig.legend(
        handles=[
            Patch(color=BLUE, label="depends on its\nkey, value\nor rates"),
            Line2D([], [], color=ORANGE, marker="o", ls="", label="on its query"),
        ],
        loc="upper left",
        bbox_to_anchor=(0.73, 0.97),
        frameon=False,
    )
    words = (
        f"{order}, {plural(T, 'token')} in chunks of {chunk}: an output depends on {seen.sum(1).mean():.1f} writes on "
        f"average; {plural(int(np.triu(seen, 1).sum()), 'pair')} of an output and a later token, "
        f"{int(np.trace(seen))} of the {T} tokens read their own write, {int(np.trace(asked))} their own query, "
        f"and {int((asked & ~np.eye(T, dtype=bool)).sum())} another query."
    )
    return Picture(fig, words, "F14a")


def combined(fast, near, chunk, window) -> Picture:
    """F14b. What the fast weights and what the window give each output; crosses: neither.

    fast, near ``[T, T]``: booleans, output by token.
    """
    fig, ax = figure_axes(figsize=(6.0, 5.0), gridspec_kw={"left": 0.12, "right": 0.72, "bottom": 0.12, "top": 0.97})
    fast, near = np.asarray(fast, bool), np.asarray(near, bool)
    T = len(fast)
    past = np.tril(np.ones((T, T), bool))
    kinds = WRITTEN * fast + NEAR * near
    missed = past & (kinds == NOTHING)
    ax.imshow(
        kinds.astype(float),
        cmap=ListedColormap([PALE, SKY, ORANGE, BLUE]),
        vmin=NOTHING,
        vmax=BOTH,
        interpolation="nearest",
    )
    rows, columns = np.nonzero(missed)
    ax.plot(columns, rows, "x", color=RED, ms=7, mew=2)
    _grid(ax, T, range(0, T, chunk))
    ax.set_xticks(range(0, T, 4))
    ax.set_yticks(range(0, T, 4))
    ax.set(xlabel="token", ylabel="output")
    fig.legend(
        handles=[
            Patch(color=SKY, label="fast weights"),
            Patch(color=ORANGE, label="window"),
            Patch(color=BLUE, label="both"),
            Line2D([], [], color=RED, marker="x", ls="", mew=2, label="missed"),
            Patch(facecolor=PALE, edgecolor="0.8", label="later"),
        ],
        loc="upper left",
        bbox_to_anchor=(0.73, 0.97),
        frameon=False,
    )
    words = (
        f"Window {window}, chunk {chunk}: of the {int(past.sum())} pairs of an output and a token not after it "
        f"the fast weights give {int((kinds == WRITTEN).sum())}, the window {int((kinds == NEAR).sum())}, both "
        f"{int((kinds == BOTH).sum())}, and {int(missed.sum())} are missed."
    )
    return Picture(fig, words, "F14b")


def _grid(ax, T, starts):
    ax.set_xticks(np.arange(T + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(T + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", lw=0.8, ls="-")
    ax.tick_params(which="minor", length=0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.remove_overlapping_locs = False  # a line between two tokens stays where a tick is
    for start in list(starts)[1:]:
        ax.axvline(start - 0.5, color="0.3", lw=0.9, ls="-")
        ax.axhline(start - 0.5, color="0.3", lw=0.9, ls="-")


def recall(age, measured, law, chunk, window) -> Picture:
    """F14c. How often a query finds its pair, by the age of the pair in tokens.

    age ``[N]``; measured: name -> ``[N]``, the delta rule, LaCT, LaCT with a window; law ``[N]``: of the last.
    """
    fig, ax = figure_axes()
    ax.axvspan(-0.5, window - 0.5, color="#fdf0d5", zorder=0)
    ax.axvline(chunk, color="0.6", lw=1, ls="-", zorder=0)
    ax.plot(age, law, "-", color=BLACK, lw=1, drawstyle="steps-mid", label="law E14.17, with the window")
    looks = (("s", GREEN, 3, GREEN), ("^", RED, 4, RED), ("o", BLUE, 8, "none"))
    for (name, line), (mark, color, size, face) in zip(measured.items(), looks, strict=True):
        ax.plot(age, line, mark, color=color, ms=size, mfc=face, label=name)
    ax.set(
        xlabel="age of the pair in tokens; line: the chunk, shaded: the window",
        ylabel="share recalled",
        ylim=(-0.06, 1.1),
    )
    ax.set(xlim=(-0.8, age[-1] + 0.8), yticks=(0, 0.5, 1))
    legend_above(ax, 2)
    both = list(measured.values())[-1]
    worst, short = int(np.argmin(both)), int(np.sum(np.asarray(both) < 1))
    tale = f"the worst is age {age[worst]} with {both[worst]:.3f}" if short else "all are recalled"
    words = (
        f"Window {window}, chunk {chunk}: with the window LaCT misses some pairs at {plural(short, 'age')} out of "
        f"{len(age)}, {tale}."
    )
    return Picture(fig, words, "F14c")


def decodes(tokens, errors, prefill, chunk) -> Picture:
    """F14d. How far a cached decode is off, token by token, by what the cache keeps.

    tokens ``[N]``: positions decoded; errors: name -> ``[N]``, relative to the largest output.
    """
    fig, ax = figure_axes()
    for start in range(0, int(tokens[-1]) + 1, chunk):
        ax.axvline(start - 0.5, color="0.6", lw=1, ls="-", zorder=0)
    looks = (("^", RED, "-"), ("s", ORANGE, "--"), ("d", BLACK, "-."), ("o", BLUE, ":"))
    for (name, line), (mark, color, dashes) in zip(errors.items(), looks, strict=True):
        ax.plot(tokens, line, mark, ls=dashes, color=color, ms=5, lw=1.4, label=name)
    ax.set(xlabel="token; grey: chunks begin", ylabel="error / largest output", ylim=(-0.05, 1.0), yticks=(0, 0.5, 1))
    ax.set(xlim=(-1, tokens[-1] + 1), xticks=range(0, int(tokens[-1]) + 1, chunk))
    legend_above(ax, 2)
    told = "; ".join(f"{name}: {_size(line.max())}" for name, line in errors.items())
    words = f"Prefill of {plural(prefill, 'token')}, chunk {chunk}. Largest error of a decoded output with {told}."
    return Picture(fig, words, "F14d")


def _size(error):
    return f"{error:.2f}" if error > 1e-12 else "rounding"
