"""The pages of the papers lead to files that are there and that name the equation, and leave none out."""

import pathlib
import re

import pytest

from ttt_teach.site.prose import PAPERS

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / PAPERS).glob("*.md"))}
# The numbered equations that the package stands on.
NUMBERED = {"mesanet": {*range(1, 11), 39, 40}, "osdn": set(range(1, 8)), "lact": set(range(1, 8))}


def rows(page):
    """The rows of the tables of a page: what is cited, and the cells after it."""
    for line in PAGES[page].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0] != "in the paper" and not set(cells[0]) <= {"-", " "}:
            yield cells


def places():
    for page in PAGES:
        for cited, _, code, *_ in rows(page):
            for path in re.findall(r"\]\(([^)]+)\)", code):
                yield pytest.param(page, cited, path, id=f"{page}-{cited}-{pathlib.Path(path).parent.name}")


def numbers(text):
    """The equation numbers of "Eq. 3", "Eqs. (7)-(8)", "Eqs. 4, 7" and "Eqs. 1 to 4"."""
    found = set()
    for listed in re.findall(r"Eqs?\.\s*((?:\(?\d+\)?(?:\s*(?:,|-|–|to|and)\s*(?=\(?\d))?)+)", text):
        for first, last in re.findall(r"(\d+)\)?(?:\s*(?:-|–|to)\s*\(?(\d+))?", listed):
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_numbers_are_read():
    assert numbers("see Eq. (3), Eqs. 4, 7; Eqs. (7)-(8) and Eqs. 39 to 40") == {3, 4, 7, 8, 39, 40}


@pytest.mark.parametrize(("page", "cited", "path"), list(places()))
def test_the_file_is_there_and_cites_the_equation(page, cited, path):
    text = (ROOT / PAPERS / path).read_text(encoding="utf-8")
    wanted = numbers(cited)
    parts = re.findall(r"(?:App|Sec|Fig|Table|Algorithm|Lemma|Theorem)\w*\.? [A-Z]?\d*(?:\.\d+)?", cited)
    assert PAGES[page].removeprefix("# ").partition(":")[0] in text
    assert (wanted and wanted & numbers(text)) or any(part in text for part in parts)


@pytest.mark.parametrize("page", PAGES)
def test_every_equation_of_a_paper_is_on_its_page(page):
    cited = [numbers(cited) for cited, *_ in rows(page)]
    assert set().union(*cited) == NUMBERED[page]


@pytest.mark.parametrize("page", PAGES)
def test_every_row_says_what_checks_it(page):
    assert [cited for cited, *_, checked in rows(page) if not re.search(r"[CX]\d\d\.\d|\.py", checked)] == []
