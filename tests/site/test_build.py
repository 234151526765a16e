"""The site of a small checkout: what is on its pages, what stops a build, what a build leaves alone."""

import re
import subprocess
import sys

import pytest

from tests.site.conftest import PLAIN, write_checkout
from ttt_teach.site import SiteError, build, figures, pages
from ttt_teach.site.__main__ import main as command_line
from ttt_teach.site.pages import MARKER

PAGES = ["index.html", "00-start.html", "02-maths.html", "ledger.html", "paper.html"]


@pytest.fixture(scope="module")
def maths(small_site):
    return (small_site / "02-maths.html").read_text()


def test_every_page_is_there_and_loads_nothing_from_elsewhere(small_site):
    files = {str(path.relative_to(small_site)) for path in small_site.rglob("*") if path.is_file()}
    taken = [
        "style.css",
        "STIXTwoMath-LICENSE.txt",
        "figures/F02a.svg",
        "files/GUIDE.md.txt",
        "files/package/code.py.txt",
        MARKER,
    ]
    assert files == {*PAGES, *taken}
    for page in PAGES:
        assert "http" not in (small_site / page).read_text().replace("http-equiv", "")
    assert "url(http" not in (small_site / "style.css").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_a_language_a_title_and_a_skip_link(small_site, page):
    html = (small_site / page).read_text()
    assert '<html lang="en">' in html
    assert re.search(r"<title>[^<]+</title>", html)
    assert '<a class="skip" href="#main">' in html and html.count('id="main"') == 1


def test_maths_is_mathml(maths):
    assert "$" not in re.sub(r"<pre.*?</pre>", "", maths, flags=re.DOTALL)
    assert maths.count('<math display="block">') == 4
    assert '<h2 id="the-limit-lambdato0-by-hand">The limit <math>' in maths
    assert "Hint with <math>" in maths and "On one line: <math>" in maths


def test_punctuation_stays_with_its_formula(maths):
    assert re.search(r'<span class="glued"><math>(?:(?!</math>).)*</math>,</span> and\n', maths)


def test_equation_tags_have_ids_and_mentions_link_to_them(maths):
    assert re.search(r'<mtext id="E02.1">\(E02.1\)</mtext>', maths)
    assert 'From (<a href="#E02.1">E02.1</a>), (<a href="#E02.2">E02.2</a>):' in maths


def test_claims_and_figures_link_across_notebooks(maths):
    assert '[<a href="#C02.1">C02.1</a>]' in maths
    assert '<a href="#F02a">F02a</a>, and <a href="00-start.html#C00.1">C00.1</a>' in maths
    assert 'id="C02.1"' in maths and '<figure id="F02a">' in maths


def test_links_between_notebooks_become_links_between_pages(small_site):
    start = (small_site / "00-start.html").read_text()
    assert 'href="02-maths.html#the-limit-lambdato0-by-hand"' in start
    assert 'href="files/GUIDE.md.txt"' in start and 'href="files/package/code.py.txt"' in start
    assert "Never <code>$x$</code>." in start


def test_cells_are_shown_as_their_tags_say(maths):
    solution = re.search(r"<details><summary>Solution</summary>\n<pre><code>(.*?)</details>", maths, re.DOTALL)[1]
    assert '<span class="nf">double</span>' in solution and "02.1 right" in solution
    assert "svg =" not in maths  # hide-input
    assert 'alt="A black box, drawn out."' in maths
    assert '<pre class="output">notebooks 1\n2\n</pre>\n<pre class="output">3</pre>' in maths


def test_each_page_lists_its_sections_and_its_neighbours(maths):
    contents = re.search(r'<nav class="contents".*?</nav>', maths, re.DOTALL)[0]
    assert '<a href="#the-limit-lambdato0-by-hand">The limit <math>' in contents
    assert '<a rel="prev" href="00-start.html">' in maths and 'rel="next"' not in maths


def test_the_front_page_says_what_this_is_and_where_to_begin(small_site):
    index = (small_site / "index.html").read_text()
    assert 'One sentence about <span class="glued"><math>' in index and "Not part" not in index
    assert '<a href="02-maths.html">02 · Maths &amp; pictures</a>' in index
    assert "Is 1 &lt; 2?" in index and "That 1 &lt; 2." in index
    assert "One evening: <a" in index and "Where to report" not in index


def test_the_ledger_lists_claims_and_errata(small_site):
    claims, errata = (small_site / "ledger.html").read_text().split('id="errata"')
    for text in ('href="02-maths.html#C02.1"', "one is below two", "2.2e-16", "4.5e+03 times below", "exact"):
        assert text in claims
    for text in ('href="02-maths.html#X02.1"', "one is two", "a wrong book, p. 1", "2 times above"):
        assert text in errata and text not in claims


def test_a_paper_lists_what_it_says_and_the_claims_that_check_it(small_site):
    index, paper = ((small_site / name).read_text() for name in ("index.html", "paper.html"))
    assert '<a href="paper.html">A paper</a>: 1 claim, 1 erratum' in index
    assert '<a href="paper.html">A paper</a>' in (small_site / "02-maths.html").read_text()  # at the head of every page
    text, ran = paper.split('id="as-it-ran"')
    for link in ("02-maths.html", "files/package/code.py.txt", "02-maths.html#C02.1", "02-maths.html#X02.1"):
        assert f'href="{link}"' in text
    assert "one is below two" in ran and "one is two" in ran and "one equals one" not in ran


@pytest.mark.parametrize(
    ("markdown", "message"),
    [
        (r"$\nosuchcommand$", r"00-plain: cannot convert the formula '\\\\nosuchcommand': .*Unknown command"),
        ("$$a & b$$", "00-plain: cannot convert the formula 'a & b'"),
        (r"$$\begin{align}a&=b\end{align}$$", r"00-plain: .* is numbered \(1\); write a \\tag{E02.1}"),
        (r"\begin{align}a=b\end{align}", r"00-plain.html shows raw TeX, '\\\\begin'"),
        ("| a | b |\n# | --- | --- |\n# | c | $|d|$ |", r"00-plain.html shows raw TeX, '\$'"),
        ("By C02.9.", "00-plain.html links to 02-more.html#C02.9: there is no #C02.9 in 02-more.html"),
        ("By C09.1.", "00-plain: C09.1 is mentioned, but there is no notebook 09"),
        ("[here](#nowhere)", "00-plain.html links to #nowhere: there is no #nowhere in 00-plain.html"),
        ("[here](03-none.ipynb)", "03-none.ipynb, which cannot be read: No such file"),
        ("#### Deep", "00-plain.html jumps from a heading of level 1 to level 4"),
        ("# Again", "00-plain.html has 2 headings of level 1; expected one"),
        ("![](../figures/F02a.svg)", "00-plain.html has a picture without alt text"),
        (
            "![Web](https://example.org/a.png)",
            "00-plain.html loads https://example.org/a.png from another host",
        ),
        ('<a id="x"></a><b id="x"></b>', "00-plain.html has the id x more than once"),
    ],
)
def test_what_is_wrong_in_the_text_stops_the_build(markdown, message, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "execute", lambda *_, **__: None)
    cell = f"\n# %% [markdown]\n# {markdown}\n"
    checkout = write_checkout(tmp_path / "root", _00_plain=PLAIN + cell, _02_more=PLAIN)
    with pytest.raises(SiteError, match=message):
        build(tmp_path / "site", root=checkout)
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import IPython.display as d\nd.SVG('<svg/>')", "00-plain: a cell shows an image without words"),
        (
            "a = 1\nb = a / 0\n\n# %%\nc = 2",
            "(?s)^00-plain: .*b = a / 0.*ZeroDivisionError: division by zero\n*$",
        ),
    ],
)
def test_what_is_wrong_in_the_code_stops_the_build(code, message, tmp_path):
    checkout = write_checkout(tmp_path / "root", _00_plain=f"{PLAIN}\n# %%\n{code}\n")
    with pytest.raises(SiteError, match=message) as raised:
        build(tmp_path / "site", root=checkout)
    assert "\x1b" not in str(raised.value)
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("minutes: 5", "minutes: 0", "ttt_teach.minutes in the header is 0; expected a whole number above 0"),
        ("settles: Little.", "other: x", "ttt_teach.settles in the header is None; expected a sentence"),
    ],
)
def test_a_header_must_be_complete(old, new, message, tmp_path):
    checkout = write_checkout(tmp_path / "root", _00_plain=PLAIN.replace(old, new))
    with pytest.raises(SiteError, match=message):
        build(tmp_path / "site", root=checkout)


def test_an_empty_checkout_is_an_error(tmp_path):
    with pytest.raises(SiteError, match="holds no notebook"):
        build(tmp_path / "site", root=write_checkout(tmp_path / "root"))


@pytest.mark.parametrize("foreign", ["folder", "file"])
def test_what_a_user_made_is_not_overwritten(foreign, tmp_path):
    out = tmp_path / "out"
    if foreign == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("mine")
    else:
        out.write_text("mine")
    with pytest.raises(SiteError, match="out is not empty and not an earlier site"):
        build(out, root=tmp_path)
    assert (out / "thesis.txt" if foreign == "folder" else out).read_text() == "mine"


def test_what_is_not_executed_is_shown_as_its_twin_has_it(tmp_path):
    checkout = write_checkout(tmp_path / "root", _00_plain=PLAIN, _02_more=PLAIN)
    with pytest.raises(SiteError, match="02-more has no twin to show"):
        build(tmp_path / "site", "00-plain", root=checkout)
    figures("02-more", root=checkout)
    twin = checkout / "notebooks" / "02-more.ipynb"
    twin.write_text(twin.read_text().replace("42", "43"))
    for name in ("F00a.svg", "F02a.svg"):  # of which the first is not drawn any more
        (checkout / "figures" / name).write_text("drawn before")
    build(tmp_path / "site", "00-plain", root=checkout)
    assert [path.name for path in (tmp_path / "site" / "figures").iterdir()] == ["F02a.svg"]
    page, other = ((tmp_path / "site" / f"{name}.html").read_text() for name in ("00-plain", "02-more"))
    assert "42" in page and "43" in other and "42" not in other


def test_a_later_site_replaces_an_earlier_one_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "execute", lambda *_, **__: None)
    site, checkout = tmp_path / "site", write_checkout(tmp_path / "root", _00_plain=PLAIN, _02_more=PLAIN)
    site.mkdir()
    build(site, root=checkout)
    (site / "notes.txt").write_text("mine")
    (checkout / "notebooks/02-more.py").unlink()
    build(site, root=checkout)
    assert {path.name for path in site.glob("*.html")} == {"index.html", "ledger.html", "00-plain.html"}
    assert (site / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("listed", ["../victim.txt", "/{victim}", "index.html\n../victim.txt"])
def test_a_marker_that_names_what_is_outside_deletes_nothing(listed, tmp_path):
    victim, out = tmp_path / "victim.txt", tmp_path / "out"
    victim.write_text("mine")
    out.mkdir()
    (out / MARKER).write_text(listed.format(victim=victim))
    with pytest.raises(SiteError, match="which is not in"):
        build(out, root=tmp_path)
    assert victim.read_text() == "mine"


def test_a_page_of_the_users_own_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "execute", lambda *_, **__: None)
    out, checkout = tmp_path / "out", write_checkout(tmp_path / "root", _00_plain=PLAIN)
    out.mkdir()
    (out / MARKER).write_text("")
    (out / "index.html").write_text("mine")
    with pytest.raises(SiteError, match="index.html is not of an earlier site"):
        build(out, root=checkout)
    assert (out / "index.html").read_text() == "mine"


def test_a_write_that_is_cut_short_can_be_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "execute", lambda *_, **__: None)
    out, checkout = tmp_path / "out", write_checkout(tmp_path / "root", _00_plain=PLAIN)
    with monkeypatch.context() as cut:
        cut.setattr(pages, "_put", lambda path, content: _fail_after_the_marker(path, content))
        with pytest.raises(SiteError, match="cannot be written: no space"):
            build(out, root=checkout)
    build(out, root=checkout)
    assert (out / "index.html").exists()


def _fail_after_the_marker(path, content):
    if path.name != MARKER:
        raise OSError(28, "no space", str(path))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def test_a_place_where_no_folder_can_be_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SiteError, match="file is no folder that can be written"):
        build(tmp_path / "file" / "site", root=tmp_path)


def test_the_command_line_says_what_is_wrong(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    command = [sys.executable, "-m", "ttt_teach.site", "build", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.startswith("error: ") and "Traceback" not in run.stderr
    with pytest.raises(SystemExit, match="error: .*99-none"):
        command_line(["figures", "99-none"])
    with pytest.raises(SystemExit, match="2"):
        command_line([])
