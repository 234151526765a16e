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

    u_t = v_t - S_{t-1}' k_t sees the earlier writes of its own chunk: u_t = v_t - S'(zeta_t0 k_t) - sum_{i<t} A_ti u_i
    with A_ti = beta_i zeta_ti (w_i . k_t), read at k and written at w (the UT transform; OSDN Sec. 4.3). So
    U = (I + tril(A, -1))^-1 (V - K S). C is 1 or K.
    """

    @jax.checkpoint
    def step(S, tokens):
        q, k, v, w, g = tokens
        start = chunks.from_start(g)
        A, scores = jax.vmap(chunks.decayed_scores, in_axes=(0, None, None))(jnp.stack([k, q]), w, g)
        u = unit_lower_inverse(A) @ (v - (start * k) @ S)
        o = scores @ u + (start * q) @ S
        S = chunks.whole(g)[:, None] * S + (chunks.to_end(g) * w).T @ u
        return S, o

    written = beta[:, None] * write_key
    S, o = jax.lax.scan(step, S, [chunks.split(x, chunk) for x in (q, k, v, written, log_decay)])
    return chunks.join(o, len(q)), S
