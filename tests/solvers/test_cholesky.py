"""The inverse Cholesky factor against what it must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ttt_teach.solvers import cholesky

inverse_factor = jax.jit(cholesky.inverse_factor)


@pytest.mark.parametrize(("dtype", "tol"), [("float64", 1e-12), ("float32", 2e-4)])
@pytest.mark.parametrize("D", [1, 5, 16, 33])
def test_whitens(D, dtype, tol):
    """E A E' = I, at condition number 10^4: float32 is good for 1e-4 there, which a preconditioner can bear."""
    rng = np.random.default_rng(D)
    Q, _ = np.linalg.qr(rng.normal(size=(D, D)))
    A = jnp.asarray(Q * np.geomspace(1, 1e4, D) @ Q.T, dtype)
    E = np.asarray(inverse_factor(A), float)
    assert np.abs(np.triu(E, 1)).max(initial=0) == 0
    assert np.abs(E @ np.asarray(A, float) @ E.T - np.eye(D)).max() < tol


def test_not_positive_definite_is_not_a_number():
    assert np.isnan(inverse_factor(jnp.diag(jnp.array([1.0, -1.0, 1.0])))).any()
