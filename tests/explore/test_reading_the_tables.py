"""The pictures of notebook 16 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import reading_the_tables as pictures
from ttt_teach.ledger.tables import Row, find, load


def row(model, value, **change):
    base = dict(
        paper="osdn", table="Table 1", model=model, size="1B", tokens="5B", metric="recall", unit="%", better="higher"
    )
    return Row(**base | dict(value=value, half=0.05, std=np.nan, where="slide 1", note="") | change)


@pytest.mark.parametrize(("half", "text"), [(0.5, "10"), (0.05, "10.1"), (0.005, "10.10")])
def test_numbers_are_said_as_they_are_printed(half, text):
    assert pictures.printed(row("a", 10.1, half=half)) == text


class TestRanking:
    rows = (row("a", 10.0), row("b", 30.0), row("c", 20.0))

    def words(self, model, rows=rows):
        return pictures.ranking(rows, model, "F16a").words

    def test_says_place_and_distance(self):
        assert "recall (Table 1, 1B, 5B tokens): c has 20.0 %, place 2 of 3 models, 10 points behind b." in self.words(
            "c"
        )
        assert "b has 30.0 %, place 1 of 3 models, 10 points ahead of c." in self.words("b")

    def test_lower_can_be_better(self):
        rows = [r._replace(better="lower", unit="PPL") for r in self.rows]
        assert "a has 10.0 PPL, place 1 of 3 models, 10 PPL ahead of c." in self.words("a", rows)
        assert "b has 30.0 PPL, place 3 of 3 models, 20 PPL behind a." in self.words("b", rows)

    def test_a_tie_is_a_tie(self):
        rows = [row("a", 10.0), row("b", 10.0), row("c", 5.0)]
        assert "a has 10.0 %, place 1 of 3 models, level with b." in self.words("a", rows)
        assert "b has 10.0 %, place 1 of 3 models, level with a." in self.words("b", rows)

    def test_a_hole_is_said(self):
        assert "the reading gives 3 models and leaves out d." in self.words("d")

    def test_a_spread_is_said(self):
        assert "a has 10.0 ± 2.5 %, place 1" in self.words("a", [row("a", 10.0, std=2.5), row("b", 1.0)])

    def test_of_real_tables(self):
        rows = find(load("mesanet"), metric="six-set PPL", table="Table 2")
        assert (
            "MesaNet has 13.79 PPL, place 2 of 7 models, level with Transformer, 0.04 PPL behind Hawk-Mesa."
            in self.words("MesaNet", rows)
        )


def test_averages_say_both_winners_and_draw_their_ratios():
    gains = {"A": (0.0, -0.05), "B": (-0.06, 0.0)}
    picture = pictures.averages(0.1, 2.4, 3.6, gains)
    assert "so A leads; pooled they are" in picture.words and picture.words.endswith("so B leads.")
    assert drawn(picture, "pooled")[[0, -1], 1] == pytest.approx(np.exp([-0.06, 0.05]))
    by_mean = (np.exp(2.34) + np.exp(3.6)) / (np.exp(2.4) + np.exp(3.55))
    assert drawn(picture, "mean of two perplexities")[0, 1] == pytest.approx(by_mean)


def test_spreads_stay_under_the_bound():
    rows = [row(name, 50.0, std=std) for name, std in zip("abcd", (10, 20, 30, 40), strict=True)]
    picture = pictures.spreads(rows, 1.58)
    assert "The widest spread is 40 points (d, recall, mean 50 %)" in picture.words
    assert "cannot exceed 50.0, and sampling gives at most 1.58" in picture.words
    assert drawn(picture, "the most at this mean")[:, 1].max() == pytest.approx(50)


def test_selection_says_the_gains():
    each, once = np.full(4, 0.5), np.array([0.5, 0.5, -0.5, -0.5])
    words = pictures.selection(2, 8, [1, 2], [0, 0.56], each, once).words
    assert "2 equal variants, 8 tasks: the best for each task reports 0.50 too much" in words
    assert "the best on average 0.00" in words and "100% and 50% of the reports" in words
    assert "1 equal variant, 1 task:" in pictures.selection(1, 1, [1, 2], [0, 0.56], each, once).words


def test_positions_say_where_each_line_crosses():
    k = np.arange(1, 101)
    picture = pictures.positions(k, 10, 20, (k - 10.0) / 100)
    assert "sign at position 10, its mean so far at 19." in picture.words  # the mean of k - 10 is (T + 1) / 2 - 10
    assert "Evaluated to 20: +0.005 nats on average, +0.100 at the last position" in picture.words


def test_survivors_say_both_falls():
    k, flat = np.arange(4.0), np.full(4, 3.0)
    falling = np.array([3.5, 3.2, 3.0, 3.0])
    picture = pictures.survivors(
        k, {"all": falling, "long": flat}, falling, k, {"none": flat, "some": flat, "whole": falling}
    )
    assert "all: 0.50; long: 0.00" in picture.words
    assert drawn(picture, "whole")[:, 1] == pytest.approx(falling)
