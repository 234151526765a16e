"""What happens once a chunk: the write (LaCT Sec. 3.2), and which chunk is written and read when (LaCT Fig. 3)."""

from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ttt_teach.rules.lact.definition import GUARD, SwiGLU, length
from ttt_teach.solvers.newton_schulz import newton_schulz


class Memory(NamedTuple):
    """What a chunk finds and leaves, of one head."""

    W: SwiGLU
    M: SwiGLU | None  # the momentum buffer
    pending: SwiGLU  # the directions of the unfinished chunk, summed: they are taken at the same W
    pending_momentum: Float[Array, ""] | None  # the momentum of its tokens, summed


def each(G: SwiGLU, steps: tuple) -> SwiGLU:
    """Muon of each matrix."""
    return SwiGLU(*(newton_schulz(x, steps) for x in G))


def write(memory: Memory, tokens: int | Array, norms: SwiGLU, muon: tuple | None, orthogonal=each) -> Memory:
    """Close the pending chunk of so many tokens: momentum, Muon, the step, and the rows back to their initial norm.

    ``orthogonal``: who does Muon for all three matrices, if not newton_schulz one by one.
    """
    W, M, G, β = memory
    if M is not None:
        G = M = jax.tree.map(lambda M, d: β / tokens * M + d, M, G)
    step = G if muon is None else orthogonal(G, muon)
    W = jax.tree.map(lambda W, s, n0: restored(W + s, n0), W, step, norms)
    return emptied(Memory(W, M, *memory[2:]))


def emptied(memory: Memory) -> Memory:
    return Memory(memory.W, memory.M, *jax.tree.map(jnp.zeros_like, memory[2:]))


def _restored(Z, norms):
    return Z * (norms / (length(Z) + GUARD))


@jax.custom_vjp
def restored(Z: Float[Array, "N D"], norms: Float[Array, "N 1"]) -> Float[Array, "N D"]:
    """Each row at its given norm: Z / (|Z| + 1e-5) n0. The gradient keeps Z alone."""
    return _restored(Z, norms)


def _restored_back(kept, slope):
    """What points along a row is lost, but for the guard."""
    Z, norms = kept
    size = length(Z)
    along = jnp.sum(Z * slope, axis=-1, keepdims=True) / (size + GUARD)
    radial = jnp.where(size > 0, along / jnp.where(size > 0, size, 1), 0)
    return norms / (size + GUARD) * (slope - radial * Z), along


# The rule must not call what it is the rule of: under a scan the second derivative would then be wrong.
restored.defvjp(lambda Z, norms: (_restored(Z, norms), (Z, norms)), _restored_back)


def scheduled(
    entry: Callable, memory: Memory, tokens: tuple, order: str | tuple, chunk: int
) -> tuple[Memory, Float[Array, "R V"]]:
    """``entry(memory, tokens, update, apply) -> (memory, o)`` for each entry of the order, outputs one after the other.

    "update-apply" is the schedule that writes each chunk, the ragged last one too, and then reads it.
    """
    T = len(tokens[0])
    outputs = [jnp.zeros((0, len(memory.W.out)), tokens[0].dtype)]
    if order == "update-apply":
        whole = T // chunk * chunk
        full = jax.tree.map(lambda x: x[:whole].reshape(T // chunk, chunk, *x.shape[1:]), tokens)
        memory, o = jax.lax.scan(lambda memory, tokens: entry(memory, tokens, True, True), memory, full)
        outputs.append(o.reshape(whole, o.shape[-1]))
        order = ((whole, T, True, True),) if whole < T else ()
    for start, end, update, apply in order:
        memory, o = entry(memory, jax.tree.map(itemgetter(slice(start, end)), tokens), update, apply)
        outputs.append(o)
    return memory, jnp.concatenate(outputs)
