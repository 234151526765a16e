"""LaCT with 16-bit factors and float32 sums."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from ttt_teach.rules import tiles
from ttt_teach.rules.lact.chunk import from_within, silu
from ttt_teach.rules.lact.definition import SwiGLU
from ttt_teach.rules.lact.steps import Memory, emptied, scheduled, write
from ttt_teach.rules.tiles import SIDE

MUON = jnp.float16


def refusal(q: Array, k: Array, v: Array, size) -> str | None:
    """Why the kernel does not do this call, or None if it does. size: what the door read, with the compute dtype."""
    if size.dtype != jnp.float32:
        return "sums in float32, and an argument is float64"
    arrays = {"q": q, "k": k, "v": v}
    for name, x in arrays.items():
        if x.dtype not in tiles.HALVES:
            return f"takes bfloat16 or float16, and {name} is {x.dtype}"
        if x.dtype != q.dtype:
            return f"takes one dtype, and q is {q.dtype}, {name} is {x.dtype}"
        if 0 in x.shape:
            return f"takes no empty array, and {name} has shape {list(x.shape)}"
    for name, width in (("K", size.K), ("V", size.V), ("M", size.M)):
        if width % SIDE:
            return f"takes widths that are multiples of {SIDE}, and {name} is {width}"
    return tiles.no_place()


def halved(W: SwiGLU, dtype) -> SwiGLU:
    return jax.tree.map(lambda w: w.astype(dtype), W)


def summed(x, y):
    """x @ y, factors in 16 bits, the sum in float32."""
    return jnp.matmul(x, y, preferred_element_type=jnp.float32)


def lift(x: Array, dtype) -> Array | float:
    """A power of two that brings the largest entry of x to 1/2 or more, below 1. float16 wants it, bfloat16 has range."""
    if dtype != jnp.float16:
        return 1.0
    _, exponent = jnp.frexp(jnp.max(jnp.abs(x.astype(jnp.float32))))
    return jnp.ldexp(jnp.float32(1), -exponent)


# -- a read ------------------------------------------------------------------------------------------------------------


@jax.custom_vjp
def read(W: SwiGLU, q):
    """f_W of every query."""
    return _read(halved(W, q.dtype), q)


def hidden(W, q):
    a, u = summed(q, W.gate.T), summed(q, W.up.T)
    return (jax.nn.silu(a) * u).astype(q.dtype)


def _read(W, q):
    return hidden(W, q) @ W.out.T


def _read_forward(W, q):
    W = halved(W, q.dtype)
    return _read(W, q), (W, q)


def _read_back(kept, slope):
    W, q = kept
    scale = lift(slope, q.dtype)
    da, du, h = hidden_back(W, q, slope, scale)
    dq = (summed(da, W.gate) + summed(du, W.up)) / scale
    dW = SwiGLU(summed(da.T, q) / scale, summed(du.T, q) / scale, summed(slope.T, h))
    return dW, dq.astype(q.dtype)


def hidden_back(W, q, slope, scale):
    a, u, dh = summed(q, W.gate.T), summed(q, W.up.T), scale * summed(slope, W.out)
    s, s1, _ = silu(a)
    return [x.astype(q.dtype) for x in (dh * u * s1, dh * s, s * u)]


read.defvjp(_read_forward, _read_back)

# -- a direction -------------------------------------------------------------------------------------------------------


@jax.custom_vjp
def direction(W: SwiGLU, k, v, lr):
    return _direction(halved(W, k.dtype), k, v, lr)


def _direction(W, k, v, lr):
    scale = lift(lr, k.dtype)
    g, p, h = errors(W, k, v, lr * scale)
    return jax.tree.map(lambda d: d / scale, SwiGLU(summed(g.T, k), summed(p.T, k), summed(v.T, h)))


def errors(W, k, v, lr):
    a, u, e = summed(k, W.gate.T), summed(k, W.up.T), summed(v, W.out)
    s, s1, _ = silu(a)
    lr_gate, lr_up, lr_out = jnp.split(lr, 3, axis=-1)
    return [x.astype(k.dtype) for x in (lr_gate * e * u * s1, lr_up * e * s, lr_out * s * u)]


def _direction_forward(W, k, v, lr):
    W = halved(W, k.dtype)
    return _direction(W, k, v, lr), (W, k, v, lr)


def _direction_back(kept, D):
    W, k, v, lr = kept
    dtype = k.dtype
    scale = lift(jnp.stack([jnp.max(jnp.abs(d)) for d in D]), dtype)
    D = jax.tree.map(lambda d: (scale * d).astype(dtype), D)
    (da, du, de), (g, p, h), dlr = errors_back(W, D, k, v, lr)
    dk = summed(g, D.gate) + summed(p, D.up) + summed(da, W.gate) + summed(du, W.up)
    dv = summed(h, D.out.T) + summed(de, W.out.T)
    dW = SwiGLU(summed(da.T, k), summed(du.T, k), summed(v.T, de))
    dW, dk, dv, dlr = jax.tree.map(lambda x: x / scale, (dW, dk, dv, dlr))
    return dW, dk.astype(dtype), dv.astype(dtype), dlr


def errors_back(W, D, k, v, lr):
    dtype = k.dtype
    a, u, e = summed(k, W.gate.T), summed(k, W.up.T), summed(v, W.out)
    dg, dp, dh = summed(k, D.gate.T), summed(k, D.up.T), summed(v, D.out)
    s, s1, s2 = silu(a)
    lr_gate, lr_up, lr_out = jnp.split(lr, 3, axis=-1)
    g, p, h = e * u * s1, e * s, s * u
    dlr = jnp.stack([jnp.sum(x, axis=-1) for x in (dg * g, dp * p, dh * h)], axis=-1)
    dg, dp, dh = lr_gate * dg, lr_up * dp, lr_out * dh
    de = dg * u * s1 + dp * s
    du = dg * e * s1 + dh * s
    da = dg * e * u * s2 + (dp * e + dh * u) * s1
    half = lambda *xs: [x.astype(dtype) for x in xs]  # noqa: E731
    return half(da, du, de), half(lr_gate * g, lr_up * p, lr_out * h), dlr


direction.defvjp(_direction_forward, _direction_back)

# -- chunk after chunk -------------------------------------------------------------------------------------------------


def add(memory: Memory, k, v, lr, momentum) -> Memory:
    d = direction(memory.W, k, v, lr)
    added = jax.tree.map(jnp.add, memory[2:], (d, None if momentum is None else jnp.sum(momentum)))
    return Memory(memory.W, memory.M, *added)


def absorb(memory: Memory, tokens: tuple):
    return add(memory, *tokens[1:]), read(memory.W, tokens[0])


def kernel(
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
):
    memory, tokens = Memory(W, M, pending, pending_momentum), (q, k, v, lr, momentum)

    def close(memory, tokens=chunk):
        return write(memory, tokens, norms, muon, MUON)

    def entry(memory, tokens, update, apply):
        if update:
            written = close(add(emptied(memory), *tokens[1:]), len(tokens[0]))
            memory = memory._replace(W=written.W, M=written.M)
        return memory, read(memory.W, tokens[0] if apply else tokens[0][:0])

    if order != "apply-update":
        memory, o = scheduled(entry, memory, tokens, order, chunk)
    elif count is None:
        memory, o = from_the_start(memory, tokens, close, chunk)
    else:
        memory, o = from_within(memory, tokens, absorb, close, chunk, count)
    return o, tuple(memory)


def from_the_start(memory, tokens, close, chunk):
    q, *written = tokens
    T = len(q)
    N = -(-T // chunk)
    q, *written = jax.tree.map(lambda x: in_chunks(x, N, chunk), (q, *written))

    def step(memory, tokens):
        return close(add(memory, *tokens)), memory.W

    memory, W = lax.scan(step, memory, jax.tree.map(lambda x: x[:-1], written))
    W = jax.tree.map(lambda W, last: jnp.concatenate([W, last[None]]), W, memory.W)
    memory = add(memory, *jax.tree.map(lambda x: x[-1], written))
    o = jax.vmap(read)(W, q)
    return memory, o.reshape(N * chunk, -1)[:T]


def in_chunks(x, N, chunk):
    x = jnp.pad(x, [(0, N * chunk - len(x))] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(N, chunk, *x.shape[1:])
