"""The last look at a site: links lead somewhere, pictures have words, nothing is loaded from elsewhere."""

import posixpath
import re
from collections.abc import Collection, Mapping
from html.parser import HTMLParser

_ADDRESS = re.compile(r"[a-z][a-z+.-]*:|//", re.IGNORECASE)
_OWN = re.compile(r"data:|#")
_TEX = re.compile(r"\$|\\[a-zA-Z]{2,}")
_NO_PROSE = {"code", "pre", "script", "style", "math"}
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Scan(HTMLParser):
    """What there is to check on one page."""

    def __init__(self, page: str):
        super().__init__()
        self.ids: list[str] = []
        self.hrefs: list[str] = []
        self.problems: list[str] = []
        self._levels: list[int] = []
        self._open: list[str] = []
        self._prose = ""
        self.feed(page)
        self.close()
        self._end_of_prose()
        if self._levels.count(1) != 1:
            self.problems.append(f"has {self._levels.count(1)} headings of level 1; expected one")

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._end_of_prose()
        attribute = {name: value or "" for name, value in attributes}
        self.ids += [attribute["id"]] if "id" in attribute else []
        self.hrefs += [attribute["href"]] if tag == "a" and "href" in attribute else []
        loaded = attribute.get("src") or (attribute.get("href") if tag == "link" else None)
        if loaded and not _OWN.match(loaded):
            self.hrefs.append(loaded)
            if _ADDRESS.match(loaded):
                self.problems.append(f"loads {loaded} from another host")
        if tag == "img" and not attribute.get("alt", "").strip():
            self.problems.append(f"has a picture without alt text: {attribute.get('src', '')[:60]}")
        if re.fullmatch("h[1-6]", tag):
            self._heading(int(tag[1]))
        if tag not in _VOID:
            self._open.append(tag)

    def _heading(self, level: int) -> None:
        above = self._levels[-1] if self._levels else 0
        if level > above + 1:
            self.problems.append(f"jumps from a heading of level {above} to level {level}")
        self._levels.append(level)

    def handle_endtag(self, tag: str) -> None:
        self._end_of_prose()
        if tag in self._open:  # <p> and <li> need no end tag, so what is still open inside ends too
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not _NO_PROSE.intersection(self._open):
            self._prose += data

    def _end_of_prose(self) -> None:
        if left := _TEX.search(self._prose):
            self.problems.append(f"shows raw TeX, {left[0]!r}, in {' '.join(self._prose.split())[:120]!r}")
        self._prose = ""


def problems(pages: Mapping[str, str], files: Collection[str]) -> list[str]:
    """What is wrong with these pages (path -> HTML) of a site that also holds ``files``, a sentence each."""
    scans = {path: Scan(page) for path, page in pages.items()}
    found = []
    for path, scan in scans.items():
        found += [f"{path} {problem}" for problem in scan.problems]
        repeated = {id for id in scan.ids if scan.ids.count(id) > 1}
        found += [f"{path} has the id {id} more than once" for id in sorted(repeated)]
        for href in sorted(set(scan.hrefs)):
            if _ADDRESS.match(href):
                continue
            file, _, fragment = href.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
            if target not in scans and target not in files:
                found.append(f"{path} links to {href}: there is no {target}")
            elif fragment and fragment not in scans[target].ids:
                found.append(f"{path} links to {href}: there is no #{fragment} in {target}")
    return found
