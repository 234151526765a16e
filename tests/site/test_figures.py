"""Twins and figures: the same run gives the same files, and what nobody draws any more goes."""

import jupytext
import nbformat
import pytest

from tests.site.conftest import HEADER, PLAIN, write_checkout
from ttt_teach.site import SiteError, figures
from ttt_teach.site.execute import tidy

DRAWS = (
    HEADER.format(title="Draws", question="What?", settles="Little.")
    + """
# %% [markdown]
# # Draws

# %%
import os

import ipywidgets
from IPython.display import display

# %%
folder = os.environ["TTT_TEACH_FIGURES"]
for end in ("svg", "csv"):
    with open(f"{folder}/F02a.{end}", "w") as file:
        file.write("drawn")
print("static" if "TTT_TEACH_STATIC" in os.environ else "live")
view = ipywidgets.IntSlider()._repr_mimebundle_()
display(view | {"text/html": "<p>start frame</p>", "image/svg+xml": "<svg/>"}, raw=True)

# %%
print(1)

# %%
print(1)
"""
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    root = write_checkout(tmp_path_factory.mktemp("drawn") / "root", _00_plain=PLAIN, _02_draws=DRAWS)
    (root / "figures").mkdir()
    for name in ("F02a.svg", "F02b.svg", "F05a.csv", "F00a.csv", "README.md"):
        (root / "figures" / name).write_text("old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TTT_TEACH_STATIC", "1")  # of whoever calls; the twins are live all the same
        figures("02-draws", root=root)
    return root


@pytest.fixture(scope="module")
def twin(drawn):
    return nbformat.read(drawn / "notebooks/02-draws.ipynb", as_version=4)


def test_a_twin_is_valid_executed_in_order_and_pairs_with_its_source(drawn, twin):
    nbformat.validate(twin)
    code = [cell for cell in twin.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3, 4]
    source = jupytext.read(drawn / "notebooks/02-draws.py")
    assert [(c.cell_type, c.source) for c in source.cells] == [(c.cell_type, c.source) for c in twin.cells]
    assert twin.metadata.ttt_teach == source.metadata.ttt_teach
    assert twin.metadata.jupytext.formats == "ipynb,py:percent"


def test_a_twin_shows_what_a_viewer_without_widgets_can(twin):
    stream, display, *_ = twin.cells[2].outputs
    assert stream.text == "live\n"
    assert set(display.data) == {"text/html", "text/plain"}
    assert "widgets" not in twin.metadata


def test_a_twin_holds_nothing_that_changes_from_run_to_run(drawn, twin):
    assert "version" not in twin.metadata.language_info
    assert not any("execution" in cell.metadata for cell in twin.cells)
    before = (drawn / "notebooks/02-draws.ipynb").read_bytes()
    figures("02-draws", root=drawn)
    assert (drawn / "notebooks/02-draws.ipynb").read_bytes() == before


def test_a_cell_keeps_its_id_when_others_change(twin):
    ids = [cell.id for cell in twin.cells]
    assert len(set(ids)) == len(ids)
    changed = nbformat.reads(nbformat.writes(twin), as_version=4)
    changed.cells.insert(1, nbformat.v4.new_markdown_cell("new"))
    tidy(changed)
    assert [cell.id for cell in changed.cells[2:]] == ids[1:]


def test_figures_that_no_notebook_draws_go_and_other_files_stay(drawn):
    # F00a belongs to a notebook that did not run now.
    files = {path.name: path.read_text() for path in (drawn / "figures").iterdir()}
    assert files == {"F02a.svg": "drawn", "F02a.csv": "drawn", "F00a.csv": "old", "README.md": "old"}


def test_a_name_must_be_that_of_a_notebook(drawn):
    with pytest.raises(SiteError, match="there is no notebook 02-drawn among 00-"):
        figures("02-drawn", root=drawn)


def test_a_failing_notebook_changes_nothing(tmp_path, capsys):
    root = write_checkout(tmp_path / "root", _00_plain=PLAIN, _02_draws=DRAWS + "\n# %%\n1 / 0\n")
    with pytest.raises(SiteError, match=r"^02-draws: (?s:.)*1 / 0(?s:.)*ZeroDivisionError"):
        figures(root=root)
    assert not (root / "figures").exists() and not list((root / "notebooks").glob("*.ipynb"))
    assert "00-plain  " in capsys.readouterr().err  # the others run to their end
