"""Both theorems on runs of the rule and of full gradients; the best fixed scale by its optimality conditions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ttt_teach import OSDNState, osdn
from ttt_teach.tasks import unit
from ttt_teach.theory import regret as theory

T, K, V = 40, 6, 3


def tokens(seed, low=0.5):
    rng = np.random.default_rng(seed)
    return unit(rng.normal(size=(T, K)) + 0.5), rng.uniform(low, 1, T), rng.normal(size=(T, V))


@jax.jit
def run(k, v, beta, step_size):
    """The scale before every token, and |u|^2 before and after its write, read off the memory of osdn itself."""

    def step(state, token):
        k, v, β = token
        _, new = osdn(*(x[None, None, None] for x in (k, k, v, β)), state=state, step_size=step_size)
        before, after = (jnp.sum((v - s.S[0, 0].T @ k) ** 2) for s in (state, new))
        return new, (state.d[0, 0], before, after)

    start = OSDNState(jnp.ones((1, 1, K, V)), jnp.ones((1, 1, K)))
    return jax.lax.scan(step, start, (k, v, beta))[1]


@pytest.mark.parametrize("step_size", [0.0, 3e-3, 0.5])
def test_the_local_bound_holds(step_size):
    k, β, v = tokens(0)
    d, before, after = run(k, v, β, step_size)
    q = theory.residual_ratio(d, k, β)
    np.testing.assert_allclose(q, after / before, rtol=1e-9)
    np.testing.assert_allclose(theory.progress(d, k, β), (q - 1) / 2, atol=1e-14)
    gap, R = theory.comparator_gap(k, β), theory.regret(d, k, β)
    assert np.mean(q) == pytest.approx(2 * gap + 2 * R / T, rel=1e-12)
    assert np.sum(np.log(q)) <= theory.log_local_bound(gap, R, T)


def test_a_larger_step_has_less_regret_here():
    k, β, v = tokens(0)
    slow, fast = (theory.regret(run(k, v, β, step_size)[0], k, β) for step_size in (3e-3, 0.5))
    assert fast < slow


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("bounds", [(0.5, 2.0), (0.9, 1.1), (-np.inf, np.inf)])
def test_the_best_scale_is_optimal(bounds, scale):
    """The slope of sum_t h_t, by autodiff of h as stated, is 0 inside, and points out of the box on a bound."""
    k, β, _ = tokens(1)
    k[3] = 0
    k *= scale * np.random.default_rng(2).uniform(0.5, 1, (T, 1))
    used = np.delete(np.arange(T), 3)

    def total(d):
        a = β[used] * (k[used] ** 2 @ d)
        return jnp.sum(((1 - a) ** 2 - 1) / (2 * jnp.sum(k[used] ** 2, axis=-1)))

    d = theory.best_scale(k, β, bounds)
    lo, hi = bounds
    slope = np.asarray(jax.grad(total)(d))
    inside = (d > lo) & (d < hi)
    assert np.sum(theory.progress(d, k, β)) == pytest.approx(float(total(d)), rel=1e-13)
    assert np.abs(slope[inside]).max(initial=0) < 1e-11
    assert (slope[d == lo] > 0).all() and (slope[d == hi] < 0).all()
    assert np.abs(np.asarray(jax.grad(total)(d + 1e-6))).max() > 1e-7


def test_the_slope_is_that_of_progress():
    k, β, _ = tokens(1)
    k[3] = 0
    k *= np.random.default_rng(2).uniform(0.5, 3, (T, 1))
    d = np.random.default_rng(3).uniform(0.5, 2, (T, K))

    def total(d):
        n = jnp.sum(k**2, axis=-1)
        a = β * jnp.sum(d * k**2, axis=-1)
        return jnp.sum(jnp.where(n > 0, ((1 - a) ** 2 - 1) / (2 * jnp.where(n > 0, n, 1)), 0))

    np.testing.assert_allclose(theory.slope(d, k, β), jax.grad(total)(d), atol=1e-14)
    assert (theory.slope(d, k, β)[3] == 0).all()


@pytest.mark.parametrize("step_size", [3e-3, 0.5, 1.9])
@pytest.mark.parametrize("matched", [True, False])
def test_a_fixed_step_keeps_its_promise(step_size, matched):
    """At every length, against the fixed scale that is best for it; unit keys have c <= beta^2 <= 1."""
    k, β, v = tokens(6)
    β = np.full(T, 0.7) if matched else β
    q = theory.residual_ratio(run(k, v, β, step_size)[0], k, β)
    for t in (1, 7, T):
        gap, best = theory.comparator_gap(k[:t], β[:t]), theory.best_scale(k[:t], β[:t])
        bound = theory.log_fixed_step_bound(gap, np.linalg.norm(1 - best), step_size, t)
        assert t * np.log(np.mean(q[:t])) <= bound + 1e-12


def test_a_fixed_step_can_need_all_that_it_is_promised():
    """Every channel once, and a step after which it fits: no bound from the same numbers could be lower."""
    k, β = np.eye(K), np.full(K, 0.6)
    q = theory.residual_ratio(np.ones(K), k, β)  # no channel comes twice
    bound = theory.log_fixed_step_bound(0, np.sqrt(K) * (1 / 0.6 - 1), 1 / 0.36, K, curvature=0.36)
    assert np.sum(np.log(q)) == pytest.approx(float(bound), rel=1e-12)


@pytest.mark.parametrize("step_size", [0.0, 2.0, -1.0])
def test_no_promise_for_a_step_that_is_too_long(step_size):
    with pytest.raises(ValueError, match="expected a number above 0 and below 2 / c = 2"):
        theory.log_fixed_step_bound(0.1, 1.0, step_size, 10)


def test_small_steps_of_the_write_cannot_be_matched():
    """beta < 1/2 with d <= 2 leaves 1 - beta <d, s> > 0 for every unit key: the gap is never 0."""
    k, β, _ = tokens(3, low=0.3)
    β = np.minimum(β, 0.45)
    np.testing.assert_array_equal(theory.best_scale(k, β), np.full(K, 2.0))
    assert theory.comparator_gap(k, β) >= np.mean((1 - 2 * β) ** 2) / 2 * (1 - 1e-12)
    one = np.tile(k[:1], (T, 1))  # one key and one gate, and a d that fits: no gap
    assert theory.comparator_gap(one, np.full(T, 0.8)) < 1e-28


def test_the_population_bound_holds():
    """Full gradients of a regression whose best preconditioner is diagonal, and a D that learns; no step raises f.

    The bound on the mean rate falls as T grows, which is what super-geometric means.
    """
    rng = np.random.default_rng(4)
    Σ, best = np.diag(np.linspace(0.5, 1.5, K)), rng.normal(size=(K, V))

    def f(S):
        return np.sum((S - best) * (Σ @ (S - best))) / 2  # above its minimum

    S, d, regret, rates = np.zeros((K, V)), np.full(K, 1 / 3), 0.0, []
    first = last = f(S)
    for t in range(1, 31):
        G = Σ @ (S - best)
        S = S - d[:, None] * G
        regret += f(S) / np.sum(G**2)  # h_t(D_t) - h_t(pinv(Σ)): the latter's step reaches the minimum at once
        d = d + 0.3 * np.sum(G * (Σ @ (S - best)), axis=1) / np.sum(G**2)
        assert f(S) < last
        last = f(S)
        bound = theory.log_population_bound(1.5, regret, t)
        assert np.log(last / first) <= bound
        rates.append(bound / t)
    assert rates[29] < rates[9] - 0.5 and rates[29] < -0.8


def test_bad_shapes_are_named():
    k, β, _ = tokens(5)
    with pytest.raises(ValueError, match=r"d \[5\], k \[40, 6\], beta \[40\]; expected k \[T, K\]"):
        theory.regret(np.ones(5), k, β)
    with pytest.raises(ValueError, match="expected k"):
        theory.best_scale(k, β[:3])


@pytest.mark.parametrize("bounds", [(0.5, 2.0), (0.0, 1e9), (0.5, np.inf), (-np.inf, np.inf)])
def test_the_best_scale_is_optimal_where_keys_leave_directions_open(bounds):
    """One key in 38 channels: of the many best scales it finds one, as 300 projected steps do not better."""
    rng = np.random.default_rng(192)  # where scipy.optimize.lsq_linear is far off without bounds
    k = np.tile(unit(rng.normal(size=38)), (7, 1))
    β = rng.uniform(0.1, 1, 7)
    d = best = theory.best_scale(k, β, bounds)
    length = np.linalg.norm((β[:, None] * k**2).T @ (β[:, None] * k**2), 2)
    for _ in range(300):
        d = np.clip(d - theory.slope(d, k, β).sum(0) / length, *bounds)
    assert theory.progress(best, k, β).sum() <= theory.progress(d, k, β).sum() + 1e-9
    assert theory.regret(np.ones(38), k, β, bounds) >= -1e-9


def test_bounds_that_meet_leave_one_scale():
    k, β, _ = tokens(5)
    np.testing.assert_array_equal(theory.best_scale(k, β, (1.0, 1.0)), np.ones(K))


@pytest.mark.parametrize("bounds", [(2.0, 0.5), (np.inf, np.inf), (np.nan, 1.0), 2, (1, 2, 3), "ab"])
def test_bad_bounds_are_named(bounds):
    k, β, _ = tokens(5)
    with pytest.raises(ValueError, match="^bounds is .*; expected (lo <= hi|two numbers)"):
        theory.best_scale(k, β, bounds)


def test_keys_that_are_no_numbers_are_named():
    k, β, _ = tokens(5)
    with pytest.raises(ValueError, match="k holds nan; expected finite numbers"):
        theory.best_scale(k * np.nan, β)
    with pytest.raises(ValueError, match=r"k has shape \[0, 6\]; expected at least one token"):
        theory.comparator_gap(k[:0], β[:0])


def test_bounds_take_lists():
    both = np.array([10, 20])
    for bound, given in (
        (theory.log_local_bound, lambda T: (1, 1, T)),
        (theory.log_fixed_step_bound, lambda T: (1, 1, 0.1, T)),
        (theory.log_population_bound, lambda T: (1, 1, T)),
    ):
        np.testing.assert_allclose(bound(*given([10, 20])), bound(*given(both)), rtol=1e-15)
        with pytest.raises(ValueError, match="T is 0; expected at least 1"):
            bound(*given(0))
    np.testing.assert_array_equal(
        theory.log_fixed_step_bound([1, 2], [0, 1], 0.1, 9),
        theory.log_fixed_step_bound(both / 10, both / 10 - 1, 0.1, 9),
    )
    with pytest.raises(ValueError, match="curvature is 0; expected a positive number"):
        theory.log_fixed_step_bound(1, 1, 0.1, 9, curvature=0)
