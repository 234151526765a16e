"""Conjugate gradients against systems whose answer is known, and against the theorems CG must obey."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttt_teach.solvers import CG, PCG, cg, cg_trace, steps_to

D = 12


def system(seed=0, eigenvalues=None):
    """A, b and the x that solves A x = b: x is drawn first, so the truth comes from no solver."""
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(D, D)))
    eigenvalues = np.geomspace(1, 50, D) if eigenvalues is None else eigenvalues
    A = Q * eigenvalues @ Q.T
    x = rng.normal(size=D)
    return jnp.asarray(A), jnp.asarray(A @ x), x


def energy(A, e):
    return np.sqrt(np.einsum("...i,ij,...j", e, A, e))


def test_ends_in_D_steps_and_not_before():
    A, b, x = system(0, np.linspace(1, 4, D))
    run = cg_trace(lambda p: A @ p, b, max_steps=D)
    error = np.abs(np.asarray(run.x) - x).max(-1)
    assert error[D] < 1e-12 < 1e-6 < error[D - 3]


@pytest.mark.parametrize("distinct", [1, 2, 5])
def test_ends_in_as_many_steps_as_there_are_distinct_eigenvalues(distinct):
    A, b, x = system(1, np.resize(np.arange(1.0, distinct + 1), D))
    run = cg_trace(lambda p: A @ p, b, max_steps=distinct)
    error = np.abs(np.asarray(run.x) - x).max(-1)
    assert error[distinct] < 1e-12 < 1e-3 < error[distinct - 1]


def test_each_iterate_is_the_best_of_its_krylov_space():
    """x_j minimises the A-norm of the error over span(b, A b, ..., A^{j-1} b): compared with least squares there."""
    A, b, x = system(2)
    run = cg_trace(lambda p: A @ p, b, max_steps=5)
    L = np.linalg.cholesky(A)
    for j in range(1, 6):
        basis, _ = np.linalg.qr(np.stack([np.linalg.matrix_power(A, i) @ b for i in range(j)], 1))
        best = basis @ np.linalg.lstsq(L.T @ basis, L.T @ x, rcond=None)[0]
        assert np.abs(run.x[j] - best).max() < 1e-12 * np.abs(x).max() * 50
        assert energy(A, run.x[j] - x) < energy(A, run.x[j - 1] - x)


def test_trace_reports_the_true_residual():
    A, b, _ = system(3)
    run = cg_trace(lambda p: A @ p, b, jnp.ones(D), max_steps=6)
    want = np.linalg.norm(np.asarray(b) - np.asarray(run.x) @ np.asarray(A), axis=-1)
    np.testing.assert_allclose(run.residual, want, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(run.recurred[:6], want[:6], rtol=1e-10)


def test_float32_true_and_recurred_residual_part():
    """The recurrence keeps falling below what float32 can tell of b - A x: only the true residual says so."""
    A, b, _ = system(4, np.geomspace(1, 1e4, D))
    A, b = A.astype(jnp.float32), b.astype(jnp.float32)
    run = cg_trace(lambda p: A @ p, b, max_steps=60)
    assert run.recurred[-1] < 1e-9 * run.recurred[0]
    assert run.residual[-1] > 1e-8 * run.residual[0]


@pytest.mark.parametrize("x0", [None, "ones"])
def test_stops_relative_to_the_start(x0):
    A, b, _ = system(5)
    x0 = None if x0 is None else jnp.ones(D)
    full = cg_trace(lambda p: A @ p, b, x0, max_steps=D)
    first = int(np.argmax(full.recurred <= 1e-2 * full.recurred[0]))
    run = cg_trace(lambda p: A @ p, b, x0, max_steps=D, tol=1e-2)
    assert 1 < first < D
    assert run.steps == first
    np.testing.assert_array_equal(run.x[first], run.x[-1])
    np.testing.assert_allclose(cg(lambda p: A @ p, b, x0, max_steps=D, tol=1e-2), full.x[first], rtol=1e-12, atol=1e-14)


def test_the_cap_holds():
    A, b, _ = system(6)
    run = cg_trace(lambda p: A @ p, b, max_steps=3, tol=1e-12)
    assert run.steps == 3
    np.testing.assert_allclose(cg(lambda p: A @ p, b, max_steps=3, tol=1e-12), run.x[3], rtol=1e-13, atol=1e-14)


def test_no_cap_means_the_tolerance_decides_and_still_ends():
    A, b, x = system(7)
    np.testing.assert_allclose(cg(lambda p: A @ p, b, max_steps=None, tol=1e-12), x, rtol=1e-10, atol=1e-10)
    A32, b32 = A.astype(jnp.float32), b.astype(jnp.float32)
    got = cg(lambda p: A32 @ p, b32, max_steps=None, tol=1e-30)  # out of reach: it ends at rounding
    np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-4)


def test_zero_steps_return_the_start():
    A, b, _ = system(8)
    np.testing.assert_array_equal(cg(lambda p: A @ p, b, max_steps=0), np.zeros(D))
    np.testing.assert_allclose(cg(lambda p: A @ p, b, jnp.arange(D, dtype=jnp.float64), max_steps=0), np.arange(D))


@pytest.mark.parametrize("power", [-100, -40, 40, 100])
def test_has_no_scale(power):
    """float32, where r . r of such a b would underflow or overflow: the same to the bit, times the scale."""
    A, b, _ = system(9)
    A, b = A.astype(jnp.float32), b.astype(jnp.float32)
    want = cg_trace(lambda p: A @ p, b, max_steps=30, tol=1e-5)
    run = cg_trace(lambda p: A @ p, b * jnp.float32(2.0**power), max_steps=30, tol=1e-5)
    assert 0 < run.steps == want.steps < 30
    np.testing.assert_array_equal(np.float64(run.x) * 2.0**-power, np.float64(want.x))


@pytest.mark.parametrize("largest", [1e38, 3e38, 1e-36])
def test_the_ends_of_the_float32_range(largest):
    b = jnp.array([largest, largest / 3], jnp.float32)
    np.testing.assert_allclose(cg(lambda p: p, b, max_steps=5), b, rtol=1e-6)


def test_a_start_much_larger_than_the_right_hand_side():
    b, x0 = jnp.array([1e-30, 0], jnp.float32), jnp.ones(2, jnp.float32)
    assert np.abs(cg(lambda p: p, b, x0, max_steps=20)).max() < 1e-6


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e9])
def test_steps_past_the_answer_do_no_harm(size):
    """float32, 30 steps where 5 would do: the carried residual must not be driven into underflow, 0 / 0 and NaN."""
    rng = np.random.default_rng(15)
    M = rng.normal(size=(100, 5, 5))
    A = jnp.asarray(size * (M @ M.swapaxes(1, 2) + 0.1 * np.eye(5)), jnp.float32)
    b = jnp.asarray(rng.normal(size=(100, 5)), jnp.float32)
    x = jax.vmap(lambda A, b: cg(lambda p: A @ p, b, max_steps=30))(A, b)
    left = np.linalg.norm(np.einsum("nij,nj->ni", A, x) - np.asarray(b), axis=1) / np.linalg.norm(b, axis=1)
    assert left.max() < 1e-4


@pytest.mark.parametrize("spoil", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["b", "A", "x0"])
@pytest.mark.parametrize("tol", [0.0, 0.1])
def test_what_is_not_finite_shows_in_the_answer(spoil, where, tol):
    system = {"A": np.eye(3), "b": np.ones(3), "x0": np.ones(3)}
    system[where][(1,) * system[where].ndim] = spoil
    A, b, x0 = (jnp.asarray(system[name]) for name in ("A", "b", "x0"))
    assert np.isnan(cg(lambda p: A @ p, b, x0, max_steps=20, tol=tol)).any()
    assert np.isnan(cg_trace(lambda p: A @ p, b, x0, max_steps=3, tol=tol).x[-1]).any()


def test_zero_right_hand_side():
    A, _, _ = system(10)
    np.testing.assert_array_equal(cg(lambda p: A @ p, jnp.zeros(D), max_steps=5), np.zeros(D))
    run = cg_trace(lambda p: A @ p, jnp.zeros(D), max_steps=5)
    assert run.steps == 0
    assert np.isfinite(run.x).all()


def test_an_exact_preconditioner_needs_one_step():
    A, b, x = system(11)
    inverse = jnp.linalg.inv(A)
    run = cg_trace(lambda p: A @ p, b, max_steps=3, precondition=lambda r: inverse @ r)
    assert np.abs(run.x[1] - x).max() < 1e-12


def test_preconditioned_cg_is_cg_on_the_transformed_system():
    """With M = L L': the iterates are L times those of CG on L' A L y = L' b."""
    A, b, _ = system(12)
    L = jnp.diag(jnp.linspace(0.5, 2, D))
    run = cg_trace(lambda p: A @ p, b, max_steps=6, precondition=lambda r: L @ (L.T @ r))
    plain = cg_trace(lambda p: L.T @ (A @ (L @ p)), L.T @ b, max_steps=6)
    np.testing.assert_allclose(run.x, plain.x @ L.T, rtol=1e-10, atol=1e-11)


def test_vmap_stops_each_system_on_its_own():
    """A lane that is done must not move, and not turn to NaN, while another goes on."""
    A, b, x = system(13)
    rhs = jnp.stack([b, jnp.zeros(D), A[:, 0]])
    got = jax.vmap(lambda b: cg(lambda p: A @ p, b, max_steps=None, tol=1e-13))(rhs)
    np.testing.assert_allclose(got, np.stack([x, np.zeros(D), np.eye(D)[0]]), rtol=1e-10, atol=1e-10)


eight_steps = jax.jit(lambda A, b: cg_trace(lambda p: A @ p, b, max_steps=8))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0, 4))
def test_never_above_the_chebyshev_bound(seed, spread):
    """|e_j|_A <= 2 rho^j |e_0|_A with rho = (sqrt(kappa) - 1) / (sqrt(kappa) + 1)."""
    A, b, x = system(seed, np.geomspace(1, 10**spread, D))
    run = eight_steps(A, b)
    root = np.sqrt(10**spread)
    bound = 2 * ((root - 1) / (root + 1)) ** np.arange(9) * energy(A, x)
    assert (energy(A, np.asarray(run.x) - x) <= bound + 1e-12 * energy(A, x)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_steps": -1}, "max_steps is -1; expected a whole number >= 0"),
        ({"max_steps": 2.5}, "max_steps is 2.5; expected a whole number"),
        ({"max_steps": True}, "max_steps is True; expected a whole number"),
        ({"max_steps": 5, "tol": -1e-3}, "tol is -0.001; expected a number >= 0"),
        ({"max_steps": 5, "tol": float("nan")}, "tol is nan; expected"),
        ({"max_steps": 5, "tol": "1e-3"}, "tol is '1e-3'; expected a number"),
        ({"max_steps": None, "tol": 0.0}, "max_steps is None and tol is 0.*; expected one of them"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    A, b, _ = system()
    with pytest.raises(ValueError, match=message):
        cg(lambda p: A @ p, b, **arguments)
    for settings_of in (CG, PCG):
        with pytest.raises(ValueError, match=message):
            settings_of(**arguments)


def test_bad_vectors_are_named():
    A, b, _ = system()
    with pytest.raises(ValueError, match=r"b is float64 of shape \[12, 1\]; expected a float vector"):
        cg(lambda p: A @ p, b[:, None], max_steps=3)
    with pytest.raises(ValueError, match=r"x0 has shape \[3\]; expected \[12\] as b"):
        cg(lambda p: A @ p, b, jnp.zeros(3), max_steps=3)
    with pytest.raises(ValueError, match="max_steps is None; expected a number of steps to keep"):
        cg_trace(lambda p: A @ p, b, max_steps=None, tol=1e-3)


def test_settings_are_plain_static_data():
    assert hash(PCG(30)) == hash(PCG(max_steps=30, tol=0.0))
    assert CG(30) != CG(15)
    assert PCG(30) != CG(30)  # or jit would take one for the other


@pytest.mark.parametrize("tol", [1e-2, 1e-6])
def test_a_preconditioner_does_not_move_the_goal(tol):
    """PCG starts from zero, so it stops at tol |b| as CG does, however good M is, and no step earlier."""
    A, b, _ = system(16, np.geomspace(1, 1e4, D))
    M = jnp.linalg.inv(A + jnp.diag(jnp.linspace(0, 1, D)))
    run = cg_trace(lambda p: A @ p, b, max_steps=D, precondition=lambda r: M @ r)
    x = PCG(max_steps=D, tol=tol)(lambda p: A @ p, b, lambda r: M @ r)
    first = int(np.argmax(run.residual <= tol * np.linalg.norm(b)))
    assert 0 < first < D - 2
    np.testing.assert_allclose(x, run.x[first], rtol=1e-9, atol=1e-12)


def test_the_start_M_b_would_save_nothing():
    """The first step from zero ends at a multiple of M b, and the best one: no more error in the A-norm than at M b."""
    A, b, x = system(17)
    M = jnp.linalg.inv(A + 3 * jnp.eye(D))
    first = cg_trace(lambda p: A @ p, b, max_steps=1, precondition=lambda r: M @ r).x[1]
    np.testing.assert_allclose(first / (M @ b), (first / (M @ b))[0], rtol=1e-12)
    assert energy(A, x - first) < energy(A, x - M @ b)


@pytest.mark.parametrize(
    ("residual", "want"),
    [
        ([[2.0, 3.0, 0.2, 1.0], [1.0, 0.05, 0.01, 0.001]], [2, 1]),  # at the tolerance counts; a later rise does not
        ([1.0, 0.5, 0.2], 2),  # never met: the last step
        ([0.0, 0.0, 0.0], 0),  # solved before the first step
    ],
)
def test_steps_to(residual, want):
    assert steps_to(np.array(residual), 0.1).tolist() == want


def test_steps_to_is_the_stopping_rule():
    A, b, _ = system(14)
    full = cg_trace(lambda p: A @ p, b, max_steps=D)
    for tol in (0.5, 1e-2, 1e-4):
        assert steps_to(full.recurred, tol) == cg_trace(lambda p: A @ p, b, max_steps=D, tol=tol).steps
