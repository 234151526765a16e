"""The rule as its loss states it: the step is taken from autodiff, not from a formula."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def error(prediction: Float[Array, " V"], v: Float[Array, " V"]) -> Float[Array, ""]:
    """l(S) = |v - S'k|^2 / 2, as a function of the prediction S'k (MesaNet Eq. 3)."""
    return 0.5 * jnp.sum((v - prediction) ** 2)


def definition(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    write_key: Float[Array, "T K"],
    log_decay: Float[Array, "T C"],
    S: Float[Array, "K V"],
) -> tuple[Float[Array, "T V"], Float[Array, "K V"]]:
    """Decay, then S - beta times the loss gradient pulled back to S through the write key.

    The loss is measured where the memory is read, at S'k; its gradient is carried to S through the linear map
    S -> S'w. For w = k that is the plain gradient of the loss in S.
    """

    def step(S, token):
        q, k, v, β, w, log_γ = token
        S = jnp.exp(log_γ)[:, None] * S
        slope = jax.grad(error)(S.T @ k, v)
        _, back = jax.vjp(lambda S: S.T @ w, S)
        S = S - β * back(slope)[0]
        return S, S.T @ q

    S, o = jax.lax.scan(step, S, (q, k, v, beta, write_key, log_decay))
    return o, S
