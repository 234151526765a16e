"""The objective as it is stated, and its minimum by a direct solve (MesaNet App. B); the closed form is not used."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def objective(
    s: Float[Array, " K"], before: Float[Array, " K"], k: Float[Array, " K"], v: Float[Array, ""], β: Float[Array, ""]
) -> Float[Array, ""]:
    """One column of |S - S_{t-1}|^2 + beta |v - S'k|^2: the columns (one per value channel) share no term."""
    return jnp.sum((s - before) ** 2) + β * (v - s @ k) ** 2


def definition(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    S: Float[Array, "K V"],
) -> tuple[Float[Array, "T V"], Float[Array, "K V"]]:
    """S_t is where the gradient is zero: the objective is quadratic, so one Newton step from S_{t-1} lands there."""

    def step(S, token):
        q, k, v, β = token
        slopes = jax.vmap(jax.grad(objective), in_axes=(1, 1, None, 0, None), out_axes=1)(S, S, k, v, β)
        curvature = jax.hessian(objective)(k, k, k, β, β)  # whatever s and v are
        S = S - jnp.linalg.solve(curvature, slopes)
        return S, S.T @ q

    S, o = jax.lax.scan(step, S, (q, k, v, beta))
    return o, S
