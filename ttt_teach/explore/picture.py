"""A figure and the words that say what is seen in it."""

import base64
import csv
import html
import io
import os
import re
from functools import cached_property, singledispatch
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import Collection, PathCollection, QuadMesh
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.quiver import Quiver
from matplotlib.text import Text
from matplotlib.ticker import LogFormatterSciNotation, NullLocator

from ttt_teach.explore.style import style

_FEWEST_WORDS = 8
_SMALLEST_TEXT = 9  # points


class Picture:
    """A figure, closed and kept as SVG, with one sentence that says what is seen.

    fig: a matplotlib figure (`figure_axes` makes one).   figure: its id, as "F02a".
    words: eight words or more with a number in them; they are the caption and the text for who cannot see.
    """

    def __init__(self, fig, words, figure):
        if not isinstance(fig, Figure):
            raise TypeError(f"fig is {fig!r}; expected a matplotlib Figure")
        plt.close(fig)  # a no-op unless pyplot holds it; first, so that no error below leaks it
        self.words = _checked_words(words)
        self.figure = _checked_id(figure)
        self.svg = _svg(fig)
        self._drawn = _drawn(fig)
        _check_text(fig)  # after the drawing: to ask for all text makes ticks, also those that are not drawn

    def __repr__(self):
        return self.words

    @property
    def html(self):
        """The picture as an HTML figure that needs nothing else."""
        return (
            f'<figure id="{self.figure}" style="margin:0">{img(self)}'
            f"<figcaption>{html.escape(self.words)}</figcaption></figure>"
        )

    @cached_property
    def csv(self):
        """What the axes show, as rows of axes, artist, label, x, y, value.

        Covered: lines, scatter, bars (x and y of the bar's end; value: its length), images of one channel and
        `pcolormesh` (cell centres and values), arrows of `quiver` (start and tip), and the outline of every
        other patch or collection (bands, error bars, stems, contours). A line or band that spans the axes
        has that coordinate in 0..1. Not covered: text and its arrows, images in RGB, colour bars.
        """
        out = io.StringIO()
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["axes", "artist", "label", "x", "y", "value"])
        for axes, artist, label, points in self._drawn:
            for point in points:
                numbers = [f"{number:.9g}" for number in point]
                rows.writerow([axes, artist, label, *numbers, *[""] * (3 - len(numbers))])
        return out.getvalue()

    def save(self, folder):
        """Write <folder>/<figure>.svg and .csv."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in ((".svg", self.svg), (".csv", self.csv)):
            (folder / (self.figure + suffix)).write_text(text, encoding="utf-8")

    def _repr_mimebundle_(self, include=None, exclude=None):
        if folder := os.environ.get("TTT_TEACH_FIGURES"):
            self.save(folder)
        return {"text/html": self.html, "image/svg+xml": self.svg, "text/plain": self.words}


def plural(n, noun):
    """1 step, 2 steps."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def img(picture):
    """The picture as an <img> that fits its column and keeps a white ground on a dark page."""
    data = base64.b64encode(picture.svg.encode()).decode()
    return (
        f'<img alt="{html.escape(picture.words)}" src="data:image/svg+xml;base64,{data}" '
        'style="max-width:100%;height:auto;background:white">'
    )


def _checked_words(words):
    expected = f"one sentence of {_FEWEST_WORDS} words or more, with a number (in digits) and a full stop"
    if not isinstance(words, str):
        raise TypeError(f"words is {words!r}; expected {expected}")
    words = " ".join(words.split())
    if len(words.split()) < _FEWEST_WORDS or not re.search(r"\d", words) or words[-1] not in ".!?":
        raise ValueError(f"words is {words!r}; expected {expected}")
    return words


def _checked_id(figure):
    if not isinstance(figure, str) or not re.fullmatch(r"F\d\d[a-z]", figure):
        raise ValueError(f"figure is {figure!r}; expected an id such as 'F02a'")
    return figure


def _check_text(fig):
    for text in fig.findobj(Text):
        if text.get_visible() and text.get_text() and text.get_fontsize() < _SMALLEST_TEXT:
            size, words = text.get_fontsize(), text.get_text()
            raise ValueError(f"fig has {words!r} in {size:g} pt; expected {_SMALLEST_TEXT} pt or more")


# --- SVG


def _svg(fig):
    out = io.StringIO()
    with style():
        for axes in fig.axes:
            for axis in (axes.xaxis, axes.yaxis):
                _simplify_log(axis)
        # No metadata: neither a date nor matplotlib's version may change the bytes.
        nothing = dict.fromkeys(["Date", "Creator", "Format", "Type"])
        fig.savefig(out, format="svg", facecolor="white", metadata=nothing)
    return out.getvalue()


class _PowersOfTen(LogFormatterSciNotation):
    """Labels such as 10⁻³ as plain text."""

    _superscript = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

    def __call__(self, x, pos=None):
        label = super().__call__(x, pos)
        power = re.fullmatch(r"\$\\mathdefault\{(-?)10\^\{(.*)\}\}\$", label)
        if not power:
            return label
        return ("−" if power[1] else "") + "10" + power[2].translate(self._superscript)


class _PlainNumbers(LogFormatterSciNotation):
    """Labels such as 0.2, at the places that its base class chooses."""

    def __call__(self, x, pos=None):
        return super().__call__(x, pos) and f"{x:g}"


def _simplify_log(axis):
    """No maths in labels, no minor ticks where powers of ten do: a third of the time, half the bytes."""
    default = type(axis.get_major_formatter()) is LogFormatterSciNotation
    if not default or axis.get_transform().base != 10:
        return
    low, high = sorted(axis.get_view_interval())
    if high > 100 * low:
        axis.set_major_formatter(_PowersOfTen())
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_formatter(_PlainNumbers())
        axis.set_minor_formatter(_PlainNumbers())


# --- the data drawn


def _drawn(fig):
    """(axes, artist, label, points) of everything drawn; points are tuples (x, y) or (x, y, value)."""
    return [
        (number, *rest)
        for number, axes in enumerate(a for a in fig.axes if a.get_label() != "<colorbar>")
        for rest in _drawn_in(axes)
    ]


def _drawn_in(axes):
    bars = [container for container in axes.containers if isinstance(container, BarContainer)]
    in_bars = {id(bar) for container in bars for bar in container}
    patches = [patch for patch in axes.patches if id(patch) not in in_bars]
    artists = [*axes.lines, *axes.collections, *bars, *patches, *axes.images]
    counts = {}
    for artist in artists:
        kind, points = _points(artist)
        number = counts[kind] = counts.get(kind, -1) + 1
        label = str(artist.get_label())
        yield f"{kind}{number}", "" if label.startswith("_") else label, np.array(points, float)


@singledispatch
def _points(artist):
    """The kind of an artist and the points it shows, in the units of its axes."""
    return "other", []


@_points.register
def _(line: Line2D):
    return "line", line.get_xydata()


@_points.register
def _(dots: PathCollection):
    return "dots", _with_value(dots.get_offsets(), dots.get_array())


@_points.register
def _(arrows: Quiver):
    start = np.column_stack([arrows.X, arrows.Y])
    tip = start + np.column_stack([arrows.U, arrows.V])
    return "arrows", np.stack([start, tip], 1).reshape(-1, 2)


@_points.register
def _(mesh: QuadMesh):
    corners = mesh.get_coordinates()
    centres = (corners[:-1, :-1] + corners[1:, :-1] + corners[:-1, 1:] + corners[1:, 1:]) / 4
    return "mesh", _with_value(centres.reshape(-1, 2), mesh.get_array())


@_points.register
def _(image: AxesImage):
    values = image.get_array()
    if values.ndim != 2:
        return "other", []
    left, right, bottom, top = image.get_extent()
    if image.origin == "upper":
        bottom, top = top, bottom
    rows, columns = values.shape
    x = left + (np.arange(columns) + 0.5) * (right - left) / columns
    y = bottom + (np.arange(rows) + 0.5) * (top - bottom) / rows
    return "image", _with_value(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2), values)


@_points.register
def _(bars: BarContainer):
    return "bars", [_bar_end(bar, bars.orientation) for bar in bars]


@_points.register
def _(patch: Patch):
    return "shape", patch.get_patch_transform().transform_path(patch.get_path()).vertices


@_points.register
def _(arrow: FancyArrowPatch):
    return "other", []  # its outline is in pixels


@_points.register
def _(shapes: Collection):
    return "shape", np.concatenate([np.empty((0, 2)), *(path.vertices for path in shapes.get_paths())])


def _with_value(points, value):
    points = np.ma.filled(np.ma.asarray(points, float), np.nan)
    if value is None:
        return points
    return np.column_stack([points, np.ma.filled(np.ma.asarray(value, float), np.nan).ravel()])


def _bar_end(bar, orientation):
    x, y, width, height = bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()
    if orientation == "horizontal":
        return x + width, y + height / 2, width
    return x + width / 2, y + height, height
