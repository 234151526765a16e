"""The rule as OSDN argues for it: a preconditioned step on a loss, and a step on how much that step helped."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.osdn.sweep import Learner, clip


def loss(S: Float[Array, "K V"], k: Float[Array, " K"], v: Float[Array, " V"]) -> Float[Array, ""]:
    """f(S) = |S'k - v|^2 / 2 (OSDN Sec. 3)."""
    return 0.5 * jnp.sum((S.T @ k - v) ** 2)


def written(
    S: Float[Array, "K V"], k: Float[Array, " K"], v: Float[Array, " V"], b: Float[Array, ""], d: Float[Array, " K"]
) -> Float[Array, "K V"]:
    """S - b D grad f(S): the gradient step of size b, preconditioned on the key rows by D = diag(d) (Eq. 2)."""
    return S - b * d[:, None] * jax.grad(loss)(S, k, v)


def progress(
    d: Float[Array, " K"], k: Float[Array, " K"], u: Float[Array, " V"], b: Float[Array, ""], eps: Float[Array, ""]
) -> Float[Array, ""]:
    """h(d) = (f(S_t) - f(S')) / |grad f(S')|^2, what the write gained in the paper's unit (Eq. 3, Lemma 4.1).

    It depends on S' and v only through the error u = v - S''k, so S' may be called 0, and v is then u. A key
    shorter than eps counts as |k|^2 = eps in the denominator (Algorithm 1).
    """
    S = jnp.zeros((len(k), len(u)), u.dtype)
    unit = jnp.maximum(jnp.sum(jax.grad(loss)(S, k, u) ** 2), eps * jnp.sum(u**2))
    return (loss(written(S, k, u, b, d), k, u) - loss(S, k, u)) / unit


def direction(u: Float[Array, " V"]) -> Float[Array, " V"]:
    """An error in units of its largest entry, or ones where it is 0 and the paper's ratio 0 / 0.

    h is the same for all errors, so this one is a constant to autodiff.
    """
    largest = jnp.max(jnp.abs(u))
    return jax.lax.stop_gradient(jnp.where(largest > 0, u / jnp.where(largest > 0, largest, 1), 1))


def definition(
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
    """Decay, write, read; then d - eta grad h(d), projected onto the box of the bounds (Eq. 4)."""
    retention = jnp.ones_like(beta) if retention is None else retention

    def step(state, token):
        S, d = state
        q, k, v, β, b, r, log_γ = token
        S = jnp.exp(log_γ)[:, None] * S
        u = direction(v - S.T @ k)
        slope = jax.grad(progress)(d, k, u, b, learner.eps)
        S = written(S, k, v, β, d)
        return (S, clip(r * d - learner.step_size * slope, learner)), S.T @ q

    state, o = jax.lax.scan(step, (S, d), (q, k, v, beta, b, retention, log_decay))
    return o, state
