"""The pictures of notebook 03 draw the numbers they are given and say the right ones."""

import numpy as np
import pytest

from tests.explore.drawn import drawn
from ttt_teach.explore import mesa_objective as pictures


def test_gate_says_both_ends():
    beta, weighed, scaled = np.array([0.0, 1.0]), np.array([0.8, -1e-17]), np.array([0.4, 0.0])
    picture = pictures.gate_picture(beta, weighed, scaled, 30, 0.25)
    assert drawn(picture, "the gate weighs the pair (Mesa)") == pytest.approx(np.stack([beta, weighed], 1))
    assert "30 degrees apart" in picture.words and "the weight reads 0.800" in picture.words
    assert "the scaled value 0.400" in picture.words and "both read 0.000." in picture.words


def test_shares_add_up_and_the_most_visited_direction_comes_first():
    picture = pictures.shares_picture(np.array([0.0, 1.0, 3.0]), 0.9, 1.0, "A head")
    assert drawn(picture, "share") == pytest.approx(np.array([(1, 0.75), (2, 0.5), (3, 0)]))
    assert (
        "3 directions add up to 1.25; 1 direction is kept by more than half, the least visited to 0." in picture.words
    )


def test_decayed_says_the_median_of_the_end():
    line = np.append(np.zeros(50), np.full(50, 0.5))
    picture = pictures.decayed_picture({0.9: line, 0.99: line / 10}, 0.25)
    assert "the last 50 of 100 tokens" in picture.words and "0.5 at gamma 0.9, 0.05 at gamma 0.99" in picture.words
    assert drawn(picture, "gamma 0.9")[-1] == pytest.approx((100, 0.5))


class TestBlowUp:
    def picture(self, rls, largest=(4.0, 8.0, 16.0)):
        errors = {"float32 RLS": np.array(rls), "float32 Mesa": np.full(3, 1e-6), "RLS against Mesa": np.ones(3)}
        law = np.array([4.0, 8.0, 16.0])
        return pictures.blow_up(np.array([4, 8, 12]), np.array(largest), law, errors, 0.9, "Half of the keys")

    def test_says_when_reads_go_wrong_and_what_P_has_become(self):
        words = self.picture([1e-6, 0.2, 3.0]).words
        assert "Half of the keys, gamma = 0.9: float32 RLS reads wrong by a tenth at token 8, the first of" in words
        assert "after 12 tokens the largest entry of P is 1.6e+01." in words

    def test_says_when_they_do_not(self):
        assert "float32 RLS is never wrong by more than 2.0e-03" in self.picture([1e-6, 2e-3, np.nan]).words

    def test_says_when_P_is_no_number(self):
        picture = self.picture([1e-6, 0.2, np.nan], (4.0, np.inf, np.nan))
        assert "P is no number from token 8 on" in picture.words
        assert drawn(picture, "largest entry") == pytest.approx(np.array([(4, 4)]))
