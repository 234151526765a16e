"""A positive definite matrix factored, for those who then want nothing but matrix products."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.solvers.triangular import unit_lower_inverse


def inverse_factor(A: Float[Array, "D D"]) -> Float[Array, "D D"]:
    """The lower triangular E with E A E' = I, so that A^-1 = E'E: E is L^-1 of the Cholesky factor A = L L'.

    NaN if A is not positive definite in its own precision.
    """
    L = jnp.linalg.cholesky(A, symmetrize_input=False)
    scale = jnp.diagonal(L)
    return unit_lower_inverse(jnp.tril(L, -1) / scale[:, None]) / scale[None]
