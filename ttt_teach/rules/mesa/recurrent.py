"""One token after the other: two statistics, and a solve for the query."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.solvers import CG


def solve(H: Float[Array, "K K"], lam: Float[Array, " K"], q: Float[Array, " K"], solver: CG) -> Float[Array, " K"]:
    """q* = (H + diag(lam))^-1 q.

    The gradient is the adjoint solve of MesaNet App. D (dq = u, dH = -u q*', dlam = -u q*), with the same
    solver; its stopping is relative too, so the size of the upstream gradient does not matter.
    """
    return jax.lax.custom_linear_solve(lambda x: H @ x + lam * x, q, solve=solver, symmetric=True)


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
    """G_t = gamma G + beta k v', H_t = gamma H + beta k k', then o_t = G_t' (H_t + diag(lam))^-1 q_t (Eqs. 7-8)."""

    def step(state, token):
        G, H = state
        q, k, v, β, log_γ = token
        γ = jnp.exp(log_γ)
        G = γ * G + β * jnp.outer(k, v)
        H = γ * H + β * jnp.outer(k, k)
        return (G, H), G.T @ solve(H, lam, q, solver)

    state, o = jax.lax.scan(step, (G, H), (q, k, v, beta, log_decay[:, 0]))
    return o, state
