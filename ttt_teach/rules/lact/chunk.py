"""Matrix products over chunks, and the gradients of the two things done to a chunk by hand.

Each keeps what it was given and goes through it again in its gradient. What autodiff then keeps of a sequence is the
tokens and, of each chunk, the weights it found, its direction, and the weights before their rows are restored.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ttt_teach.rules.lact.definition import SwiGLU
from ttt_teach.rules.lact.steps import Memory, emptied, scheduled, write
from ttt_teach.solvers.precision import full_precision


def silu(a):
    """silu(a) = a sigma(a), with its first and second derivative, of one exponential."""
    σ = jax.nn.sigmoid(a)
    falling = σ * (1 - σ)
    return a * σ, σ + a * falling, falling * (2 + a * (1 - 2 * σ))


@jax.custom_vjp
def read(W: SwiGLU, q: Float[Array, "C K"]) -> Float[Array, "C V"]:
    """f_W of every query (LaCT Eq. 6)."""
    return _read(W, q)


@full_precision
def _read(W, q):
    return (jax.nn.silu(q @ W.gate.T) * (q @ W.up.T)) @ W.out.T


@full_precision
def _read_back(kept, slope):
    W, q = kept
    u = q @ W.up.T
    s, s1, _ = silu(q @ W.gate.T)
    dh = slope @ W.out
    da, du = dh * u * s1, dh * s
    return SwiGLU((q.T @ da).T, (q.T @ du).T, slope.T @ (s * u)), da @ W.gate + du @ W.up


# No rule calls what it is the rule of: under a scan the second derivative would then be wrong.
read.defvjp(lambda W, q: (_read(W, q), (W, q)), _read_back)


@jax.custom_vjp
def direction(W: SwiGLU, k: Float[Array, "C K"], v: Float[Array, "C V"], lr: Float[Array, "C 3"]) -> SwiGLU:
    """Up sum_t <f(k_t), v_t>, each matrix with its own rates (LaCT Alg. 1).

    With a = gate k, u = up k, e = out' v of every token: d_gate = sum lr_gate (e u silu'(a)) k', d_up = sum lr_up
    (e silu(a)) k', d_out = sum lr_out v (silu(a) u)'.
    """
    return _direction(W, k, v, lr)


@full_precision
def _direction(W, k, v, lr):
    u, e = k @ W.up.T, v @ W.out
    s, s1, _ = silu(k @ W.gate.T)
    lr_gate, lr_up, lr_out = jnp.split(lr, 3, axis=-1)
    return SwiGLU((k.T @ (lr_gate * e * u * s1)).T, (k.T @ (lr_up * e * s)).T, v.T @ (lr_out * s * u))


@full_precision
def _direction_back(kept, D):
    """The slopes of lr_gate <g, D_gate k> + lr_up <p, D_up k> + lr_out <v, D_out h>, summed over the tokens.

    There g = e u silu'(a), p = e silu(a) and h = silu(a) u are what the direction is made of.
    """
    W, k, v, lr = kept
    u, e = k @ W.up.T, v @ W.out
    s, s1, s2 = silu(k @ W.gate.T)
    lr_gate, lr_up, lr_out = jnp.split(lr, 3, axis=-1)
    dg, dp, dh = k @ D.gate.T, k @ D.up.T, v @ D.out
    g, p, h = e * u * s1, e * s, s * u
    dlr = jnp.stack([jnp.sum(x, axis=-1) for x in (dg * g, dp * p, dh * h)], axis=-1)
    dg, dp, dh = lr_gate * dg, lr_up * dp, lr_out * dh
    de = dg * u * s1 + dp * s
    du = dg * e * s1 + dh * s
    da = dg * e * u * s2 + (dp * e + dh * u) * s1
    dk = (lr_gate * g) @ D.gate + (lr_up * p) @ D.up + da @ W.gate + du @ W.up
    dv = lr_out * (h @ D.out.T) + de @ W.out.T
    return SwiGLU((k.T @ da).T, (k.T @ du).T, v.T @ de), dk, dv, dlr


direction.defvjp(lambda *given: (_direction(*given), given), _direction_back)


def absorb(memory: Memory, tokens: tuple) -> tuple[Memory, Float[Array, "C V"]]:
    """Read the tokens, then add them to the pending chunk."""
    q, k, v, lr, momentum = tokens
    d = direction(memory.W, k, v, lr)
    summed = jax.tree.map(jnp.add, memory[2:], (d, None if momentum is None else jnp.sum(momentum)))
    return Memory(memory.W, memory.M, *summed), read(memory.W, q)


def chunkwise(
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
    """Chunk after chunk: from the first token if no count is given, else from where the unfinished chunk stands."""
    memory, tokens = Memory(W, M, pending, pending_momentum), (q, k, v, lr, momentum)

    def close(memory, tokens=chunk):
        return write(memory, tokens, norms, muon)

    def entry(memory, tokens, update, apply):
        if update:
            written = close(absorb(emptied(memory), tokens)[0], len(tokens[0]))
            memory = memory._replace(W=written.W, M=written.M)
        return memory, read(memory.W, tokens[0] if apply else tokens[0][:0])

    if order != "apply-update":
        memory, o = scheduled(entry, memory, tokens, order, chunk)
    elif count is None or not len(q):
        memory, o = from_the_start(memory, tokens, close, chunk)
    else:
        memory, o = from_within(memory, tokens, absorb, close, chunk, count)
    return o, tuple(memory)


def from_the_start(memory, tokens, close, chunk):
    """All chunks but the last are whole, and written; the last, whole or not, stays pending."""
    T = len(tokens[0])
    whole = (T - 1) // chunk if T else 0

    def step(memory, tokens):
        memory, o = absorb(memory, tokens)
        return close(memory), o

    rest = jax.tree.map(lambda x: x[whole * chunk :], tokens)
    if whole:
        full = jax.tree.map(lambda x: x[: whole * chunk].reshape(whole, chunk, *x.shape[1:]), tokens)
        memory, o = jax.lax.scan(step, memory, full)
    memory, last = absorb(memory, rest)
    return memory, jnp.concatenate([o.reshape(whole * chunk, -1), last]) if whole else last


def from_within(memory, tokens, absorb, close, chunk, count):
    """The count may be known at run time only, so wherever a chunk may end the choice is made there.

    The first slot takes what the pending chunk has room for, each other one a chunk; they are filled up with tokens of
    rate 0. A single token has a single slot.
    """
    T = len(tokens[0])
    size, others = min(chunk, T), -(-(T - 1) // chunk)
    first = jnp.minimum(jnp.where(count == chunk, chunk, chunk - count), T)  # tokens in the first slot

    def slots(x):
        x = jnp.pad(x, [(0, others * size)] + [(0, 0)] * (x.ndim - 1))
        within = jnp.expand_dims(jnp.arange(size, dtype=jnp.int32) < first, range(1, x.ndim))
        rest = jax.lax.dynamic_slice_in_dim(x, first, others * size)
        return jnp.concatenate([jnp.where(within, x[:size], 0), rest]).reshape(1 + others, size, *x.shape[1:])

    def step(memory, slot):
        full, tokens = slot
        memory = jax.lax.cond(full, close, lambda memory: memory, memory)
        return absorb(memory, tokens)

    begins = jnp.concatenate([(count == chunk)[None], first + size * jnp.arange(others, dtype=jnp.int32) < T])
    memory, o = jax.lax.scan(step, memory, (begins, jax.tree.map(slots, tokens)))
    o = o.reshape((1 + others) * size, o.shape[-1])
    return memory, jax.lax.dynamic_update_slice_in_dim(o, o[size:], first, axis=0)[:T]
