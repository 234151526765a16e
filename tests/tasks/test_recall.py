"""Streams of pairs and questions: the target is what a dictionary that reads along would say."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttt_teach import tasks

# Compiled as a whole: op by op each of its dozens of small programs would be compiled for itself.
recall = jax.jit(tasks.recall, static_argnames=("batch", "length", "pairs", "vocab", "overwrite", "skew"))
KEY = jax.random.key(7)


def read_along(tokens):
    """The value that a reader who keeps a dictionary knows at each position, or None."""
    known, answers = {}, []
    for k, v in tokens.reshape(-1, 2).tolist():
        answers += [known.get(k), None]
        known[k] = v
    return answers


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.0, 1.0]))
def test_a_dictionary_answers_every_question(seed, overwrite, skew):
    tokens, targets, mask = map(np.asarray, recall(jax.random.key(seed), 3, 40, 6, 16, overwrite=overwrite, skew=skew))
    assert tokens.shape == targets.shape == mask.shape == (3, 40)
    for stream, target, asked in zip(tokens, targets, mask, strict=True):
        for t, answer in enumerate(read_along(stream)):
            assert target[t] == (stream[t + 1] if t % 2 == 0 else 0)
            assert not asked[t] or target[t] == answer


def test_keys_and_values_are_different_tokens():
    tokens, _, mask = map(np.asarray, recall(KEY, 4, 60, 5, 20))
    assert tokens[:, ::2].max() < 10 <= tokens[:, 1::2].min() and tokens.max() < 20
    assert not mask[:, 1::2].any()
    assert all(len(set(stream)) <= 5 for stream in tokens[:, ::2].tolist())


def test_every_return_is_a_question_if_nothing_is_overwritten_and_none_if_all_is():
    tokens, _, mask = map(np.asarray, recall(KEY, 4, 60, 5, 20))
    returns = [[answer is not None for answer in read_along(stream)] for stream in tokens]
    np.testing.assert_array_equal(mask, returns)
    assert not np.asarray(recall(KEY, 4, 60, 5, 20, overwrite=1.0)[2]).any()


def test_a_value_that_was_overwritten_is_never_the_target():
    tokens, targets, mask = map(np.asarray, recall(KEY, 8, 200, 4, 100, overwrite=0.3))
    stale = sum(
        bool({v for k, v in before if k == stream[t]} - {target[t]})
        for stream, target, asked in zip(tokens, targets, mask, strict=True)
        for t in np.flatnonzero(asked)
        if (before := stream[:t].reshape(-1, 2).tolist())
    )
    assert stale > 100  # many questions have an older value that would be wrong


def test_skew_makes_some_keys_frequent():
    def share_of_the_most_frequent(skew):
        keys = np.asarray(recall(KEY, 1, 4000, 16, 64, skew=skew)[0])[0, ::2]
        return np.bincount(keys).max() / len(keys)

    zipf = 1 / np.sum(1 / np.arange(1, 17))
    assert share_of_the_most_frequent(0.0) == pytest.approx(1 / 16, abs=0.03)
    assert share_of_the_most_frequent(1.0) == pytest.approx(zipf, abs=0.03)


def test_the_same_key_gives_the_same_streams_also_under_jit():
    plain, again = tasks.recall(KEY, 2, 20, 3, 8), recall(KEY, 2, 20, 3, 8)
    jax.tree.map(np.testing.assert_array_equal, plain, again)
    with jax.enable_x64(False):
        jax.tree.map(np.testing.assert_array_equal, plain, recall(KEY, 2, 20, 3, 8))
    other = recall(jax.random.key(8), 2, 20, 3, 8)
    assert (np.asarray(plain[0]) != np.asarray(other[0])).any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 7}, "length is 7; expected an even number"),
        ({"length": 0}, "length is 0; expected a whole number >= 2"),
        ({"vocab": 9}, "vocab is 9; expected an even number"),
        ({"pairs": 5}, "pairs is 5; expected a whole number from 1 to 4, half of vocab"),
        ({"pairs": 0}, "pairs is 0; expected a whole number from 1 to 4"),
        ({"batch": 1.0}, "batch is 1.0; expected a whole number >= 1"),
        ({"overwrite": 1.5}, "overwrite is 1.5; expected a probability"),
        ({"skew": float("nan")}, "skew is nan; expected a number >= 0"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        recall(KEY, **({"batch": 2, "length": 8, "pairs": 2, "vocab": 8} | wrong))
