"""The equal-time comparison: its stream asks what it wrote, its answers can be found, and its counts are counts."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ttt_teach.bench import budget
from ttt_teach.bench.budget import Layer
from ttt_teach.bench.solvers import CountCG, CountPCG, steps
from ttt_teach.solvers import cg_trace, steps_to
from ttt_teach.tasks import unit


@pytest.fixture(scope="module")
def stream():
    return budget.stream()


def last_written(x, t, head):
    """How many tokens ago the pair asked for at t was written, 0 for now; -1 if never."""
    same = (x.features[: t + 1, head] == x.asked[t, head]).all(-1)
    return t - np.flatnonzero(same)[-1] if same.any() else -1


def test_every_question_is_for_a_pair_written_before_and_near_ones_lately(stream):
    for t in range(0, budget.T, 7):
        ago = last_written(stream, t, 1)
        assert ago >= 0
        assert stream.far[t, 1] or ago < budget.NEAR
        np.testing.assert_array_equal(stream.answers[t, 1], stream.values[t - ago, 1])


def test_the_same_seed_gives_the_same_stream_with_half_of_it_far(stream):
    np.testing.assert_array_equal(stream.asked, budget.stream().asked)
    assert stream.far.mean() == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(np.linalg.norm(stream.answers, axis=-1), 1)


def test_errors_are_those_of_the_two_kinds(stream):
    o = np.where(stream.far[..., None], 0, 2) * stream.answers
    assert budget.errors(jnp.asarray(o[None]), stream) == pytest.approx((1, 1))
    assert budget.errors(jnp.asarray(stream.answers[None]), stream) == (0, 0)


def test_a_window_that_finds_the_query_answers_and_one_that_does_not_gives_way(stream):
    args = budget.arguments(stream, 64)
    window, memory, both = (
        np.asarray(budget.read(args, layer))[0] for layer in (Layer(64, 0, 64), Layer(64, 8), Layer(64, 8, 64))
    )
    near = ~stream.far
    missed = np.linalg.norm(both - stream.answers, axis=-1)
    assert np.median(missed[near]) < 0.05  # b is 0.96 where the query is found
    unseen = stream.far & (np.linalg.norm(window, axis=-1) < 1e-6)
    assert unseen.sum() > 100
    np.testing.assert_allclose(both[unseen], memory[unseen], atol=1e-5)


def run(ms, far, near, **layer):
    return Layer(**({"width": 32, "steps": 8} | layer))._asdict() | {"ms": ms, "far": far, "near": near}


def test_within_takes_the_best_that_is_fast_enough():
    runs = [
        run(1, 0.8, 0.8, steps=2),
        run(2, 0.6, 0.6),
        run(9, 0.1, 0.1, steps=30),
        run(2, 0.5, 0.3, window=64),
        run(3, 0.4, 0.4, width=64),
    ]
    best = budget.within(runs, 3)
    assert best["steps"] is runs[1] and best["window"] is runs[3] and best["width"] is runs[4]
    assert best["anything"] is runs[4] and "window alone" not in best


def test_the_committed_results_are_of_these_layers():
    committed = json.loads(budget.RESULTS.read_text())
    assert {Layer(*(run[name] for name in Layer._fields)) for run in committed["runs"]} == set(budget.LAYERS)
    assert {"date", "device", "cores", "python", "jax"} <= committed.keys()


@pytest.mark.parametrize("counted", [CountCG, CountPCG])
def test_steps_are_counted_also_where_little_is_left_of_the_past(counted):
    T, D = 150, 6
    q, k = unit(np.random.default_rng(0).normal(size=(2, T, 1, D)))
    args = {"q": q[None], "k": k[None], "beta": np.ones((1, T, 1)), "lam": np.full((1, D), 0.25)}
    found = steps(args | {"log_decay": np.full((1, T, 1), np.log(0.5))}, counted(20, 1e-3))[:, 0]
    if counted is CountPCG:
        assert found.min() >= 1 and found.max() <= D + 1
        return
    recurred = jax.jit(lambda A, q: cg_trace(lambda p: A @ p, q, max_steps=20).recurred)
    H = np.zeros((D, D))
    for t in range(T):
        H = 0.5 * H + np.outer(k[t, 0], k[t, 0])
        if t % 10 == 0:
            assert found[t] == steps_to(recurred(H + 0.25 * np.eye(D), q[t, 0]), 1e-3)
