"""The static site: one page for each notebook and each paper, the ledger of all claims, and a front page."""

import html
import os
import re
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from nbformat import NotebookNode

from ttt_teach.ledger import margin

from .audit import problems
from .execute import ROOT, Notebook, SiteError, chosen, execute, load, twin
from .prose import ID, PAPERS, Page, Site, code, on_site

MARKER = ".ttt_teach-site"  # lists the files of a site, so that the next build removes these and no others
LICENCE = "STIXTwoMath-LICENSE.txt"  # goes wherever the font goes
_HERE = Path(__file__).parent
_TEMPLATES = Environment(
    loader=PackageLoader("ttt_teach.site", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def build(out: Path, *names: str, root: Path = ROOT) -> None:
    """Execute the named notebooks (default: all) of the checkout ``root`` and write the site to the folder ``out``.

    out: new, empty, or an earlier site. A notebook that is not executed is shown as its twin has it, each slider as
    the picture it starts with, and its figures are those of the checkout. Raises SiteError, and leaves ``out`` as it
    was, when a cell fails, a formula cannot be converted, or a page has a dead link or a picture without words.
    """
    out, start = Path(out), time.perf_counter()
    earlier = _earlier_files(out)
    notebooks = load(root / "notebooks")
    executed = chosen(notebooks, names)
    with tempfile.TemporaryDirectory() as drawn:
        execute(executed, root / "notebooks", Path(drawn), static=True)
        old = {notebook.number for notebook in notebooks if notebook not in executed}
        kept = [path for path in (root / "figures").glob("F*") if path.name[1:3] in old]
        files = {f"figures/{path.name}": path.read_bytes() for path in sorted([*kept, *Path(drawn).iterdir()])}
    notebooks = [notebook if notebook in executed else twin(notebook, root) for notebook in notebooks]
    files |= {"style.css": _style(), LICENCE: (_HERE / LICENCE).read_bytes()}
    papers = {path.stem: _read(path, path.stem).decode() for path in sorted((root / PAPERS).glob("*.md"))}
    site = _site(notebooks, papers)
    pages = _pages(notebooks, papers, site, _read(root / "README.md", "the front page").decode())
    files |= {on_site(file): _read(root / file, page) for file, page in site.files.items()}
    if wrong := problems(pages, files):
        raise SiteError("the pages are not as they should be:\n" + "\n".join(wrong))
    files |= {path: page.encode() for path, page in pages.items()}
    _write(out, files, earlier)
    print(f"{len(pages)} pages in {time.perf_counter() - start:.0f} s: open {out / 'index.html'}")


def _earlier_files(out: Path) -> list[str]:
    """The files of the site that is in ``out``; SiteError if something else is there."""
    if (out / MARKER).is_file():
        listed = (out / MARKER).read_text(encoding="utf-8").splitlines()
        if outside := [path for path in listed if not (out / path).resolve().is_relative_to(out.resolve())]:
            raise SiteError(f"{out / MARKER} names {outside[0]}, which is not in {out}; delete that folder by hand")
        return listed
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SiteError(f"{out} is not empty and not an earlier site; name another folder, or empty this one")
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise SiteError(f"{out} cannot be made: {place} is no folder that can be written")
    return []


def _write(out: Path, files: dict[str, bytes], earlier: list[str]) -> None:
    if foreign := [path for path in files if (out / path).exists() and path not in earlier]:
        raise SiteError(f"{out / foreign[0]} is not of an earlier site; move it, or name another folder")
    try:
        # The marker first: a write that is cut short must leave a folder that the next build still knows.
        _put(out / MARKER, "\n".join(sorted({*files, *earlier})).encode())
        for path in earlier:
            (out / path).unlink(missing_ok=True)
        for path, content in {**files, MARKER: "\n".join(sorted(files)).encode()}.items():
            _put(out / path, content)
    except OSError as error:
        raise SiteError(f"{error.filename} cannot be written: {error.strerror}") from error


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _read(path: Path, page: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SiteError(f"{page} needs {path}, which cannot be read: {error.strerror}") from error


def _style() -> bytes:
    """The style sheet, the maths font inside it: some browsers load no font file beside a page on disk."""
    font = b64encode((_HERE / "STIXTwoMath.woff2").read_bytes())
    face = b'@font-face { font-family: "STIX Two Math"; src: url(data:font/woff2;base64,%b) }\n' % font
    return face + (_HERE / "style.css").read_bytes()


def _site(notebooks: list[Notebook], papers: dict[str, str]) -> Site:
    anchors = re.findall(r'\bid="([^"]+)"', "\n".join(map(_markdown, notebooks)))
    return Site([notebook.name for notebook in notebooks], set(anchors), list(papers))


def _pages(notebooks: list[Notebook], papers: dict[str, str], site: Site, readme: str) -> dict[str, str]:
    """Every page as path -> HTML."""
    records = [record for notebook in notebooks for record in claims(notebook.node)]
    titles = {name: _title(text) for name, text in papers.items()}

    def render(template: str, **content) -> str:
        return _TEMPLATES.get_template(template).render(papers=titles, margin=margin, **content)

    introduction = Page("README.md", "", site).render(readme.partition("\n## ")[0])
    paths = Page("the front page", "notebooks", site).render(_section(_markdown(notebooks[0]), "Reading paths"))
    found = {name: _mentioned(text, records) for name, text in papers.items()}
    pages = {
        "index.html": render(
            "index.html", introduction=Markup(introduction), paths=Markup(paths), notebooks=notebooks, found=found
        ),
        "ledger.html": render("ledger.html", page=Page("the ledger", "", site), records=records),
    }
    for name, text in papers.items():
        page = Page(name, PAPERS, site)
        text = Markup(page.render(text))
        pages[f"{name}.html"] = render("paper.html", name=name, page=page, text=text, records=found[name])
    for before, notebook, after in zip([None, *notebooks], notebooks, [*notebooks[1:], None], strict=False):
        page = Page(notebook.name, "notebooks", site)
        cells = [Markup(_cell(cell, page)) for cell in notebook.node.cells]
        pages[f"{notebook.name}.html"] = render(
            "notebook.html", notebook=notebook, cells=cells, contents=page.contents, before=before, after=after
        )
    return pages


def _title(markdown: str) -> str:
    """The first heading, up to a colon: the name that a paper goes by."""
    return re.match(r"# ([^:\n]+)", markdown)[1]


def _mentioned(markdown: str, records: list[dict]) -> list[dict]:
    """The claims and errata whose ids a text names."""
    ids = set(ID.findall(markdown))
    return [record for record in records if record["id"] in ids]


def _markdown(notebook: Notebook) -> str:
    return "\n\n".join(cell.source for cell in notebook.node.cells if cell.cell_type == "markdown")


def _section(markdown: str, title: str) -> str:
    """A section of level 2 with its heading, or nothing."""
    found = re.search(rf"^## {title}$.*?(?=^##? |\Z)", markdown, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    return found[0] if found else ""


def claims(node: NotebookNode) -> Iterator[dict]:
    """The records that ``claim`` left in the outputs of an executed notebook."""
    for cell in node.cells:
        for output in cell.get("outputs", []):
            if "ttt_teach" in output.get("metadata", {}):
                yield output.metadata.ttt_teach


def _cell(cell: NotebookNode, page: Page) -> str:
    if cell.cell_type == "markdown":
        return page.render(cell.source)
    tags = cell.metadata.get("tags", [])
    shown = "".join(_output(output, page) for output in cell.outputs)
    if "hide-input" not in tags and cell.source:
        shown = code(cell.source) + shown
    return f"<details><summary>Solution</summary>\n{shown}</details>\n" if "solution" in tags else shown


def _output(output: NotebookNode, page: Page) -> str:
    if output.output_type == "stream":
        return _words(output.text)
    if output.output_type == "error":
        return _words(f"{output.ename}: {output.evalue}")
    if "text/html" in output.data:
        shown = output.data["text/html"]
        if "ttt_teach" in output.metadata:  # a claim: ids in its statement and source are links here
            shown = page.enrich(shown)
        return f'<div class="output">{shown}</div>\n'
    if any(kind.startswith("image/") for kind in output.data):
        raise SiteError(f"{page.name}: a cell shows an image without words; show a Picture")
    return _words(output.data["text/plain"])


def _words(text: str) -> str:
    return f'<pre class="output">{html.escape(text)}</pre>\n'
