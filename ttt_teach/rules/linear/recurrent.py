"""One token after the other (MesaNet Eqs. 1-2)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def recurrent(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    log_decay: Float[Array, "T C"],
    S: Float[Array, "K V"],
) -> tuple[Float[Array, "T V"], Float[Array, "K V"]]:
    """S_t = gamma_t S_{t-1} + k_t v_t', then o_t = S_t' q_t. C is 1 or K: gamma acts on the rows of S."""

    def step(S, token):
        q, k, v, log_γ = token
        S = jnp.exp(log_γ)[:, None] * S + jnp.outer(k, v)
        return S, S.T @ q

    S, o = jax.lax.scan(step, S, (q, k, v, log_decay))
    return o, S
