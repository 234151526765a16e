"""One token after the other (OSDN Eq. 2, Algorithm 1)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.osdn.sweep import Learner, update


def recurrent(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    b: Float[Array, " T"],
    retention: Float[Array, " T"] | None,
    log_decay: Float[Array, "T C"],
    S: Float[Array, "K V"],
    d: Float[Array, " K"],
    learner: Learner,
) -> tuple[Float[Array, "T V"], tuple[Float[Array, "K V"], Float[Array, " K"]]]:
    """S_t = S' + beta_t (d_t k_t) u_t' with S' = gamma_t S_{t-1}, u_t = v_t - S'' k_t; read; then d learns from k_t."""

    def step(state, token):
        S, d = state
        q, k, v, β, b, r, log_γ = token
        S = jnp.exp(log_γ)[:, None] * S
        u = v - S.T @ k
        S = S + β * jnp.outer(d * k, u)
        return (S, update(d, k, b, r, learner)), S.T @ q

    state, o = jax.lax.scan(step, (S, d), (q, k, v, beta, b, retention, log_decay))
    return o, state
