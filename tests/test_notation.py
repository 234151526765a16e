"""The notation table of notebook 00 and the public signatures name the same arguments."""

import inspect
import pathlib
import re

import ttt_teach

NOTEBOOK = pathlib.Path(__file__).parent.parent / "notebooks" / "00-start-here.py"


def in_the_table() -> set[str]:
    section = NOTEBOOK.read_text(encoding="utf-8").split("# ## Notation\n")[1].split("# %%")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("# | ")][2:]
    return {name for cell in rows for name in re.findall(r"`(\w+)`", cell)} | {
        name for cell in rows for call in re.findall(r"`CG\((.*)\)`", cell) for name in call.split(", ")
    }


def in_signatures() -> set[str]:
    public = [getattr(ttt_teach, name) for name in ttt_teach.__all__]
    called = [f for f in public if inspect.isfunction(f) or f in (ttt_teach.CG, ttt_teach.PCG)]  # the rest holds arrays
    return {name for f in called for name in inspect.signature(f).parameters}


def test_every_argument_is_in_the_table_and_no_other():
    assert in_the_table() == in_signatures()
