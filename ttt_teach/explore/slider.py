"""`explore`: sliders over a pure function from values to a `Picture`, with a kernel and without."""

import contextlib
import gc
import html
import itertools
import json
import math
import os
from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

import ipywidgets as widgets

from ttt_teach.explore.picture import Picture, img
from ttt_teach.explore.style import style

# The live explorers made so far by figure id; a cell that runs again replaces its own.
EXPLORED = {}


def explore(draw, /, *, start=None, **values):
    """Sliders, one per keyword (one or two), over the pictures of `draw(**{name: value})`.

    Each keyword is a sequence of different numbers or strings. start: {name: value}; default: the middle.
    With a kernel a move draws anew. When TTT_TEACH_STATIC is 1 every combination is drawn now, each must
    differ from all others in picture and words, and the result is HTML that needs no kernel and no network.
    """
    parameters = _parameters(values, start or {})
    if os.environ.get("TTT_TEACH_STATIC") == "1":
        return Frames(draw, parameters)
    return Explorer(draw, parameters)


# --- parameters


class Parameter(NamedTuple):
    name: str
    values: tuple
    labels: tuple  # how the values read
    start: int  # an index


def _parameters(values, start):
    if not 1 <= len(values) <= 2:
        raise ValueError(f"values has {len(values)} parameters {list(values)}; expected one or two")
    if strange := [name for name in start if name not in values]:
        raise ValueError(f"start names {strange}; expected parameters out of {list(values)}")
    return [_parameter(name, choices, start) for name, choices in values.items()]


def _parameter(name, choices, start):
    choices = _listed(name, choices)
    labels = tuple(_label(name, value) for value in choices)
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{name} holds {label!r} {labels.count(label)} times; expected different values")
    index = len(choices) // 2
    if name in start:
        if start[name] not in choices:
            raise ValueError(f"start has {name}={start[name]!r}; expected one of {', '.join(labels)}")
        index = choices.index(start[name])
    return Parameter(name, choices, labels, index)


def _listed(name, choices):
    if hasattr(choices, "tolist"):
        choices = choices.tolist()
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise ValueError(f"{name} is {choices!r}; expected a list, tuple, range or array, and not empty")
    return tuple(choices)


def _label(name, value):
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise ValueError(f"{name} holds {value!r}; expected numbers or strings that are not blank")
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _draw(draw, choice):
    with style(), _no_garbage_collection():
        picture = draw(**choice)
    if not isinstance(picture, Picture):
        raise TypeError(f"draw returned {type(picture).__name__} for {choice}; expected a Picture")
    return picture


@contextlib.contextmanager
def _no_garbage_collection():
    """A collection that met the figure alive would leave it, some 10,000 objects, to a full one of 0.2 s."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# --- with a kernel

# ipywidgets gives its sliders no accessible name, and as their spoken value the index. A widget may carry no
# script, so the picture repairs both whenever it is loaded.
_NAME_SLIDERS = """
for (const row of this.closest('.widget-vbox')?.querySelectorAll('.widget-slider') ?? []) {
  const handle = row.querySelector('[role=slider]');
  handle.setAttribute('aria-label', row.querySelector('.widget-label').textContent);
  handle.setAttribute('aria-valuetext', row.querySelector('.widget-readout').textContent);
}"""


class Explorer(widgets.VBox):
    """Sliders above one picture, which every move replaces."""

    def __init__(self, draw, parameters):
        self._draw, self._values = draw, {p.name: p.values for p in parameters}
        self.sliders = {p.name: _slider(p) for p in parameters}
        self._start = self.picture = _draw(draw, self.choice)
        self._view = widgets.HTML(_live_html(self.picture))
        super().__init__([*self.sliders.values(), self._view])
        for slider in self.sliders.values():
            slider.observe(self._move, "index")
        EXPLORED[self.picture.figure] = self

    @property
    def choice(self):
        """The values that the sliders show."""
        return {name: self._values[name][slider.index] for name, slider in self.sliders.items()}

    def _move(self, _change):
        try:
            self.picture = _draw(self._draw, self.choice)
        except Exception as error:
            message = html.escape(f"{type(error).__name__}: {error}")
            self._view.value = f'<pre role="alert">{message}</pre>'
            raise
        self._view.value = _live_html(self.picture)

    def _repr_mimebundle_(self, **kwargs):
        # The start frame is for viewers without widgets; its words replace the widget's own text.
        return super()._repr_mimebundle_(**kwargs) | self._start._repr_mimebundle_()


def _live_html(picture):
    return picture.html.replace("<img ", f'<img onload="{html.escape(_NAME_SLIDERS)}" ', 1)


def _slider(parameter):
    return widgets.SelectionSlider(
        options=parameter.labels,
        index=parameter.start,
        description=parameter.name,
        tooltip=parameter.name,  # without one the label's reads "null"
        style={"description_width": "initial"},
        layout={"width": "min(100%, 30rem)"},
    )


# --- without a kernel

# Frames are percent-encoded SVG and not base64: smaller, and a web server compresses what they share.
_SCRIPT = """(() => {
  const figure = document.currentScript.closest("figure"), frames = %s, labels = %s;
  const [image, caption] = figure.querySelectorAll("img, figcaption");
  const inputs = [...figure.querySelectorAll("input")], outputs = figure.querySelectorAll("output");
  const show = () => {
    let frame = 0;
    inputs.forEach((input, i) => {
      const label = labels[i][input.value];
      frame = frame * labels[i].length + Number(input.value);
      outputs[i].value = label;
      input.setAttribute("aria-valuetext", label);
    });
    const [svg, words] = frames[frame];
    image.src = "data:image/svg+xml," + encodeURIComponent(svg);
    image.alt = caption.textContent = words;
  };
  for (const input of inputs) {
    input.disabled = false;
    input.addEventListener("input", show);
    // JupyterLab would take the arrows for itself; it may have Ctrl+S.
    input.addEventListener("keydown", event => event.ctrlKey || event.metaKey || event.stopPropagation());
  }
})();"""


class Frames:
    """Range inputs over every picture, drawn now, as one HTML figure."""

    def __init__(self, draw, parameters):
        self.parameters = parameters
        names = [p.name for p in parameters]
        grid = itertools.product(*(p.values for p in parameters))
        self.pictures = _distinct(draw, [dict(zip(names, values, strict=True)) for values in grid])
        place = 0
        for p in parameters:
            place = place * len(p.values) + p.start
        self._start = self.pictures[place]

    def __repr__(self):
        return self._start.words

    @property
    def html(self):
        start = self._start
        script = _SCRIPT % (
            _json([[picture.svg, picture.words] for picture in self.pictures]),
            _json([p.labels for p in self.parameters]),
        )
        return (
            f'<figure id="{start.figure}" class="explorer" style="margin:0">'
            f"{''.join(map(_range, self.parameters))}{img(start)}"
            f'<figcaption aria-live="polite">{html.escape(start.words)}</figcaption>'
            f"<script>{script}</script></figure>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        return self._start._repr_mimebundle_() | {"text/html": self.html}


def _distinct(draw, choices):
    pictures, seen = [], {}
    for choice in choices:
        picture = _draw(draw, choice)
        if pictures and picture.figure != pictures[0].figure:
            raise ValueError(f"draw gave figure {picture.figure} for {choice}; expected {pictures[0].figure}")
        for what in ("svg", "words"):
            twin = seen.setdefault((what, getattr(picture, what)), choice)
            if twin is not choice:
                raise ValueError(f"draw gave the same {what} for {twin} and {choice}; expected all to differ")
        pictures.append(picture)
    return pictures


def _range(parameter):
    """One labelled row. The script enables the input: without one it would be a slider that does nothing."""
    name, label = html.escape(parameter.name), html.escape(parameter.labels[parameter.start])
    return (
        f'<div><label>{name} <input type="range" min="0" max="{len(parameter.values) - 1}" step="1" '
        f'value="{parameter.start}" aria-valuetext="{label}" autocomplete="off" disabled '
        'style="width:min(18em,60%);vertical-align:middle"></label> '
        f'<output aria-live="off">{label}</output></div>'
    )


def _json(data):
    """JSON that cannot end the script element it stands in, whatever the strings say."""
    return json.dumps(data, separators=(",", ":")).replace("</", "<\\/").replace("<!", "\\u003c!")
