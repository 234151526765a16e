"""Matrix products over chunks. Only the state between two chunks is kept; the gradient recomputes the rest."""

import jax
from jax import Array
from jaxtyping import Float

from ttt_teach.rules import chunks


def chunkwise(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    log_decay: Float[Array, "T C"],
    S: Float[Array, "K V"],
    *,
    chunk: int,
) -> tuple[Float[Array, "T V"], Float[Array, "K V"]]:
    """o_t = sum_i zeta_ti (k_i . q_t) v_i over the chunk, plus the read of what was there before it. C is 1 or K.

    Without the decay of what was there before, a printed version of this (MesaNet Eqs. 39-40) is wrong.
    """

    @jax.checkpoint
    def step(S, tokens):
        q, k, v, g = tokens
        o = chunks.decayed_scores(q, k, g) @ v + (chunks.from_start(g) * q) @ S
        S = chunks.whole(g)[:, None] * S + (chunks.to_end(g) * k).T @ v
        return S, o

    S, o = jax.lax.scan(step, S, [chunks.split(x, chunk) for x in (q, k, v, log_decay)])
    return chunks.join(o, len(q)), S
