"""The README's tables of equations lead to files that are there and that name the equation."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SECTION = (ROOT / "README.md").read_text(encoding="utf-8").split("## Where an equation lives\n")[1].split("\n## ")[0]


def rows():
    paper = None
    for line in SECTION.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5 or set(cells[1]) == {"-", " "}:
            continue
        if cells[3] == "code":
            paper = cells[1].split(",")[0]
        elif paper:
            for path in re.findall(r"\]\(([^)]+)\)", cells[3]):
                yield pytest.param(paper, cells[1], path, id=f"{paper}-{cells[1]}-{pathlib.Path(path).parent.name}")


def numbers(text):
    """The equation numbers of "Eq. 3", "Eqs. (7)-(8)", "Eqs. 4, 7" and "Eqs. 1 to 4"."""
    found = set()
    for listed in re.findall(r"Eqs?\.\s*((?:\(?\d+\)?(?:\s*(?:,|-|–|to|and)\s*(?=\(?\d))?)+)", text):
        for first, last in re.findall(r"(\d+)\)?(?:\s*(?:-|–|to)\s*\(?(\d+))?", listed):
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_numbers_are_read():
    assert numbers("see Eq. (3), Eqs. 4, 7; Eqs. (7)-(8) and Eqs. 39 to 40") == {3, 4, 7, 8, 39, 40}


@pytest.mark.parametrize(("paper", "cited", "path"), list(rows()))
def test_the_file_is_there_and_cites_the_equation(paper, cited, path):
    text = (ROOT / path).read_text(encoding="utf-8")
    wanted = numbers(cited)
    parts = re.findall(r"(?:App|Sec|Fig|Alg|Lemma|Theorems)\w*\.? [A-Z\d.]+", cited)
    assert paper in text
    assert (wanted and wanted & numbers(text)) or any(part.split()[-1] in text for part in parts)
