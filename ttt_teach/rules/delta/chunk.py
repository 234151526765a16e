"""Matrix products over chunks. Only the state between two chunks is kept; the gradient recomputes the rest."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules import chunks
from ttt_teach.solvers.triangular import unit_lower_inverse


def chunkwise(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    write_key: Float[Array, "T K"],
    log_decay: Float[Array, "T C"],
    S: Float[Array, "K V"],
    *,
    chunk: int,
) -> tuple[Float[Array, "T V"], Float[Array, "K V"]]:
    """The errors u_t of a chunk solve a triangular system; then the chunk is linear attention with u in place of v.

    With zeta_t the decay from the start of the chunk to t, the error at t sees the earlier writes of its own chunk:
    u_t = v_t - S'(zeta_t k_t) - sum_{i<t} A_ti u_i, where A_ti = zeta_ti (beta_i w_i) . k_t is read at k and written at
    beta w. So U = (I + tril(A, -1))^-1 (V - K S) with the rows zeta_t k_t in K (the UT transform; OSDN Sec. 4.3). Then
    the chunk is read as linear attention with the keys beta_i w_i and the values u_i. C is 1 or K.
    """

    @jax.checkpoint
    def step(S, tokens):
        q, k, v, βw, g = tokens
        start = chunks.from_start(g)
        A, scores = jax.vmap(chunks.decayed_scores, in_axes=(0, None, None))(jnp.stack([k, q]), βw, g)
        u = unit_lower_inverse(A) @ (v - (start * k) @ S)
        o = scores @ u + (start * q) @ S
        S = chunks.whole(g)[:, None] * S + (chunks.to_end(g) * βw).T @ u
        return S, o

    written = beta[:, None] * write_key
    S, o = jax.lax.scan(step, S, [chunks.split(x, chunk) for x in (q, k, v, written, log_decay)])
    return chunks.join(o, len(q)), S
