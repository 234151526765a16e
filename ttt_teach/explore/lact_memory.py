"""The pictures of notebook 13. Each draws arrays that the notebook computed; only the words are made here."""

import numpy as np

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above

BLUE, RED, GREEN, PURPLE = COLORS["blue"], COLORS["vermilion"], COLORS["green"], COLORS["purple"]
# A matrix is dashed, a network solid; the colour is the way of writing.
MEMORIES = {
    "matrix, Mesa": (":", "black", None),
    "matrix, Muon": ("--", BLUE, "s"),
    "matrix, sum": ("--", RED, "s"),
    "network, Muon": ("-", BLUE, "o"),
    "network, gradient": ("-", RED, "o"),
}


def newton_schulz_map(steps, schedule, sigma, mapped, before, after) -> Picture:
    """F13a. Left what so many steps make of a singular value, right what they make of those of a real direction.

    sigma, mapped ``[N]``; before, after: the singular values of a direction of length 1, largest first.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6), gridspec_kw={"top": 0.82, "wspace": 0.26})
    left.axhline(1, color="0.8", lw=1, ls="-")
    left.axvspan(0.01, 1, color="0.93")
    left.semilogx(sigma, mapped, "-", color=BLUE)
    left.set(xlim=(1e-5, 1), ylim=(-0.03, 1.35), yticks=(0, 0.5, 1), xticks=(1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1))
    left.set(xlabel="singular value; grey: from 0.01")
    left.set_title("what becomes of it", fontsize=11)
    number = np.arange(1, len(before) + 1)
    right.axhline(1, color="0.8", lw=1, ls="-")
    right.semilogy(number, before, "--", color=RED, lw=3, label="of a real direction")
    right.semilogy(number, after, "-", color=BLUE, marker="o", ms=4, label=f"after {plural(steps, 'step')}: {schedule}")
    right.set(ylim=(1e-4, 2), xlabel="number, largest first")
    right.set_title("singular values", fontsize=11)
    fig.legend(*right.get_legend_handles_labels(), loc="upper center", ncols=2, frameon=False)
    high = mapped[sigma >= 0.01]
    near = int(np.sum(np.abs(after - 1) < 0.35))
    words = (
        f"{schedule}, {plural(steps, 'step')}: singular values from 0.01 to 1 end between {high.min():.3g} and "
        f"{high.max():.4g}; tiny ones grow {mapped[0] / sigma[0]:.3g}-fold; of a real direction {near} of "
        f"{len(after)} end within 0.35 of 1."
    )
    return Picture(fig, words, "F13a")


def recall_counts(pairs, counts, at) -> Picture:
    """F13b. How many of the pairs of one write are told apart when they are read, by memory.

    pairs ``[N]``; counts: pairs' name -> memory -> ``[N]``, means over sets; at: how many pairs the words speak of.
    """
    fig, axes = figure_axes(1, len(counts), figsize=(8, 3.7), sharey=True, gridspec_kw={"top": 0.73, "wspace": 0.08})
    for ax, (keys, of) in zip(axes, counts.items(), strict=True):
        for memory, count in of.items():
            dash, color, mark = MEMORIES[memory]
            share = count / np.array(pairs)
            ax.semilogx(pairs, share, dash, color=color, marker=mark, ms=4, lw=1.5 if mark else 2, label=memory, base=2)
        ax.set(xticks=pairs, xticklabels=pairs, xlabel="pairs written at once", ylim=(0, 1.05), yticks=(0, 0.5, 1))
        ax.minorticks_off()
        ax.set_title(keys, fontsize=11)
    axes[0].set_ylabel("share told apart")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False)
    here = list(pairs).index(at)
    said = "; ".join(
        f"{keys}: " + ", ".join(f"{memory} {count[here]:.1f}" for memory, count in of.items())
        for keys, of in counts.items()
    )
    return Picture(fig, f"Of {at} pairs written at once are told apart, {said}.", "F13b")


def rounding_noise(tokens, errors, law, least) -> Picture:
    """F13c. What rounding a direction to bfloat16 does to its orthogonalised step, by tokens in the chunk.

    errors: label -> ``[N]``, relative; law ``[N]``, NaN from the smaller width ``least`` on.
    """
    fig, ax = figure_axes()
    ax.axvline(least, color="0.6", lw=1, ls=":")
    ax.loglog(tokens, law, "-", color="0.75", lw=4, label="the law")
    looks = ((BLUE, "-", "o"), (GREEN, "--", "s"), (RED, "-.", "^"))
    for (label, error), (color, dash, mark) in zip(errors.items(), looks, strict=True):
        ax.loglog(tokens, error, dash, color=color, marker=mark, ms=5, label=label)
    ax.set(xticks=tokens, xticklabels=tokens, xlabel="tokens in the chunk; dotted: the smaller width")
    ax.set(ylabel="error / size", ylim=(1e-3, 1))
    ax.minorticks_off()
    legend_above(ax, 2)
    label, error = next(iter(errors.items()))
    words = (
        f"{label}: off by {error[0]:.0%} with {plural(tokens[0], 'token')}, by {error[list(tokens).index(8)]:.0%} with "
        f"8, and by {error[-1]:.1%} with {tokens[-1]}."
    )
    return Picture(fig, words, "F13c")


def blow_up(sizes, outputs) -> Picture:
    """F13d. Length of the weights and size of the answers, write after write, with and without the rows' norms.

    sizes, outputs: variant -> ``[writes + 1]``, in units of the first; not finite once they overflow.
    """
    fig, axes = figure_axes(1, 2, figsize=(7.2, 3.8), gridspec_kw={"top": 0.77, "wspace": 0.24})
    looks = ((RED, "-", 1.5), (RED, ":", 4), (BLUE, "-", 1.5), (BLUE, "--", 1.5))
    for ax, lines, title in zip(axes, (sizes, outputs), ("length of the weights", "size of the answers"), strict=True):
        for (variant, line), (color, dash, width) in zip(lines.items(), looks, strict=True):
            shown = np.isfinite(line) & (line < 1e12)
            ax.semilogy(np.flatnonzero(shown), line[shown], dash, color=color, lw=width, label=variant)
        ax.set(xlabel="writes", ylim=(0.1, 1e6), xlim=(-1, len(line)))
        ax.set_title(f"{title} / at first", fontsize=11)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=2, frameon=False)
    ends = ", ".join(f"{variant} {_large(line)}" for variant, line in outputs.items())
    return Picture(fig, f"Answers after {len(line) - 1} writes, in units of the first: {ends}.", "F13d")


def horizon(norm, rows, counts, shares, law, pairs, never) -> Picture:
    """F13e. Left how many pairs of each chunk are still told apart, right what is left of the first weights.

    norm: of the rows at first; counts: keys -> ``[chunks]``, oldest chunk first; shares: W1 and W2 -> ``[chunks + 1]``;
    law: the same -> the share that a write should leave, empty where there is none; pairs: in a chunk; never: for each
    keys how many of the latest chunk were told apart before it was written.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6), gridspec_kw={"wspace": 0.3})
    chunks = len(next(iter(counts.values())))
    age = np.arange(chunks)
    looks = ((PURPLE, "o"), ("black", "s"))
    for (keys, count), unseen, (color, mark) in zip(counts.items(), never, looks, strict=True):
        left.axhline(unseen, color=color, lw=1.5, ls=":")
        left.plot(age, count[::-1], "-", color=color, marker=mark, ms=5, label=keys)
    left.set(
        ylim=(0, pairs),
        xlabel="chunks written since; dotted: never written",
        ylabel=f"told apart, of {pairs}",
        xticks=age,
    )
    legend_above(left, 2)
    for (matrix, share), (dash, color, mark) in zip(
        shares.items(), (("--", GREEN, "^"), ("-", BLUE, "o")), strict=True
    ):
        if matrix in law:
            right.plot(law[matrix] ** np.arange(chunks + 1), "-", color="0.8", lw=5)
        right.plot(share, dash, color=color, marker=mark, ms=4, label=matrix)
    right.set(ylim=(-0.05, 1.1), yticks=(0, 0.5, 1), xticks=np.arange(chunks + 1))
    right.set(xlabel="writes; grey: the law" if law else "writes", ylabel="share of the first left")
    legend_above(right, 2)
    new, old = (" and ".join(f"{count[i]:.1f} on {keys}" for keys, count in counts.items()) for i in (-1, 0))
    unseen = " and ".join(f"{x:.1f}" for x in never)
    words = (
        f"Rows {rows}, first norm {norm:g}: of {pairs} pairs the latest chunk has {new} told apart (before its write "
        f"{unseen}), the oldest {old}; "
        f"a write leaves {shares['W1'][1]:.2f} of W1 and {shares['W2'][1]:.2f} of W2."
    )
    return Picture(fig, words, "F13e")


def muon_cost(chunks, ratios, used) -> Picture:
    """F13f. The products of Muon over those of the tokens, by chunk length.

    ratios: model -> ``[N]``; used: model -> (chunk, ratio), where the model is run.
    """
    fig, ax = figure_axes()
    ax.axhline(1, color="0.8", lw=1, ls="-")
    looks = (("-", BLUE, "o"), ("--", RED, "s"), ("-.", GREEN, "^"))
    for (model, ratio), (dash, color, mark) in zip(ratios.items(), looks, strict=True):
        ax.loglog(chunks, ratio, dash, color=color)
        ax.loglog(*used[model], color=color, marker=mark, ms=8, ls=dash, label=model)
    ax.set(xlabel="tokens in a chunk", ylabel="Muon / products of the tokens", ylim=(5e-3, 200))
    legend_above(ax, 3)
    at = ", ".join(f"{model} {ratio:.2g} at {chunk:,} tokens" for model, (chunk, ratio) in used.items())
    return Picture(fig, f"Products of Muon over those of the tokens: {at}.", "F13f")


def _large(line):
    """The last number, or when the line left the numbers of a computer."""
    if np.isfinite(line[-1]):
        return f"{line[-1]:.2g}"
    return f"overflow at write {int(np.argmin(np.isfinite(line)))}"
