"""The rule as the paper states it: a network, its loss, and one step a chunk by autodiff (LaCT Secs. 3.1-3.2)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

# Added to the length of a row before the row is divided by it: the reference's constant. A row of zeros stays one.
GUARD = 1e-5


class SwiGLU(NamedTuple):
    """The fast weights, or one thing for each of them (W1, W3 and W2 in LaCT Eq. 6)."""

    gate: Array  # [..., M, K]
    up: Array  # [..., M, K]
    out: Array  # [..., V, M]


def f(W: SwiGLU, x: Float[Array, " K"]) -> Float[Array, " V"]:
    """The memory (LaCT Eq. 6)."""
    return W.out @ (jax.nn.silu(W.gate @ x) * (W.up @ x))


def loss(W: SwiGLU, k: Float[Array, "T K"], v: Float[Array, "T V"], rate: Float[Array, " T"]) -> Float[Array, ""]:
    """The sum of -eta <f(k), v> over the tokens of a chunk (LaCT Eqs. 5 and 7)."""
    return jnp.sum(-rate * jax.vmap(lambda k, v: f(W, k) @ v)(k, v))


def direction(W: SwiGLU, k: Float[Array, "T K"], v: Float[Array, "T V"], lr: Float[Array, "T 3"]) -> SwiGLU:
    """Down the loss, each matrix down the loss with its own rates."""
    return SwiGLU(*(-jax.grad(loss)(W, k, v, rate)[i] for i, rate in enumerate(lr.T)))


def length(x: Float[Array, "... D"]) -> Float[Array, "... 1"]:
    """The length of each row, with slope 0 where it is 0."""
    squares = jnp.sum(x**2, axis=-1, keepdims=True)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


def orthogonal(G: Float[Array, "M N"], steps: tuple) -> Float[Array, "M N"]:
    """Muon: the singular values of G moved towards 1 by Newton-Schulz (LaCT App. A)."""

    def step(X, abc):
        a, b, c = abc
        A = X @ X.T
        return a * X + (b * A + c * A @ A) @ X, None

    X, _ = jax.lax.scan(step, G / (length(G.reshape(1, -1)) + 1e-7), jnp.asarray(steps, G.dtype).reshape(-1, 3))
    return X


def write(W: SwiGLU, M: SwiGLU | None, d: SwiGLU, β: Array | None, norms: SwiGLU, muon: tuple | None):
    """M <- beta M + d, W <- W + Muon(M), and each row back to its initial length (LaCT Sec. 3.2)."""
    if M is not None:
        d = M = jax.tree.map(lambda M, d: β * M + d, M, d)
    step = d if muon is None else SwiGLU(*(orthogonal(G, muon) for G in d))
    W = jax.tree.map(jnp.add, W, step)
    return jax.tree.map(lambda W, n0: W / (length(W) + GUARD) * n0, W, norms), M


def definition(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    lr: Float[Array, "T 3"],
    momentum: Float[Array, " T"] | None,
    W: SwiGLU,
    M: SwiGLU | None,
    pending: SwiGLU,
    pending_momentum: Float[Array, ""] | None,
    norms: SwiGLU,
    count: Int[Array, ""] | None,
    *,
    chunk: int,
    order: str | tuple,
    muon: tuple | None,
) -> tuple[Float[Array, "R V"], tuple]:
    """Chunk after chunk, or entry after entry of a schedule.

    Apply-update: with ``count`` tokens of its first chunk already gone by, token t is in chunk (count + t) // C. It is
    read with the weights its chunk found. All chunks but the last token's are written; that one stays pending.
    """
    if order != "apply-update":
        o, W, M = scheduled(q, k, v, lr, momentum, W, M, norms, chunk, order, muon)
        return o, (W, M, pending, pending_momentum)

    chunks = (jnp.arange(len(q), dtype=jnp.int32) + (0 if count is None else count)) // chunk

    def step(carry, j):
        o, W, M, pending, pending_momentum = carry
        here, last = chunks == j, jnp.all(chunks <= j)
        o = jnp.where(here[:, None], jax.vmap(f, (None, 0))(W, q), o)
        pending = jax.tree.map(jnp.add, pending, direction(W, k, v, jnp.where(here[:, None], lr, 0)))
        β = None
        if momentum is not None:
            pending_momentum = pending_momentum + jnp.sum(momentum, where=here)
            β = pending_momentum / chunk
        written = write(W, M, pending, β, norms, muon)
        unwritten = (W, M), pending, pending_momentum
        emptied = written, *jax.tree.map(jnp.zeros_like, (pending, pending_momentum))
        (W, M), pending, pending_momentum = jax.tree.map(lambda stay, go: jnp.where(last, stay, go), unwritten, emptied)
        return (o, W, M, pending, pending_momentum), None

    o = jnp.zeros((len(q), len(W.out)), q.dtype)
    at_most = len(q) // chunk + 2  # an earlier call's, those that are whole in this one, and one that is not
    (o, *memory), _ = jax.lax.scan(step, (o, W, M, pending, pending_momentum), jnp.arange(at_most, dtype=jnp.int32))
    return o, tuple(memory)


def scheduled(q, k, v, lr, momentum, W, M, norms, chunk, order, muon):
    """Update-apply is the schedule that writes each chunk, then reads it."""
    T = len(q)
    if order == "update-apply":
        order = [(start, min(start + chunk, T), True, True) for start in range(0, T, chunk)]
    o = [jnp.zeros((0, len(W.out)), q.dtype)]
    for start, end, update, apply in order:
        if update:
            β = None if momentum is None else jnp.mean(momentum[start:end])
            W, M = write(W, M, direction(W, k[start:end], v[start:end], lr[start:end]), β, norms, muon)
        if apply:
            o.append(jax.vmap(f, (None, 0))(W, q[start:end]))
    return jnp.concatenate(o), W, M
