"""While nbval runs a notebook: every frame of every slider is drawn, and the figures must be those in ``figures/``."""

import csv
import os
import tempfile
from pathlib import Path

import pytest
from nbval.plugin import IPyNbCell

from tests.notebook_checks import drift

FIGURES = Path(__file__).parents[1] / "figures"

# Half of a notebook's time is spent compiling, a quarter of that for speed which so few numbers do not repay. The
# twins, what the site's tests execute, and a notebook that measures (LIVE) are compiled as they are for everybody.
QUICKLY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

# Where the last bit decides, another processor draws other numbers: step counts in float32 are good to a few steps,
# float32 residuals to some per cent of the largest, and CG on an indefinite matrix goes where it likes, as does the
# inverse of recursive least squares once it has blown up. Iterates of CG on the way amplify roundings, their gradients
# more so (F06b), and a stop by tolerance may come a step earlier or later (F06d). The errors of F05c are roundings of
# float32 logarithms, whose last bit is the library's. Training amplifies roundings too: elsewhere it ends in another
# model that does the same (F07b, F07c, F07d, F08d). A stop that comes a step earlier or later moves a count of F08a,
# F08b and F08e, and an error of F08c. F10c adds up logarithms of losses down to rounding size. A pair that is told
# apart by the last bit moves a mean of F13b and F13e by an eighth, and a rounding to bfloat16 that falls the other way
# an error of F13c.
ROUNDED = {
    "F03d.csv": 1.0,
    "F04c.csv": 0.1,
    "F04d.csv": 1.0,
    "F04f.csv": 0.15,
    "F04g.csv": 0.15,
    "F05c.csv": 1e-3,
    "F06b.csv": 0.02,
    "F06d.csv": 0.01,
    "F07b.csv": 0.4,
    "F07c.csv": 0.5,
    "F07d.csv": 0.2,
    "F08a.csv": 0.15,
    "F08b.csv": 0.15,
    "F08c.csv": 0.1,
    "F08d.csv": 0.4,
    "F08e.csv": 0.05,
    "F10c.csv": 2e-5,
    "F13b.csv": 0.02,
    "F13c.csv": 1e-3,
    "F13e.csv": 0.01,
}

# Measured whenever the notebook runs, so of these only the words, the sizes and the number of points are compared.
LIVE = {"F12d.csv"}


class Drawn:
    """A plugin of pytest. A notebook's kernel starts with its first cell and takes the environment of that moment."""

    def __init__(self):
        self.folder, self.cells = None, 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if isinstance(item, IPyNbCell) and self.folder is None:
            self.folder = tempfile.TemporaryDirectory()
            measures = any(name.startswith(f"F{item.path.name[:2]}") for name in LIVE)
            flags = "" if measures else QUICKLY
            os.environ |= {"TTT_TEACH_STATIC": "1", "TTT_TEACH_FIGURES": self.folder.name, "XLA_FLAGS": flags}
        self.cells += isinstance(item, IPyNbCell)

    @pytest.hookimpl(trylast=True)  # after the kernel, or what fails here would leave it to the next notebook
    def pytest_runtest_teardown(self, item, nextitem):
        if isinstance(item, IPyNbCell) and (nextitem is None or nextitem.parent is not item.parent):
            del os.environ["TTT_TEACH_STATIC"], os.environ["TTT_TEACH_FIGURES"], os.environ["XLA_FLAGS"]
            with self.folder as folder:
                whole = self.cells == sum(cell.cell_type == "code" for cell in item.parent.nb.cells)
                self.folder, self.cells = None, 0
                moved = [f"{path.name}: {line}" for path in sorted(Path(folder).glob("*.csv")) for line in _moved(path)]
                drawn = {path.name for path in Path(folder).iterdir()}
                missing = {path.name for path in FIGURES.glob(f"F{item.path.name[:2]}*")} - drawn if whole else set()
            assert not moved, "\n".join(moved[:20])
            assert not missing, f"not drawn any more: {sorted(missing)}"


def _moved(path: Path) -> list[str]:
    committed, fresh = (folder.joinpath(path.name).read_text(encoding="utf-8") for folder in (FIGURES, path.parent))
    if path.name in LIVE:
        committed, fresh = _without_heights(committed), _without_heights(fresh)
    return drift(committed, fresh, ROUNDED.get(path.name, 1e-6))


def _without_heights(text: str) -> str:
    return "\n".join(",".join(row[:-2]) for row in csv.reader(text.splitlines()))
