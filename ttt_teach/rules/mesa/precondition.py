"""What PCG is given: (H_t + diag(lam))^-1, exact for one token, and for a whole chunk but for the decay inside it."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.mesa.solve import Matvec
from ttt_teach.solvers.cholesky import inverse_factor


def inverse(H: Float[Array, "K K"], lam: Float[Array, " K"]) -> Matvec:
    """(H + diag(lam))^-1 as a product."""
    E = inverse_factor(jax.lax.stop_gradient(H + jnp.diag(lam)))
    return lambda r: E.T @ (E @ r)


class Inverses:
    """M_t = (s_t H_t + diag(lam))^-1 for every t of a chunk, with factors s_t near 1: recursive least squares.

    It wants sums to which a token only adds. What the *end* of the chunk keeps of H_t is one, s_t = zeta_Ct, and so is
    any multiple of it. With 1 / sqrt(zeta_C0) times as much, s_t lies between sqrt(zeta_C0) and its reciprocal; the
    factor is at most 4, or what a token has long forgotten would weigh too much. The eigenvalues of
    M_t (H_t + diag(lam)) lie between 1 and 1 / s_t. Without decay M_t is the inverse, and one step is enough.

    Each key takes a rank one from the inverse before it (``solvers.rls`` does so token by token; MesaNet App. H), so
    M_t = P - sum_{i<=t} u_i u_i' with P = M_0: linear attention once more. All u_i at once are the rows of E b P,
    where b_i b_i' is what key i adds and E the inverse Cholesky factor of I + b P b', whose first t rows and columns
    know of the first t keys alone.

    Nothing of this is differentiated, since a preconditioner changes the way to the answer and not the answer.
    """

    def __init__(
        self,
        k: Float[Array, "C K"],
        kept: Float[Array, "C 1"],
        left: Float[Array, ""],
        lam: Float[Array, " K"],
        H: Float[Array, "K K"],
    ):
        """kept, left: the shares zeta_Ci beta_i of key i and zeta_C0 of H that the end of the chunk keeps."""
        k, kept, left, lam, H = jax.lax.stop_gradient((k, kept, left, lam, H))
        rise = 1 / jnp.maximum(jnp.sqrt(left), 1 / 4)
        E = inverse_factor(rise * left * H + jnp.diag(lam))
        self.P = E.T @ E
        b = jnp.sqrt(rise * kept) * k
        bP = b @ self.P
        self.u = inverse_factor(jnp.eye(len(k), dtype=k.dtype) + bP @ b.T) @ bP

    def at(self, so_far: Float[Array, " C"]) -> Matvec:
        """M_t as a product, where so_far is 1 up to token t and 0 after it."""
        return lambda r: self.P @ r - (so_far * (self.u @ r)) @ self.u
