"""Check cells under nbval: the digits of an error may change, nothing else may."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

RULES = Path(__file__).parents[1] / "nbval_sanitize.cfg"
CELL = 'from ttt_teach.ledger import claim\nclaim("C02.{}", "a is b", source="Eq. 1", error=2.2e-16, tol=1e-12)'
CHANGES = [  # to each cell, after its output was stored
    ("2.2e-16", "2.2e-16"),
    ("2.2e-16", "0"),
    ("2.2e-16", "3.14159e-15"),
    ("tol=1e-12", "tol=1e-11"),
    ("a is b", "a is c"),
    ("Eq. 1", "Eq. 2"),
]


def test_only_the_digits_of_an_error_may_change(tmp_path):
    tags = {"tags": ["nbval-check-output"]}
    cells = [nbformat.v4.new_code_cell(CELL.format(n), metadata=tags) for n in range(len(CHANGES))]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, kernel_name="python3").execute()
    for cell, change in zip(cells, CHANGES, strict=True):
        cell.source = cell.source.replace(*change)
    nbformat.write(notebook, tmp_path / "one.ipynb")

    options = [
        "--nbval-lax",
        "--nbval-current-env",
        f"--nbval-sanitize-with={RULES}",
        "-p",
        "no:cacheprovider",
        "-rA",
    ]
    command = [sys.executable, "-m", "pytest", *options, "one.ipynb"]
    report = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert re.findall(r"^PASSED .*Cell (\d)", report, re.MULTILINE) == ["0", "1", "2"]
    assert re.findall(r"^FAILED .*Cell (\d)", report, re.MULTILINE) == ["3", "4", "5"]
