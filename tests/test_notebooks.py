"""The notebooks as committed: pairs agree, twins were executed, ids, links, tables and figures match."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.notebook_checks import comparable, dead_links, faults, mismatches, rows, sources, unwatched
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


def test_the_figures_are_those_of_the_notebooks():
    """What is in them, nbval compares while it runs the notebooks (``nbval_figures.py``)."""
    twins = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb"))
    shown = set(re.findall(r'<figure id=\\"(F\d\d[a-z])\\"', twins))
    committed = {path.name for path in (ROOT / "figures").glob("F*")}
    assert committed == {f"{id}.{end}" for id in shown for end in ("svg", "csv")}


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
