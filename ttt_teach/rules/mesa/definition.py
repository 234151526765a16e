"""The regression as the paper states it: the loss is written once, and minimised exactly."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.retention import retention


def loss(
    φ: Float[Array, " K"],
    k: Float[Array, "T K"],
    v: Float[Array, " T"],
    weight: Float[Array, " T"],
    lam: Float[Array, " K"],
    g: Float[Array, " K"],
    H: Float[Array, "K K"],
) -> Float[Array, ""]:
    """One row of MesaNet Eq. (4): the rows of Phi (one per value channel) share no term.

    weight_i is zeta_ti beta_i. g and H hold what an earlier call left behind, the same sums of squares up to
    a constant: phi'H phi / 2 - phi'g.
    """
    squares = jnp.sum(weight * (v - k @ φ) ** 2) + jnp.sum(lam * φ**2) + φ @ H @ φ
    return 0.5 * squares - φ @ g


def minimiser(
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    weight: Float[Array, " T"],
    lam: Float[Array, " K"],
    G: Float[Array, "K V"],
    H: Float[Array, "K K"],
) -> Float[Array, "K V"]:
    """Phi' where the gradient of the loss is zero: the loss is quadratic, so one Newton step from 0 lands there."""
    origin = jnp.zeros_like(lam)
    slopes = jax.vmap(lambda v, g: jax.grad(loss)(origin, k, v, weight, lam, g, H), in_axes=(1, 1), out_axes=1)(v, G)
    curvature = jax.hessian(loss)(origin, k, weight, weight, lam, lam, H)  # whatever v and g are
    return jnp.linalg.solve(curvature, -slopes)


def definition(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    log_decay: Float[Array, "T 1"],
    lam: Float[Array, " K"],
    G: Float[Array, "K V"],
    H: Float[Array, "K K"],
) -> tuple[Float[Array, "T V"], tuple[Float[Array, "K V"], Float[Array, "K K"]]]:
    """o_t = Phi_t q_t for every t, each from all pairs up to t. Nothing is iterated."""

    def weights(t):
        ζ, ζ0 = retention(log_decay, t)
        return ζ[:, 0] * beta, ζ0[0]

    def read(token):
        t, q = token
        weight, left = weights(t)
        return minimiser(k, v, weight, lam, left * G, left * H).T @ q

    o = jax.lax.map(read, (jnp.arange(len(q)), q))
    weight, left = weights(len(q) - 1)
    written = (weight[:, None] * k).T
    return o, (left * G + written @ v, left * H + written @ k)
