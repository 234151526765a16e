"""LaCT on a Hopper GPU: 16-bit factors, float32 sums and float32 fast weights, forward and backward.

**Which product waits for which.** Only the writes are a chain: chunk n's direction wants the weights that chunk n - 1
left. Its reads want nothing but those weights, so they come after all writes, every chunk at once (``from_the_start``).
The gradient has the same shape: all reads first, then the chain backwards.

**What is kept.** A chunk's read and direction have a gradient by hand that goes through them again, so a sequence keeps
its tokens and, of each chunk, the weights it found (16 bits, as the products read them), the weights before their rows
were restored and, with Muon or momentum, the direction.

**Two kinds of products**, and a kernel for each:

- *Into the hidden layer* (``strips``): up to six products of the same tokens, and between them what is no product:
  silu, its slopes, the rates. Their sums never leave the registers. A read goes on to its output, so that its hidden
  layer never leaves the chip.
- *Out of it* (``over_tokens``, ``over_hidden``): sums over the tokens of a chunk, which are directions and gradients
  of weights, or over the hidden layer, which are gradients of tokens. XLA has as good products, but starts them one by
  one: four heads of 384 x 384 are 36 blocks for 132 multiprocessors. Here all sums of a step are one launch.

Layers too wide for shared memory are left to XLA, whose products of 2048 tokens of width 768 reach 92 % of the card's
peak (notebook 12). So is Muon, 15 products for each matrix; their factors are float16, since it begins by making the
matrix 1 long, and those of one shape go together.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float, Int

from ttt_teach.rules import tiles
from ttt_teach.rules.lact.chunk import from_within, silu
from ttt_teach.rules.lact.definition import SwiGLU
from ttt_teach.rules.lact.steps import Memory, emptied, scheduled, write
from ttt_teach.rules.tiles import SIDE, block, by_row, transposed

ROWS = 2 * SIDE  # tokens in a block: 64 for each of its two warpgroups, which share the tiles of the weights
RING = 4  # tiles of the weights that are on their way or read
WIDEST = 768  # channels of a token, q and do or k and v together: 128 tokens of them are 192 KB of the 227


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
        return write(memory, tokens, norms, muon, jnp.float16)

    def entry(memory, tokens, update, apply):
        if update:
            written = close(add(emptied(memory), *tokens[1:]), len(tokens[0]))
            memory = memory._replace(W=written.W, M=written.M)
        return memory, read(memory.W, tokens[0]) if apply else jnp.zeros((0, v.shape[1]), v.dtype)

    if order != "apply-update":
        memory, o = scheduled(entry, memory, tokens, order, chunk)
    elif count is None:
        memory, o = from_the_start(memory, tokens, close, chunk)
    else:
        memory, o = from_within(memory, tokens, absorb, close, chunk, count)
    return o, tuple(memory)


def from_the_start(memory, tokens, close, chunk):
    """The chain of writes, then all reads. The last chunk is filled up with tokens of rate 0 and stays pending."""
    T = len(tokens[0])
    N = -(-T // chunk)
    q, *written = jax.tree.map(partial(in_chunks, N=N, chunk=chunk), tokens)

    def step(memory, tokens):
        return close(add(memory, *tokens)), memory.W

    memory, found = lax.scan(step, memory, jax.tree.map(lambda x: x[:-1], written))
    memory = add(memory, *jax.tree.map(lambda x: x[-1], written))
    W = jax.tree.map(lambda W, last: jnp.concatenate([W, last[None]]), found, memory.W)
    return memory, jax.vmap(read)(W, q).reshape(N * chunk, -1)[:T]


def in_chunks(x, N, chunk):
    x = jnp.pad(x, [(0, N * chunk - len(x))] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(N, chunk, *x.shape[1:])


def add(memory: Memory, k, v, lr, momentum) -> Memory:
    """The tokens' direction, added to those of their chunk."""
    d = direction(memory.W, k, v, lr)
    summed = jax.tree.map(jnp.add, memory[2:], (d, None if momentum is None else jnp.sum(momentum)))
    return Memory(memory.W, memory.M, *summed)


def absorb(memory: Memory, tokens: tuple):
    """Read the tokens, then add them."""
    return add(memory, *tokens[1:]), read(memory.W, tokens[0])


# -- what is done to a chunk, and its gradient -------------------------------------------------------------------------

# (sum, tokens, matrix, along): to that sum add those tokens times that matrix' or, not along its rows, that matrix
GATE_UP_OUT = ((0, 0, 0, True), (1, 0, 1, True), (2, 1, 2, False))


@jax.custom_vjp
def read(W: SwiGLU, q: Float[Array, "C K"]) -> Float[Array, "C V"]:
    """f_W of every query (LaCT Eq. 6)."""
    return _read(halved(W, q.dtype), q)


def _read(W, q):
    def hidden(sums, rates):
        a, u = sums
        return [silu(a)[0] * u], ()

    (o,), _ = strips([q], [W.gate, W.up], GATE_UP_OUT[:2], hidden, results=1, out=W.out)
    return o


def _read_forward(W, q):
    W = halved(W, q.dtype)
    return _read(W, q), (W, q)


def _read_back(kept, do):
    """da = dh u silu'(a) and du = dh silu(a), with dh = out' do (chunk.py)."""
    W, q = kept
    scale = lift(do, q.dtype)

    def hidden(sums, rates):
        (a, u, dh), (scale,) = sums, rates
        s, s1, _ = silu(a)
        dh = dh * scale
        return [dh * u * s1, dh * s, s * u], ()

    rates = jnp.broadcast_to(scale, (len(q), 1))
    (da, du, h), _ = strips([q, do], list(W), GATE_UP_OUT, hidden, results=3, rates=rates)
    dW = over_tokens([(da, q), (du, q), (do, h)], jnp.stack([scale, scale, jnp.float32(1)]))
    (dq,) = over_hidden([[(da, W.gate), (du, W.up)]], scale)
    return SwiGLU(*dW), dq


read.defvjp(_read_forward, _read_back)


@jax.custom_vjp
def direction(W: SwiGLU, k: Float[Array, "C K"], v: Float[Array, "C V"], lr: Float[Array, "C 3"]) -> SwiGLU:
    """Up sum_t <f(k_t), v_t>, each matrix with its own rates (LaCT Alg. 1); the formulas are those of chunk.py."""
    return _direction(halved(W, k.dtype), k, v, lr)


def _direction(W, k, v, lr):
    def hidden(sums, rates):
        (a, u, e), (lr_gate, lr_up, lr_out) = sums, rates
        s, s1, _ = silu(a)
        return [lr_gate * e * u * s1, lr_up * e * s, lr_out * s * u], ()

    scale = lift(lr, k.dtype)
    (g, p, h), _ = strips([k, v], list(W), GATE_UP_OUT, hidden, results=3, rates=lr * scale, parts=2)
    return SwiGLU(*over_tokens([(g, k), (p, k), (v, h)], jnp.broadcast_to(scale, (3,))))


def _direction_forward(W, k, v, lr):
    W = halved(W, k.dtype)
    return _direction(W, k, v, lr), (W, k, v, lr)


def _direction_back(kept, D):
    """All of it is linear in D, so D may be brought near 1 first, and the results back."""
    W, k, v, lr = kept
    scale = lift(jnp.stack([jnp.max(jnp.abs(d)) for d in D]), k.dtype)
    D = halved(jax.tree.map(lambda d: scale * d, D), k.dtype)

    def hidden(sums, rates):
        (a, u, e, dg, dp, dh), (lr_gate, lr_up, lr_out) = sums, rates
        s, s1, s2 = silu(a)
        g, p, h = e * u * s1, e * s, s * u
        dlr = dg * g, dp * p, dh * h
        dg, dp, dh = lr_gate * dg, lr_up * dp, lr_out * dh
        da = dg * e * u * s2 + (dp * e + dh * u) * s1
        du = dg * e * s1 + dh * s
        de = dg * u * s1 + dp * s
        return [da, du, de, lr_gate * g, lr_up * p, lr_out * h], dlr

    terms = GATE_UP_OUT + tuple((3 + s, x, 3 + w, along) for s, x, w, along in GATE_UP_OUT)
    (da, du, de, g, p, h), dlr = strips([k, v], [*W, *D], terms, hidden, results=6, rates=lr, sums=3, parts=2)
    dW = over_tokens([(da, k), (du, k), (v, de)], jnp.broadcast_to(scale, (3,)))
    dk = [(g, D.gate), (p, D.up), (da, W.gate), (du, W.up)]
    dk, dv = over_hidden([dk, [(h, D.out.T), (de, W.out.T)]], scale)
    return SwiGLU(*dW), dk, dv, dlr / scale


direction.defvjp(_direction_forward, _direction_back)


def halved(W: SwiGLU, dtype) -> SwiGLU:
    """As the products read them."""
    return jax.tree.map(lambda w: w.astype(dtype), W)


def lift(x: Array, dtype) -> Array:
    """A power of two that brings the largest entry of x to between 1/2 and 1 for float16; for bfloat16 it is 1.

    float16 has few bits for small numbers. What is linear in x is computed of the larger x, then divided.
    """
    if dtype != jnp.float16:
        return jnp.float32(1)
    _, exponent = jnp.frexp(jnp.max(jnp.abs(x.astype(jnp.float32))))
    return jnp.ldexp(jnp.float32(1), -jnp.maximum(exponent, -100))


def wide(*widths: int) -> bool:
    """Whether two tiles of 128 tokens, so many channels together, leave the ring no room in shared memory."""
    return sum(widths) > WIDEST


def summed(x: Array, y: Array) -> Array:
    """x @ y, factors in 16 bits, the sum in float32."""
    return jnp.matmul(x, y, preferred_element_type=jnp.float32)


# -- into the hidden layer ---------------------------------------------------------------------------------------------


def strips(
    tokens: list[Array],
    matrices: list[Array],
    terms: tuple,
    hidden: Callable,
    *,
    results: int,
    rates: Array | None = None,
    sums: int = 0,
    parts: int = 1,
    out: Array | None = None,
) -> tuple[list[Array], Array | None]:
    """Products of tokens ``[C, D]`` with matrices, and what ``hidden`` makes of their sums, 16 bits ``[C, M]`` each.

    Args:
        tokens, matrices: in 16 bits. terms: which tokens are multiplied with which matrix into which sum.
        hidden: ``(sums, rates) -> (results, numbers)``, of tiles ``[tokens, hidden]`` and of the rates of the same
            tokens, spread over the tile. The numbers are summed over the hidden layer.
        rates: ``[C, R]``, float32. parts: into how many the hidden layer is split, to have as many times more blocks.
        out: ``[V, M]``: the one result times this matrix' is wanted instead.

    Returns:
        the results; the sums ``[C, sums]``, or None.
    """
    if wide(*(x.shape[1] for x in tokens), 0 if out is None else out.shape[1]):
        return _by_xla(tokens, matrices, terms, hidden, rates, out)
    C = len(tokens[0])
    tokens = [whole(x) for x in tokens]
    rates = None if rates is None else whole(rates).T
    found, numbers = _strips(tokens, matrices, terms, hidden, results, rates, sums, parts, out)
    return [x[:C] for x in found], numbers.sum(0)[:, :C].T if sums else None


def whole(x: Array) -> Array:
    """Filled up with zeros to whole blocks of tokens."""
    return jnp.pad(x, [(0, -len(x) % ROWS), (0, 0)]) if len(x) % ROWS else x


def _by_xla(tokens, matrices, terms, hidden, rates, out):
    """The same, but for a rounding: the sums go through memory to ``hidden``, so they do in 16 bits."""
    found = [(tokens[x] @ (matrices[w].T if along else matrices[w])).astype(jnp.float32) for _, x, w, along in terms]
    results, numbers = hidden(found, [] if rates is None else [r[:, None] for r in rates.T])
    results = [x.astype(tokens[0].dtype) for x in results]
    if out is not None:
        results = [results[0] @ out.T]
    return results, jnp.stack([jnp.sum(x, axis=1) for x in numbers], axis=1) if numbers else None


class Job(NamedTuple):
    """64 columns of the tokens times a tile of a matrix, added to a sum."""

    sum: int
    tokens: int
    column: int
    matrix: int
    along: bool


def _strips(tokens, matrices, terms, hidden, results, rates, sums, parts, out):
    """A block has 128 tokens and a part of the hidden layer, which it goes through 64 at a time.

    In shared memory: the tokens, 192 KB if they have 2 x 384 channels (a read: the queries and their hidden layer), and
    a ring of four tiles of the matrices, 32 KB. Its two warpgroups take 64 tokens each and read the same tile. A job is
    64 x 64 x 64; up to six sums are 192 registers a thread. While one job is computed the tile of the one before it is
    replaced: by the first warpgroup, once both have said that they are through with it (``free``).
    """
    C, M, dtype = len(tokens[0]), matrices[0].shape[0], tokens[0].dtype
    columns = [x.shape[1] // SIDE for x in tokens]
    pieces, n_rates = M // SIDE, 0 if rates is None else len(rates)
    parts = parts if pieces % parts == 0 else 1
    matrices = matrices if out is None else [*matrices, out]
    work = [Job(s, x, j, w, along) for j in range(max(columns)) for s, x, w, along in terms if j < columns[x]]

    def body(*refs, token_s, hidden_s, ring, there, full, free):
        refs = iter(refs)
        token_g, matrix_g = [next(refs) for _ in tokens], [next(refs) for _ in matrices]
        rates_g = next(refs) if n_rates else None
        result_g = [next(refs) for _ in range(results)]
        sums_g = next(refs) if sums else None
        wg, part = lax.axis_index("wg"), lax.axis_index("part")
        mine = pl.ds((2 * lax.axis_index("tile") + wg) * SIDE, SIDE)

        def fetch(slot, job, piece):
            own, across = pl.ds(piece * SIDE, SIDE), pl.ds(job.column * SIDE, SIDE)
            box = matrix_g[job.matrix].at[(own, across) if job.along else (across, own)]
            plgpu.copy_gmem_to_smem(box, ring.at[slot], full.at[slot])

        def sweep(work, factors, first, count, finish, carry, done=0, last=True):
            """``finish(piece, sums, carry)`` for count pieces from the first, after so many jobs done."""
            n, total = len(work), count * len(work)

            @pl.when(wg == 0)
            def _():
                for r in range(RING):
                    slot = (done + r) % RING
                    if slot < done:
                        plgpu.barrier_wait(free.at[slot])
                    if r < total:
                        fetch(slot, work[r % n], first + r // n)

            def replace(t, i, p):
                """The tile of job t of this sweep by that of job t + RING, which is the i-th from piece p on."""
                slot = (done + t) & (RING - 1)
                wanted = t + RING < total
                pl.when(wanted | (not last))(lambda: plgpu.barrier_arrive(free.at[slot]))

                @pl.when(wanted & (wg == 0))
                def _():
                    plgpu.barrier_wait(free.at[slot])
                    fetch(slot, work[i % n], first + p + i // n)

            def piece(p, carry):
                def run(*accumulators):
                    for i, job in enumerate(work):
                        t = p * n + i
                        slot = (done + t) & (RING - 1)
                        plgpu.barrier_wait(full.at[slot])
                        tile = ring.at[slot]
                        tile = transposed(tile) if job.along else tile
                        plgpu.wgmma(accumulators[job.sum], block(factors[job.tokens], job.column), tile)
                        if i:
                            plgpu.wgmma_wait(1)
                            replace(t - 1, i - 1 + RING, p)
                    found = tuple(acc[...] for acc in accumulators)
                    replace(p * n + n - 1, n - 1 + RING, p)
                    return found

                each = 1 + max(job.sum for job in work)
                found = pl.run_scoped(run, *(plgpu.ACC((SIDE, SIDE), jnp.float32) for _ in range(each)))
                return finish(first + p, found, carry)

            return tiles.steps(count, piece, carry)

        for x_g, x_s in zip(token_g, token_s, strict=True):
            plgpu.copy_gmem_to_smem(x_g.at[mine], x_s.at[wg], there.at[wg])
        plgpu.barrier_wait(there.at[wg])

        def store(x_g, piece, x):
            x_g[mine, pl.ds(piece * SIDE, SIDE)] = x.astype(dtype)

        def of_hidden(piece, found, carry):
            own = [rates_g.at[i, mine] for i in range(n_rates)]
            spread = [by_row(plgpu.load(r, layout=tiles.PER_ROW, optimized=False)) for r in own]
            found, numbers = hidden(found, spread)
            if out is None:
                for x, x_g in zip(found, result_g, strict=True):
                    store(x_g, piece, x)
            else:
                hidden_s[0][wg, :, pl.ds(piece * SIDE, SIDE)] = found[0].astype(dtype)
            return tuple(x + jnp.sum(y, axis=1) for x, y in zip(carry, numbers, strict=True))

        def of_out(piece, found, carry):
            store(result_g[0], piece, found[0])
            return carry

        count = pieces // parts
        zeros = tuple(plgpu.layout_cast(jnp.zeros((SIDE,), jnp.float32), tiles.PER_ROW) for _ in range(sums))
        factors = [x_s.at[wg] for x_s in token_s]
        numbers = sweep(work, factors, part * count, count, of_hidden, zeros, last=out is None)
        if out is not None:
            plgpu.commit_smem()  # this warpgroup's own hidden layer is what it now multiplies
            onward = [Job(0, 0, j, len(matrices) - 1, True) for j in range(pieces)]
            sweep(onward, [hidden_s[0].at[wg]], 0, len(out) // SIDE, of_out, (), done=count * len(work))
        for i, x in enumerate(numbers):
            sums_g[part, i, mine] = x

    outputs = [jax.ShapeDtypeStruct((C, M if out is None else len(out)), dtype)] * results
    if sums:
        outputs.append(jax.ShapeDtypeStruct((parts, sums, C), jnp.float32))
    found = tiles.kernel(
        body,
        out_type=outputs,
        grid=(parts, C // ROWS),  # the first is the innermost: parts that share their tokens run side by side
        grid_names=("part", "tile"),
        num_threads=2,
        thread_name="wg",
        scratch_types={
            "token_s": [tiles.factor(2, SIDE, x.shape[1], dtype=dtype) for x in tokens],
            "hidden_s": [] if out is None else [tiles.factor(2, SIDE, M, dtype=dtype)],
            "ring": tiles.factor(RING, SIDE, SIDE, dtype=dtype),
            "there": plgpu.Barrier(num_arrivals=len(tokens), num_barriers=2),
            "full": plgpu.Barrier(num_barriers=RING),
            "free": plgpu.Barrier(num_arrivals=2, num_barriers=RING),
        },
    )(*tokens, *matrices, *([] if rates is None else [rates]))
    return (found[:-1], found[-1]) if sums else (found, None)


# -- out of it ---------------------------------------------------------------------------------------------------------


def over_tokens(products: list[tuple[Array, Array]], scales: Array) -> list[Array]:
    """x' y / scale of every ``x [C, A]``, ``y [C, N]``, in float32."""
    if any(wide(x.shape[1], y.shape[1]) for x, y in products):
        return [summed(x.T, y) / scale for (x, y), scale in zip(products, scales, strict=True)]
    return _totals([[(whole(x), whole(y))] for x, y in products], 1 / scales, jnp.float32, columns=ROWS, tokens=True)


def over_hidden(sums: list[list[tuple[Array, Array]]], scale: Array) -> list[Array]:
    """The sum of x y / scale over the pairs ``x [C, M]``, ``y [M, N]`` of each, in 16 bits."""
    C, dtype = sums[0][0][0].shape[0], sums[0][0][0].dtype
    if any(wide(*y.shape) for pairs in sums for _, y in pairs):
        joined = [[jnp.concatenate(z, axis=1 - i) for i, z in enumerate(zip(*pairs, strict=True))] for pairs in sums]
        return [(summed(x, y) / scale).astype(dtype) for x, y in joined]
    columns = 192 if all(pairs[0][1].shape[1] % 192 == 0 for pairs in sums) else ROWS
    scales = jnp.broadcast_to(1 / scale, (len(sums),))
    found = _totals([[(whole(x), y) for x, y in pairs] for pairs in sums], scales, dtype, columns=columns, tokens=False)
    return [x[:C] for x in found]


def _totals(sums, scales, dtype, *, columns, tokens):
    """Sums of products times their scales: over the rows of x and y (tokens), or the columns of x (hidden layer).

    A block has 128 x ``columns`` of one sum, 64 rows for each of its two warpgroups; 384 x 384 over the tokens are 9
    blocks of 128 columns for each head and matrix, 2048 tokens x 384 are 32 blocks of 192. A step is 64 deep. Shared
    memory has four steps, 128 KB or 160 KB.
    """
    flat = [pair for pairs in sums for pair in pairs]
    shapes = [(x.shape[tokens], y.shape[1]) for ((x, y), *_) in sums]
    blocks = [(rows // ROWS) * (across // columns) for rows, across in shapes]

    def body(*refs, x_s, y_s, full, free):
        refs = iter(refs)
        pair_g = [(next(refs), next(refs)) for _ in flat]
        scales_g = next(refs)
        wg, tile = lax.axis_index("wg"), lax.axis_index("tile")
        half = pl.ds(wg * SIDE, SIDE)

        def one(index, pairs, out_g, block):
            across, deep = shapes[index][1] // columns, pairs[0][0].shape[not tokens] // SIDE
            total = len(pairs) * deep
            rows, cols = pl.ds(block // across * ROWS, ROWS), pl.ds(block % across * columns, columns)

            def fetch(t):
                slot = t & (RING - 1)
                for i, (x_g, y_g) in enumerate(pairs):

                    @pl.when((t >= i * deep) & (t < (i + 1) * deep))
                    def _(i=i, x_g=x_g, y_g=y_g):
                        step = pl.ds((t - i * deep) * SIDE, SIDE)
                        x_box = x_g.at[step, rows] if tokens else x_g.at[rows, step]
                        plgpu.copy_gmem_to_smem(x_box, x_s.at[slot], full.at[slot])
                        plgpu.copy_gmem_to_smem(y_g.at[step, cols], y_s.at[slot], full.at[slot])

            def replace(t):
                """The step before the one that is computed, by that which is four later."""
                slot = t & (RING - 1)
                plgpu.barrier_arrive(free.at[slot])

                @pl.when(wg == 0)
                def _():
                    plgpu.barrier_wait(free.at[slot])
                    fetch(t + RING)

            def run(total_acc):
                def step(t, _):
                    slot = t & (RING - 1)
                    plgpu.barrier_wait(full.at[slot])
                    x = transposed(x_s.at[slot, :, half]) if tokens else x_s.at[slot, half]
                    plgpu.wgmma(total_acc, x, y_s.at[slot])
                    plgpu.wgmma_wait(1)
                    pl.when((t > 0) & (t - 1 + RING < total))(lambda: replace(t - 1))
                    return ()

                tiles.steps(total, step, ())
                return total_acc[...]

            @pl.when(wg == 0)
            def _():
                for t in range(min(RING, total)):
                    fetch(jnp.int32(t))

            found = pl.run_scoped(run, plgpu.ACC((SIDE, columns), jnp.float32))
            mine = pl.ds(block // across * ROWS + wg * SIDE, SIDE)
            out_g[mine, cols] = (found * scales_g[index]).astype(dtype)

        first = 0
        for index, (count, pairs) in enumerate(zip(blocks, sums, strict=True)):
            own = [pair_g.pop(0) for _ in pairs]
            pl.when((tile >= first) & (tile < first + count))(partial(one, index, own, next(refs), tile - first))
            first += count

    return tiles.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(shape, dtype) for shape in shapes],
        grid=(sum(blocks),),
        grid_names=("tile",),
        num_threads=2,
        thread_name="wg",
        scratch_types={
            "x_s": tiles.factor(RING, *((SIDE, ROWS) if tokens else (ROWS, SIDE)), dtype=flat[0][0].dtype),
            "y_s": tiles.factor(RING, SIDE, columns, dtype=flat[0][0].dtype),
            "full": plgpu.Barrier(num_arrivals=2, num_barriers=RING),
            "free": plgpu.Barrier(num_arrivals=2, num_barriers=RING),
        },
    )(*(z for pair in flat for z in pair), scales)
