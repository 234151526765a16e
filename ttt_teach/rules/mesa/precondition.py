"""The inverse of H_t + diag(lam) at every token of a chunk, but for the decay inside it: recursive least squares."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.mesa.solve import Matvec
from ttt_teach.solvers.cholesky import inverse_factor


class Inverses:
    """M_t = (H + sum_{i<=t} weight_i k_i k_i' + diag(lam))^-1 for every t of a chunk.

    Each key takes a rank one from the inverse before it (Sherman and Morrison; MesaNet App. H), so
    M_t = P - sum_{i<=t} u_i u_i' with P = M_0: linear attention once more. All u_i at once are the rows of E b P,
    where b_i = sqrt(weight_i) k_i and E is the inverse Cholesky factor of I + b P b', whose first t rows and columns
    are those of the first t keys alone.

    H, weight: what the *end* of the chunk keeps of the state before it and of each key, zeta_C0 H and zeta_Ci beta_i.
    Then M_t^-1 = zeta_Ct H_t + diag(lam), so M_t^-1 <= H_t + diag(lam) <= M_t^-1 / zeta_Ct: no eigenvalue of
    M_t (H_t + diag(lam)) is below 1 or above 1 / zeta_Ct. Without decay M_t is the inverse, and one step is enough.
    A key that a reset inside the chunk is going to erase has no weight here: before it M_t is diag(lam)^-1.

    Nothing of this is differentiated, since a preconditioner changes the way to the answer and not the answer.
    """

    def __init__(
        self,
        k: Float[Array, "C K"],
        weight: Float[Array, "C 1"],
        lam: Float[Array, " K"],
        H: Float[Array, "K K"],
    ):
        k, weight, lam, H = jax.lax.stop_gradient((k, weight, lam, H))
        E = inverse_factor(H + jnp.diag(lam))
        self.P = E.T @ E
        b = jnp.sqrt(weight) * k
        bP = b @ self.P
        self.u = inverse_factor(jnp.eye(len(k), dtype=k.dtype) + bP @ b.T) @ bP

    def at(self, so_far: Float[Array, " C"]) -> Matvec:
        """M_t as a product, where so_far is 1 up to token t and 0 after it."""
        return lambda r: self.P @ r - (so_far * (self.u @ r)) @ self.u
