"""Newton-Schulz: a matrix with its singular values moved towards 1, by matrix products alone (Muon; LaCT Sec. 3.2)."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.solvers.precision import full_precision

Steps = tuple[tuple[float, float, float], ...]

# One (a, b, c) a step; it takes every singular value s to a s + b s^3 + c s^5.
# The language models of the LaCT code: singular values from [0.01, 1] end in [0.977, 1.032].
SCHED5: Steps = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
# View synthesis and video there, and Muon itself: the same step five times; from [0.01, 1] to [0.681, 1.135].
CONST5: Steps = ((3.4445, -4.7750, 2.0315),) * 5

# Added to |G| before G is divided by it: the reference's constant, which keeps the zero matrix zero. It is the one
# thing here that has a scale: a G as small as this is not brought to length 1.
GUARD = 1e-7


@partial(jax.custom_vjp, nondiff_argnums=(1,))
@full_precision
def newton_schulz(G: Float[Array, "... M N"], steps: Steps = SCHED5) -> Float[Array, "... M N"]:
    """U p(S) V' for G / (|G| + 1e-7) = U S V', where p is the polynomials of ``steps`` one after the other.

    |G| is the Frobenius norm, so S starts in [0, 1]. Each step is X <- a X + (b A + c A A) X with A = X X', worked on
    the side with fewer rows: 3 products. No steps leave G / |G|. The gradient keeps G alone and goes through the
    steps again: 7 more products a step, and 0 at the zero matrix for the norm, which has no slope there.
    """
    return _iterated(G, steps)


def _iterated(G, steps):
    unit, _ = to_length_1(G)
    X, _ = jax.lax.scan(_step, broad(unit, G), _table(steps, G))
    return broad(X, G)


def _step(X, abc):
    """The next X, and what this step's gradient needs: X, A and bA + cAA."""
    a, b, c = abc
    A = X @ X.mT
    B = b * A + c * (A @ A)
    return a * X + B @ X, (X, A, B)


def _doubled(P):
    """P + P', twice the symmetric part."""
    return P + P.mT


def _table(steps, G):
    return jnp.asarray(steps, G.dtype).reshape(-1, 3)


def to_length_1(G):
    """G / (|G| + guard), and |G|, where 0 has the slope 0."""
    squares = jnp.sum(G * G, axis=(-2, -1), keepdims=True)
    size = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
    return G / (size + GUARD), size


def broad(X, G):
    """X transposed if G has more rows than columns: there and back."""
    return X.mT if G.shape[-2] > G.shape[-1] else X


@full_precision
def _forward(G, steps):
    return _iterated(G, steps), G


@full_precision
def _backward(steps, G, slope):
    """With Y the slope at a step's end: (a + B) Y + (b S + c (S A + A S)) X before it, with S = Y X' + X Y'."""

    def back(Y, step):
        (X, A, B), (a, b, c) = step
        S = _doubled(Y @ X.mT)
        P = b * S + c * _doubled(S @ A)
        return a * Y + B @ Y + P @ X, None

    unit, size = to_length_1(G)
    table = _table(steps, G)
    _, walk = jax.lax.scan(_step, broad(unit, G), table)
    Y, _ = jax.lax.scan(back, broad(slope, G), (walk, table), reverse=True)
    Y = broad(Y, G)
    along = jnp.sum(unit * Y, axis=(-2, -1), keepdims=True)
    radial = jnp.where(size > 0, along / jnp.where(size > 0, size, 1), 0)
    return ((Y - radial * G) / (size + GUARD),)


newton_schulz.defvjp(_forward, _backward)
