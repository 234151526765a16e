"""Markdown and code of the notebooks to HTML: maths, anchors, ids that link, links that hold on the site."""

import html
import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain, count
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from .execute import SiteError
from .maths import mathml

PAPERS = "ttt_teach/ledger/papers"  # a Markdown file for each: its equations, where they are derived and checked
ID = re.compile(r"\b(?:[CXE]\d\d\.\d+|F\d\d[a-z])\b")
_TAG_OR_TEXT = re.compile(r"(</?[a-zA-Z][^>]*>)")
_INLINE_MATHS = r"<math>(?:(?!</math>).)*</math>"
# A browser would begin a line with the comma after a formula, or end one with the bracket before it.
_GLUED = re.compile(rf"[(\[]+{_INLINE_MATHS}[.,;:!?)\]]*|{_INLINE_MATHS}[.,;:!?)\]]+")
_MATHS_OR_ID = re.compile(rf"\$\$(?P<display>.+?)\$\$|\$(?P<inline>.+?)\$|{ID.pattern}", re.DOTALL)


@dataclass
class Site:
    """What all pages share: where links may lead, and where they do.

    notebooks, papers: the names of all. anchors: ids set by hand in markdown, which links keep as they are.
    """

    notebooks: Collection[str]
    anchors: Collection[str]
    papers: Collection[str] = ()
    files: dict[str, str] = field(default_factory=dict)  # file of the checkout -> a page that links to it


@dataclass
class Page:
    """A page in the making: its name, and the folder of the checkout that its links start from."""

    name: str
    folder: str
    site: Site
    contents: list[tuple[int, str, str]] = field(default_factory=list)  # level, slug, title of each heading

    def render(self, markdown: str) -> str:
        page = _MARKDOWN.render(markdown, {"page": self})
        return _GLUED.sub(r'<span class="glued">\g<0></span>', page)

    def link_ids(self, text: str) -> str:
        """Plain text as HTML, every id in it a link to what it names."""
        return ID.sub(lambda id: f'<a href="{self.href_of_id(id[0])}">{id[0]}</a>', html.escape(text))

    def enrich(self, markup: str) -> str:
        """HTML with maths and links in the text between its tags; JupyterLab typesets the maths there too."""

        def convert(found: re.Match) -> str:
            if tex := found["display"] or found["inline"]:
                return mathml(html.unescape(tex), display=bool(found["display"]), where=self.name)
            return self.link_ids(found[0])

        pieces = _TAG_OR_TEXT.split(markup)
        pieces[::2] = [_MATHS_OR_ID.sub(convert, text) for text in pieces[::2]]
        return "".join(pieces)

    def href_of_id(self, id: str) -> str:
        """Where C02.1, E02.1 or F02a is: on the page of notebook 02."""
        home = next((name for name in self.site.notebooks if name[:2] == id[1:3]), None)
        if home is None:
            raise SiteError(f"{self.name}: {id} is mentioned, but there is no notebook {id[1:3]}")
        return f"#{id}" if home == self.name else f"{home}.html#{id}"

    def href_on_site(self, href: str) -> str:
        """A link of the checkout as a link of the site; a file that is no page is taken along as text."""
        if re.match(r"[a-z]+:", href):
            return href
        path, hash, fragment = unquote(href).partition("#")
        if fragment not in self.site.anchors and not ID.fullmatch(fragment):
            fragment = slug(fragment)  # JupyterLab keeps the capitals of a heading, the site does not
        if not path:
            return hash + fragment
        target = posixpath.normpath(posixpath.join(self.folder, path))
        folder, _, file = target.rpartition("/")
        name, suffix = posixpath.splitext(file)
        if folder == "notebooks" and suffix in (".ipynb", ".py") and name in self.site.notebooks:
            return f"{name}.html{hash}{fragment}"
        if folder == PAPERS and name in self.site.papers:
            return f"{name}.html{hash}{fragment}"
        if folder == "figures":
            return target
        self.site.files[target] = self.name
        return on_site(target)


def on_site(file: str) -> str:
    """Where the site keeps a file of the checkout; as .txt, which every browser shows."""
    return f"files/{file}.txt"


def slug(title: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def _headings(state: StateCore) -> None:
    page = state.env["page"]
    for opening, inline in zip(state.tokens, state.tokens[1:], strict=False):
        if opening.type != "heading_open":
            continue
        anchor = slug("".join(token.content for token in inline.children))
        taken = {other for _, other, _ in page.contents}
        anchor = next(a for a in chain([anchor], (f"{anchor}-{n}" for n in count(1))) if a not in taken)
        opening.attrSet("id", anchor)
        words = [token for token in inline.children if not token.type.startswith("link")]
        title = state.md.renderer.renderInline(words, state.md.options, state.env)
        page.contents.append((int(opening.tag[1]), anchor, title))


def _links(state: StateCore) -> None:
    page = state.env["page"]
    for block in state.tokens:
        for token in block.children or ():
            for attribute in ("href", "src"):
                if attribute in token.attrs:
                    token.attrSet(attribute, page.href_on_site(token.attrs[attribute]))


def _ids(state: StateCore) -> None:
    """Every id in prose becomes a link to what it names, save within links and headings."""
    for before, block in zip([None, *state.tokens], state.tokens, strict=False):
        if block.type != "inline" or before.type == "heading_open":
            continue
        depth = 0
        for token in block.children:
            depth += token.type == "link_open"
            depth -= token.type == "link_close"
            if token.type == "text" and not depth:
                token.type, token.content = "html_inline", state.env["page"].link_ids(token.content)


def _math_inline(self: RendererHTML, tokens: list[Token], index: int, options: dict, env: dict) -> str:
    return mathml(tokens[index].content, display=False, where=env["page"].name)


def _math_display(self: RendererHTML, tokens: list[Token], index: int, options: dict, env: dict) -> str:
    return mathml(tokens[index].content, display=True, where=env["page"].name)


def _html_block(self: RendererHTML, tokens: list[Token], index: int, options: dict, env: dict) -> str:
    return env["page"].enrich(tokens[index].content)


def code(source: str) -> str:
    """Python with its colours as classes."""
    spans = highlight(source, PythonLexer(), HtmlFormatter(nowrap=True))
    return f"<pre><code>{spans}</code></pre>\n"


def _fence(source: str, language: str, attributes: str) -> str:
    return code(source) if language == "python" else ""


def _markdown() -> MarkdownIt:
    md = MarkdownIt("commonmark", {"html": True, "highlight": _fence}).enable("table")
    md.use(dollarmath_plugin, allow_labels=False, double_inline=True)
    for rule in (_headings, _links, _ids):
        md.core.ruler.push(rule.__name__, rule)
    for name in ("math_block", "math_inline_double"):
        md.add_render_rule(name, _math_display)
    md.add_render_rule("math_inline", _math_inline)
    md.add_render_rule("html_block", _html_block)
    # A wide table scrolls in a box of its own.
    md.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>\n')
    md.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return md


_MARKDOWN = _markdown()
