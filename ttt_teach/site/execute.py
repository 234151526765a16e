"""Notebooks: read from their percent sources, executed in fresh kernels, written as twins that diff well."""

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jupytext
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]  # the checkout, which holds notebooks/, figures/ and README.md
AT_A_TIME = 2
CELL_LIMIT = 600  # seconds
NOTEBOOK_BUDGET = 60  # seconds on two cores
HEADER = {"title": str, "question": str, "minutes": int, "seconds": int, "settles": str}
# A twin's HTML shows the start frame: a widget needs its kernel, and the same picture as SVG is half of the file.
BESIDE_HTML = ("application/vnd.jupyter.widget-view+json", "image/svg+xml")


class SiteError(Exception):
    """What the author of a notebook or of a page must repair, in words."""


@dataclass(frozen=True)
class Notebook:
    """One percent source: its name, such as 02-correlated-keys, and its cells, with outputs once executed."""

    name: str
    node: NotebookNode

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def header(self) -> dict:
        return self.node.metadata.ttt_teach


def load(folder: Path) -> list[Notebook]:
    """Every notebook of a folder, by number, without outputs."""
    notebooks = [Notebook(path.stem, jupytext.read(path)) for path in sorted(folder.glob("[0-9][0-9]-*.py"))]
    if not notebooks:
        raise SiteError(f"{folder} holds no notebook: no file NN-name.py")
    for notebook in notebooks:
        _check_header(notebook)
    return notebooks


def chosen(notebooks: list[Notebook], names: Sequence[str]) -> list[Notebook]:
    """Those of these names, or all where none is named."""
    if unknown := set(names) - {notebook.name for notebook in notebooks}:
        there = ", ".join(notebook.name for notebook in notebooks)
        raise SiteError(f"there is no notebook {', '.join(sorted(unknown))} among {there}")
    return [notebook for notebook in notebooks if not names or notebook.name in names]


def twin(notebook: Notebook, root: Path) -> Notebook:
    """The notebook with the outputs that its twin holds."""
    try:
        return Notebook(notebook.name, jupytext.read(_twin_path(notebook, root)))
    except OSError as error:
        raise SiteError(f"{notebook.name} has no twin to show ({error.strerror}); let it be executed") from error


def _twin_path(notebook: Notebook, root: Path) -> Path:
    return root / "notebooks" / f"{notebook.name}.ipynb"


def _check_header(notebook: Notebook) -> None:
    header = notebook.node.metadata.get("ttt_teach", {})
    for key, kind in HEADER.items():
        if not isinstance(header.get(key), kind) or not header[key]:
            raise SiteError(
                f"{notebook.name}: ttt_teach.{key} in the header is {header.get(key)!r}; expected "
                + ("a whole number above 0" if kind is int else "a sentence")
            )


def execute(notebooks: list[Notebook], folder: Path, figures: Path, *, static: bool) -> list[float]:
    """Run each notebook in a fresh kernel that starts in ``folder``; its outputs are then in it.

    Pictures are also written to ``figures``; with ``static`` sliders are drawn out over all their values.
    Returns the seconds that each took. Raises SiteError with the cells that failed and their tracebacks.
    """
    env = dict(os.environ, TTT_TEACH_FIGURES=str(figures))
    env.pop("TTT_TEACH_STATIC", None)
    if static:
        env["TTT_TEACH_STATIC"] = "1"
    results = asyncio.run(_execute_all(notebooks, folder, env), loop_factory=_Loop)
    failures = [result for result in results if isinstance(result, SiteError)]
    if failures:
        raise SiteError("\n\n".join(map(str, failures)))
    return results


class _Loop(asyncio.SelectorEventLoop):
    """Ctrl-C cancels all notebooks: nbclient, when it may handle signals, stops only its own."""

    def add_signal_handler(self, *_) -> None:
        raise RuntimeError("signals are left to asyncio")


async def _execute_all(notebooks: list[Notebook], folder: Path, env: dict) -> list[float | SiteError]:
    turns = asyncio.Semaphore(AT_A_TIME)

    async def in_turn(notebook: Notebook) -> float | SiteError:
        async with turns:
            return await _execute(notebook, folder, env)

    return await asyncio.gather(*map(in_turn, notebooks))


async def _execute(notebook: Notebook, folder: Path, env: dict) -> float | SiteError:
    client = NotebookClient(
        notebook.node,
        km=AsyncKernelManager(kernel_spec_manager=_ThisPython()),
        timeout=CELL_LIMIT,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        # A traceback without terminal codes; no word about the loopback not being encrypted.
        extra_arguments=["--InteractiveShell.colors=nocolor", "--log-level=ERROR"],
    )
    start = time.perf_counter()
    try:
        await client.async_execute(env=env, cleanup_kc=True)  # not ours to keep
    except (CellControlSignal, CellTimeoutError, DeadKernelError) as error:
        _say(f"{notebook.name}  failed")
        return SiteError(f"{notebook.name}: {error}")
    seconds = time.perf_counter() - start
    _say(f"{notebook.name}  {seconds:.1f} s")
    return seconds


class _ThisPython(KernelSpecManager):
    """The kernel is the Python that runs this file, whatever kernels are installed for the user."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(resource_dir="", **get_kernel_dict())


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def figures(*names: str, root: Path = ROOT) -> None:
    """Execute the named notebooks (default: all) and write their twins, NN-name.ipynb, and their figures."""
    notebooks = load(root / "notebooks")
    drawing = chosen(notebooks, names)
    with tempfile.TemporaryDirectory() as drawn:
        seconds = execute(drawing, root / "notebooks", Path(drawn), static=False)
        for notebook in drawing:
            tidy(notebook.node)
            text = jupytext.writes(notebook.node, fmt="ipynb") + "\n"
            _twin_path(notebook, root).write_text(text, encoding="utf-8")
        _replace_figures(root / "figures", Path(drawn), drawing, notebooks)
    for notebook, spent in zip(drawing, seconds, strict=True):
        if spent > NOTEBOOK_BUDGET:
            _say(f"warning: {notebook.name} took {spent:.0f} s; its budget is {NOTEBOOK_BUDGET} s")


def _replace_figures(old: Path, new: Path, executed: list[Notebook], all_notebooks: list[Notebook]) -> None:
    """F02a belongs to notebook 02: what its notebook, or no notebook, draws any more is deleted."""
    kept = {notebook.number for notebook in all_notebooks} - {notebook.number for notebook in executed}
    old.mkdir(exist_ok=True)
    for path in [*old.glob("F*.svg"), *old.glob("F*.csv")]:
        if path.name[1:3] not in kept:
            path.unlink()
    for path in new.iterdir():
        shutil.copyfile(path, old / path.name)


def tidy(node: NotebookNode) -> None:
    """Drop what differs from run to run or cannot be shown without a kernel; name the cells by content."""
    node.metadata.get("language_info", {}).pop("version", None)
    node.metadata.pop("widgets", None)
    seen = {}
    for cell in node.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = f"{digest}-{seen[digest]}"
        cell.metadata.pop("lines_to_next_cell", None)  # jupytext's note to itself
        for output in cell.get("outputs", []):
            if "text/html" in (data := output.get("data", {})):
                for kind in BESIDE_HTML:
                    data.pop(kind, None)
