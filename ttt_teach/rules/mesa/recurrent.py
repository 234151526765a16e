"""One token after the other: two statistics, and a solve for the query."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.mesa.precondition import inverse
from ttt_teach.rules.mesa.solve import solve
from ttt_teach.solvers import CG, PCG


def recurrent(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    log_decay: Float[Array, "T 1"],
    lam: Float[Array, " K"],
    G: Float[Array, "K V"],
    H: Float[Array, "K K"],
    *,
    solver: CG,
) -> tuple[Float[Array, "T V"], tuple[Float[Array, "K V"], Float[Array, "K K"]]]:
    """MesaNet Eqs. 7-8: G_t = gamma G + beta k v', H_t = gamma H + beta k k', o_t = G_t' (H_t + diag(lam))^-1 q_t.

    For PCG the preconditioner is the inverse itself, anew at every token: K^3 each, for comparison only.
    """

    def step(state, token):
        G, H = state
        q, k, v, β, log_γ = token
        γ = jnp.exp(log_γ)
        G = γ * G + β * jnp.outer(k, v)
        H = γ * H + β * jnp.outer(k, k)
        M = inverse(H, lam) if isinstance(solver, PCG) else None
        return (G, H), G.T @ solve(lambda x: H @ x + lam * x, q, solver, M)

    state, o = jax.lax.scan(step, (G, H), (q, k, v, beta, log_decay[:, 0]))
    return o, state
