"""A sequence cut into chunks of C tokens, and what decays inside one.

Every exponent here is a sum of log_decay over some tokens, so never positive: nothing is divided by a decay that has
run to zero, and no two long sums are subtracted from each other.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.solvers.triangular import join_halves

# exp(-1000) is 0 even in float64, so a reset (log_decay of -inf) cut off here still is one, and 0 * inf never arises.
RESET = -1000.0


def split(x: Float[Array, "T ..."], chunk: int, fill: float = 0.0) -> Float[Array, "N C ..."]:
    """Chunks of at most ``chunk`` tokens; the last is filled up with ``fill``, which must leave a state as it is."""
    C = max(min(chunk, len(x)), 1)
    x = jnp.pad(x, [(0, -len(x) % C)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
    return x.reshape(len(x) // C, C, *x.shape[1:])


def join(x: Float[Array, "N C ..."], T: int) -> Float[Array, "T ..."]:
    """The tokens in one row again, without the filling."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])[:T]


def from_start(log_decay: Float[Array, "... C D"]) -> Float[Array, "... C D"]:
    """zeta_t0 = gamma_1 ... gamma_t: what a read at t finds of the state before the chunk."""
    return jnp.exp(_sums(log_decay, jnp.tri(log_decay.shape[-2], dtype=log_decay.dtype)))


def to_end(log_decay: Float[Array, "... C D"]) -> Float[Array, "... C D"]:
    """zeta_Ct = gamma_{t+1} ... gamma_C: what is left of a write at t when the chunk ends."""
    return jnp.exp(_sums(log_decay, jnp.tri(log_decay.shape[-2], k=-1, dtype=log_decay.dtype).T))


def whole(log_decay: Float[Array, "... C D"]) -> Float[Array, "... D"]:
    """zeta_C0 = gamma_1 ... gamma_C: what is left of the state before the chunk when it ends."""
    return jnp.exp(jnp.sum(jnp.maximum(log_decay, RESET), axis=-2))


def _sums(log_decay, members):
    """A product with zeros and ones: a cumulative sum, five times faster on a CPU than as a scan."""
    return jnp.einsum("ti,...id->...td", members, jnp.maximum(log_decay, RESET))


def decayed_scores(
    q: Float[Array, "C K"], k: Float[Array, "C K"], log_decay: Float[Array, "C D"]
) -> Float[Array, "C C"]:
    """zeta_ti weighing q_t . k_i: sum_c q_tc k_ic gamma_{i+1,c} ... gamma_tc for i <= t, 0 for i > t. D is 1 or K."""
    if log_decay.shape[-1] == 1:
        ζ = decay(log_decay)
        return jnp.where(ζ == 0, 0, (q @ k.T) * ζ)  # an overflow must not reach a token that does not see it
    return _by_halves(q, k, log_decay)


def decay(log_decay: Float[Array, "C 1"]) -> Float[Array, "C C"]:
    """zeta_ti = gamma_{i+1} ... gamma_t for i <= t, 0 for i > t (MesaNet Eq. 4)."""
    return _by_halves(jnp.ones_like(log_decay), jnp.ones_like(log_decay), log_decay)


def _by_halves(q, k, log_decay):
    """Sub-blocks of 1, 2, 4, ... tokens, each twice as large put together from two.

    A write in the first half and a read in the second meet in the middle: what decays up to there goes to k, what
    decays from there on to q, and their product is this quarter of the scores.
    """
    C = len(q)
    size = 1 << (C - 1).bit_length()
    q, k, log_decay = (jnp.pad(x, [(0, size - C), (0, 0)]) for x in (q, k, log_decay))
    scores = jnp.sum(q * k, axis=-1)[:, None, None]  # a token meets its own write undecayed
    half = 1
    while half < size:
        (_, q2), (k1, _), (g1, g2) = (
            x.reshape(size // (2 * half), 2, half, x.shape[-1]).swapaxes(0, 1) for x in (q, k, log_decay)
        )
        read, write = from_start(g2) * q2, to_end(g1) * k1
        across = read @ write.mT if half >= 8 else jnp.sum(read[:, :, None] * write[:, None], axis=-1)
        scores = join_halves(scores, across)
        half *= 2
    return scores[0, :C, :C]
