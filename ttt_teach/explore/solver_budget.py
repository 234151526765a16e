"""The pictures of notebook 08: each draws arrays that the notebook or the benchmark made, and makes the words."""

import numpy as np

from ttt_teach.explore.picture import Picture
from ttt_teach.explore.style import COLORS, figure_axes, legend_above

BLUE, RED, GREEN, PURPLE = (COLORS[name] for name in ("blue", "vermilion", "green", "purple"))
MOST = 25  # the end of the colour scale of F08a, in steps


def needs(tokens, names, steps, memory, eps) -> Picture:
    """F08a. Steps of every head (rows) at every token (columns). steps ``[heads, tokens]``; memory: in words."""
    fig, ax = figure_axes(figsize=(6.4, 3.2))
    image = ax.imshow(
        steps,
        cmap="cividis",
        vmin=0,
        vmax=MOST,
        interpolation="none",
        aspect="auto",
        extent=(tokens[0], tokens[-1], len(steps) - 0.5, -0.5),
    )
    ax.set(xlabel="token", yticks=range(len(names)), yticklabels=names)
    fig.subplots_adjust(left=0.29)
    fig.colorbar(image, ax=ax, label="steps", pad=0.03)
    by_head = steps.mean(1)
    low, high = by_head.argmin(), by_head.argmax()
    words = (
        f"{memory}, eps = {eps:g}: {steps.mean():.1f} steps on average, {by_head[low]:.1f} in {names[low]} and "
        f"{by_head[high]:.1f} in {names[high]}; the hardest token takes {steps.max()}."
    )
    return Picture(fig, words, "F08a")


def predictors(by_memory, correlations) -> Picture:
    """F08b. Steps against two guesses at them.

    by_memory: name -> (condition number ``[N]``, steps promised ``[N]``, steps ``[N]``); correlations: the two names on
    the axes -> rank correlation in each memory.
    """
    fig, (left, right) = figure_axes(1, 2, sharey=True, figsize=(6.4, 3.6))
    marks = ("o", "s", "^", "D", "v", "x", "+")
    colours = (BLUE, RED, GREEN, PURPLE, COLORS["black"], COLORS["orange"], COLORS["sky"])
    for (name, (condition, promised, steps)), mark, colour in zip(by_memory.items(), marks, colours, strict=False):
        filled = {} if mark in "x+" else {"mfc": "none"}
        left.plot(condition, steps, mark, ms=4, color=colour, label=name, **filled)
        right.plot(promised, steps, mark, ms=4, color=colour, label=name, **filled)
    most = max(promised.max() for _, promised, _ in by_memory.values())
    right.plot([0, most], [0, most], "-", color="0.6", lw=1, zorder=0)
    (a, of_a), (b, of_b) = correlations.items()
    left.set(xscale="log", xlabel=a, ylabel="steps taken", ylim=(0, None))
    right.set(xlabel=b, xlim=(0, None))
    legend_above(left, 2)
    words = (
        f"Within one memory length the rank correlation of the steps with the {a} is {min(of_a):.2f} to "
        f"{max(of_a):.2f}, with the {b} {min(of_b):.2f} to {max(of_b):.2f}."
    )
    return Picture(fig, words, "F08b")


def cuts(tokens, uniform, adaptive, budget, eps, memory) -> Picture:
    """F08c. Error of the output by position, with a uniform cut and with a tolerance that spends as many steps.

    uniform, adaptive ``[heads, tokens]``: relative errors.
    """
    fig, ax = figure_axes()
    for error, colour, mark, name in ((uniform, RED, "s", "uniform"), (adaptive, BLUE, "o", "adaptive")):
        ax.semilogy(tokens, rms(error, 0), "-", color=colour, lw=1, marker=mark, ms=3, label=f"{name}, all heads")
    ax.semilogy(tokens, np.median(uniform, 0), ":", color=RED, lw=1.4, label="uniform, median")
    ax.set(xlabel="token", ylabel="error of the output", ylim=(1e-12, 10), yticks=[1e-12, 1e-8, 1e-4, 1])
    legend_above(ax, 3)
    worse = rms(uniform) / rms(adaptive)
    compare = f"{worse:.3g} times" if worse >= 1 else f"only {worse:.2g} times"
    words = (
        f"{memory}, {budget} steps for all: error {rms(uniform):.1e}; the same number on average, stopped at eps = "
        f"{eps:.1e}: {rms(adaptive):.1e}. The uniform cut has {compare} the error."
    )
    return Picture(fig, words, "F08c")


def rms(x, axis=None):
    return np.sqrt(np.mean(np.square(x), axis=axis))


def recall(uniform, adaptive, by_part, full) -> Picture:
    """F08d. A trained recall model with fewer steps than it was trained with.

    uniform, adaptive: (mean steps ``[N]``, loss ``[N]``); by_part: name -> accuracy lost in each part of the stream;
    full: the loss with all steps.
    """
    fig, (left, right) = figure_axes(1, 2, figsize=(6.4, 3.6))
    for (steps, loss), colour, mark, name in ((uniform, RED, "s", "uniform"), (adaptive, BLUE, "o", "adaptive")):
        left.semilogy(steps, np.maximum(loss - full, 1e-8), "-", color=colour, marker=mark, ms=4, lw=1.2, label=name)
    left.set(xlabel="steps, on average", ylabel="loss above that with all steps", ylim=(1e-7, 10))
    legend_above(left, 2)
    parts = np.arange(len(next(iter(by_part.values()))))
    width = 0.8 / len(by_part)
    colours = (RED, COLORS["orange"], BLUE)
    for i, ((name, lost), colour) in enumerate(zip(by_part.items(), colours, strict=False)):
        right.bar(parts + (i - (len(by_part) - 1) / 2) * width, 100 * np.asarray(lost), width, color=colour, label=name)
    right.set(xlabel="eighth of the stream", ylabel="accuracy lost, points", xticks=parts, xticklabels=parts + 1)
    legend_above(right, 2)
    (name, lost), *_ = by_part.items()
    lost = 100 * np.asarray(lost)
    words = (
        f"With all steps the loss is {full:.3f}. With {name} the model loses {lost[: len(lost) // 2].mean():.1f} "
        f"points of accuracy in the first half of the stream and {lost[len(lost) // 2 :].mean():.1f} in the second."
    )
    return Picture(fig, words, "F08d")


def lockstep(sizes, saved, by_steps) -> Picture:
    """F08e. The share of the solver's time that is saved when so many systems wait for their slowest.

    sizes ``[N]``; saved: name -> ``[N]``; by_steps: the saving in steps.
    """
    fig, ax = figure_axes()
    ax.axhline(100 * by_steps, color="0.6", lw=1, ls="-", label="steps saved")
    for (name, line), mark in zip(saved.items(), "os^", strict=False):
        ax.plot(sizes, 100 * np.asarray(line), marker=mark, ms=4, label=name)
    ax.set(xscale="log", xlabel="systems that wait for each other", ylabel="saved, per cent", ylim=(0, 100))
    _ticks(ax, sizes[::3])
    legend_above(ax, 2)
    name, line = next(iter(saved.items()))
    words = (
        f"The steps fall by {100 * by_steps:.0f} per cent, the time of the solve by {100 * line[0]:.0f} if every "
        f"system stops alone and by {100 * line[-1]:.0f} if {sizes[-1]} wait for each other ({name})."
    )
    return Picture(fig, words, "F08e")


def equal_time(ways, device, date) -> Picture:
    """F08f. What more time buys, by what it is spent on.

    ways: name -> (time relative to the layer that all start from, error far, error near), each ``[N]``, ordered.
    """
    fig, axes = figure_axes(1, 2, sharey=True, figsize=(6.4, 3.8))
    colours = (BLUE, COLORS["sky"], RED, GREEN, COLORS["black"])
    for (name, (time, *errors)), colour, mark in zip(ways.items(), colours, "osD^v", strict=False):
        for ax, error in zip(axes, errors, strict=True):
            ax.plot(time, error, "-", color=colour, marker=mark, ms=4, lw=1.2, label=name)
    for ax, kind in zip(axes, ("far", "near"), strict=True):
        ax.set(xscale="log", xlabel=f"time, {kind} questions", ylim=(0, 1.7))
        _ticks(ax, [0.25, 0.5, 1, 2, 4])
    axes[0].set(ylabel="error of the answer")
    legend_above(axes[0], 3)
    ends = [f"{name} {errors[0][-1]:.2f} far and {errors[1][-1]:.2f} near" for name, (_, *errors) in ways.items()]
    words = f"Errors at the most that was spent on each: {'; '.join(ends)}. Measured on {device}, {date}."
    return Picture(fig, words, "F08f")


def _ticks(ax, places) -> None:
    ax.set_xticks(places, [f"{x:g}" for x in places])
    ax.set_xticks([], minor=True)
