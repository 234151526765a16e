"""One token after the other: its read, and its share of the chunk's direction by hand."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ttt_teach.rules.lact.definition import SwiGLU
from ttt_teach.rules.lact.steps import Memory, emptied, scheduled, write


def read(W: SwiGLU, q: Float[Array, " K"]) -> Float[Array, " V"]:
    """out (silu(gate q) * (up q))."""
    return W.out @ (jax.nn.silu(W.gate @ q) * (W.up @ q))


def gather(memory: Memory, token: tuple) -> Memory:
    """The token's direction, up <f(k), v> at the rates given, added to those of its chunk.

    With a = gate k, u = up k, e = out' v: (e u silu'(a)) k', (e silu(a)) k' and v (silu(a) u)'.
    """
    W = memory.W
    _, k, v, lr, momentum = token
    a, u, e = W.gate @ k, W.up @ k, W.out.T @ v
    silu, slope = jax.nn.silu(a), jax.nn.sigmoid(a) * (1 + a * jax.nn.sigmoid(-a))
    d = SwiGLU(jnp.outer(lr[0] * e * u * slope, k), jnp.outer(lr[1] * e * silu, k), jnp.outer(lr[2] * v, silu * u))
    summed = jax.tree.map(jnp.add, (memory.pending, memory.pending_momentum), (d, momentum))
    return Memory(W, memory.M, *summed)


def recurrent(
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
    """Apply-update: a token that finds the chunk before it complete writes it; then it is read, then added."""
    memory, tokens = Memory(W, M, pending, pending_momentum), (q, k, v, lr, momentum)

    def step(carry, token):
        memory, n = carry
        full = n == chunk
        memory = jax.lax.cond(full, lambda memory: write(memory, chunk, norms, muon), lambda memory: memory, memory)
        o = read(memory.W, token[0])
        return (gather(memory, token), jnp.where(full, 1, n + 1)), o

    def entry(memory, tokens, update, apply):
        if update:
            summed, _ = jax.lax.scan(lambda memory, token: (gather(memory, token), None), emptied(memory), tokens)
            written = write(summed, len(tokens[0]), norms, muon)
            memory = memory._replace(W=written.W, M=written.M)
        o = jax.lax.map(lambda q: read(memory.W, q), tokens[0] if apply else tokens[0][:0])
        return memory, o

    if order == "apply-update":
        (memory, _), o = jax.lax.scan(step, (memory, jnp.int32(0) if count is None else count), tokens)
    else:
        memory, o = scheduled(entry, memory, tokens, order, chunk)
    return o, tuple(memory)
