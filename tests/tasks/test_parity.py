import jax
import numpy as np
import pytest

from ttt_teach.tasks import parity

KEY = jax.random.key(0)


def test_answers_are_the_parity_of_all_bits_so_far():
    bits, answers = map(np.asarray, parity(KEY, 5, 41))
    assert bits.shape == answers.shape == (5, 41) and bits.dtype == answers.dtype == np.int32
    for row, said in zip(bits, answers, strict=True):
        odd = False
        for bit, answer in zip(row, said, strict=True):
            odd ^= bool(bit)
            assert answer == odd


def test_bits_and_answers_are_fair():
    bits, answers = map(np.asarray, parity(KEY, 400, 100))
    assert set(np.unique(bits)) == {0, 1}
    assert abs(bits.mean() - 0.5) < 0.01 and np.abs(answers.mean(0) - 0.5).max() < 0.1  # 5 and 4 standard deviations


def test_it_is_a_function_of_the_key_alone():
    first, again, other = (parity(key, 2, 50)[0] for key in (KEY, KEY, jax.random.key(1)))
    assert (first == again).all() and (first != other).any()
    with jax.enable_x64(False):
        assert (parity(KEY, 2, 50)[0] == np.asarray(first)).all()


def test_a_key_may_be_traced():
    under_jit = jax.jit(lambda step: parity(jax.random.fold_in(KEY, step), 2, 9))(3)
    assert (under_jit[1] == parity(jax.random.fold_in(KEY, 3), 2, 9)[1]).all()


@pytest.mark.parametrize("batch, length, name", [(0, 4, "batch"), (2, 0, "length"), (2, 1.5, "length")])
def test_sizes_must_be_whole_and_positive(batch, length, name):
    with pytest.raises(ValueError, match=f"{name} is .*; expected a whole number"):
        parity(KEY, batch, length)
