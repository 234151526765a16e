"""A small checkout with two notebooks that use whatever a notebook may use, and its site."""

from pathlib import Path

import pytest

from ttt_teach.site import build
from ttt_teach.site.prose import PAPERS

HEADER = """\
# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     notebook_metadata_filter: ttt_teach
#     text_representation: {{extension: .py, format_name: percent}}
#   kernelspec: {{display_name: Python 3, language: python, name: python3}}
#   ttt_teach:
#     title: {title}
#     question: {question}
#     minutes: 5
#     seconds: 1
#     settles: {settles}
# ---
"""

README = """\
# Two notebooks

One sentence about $x$, with a [link](notebooks/02-maths.ipynb#the-limit-lambdato0-by-hand).

## Not part of the front page

[Dead](nowhere.md)
"""

PAPER = """\
# A paper: on arithmetic

See [the notebook](../../../notebooks/02-maths.ipynb) and [the code](../../../package/code.py).

| in the paper | what it says | checked |
| --- | --- | --- |
| Eq. 1 | $1 < 2$ | C02.1, X02.1 |
"""

START = (
    HEADER.format(title="Start", question="Does it run?", settles="It runs.")
    + r"""
# %% [markdown]
# # 00 · Start
#
# ## Reading paths
#
# One evening: [the limit](02-maths.ipynb#The-limit-$\lambda\to0$-by-hand), then C02.1.
#
# ## Where to report
#
# In [the guide](../GUIDE.md); the code is [here](../package/code.py). Never `$x$`.

# %%
from ttt_teach.ledger import claim

# %% tags=["nbval-check-output"]
claim("C00.1", "one equals one & 1 < 2", source="arithmetic", error=0, tol=0)
"""
)

MATHS = (
    HEADER.format(title="Maths & pictures", question="Is 1 < 2?", settles="That 1 < 2.")
    + r"""
# %% [markdown]
# # 02 · Maths & pictures
#
# Inline $\tfrac12\lVert x\rVert_2^2$ and $\mathbf 1^\top\boldsymbol\lambda$, and
# $$\sum_{i=1}^{t} \zeta_{ti}\, k_i k_i^\top \tag{E02.1}$$
# is the statistic, checked in [C02.1] and contradicted in [X02.1]; see F02a, and C00.1.
#
# ## The limit $\lambda\to0$ by hand
#
# $$
# \begin{aligned}
# \Phi_t &= \operatorname*{arg\,min}_{\Phi}\; \mathcal L_t(\Phi) \\
#        &= \boxed{G_t\,(H_t+\Lambda)^{-1}} \quad\text{by (E02.1)}
# \end{aligned}
# \tag{E02.2}
# $$
#
# From (E02.1), (E02.2):
#
# - a list with $\widehat{x}$, $\bar y$ and $\mathbb R^{d\times d}$
# - | table | value |
#   | --- | --- |
#   | $\kappa(H)$ | $\big(\Big(\frac ab\Big)\big)$ |
#
# $$\|x_m-x_\star\|_A\le 2\left(\frac{\sqrt\kappa-1}{\sqrt\kappa+1}\right)^m\|x_\star\|_A, \qquad
# \underbrace{\begin{pmatrix}1&c\\c&1\end{pmatrix}}_{K^\top K} \odot
# \begin{cases}1 & t\ge i\\ 0 & \text{else}\end{cases}$$
#
# <details><summary>Hint with $\lambda$</summary>On one line: $a < b$, by C02.1.</details>
#
# <details>
# <summary>Answer</summary>
#
# With **markdown**, and $$x \in \mathcal K_m(A, b)$$ between.
#
# </details>

# %%
import os
from pathlib import Path

from IPython.display import HTML

from ttt_teach.ledger import check, claim

# %% tags=["nbval-check-output"]
claim("C02.1", "one is below two", source="arithmetic", error=2.2e-16, tol=1e-12)
claim("X02.1", "one is two", source="a wrong book, p. 1", error=1.0, tol=0.5, expect=False)

# %% tags=["hide-input"]
svg = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 4'><rect width='9' height='4'/></svg>"
(Path(os.environ["TTT_TEACH_FIGURES"]) / "F02a.svg").write_text(svg)
kind = "drawn out" if os.environ.get("TTT_TEACH_STATIC") == "1" else "live"
HTML(f'<figure id="F02a"><img alt="A black box, {kind}." src="figures/F02a.svg"></figure>')

# %% tags=["solution"] jupyter={"source_hidden": true}
def double(x):
    return 2 * x  # not x ** 2


check("02.1", double, lambda f: None if f(3) == 6 else "f(3) is not 6")

# %%
print(os.getcwd().rsplit(os.sep, 1)[1], 1)
print(2)
3
"""
)


PLAIN = (
    HEADER.format(title="Plain", question="What?", settles="Little.")
    + """
# %% [markdown]
# # Plain

# %%
6 * 7
"""
)


def write_checkout(folder: Path, readme: str = "# Small\n", **notebooks: str) -> Path:
    """A checkout whose notebooks are given as ``_02_maths="..."``."""
    (folder / "notebooks").mkdir(parents=True)
    (folder / "package").mkdir()
    (folder / "README.md").write_text(readme)
    (folder / "GUIDE.md").write_text("# Guide\n")
    (folder / "package/code.py").write_text("pass\n")
    for name, source in notebooks.items():
        (folder / "notebooks" / f"{name[1:].replace('_', '-')}.py").write_text(source)
    return folder


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    root = write_checkout(tmp_path_factory.mktemp("checkout") / "root", README, _00_start=START, _02_maths=MATHS)
    (root / PAPERS).mkdir(parents=True)
    (root / PAPERS / "paper.md").write_text(PAPER)
    return root


@pytest.fixture(scope="session")
def small_site(checkout, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "site"
    build(out, root=checkout)
    return out
