"""zeta, the share of a write at token i that is left at token t (MesaNet Eq. 4: a product of forget gates)."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def retention(log_decay: Float[Array, "T C"], t: Array | int) -> tuple[Float[Array, "T C"], Float[Array, " C"]]:
    """zeta_ti = exp(sum of log_decay over i < s <= t) for every i (0 where i > t), and zeta_t0 for the start state.

    Summed from t backwards, never as a difference of two running sums, so a log_decay of -inf (a reset) is
    exact and nothing is ever the exponential of a positive number. T operations per channel.
    """
    token = jnp.arange(log_decay.shape[0])[:, None]
    gone = jnp.where(token <= t, log_decay, 0)
    after = jnp.cumsum(gone[::-1], axis=0)[::-1][1:]  # sum over i < s <= t
    after = jnp.concatenate([after, jnp.zeros_like(gone[:1])])
    return jnp.where(token <= t, jnp.exp(after), 0), jnp.exp(gone.sum(axis=0))
