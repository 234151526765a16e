"""Each check of the notebooks sees a planted mistake, and is silent without one."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.notebook_checks import comparable, dead_links, drift, faults, mismatches, rows, unwatched

TEXT = r"""# 02 · Small

By [C02.1] and [X02.1], see F02a: $$a = b \tag{E02.1}$$

**Exercise 02.1 ★** Try. More in C03.1.
"""
CODE = """f = ...  # (E02.1)
claim("C02.1", "a", source="b", error=0, tol=0)
claim("X02.1", "c", source="d", error=1, tol=0, expect=False)
show(f, figure="F02a")
check("02.1", f, test)
check("02.1", solution, test)"""


def record(id):
    return new_output("display_data", {"text/html": f'<div id="{id}"></div>'}, metadata={"ttt_teach": {"id": id}})


def small(text=TEXT, code=CODE, drop=None, says="02.1 right"):
    """A notebook in which everything agrees, or the part that is given does not."""
    outputs = {
        "C02.1": record("C02.1"),
        "X02.1": record("X02.1"),
        "F02a": new_output("display_data", {"text/html": '<figure id="F02a"></figure>'}),
        "02.1": new_output("stream", text=f"02.1 not tried yet\n{says}\n"),
    }
    outputs.pop(drop, None)
    code_cell = new_code_cell(code, execution_count=1, outputs=list(outputs.values()))
    return new_notebook(cells=[new_markdown_cell(text), code_cell])


def test_ids_that_agree():
    assert mismatches("02", small()) == []
    assert mismatches("02", small(code=CODE.replace("(E02.1)", "")), "# the package: E02.1") == []


@pytest.mark.parametrize(
    ("notebook", "wrong"),
    [
        (small(TEXT.replace("[C02.1]", "")), "C02.1 is missing from the text"),
        (small(code=CODE.replace('claim("C02.1"', 'claim("C02.2"')), "C02.1 is missing from a call of claim"),
        (small(drop="C02.1"), "C02.1 is missing from the ledger"),
        (small(TEXT + "[C02.7]"), "C02.7 is missing from a call of claim"),
        (small(drop="X02.1"), "X02.1 is missing from the ledger"),
        (small(TEXT.replace(r"\tag{E02.1}", "(E02.1)")), "E02.1 is missing from a \\tag"),
        (small(code=CODE.replace("(E02.1)", "")), "E02.1 is missing from the code"),
        (small(code=CODE + "  # E02.9"), "E02.9 is missing from a \\tag"),
        (small(TEXT.replace("F02a", "it")), "F02a is missing from the text"),
        (small(code=CODE.replace("F02a", "it")), "F02a is missing from the code"),
        (small(drop="F02a"), "F02a is missing from the pictures shown"),
        (
            small(TEXT.replace("Exercise 02.1", "Exercise 02.2")),
            "02.1 is missing from the exercises in the text",
        ),
        (small(code=CODE.replace("check", "try")), "02.1 is missing from a call of check"),
        (small(drop="02.1"), "02.1 is missing from the checks shown"),
        (small(says="02.1 not yet: f(3) is 9"), "02.1 is missing from the solutions that are right"),
    ],
)
def test_an_id_in_only_some_places_is_named(notebook, wrong):
    assert wrong in mismatches("02", notebook)


def test_twins_differ_in_cells_or_tags():
    other, tagged = small(CODE, TEXT), small()
    tagged.cells[1].metadata["tags"] = ["solution"]
    assert comparable(small()) == comparable(small(drop="F02a"))
    assert len({repr(comparable(node)) for node in (small(), other, tagged)}) == 3


def test_a_cell_that_escapes_the_tests_is_found():
    notebook = small()
    assert unwatched(notebook) == ["the code cell 1 makes a claim and is not tagged nbval-check-output"]
    notebook.cells[1].metadata.tags = ["nbval-check-output"]
    assert unwatched(notebook) == []
    notebook.cells[1].metadata.tags += ["nbval-skip"]
    assert unwatched(notebook) == ["the code cell 1 is tagged nbval-skip"]


def test_an_execution_out_of_order_an_error_and_a_warning_are_faults():
    assert faults(small()) == []
    broken = small()
    broken.cells[1].execution_count = 4
    broken.cells[1].outputs += [
        new_output("error", ename="ValueError", evalue="no", traceback=[]),
        new_output("stream", name="stderr", text="careful"),
    ]
    assert faults(broken) == [
        "the code cell 1 has the execution count 4",
        "a cell ended in ValueError: no",
        "a cell warns: careful",
    ]


LINKS = "[a](b.ipynb) [c](b.ipynb#02--small) [d](b.ipynb#C02.1) [e](b.ipynb#E02.1) [f](#here) [g](https://h.i)"


@pytest.mark.parametrize(
    ("more", "dead"),
    [
        ("", []),
        ("\n# Here\n[x](none.md)", ["none.md: there is no none.md"]),
        ("![x](none.svg)", ["none.svg: there is no none.svg"]),
        ("[x](b.ipynb#C02.9)", ["b.ipynb#C02.9: there is no #C02.9 in b.ipynb"]),
        ("[x](#There)", ["#There: there is no #There in page.md"]),
        ("| [x](none.md) |\n| --- |", ["none.md: there is no none.md"]),
    ],
)
def test_dead_links_are_named(more, dead, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"## Here\n\n{LINKS}\n\n{more}\n")
    nbformat.write(small(), tmp_path / "b.ipynb")
    assert dead_links(page, page.read_text()) == dead


def test_rows_are_read_from_a_table():
    table = "| notebook | minutes |\n| --- | --- |\n| [02 · Small](notebooks/02-small.ipynb) | 5 |\n"
    assert rows(table) == {"02-small": ["02 · Small", "5"]}


FIGURE = "axes,artist,label,x,y\n0,line,a,0,10\n0,line,a,1,nan\n"


@pytest.mark.parametrize(
    ("fresh", "found"),
    [
        (FIGURE, []),
        (FIGURE.replace("10", "10.000001"), []),
        (FIGURE.replace("10", "10.0001"), ["y in row 1 was 10 and is 10.0001"]),
        (FIGURE.replace("nan", "0"), ["y in row 2 was nan and is 0"]),
        (FIGURE.replace("line,a,0", "line,b,0"), ["label in row 1 was a and is b"]),
        (FIGURE + "0,line,a,2,3\n", ["it had 3 rows and has 4, or rows of another length"]),
    ],
)
def test_drift_of_a_figure_is_named(fresh, found):
    assert drift(FIGURE, fresh) == found
