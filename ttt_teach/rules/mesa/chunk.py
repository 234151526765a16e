"""Matrix products over chunks. Kept are the states between two chunks and the solved queries; the gradient recomputes
the rest."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules import chunks
from ttt_teach.rules.mesa.precondition import Inverses
from ttt_teach.rules.mesa.solve import solve
from ttt_teach.solvers import CG, PCG


def chunkwise(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    log_decay: Float[Array, "T 1"],
    lam: Float[Array, " K"],
    G: Float[Array, "K V"],
    H: Float[Array, "K K"],
    *,
    chunk: int,
    solver: CG,
) -> tuple[Float[Array, "T V"], tuple[Float[Array, "K V"], Float[Array, "K K"]]]:
    """Solve for all queries of a chunk at once, then read G with the answers x_t as linear attention does.

    With zeta_t the decay of what was there before the chunk (MesaNet Eqs. 7-8 and App. D; its Eqs. 39-40 lack zeta_t),

        (H_t + diag(lam)) x_t = zeta_t H x_t + sum_{i<=t} zeta_ti beta_i k_i (k_i . x_t) + lam x_t  =  q_t
        o_t                   = zeta_t G'x_t + sum_{i<=t} zeta_ti beta_i v_i (k_i . x_t)

    so a step of CG is linear attention with v = k. It is written for one query; vmap makes matrix products of it.
    """

    @partial(jax.checkpoint, policy=_is_a_solution)
    def step(state, tokens):
        G, H = state
        q, k, v, β, g = tokens
        ζ, ζβ = chunks.from_start(g), chunks.decay(g) * β[None]
        kept = chunks.to_end(g) * β[:, None]
        left = chunks.whole(g)[0]
        inverses = Inverses(k, kept, left, lam, H) if isinstance(solver, PCG) else None

        def solve_one(q, ζ, ζβ, so_far):
            def A(x):
                return ζ * (H @ x) + (ζβ * (k @ x)) @ k + lam * x

            return solve(A, q, solver, inverses.at(so_far) if inverses else None)

        x = jax.vmap(solve_one)(q, ζ, ζβ, jnp.tri(len(q), dtype=q.dtype))
        o = ζ * (x @ G) + (ζβ * (x @ k.T)) @ v
        return (left * G + (kept * k).T @ v, left * H + (kept * k).T @ k), o

    state, o = jax.lax.scan(step, (G, H), [chunks.split(x, chunk) for x in (q, k, v, beta, log_decay)])
    return chunks.join(o, len(q)), state


def _is_a_solution(primitive, *_, **__) -> bool:
    """What jax.checkpoint keeps: the solutions, or the gradient would solve for them once more."""
    return primitive is jax.lax.linear_solve_p
