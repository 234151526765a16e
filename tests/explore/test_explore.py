"""Sliders, live and static, without a browser."""

import gc
import itertools
import json
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.explore.html import Page, svg_of
from ttt_teach.explore import EXPLORED, Picture, explore, figure_axes


def draw(**choice):
    fig, ax = figure_axes()
    text = ", ".join(f"{name} {value}" for name, value in choice.items())
    ax.set_title(text, parse_math=False)
    return Picture(fig, f"One of the 2 or more pictures shows {text}.", "F02a")


def static_html(*args, **values):
    return explore(*args, **values)._repr_mimebundle_()["text/html"]


def frames_of(page):
    """What the script holds: (svg, words) of every frame, and the labels."""
    found = re.search(r"frames = (.*), labels = (.*);", page.text("script"))
    return json.loads(found[1]), json.loads(found[2])


def words_of(view):
    return Page(view.value).all("img")[0]["alt"]


class TestLive:
    def test_a_slider_for_each_parameter_starts_in_the_middle(self):
        shown = explore(draw, angle=[10, 20, 30], rule=["delta", "mesa"])
        angle, rule = shown.sliders["angle"], shown.sliders["rule"]
        assert (angle.description, angle.options, angle.value) == ("angle", ("10", "20", "30"), "20")
        assert (rule.description, rule.options, rule.value) == ("rule", ("delta", "mesa"), "mesa")
        assert angle.continuous_update
        assert shown.choice == {"angle": 20, "rule": "mesa"}

    def test_start(self):
        shown = explore(draw, angle=range(3), lam=[0.25, 1.0], start={"lam": 0.25})
        assert shown.choice == {"angle": 1, "lam": 0.25}

    def test_draw_gets_the_values_themselves(self):
        got = []
        explore(lambda x: (got.append(x), draw(x=x))[1], x=np.array([0.1, 0.2, 0.3]))
        assert got == [0.2] and type(got[0]) is float

    def test_thirty_moves_leave_one_picture_of_the_last_value_and_no_figure(self):
        shown = explore(draw, angle=range(31), start={"angle": 0})
        view = shown.children[-1]
        for angle in range(1, 31):
            shown.sliders["angle"].index = angle
            assert words_of(view) == f"One of the 2 or more pictures shows angle {angle}."
        assert len(Page(view.value).all("img")) == 1
        assert shown.children == (shown.sliders["angle"], view)
        assert not plt.get_fignums()

    def test_a_frame_is_what_draw_gives_by_itself(self):
        def curve(lam):
            fig, ax = figure_axes()
            ax.plot([1, 2], label="a")
            ax.legend(title="b")
            ax.set(title="c", xlabel="d", xscale="log")
            return Picture(fig, f"One line of text has at least 8 words, {lam}.", "F02a")

        assert svg_of(Page(explore(curve, lam=[1]).children[-1].value).all("img")[0]) == curve(1).svg

    def test_an_error_takes_the_pictures_place_and_is_raised(self):
        def fails_at_2(angle):
            if angle == 2:
                raise ZeroDivisionError("no <such> angle")
            return draw(angle=angle)

        shown = explore(fails_at_2, angle=[0, 1, 2], start={"angle": 0})
        with pytest.raises(ZeroDivisionError, match="no <such> angle"):
            shown.sliders["angle"].index = 2
        assert shown.children[-1].value == '<pre role="alert">ZeroDivisionError: no &lt;such&gt; angle</pre>'
        shown.sliders["angle"].index = 1
        assert words_of(shown.children[-1]).endswith("angle 1.")

    def test_garbage_is_collected_again_after_a_picture_and_after_an_error(self):
        shown = explore(lambda x: draw(x=1 / x), x=[0, 1])
        assert gc.isenabled()
        with pytest.raises(ZeroDivisionError):
            shown.sliders["x"].index = 0
        assert gc.isenabled()

    def test_an_error_in_the_first_picture_is_raised(self):
        with pytest.raises(ZeroDivisionError):
            explore(lambda angle: 1 / 0, angle=[1])

    def test_bundle_shows_the_start_frame_to_viewers_without_widgets(self):
        shown = explore(draw, angle=[1, 2, 3])
        shown.sliders["angle"].index = 0
        bundle = shown._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" in bundle
        assert {key: bundle[key] for key in ("text/html", "image/svg+xml", "text/plain")} == draw(
            angle=2
        )._repr_mimebundle_()

    def test_explorers_are_listed_by_figure_once(self):
        first, second = explore(draw, angle=[1]), explore(draw, angle=[1, 2])
        assert EXPLORED == {"F02a": second} and first is not second


class TestStatic:
    @pytest.fixture(autouse=True)
    def _static(self, static):
        pass

    def test_every_combination_is_drawn_once_in_order(self):
        drawn = []
        shown = explore(lambda **choice: (drawn.append(choice), draw(**choice))[1], angle=[10, 20, 30], lam=[0.25, 1.0])
        assert drawn == [{"angle": a, "lam": b} for a, b in itertools.product([10, 20, 30], [0.25, 1.0])]
        frames, labels = frames_of(Page(shown.html))
        assert frames == [[picture.svg, picture.words] for picture in (draw(**choice) for choice in drawn)]
        assert labels == [["10", "20", "30"], ["0.25", "1"]]
        assert not plt.get_fignums()

    def test_markup(self):
        page = Page(static_html(draw, angle=[10, 20, 30], lam=[0.25, 1.0], start={"angle": 10}))
        angle, lam = page.all("input")
        assert angle == angle | {
            "type": "range",
            "min": "0",
            "max": "2",
            "value": "0",
            "aria-valuetext": "10",
        }
        assert lam == lam | {"type": "range", "min": "0", "max": "1", "value": "1", "aria-valuetext": "1"}
        assert page.texts["label"] == ["angle ", "lam "]
        assert page.texts["output"] == ["10", "1"]
        assert page.all("figcaption") == [{"aria-live": "polite"}]

    def test_without_script_the_start_frame_shows_and_no_dead_slider(self):
        page = Page(static_html(draw, angle=[10, 20, 30]))
        (image,) = page.all("img")
        start = draw(angle=20)
        assert (svg_of(image), image["alt"], page.text("figcaption")) == (start.svg, start.words, start.words)
        assert "disabled" in page.all("input")[0]

    def test_needs_nothing_from_elsewhere(self):
        page = Page(static_html(draw, angle=[10, 20]))
        assert not [a for _, tag in page.tags for a in tag if a in ("href", "srcset", "data")]
        assert "src" not in page.all("script")[0]

    def test_bundle(self):
        shown = explore(draw, angle=[1, 2, 3])
        start = draw(angle=2)
        assert shown._repr_mimebundle_() == {
            "text/html": shown.html,
            "image/svg+xml": start.svg,
            "text/plain": start.words,
        }
        assert repr(shown) == start.words

    def test_start_frame_is_saved_where_the_environment_says(self, monkeypatch, tmp_path):
        monkeypatch.setenv("TTT_TEACH_FIGURES", str(tmp_path))
        explore(draw, angle=[1, 2, 3])._repr_mimebundle_()
        assert (tmp_path / "F02a.svg").read_text("utf-8") == draw(angle=2).svg

    def test_equal_pictures(self):
        def same(angle):
            return Picture(figure_axes()[0], f"Here are 8 words or more, with angle {angle}.", "F02a")

        with pytest.raises(ValueError, match=r"same svg for {'angle': 1} and {'angle': 2}"):
            explore(same, angle=[1, 2])

    def test_equal_words(self):
        def same(angle):
            fig, ax = figure_axes()
            ax.set_title(angle)
            return Picture(fig, "Here are 8 words or more that never change.", "F02a")

        with pytest.raises(ValueError, match=r"same words for {'angle': 1} and {'angle': 3}"):
            explore(same, angle=[1, 3])

    def test_two_ids(self):
        def other(angle):
            fig, ax = figure_axes()
            ax.set_title(angle)
            return Picture(fig, f"Here are 8 words or more, with angle {angle}.", f"F02{'ab'[angle]}")

        with pytest.raises(ValueError, match=r"F02b for {'angle': 1}; expected F02a"):
            explore(other, angle=[0, 1])

    def test_an_error_in_any_stops(self):
        with pytest.raises(ZeroDivisionError):
            explore(lambda x: draw(x=1 / x), x=[1, 0])


@pytest.mark.parametrize("mode", ["live", "static"])
class TestBadInput:
    @pytest.fixture(autouse=True)
    def _mode(self, mode, monkeypatch):
        monkeypatch.setenv("TTT_TEACH_STATIC", str(int(mode == "static")))

    @pytest.mark.parametrize("names", ["", "abc"])
    def test_number_of_parameters(self, names):
        with pytest.raises(ValueError, match=rf"has {len(names)} parameters .*; expected one or two"):
            explore(draw, **{name: [1, 2] for name in names})

    @pytest.mark.parametrize(
        "values", [[], (), range(0), np.zeros(0), None, 7, "abc", {1: 2}, {1, 2}, iter([1]), np.zeros(())]
    )
    def test_values_that_are_no_sequence_or_empty(self, values):
        with pytest.raises(ValueError, match=r"lam is .*; expected a list, tuple, range or array, and not empty"):
            explore(draw, lam=values)

    @pytest.mark.parametrize("values", [[1, 2, 1], ["a", "a"], [1, 1.0], [1, "1"], [0.1, 0.1 + 1e-12]])
    def test_values_that_read_the_same(self, values):
        with pytest.raises(ValueError, match=r"lam holds '.*' 2 times; expected different values"):
            explore(draw, lam=values)

    @pytest.mark.parametrize("value", [None, [1], float("nan"), " ", "", True, 1j, np.array([1, 2])])
    def test_values_of_another_kind(self, value):
        with pytest.raises(ValueError, match=r"lam holds .*; expected numbers or strings that are not blank"):
            explore(draw, lam=[1, value])

    def test_start_not_in_values(self):
        with pytest.raises(ValueError, match=r"start has lam=3; expected one of 1, 2"):
            explore(draw, lam=[1, 2], start={"lam": 3})

    def test_start_of_an_unknown_parameter(self):
        with pytest.raises(ValueError, match=r"start names \['angle'\]; expected parameters out of \['lam'\]"):
            explore(draw, lam=[1, 2], start={"angle": 3})

    def test_draw_returns_something_else(self):
        with pytest.raises(TypeError, match=r"draw returned Figure for {'lam': 1}; expected a Picture"):
            explore(lambda lam: figure_axes()[0], lam=[1])


names = st.text(min_size=1, max_size=12).filter(lambda name: name not in ("start", "draw"))
labels = st.text(min_size=1, max_size=12).filter(lambda label: label.strip())
numbers = st.integers() | st.floats(allow_nan=False)


class TestAnyNamesAndValues:
    @settings(max_examples=15, deadline=None)
    @given(names, st.lists(labels, min_size=2, max_size=3, unique_by=lambda label: " ".join(label.split())))
    @example("""<i>'"&lt;""", ["</script><!--<script>", "]]>&amp;", "é\u2028\\"])
    def test_odd_text_survives_the_static_page(self, name, values):
        shown = _static(lambda **choice: _described(name, choice[name]), **{name: values})
        page = Page(shown.html)
        frames, readings = frames_of(page)
        assert [words for _, words in frames] == [picture.words for picture in shown.pictures]
        assert readings == [values]
        assert page.texts["label"] == [f"{name} "]
        assert page.texts["output"] == [values[len(values) // 2]]
        script = page.text("script").lower()
        assert "</" not in script and "<!--" not in script

    @settings(max_examples=15, deadline=None)
    @given(names, st.lists(numbers, min_size=1, max_size=4, unique_by=lambda x: f"{x:.6g}"))
    def test_numbers_reach_draw_unchanged(self, name, values):
        got = []

        def note(**choice):
            got.append(choice[name])
            return _described(name, len(got))

        shown = explore(note, **{name: values})
        for slider in shown.sliders.values():
            for slider.index in range(len(values)):
                assert got[-1] == values[slider.index]


def _described(name, value):
    fig, ax = figure_axes()
    ax.set_axis_off()
    ax.text(0, 0, ascii(value), parse_math=False)
    return Picture(fig, f"One of the 2 or more pictures has {name} at {value}.", "F02a")


def _static(*args, **values):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TTT_TEACH_STATIC", "1")
        return explore(*args, **values)
