"""The notebooks as committed: pairs agree, twins were executed, ids, links, tables and figures match."""

import csv
import re
from pathlib import Path

import nbformat
import pytest

from tests.notebook_checks import comparable, dead_links, drift, faults, mismatches, rows, sources, unwatched
from ttt_teach.site import prose
from ttt_teach.site.execute import HEADER, load
from ttt_teach.site.pages import claims

ROOT = Path(__file__).parents[1]
NOTEBOOKS = load(ROOT / "notebooks")
SIZE = 400_000  # bytes of a twin
# What may mention an id of a notebook; the docstrings of ledger and site mention some as examples.
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "ttt_teach").rglob("*.py"))
    if path.relative_to(ROOT / "ttt_teach").parts[0] not in ("ledger", "site")
)

# Where the last bit decides, another processor draws other numbers: step counts in float32 are good to a few steps,
# float32 residuals to some per cent of the largest, and CG on an indefinite matrix goes where it likes, as does the
# inverse of recursive least squares once it has blown up. Iterates of CG on the way amplify roundings, their gradients
# more so (F06b), and a stop by tolerance may come a step earlier or later (F06d). The errors of F05c are roundings of
# float32 logarithms, whose last bit is the library's. Training amplifies roundings too: elsewhere it ends in
# another model that does the same (F07b, F07c, F07d, F08d). A stop that comes a step earlier or later moves a count of
# F08a, F08b and F08e, and an error of F08c. A pair that is told apart by the last bit moves a mean of F13b and F13e by
# an eighth, and a rounding to bfloat16 that falls the other way an error of F13c.
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
    "F13b.csv": 0.02,
    "F13c.csv": 1e-3,
    "F13e.csv": 0.01,
}

# Measured whenever the notebook runs, so of these only the words, the sizes and the number of points are compared.
LIVE = {"F12d.csv"}

PAPERS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / prose.PAPERS).glob("*.md")}

each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)


@pytest.fixture
def twin(notebook):
    return nbformat.read(ROOT / "notebooks" / f"{notebook.name}.ipynb", as_version=4)


# --- pairs and execution


def test_every_notebook_is_a_pair():
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == {n.name for n in NOTEBOOKS}


@each_notebook
def test_twins_hold_the_same_cells_and_header(notebook, twin):
    assert comparable(notebook.node) == comparable(twin)
    assert twin.metadata.ttt_teach == notebook.header and set(notebook.header) == set(HEADER)


@each_notebook
def test_a_twin_was_executed_in_order_and_is_small(notebook, twin):
    assert not (found := faults(twin)), "\n".join(found)
    assert (ROOT / "notebooks" / f"{notebook.name}.ipynb").stat().st_size <= SIZE


@each_notebook
def test_no_cell_escapes_the_tests(notebook):
    assert unwatched(notebook.node) == []


@each_notebook
def test_a_notebook_begins_with_its_title(notebook):
    first, *_ = notebook.node.cells[0].source.splitlines()
    assert first.startswith("# ") and first.endswith(notebook.header["title"])


# --- ids


@each_notebook
def test_ids_are_in_text_code_and_ledger_alike(notebook, twin):
    assert not (found := mismatches(notebook.number, twin, CODE)), "\n".join(found)


# --- links


@each_notebook
def test_links_of_a_notebook_lead_somewhere(notebook, twin):
    path = ROOT / "notebooks" / f"{notebook.name}.ipynb"
    assert not (found := dead_links(path, sources(twin, "markdown"))), "\n".join(found)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_a_page_lead_somewhere(name):
    found = dead_links(ROOT / name, (ROOT / name).read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


# --- the table in the README


def test_the_table_in_the_readme_says_what_the_headers_say():
    expected = {
        n.name: [f"{n.number} · {n.header['title']}", str(n.header["minutes"]), n.header["settles"]] for n in NOTEBOOKS
    }
    assert rows((ROOT / "README.md").read_text(encoding="utf-8")) == expected


# --- figures


def figures(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("F*.*"))}


def without_heights(text: str) -> str:
    return "\n".join(",".join(row[:-2]) for row in csv.reader(text.splitlines()))


def test_the_figures_are_what_the_notebooks_draw(site):
    committed, fresh = figures(ROOT / "figures"), figures(site / "figures")
    assert committed.keys() == fresh.keys()
    data = [name for name in fresh if name.endswith(".csv")]
    for name in LIVE:
        committed[name], fresh[name] = without_heights(committed[name]), without_heights(fresh[name])
    moved = {name: drift(committed[name], fresh[name], ROUNDED.get(name, 1e-6)) for name in data}
    assert {name: found for name, found in moved.items() if found} == {}


# --- the site (that its own links lead somewhere is checked whenever it is built)


def test_the_site_has_a_page_for_every_notebook_and_reading_paths(site):
    pages = {"index.html", "ledger.html", *(f"{name}.html" for name in [*PAPERS, *(n.name for n in NOTEBOOKS)])}
    assert {path.name for path in site.glob("*.html")} == pages
    assert 'id="reading-paths"' in (site / "index.html").read_text(encoding="utf-8")


@each_notebook
def test_every_claim_is_on_the_ledger_page(notebook, twin, site):
    ledger = (site / "ledger.html").read_text(encoding="utf-8")
    for record in claims(twin):
        assert f'href="{notebook.name}.html#{record["id"]}"' in ledger


@each_notebook
def test_every_erratum_is_on_the_page_of_a_paper(notebook, twin):
    listed = "\n".join(PAPERS.values())
    errata = [record["id"] for record in claims(twin) if not record["expect"]]
    assert [id for id in errata if not re.search(rf"\b{id}\b", listed)] == []
