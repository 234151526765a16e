"""The scale d of the write key, learned from keys and gates alone (OSDN Algorithm 1, phase 1; Eqs. 3, 4 and 7)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float

from ttt_teach.rules import chunks


class Learner(NamedTuple):
    """How d learns. One number each, of the compute dtype."""

    step_size: Array  # eta
    lo: Array
    hi: Array
    eps: Array  # below this, |k|^2 no longer divides


def update(
    d: Float[Array, " K"], k: Float[Array, " K"], b: Float[Array, ""], r: Float[Array, ""] | None, learner: Learner
) -> Float[Array, " K"]:
    """d <- clip(r d + eta b (1 - b <d, s>) s / n) with s = k^2 and n = max(|k|^2, eps) (Eq. 4; r is APF's, Eq. 7)."""
    s = k * k
    n = jnp.maximum(jnp.sum(s), learner.eps)
    kept = d if r is None else r * d
    return clip(kept + learner.step_size * b * (1 - b * (d @ s)) / n * s, learner)


def clip(x: Float[Array, " K"], learner: Learner) -> Float[Array, " K"]:
    """Onto [lo, hi]. The slope is 1 in the closed interval (jnp.clip has 1/2 on its ends) and 0 outside.

    So a token that moves nothing also leaves the gradient of a scale that sits on a bound.
    """
    return jnp.where(x < learner.lo, learner.lo, jnp.where(x > learner.hi, learner.hi, x))


def chunkwise(
    k: Float[Array, "T K"],
    b: Float[Array, " T"],
    retention: Float[Array, " T"] | None,
    learner: Learner,
    d: Float[Array, " K"],
    *,
    chunk: int,
) -> tuple[Float[Array, "T K"], Float[Array, " K"]]:
    """d before each token, and after the last: a chunk at once as if nothing clipped, and if something did, again."""

    @jax.checkpoint
    def step(d, tokens):
        after, stable = unclipped(d, *tokens, learner)
        inside = stable & jnp.all((learner.lo <= after) & (after <= learner.hi))
        # All heads decide together: so under the vmaps of the door this stays a branch, and only one side runs.
        everywhere = jax.lax.pmin(inside.astype(jnp.int32), ("batch", "heads")) > 0
        after = jax.lax.cond(everywhere, lambda: after, lambda: one_by_one(d, *tokens, learner))
        return after[-1], jnp.concatenate([d[None], after[:-1]])

    r = None if retention is None else chunks.split(retention, chunk, fill=1.0)
    d, scales = jax.lax.scan(step, d, (chunks.split(k, chunk), chunks.split(b, chunk), r))
    return chunks.join(scales, len(k)), d


@jax.checkpoint
def one_by_one(
    d: Float[Array, " K"],
    k: Float[Array, "C K"],
    b: Float[Array, " C"],
    r: Float[Array, " C"] | None,
    learner: Learner,
) -> Float[Array, "C K"]:
    """d after each token of the chunk."""

    def step(d, token):
        d = update(d, *token, learner)
        return d, d

    return jax.lax.scan(step, d, (k, b, r))[1]


def unclipped(
    d: Float[Array, " K"],
    k: Float[Array, "C K"],
    b: Float[Array, " C"],
    r: Float[Array, " C"] | None,
    learner: Learner,
) -> tuple[Float[Array, "C K"], Bool[Array, ""]]:
    """d after each token if there were no bounds: a delta rule with one column, read at b s and written at eta b s / n.

    What token t adds, z_t s_t / n_t, follows from its error z_t = eta b_t (1 - b_t <d_{t-1}, s_t>), which sees the
    earlier ones of its chunk through d_{t-1}: z = (I + tril(A, -1))^-1 eta b (1 - b S d), a triangular system.

    Also whether no step overshoots: along s a token multiplies by r - eta b^2 |s|^2 / n, which must not be below -1.
    Where one does, d may grow without bound: it is then left alone here, so that neither it nor its gradient overflows.
    """
    s = k * k
    p = s / jnp.maximum(jnp.sum(s, axis=-1, keepdims=True), learner.eps)
    overshoot = learner.step_size * b**2 * jnp.sum(s * p, axis=-1)
    stable = jnp.all(overshoot <= 1 + (1 if r is None else r))
    η = jnp.where(stable, learner.step_size, 0)
    start, within = (jnp.ones_like(b), jnp.tri(len(b), dtype=b.dtype)) if r is None else retained(r)
    A = (η * b**2)[:, None] * _before(within, 0) * (s @ p.T)
    z = solve_triangular(A, η * b * (1 - b * _before(start, 1) * (s @ d)), lower=True, unit_diagonal=True)
    return jnp.outer(start, d) + (within * z[None]) @ p, stable


def retained(r: Float[Array, " C"]) -> tuple[Float[Array, " C"], Float[Array, "C C"]]:
    """r_1 ... r_t, and r_{i+1} ... r_t for i <= t: products, not exponents of sums, so a retention of 0 is exact."""
    C = len(r)
    later = jnp.tri(C, C + 1, dtype=bool)  # column i has the factors after token i; column 0 has all
    products = jnp.tril(jnp.cumprod(jnp.where(later, r[:, None], 1), axis=0), 1)
    return products[:, 0], products[:, 1:]


def _before(x, first):
    """Shifted by one token; the first row is ``first``."""
    return jnp.concatenate([jnp.full_like(x[:1], first), x[:-1]])
