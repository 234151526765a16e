"""Online softmax over chunks of keys (arXiv 2205.14135), and a gradient that recomputes the weights.

No T x T array is ever made: each direction keeps O(T) numbers. Chunks that no query sees are skipped.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules import chunks
from ttt_teach.solvers.precision import full_precision


def chunkwise(
    q: Float[Array, "T K"], k: Float[Array, "T K"], v: Float[Array, "T V"], *, window: int, chunk: int
) -> tuple[Float[Array, "T V"], tuple]:
    """The softmax of :func:`definition`, a chunk of queries against a chunk of keys at a time.

    Differentiable in reverse, any number of times; jax.jvp goes through the definition only.
    """
    if len(q) == 0:
        return v, ()
    o = attend(*(chunks.split(x, chunk) for x in (q, k, v)), window)
    return chunks.join(o, len(q)), ()


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend(
    q: Float[Array, "N C K"], k: Float[Array, "N C K"], v: Float[Array, "N C V"], window: int
) -> Float[Array, "N C V"]:
    """o_i = sum_j p_ij v_j, chunk by chunk."""
    return _read(q, k, v, window)[0]


def _read(q, k, v, window):
    """For every query the output, the largest score m_i, and the sum over j of exp(s_ij - m_i)."""

    def read(n):
        def add(sofar, j):
            o, total, top = sofar
            s = _scores(q[n], k[j], n - j, window)
            higher = jnp.maximum(top, jnp.max(s, axis=-1))
            p, shrink = jnp.exp(s - higher[:, None]), jnp.exp(top - higher)
            return shrink[:, None] * o + p @ v[j], shrink * total + jnp.sum(p, axis=-1), higher

        nothing = jnp.zeros_like(q[n, :, 0])
        # Backwards from the own chunk: every token sees itself first, so the largest score is finite from there on.
        o, total, top = _walk(add, (jnp.zeros_like(v[n]), nothing, nothing - jnp.inf), n, -1, q.shape, window)
        return o / total[:, None], total, top

    return jax.lax.map(read, jnp.arange(len(q)))


@full_precision
def _forward(q, k, v, window):
    o, total, top = _read(q, k, v, window)
    return o, (q, k, v, o, total, top)


@full_precision
def _backward(window, kept, do):
    """With p_ij back from the sums: dv_j = sum_i p_ij do_i, and ds_ij = p_ij do_i . (v_j - o_i) is what reaches the
    score, so dq_i = sum_j ds_ij k_j and dk_j = sum_i ds_ij q_i."""
    q, k, v, o, total, top = kept
    level = jnp.sum(do * o, axis=-1)

    def pair(i, j):
        p = jnp.exp(_scores(q[i], k[j], i - j, window) - top[i][:, None]) / total[i][:, None]
        return p, p * (do[i] @ v[j].T - level[i][:, None])

    def to_queries(i):
        return _walk(lambda dq, j: dq + pair(i, j)[1] @ k[j], jnp.zeros_like(q[i]), i, -1, q.shape, window)

    def to_keys(j):
        def add(sofar, i):
            dk, dv = sofar
            p, ds = pair(i, j)
            return dk + ds.T @ q[i], dv + p.T @ do[i]

        return _walk(add, (jnp.zeros_like(k[j]), jnp.zeros_like(v[j])), j, 1, q.shape, window)

    each = jnp.arange(len(q))
    return jax.lax.map(to_queries, each), *jax.lax.map(to_keys, each)


attend.defvjp(_forward, _backward)


def _scores(q: Float[Array, "C K"], k: Float[Array, "C K"], chunks_back: Array, window: int) -> Float[Array, "C C"]:
    """q_i . k_j, and -inf where i does not see j."""
    C = len(q)
    back = chunks_back * C + jnp.arange(C)[:, None] - jnp.arange(C)[None]
    return jnp.where((back >= 0) & (back < window), q @ k.T, -jnp.inf)


def _walk(add: Callable, start, n: Array, direction: int, shape: tuple[int, ...], window: int):
    """add(add(start, n), n + direction) and so on, over the chunks whose tokens can see or be seen by those of n."""
    N, C, _ = shape
    reach = min(N, 1 + (window - 1 + C - 1) // C)

    def step(sofar, m):
        return jax.lax.cond((m >= 0) & (m < N), lambda x: add(x, m), lambda x: x, sofar), None

    return jax.lax.scan(step, start, n + direction * jnp.arange(reach))[0]
