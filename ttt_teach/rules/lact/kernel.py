"""LaCT on a Hopper GPU: 16-bit factors, float32 sums and float32 fast weights, forward and backward.

**Which product waits for which.** Only the writes are a chain: chunk n's direction wants the weights that chunk n - 1
left. Its reads want nothing but those weights, so they come after all writes, every chunk at once (``from_the_start``).
The gradient has the same shape: all reads first, then the chain backwards.

**Little is moved between launches.** A launch is given whole arrays and the number of its chunk, and writes there in
place; the three matrices are one array, if they have one shape; gradients of weights are added where they are needed.
The sequence has a gradient by hand for that: JAX's own would add each chunk's gradient to arrays of the whole sequence.
What stands between two chunks, the step and the rows at their norms again, is one launch too (``written``): as four of
XLA's it took a fifth of the forward pass.

**What is kept.** A chunk's read and direction have a gradient by hand that goes through them again, so a sequence keeps
its tokens and, of each chunk, the weights it found (16 bits, as the products read them), how long their rows were
before they were restored and, with Muon or momentum, the direction.

**Three kinds of products**, and a kernel for each:

- *Into the hidden layer* (``strips``): up to six products of the same tokens, and between them what is no product:
  silu, its slopes, the rates. Their sums never leave the registers.
- *Out of it* (``over_tokens``, ``over_hidden``): sums over the tokens of a chunk, which are directions and gradients
  of weights, or over the hidden layer, which are gradients of tokens. XLA has as good products, but starts them one by
  one: four heads of 384 x 384 are 36 blocks for 132 multiprocessors. Here all sums of a step are one launch.
- *Muon's* (``blend``), 15 for each matrix, and the polynomial they are terms of.

Tokens and matrices are streamed through shared memory as in any product of large ones, so no width is too large. What
keeps the tokens there instead has to take products of 64 columns, and was slower where it has room (width 384, the six
sums of a direction's gradient: 65.5 us against 35.5).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float, Int

from ttt_teach.rules import tiles
from ttt_teach.rules.lact.chunk import from_within
from ttt_teach.rules.lact.definition import GUARD as ROW_GUARD
from ttt_teach.rules.lact.definition import SwiGLU
from ttt_teach.rules.lact.steps import Memory, emptied, scheduled, write
from ttt_teach.rules.tiles import SIDE, by_row, transposed
from ttt_teach.solvers.newton_schulz import GUARD, broad, to_length_1

ROWS = 2 * SIDE  # tokens in a block: 64 for each of its two warpgroups, which share the tiles of the weights
RING = 4  # steps of a product that are on their way or read
CACHED = 12  # steps of which 132 blocks' tokens, 26 MB, stay in the cache of 50 MB until the next strip wants them
FEW = 8  # columns of the hidden layer, worked on one after the other


def refusal(q: Array, k: Array, v: Array, size) -> str | None:
    """Why the kernel does not do this call, or None if it does. size: what the door read, with the compute dtype."""
    if size.dtype != jnp.float32:
        return "sums in float32, and an argument is float64"
    for name, x in {"q": q, "k": k, "v": v}.items():
        if x.dtype not in tiles.HALVES:
            return f"takes bfloat16 or float16, and {name} is {x.dtype}"
        if x.dtype != q.dtype:
            return f"takes one dtype, and q is {q.dtype}, {name} is {x.dtype}"
        if 0 in x.shape:
            return f"takes no empty array, and {name} has shape {list(x.shape)}"
    for name, width in (("K", size.K), ("V", size.V), ("M", size.M)):
        if width % ROWS:
            return f"takes widths that are multiples of {ROWS}, and {name} is {width}"
    return tiles.no_place(warpgroups=2)


# -- chunk after chunk -------------------------------------------------------------------------------------------------


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
) -> tuple[Float[Array, "R V"], tuple]:
    """One head, as in the other forms: q, k, v in 16 bits, all else in float32."""
    memory, tokens = Memory(W, M, pending, pending_momentum), (q, k, v, lr, momentum)

    def close(memory, tokens=chunk):
        return write(memory, tokens, norms, muon, lambda G, steps: matrices(orthogonals(bank(G), steps)))

    def entry(memory, tokens, update, apply):
        if update:
            written = close(add(emptied(memory), *tokens[1:]), len(tokens[0]))
            memory = memory._replace(W=written.W, M=written.M)
        return memory, read(memory.W, tokens[0]) if apply else jnp.zeros((0, v.shape[1]), v.dtype)

    if order != "apply-update":
        memory, o = scheduled(entry, memory, tokens, order, chunk)
    elif count is None:
        memory, o = from_the_start(W, M, norms, tokens, chunk, muon)
    else:
        memory, o = from_within(memory, tokens, absorb, close, chunk, count)
    return o, tuple(memory)


def add(memory: Memory, k, v, lr, momentum) -> Memory:
    """The tokens' direction, added to those of their chunk."""
    d = direction(memory.W, k, v, lr)
    summed = jax.tree.map(jnp.add, memory[2:], (d, None if momentum is None else jnp.sum(momentum)))
    return Memory(memory.W, memory.M, *summed)


def absorb(memory: Memory, tokens: tuple):
    """Read the tokens, then add them."""
    return add(memory, *tokens[1:]), read(memory.W, tokens[0])


def from_the_start(W, M, norms, tokens, chunk, muon) -> tuple[Memory, Array]:
    """Nothing is pending. Each chunk is filled up with tokens of rate 0 to whole blocks; the last stays pending."""
    q, k, v, lr, momentum = tokens
    T = len(q)
    N, rows = -(-T // chunk), -(-chunk // ROWS) * ROWS

    def laid(x):
        x = longer(x, 0, N * chunk - T).reshape(N, chunk, *x.shape[1:])
        return longer(x, 1, rows - chunk)

    q, k, v, lr = (laid(x).reshape(N * rows, -1) for x in (q, k, v, lr))
    betas = None if momentum is None else laid(momentum).sum(1)
    M = None if M is None else bank(M)
    W = bank(W)
    o, W, M, d = sequence(chunk, muon, W, M, lengths(norms, W), q, k, v, lr.T, betas)
    o = o.reshape(N, rows, -1)[:, :chunk].reshape(N * chunk, -1)[:T]
    return Memory(matrices(W), None if M is None else matrices(M), matrices(d), None if M is None else betas[-1]), o


# -- the matrices of a memory, and where a launch finds its chunks -----------------------------------------------------

Bank = tuple[Float[Array, "N m R C"], ...]  # the memory of N chunks: m = 3, one array, if the three have one shape
Rows = tuple[Float[Array, "N m R"], ...]  # a number for each of its rows


def bank(W: SwiGLU) -> Bank:
    """What is done to all three matrices is then one launch, if they have one shape."""
    return (jnp.stack(W)[None],) if len({w.shape for w in W}) == 1 else tuple(w[None, None] for w in W)


def lengths(norms: SwiGLU, memory: Bank) -> Rows:
    """The rows' initial norms, as the bank has its matrices."""
    norms = [x[:, 0] for x in norms]
    return (jnp.stack(norms)[None],) if len(memory) == 1 else tuple(x[None, None] for x in norms)


def slots(banks: Bank) -> list[tuple[int, int]]:
    """Where the matrices are: the array, and the place in it."""
    return [(a, i) for a, x in enumerate(banks) for i in range(x.shape[1])]


def matrices(memory: Bank) -> SwiGLU:
    return SwiGLU(*(memory[a][0, i] for a, i in slots(memory)))


def halved(memory: Bank, dtype) -> Bank:
    """As the products read them."""
    return tuple(w.astype(dtype) for w in memory)


def batched(operation, axis=0):
    """operation(axis, n, arrays), under vmap the same on the next axis: JAX would make a scatter or gather of it."""

    @custom_vmap
    def run(n, *arrays):
        return operation(axis, n, *arrays)

    @run.def_vmap
    def _(size, has_it, n, *arrays):
        arrays = [
            x if has else jnp.broadcast_to(x, (size, *x.shape)) for x, has in zip(arrays, has_it[1:], strict=True)
        ]
        return batched(operation, axis + 1)(n, *arrays), True

    return run


@batched
def put(axis, n, x, part):
    """x, where ``part`` begins at n."""
    return lax.dynamic_update_slice_in_dim(x, part, n, axis)


def unset(like: Array, shape: tuple, dtype) -> Array:
    """An array that is to be written, of so many heads as ``like`` has. Zeros would be written first."""
    return batched(lambda axis, _, x: lax.empty((*x.shape[:axis], *shape), dtype))(jnp.int32(0), like)


class Span(NamedTuple):
    """The chunks a launch is for. Its arrays hold these alone, or all chunks of the sequence."""

    rows: int  # tokens of a chunk
    chunks: int
    first: Int[Array, "1"]

    def skipped(self, length: int, first, each: int = 1):
        """How many chunks, ``each`` so long, of an array of that length stand before those of this launch."""
        return 0 if length == self.chunks * each else first

    def of(self, x: Array, each: int = 1) -> Array:
        """Those chunks of x, ``[chunks * each, ...]``, for XLA."""
        return (
            x if len(x) == self.chunks * each else lax.dynamic_slice_in_dim(x, self.first[0] * each, self.chunks * each)
        )

    def tokens(self, x: Array) -> Array:
        """``[chunks, rows, D]``."""
        return self.of(x, self.rows).reshape(self.chunks, self.rows, -1)


def alone(x: Array) -> Span:
    """One chunk, of which there is nothing else."""
    return Span(len(x), 1, jnp.zeros(1, jnp.int32))


# -- a sequence, and its gradient --------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def sequence(chunk, muon, W: Bank, M: Bank | None, norms, q, k, v, rates: Float[Array, "3 R"], betas):
    """``(o, W, M, d)``: all reads, the memory that the last chunk found, and that chunk's direction.

    By hand, since a chunk then is a place in whole arrays and nothing is cut out of them or put together. ``betas``:
    the momentum of each chunk, summed over its tokens.
    """
    return _walk(chunk, muon, False, W, M, norms, q, k, v, rates, betas)[0]


def _walk(chunk, muon, keep, W, M, norms, q, k, v, rates, betas):
    """The chain of writes, then all reads. Kept: each chunk's memory in 16 bits, and the gradient of each write."""
    rows = -(-chunk // ROWS) * ROWS
    N, scale = len(k) // rows, lift(rates, k.dtype)
    scaled = rates * scale

    def push(M, d, beta):
        if M is not None:
            d = M = jax.tree.map(lambda M, d: beta / chunk * M + d, M, d)
        return d if muon is None else orthogonals(d, muon), M

    def met(n, found):
        return _direction(Span(rows, 1, n[None]), found, k, v, scaled, scale)

    def step(carry, n):
        W, M, d, found, sizes = carry
        given = M, d, None if betas is None else betas[n - 1]
        (s, M), back = jax.vjp(push, *given) if keep else (push(*given), None)
        W, found, sizes = written(n, W, s, norms, found, sizes)
        return (W, M, met(n, found), found, sizes), back

    def begun(w):
        """Where the chunks find their weights, the first chunk's there."""
        return put(jnp.int32(0), unset(w, (N, *w.shape[1:]), k.dtype), w.astype(k.dtype))

    found = tuple(begun(w) for w in W)
    sizes = tuple(unset(w, (N, *w.shape[1:3]), jnp.float32) for w in W)
    start = W, M, met(jnp.int32(0), found), found, sizes
    (W, M, d, found, sizes), backs = lax.scan(step, start, jnp.arange(1, N, dtype=jnp.int32))
    o = _read(Span(rows, N, jnp.zeros(1, jnp.int32)), found, q)
    return (o, W, M, d), (found, sizes, backs)


def _sequence_forward(chunk, muon, W, M, norms, *tokens):
    found, kept = _walk(chunk, muon, True, W, M, norms, *tokens)
    return found, (*kept, norms, *tokens)


def _sequence_back(chunk, muon, kept, slopes):
    """All reads, then the chain from its end: back through what a chunk found, then through the step that led to it."""
    found, sizes, backs, norms, q, k, v, rates, betas = kept
    do, dW, dM, D = slopes
    rows = -(-chunk // ROWS) * ROWS
    N = len(k) // rows
    read_dW, dq = _read_back(Span(rows, N, jnp.zeros(1, jnp.int32)), found, q, do)
    turned = out_turned(found)

    def met(n, D, dk, dv, drates):
        dW, dk, dv, dlr = _direction_back(Span(rows, 1, n[None]), found, turned, k, v, rates, D, (dk, dv))
        return dW, (dk, dv, put(n * rows, drates, dlr))

    def step(carry, given):
        n, back = given
        dW, more, dM, dnorms, sums = carry
        dW, dnorms = _written_back(n, dW, more, read_dW, found, sizes, norms, dnorms)
        dM, D, dbeta = back((dW, dM))
        more, sums = met(n, D, *sums)
        return (dW, more, dM, dnorms, sums), dbeta

    sums = unset(k, k.shape, k.dtype), unset(v, v.shape, v.dtype), unset(k, (len(k), 3), jnp.float32)
    more, sums = met(jnp.int32(N - 1), D, *sums)
    chain = jnp.arange(N - 1, dtype=jnp.int32), backs
    start = dW, more, dM, jax.tree.map(jnp.zeros_like, norms), sums
    (dW, more, dM, dnorms, sums), dbetas = lax.scan(step, start, chain, reverse=True)
    dW = jax.tree.map(lambda x, y, z: x + y + z[:1], dW, more, read_dW)
    dk, dv, drates = sums
    dbetas = None if betas is None else jnp.append(dbetas, 0)
    return dW, dM, dnorms, dq, dk, dv, drates.T, dbetas


sequence.defvjp(_sequence_forward, _sequence_back)


# -- the write that ends a chunk, and its gradient ---------------------------------------------------------------------

HIGH = 8  # rows in a block: a warp has two of them, its lanes four neighbouring numbers each of every 128
BY_WARP = plgpu.Layout.TILED(plgpu.Tiling(((4, 128), (4,))), warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)


def of_rows(x, layout=BY_WARP) -> Array:
    """To registers, in float32."""
    return plgpu.load(x, layout=layout, optimized=False).astype(jnp.float32)


def of_each(x) -> Array:
    """A number for each row."""
    return of_rows(x, BY_WARP.reduce(1))


def spread(x: Array, like: Array) -> Array:
    return plgpu.layout_cast(lax.broadcast_in_dim(x, like.shape, (0,)), BY_WARP)


def by_rows(body, bank: Array, into: list[Array], *arguments: Array) -> list[Array]:
    """``body(matrix, rows, *references)`` for a few rows of a matrix of the bank at a time."""

    def block(*refs):
        body(lax.axis_index("matrix"), pl.ds(lax.axis_index("rows") * HIGH, HIGH), *refs)

    _, m, R, _ = bank.shape
    return tiles.kernel(block, into=into, grid=(m, R // HIGH), grid_names=("matrix", "rows"))(*arguments)


def written(n, W: Bank, s: Bank, norms: Rows, found: Bank, sizes: Rows) -> tuple[Bank, Bank, Rows]:
    """W + s, its rows at their initial norms (``restored``), in the place of W, and in 16 bits where chunk n finds it.

    Kept is |w + s| of every row: all else that the gradient wants is in what the chunk finds.
    """

    def body(i, rows, n_g, s_g, norm_g, w_g, found_g, size_g):
        z = of_rows(w_g.at[0, i, rows]) + of_rows(s_g.at[0, i, rows])
        size = jnp.sqrt(jnp.sum(z * z, axis=1))
        w = z * spread(of_each(norm_g.at[0, i, rows]) / (size + ROW_GUARD), z)
        w_g[0, i, rows] = w
        found_g[n_g[0], i, rows] = w.astype(found_g.dtype)
        size_g[n_g[0], i, rows] = size

    parts = zip(W, s, norms, found, sizes, strict=True)
    made = [by_rows(body, w, [w, h, size], n[None], d, n0) for w, d, n0, h, size in parts]
    return tuple(zip(*made, strict=True))


def _written_back(n, dW: Bank, more: Bank, read_dW: Bank, found: Bank, sizes: Rows, norms: Rows, dnorms: Rows):
    """The slope of W + s from those of what chunk n + 1 found, which are three; and of the norms, added up.

    With u along a row of z = w + s, and what its norm n0 has for a slope, p = <u, g> |z| / (|z| + guard): the slope of
    z is n0 / (|z| + guard) (g - p u). A row of zeros has none, and one whose initial norm is 0 stays 0.
    """

    def body(i, rows, n_g, more_g, read_g, found_g, size_g, norm_g, dw_g, dnorm_g):
        n = n_g[0] + 1
        g = of_rows(dw_g.at[0, i, rows]) + of_rows(more_g.at[0, i, rows]) + of_rows(read_g.at[n, i, rows])
        w, size = of_rows(found_g.at[n, i, rows]), of_each(size_g.at[n, i, rows])
        squares = jnp.sum(w * w, axis=1)
        each = jnp.where(squares > 0, lax.rsqrt(squares), 0)  # u = w each
        p = jnp.sum(w * g, axis=1) * each * size / (size + ROW_GUARD)
        ratio = of_each(norm_g.at[0, i, rows]) / (size + ROW_GUARD)
        dw_g[0, i, rows] = spread(ratio, g) * (g - spread(p * each, g) * w)
        dnorm_g[0, i, rows] = of_each(dnorm_g.at[0, i, rows]) + p

    parts = zip(dW, more, read_dW, found, sizes, norms, dnorms, strict=True)
    made = [by_rows(body, dw, [dw, dn0], n[None], *given, n0) for dw, *given, n0, dn0 in parts]
    return tuple(zip(*made, strict=True))


# -- what is done to a chunk, and its gradient -------------------------------------------------------------------------

# Which tokens are multiplied with which matrices' of W, out' and D, D's out'
GATE_UP_OUT = ((0, (0, 1)), (1, (3,)))
OUT = ((0, (2,)),)
SIX = ((0, (0, 1, 3, 4)), (1, (6, 7)))


def silu(a):
    """silu(a) = a sigma(a), with its first and second derivative: a square instead of a division's dozen steps."""
    r = lax.rsqrt(1 + jnp.exp(-a))
    σ = r * r
    falling = σ * (1 - σ)
    return a * σ, σ + a * falling, falling * (2 + a * (1 - 2 * σ))


def read(W: SwiGLU, q: Float[Array, "C K"]) -> Float[Array, "C V"]:
    """f_W of every query (LaCT Eq. 6)."""
    return read_alone(bank(W), whole(q))[: len(q)]


@jax.custom_vjp
def read_alone(W: Bank, q):
    return _read(alone(q), halved(W, q.dtype), q)


def _read(span, W, q):
    def hidden(sums, rates):
        a, u = sums
        return [silu(a)[0] * u], ()

    h, _ = strips(span, [q], W, GATE_UP_OUT[:1], hidden, results=1)
    (o,), _ = strips(span, h, W, OUT, lambda sums, _: (sums, ()), results=1)
    return o


def _read_forward(W, q):
    W = halved(W, q.dtype)
    return _read(alone(q), W, q), (W, q)


def _read_back(span, W, q, do):
    """da = dh u silu'(a) and du = dh silu(a), with dh = out' do (chunk.py)."""
    scale = lift(do, q.dtype)

    def hidden(sums, rates):
        (a, u, dh), (scale,) = sums, rates
        s, s1, _ = silu(a)
        dh = dh * scale
        return [dh * u * s1, dh * s, s * u], ()

    rates = jnp.broadcast_to(scale, (1, len(q)))
    of = *W, out_turned(W)[0]
    (da, du, h), _ = strips(span, [q, do], of, GATE_UP_OUT, hidden, results=3, rates=rates)
    dW = over_tokens(span, [(da, q), (du, q), (do, h)], [scale, scale, jnp.float32(1)], W)
    gate, up, _ = taken(W)
    (dq,) = over_hidden(span, [[(da, gate), (du, up)]], scale, [unset(q, q.shape, q.dtype)])
    return dW, dq


read_alone.defvjp(_read_forward, lambda kept, do: _read_back(alone(do), *kept, do))


def direction(W: SwiGLU, k: Float[Array, "C K"], v: Float[Array, "C V"], lr: Float[Array, "C 3"]) -> SwiGLU:
    """Up sum_t <f(k_t), v_t>, each matrix with its own rates (LaCT Alg. 1); the formulas are those of chunk.py."""
    return matrices(direction_alone(bank(W), whole(k), whole(v), whole(lr).T))


@jax.custom_vjp
def direction_alone(W: Bank, k, v, rates):
    scale = lift(rates, k.dtype)
    return _direction(alone(k), halved(W, k.dtype), k, v, rates * scale, scale)


def _direction(span, W, k, v, rates, scale):
    def hidden(sums, rates):
        (a, u, e), (lr_gate, lr_up, lr_out) = sums, rates
        s, s1, _ = silu(a)
        return [lr_gate * e * u * s1, lr_up * e * s, lr_out * s * u], ()

    of = *W, span.of(W[-1])[:, -1:].mT
    (g, p, h), _ = strips(span, [k, v], of, GATE_UP_OUT, hidden, results=3, rates=rates)
    return over_tokens(span, [(g, k), (p, k), (v, h)], [scale] * 3, W)


def _direction_forward(W, k, v, rates):
    return direction_alone(W, k, v, rates), (halved(W, k.dtype), k, v, rates)


def _direction_back(span, W, turned, k, v, rates, D, into):
    """All of it is linear in D, so D may be brought near 1 first, and the results back.

    ``turned``: W's out'; ``into``: the arrays in which the slopes of k and v have their places.
    """
    scale = lift(jnp.stack([jnp.max(jnp.abs(d)) for d in D]), k.dtype)
    D = halved(tuple(scale * d for d in D), k.dtype)

    def hidden(sums, rates):
        (a, u, dg, dp, e, dh), (lr_gate, lr_up, lr_out) = sums, rates
        s, s1, s2 = silu(a)
        g, p, h = e * u * s1, e * s, s * u
        dlr = dg * g, dp * p, dh * h
        dg, dp, dh = lr_gate * dg, lr_up * dp, lr_out * dh
        da = dg * e * u * s2 + (dp * e + dh * u) * s1
        du = dg * e * s1 + dh * s
        de = dg * u * s1 + dp * s
        return [da, du, de, lr_gate * g, lr_up * p, lr_out * h], dlr

    d_turned = out_turned(D)
    of = (*W, *D, turned[0], d_turned[0])
    (da, du, de, g, p, h), dlr = strips(span, [k, v], of, SIX, hidden, results=6, rates=rates, sums=3)
    dW = over_tokens(span, [(da, k), (du, k), (v, de)], [scale] * 3, W)
    (gate, up, _), (d_gate, d_up, _) = taken(W), taken(D)
    dk = [(g, d_gate), (p, d_up), (da, gate), (du, up)]
    dk, dv = over_hidden(span, [dk, [(h, d_turned), (de, turned)]], scale, into)
    return dW, dk, dv, dlr / scale


def _direction_alone_back(kept, D):
    W, k, v, rates = kept
    into = [unset(x, x.shape, x.dtype) for x in (k, v)]
    dW, dk, dv, dlr = _direction_back(alone(k), W, out_turned(W), k, v, rates, D, into)
    return dW, dk, dv, dlr.T


direction_alone.defvjp(_direction_forward, _direction_alone_back)


def taken(memory: Bank) -> list[tuple[Array, int]]:
    """Each matrix: the array that has it, and its place there."""
    return [(memory[a], i) for a, i in slots(memory)]


def out_turned(memory: Bank) -> tuple[Array, int]:
    """out' as :func:`taken` has it."""
    return memory[-1][:, -1:].mT, 0


def lift(x: Array, dtype) -> Array:
    """A power of two that brings the largest entry of x to between 1/2 and 1 for float16; for bfloat16 it is 1.

    float16 has few bits for small numbers. What is linear in x is computed of the larger x, then divided.
    """
    if dtype != jnp.float16:
        return jnp.float32(1)
    _, exponent = jnp.frexp(jnp.max(jnp.abs(x.astype(jnp.float32))))
    return jnp.ldexp(jnp.float32(1), -jnp.maximum(exponent, -100))


def longer(x: Array, axis: int, more: int) -> Array:
    """With so many zeros more along that axis. XLA does pad by nothing."""
    return jnp.pad(x, [(0, more * (i == axis)) for i in range(x.ndim)]) if more else x


def whole(x: Array) -> Array:
    """Filled up with zeros to whole blocks of tokens."""
    return longer(x, 0, -len(x) % ROWS)


# -- into the hidden layer ---------------------------------------------------------------------------------------------


def strips(
    span: Span,
    tokens: list[Array],
    weights: Bank,
    terms: tuple,
    hidden: Callable,
    *,
    results: int,
    rates: Array | None = None,
    sums: int = 0,
) -> tuple[list[Array], Array | None]:
    """Products of tokens ``[C, D]`` with matrices, and what ``hidden`` makes of their sums, 16 bits ``[C, M]`` each.

    A block has 128 tokens, 64 for each of its two warpgroups, and goes through strips of the hidden layer, so wide that
    the matrices of a term, side by side, have up to 256 columns: the most that wgmma takes. Three sums are then 192
    registers a thread, and six of half the width as many. Shared memory has four steps of 64 columns of the tokens and
    of the matrices, 192 KB at most, and two tiles of results for each warpgroup. The next strip's first steps arrive
    while ``hidden`` is at this one's sums, a few columns at a time: all at once are more numbers than there are
    registers.

    Args:
        tokens, weights: in 16 bits. terms: which tokens are multiplied with which matrices', one after the other.
        hidden: ``(sums, rates) -> (results, numbers)``, of tiles ``[tokens, hidden]`` and of the rates of the same
            tokens, spread over the tile. The numbers are summed over the hidden layer.
        rates: ``[R, C]``, float32.

    Returns:
        the results; the sums ``[C, sums]``, or None.
    """
    place, C, dtype = slots(weights), span.rows * span.chunks, tokens[0].dtype
    most, width = max(len(of) for _, of in terms), taken(weights)[terms[0][1][0]][0].shape[2]
    deep = [tokens[x].shape[1] // SIDE for x, _ in terms]
    n, n_rates = sum(deep), 0 if rates is None else len(rates)
    parts = 2 if span.chunks == 1 or n > CACHED else 1  # blocks that share the strips of their tokens
    strip = math.gcd(256 // most, width // parts)
    each = width // strip // parts

    def body(first_g, *refs, x_s, y_s, result_s, full, free):
        refs = iter(refs)
        token_g, weight_g = [next(refs) for _ in tokens], [next(refs) for _ in weights]
        rates_g = next(refs) if n_rates else None
        result_g = [next(refs) for _ in range(results)]
        sums_g = next(refs) if sums else None
        wg, part, tile, first = lax.axis_index("wg"), lax.axis_index("part"), lax.axis_index("tile"), first_g[0]
        chunk = lax.div(tile, jnp.int32(span.rows // ROWS))
        matrix_g = [weight_g[a].at[span.skipped(len(weights[a]), first) + chunk, i] for a, i in place]
        half, mine = pl.ds(wg * SIDE, SIDE), pl.ds((2 * tile + wg) * SIDE, SIDE)

        def start(length):
            """Where the block's tokens begin in an array of that length."""
            return span.skipped(length, first, span.rows) * span.rows + tile * ROWS

        def fetch(t, slot):
            own, t = pl.ds((part * each + lax.div(t, jnp.int32(n))) * strip, strip), lax.rem(t, jnp.int32(n))
            for i, ((x, of), arrived) in enumerate(zip(terms, full, strict=True)):

                @pl.when((t >= sum(deep[:i])) & (t < sum(deep[: i + 1])))
                def _(i=i, x=x, of=of, arrived=arrived):
                    over = pl.ds((t - sum(deep[:i])) * SIDE, SIDE)
                    box = token_g[x].at[pl.ds(start(len(tokens[x])), ROWS), over]
                    plgpu.copy_gmem_to_smem(box, x_s.at[slot], arrived.at[slot])
                    for j, w in enumerate(of):
                        into = y_s.at[slot, pl.ds(j * strip, strip)]
                        plgpu.copy_gmem_to_smem(matrix_g[w].at[own, over], into, arrived.at[slot])

        def factors(columns, slot):
            return x_s.at[slot, half], transposed(y_s.at[slot, pl.ds(0, columns)])

        flows = [
            (steps, arrived, partial(factors, len(of) * strip), len(of) * strip)
            for steps, (_, of), arrived in zip(deep, terms, full, strict=True)
        ]
        if n_rates:
            here = pl.ds(start(rates.shape[1]) + wg * SIDE, SIDE)
        own_rates = [tiles.vector(rates_g.at[i, here], tiles.PER_ROW) for i in range(n_rates)]

        def work(p, _):
            found = streamed(RING, fetch, flows, wg, free, p * n, each * n)
            found = [x[:, i : i + strip] for x in found for i in range(0, x.shape[1], strip)]
            numbers = [plgpu.layout_cast(jnp.zeros((SIDE, FEW), jnp.float32), tiles.WGMMA) for _ in range(sums)]
            for column in range(0, strip, SIDE):
                made = []
                for j in range(column, column + SIDE, FEW):
                    few, more = hidden([x[:, j : j + FEW] for x in found], [by_row(r, FEW) for r in own_rates])
                    made.append([x.astype(dtype) for x in few])
                    numbers = [x + y for x, y in zip(numbers, more, strict=True)]
                across = pl.ds((part * each + p) * strip + column, SIDE)
                for i, few in enumerate(zip(*made, strict=True)):
                    turn = (p * (strip // SIDE) + column // SIDE) * results + i
                    leave(jnp.concatenate(few, axis=1), result_s.at[wg, turn & 1], result_g[i].at[mine, across])
            for i, x in enumerate(numbers):
                sums_g[part * each + p, i, mine] = jnp.sum(x, axis=1)
            return ()

        fill(RING, each * n, fetch, wg)
        tiles.steps(each, work, ())
        plgpu.wait_smem_to_gmem(0)

    outputs = [jax.ShapeDtypeStruct((C, width), dtype)] * results
    if sums:
        outputs.append(jax.ShapeDtypeStruct((width // strip, sums, C), jnp.float32))
    found = tiles.kernel(
        body,
        out_type=outputs,
        grid=(C // ROWS, parts),  # the last is the innermost: parts that share their tokens run side by side
        grid_names=("tile", "part"),
        num_threads=2,
        thread_name="wg",
        scratch_types={
            "x_s": tiles.factor(RING, ROWS, SIDE, dtype=dtype),
            "y_s": tiles.factor(RING, most * strip, SIDE, dtype=dtype),
            "result_s": tiles.factor(2, 2, SIDE, SIDE, dtype=dtype),
            "full": [plgpu.Barrier(num_arrivals=1 + len(of), num_barriers=RING) for _, of in terms],
            "free": plgpu.Barrier(num_arrivals=2, num_barriers=RING),
        },
    )(span.first, *tokens, *weights, *([] if rates is None else [rates]))
    return (found[:-1], found[-1].sum(0).T) if sums else (found, None)


def leave(x, place, into):
    """A tile to global memory by way of shared memory, where each warpgroup has two places that it takes in turn."""
    plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # what was there before has left
    place[...] = x
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(place, into)


# -- out of it ---------------------------------------------------------------------------------------------------------


def over_tokens(span: Span, products: list[tuple[Array, Array]], scales: list[Array], like: Bank) -> Bank:
    """x' y / scale of every ``x [C, A]``, ``y [C, N]``, in float32, laid out as ``like``."""
    outputs = [jax.ShapeDtypeStruct((span.chunks, *w.shape[1:]), jnp.float32) for w in like]
    sums = [[(x, (y, None))] for x, y in products]
    # Of one chunk there are few blocks as it is.
    columns = broadest([w.shape[3] for w in like], (256, 192, ROWS) if span.chunks > 1 else (256, ROWS))
    return tuple(_totals(span, sums, scales, slots(outputs), out_type=outputs, columns=columns, tokens=True))


def broadest(widths: list[int], choice: tuple[int, ...]) -> int:
    """The columns of a block: the more, the less of x is read again by other blocks."""
    return next(x for x in choice if all(width % x == 0 for width in widths))


def over_hidden(span: Span, sums: list[list], scale: Array, into: list[Array]) -> list[Array]:
    """The sum of x y / scale over the pairs of each, ``x [C, M]``, ``y [N, m, M, D]`` and a place, in 16 bits.

    ``into``: the arrays in which those tokens have their places.
    """
    place, columns = [(i, None) for i in range(len(sums))], broadest([x.shape[1] for x in into], (256, 192, ROWS))
    return _totals(span, sums, [scale] * len(sums), place, into=into, columns=columns, tokens=False)


def _totals(span, sums, scales, place, *, into=(), out_type=(), columns, tokens):
    """Sums of products over their scales: over the rows of x and y (tokens), or the columns of x (hidden layer).

    A block has 128 x ``columns`` of one sum, 64 rows for each of its two warpgroups: 768 x 768 over the tokens are 18
    blocks of 256 columns for each head and matrix, 2048 tokens x 768 are 48. Shared memory has four steps of 64, 128 KB
    to 192 KB, and, of results in 16 bits, two tiles for each warpgroup.
    """
    flat = [(x, y) for pairs in sums for x, (y, _) in pairs]
    shapes = [(x.shape[1] if tokens else span.rows, y.shape[-1]) for ((x, (y, _)), *_) in sums]
    blocks = [(rows // ROWS) * (over // columns) for rows, over in shapes]

    def body(first_g, *refs, x_s, y_s, result_s, full, free):
        refs = iter(refs)
        scale_g = [next(refs) for _ in scales]
        pair_g = [(next(refs), next(refs)) for _ in flat]
        out_g = list(refs)
        wg, tile, first = lax.axis_index("wg"), lax.axis_index("tile"), first_g[0]
        chunk, tile = lax.div(tile, jnp.int32(sum(blocks))), lax.rem(tile, jnp.int32(sum(blocks)))
        half = pl.ds(wg * SIDE, SIDE)

        def start(x):
            """Where this chunk's tokens begin in x."""
            return (span.skipped(len(x), first, span.rows) + chunk) * span.rows

        def one(index, pairs, block):
            over = jnp.int32(shapes[index][1] // columns)
            deep = (span.rows if tokens else pairs[0][0][0].shape[1]) // SIDE
            row, column = lax.div(block, over) * ROWS, lax.rem(block, over) * columns

            def fetch(t, slot):
                for i, ((x, (y, at)), (x_g, y_g)) in enumerate(pairs):

                    @pl.when((t >= i * deep) & (t < (i + 1) * deep))
                    def _(i=i, x=x, y=y, at=at, x_g=x_g, y_g=y_g):
                        step = (t - i * deep) * SIDE
                        if tokens:
                            x_box = x_g.at[pl.ds(start(x) + step, SIDE), pl.ds(row, ROWS)]
                            y_box = y_g.at[pl.ds(start(y) + step, SIDE), pl.ds(column, columns)]
                        else:
                            x_box = x_g.at[pl.ds(start(x) + row, ROWS), pl.ds(step, SIDE)]
                            y_rows = y_g.at[span.skipped(len(y), first) + chunk, at, pl.ds(step, SIDE)]
                            y_box = y_rows.at[:, pl.ds(column, columns)]
                        plgpu.copy_gmem_to_smem(x_box, x_s.at[slot], full.at[slot])
                        plgpu.copy_gmem_to_smem(y_box, y_s.at[slot], full.at[slot])

            def factors(slot):
                return transposed(x_s.at[slot, :, half]) if tokens else x_s.at[slot, half], y_s.at[slot]

            flow = len(pairs) * deep, full, factors, columns
            fill(RING, flow[0], fetch, wg)
            (found,) = streamed(RING, fetch, [flow], wg, free)
            found *= 1 / scale_g[index][0]
            array, at = place[index]
            out, mine = out_g[array], row + wg * SIDE
            if tokens:
                out[chunk, at, pl.ds(mine, SIDE), pl.ds(column, columns)] = found
                return
            for i in range(columns // SIDE):
                box = out.at[pl.ds(start(into[array]) + mine, SIDE), pl.ds(column + i * SIDE, SIDE)]
                x = found[:, i * SIDE : (i + 1) * SIDE].astype(out.dtype)
                leave(x, result_s[0].at[wg, i % 2], box)
            plgpu.wait_smem_to_gmem(0)

        before = 0
        for index, (count, pairs) in enumerate(zip(blocks, sums, strict=True)):
            own = [(pair, pair_g.pop(0)) for pair in pairs]
            pl.when((tile >= before) & (tile < before + count))(partial(one, index, own, tile - before))
            before += count

    return tiles.kernel(
        body,
        into=into,
        out_type=out_type,
        grid=(span.chunks * sum(blocks),),
        grid_names=("tile",),
        num_threads=2,
        thread_name="wg",
        scratch_types={
            "x_s": tiles.factor(RING, *((SIDE, ROWS) if tokens else (ROWS, SIDE)), dtype=flat[0][0].dtype),
            "y_s": tiles.factor(RING, SIDE, columns, dtype=flat[0][0].dtype),
            "result_s": [] if tokens else [tiles.factor(2, 2, SIDE, SIDE, dtype=flat[0][0].dtype)],
            "full": plgpu.Barrier(num_arrivals=2, num_barriers=RING),
            "free": plgpu.Barrier(num_arrivals=2, num_barriers=RING),
        },
    )(span.first, *(x.reshape(1) for x in scales), *(z for pair in flat for z in pair))


def fill(ring, total, fetch, wg):
    """``fetch(t, place)`` of the first steps, before ``streamed``."""

    @pl.when(wg == 0)
    def _():
        for t in range(min(ring, total)):
            fetch(jnp.int32(t), t)


def streamed(ring, fetch, flows, wg, free, first=0, total=None):
    """Sums of products, 64 deep each, that come through a ring of places in shared memory.

    fetch: ``(t, place)`` has step t brought there. A place is filled again once both warpgroups have done with it.
    flows: ``(steps, full, factors, columns)`` of one sum after the other: barriers of what has come, ``factors(place)``
    of a step's product. first, total: these are some of the steps of so many, of several calls.
    """
    steps = sum(count for count, *_ in flows)
    total = total or steps

    def replace(t):
        @pl.when(t + ring < total)
        def _():
            slot = lax.rem(t, jnp.int32(ring))
            plgpu.barrier_arrive(free.at[slot])

            @pl.when(wg == 0)
            def _():
                plgpu.barrier_wait(free.at[slot])
                fetch(t + ring, slot)

    def run(*sums):
        done = 0
        for (count, full, factors, _), acc in zip(flows, sums, strict=True):

            def step(i, _, full=full, factors=factors, acc=acc, done=done):
                t = first + done + i
                slot = lax.rem(t, jnp.int32(ring))
                plgpu.barrier_wait(full.at[slot])
                plgpu.wgmma(acc, *factors(slot))
                plgpu.wgmma_wait(1)  # all of the step before
                pl.when(done + i > 0)(lambda: replace(t - 1))
                return ()

            tiles.steps(count, step, ())
            done += count
        found = [acc[...] for acc in sums]
        replace(jnp.int32(first + steps - 1))
        return found

    return pl.run_scoped(run, *(plgpu.ACC((SIDE, columns), jnp.float32) for *_, columns in flows))


# -- Muon --------------------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def orthogonal(G: Float[Array, "m M N"], steps: tuple) -> Float[Array, "m M N"]:
    """``newton_schulz``, its factors in float16: all have length 1 at the start and few grow past 10.

    A product of 384 x 384 matrices takes less time than to start it, and every one waits for that before it: so what
    else is done to their entries is done where the sums are. X alone is kept in float32 too, since a X is what the
    small singular values live on.
    """
    unit, _ = to_length_1(G)
    X = broad(unit, G)
    *_, (X, _) = [(X, None), *walk(X, steps)]
    return broad(X, G)


def orthogonals(G: Bank, steps: tuple) -> Bank:
    return tuple(orthogonal(x[0], steps)[None] for x in G)


def walk(X, steps):
    """Each next X, and what a step's gradient needs: X, A = X X' and B = b A + c A A in float16."""
    x = X.astype(jnp.float16)
    for a, b, c in steps:
        A = blend((0, 1), None, [(x, x)], turned=True)
        B = blend((b, c), A, [(A, A)])
        kept = x, A, B
        X, x = blend((a, 1), X, [(B, x)], exact=True)
        yield X, kept


def _orthogonal_back(steps, G, slope):
    """With Y the slope at a step's end: (a + B) Y + (b S + c (S A + A S)) X before it, with S = Y X' + X Y'."""
    unit, size = to_length_1(G)
    _, scale = to_length_1(slope)  # all of it is linear in the slope, so no rounding need see how large that is
    scale = jnp.where(scale > 0, scale, 1)
    kept = [kept for _, kept in walk(broad(unit, G), steps)]
    Y = broad(slope / scale, G)
    y = Y.astype(jnp.float16)
    for (a, b, c), (x, A, B) in reversed(list(zip(steps, kept, strict=True))):
        S = blend((0, 1), None, [(y, x), (x, y)], turned=True)
        P = blend((b, c), S, [(S, A), (A, S)])
        Y, y = blend((a, 1), Y, [(B, y), (P, x)], exact=True)
    Y = scale * broad(Y, G)
    along = jnp.sum(unit * Y, axis=(-2, -1), keepdims=True)
    radial = jnp.where(size > 0, along / jnp.where(size > 0, size, 1), 0)
    return ((Y - radial * G) / (size + GUARD),)


orthogonal.defvjp(lambda G, steps: (orthogonal(G, steps), G), _orthogonal_back)


@partial(jax.jit, static_argnames=("turned", "exact"))
def blend(scales, base, pairs, *, turned=False, exact=False):
    """scales[0] base + scales[1] times the sum of x y of the pairs, or (turned) of x y', in float16 or (exact) both.

    A block is 128 x 128 of one matrix: 108 blocks for twelve of 384 x 384. Shared memory has six steps of 64, 192 KB:
    all that such a product takes, so that nothing is waited for but its first arrival.
    """
    (x, y), *_ = pairs
    m, rows, deep = x.shape
    width, ring = y.shape[1 if turned else 2], 6
    bases = [] if base is None else [base]

    def body(scales_g, *refs, x_s, y_s, full, free):
        refs = iter(refs)
        pair_g = [(next(refs), next(refs)) for _ in pairs]
        base_g = [next(refs) for _ in bases]
        wg, matrix = lax.axis_index("wg"), lax.axis_index("matrix")
        row, column = lax.axis_index("row") * ROWS, lax.axis_index("column") * ROWS

        def fetch(t, slot):
            for i, (x_g, y_g) in enumerate(pair_g):

                @pl.when((t >= i * (deep // SIDE)) & (t < (i + 1) * (deep // SIDE)))
                def _(i=i, x_g=x_g, y_g=y_g):
                    step, over = pl.ds((t - i * (deep // SIDE)) * SIDE, SIDE), pl.ds(column, ROWS)
                    plgpu.copy_gmem_to_smem(x_g.at[matrix, pl.ds(row, ROWS), step], x_s.at[slot], full.at[slot])
                    y_box = y_g.at[(matrix, over, step) if turned else (matrix, step, over)]
                    plgpu.copy_gmem_to_smem(y_box, y_s.at[slot], full.at[slot])

        def factors(slot):
            return x_s.at[slot, pl.ds(wg * SIDE, SIDE)], transposed(y_s.at[slot]) if turned else y_s.at[slot]

        mine = matrix, pl.ds(row + wg * SIDE, SIDE), pl.ds(column, ROWS)
        base = [plgpu.load(x_g.at[mine], layout=tiles.WGMMA, optimized=False) for x_g in base_g]
        flow = len(pairs) * deep // SIDE, full, factors, ROWS
        fill(ring, flow[0], fetch, wg)
        (found,) = streamed(ring, fetch, [flow], wg, free)
        found = scales_g[1] * found
        for x in base:
            found += scales_g[0] * x.astype(jnp.float32)
        for x_g in refs:
            x_g[mine] = found.astype(x_g.dtype)

    outputs = [jax.ShapeDtypeStruct((m, rows, width), x) for x in [jnp.float32] * exact + [jnp.float16]]
    found = tiles.kernel(
        body,
        out_type=outputs,
        grid=(m, rows // ROWS, width // ROWS),
        grid_names=("matrix", "row", "column"),
        num_threads=2,
        thread_name="wg",
        scratch_types={
            "x_s": tiles.factor(ring, ROWS, SIDE, dtype=jnp.float16),
            "y_s": tiles.factor(ring, *((ROWS, SIDE) if turned else (SIDE, ROWS)), dtype=jnp.float16),
            "full": plgpu.Barrier(num_arrivals=2, num_barriers=ring),
            "free": plgpu.Barrier(num_arrivals=2, num_barriers=ring),
        },
    )(jnp.asarray(scales, jnp.float32), *(z for pair in pairs for z in pair), *bases)
    return found if exact else found[0]
