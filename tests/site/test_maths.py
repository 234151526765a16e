"""Formulas as a browser draws them, and those that must not reach a page."""

import re

import pytest

from ttt_teach.site import SiteError
from ttt_teach.site.maths import mathml


@pytest.mark.parametrize(
    "tex",
    [
        r"\frac{a}{b} + \tfrac12 + \dfrac12",
        r"\sum_{i=1}^t \zeta_{ti}\,k_i k_i^\top",
        r"\begin{pmatrix}1&c\\c&1\end{pmatrix}\begin{bmatrix}1\\2\end{bmatrix}",
        r"\underbrace{a+b}_{\text{new}}",
        r"\begin{cases}1 & x>0\\ 0 & \text{else}\end{cases}",
        r"\begin{aligned}a&=b\\&=c\end{aligned}",
        r"\begin{align*}a&=b\\&=c\end{align*}",
        r"\widehat{x}\,\bar y\,\hat H\,\tilde\Lambda\,\overline{AB}",
        r"\mathcal{L}\,\mathbb{R}^{d\times d}\,\mathbf k\,\mathbf 1\,\boldsymbol\lambda\,\mathrm{d}x",
        r"\operatorname{diag}(\lambda)\,\operatorname*{arg\,min}_\Phi \lim_{\lambda\to0^+}",
        r"\lVert x\rVert_2\,\|x\|\,\lvert a\rvert\,\langle x,y\rangle",
        r"x\odot y \succ 0",
        r"\big(\Big(x\Big)\big) \left(\frac ab\right)^2",
        r"\left.\frac ab\right|_{x=0}",
    ],
)
@pytest.mark.parametrize("display", [True, False])
def test_what_the_notebooks_need_is_converted_without_a_trace_of_tex(tex, display):
    html = mathml(tex, display=display, where="here")
    assert not re.search(r"[\\&$]|merror", re.sub(r"<[^>]*>|&\w+;", "", html))
    assert html.startswith('<span class="display"><math display="block">' if display else "<math>")


def test_a_line_may_end_after_an_outermost_relation_and_only_there():
    pieces = mathml(r"f(x=1) = \frac{a<b}{c} \le d", display=False, where="here").split("<wbr>")
    assert [re.sub("<.*?>", "", piece) for piece in pieces] == ["f(x=", "1)=", "a&lt;bc≤", "d"]
    assert all(piece.startswith("<math>") and piece.endswith("</math>") for piece in pieces)
    assert mathml("=", display=False, where="here").count("<math>") == 1


def test_letters_are_unicode_since_browsers_ignore_mathvariant():
    html = mathml(r"\mathbb R \mathcal K \mathbf x", display=False, where="here")
    assert {"ℝ", "𝒦", "𝐱"} <= set(html) and "mathvariant" not in html


def test_a_tag_gets_an_id_whatever_the_formula_is_made_of():
    for tex in (r"a=b\tag{E02.1}", r"\begin{aligned}a&=b\\&=c\end{aligned}\tag{E02.1}"):
        assert mathml(tex, display=True, where="here").count('<mtext id="E02.1">(E02.1)</mtext>') == 1
    lines = mathml(r"\begin{align}a&=b\tag{E02.1}\\c&=d\tag{E02.2}\end{align}", display=True, where="here")
    assert re.findall(r'id="(.*?)"', lines) == ["E02.1", "E02.2"]


def test_a_mention_within_a_formula_is_no_tag():
    html = mathml(r"a=b\quad\text{(E02.1)}\tag{E02.2}", display=True, where="here")
    assert re.findall(r'id="(.*?)"', html) == ["E02.2"]


@pytest.mark.parametrize("tex", [r"\nosuch", r"\frac{a}", "{a", "a & b", r"\begin{align}a&=b\end{align}", r"a\tag{1}"])
def test_what_cannot_be_shown_names_the_notebook_and_the_formula(tex):
    with pytest.raises(SiteError) as raised:
        mathml(tex, display=True, where="02-maths")
    assert str(raised.value).startswith("02-maths: ") and repr(tex) in str(raised.value)
