"""Milliseconds of Python that one move of a slider costs: `python -m ttt_teach.bench [NOTEBOOK.py ...]`.

Runs every notebook as a plain script, then moves the sliders of each explorer it made, one step at a time.
"""

import contextlib
import datetime
import io
import platform
import random
import runpy
import statistics
import sys
import time
from pathlib import Path

import jax
import matplotlib

from ttt_teach.explore import EXPLORED

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
MOVES = 30
TARGET = 100  # ms


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


def main(names):
    matplotlib.use("agg")
    notebooks = [Path(name).resolve() for name in names] or sorted(NOTEBOOKS.glob("*.py"))
    device = jax.devices()[0].device_kind
    versions = f"Python {platform.python_version()}, jax {jax.__version__}, mpl {matplotlib.__version__}"
    print(f"{datetime.date.today()}, {device}, {versions}; {MOVES} moves each, target {TARGET} ms\n")
    print(f"{'notebook':28}figure  median  worst (ms)")
    for notebook in notebooks:
        for figure, explorer in run(notebook).items():
            times = milliseconds(explorer)
            print(f"{notebook.stem:28}{figure:6}{statistics.median(times):8.0f}{max(times):7.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
