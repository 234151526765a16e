"""What the tests of the notebooks look for; each function says, a sentence each, what is wrong."""

import csv
import re
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote

import nbformat
import numpy as np
from markdown_it import MarkdownIt
from nbformat import NotebookNode

from ttt_teach.site.pages import claims
from ttt_teach.site.prose import slug

ESCAPES = {"nbval-skip", "nbval-ignore-output", "nbval-raises-exception", "raises-exception"}


def sources(node: NotebookNode, kind: str) -> str:
    return "\n\n".join(cell.source for cell in node.cells if cell.cell_type == kind)


def comparable(node: NotebookNode) -> list:
    return [(cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))) for cell in node.cells]


def unwatched(node: NotebookNode) -> list[str]:
    """Code cells that a run of the tests would not execute, or whose claims it would not compare."""
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    found = []
    for n, cell in enumerate(code, 1):
        tags = set(cell.metadata.get("tags", []))
        if escapes := sorted(tags & ESCAPES):
            found.append(f"the code cell {n} is tagged {', '.join(escapes)}")
        if re.search(r"(?m)^\s*claim\(", cell.source) and "nbval-check-output" not in tags:
            found.append(f"the code cell {n} makes a claim and is not tagged nbval-check-output")
    return found


def faults(node: NotebookNode) -> list[str]:
    """What shows that a notebook was not simply run from top to bottom."""
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    found = [
        f"the code cell {n} has the execution count {cell.execution_count}"
        for n, cell in enumerate(code, 1)
        if cell.execution_count != n
    ]
    for cell in code:
        for output in cell.outputs:
            if output.output_type == "error":
                found.append(f"a cell ended in {output.ename}: {output.evalue}")
            if output.get("name") == "stderr":
                found.append(f"a cell warns: {output.text[:200]}")
    return found


def mismatches(number: str, node: NotebookNode, code: str = "") -> list[str]:
    """Ids of notebook ``number`` that are not everywhere they must be: text, code, outputs."""
    text, code = sources(node, "markdown"), sources(node, "code") + code
    outputs = [output for cell in node.cells for output in cell.get("outputs", [])]
    shown = "\n".join(output.get("text") or output.get("data", {}).get("text/html", "") for output in outputs)

    def ids(pattern: str, where: str) -> set[str]:
        return set(re.findall(pattern.replace("NN", number), where))

    claim, equation, figure, exercise = r"\b[CX]NN\.\d+", r"\bENN\.\d+", r"\bFNN[a-z]\b", r"NN\.\d+"
    places = [
        {
            "the text": ids(claim, text),
            "a call of claim": ids(rf'\bclaim\(\s*"({claim})"', code),
            "the ledger": {record["id"] for record in claims(node)},
        },
        {
            "a \\tag": ids(rf"\\tag\{{({equation})\}}", text),
            "the text or a \\tag": ids(equation, text),
            "the code": ids(equation, code),
        },
        {
            "the text": ids(figure, text),
            "the code": ids(figure, code),
            "the pictures shown": ids(rf'<figure id="({figure})"', shown),
        },
        {
            "the exercises in the text": ids(rf"\*\*(?:Exercise )?({exercise})\b", text),
            "a call of check": ids(rf'\bcheck\(\s*"({exercise})"', code),
            "the checks shown": ids(rf"(?m)^({exercise}) (?:right|not)", shown),
            "the solutions that are right": ids(rf"(?m)^({exercise}) right", shown),
        },
    ]
    return [
        f"{id} is missing from {place}"
        for kind in places
        for id in sorted(set().union(*kind.values()))
        for place, found in kind.items()
        if id not in found
    ]


def anchors(path: Path) -> set[str]:
    """The places in a Markdown file or a notebook that a link can lead to."""
    if path.suffix == ".ipynb":
        node = nbformat.read(path, as_version=4)
        text = sources(node, "markdown")
        html = [output.get("data", {}).get("text/html", "") for c in node.cells for output in c.get("outputs", [])]
    else:
        text, html = path.read_text(encoding="utf-8"), []
    headings = re.findall(r"^#+ +(.+?)\s*$", re.sub(r"(?ms)^```.*?^```", "", text), re.MULTILINE)
    tags = re.findall(r"\\tag\{(.*?)\}", text)
    return {*map(slug, headings), *tags, *re.findall(r'\bid="(.*?)"', "\n".join([text, *html]))}


def dead_links(path: Path, markdown: str) -> list[str]:
    """Relative links and pictures in the markdown of a file that lead to nothing in the checkout."""
    found = []
    for block in MarkdownIt("commonmark").enable("table").parse(markdown):
        for token in block.children or ():
            href = unquote(str(token.attrs.get("href") or token.attrs.get("src") or ""))
            if not href or re.match(r"[a-z]+:", href):
                continue
            file, _, fragment = href.partition("#")
            target = path.parent / normpath(file) if file else path
            if not target.exists():
                found.append(f"{href}: there is no {target.name}")
            elif fragment and not {fragment, slug(fragment)} & anchors(target):
                found.append(f"{href}: there is no #{fragment} in {target.name}")
    return found


def rows(markdown: str) -> dict[str, list[str]]:
    """The rows of a table of notebooks, by the notebook that the first cell links to."""
    found = {}
    for line in re.findall(r"^\|(.*)\|\s*$", markdown, re.MULTILINE):
        cells = [cell.strip() for cell in line.split("|")]
        if link := re.fullmatch(r"\[(.*)\]\(notebooks/(.*)\.ipynb\)", cells[0]):
            found[link[2]] = [link[1], *cells[1:]]
    return found


def drift(committed: str, fresh: str, rtol: float = 1e-6) -> list[str]:
    """Where the data of a figure differ: words at all, numbers by more than rtol of their column's range."""
    old, new = (list(csv.reader(text.splitlines())) for text in (committed, fresh))
    if [len(row) for row in old] != [len(row) for row in new]:
        return [f"it had {len(old)} rows and has {len(new)}, or rows of another length"]
    found = []
    for a, b in zip(zip(*old, strict=True), zip(*new, strict=True), strict=True):
        numbers = np.array([[number(x), number(y)] for x, y in zip(a, b, strict=True)])
        size = np.nanmax(np.abs(numbers), initial=0, where=np.isfinite(numbers))
        apart = ~np.isclose(numbers[:, 0], numbers[:, 1], rtol=0, atol=rtol * size, equal_nan=True)
        words = np.array([x != y for x, y in zip(a, b, strict=True)]) & np.isnan(numbers).any(1)
        found += [f"{a[0]} in row {row} was {a[row]} and is {b[row]}" for row in np.flatnonzero(apart | words)]
    return found


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan
