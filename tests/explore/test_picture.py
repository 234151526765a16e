"""A picture is closed, white, the same bytes every time, and always has words and data."""

import csv
import io
import re
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.explore.html import Page, svg_of
from ttt_teach.explore import Picture, figure_axes

WORDS = "The curve rises from 0 to 1 over ten steps."


def picture(draw=lambda ax: ax.plot([0, 1]), words=WORDS, figure="F02a"):
    fig, ax = figure_axes()
    draw(ax)
    return Picture(fig, words, figure)


def rows(shown):
    return list(csv.DictReader(io.StringIO(shown.csv)))


def points(shown, *columns):
    return [tuple(float(row[column]) for column in columns) for row in rows(shown)]


class TestFigure:
    def test_same_figure_same_bytes(self):
        def draw(ax):
            ax.plot([1, 5, 2], label="a")
            ax.fill_between([0, 1, 2], 1, 2, clip_on=True)
            ax.scatter([0, 1], [1, 2])
            ax.legend()

        one, other = picture(draw), picture(draw)
        assert (one.svg, one.csv) == (other.svg, other.csv)

    def test_svg_is_well_formed_has_text_and_neither_date_nor_version(self):
        svg = picture(lambda ax: ax.set_title("a title & more")).svg
        root = ElementTree.fromstring(svg)
        assert "a title & more" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "Matplotlib" not in svg and "date" not in svg

    def test_ground_is_opaque_white(self):
        fig, ax = figure_axes()
        ax.plot([0, 1])
        fig.set_facecolor("none")
        assert re.search(r'id="patch_1">\s*<path [^>]*style="fill: #ffffff"', Picture(fig, WORDS, "F02a").svg)

    @pytest.mark.parametrize("words", [WORDS, "Too short."])
    def test_closes_a_figure_of_pyplot_whatever_the_words(self, words):
        fig, ax = plt.subplots()
        ax.plot([0, 1])
        if words is WORDS:
            Picture(fig, words, "F02a")
        else:
            with pytest.raises(ValueError, match="words"):
                Picture(fig, words, "F02a")
        assert not plt.get_fignums()

    def test_curve_plot_is_small(self):
        def draw(ax):
            for k in range(4):
                ax.semilogy(np.linspace(0, 30, 200), np.exp(-np.linspace(0, 30, 200) * k / 9), label=f"{k}")
            ax.legend()

        assert len(picture(draw).svg) < 20_000


class TestLogAxes:
    def test_labels_are_plain_powers_of_ten_without_minor_ticks(self):
        svg = picture(lambda ax: ax.semilogy([1e-4, 1])).svg
        assert ">10⁻⁴</text>" in svg
        assert svg.count("<use") < 15  # ticks

    def test_minor_ticks_are_kept_and_labelled_where_they_are_needed(self):
        svg = picture(lambda ax: ax.semilogy([0.15, 0.45])).svg
        assert ">0.2</text>" in svg and "mathdefault" not in svg

    def test_other_bases_and_formatters_are_left_alone(self):
        def draw(ax):
            ax.semilogx([1, 64], [1, 2], base=2)
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g} units")

        svg = picture(draw).svg
        assert "10⁰" not in svg and "1 units" in svg

    def test_symmetric_log(self):
        assert ">−10²</text>" in picture(lambda ax: (ax.plot([-500, 500]), ax.set_yscale("symlog"))).svg


class TestBadInput:
    @pytest.mark.parametrize(
        "words",
        [
            "",
            "   ",
            "Seven words with the number 1 only.",
            "No number at all in these words, not one.",
            WORDS[:-1],
        ],
    )
    def test_words(self, words):
        with pytest.raises(ValueError, match=r"words is .*; expected one sentence of 8 words"):
            picture(words=words)

    def test_words_of_another_type(self):
        with pytest.raises(TypeError, match="words is 7"):
            picture(words=7)

    @pytest.mark.parametrize("figure", ["", "F2a", "F02", "../F02a", "F02a\n", "F02ab", None, 2])
    def test_figure(self, figure):
        with pytest.raises(ValueError, match=r"figure is .*; expected an id such as 'F02a'"):
            picture(figure=figure)

    def test_fig(self):
        with pytest.raises(TypeError, match=r"fig is .*expected a matplotlib Figure"):
            Picture(figure_axes()[1], WORDS, "F02a")

    def test_small_text(self):
        with pytest.raises(ValueError, match="fig has 'fine print' in 8 pt; expected 9 pt or more"):
            picture(lambda ax: ax.text(0, 0, "fine print", fontsize=8))


class TestBundle:
    def test_html_svg_and_text(self):
        shown = picture()
        bundle = shown._repr_mimebundle_()
        assert list(bundle) == ["text/html", "image/svg+xml", "text/plain"]
        assert bundle["text/plain"] == repr(shown) == WORDS
        page = Page(bundle["text/html"])
        assert [tag for tag, _ in page.tags] == ["figure", "img", "figcaption"]
        assert page.all("figure")[0]["id"] == "F02a"
        assert page.all("img")[0]["alt"] == page.text("figcaption") == WORDS
        assert svg_of(page.all("img")[0]) == bundle["image/svg+xml"] == shown.svg

    def test_line_breaks_in_words_become_spaces(self):
        assert picture(words="  The curve rises\n  from 0 to 1 over ten steps. ").words == WORDS

    @settings(max_examples=30, deadline=None)
    @given(st.text(max_size=40))
    @example("""<b>'"&amp;</b></figure><script>""")
    def test_any_words_survive_html(self, odd):
        words = f"The curve {odd} rises from 0 to 1 over steps."
        page = Page(picture(words=words).html)
        assert [tag for tag, _ in page.tags] == ["figure", "img", "figcaption"]
        assert page.all("img")[0]["alt"] == page.text("figcaption") == " ".join(words.split())

    def test_showing_saves_where_the_environment_says(self, monkeypatch, tmp_path):
        monkeypatch.setenv("TTT_TEACH_FIGURES", str(tmp_path / "new"))
        shown = picture()
        assert not (tmp_path / "new").exists()
        shown._repr_mimebundle_()
        assert (tmp_path / "new" / "F02a.svg").read_text("utf-8") == shown.svg
        assert (tmp_path / "new" / "F02a.csv").read_text("utf-8") == shown.csv


class TestCsv:
    def test_lines_by_axes_artist_and_label(self):
        fig, (left, right) = figure_axes(1, 2)
        left.plot([0, 1], [0.1, 1 / 3], label="a, b")
        left.plot([0], [np.nan])
        right.plot([5], [6])
        assert Picture(fig, WORDS, "F02a").csv == (
            "axes,artist,label,x,y,value\n"
            '0,line0,"a, b",0,0.1,\n'
            '0,line0,"a, b",1,0.333333333,\n'
            "0,line1,,0,nan,\n"
            "1,line0,,5,6,\n"
        )

    def test_scatter(self):
        shown = picture(lambda ax: ax.scatter([1, 2], [3, 4], c=[0.5, 0.25]))
        assert points(shown, "x", "y", "value") == [(1, 3, 0.5), (2, 4, 0.25)]
        assert rows(picture(lambda ax: ax.scatter([1], [3])))[0]["value"] == ""

    def test_bars(self):
        shown = picture(lambda ax: ax.bar([0, 1], [2, 3], bottom=1, label="share"))
        assert points(shown, "x", "y", "value") == [(0, 3, 2), (1, 4, 3)]
        assert {(row["artist"], row["label"]) for row in rows(shown)} == {("bars0", "share")}
        assert points(picture(lambda ax: ax.barh([5], [2])), "x", "y", "value") == [(2, 5, 2)]

    @pytest.mark.parametrize("origin", ["upper", "lower"])
    def test_image(self, origin):
        shown = picture(lambda ax: ax.imshow([[1, 2], [3, 4], [5, 6]], origin=origin))
        assert points(shown, "x", "y", "value") == [
            (0, 0, 1),
            (1, 0, 2),
            (0, 1, 3),
            (1, 1, 4),
            (0, 2, 5),
            (1, 2, 6),
        ]

    def test_image_extent_and_gaps(self):
        image = np.ma.masked_equal([[1, 2]], 2)
        shown = picture(lambda ax: ax.imshow(image, extent=(0, 4, 10, 20)))
        assert [row["value"] for row in rows(shown)] == ["1", "nan"]
        assert points(shown, "x", "y") == [(1, 15), (3, 15)]

    def test_mesh_without_its_colour_bar(self):
        def draw(ax):
            ax.figure.colorbar(ax.pcolormesh([0, 1, 3], [0, 2], [[7, 8]]))

        assert points(picture(draw), "x", "y", "value") == [(0.5, 1, 7), (2, 1, 8)]

    def test_band(self):
        drawn = points(picture(lambda ax: ax.fill_between([0, 1], [1, 2], [3, 4])), "x", "y")
        assert {(0, 1), (1, 2), (0, 3), (1, 4)} <= set(drawn)

    def test_error_bars(self):
        shown = picture(lambda ax: ax.errorbar([1], [5], yerr=[2]))
        assert [(1, 5), (1, 3), (1, 7)] == points(shown, "x", "y")

    def test_arrows(self):
        def draw(ax):
            ax.quiver([0, 1], [0, 1], [1, 2], [3, 4], angles="xy", scale_units="xy", scale=1)

        assert points(picture(draw), "x", "y") == [(0, 0), (1, 3), (1, 1), (3, 5)]

    def test_patches(self):
        drawn = points(picture(lambda ax: ax.add_patch(plt.Rectangle((1, 2), 3, 4))), "x", "y")
        assert set(drawn) == {(1, 2), (4, 2), (4, 6), (1, 6)}

    def test_what_is_not_covered_leaves_no_row(self):
        def draw(ax):
            ax.imshow(np.zeros((2, 2, 3)))
            ax.annotate("here", (0, 0), (1, 1), arrowprops={"arrowstyle": "->"})
            ax.add_patch(plt.matplotlib.patches.FancyArrowPatch((0, 0), (1, 1)))

        assert rows(picture(draw)) == []
