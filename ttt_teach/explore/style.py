"""The look of every picture. It applies while a picture is drawn and never to the reader's own matplotlib."""

from cycler import cycler
from matplotlib import style as mpl_style
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers.
COLORS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
}

# Lines use the five colours with a contrast above 3:1 on white. Five colours against four dashes
# give twenty different pairs, and neighbours differ in both, so colour is never the only sign.
_LINE_COLORS = [COLORS[name] for name in ("blue", "vermilion", "green", "purple", "black")]
_DASHES = ["-", "--", "-.", ":"]

# Only what is read when axes are made or saved, so that a draw function gives the same bytes in `explore`
# as outside it.
_STYLE = {
    "figure.figsize": (6.4, 3.6),
    # Fixed margins: axes that stay in place while a slider moves, and half the time of a layout engine.
    "figure.subplot.left": 0.13,
    "figure.subplot.right": 0.97,
    "figure.subplot.bottom": 0.14,
    "figure.subplot.top": 0.9,
    "figure.subplot.wspace": 0.3,
    "figure.subplot.hspace": 0.45,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=_LINE_COLORS * 4) + cycler(linestyle=_DASHES * 5),
    "svg.fonttype": "none",  # text stays text: small, sharp and searchable
    "svg.hashsalt": "ttt_teach",  # the same figure gives the same bytes
}


def style():
    """A context in which matplotlib has its own defaults and our changes, whatever the reader has set."""
    return mpl_style.context(["default", _STYLE])


def figure_axes(nrows=1, ncols=1, *, figsize=None, **subplots):
    """A figure and its axes as `plt.subplots` gives them, styled and unknown to pyplot: nothing to close."""
    with style():
        figure = Figure(figsize=figsize)
        return figure, figure.subplots(nrows, ncols, **subplots)


def legend_above(ax, columns: int) -> None:
    """A legend over the axes, where no line can run into it, whatever the sliders say."""
    rows = -(-len(ax.get_legend_handles_labels()[0]) // columns)
    ax.figure.subplots_adjust(top=min(ax.figure.subplotpars.top, 0.97 - 0.07 * rows))
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=columns, columnspacing=1.2, frameon=False)
