"""What one move of a slider costs: every notebook is run as a plain script, then its sliders are moved step by step."""

import contextlib
import io
import random
import runpy
import statistics
import time
from pathlib import Path

import matplotlib

from ttt_teach.explore import EXPLORED

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
MOVES = 30


def milliseconds(explorer):
    """The time of each move of a random walk: from a slider's new value to the new picture in the widget."""
    walk = random.Random(0)
    times = []
    for _ in range(MOVES):
        slider = walk.choice(list(explorer.sliders.values()))
        last = len(slider.options) - 1
        neighbours = [i for i in (slider.index - 1, slider.index + 1) if 0 <= i <= last] or [slider.index]
        start = time.perf_counter()
        slider.index = walk.choice(neighbours)
        times.append(1e3 * (time.perf_counter() - start))
    return times


def run(notebook):
    """Run a notebook and give the explorers it made, by figure id."""
    EXPLORED.clear()
    with contextlib.chdir(notebook.parent), contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(notebook))
    return dict(EXPLORED)


def rows(notebooks=None):
    """Milliseconds of Python that one move of a slider costs: 30 moves each, to stay under 100 ms."""
    matplotlib.use("agg")
    yield f"{'notebook':28}figure  median  worst"
    for notebook in notebooks or sorted(NOTEBOOKS.glob("*.py")):
        for figure, explorer in run(notebook).items():
            times = milliseconds(explorer)
            yield f"{notebook.stem:28}{figure:6}{statistics.median(times):8.0f}{max(times):7.0f}"
