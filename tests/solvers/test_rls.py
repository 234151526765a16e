"""Recursive least squares against the inverse it should be, and the failure it is known for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ttt_teach.rules.mesa.precondition import Inverses
from ttt_teach.solvers import rls, rls_update

K = 6


def tokens(T, seed=0):
    rng = np.random.default_rng(seed)
    k = rng.normal(size=(T, K))
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    return k, rng.uniform(0, 1, T), rng.uniform(0.2, 2, K), np.log(rng.uniform(0.8, 1, T))


def sums(k, beta, lam, gamma):
    """R_t for every t, written down from its recurrence."""
    R = [np.diag(lam)]
    for k_t, beta_t, gamma_t in zip(k, beta, gamma, strict=True):
        R.append(gamma_t * R[-1] + beta_t * np.outer(k_t, k_t))
    return np.array(R[1:])


# Conditioned below 100: 40 updates of float64 leave some 1e-14 of P, and float32 half as many digits.
@pytest.mark.parametrize(("dtype", "tol"), [("float64", 2e-13), ("float32", 2e-4)])
@pytest.mark.parametrize("T", [1, 40])
@pytest.mark.parametrize("forgets", [False, True])
def test_is_the_inverse(T, forgets, dtype, tol):
    k, beta, lam, log_decay = tokens(T)
    log_decay = forgets * log_decay
    P = rls(*(x.astype(dtype) for x in (k, beta, lam)), log_decay=log_decay.astype(dtype))
    want = np.linalg.inv(sums(k, beta, lam, np.exp(log_decay)))
    assert P.dtype == dtype
    assert np.abs(np.asarray(P, float) - want).max() < tol * np.abs(want).max()


def test_none_means_no_decay():
    k, beta, lam, _ = tokens(5)
    assert (rls(k, beta, lam) == rls(k, beta, lam, log_decay=np.zeros(5))).all()


def test_no_tokens():
    k, beta, lam, _ = tokens(0)
    assert rls(k, beta, lam).shape == (0, K, K)


def test_the_regulariser_decays():
    """Without a write R is zeta_t0 diag(lam): the start state is forgotten like any pair."""
    k, beta, lam, log_decay = tokens(9)
    P = rls(k, 0 * beta, lam, log_decay=log_decay)
    np.testing.assert_allclose(P[-1], np.diag(np.exp(-log_decay.sum()) / lam), rtol=1e-14)


def test_is_what_the_preconditioner_builds_for_a_whole_chunk():
    k, beta, lam, _ = tokens(7)
    kept, H = jnp.asarray(beta[:, None]), jnp.zeros((K, K))
    at_once = Inverses(jnp.asarray(k), kept, jnp.ones(()), jnp.asarray(lam), H)
    one_by_one = rls(k, beta, lam)
    inverse = jax.jit(lambda seen: jnp.stack([at_once.at(seen)(e) for e in jnp.eye(K)]))
    for t in range(7):
        M = inverse(jnp.asarray(np.arange(7) <= t, float))
        np.testing.assert_allclose(M, one_by_one[t], atol=1e-13)


def test_stays_symmetric_to_the_bit():
    k, beta, lam, log_decay = (x.astype(np.float32) for x in tokens(60))
    P = rls(k, beta, lam, log_decay=log_decay)
    assert (P == P.mT).all()


def test_a_negative_weight_takes_a_pair_out_again():
    k, beta, lam, _ = tokens(20)
    P = rls(k, beta, lam)
    np.testing.assert_allclose(rls_update(P[-1], k[-1], -beta[-1]), P[-2], rtol=0, atol=1e-13)


@pytest.mark.parametrize("gamma", [0.8, 0.9])
def test_float32_dies_where_no_key_goes(gamma):
    """Keys that leave half of the directions alone: P grows by 1/gamma a token there.

    With e-foldings n = t ln(1/gamma): at n = 8 the read is right, at 20 P is not positive definite (2^24 = e^16.6 is
    the reciprocal of a rounding), at 90 it is not a number (the largest float32 is e^88.7).
    """
    T = int(90 / np.log(1 / gamma)) + 2
    rng = np.random.default_rng(1)
    turn, _ = np.linalg.qr(rng.normal(size=(K, K)))
    k = rng.normal(size=(T, K // 2)) @ turn[: K // 2]
    k, beta, lam, log_decay = (
        x.astype(np.float32)
        for x in (k / np.linalg.norm(k, axis=1, keepdims=True), np.ones(T), np.ones(K), np.full(T, np.log(gamma)))
    )
    P = np.asarray(rls(k, beta, lam, log_decay=log_decay), float)
    alive, dead, gone = (int(n / np.log(1 / gamma)) for n in (8, 20, 90))
    R = sums(*(x[: alive + 1].astype(float) for x in (k, beta)), lam.astype(float), np.full(alive + 1, gamma))[-1]
    assert np.abs(P[alive] @ R - np.eye(K)).max() < 0.1
    assert np.linalg.eigvalsh(P[dead]).min() < 0 < np.linalg.eigvalsh(P[alive]).min()
    assert not np.isfinite(P[gone]).all()


def test_a_reset_is_not_finite():
    k, beta, lam, log_decay = tokens(5)
    log_decay[3] = -np.inf
    P = rls(k, beta, lam, log_decay=log_decay)
    assert np.isfinite(P[2]).all() and not np.isfinite(P[3]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": np.ones(3)}, r"k is float64 of shape [3]; expected float32 or float64, [T, K]"),
        ({"k": np.ones((5, K), int)}, r"k is int64 of shape [5, 6]; expected float32 or float64, [T, K]"),
        ({"beta": np.ones(4)}, r"beta is float64 of shape [4]; expected float64, [5]"),
        ({"lam": np.ones(())}, r"lam is float64 of shape []; expected float64, [6]"),
        ({"lam": np.ones(K, np.float32)}, r"lam is float32 of shape [6]; expected float64, [6]"),
        ({"log_decay": np.zeros((5, 1))}, r"log_decay is float64 of shape [5, 1]; expected float64, [5]"),
    ],
)
def test_bad_input_is_named(change, message):
    k, beta, lam, log_decay = tokens(5)
    given = {"k": k, "beta": beta, "lam": lam, "log_decay": log_decay} | change
    with pytest.raises(ValueError) as error:
        rls(given["k"], given["beta"], given["lam"], log_decay=given["log_decay"])
    assert str(error.value) == message
