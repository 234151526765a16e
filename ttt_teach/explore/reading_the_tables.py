"""The pictures of notebook 16. They draw rows of the ledger's tables, or arrays that the notebook simulated."""

from collections.abc import Sequence

import numpy as np

from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above
from ttt_teach.ledger.tables import Row, ranked

BLUE, RED, GREEN, BLACK = (COLORS[name] for name in ("blue", "vermilion", "green", "black"))
GREY = "0.45"


def printed(row: Row) -> str:
    """The number with the decimals it is printed with."""
    decimals = max(0, round(-np.log10(2 * row.half)))
    return f"{row.value:.{decimals}f}"


def ranking(rows: Sequence[Row], model: str, figure: str) -> Picture:
    """F16a, F16b. One metric of a table, best model on top, and where one model stands in it.

    rows: of one metric, with a better end. model: need not be among them; then the reading leaves it out.
    """
    order, values = ranked(rows)
    by_model = {row.model: row for row in rows}
    first = rows[0]
    unit = "" if first.unit in first.metric else f", {first.unit}"
    fig, ax = figure_axes(figsize=(6.4, 3.6))
    fig.subplots_adjust(left=0.28)
    names = [*order, *([] if model in by_model else [model])]
    for place, name in enumerate(names):
        if name not in by_model:
            ax.text(0.02, place, "not in the reading", transform=ax.get_yaxis_transform(), va="center", color=GREY)
            continue
        row, chosen = by_model[name], name == model
        if not np.isnan(row.std):
            ax.plot([row.value - row.std, row.value + row.std], [place, place], "-", color="0.7", lw=3)
        ax.plot(row.value, place, "o" if chosen else "s", color=RED if chosen else BLUE, ms=9 if chosen else 6)
    ax.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    ax.set_xlabel(f"{first.metric}{unit}, {first.better} is better")
    if values.min() > 0 and values.max() > 10 * values.min():
        ax.set_xscale("log")
    ax.margins(x=0.12)
    ax.grid(axis="x", color="0.9")
    ax.tick_params(axis="y", length=0)
    table = ", ".join(filter(None, [first.table, first.size, first.tokens and f"{first.tokens} tokens"]))
    if model not in by_model:
        words = f"{first.metric} ({table}): the reading gives {len(rows)} models and leaves out {model}."
        return Picture(fig, words, figure)
    mine = by_model[model]
    better = sum(value != mine.value and (value < mine.value) == (first.better == "lower") for value in values)
    rival = by_model[next(name for name in order if name != model)]
    ties = [name for name in order if name != model and by_model[name].value == mine.value]
    unit = "" if mine.unit in ("fraction", "ratio") else f" {mine.unit}"
    gap = f"{round(abs(mine.value - rival.value), 6):g}{' points' if mine.unit == '%' else unit}"
    where = [f"level with {' and '.join(ties)}"] if ties else []
    if rival.value != mine.value:
        where.append(f"{gap} {'behind' if better else 'ahead of'} {rival.model}")
    spread = "" if np.isnan(mine.std) else f" ± {mine.std:g}"
    words = (
        f"{first.metric} ({table}): {model} has {printed(mine)}{spread}{unit}, place {better + 1} of "
        f"{plural(len(rows), 'model')}, {', '.join(where)}."
    )
    return Picture(fig, words, figure)


def averages(share, easy, hard, gains) -> Picture:
    """F16c. Two models on an easy and a hard set: the ratio of their mean perplexities, and of their pooled ones.

    share: of all tokens that are in the hard set; easy, hard: nats a token; gains: name -> what is added on each set.
    """
    fig, ax = figure_axes(figsize=(6.4, 3.6))
    (a, of_a), (b, of_b) = ((name, np.array([easy, hard]) + gain) for name, gain in gains.items())
    shares = np.linspace(0, 1, 11)

    def pooled(nats, at):
        return np.exp((1 - at) * nats[0] + at * nats[1])

    means, here = [np.exp(nats).mean() for nats in (of_a, of_b)], [pooled(nats, share) for nats in (of_a, of_b)]
    ax.axhline(1, color="0.75", lw=1, ls="-")
    ax.plot(shares, pooled(of_b, shares) / pooled(of_a, shares), "-", color=RED, label="pooled")
    ax.axhline(means[1] / means[0], color=BLUE, ls="--", lw=1.6, label="mean of two perplexities")
    ax.plot(share, here[1] / here[0], "o", color=RED, ms=8)
    ax.plot(share, means[1] / means[0], "s", color=BLUE, ms=8)
    ax.set(xlabel="share of the tokens that are in the hard set", ylabel=f"perplexity of {b} over that of {a}")
    ax.set(xlim=(-0.02, 1.02), ylim=(0.93, 1.06))
    ax.text(0.5, 1.053, f"{a} leads", ha="center", va="center", color=GREY)
    ax.text(0.5, 0.937, f"{b} leads", ha="center", va="center", color=GREY)
    legend_above(ax, 2)
    by_mean, by_pool = (a if x < y else b for x, y in (means, here))
    words = (
        f"Sets of {easy:g} and {hard:g} nats, {share:.0%} of the tokens in the harder: the means of two perplexities "
        f"are {means[0]:.2f} ({a}) and {means[1]:.2f} ({b}), so {by_mean} leads; pooled they are {here[0]:.2f} and "
        f"{here[1]:.2f}, so {by_pool} leads."
    )
    return Picture(fig, words, "F16c")


def spreads(rows: Sequence[Row], noise) -> Picture:
    """F16d. Standard deviations over kinds of question against the means, and the most that they could be.

    rows: accuracies in % with a std; noise: the std of a mean by sampling alone, in points.
    """
    fig, ax = figure_axes(figsize=(6.4, 3.8))
    m = 50 - 50 * np.cos(np.linspace(0, np.pi, 61))
    ax.plot(m, np.sqrt(m * (100 - m)), "-", color=GREY, lw=1.4, label="the most at this mean")
    for name, colour, mark in zip(
        dict.fromkeys(row.model for row in rows), (GREEN, RED, BLUE, BLACK), "D^os", strict=True
    ):
        points = np.array([(row.value, row.std) for row in rows if row.model == name])
        ax.plot(*points.T, mark, color=colour, ms=7, mfc="none", mew=1.6, label=name)
    ax.axhline(noise, color=GREY, ls=":", lw=1.4, label="the most by sampling")
    ax.set(xlabel="mean over the types of key and value, %", ylabel="standard deviation, points", ylim=(-2, 53))
    legend_above(ax, 3)
    top = max(rows, key=lambda row: row.std)
    words = (
        f"The widest spread is {top.std:g} points ({top.model}, {top.metric}, mean {top.value:g} %); with this mean it "
        f"cannot exceed {np.sqrt(top.value * (100 - top.value)):.1f}, and sampling gives at most {noise:.2f}."
    )
    return Picture(fig, words, "F16d")


def selection(variants, tasks, counts, expected, each, once) -> Picture:
    """F16e. What choosing the best of equal variants adds to an average over tasks.

    counts ``[N]``: numbers of variants; expected ``[N]``: of the largest of so many normal numbers; each, once
    ``[runs]``: averages chosen for each task or once for all, in units of the noise of one task.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.6))
    left.plot(counts, expected, "-", color=RED, label="best for each task")
    left.plot(counts, np.asarray(expected) / np.sqrt(tasks), "--", color=BLUE, label="best on average")
    left.plot(variants, each.mean(), "o", color=RED, ms=8)
    left.plot(variants, once.mean(), "s", color=BLUE, ms=8)
    left.set(xlabel="variants", ylabel="gained, in noise of a task", ylim=(-0.1, 2), xlim=(0.5, max(counts) + 0.5))
    legend_above(left, 2)
    edges = np.linspace(-2.5, 3.5, 49)
    for sample, colour, dash in ((each, RED, "-"), (once, BLUE, "--")):
        height, _ = np.histogram(sample, edges, density=True)
        right.plot((edges[1:] + edges[:-1]) / 2, height, dash, color=colour, lw=1.5)
    right.axvline(0, color=GREY, ls=":", lw=1.2)
    right.set(xlabel="average reported; dotted: the truth", yticks=[], ylim=(0, None))
    words = (
        f"{plural(variants, 'equal variant')}, {plural(tasks, 'task')}: the best for each task reports "
        f"{each.mean():z.2f} too much on average, the best on average {once.mean():z.2f}, in units of a task's noise; "
        f"{np.mean(each > 0):.0%} and {np.mean(once > 0):.0%} of the reports are above the truth."
    )
    return Picture(fig, words, "F16e")


def positions(k, crossing, read_at, delta) -> Picture:
    """F16f. A difference of two models by position, and its mean so far.

    k ``[T]``: positions from 1; delta ``[T]``: nats of the first model minus the second; read_at: the length that is
    evaluated.
    """
    so_far = np.cumsum(delta) / k
    fig, ax = figure_axes(figsize=(6.4, 3.6))
    shown = np.unique(np.geomspace(1, len(k), 60).astype(int)) - 1
    ax.axhline(0, color="0.75", lw=1, ls="-")
    ax.semilogx(k[shown], delta[shown], "-", color=RED, label="at the position")
    ax.semilogx(k[shown], so_far[shown], "--", color=BLUE, label="mean so far")
    at = read_at - 1
    ax.plot(read_at, delta[at], "s", color=RED, ms=8)
    ax.plot(read_at, so_far[at], "o", color=BLUE, ms=8)
    ax.set(xlabel="position", ylabel="difference, nats", ylim=(-0.42, 0.36))
    legend_above(ax, 2)
    below = k[so_far < 0]
    words = (
        f"The difference changes its sign at position {crossing}, its mean so far at {below[-1] + 1}. Evaluated to "
        f"{read_at}: {so_far[at]:+.3f} nats on average, {delta[at]:+.3f} at the last position."
    )
    return Picture(fig, words, "F16f")


def survivors(k, by_length, law, k2, by_window) -> Picture:
    """F16g. Why the loss falls with position: documents that end, and a context that fills.

    k ``[N]``: positions; by_length: name -> ``[N]`` nats of a model without memory; law ``[N]``: what the first should
    be; k2 ``[N2]``: positions; by_window: name -> ``[N2]`` nats.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(7.2, 3.8))
    for (name, nats), colour, dash in zip(by_length.items(), (RED, BLUE), ("-", "--"), strict=True):
        left.plot(k, nats, dash, color=colour, lw=1.4, label=name)
    left.plot(k, law, ":", color=BLACK, lw=2, label="law for all")
    left.set(xlabel="position (a model without memory)", ylabel="nats a token")
    for (name, nats), colour, dash in zip(by_window.items(), (GREEN, BLUE, BLACK), ("-.", "--", "-"), strict=True):
        right.plot(k2, nats, dash, color=colour, lw=1.4, label=name)
    right.set(xlabel="position (which of two kinds of text?)")
    legend_above(left, 2)
    legend_above(right, 2)
    falls = "; ".join(f"{name}: {nats[0] - nats[len(nats) // 2 :].mean():.2f}" for name, nats in by_length.items())
    words = (
        f"Without memory the loss falls by so many nats from the first positions to the second half: {falls}. "
        "With a window it falls until the window is full."
    )
    return Picture(fig, words, "F16g")
