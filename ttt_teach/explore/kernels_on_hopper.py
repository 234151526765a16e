"""The pictures of notebook 20: what fits an SM, ladders of predictions, times and errors beside others."""

import numpy as np

from ttt_teach.bench.device import UPSTREAM, digits
from ttt_teach.bench.rungs import PASSES, miss
from ttt_teach.explore.picture import Picture, plural
from ttt_teach.explore.style import COLORS, figure_axes, legend_above
from ttt_teach.theory.hopper import H200, RESERVED, blocks, floor, walk

BLUE, RED, GREEN, GREY = *(COLORS[c] for c in ("blue", "vermilion", "green")), "0.6"
OTHERS = 40  # registers of a thread for addresses, vectors and the loop; ptxas says how many it really takes
STYLES = {"forward": (BLUE, "o"), "both": (RED, "s")}


def room(chunk: int, width: int, tokens: int) -> Picture:
    """F20a. Shared memory and blocks an SM with one slot and with two, and what bytes and products ask for."""
    fig, (left, right) = figure_axes(1, 2, figsize=(6.8, 3.6), width_ratios=(3, 2))
    told = {slots: walk(chunk, width, slots) for slots in (1, 2)}
    fit = {slots: blocks(w.shared, w.sums + OTHERS, w.threads) for slots, w in told.items()}
    left.bar(list(told), [w.shared / 1024 for w in told.values()], 0.5, color=BLUE, label="KB")
    for n in (1, 2, 3):
        left.axhline((H200.shared // n - RESERVED) / 1024, color=GREY, ls=":", lw=1)
    left.set(ylabel="KB a block; dotted: 1, 2, 3 fit", xlabel="slots for q, k and v", ylim=(0, 560), xlim=(0.4, 2.6))
    left.set_xticks([1, 2])
    ms = floor(tokens * told[1].nbytes, 1.0), floor(1.0, tokens * told[1].flops)
    right.bar([0, 1], ms, 0.5, color=GREEN, label="ms")
    right.set(ylabel="ms, at least", ylim=(0, 0.25), xlim=(-0.6, 1.6))
    right.set_xticks([0, 1], ["bytes", "products"])
    words = (
        f"Chunks of {chunk} and width {width}: {told[1].shared / 1024:.0f} KB with one slot and "
        f"{told[2].shared / 1024:.0f} with two, {told[1].sums} registers of sums in each of {told[1].threads} threads, "
        f"so {fit[1]} or {fit[2]} such blocks fit an SM; bytes ask for {ms[0]:.3f} ms, products for {ms[1]:.3f}."
    )
    return Picture(fig, words, "F20a")


def ladder(rule: str, rungs: dict, floors: dict) -> Picture:
    """F20b. The rungs of a rule, from above: predicted (hollow), measured (full), and the floor (dotted)."""
    climbed = [rung for rung in rungs[rule] if any((*rung.predicted.values(), *rung.measured.values()))]
    fig, ax = figure_axes(figsize=(6.8, 4.6))
    places = np.arange(len(climbed))
    for part in PASSES:
        color, mark = STYLES[part]
        name = {"forward": "forward", "both": "with backward"}[part]
        for which, filled in (("predicted", "none"), ("measured", color)):
            ms = [getattr(rung, which)[part] or np.nan for rung in climbed]
            ax.plot(ms, places, mark, color=color, mfc=filled, ms=7, label=f"{name}, {which}")
        ax.axvline(floors[rule][part], color=color, ls=":", lw=1)
    ax.set_xscale("log")
    ax.set_yticks(places, [rung.rung for rung in climbed])
    ax.set(xlabel="ms; dotted: the floors", ylim=(max(len(climbed), 6) - 0.5, -0.5))
    fig.subplots_adjust(left=0.36)
    legend_above(ax, 2)
    off = [ratio for rung in climbed for part in PASSES if (ratio := miss(rung, part)) is not None]
    missed = f"measured times are {min(off):.2g} to {max(off):.2g} of the predicted" if off else "none was predicted"
    words = (
        f"{rule}: {plural(len(climbed), 'rung')}; {missed}, and the floor is {floors[rule]['forward']:.2g} ms forward."
    )
    return Picture(fig, words, "F20b")


def beside(results: dict) -> Picture:
    """F20c. The time of each peer over ours, with its quartiles: right of 1 ours is faster."""
    shown = []
    for name, row in results["rows"].items():
        for part, color, mark in (("forward", BLUE, "o"), ("forward+backward", RED, "s")):
            for _, others in list(row.get(part, {}).get("ratio", {}).items())[:1]:
                shown += [(f"{name} / {who}", part, color, mark, told) for who, told in others.items()]
    names = list(dict.fromkeys(label for label, *_ in shown))
    height = max(3.6, 1.8 + 0.27 * len(names))
    fig, ax = figure_axes(figsize=(6.8, height))
    ax.axvline(1, color=GREY, lw=1)
    for part, color, mark in (("forward", BLUE, "o"), ("forward+backward", RED, "s")):
        mine = [(names.index(label), told) for label, which, _, _, told in shown if which == part]
        places, middle = [y for y, _ in mine], [told["median"] for _, told in mine]
        ax.plot(middle, places, mark, color=color, ms=6, label=part)
        for y, told in mine:
            ax.plot(told["quartiles"], [y, y], "-", color=color, lw=1)
    ax.set_xscale("log")
    ax.set_yticks(range(len(names)), names)
    ax.set(xlabel="its time over ours; right of 1 ours is faster", ylim=(len(names) - 0.5, -0.5))
    fig.subplots_adjust(left=0.42, bottom=0.65 / height)
    legend_above(ax, 2)
    slower = sum(told["quartiles"][1] < 1 for *_, told in shown)
    words = (
        f"On {results['device']}, {results['date']}: of {len(shown)} times of others beside ours, {slower} "
        f"{'is' if slower == 1 else 'are'} clearly shorter than ours."
    )
    return Picture(fig, words, "F20c")


def errors(rule: str, results: dict) -> Picture:
    """F20d. The worst gradient's relative error against the size of the upstream gradient, ours and others'."""
    fig, ax = figure_axes(figsize=(6.4, 3.6))
    worst = {}
    for who, told in results["rows"][rule]["errors"].items():
        if who != "of":
            worst[who] = [max(told[f"{scale:g}"].values(), key=size) for scale in UPSTREAM]
            ax.loglog(UPSTREAM, np.array(worst[who], float), marker="o", ms=5, label=who)
    ax.set(xlabel="size of the upstream gradient", ylabel="error of the worst gradient", ylim=(3e-4, 2))
    ax.invert_xaxis()
    legend_above(ax, 2)
    ends = "; ".join(f"{who} {digits(x[0])} at 1 and {digits(x[-1])} at {UPSTREAM[-1]:g}" for who, x in worst.items())
    return Picture(fig, f"{rule}, the worst gradient against float64: {ends}.", "F20d")


def size(error: float | None) -> float:
    """None stands for what is not finite, which is worst."""
    return np.inf if error is None else error
