"""One token after the other (MesaNet Eq. 3; with another write key, OSDN Eq. 2)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def recurrent(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    write_key: Float[Array, "T K"],
    log_decay: Float[Array, "T C"],
    S: Float[Array, "K V"],
) -> tuple[Float[Array, "T V"], Float[Array, "K V"]]:
    """S_t = S' + beta_t w_t u_t' with S' = gamma_t S_{t-1} and the error u_t = v_t - S'' k_t; then o_t = S_t' q_t."""

    def step(S, token):
        q, k, v, β, w, log_γ = token
        S = jnp.exp(log_γ)[:, None] * S
        u = v - S.T @ k
        S = S + β * jnp.outer(w, u)
        return S, S.T @ q

    S, o = jax.lax.scan(step, S, (q, k, v, beta, write_key, log_decay))
    return o, S
