"""The ladders to the kernels: of each rung what changed, what was predicted, what was measured and what became of it.

    python -m ttt_teach.bench.rungs            # the log, as a table
    python -m ttt_teach.bench.rungs --device   # times of the rungs of notebook 20 on this GPU, in turn

Times are milliseconds at the sizes of ``bench.device``, forward and with the backward pass.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ttt_teach.bench import clock, device
from ttt_teach.bench.peers import Jax
from ttt_teach.rules import tiles
from ttt_teach.rules.linear import linear

RESULTS = Path(__file__).parent / "results" / "rungs.json"
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "20-kernels-on-hopper.py"
PASSES = ("forward", "both")


class Rung(NamedTuple):
    """One change to a kernel. A prediction is written down before the measurement; None: there is none."""

    rule: str  # a case of bench.device
    rung: str
    changed: str
    predicted: dict[str, float | None]  # ms of each of PASSES
    measured: dict[str, float | None]
    outcome: str  # what the measurement said of the prediction
    date: str  # of the measurement
    commit: str  # the first line of its message, which `git log --grep` finds, or "not kept"


def load(path: Path = RESULTS) -> dict[str, list[Rung]]:
    """The rungs of each rule, in the order in which they were climbed. Raises ValueError for a file that has others."""
    rungs = {}
    for entry in json.loads(path.read_text(encoding="utf-8")):
        if set(entry) != set(Rung._fields):
            raise ValueError(f"{path} holds a rung with {sorted(entry)}; expected {sorted(Rung._fields)}")
        rung = Rung(**entry)
        for name, told in (("predicted", rung.predicted), ("measured", rung.measured)):
            if set(told) != set(PASSES) or not all(ms is None or ms > 0 for ms in told.values()):
                raise ValueError(
                    f"{path}: {name} of {rung.rung!r} is {told}; expected ms above 0, or null, of {PASSES}"
                )
        rungs.setdefault(rung.rule, []).append(rung)
    return rungs


def miss(rung: Rung, part: str) -> float | None:
    """Measured over predicted, if there are both."""
    predicted, measured = rung.predicted[part], rung.measured[part]
    return None if predicted is None or measured is None else measured / predicted


def table(rungs: dict[str, list[Rung]]) -> Iterator[str]:
    yield f"{'':44}{'predicted':>16}{'measured':>16}{'ratio':>14}   ms: forward, with backward"
    for rule, climbed in rungs.items():
        yield rule
        for rung in climbed:
            ratios = [miss(rung, part) for part in PASSES]
            columns = [told.values() for told in (rung.predicted, rung.measured)] + [ratios]
            cells = [" / ".join("-" if x is None else f"{x:.3g}" for x in column) for column in columns]
            yield f"  {rung.rung:42}{cells[0]:>16}{cells[1]:>16}{cells[2]:>14}".rstrip()


# -- measuring those of notebook 20 ------------------------------------------------------------------------------------


def kernels(path: Path = NOTEBOOK) -> dict[str, Callable]:
    """What the cells of the notebook that are tagged ``rung`` define, by name: (q, k, v, G) -> o."""
    cells = re.split(r"(?m)^# %% ?", path.read_text(encoding="utf-8"))
    source = "\n".join(cell.partition("\n")[2] for cell in cells if cell.startswith('tags=["rung"]'))
    defined = {}
    exec(compile(source, str(path), "exec"), defined)
    return defined["RUNGS"]


def contestants() -> dict[str, Callable]:
    """Linear attention's forms, the notebook's kernels and the package's: ``call(q, k, v, log_decay) -> (o, S)``."""

    def given(kernel, q, k, v, log_decay):
        return kernel(q, k, v, tiles.sums(log_decay))

    forms = {form: partial(linear, form=form) for form in ("recurrent", "chunk")}
    return forms | {n: partial(given, f) for n, f in kernels().items()} | {"package": partial(linear, form="kernel")}


def ladder(calls: dict[str, Callable], args: dict) -> Iterator[str]:
    """Medians of each, in turn, and how far its outputs are from those of the chunk form. The first is slow: a scan."""
    runs = {name: Jax(call).forward(args) for name, call in calls.items()}
    outputs = {name: np.asarray(run()[0]).astype(np.float32) for name, run in runs.items()}
    timed = {name: partial(clock.queued, run) for name, run in runs.items()}
    slow = next(iter(timed))
    turns = clock.in_turn({slow: timed.pop(slow)}, device.SCANS, device.TURN, device.MOST)
    turns |= clock.in_turn(timed, device.ROUNDS, device.TURN, device.MOST)
    for name, some in turns.items():
        error = np.linalg.norm(outputs[name] - outputs["chunk"]) / np.linalg.norm(outputs["chunk"])
        low, ms, high = np.percentile([turn.ms for turn in some], [25, 50, 75])
        yield f"{name:12}{ms:9.4f} ms, quartiles {low:.4f} to {high:.4f}, off {error:.1e}"


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ttt_teach.bench.rungs", description=__doc__.splitlines()[0])
    parser.add_argument("--device", action="store_true", help="measure the rungs of notebook 20 on this GPU")
    if parser.parse_args(arguments).device:
        lines = ladder(contestants(), device.draw(device.CASES["linear"])[0])
    else:
        lines = table(load())
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
