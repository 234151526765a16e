"""TeX to MathML Core, at build time; what cannot be converted is an error, never a raw formula on a page."""

import re

from math_core import LatexError, LatexToMathML

from .execute import SiteError

_CONVERTER = LatexToMathML(fancy_error=False)
_NUMBERED = re.compile(r"\\begin\{(align|equation|gather|multline)\}")
_ELEMENT = re.compile(r"(<mo\b[^>]*>[^<]*</mo>|<[^>]+>)")
_RELATION = re.compile(r"<mo\b[^>]*>(?:=|≠|≈|≡|∼|∝|≤|≥|≪|≫|&lt;|&gt;|∈|→|⟹|⟺)</mo>")
_TAG = re.compile(r'(?<=width: 50%;text-align: right;justify-items: end;">)<mtext>\(([^()]*)\)</mtext>')


def mathml(tex: str, *, display: bool, where: str) -> str:
    """The formula as MathML; a ``\\tag{E02.1}`` stands at the right and gets the id E02.1."""
    source = tex
    if r"\tag" in tex and not _NUMBERED.search(tex):
        source = rf"\begin{{equation}}{tex}\end{{equation}}"
    try:
        converted = _CONVERTER.convert_with_local_state(source, displaystyle=display)
    except LatexError as error:
        raise SiteError(f"{where}: cannot convert the formula {tex.strip()!r}: {error}") from error
    if _NUMBERED.search(source):
        converted = _TAG.sub(lambda tag: _anchor(tag, tex, where), converted)
    return f'<span class="display">{converted}</span>' if display else _breakable(converted)


def _anchor(tag: re.Match, tex: str, where: str) -> str:
    if not re.fullmatch(r"E\d\d\.\d+", tag[1]):
        advice = r"write a \tag{E02.1}, or a starred environment"
        raise SiteError(f"{where}: the formula {tex.strip()!r} is numbered ({tag[1]}); {advice}")
    return f'<mtext id="{tag[1]}">({tag[1]})</mtext>'


def _breakable(formula: str) -> str:
    """Inline maths that a line may end in, after an outermost relation, as TeX does it; browsers do not."""
    pieces, depth = [], 0
    for piece in _ELEMENT.split(formula):
        pieces.append(piece)
        if depth == 1 and _RELATION.fullmatch(piece):
            pieces.append("</math><wbr><math>")
        elif piece.startswith("</"):
            depth -= 1
        elif piece.startswith("<") and not piece.endswith(("/>", "</mo>")):
            depth += 1
    return "".join(pieces).replace("<wbr><math></math>", "")
