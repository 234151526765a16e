"""One token after the other, by the closed form of the minimum (MesaNet App. B)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


@jax.custom_jvp
def implicit(β: Float[Array, "..."], length: Float[Array, "..."]) -> Float[Array, "..."]:
    """beta / (1 + beta |k|^2) from beta and |k|^2: the step of the delta rule that lands where the implicit one does.

    Finite and right up to the largest beta: beyond beta |k|^2 = 1 it is written as 1 / (1/beta + |k|^2).
    """
    return jnp.where(β * length > 1, 1 / (1 / β + length), β / (1 + β * length))


@implicit.defjvp
def _tangent(primals, tangents):
    """d step = dbeta / (1 + beta |k|^2)^2 - step^2 d|k|^2. Term by term the first is a difference of two nearly equal
    numbers when beta is large, and nothing is left of it in float32 from beta = 1e4 on."""
    (β, length), (dβ, dlength) = primals, tangents
    step = implicit(β, length)
    left = 1 / (1 + β * length)  # what is left of the error
    return step, left * (left * dβ) - step * (step * dlength)


def recurrent(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    S: Float[Array, "K V"],
) -> tuple[Float[Array, "T V"], Float[Array, "K V"]]:
    """S_t = S_{t-1} + step_t k_t (v_t - S_{t-1}' k_t)', then o_t = S_t' q_t."""

    def step(S, token):
        q, k, v, β = token
        u = v - S.T @ k
        S = S + implicit(β, k @ k) * jnp.outer(k, u)
        return S, S.T @ q

    S, o = jax.lax.scan(step, S, (q, k, v, beta))
    return o, S
