"""zeta, the share of a write at token i that is left at token t (MesaNet Eq. 4: a product of forget gates)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def retention(log_decay: Float[Array, "T C"], t: Array | int) -> tuple[Float[Array, "T C"], Float[Array, " C"]]:
    """zeta_ti = gamma_{i+1} gamma_{i+2} ... gamma_t for every i (0 where i > t), and zeta_t0 for the start state.

    Multiplied up from t backwards, never a quotient of two running products: a gate of 0 (log_decay of -inf, a
    reset) is exact, and so is its gradient. T operations per channel.
    """

    def back(ζ, token):
        i, γ = token
        return jnp.where(i <= t, ζ * γ, ζ), jnp.where(i <= t, ζ, 0)

    tokens = jnp.arange(len(log_decay)), jnp.exp(log_decay)
    ζ0, ζ = jax.lax.scan(back, jnp.ones_like(log_decay, shape=log_decay.shape[1:]), tokens, reverse=True)
    return ζ, ζ0
