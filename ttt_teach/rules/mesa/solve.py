"""The solve that every token of Mesa needs, and its gradient: one more solve."""

from collections.abc import Callable

import jax
from jax import Array
from jaxtyping import Float

from ttt_teach.solvers import CG

Matvec = Callable[[Float[Array, " K"]], Float[Array, " K"]]


def solve(A: Matvec, q: Float[Array, " K"], solver: CG, M: Matvec | None = None) -> Float[Array, " K"]:
    """q* = A^-1 q, where A = H_t + diag(lam); M, if given, approximates A^-1.

    The gradient is the adjoint solve of MesaNet App. D (dq = u, dH = -u q*', dlam = -u q*), with the same
    solver and M; its stopping is relative too, so the size of the upstream gradient does not matter.
    """
    return jax.lax.custom_linear_solve(A, q, solve=lambda A, b: solver(A, b, M), symmetric=True)
