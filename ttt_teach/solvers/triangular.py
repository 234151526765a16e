"""The inverse of a unit lower triangular matrix, by halves: a chunk of the delta rule as products (OSDN Sec. 4.3)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.solvers.precision import full_precision

BLOCK = 8  # solved row by row, all blocks at once; above it matrix products are faster


@jax.custom_jvp
def unit_lower_inverse(A: Float[Array, "... C C"]) -> Float[Array, "... C C"]:
    """(I + A)^-1 for a strictly lower triangular A, by forward substitution; the rest of A is ignored.

    Blocks of eight rows first; then [[X, 0], [B, Y]]^-1 = [[X^-1, 0], [-Y^-1 B X^-1, Y^-1]], twice as large each
    time. Backward stable row by row as substitution is, unlike I - A + A^2 - ..., whose terms grow and cancel
    for keys that are alike. About C^3 / 3 multiplications, all but 8 C of the rows as matrix products.
    """
    C = A.shape[-1]
    size = BLOCK
    while size < C:
        size *= 2
    A = jnp.pad(A, [(0, 0)] * (A.ndim - 2) + [(0, size - C)] * 2)
    T = _substitute(_on_diagonal(A, BLOCK))
    half = BLOCK
    while half < size:
        below = _on_diagonal(A, 2 * half)[..., half:, :half]
        T = join_halves(T, -T[..., 1::2, :, :] @ below @ T[..., ::2, :, :])
        half *= 2
    return T[..., 0, :C, :C]


@unit_lower_inverse.defjvp
@full_precision
def _tangent(primals, tangents):
    (A,), (dA,) = primals, tangents
    T = unit_lower_inverse(A)
    return T, -T @ jnp.tril(dA, -1) @ T


def _on_diagonal(A: Float[Array, "... C C"], size: int) -> Float[Array, "... N size size"]:
    return jnp.stack([A[..., i : i + size, i : i + size] for i in range(0, A.shape[-1], size)], axis=-3)


def _substitute(A: Float[Array, "... S S"]) -> Float[Array, "... S S"]:
    """Row t of (I + A)^-1 is e_t - sum_{i<t} A_ti row_i."""
    e = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    rows = e[..., :1, :]
    for t in range(1, A.shape[-1]):
        rows = jnp.concatenate([rows, e[..., t : t + 1, :] - A[..., t : t + 1, :t] @ rows], axis=-2)
    return rows


def join_halves(diagonal: Float[Array, "... N S S"], below: Float[Array, "... M S S"]) -> Float[Array, "... M S2 S2"]:
    """[[first, 0], [below, second]] from every pair of neighbours on the diagonal; M is N / 2, S2 is 2 S."""
    first, second = diagonal[..., ::2, :, :], diagonal[..., 1::2, :, :]
    return jnp.block([[first, jnp.zeros_like(first)], [below, second]])
