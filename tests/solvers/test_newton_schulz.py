"""Newton-Schulz against the singular values it must move, outside reference values, and its own formula by autodiff."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules import golden
from ttt_teach.solvers.newton_schulz import CONST5, SCHED5, newton_schulz

SCHEDULES = {"sched5": SCHED5, "const5": CONST5, "const3": CONST5[:3], "const0": ()}
CASES = {name: case for name, case in golden.read("lact").items() if name.startswith("ns_")}


def with_singular_values(s, rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    U, _ = np.linalg.qr(rng.normal(size=(rows, len(s))))
    V, _ = np.linalg.qr(rng.normal(size=(columns, len(s))))
    return U, V, (U * s) @ V.T


def literal(G, steps):
    X = G / (jnp.sqrt(jnp.sum(G**2)) + 1e-7)
    for a, b, c in steps:
        X = a * X + b * X @ X.T @ X + c * X @ X.T @ X @ X.T @ X
    return X


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    case = CASES[name]
    for schedule, steps in SCHEDULES.items():
        out, back = jax.vjp(lambda G: newton_schulz(G, steps), case["G"])  # noqa: B023
        golden.check_close(schedule, out, case[f"out_{schedule}"], 1e-12)
        if f"grad_G_{schedule}" in case:
            golden.check_close(f"d{schedule}", back(case["ct"])[0], case[f"grad_G_{schedule}"], 1e-10)
        if f"sv_{schedule}" in case:
            golden.check_close("sv", np.linalg.svd(out, compute_uv=False), case[f"sv_{schedule}"], 1e-11)


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (9, 6), (6, 9)])
def test_the_polynomial_acts_on_the_singular_values_alone(rows, columns):
    s = np.geomspace(1, 0.01, 6)
    U, V, G = with_singular_values(s, rows, columns)
    for steps in (SCHED5, CONST5):
        p = s / (np.linalg.norm(s) + 1e-7)
        for a, b, c in steps:
            p = a * p + b * p**3 + c * p**5
        golden.check_close("U p(S) V'", newton_schulz(G, steps), (U * p) @ V.T, 1e-13)
        golden.check_close("transposed", newton_schulz(G.T, steps), newton_schulz(G, steps).T, 1e-13)


@pytest.mark.parametrize(("steps", "low", "high"), [(SCHED5, 0.977, 1.032), (CONST5, 0.681, 1.135)])
def test_how_near_to_one(steps, low, high):
    """Every singular value from 0.01 to 1 of |G|; a 2 x 2 matrix holds s and sqrt(1 - s^2)."""
    s = np.linspace(0.01, 1, 2000)
    G = np.zeros((2000, 2, 2))
    G[:, 0, 0], G[:, 1, 1] = s, np.sqrt(1 - s**2)
    out = newton_schulz(G, steps)[:, 0, 0]
    assert low <= out.min() < low + 2e-3
    assert high - 2e-3 < out.max() <= high


def test_few_tokens_leave_noise_that_is_amplified():
    """A direction of low rank has singular values of rounding size: small ones grow about 490-fold, so noise shows."""
    for steps, slope in ((SCHED5, 493), (CONST5, 485)):
        _, _, G = with_singular_values(np.array([1.0, 1e-6]), 4, 4)
        smallest = np.linalg.svd(newton_schulz(G, steps), compute_uv=False)[1]
        assert abs(smallest / 1e-6 - slope) < 0.5


@pytest.mark.parametrize("shape", [(5, 5), (7, 4), (3, 6)])
def test_gradient_is_that_of_the_formula(shape):
    rng = np.random.default_rng(1)
    G, weigh = rng.normal(size=(2, *shape))
    want = jax.grad(lambda G: jnp.sum(literal(G, SCHED5) * weigh))(G)
    got = jax.grad(lambda G: jnp.sum(newton_schulz(G) * weigh))(G)
    golden.check_close("dG", got, want, 1e-11)


def test_a_batch_is_each_on_its_own():
    rng = np.random.default_rng(2)
    G, weigh = rng.normal(size=(2, 2, 3, 5, 4))

    @partial(jax.jit, static_argnums=0)
    def pull(f, G):
        out, back = jax.vjp(f, G)
        return out, back(weigh)[0]

    (many, slope), (one, slope_one) = pull(newton_schulz, G), pull(jax.vmap(jax.vmap(newton_schulz)), G)
    golden.check_close("out", many, one, 1e-14)
    golden.check_close("out", many[1, 2], newton_schulz(G[1, 2]), 1e-14)
    golden.check_close("dG", slope, slope_one, 1e-13)


def test_the_gradient_keeps_the_matrix_alone():
    G = np.random.default_rng(3).normal(size=(6, 6))
    _, back = jax.vjp(newton_schulz, G)
    assert sum(x.size for x in jax.tree.leaves(back)) == G.size


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zero_stays_zero_and_has_a_gradient(dtype):
    """There the norm has no slope, and the map is G / 1e-7 times the product of the a."""
    out, back = jax.vjp(newton_schulz, jnp.zeros((3, 4), dtype))
    assert out.dtype == dtype
    assert not np.any(out)
    slope = np.prod([a for a, _, _ in SCHED5]) / 1e-7
    golden.check_close("dG", back(jnp.ones((3, 4), dtype))[0], np.full((3, 4), slope), 1e-6)


def test_scale_is_lost_above_the_guard():
    G = np.random.default_rng(4).normal(size=(4, 4))
    golden.check_close("1e6 G", newton_schulz(1e6 * G), newton_schulz(G), 1e-6)
    assert np.linalg.norm(newton_schulz(1e-12 * G)) < 0.02 * np.linalg.norm(newton_schulz(G))


def test_float32_stays_near_float64():
    G = np.random.default_rng(5).normal(size=(8, 16))
    golden.check_close("out", newton_schulz(jnp.asarray(G, jnp.float32)), newton_schulz(G), 2e-6)
