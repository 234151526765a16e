"""OSDN with one decay per head and token on a Hopper GPU: the scales d in one walk, then the delta rule's kernels.

**Forward** (``learn``). One warpgroup a head goes through the chunks with nothing but d, K numbers. With s = k^2,
n = max(|k|^2, eps) and p = s / n, as long as nothing clips (``sweep.py``),

    z_t = b_t (1 - b_t <d_t, s_t>)      d_t = d + eta sum_{i < t} z_i p_i

so z solves (I + A) z = y, where y_t = b_t (1 - b_t <d, s_t>) and A_ti = eta b_t^2 n_t (p_t . p_i) for i < t. A is
small, as eta is: z <- y - A z from z = y converges like the powers of its largest row sum, in three rounds as a rule.
If that is above 1/2, or if some d leaves the bounds, the chunk is done again token by token, for this head alone.

**Backward** (``unlearn``). L_t, the gradient of the scale after t, is such a walk from the end, with h = k dw:

    L_{t-1} = L_t - eta b_t^2 c_t s_t + h_t      c_t = <L_t, p_t>
    dk_t = d_t dw_t + 2 k_t (eta z_t (L_t - c_t) / n_t - eta b_t^2 c_t d_t)      without - c_t if |k_t|^2 < eps
    deta = sum_t z_t c_t      db_t = eta (1 - 2 b_t <d_t, s_t>) c_t

and c solves a system with A' for A. Where a token clipped, L_t is 0 for the channels that did (and their L_t belongs to
the bound). dk of the delta rule comes in and leaves with this added.

What is rounded to 16 bits here (p, z and h between the tokens of a chunk) is multiplied by eta before it meets d or dk.
d, L, all sums over a chunk and the dot products with d and L are float32.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float

from ttt_teach.rules import tiles
from ttt_teach.rules.delta import kernel as delta
from ttt_teach.rules.osdn.sweep import Learner
from ttt_teach.rules.tiles import PER_COLUMN, PER_ROW, SIDE, block, by_column, by_row, products, transposed

SMALL = 0.5  # a row sum of A up to which its system is solved by z <- y - A z
CLOSE = 1e-5  # relative error of that solution: 16 bits are coarser


def refusal(q: Array, k: Array, v: Array, log_decay, retention, dtype, chunk: int) -> str | None:
    """Why the kernel does not do this call, or None if it does. dtype: what the other forms would compute in."""
    if retention is not None:
        return "takes no retention"
    return delta.refusal(q, k, v, k, log_decay, dtype, chunk)


def kernel(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T H K"],
    v: Float[Array, "B T H V"],
    beta: Float[Array, "B T H"],
    b: Float[Array, "B T H"],
    log_decay: Float[Array, "B T H"] | None,
    S: Float[Array, "B H K V"] | None,
    d: Float[Array, "B H K"],
    learner: Learner,
    *,
    scale: float | Float[Array, ""] = 1.0,
) -> tuple[Float[Array, "B T H V"], tuple[Float[Array, "B H K V"], Float[Array, "B H K"]]]:
    """o and the last S and d. q, k and v in 16 bits, K = V in {64, 128}; the rest in float32."""
    T = q.shape[1]
    if not isinstance(scale, float):  # it is compiled for a number: one known only later is rounded with q
        q, scale = (q.astype(scale.dtype) * scale).astype(q.dtype), 1.0
    q, k, v = (tiles.whole_rows(x) for x in (q, k, v))
    G = None if log_decay is None else tiles.sums(log_decay)
    o, S, d = _heads(q, k, v, tiles.vectors(beta), tiles.vectors(b), G, S, d, jnp.stack(learner), scale)
    return o[:, :T], (S, d)


@partial(jax.custom_vjp, nondiff_argnums=(9,))
def _heads(q, k, v, beta, b, G, S, d, numbers, scale):
    w, d = learn(k, b, d, numbers)
    return *delta.heads(q, k, w, v, beta, G, S, scale), d


def _forward(q, k, v, beta, b, G, S, d, numbers, scale):
    w, last, z, borders = learn(k, b, d, numbers, keep=True)
    (o, S), kept = delta.forward(q, k, w, v, beta, G, S, scale)
    return (o, S, last), (kept, b, z, borders, numbers)


def _backward(scale, kept, slopes):
    kept, b, z, borders, numbers = kept
    *slopes, dlast = slopes
    dq, dk, dw, dv, dbeta, dG, dS = delta.backward(scale, kept, tuple(slopes))
    k = kept[1]
    dk, db, dd, dnumbers = unlearn(k, dk, dw, b, z, borders, dlast, numbers)
    return dq, dk, dv, dbeta, db, dG, dS, dd, dnumbers


_heads.defvjp(_forward, _backward)


def columns(K: int):
    return [pl.ds(j * SIDE, SIDE) for j in range(K // SIDE)]


def turned(x: Array) -> Array:
    """A number for each row as a number for each column, ``[64, 64]``: the sums of a diagonal matrix's columns."""
    row, column = tiles.places()
    return by_column(jnp.sum(jnp.where(row == column, by_row(x), 0.0), axis=0))


def solve(A: Array, y: Array) -> tuple[Array, Array]:
    """z with z + A z = y for a strictly triangular A, and its largest row sum. If that is not SMALL, z is y."""
    largest = jnp.max(jnp.sum(jnp.abs(A), axis=1))

    def again(left_z):
        left, z = left_z
        return left * largest, y - jnp.sum(A * turned(z), axis=1)

    left = jnp.where(largest <= SMALL, largest, 0.0)
    _, z = lax.while_loop(lambda left_z: left_z[0] > CLOSE, again, (left, y))
    return z, largest


def outside(x: Array, lo, hi) -> Array:
    """How far the farthest number is outside the bounds; NaN if one is."""
    far = jnp.maximum(lo - x, x - hi)
    return jnp.max(far if far.ndim == 1 else jnp.max(far, axis=1))  # a tile at once hangs the inference of layouts


def token(d, k, b, numbers):
    """s, |k|^2, <d, s>, z and the next scale before the clip, for one token; k and d as one or two times 64 columns."""
    eta, _, _, eps = numbers
    s = [x * x for x in k]
    length, hit = sum(jnp.sum(x) for x in s), sum(jnp.sum(x * y) for x, y in zip(d, s, strict=True))
    z = b * (1 - b * hit)
    step = eta * z / jnp.maximum(length, eps)
    return s, length, hit, z, [x + step * y for x, y in zip(d, s, strict=True)]


def row(x_g, column):
    """64 numbers of global memory, one for each column."""
    return plgpu.load(x_g.at[column], layout=PER_COLUMN, optimized=False).astype(jnp.float32)


def learn(k, b, d, numbers, *, keep=False):
    """w = d k, the last d and, if ``keep``, z and d before each chunk.

    In shared memory (K = 128): k twice, w and p 16 KB each, z 8 KB: 72 KB, so that all heads run at once.
    """
    (B, T, H, K), dtype = k.shape, k.dtype
    N, cols = tiles.chunks(T), columns(k.shape[-1])

    def body(*refs, k_s, w_s, p_s, Z_s, b_s, z_s, d_s, numbers_s, arrived, ready):
        k_g, b_g, first_g, numbers_g, w_g, last_g, *kept_g = refs
        z_g, borders_g = kept_g if keep else (None, None)
        bi, h = lax.axis_index("b"), lax.axis_index("h")
        plgpu.copy_gmem_to_smem(numbers_g, numbers_s, ready)
        plgpu.copy_gmem_to_smem(first_g.at[bi, h], d_s, ready)

        def fetch(n):
            slot, tokens = n & 1, pl.ds(n * SIDE, SIDE)
            plgpu.copy_gmem_to_smem(k_g.at[bi, tokens, h], k_s.at[slot], arrived.at[slot])
            plgpu.copy_gmem_to_smem(b_g.at[bi, h, tokens], b_s.at[slot], arrived.at[slot])

        here, there = tiles.places()
        below, first = here > there, here == 0

        def chunk(n, nothing):
            slot, tokens = n & 1, pl.ds(n * SIDE, SIDE)
            pl.when(n + 1 < N)(lambda: fetch(n + 1))
            if keep:
                plgpu.copy_smem_to_gmem(d_s, borders_g.at[bi, h, n])
            plgpu.barrier_wait(arrived.at[slot])

            def scale_of(j):
                return by_column(plgpu.load(d_s.at[cols[j]], layout=PER_COLUMN))

            s = [jnp.square(tiles.read(block(k_s.at[slot], j))) for j in range(len(cols))]
            norm = jnp.maximum(sum(jnp.sum(x, axis=1) for x in s), eps)
            hit = sum(jnp.sum(x * scale_of(j), axis=1) for j, x in enumerate(s))
            share = by_row(1 / norm)
            for j, x in enumerate(s):
                p_s[:, cols[j]] = (x * share).astype(p_s.dtype)
            plgpu.commit_smem()
            (pp,) = products([(p_s, transposed(p_s))])
            b = plgpu.load(b_s.at[slot], layout=PER_ROW)
            A = jnp.where(below, pp * by_row(eta * b * b * norm), 0.0)
            z, largest = solve(A, b * (1 - b * hit))
            Z_s[...] = jnp.where(below, turned(z), 0.0).astype(Z_s.dtype)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last w and z have left, and d before this chunk
            z_s[...] = z
            plgpu.commit_smem()
            grown = products(*([(Z_s, block(p_s, j))] for j in range(len(cols))))
            last, away = [], jnp.where(largest <= SMALL, 0.0, 1.0)
            for j, x in enumerate(grown):
                scales = scale_of(j) + eta * x
                w_s[:, cols[j]] = (scales * tiles.read(block(k_s.at[slot], j))).astype(dtype)
                last_j = jnp.sum(tiles.read(block(p_s, j)) * by_row(z), axis=0)
                last.append(plgpu.load(d_s.at[cols[j]], layout=PER_COLUMN) + eta * last_j)
                # the scale of the first token is what it is, also outside the bounds
                away = jnp.maximum(away, outside(jnp.where(first, lo, scales), lo, hi))
                away = jnp.maximum(away, outside(last[j], lo, hi))
            free = away <= 0
            plgpu.commit_smem()  # all threads have read d

            @pl.when(free)
            def _():
                for c, x in zip(cols, last, strict=True):
                    d_s[c] = x
                plgpu.copy_smem_to_gmem(w_s, w_g.at[bi, tokens, h])

            pl.when(jnp.logical_not(free))(lambda: one_by_one(n, slot))
            plgpu.commit_smem()
            if keep:
                plgpu.copy_smem_to_gmem(z_s, z_g.at[bi, h, tokens])

        def one_by_one(n, slot):
            def step(i, d):
                t = n * SIDE + i
                k = [row(k_g.at[bi, t, h], c) for c in cols]
                _, _, _, z, after = token(d, k, b_s[slot, i], (eta, lo, hi, eps))
                z_s[i] = z
                for c, x, y in zip(cols, d, k, strict=True):
                    w_g[bi, t, h, c] = (x * y).astype(dtype)
                return tuple(jnp.clip(x, lo, hi) for x in after)

            d = tuple(plgpu.load(d_s.at[c], layout=PER_COLUMN) for c in cols)
            d = tiles.steps(jnp.minimum(T - n * SIDE, SIDE), step, d)
            plgpu.commit_smem()
            for c, x in zip(cols, d, strict=True):
                d_s[c] = x

        fetch(jnp.zeros((), jnp.int32))
        plgpu.barrier_wait(ready)
        eta, lo, hi, eps = (numbers_s[i] for i in range(4))
        tiles.steps(N, chunk, None)
        plgpu.copy_smem_to_gmem(d_s, last_g.at[bi, h])
        plgpu.wait_smem_to_gmem(0)

    outputs = [jax.ShapeDtypeStruct(k.shape, dtype), jax.ShapeDtypeStruct((B, H, K), jnp.float32)]
    if keep:
        outputs += [jax.ShapeDtypeStruct(x, jnp.float32) for x in ((B, H, N * SIDE), (B, H, N, K))]
    return tiles.kernel(
        body,
        out_type=outputs,
        grid=(H, B),
        grid_names=("h", "b"),
        scratch_types={
            "k_s": tiles.factor(2, SIDE, K, dtype=dtype),
            "w_s": tiles.factor(SIDE, K, dtype=dtype),
            "p_s": tiles.factor(SIDE, K, dtype=jnp.float16),  # p is in [0, 1]
            "Z_s": tiles.factor(SIDE, SIDE, dtype=jnp.float16),  # an overflow makes d NaN, and that is not free
            "b_s": plgpu.SMEM((2, SIDE), jnp.float32),
            "z_s": plgpu.SMEM((SIDE,), jnp.float32),
            "d_s": plgpu.SMEM((K,), jnp.float32),
            "numbers_s": plgpu.SMEM((4,), jnp.float32),
            "arrived": plgpu.Barrier(num_arrivals=2, num_barriers=2),
            "ready": plgpu.Barrier(num_arrivals=2),
        },
    )(k, b, d, numbers)


def unlearn(k, dk, dw, b, z, d, slope, numbers):
    """dk with what flows through the scales, db, the first d's slope and those of the numbers.

    In shared memory (K = 128): k, dk, dw, p and h 16 KB each, two tiles of 8 KB: 96 KB, two blocks an SM.
    """
    (B, T, H, K), dtype = k.shape, k.dtype
    N, cols = tiles.chunks(T), columns(k.shape[-1])
    halves = range(len(cols))

    def body(*refs, k_s, dk_s, dw_s, p_s, h_s, later_s, Z_s, b_s, z_s, d_s, L_s, sums_s, ends_s, numbers_s, arrived):
        k_g, dk_g, dw_g, b_g, z_g, d_g, last_g, numbers_g, out_g, first_g, sums_g, ends_g, rows_g = refs
        bi, h = lax.axis_index("b"), lax.axis_index("h")
        plgpu.copy_gmem_to_smem(numbers_g, numbers_s, arrived["once"])
        plgpu.copy_gmem_to_smem(last_g.at[bi, h], L_s, arrived["once"])

        def fetch(n):
            n = N - 1 - n
            tokens, there = pl.ds(n * SIDE, SIDE), arrived["chunk"]
            for x_g, x_s in ((k_g, k_s), (dw_g, dw_s)):
                plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h], x_s, there)
            for x_g, x_s in ((b_g, b_s), (z_g, z_s)):
                plgpu.copy_gmem_to_smem(x_g.at[bi, h, tokens], x_s, there)
            plgpu.copy_gmem_to_smem(d_g.at[bi, h, n], d_s, there)

        def of_channel(x_s, j):
            return plgpu.load(x_s.at[cols[j]], layout=PER_COLUMN)

        def chunk(n, nothing):
            place = N - 1 - n
            tokens = pl.ds(place * SIDE, SIDE)
            plgpu.barrier_wait(arrived["chunk"])

            # what the chunk's tokens are to each other
            s = [jnp.square(tiles.read(block(k_s, j))) for j in halves]
            length = sum(jnp.sum(x, axis=1) for x in s)
            norm = jnp.maximum(length, eps)
            share = by_row(1 / norm)
            p = [x * share for x in s]
            met = sum(jnp.sum(p[j] * by_column(of_channel(L_s, j)), axis=1) for j in halves)
            for j in halves:
                p_s[:, cols[j]] = p[j].astype(dtype)
                h_s[:, cols[j]] = (tiles.read(block(k_s, j)) * tiles.read(block(dw_s, j))).astype(dtype)
            b, z = plgpu.load(b_s, layout=PER_ROW), plgpu.load(z_s, layout=PER_ROW)
            Z_s[...] = jnp.where(below, turned(z), 0.0).astype(dtype)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last chunk's results have left dk_s and sums_s
            plgpu.commit_smem()
            plgpu.copy_gmem_to_smem(dk_g.at[bi, tokens, h], dk_s, arrived["dk"])
            pp, ph, *scales = products(
                [(p_s, transposed(p_s))], [(p_s, transposed(h_s))], *([(Z_s, block(p_s, j))] for j in halves)
            )
            pull = eta * b * b  # of s_t on L, beside c_t
            met = met + jnp.sum(jnp.where(above, ph, 0.0), axis=1)
            c, largest = solve(jnp.where(above, pp * turned(pull * norm), 0.0), met)
            plgpu.commit_smem()  # all threads are done with Z, whose place the weights of s take
            Z_s[...] = jnp.where(above, turned(-pull * norm * c), 0.0).astype(dtype)
            plgpu.commit_smem()
            slopes = products(*([(later_s, block(h_s, j)), (Z_s, block(p_s, j))] for j in halves))

            # the gradients, as if nothing clipped
            plgpu.barrier_wait(arrived["dk"])
            c_long = jnp.where(length > eps, c, 0.0)
            hit, before, away = jnp.zeros_like(c), [], jnp.where(largest <= SMALL, 0.0, 1.0)
            for j in halves:
                d, L = by_column(of_channel(d_s, j)) + eta * scales[j], by_column(of_channel(L_s, j)) + slopes[j]
                kj, dw = tiles.read(block(k_s, j)), tiles.read(block(dw_s, j))
                s = kj * kj
                hit = hit + jnp.sum(s * d, axis=1)
                ds = by_row(eta * z / norm) * (L - by_row(c_long)) - by_row(pull * c) * d
                dk_s[:, cols[j]] = (tiles.read(block(dk_s, j)) + d * dw + 2 * kj * ds).astype(dtype)
                before.append(of_channel(L_s, j) + jnp.sum(dw * kj - by_row(pull * c) * s, axis=0))
                end = of_channel(d_s, j) + jnp.sum(by_row(eta * z / norm) * s, axis=0)
                # the scale of the first token is what it is, also outside the bounds
                away = jnp.maximum(away, outside(jnp.where(first, lo, d), lo, hi))
                away = jnp.maximum(away, outside(end, lo, hi))
            sums_s[0] = eta * (1 - 2 * b * hit) * c
            sums_s[1] = z * c
            sums_s[2] = jnp.where(length > eps, 0.0, -eta * z * c / norm)
            free = away <= 0
            plgpu.commit_smem()  # all threads have read d, L, k and dw

            @pl.when(free)
            def _():
                for j in halves:
                    L_s[cols[j]] = before[j]
                plgpu.copy_smem_to_gmem(dk_s, out_g.at[bi, tokens, h])

            pl.when(jnp.logical_not(free))(lambda: one_by_one(place))
            plgpu.commit_smem()
            for i in range(3):
                plgpu.copy_smem_to_gmem(sums_s.at[i], sums_g.at[i, bi, h, tokens])
            pl.when(n + 1 < N)(lambda: fetch(n + 1))

        def one_by_one(place):
            tokens = jnp.minimum(T - place * SIDE, SIDE)

            def there(i, d):
                k = [row(k_g.at[bi, place * SIDE + i, h], c) for c in cols]
                for c, x in zip(cols, d, strict=True):
                    rows_g[bi, h, i, c] = x  # to be read again by the threads that write it
                return tuple(jnp.clip(x, lo, hi) for x in token(d, k, b_s[i], (eta, lo, hi, eps))[-1])

            def and_back(i, L):
                i = tokens - 1 - i
                t, b = place * SIDE + i, b_s[i]
                k, dk, dw = ([row(x_g.at[bi, t, h], c) for c in cols] for x_g in (k_g, dk_g, dw_g))
                d = [row(rows_g.at[bi, h, i], c) for c in cols]
                s, length, hit, z, after = token(d, k, b, (eta, lo, hi, eps))
                norm = jnp.maximum(length, eps)
                for j, c in enumerate(cols):
                    ends_s[0, c] = of_channel(ends_s.at[0], j) + jnp.where(after[j] < lo, L[j], 0.0)
                    ends_s[1, c] = of_channel(ends_s.at[1], j) + jnp.where(after[j] > hi, L[j], 0.0)
                L = [jnp.where((y < lo) | (y > hi), 0.0, x) for x, y in zip(L, after, strict=True)]
                c = sum(jnp.sum(x * y) for x, y in zip(L, s, strict=True)) / norm
                pull, push, c_long = eta * b * b * c, eta * z / norm, jnp.where(length > eps, c, 0.0)
                for j in halves:
                    ds = push * (L[j] - c_long) - pull * d[j]
                    out_g[bi, t, h, cols[j]] = (dk[j] + d[j] * dw[j] + 2 * k[j] * ds).astype(dtype)
                sums_s[0, i] = eta * (1 - 2 * b * hit) * c
                sums_s[1, i] = z * c
                sums_s[2, i] = jnp.where(length > eps, 0.0, -push * c)
                return tuple(L[j] - pull * s[j] + dw[j] * k[j] for j in halves)

            tiles.steps(tokens, there, tuple(of_channel(d_s, j) for j in halves))
            L = tiles.steps(tokens, and_back, tuple(of_channel(L_s, j) for j in halves))
            plgpu.commit_smem()
            for c, x in zip(cols, L, strict=True):
                L_s[c] = x

        for i in range(2):
            for c in cols:
                ends_s[i, c] = plgpu.layout_cast(jnp.zeros((SIDE,), jnp.float32), PER_COLUMN)
        here, there = tiles.places()
        above, below, first = there > here, here > there, here == 0
        later_s[...] = jnp.where(above, 1.0, 0.0).astype(dtype)
        fetch(jnp.zeros((), jnp.int32))
        plgpu.barrier_wait(arrived["once"])
        eta, lo, hi, eps = (numbers_s[i] for i in range(4))
        tiles.steps(N, chunk, None)
        plgpu.copy_smem_to_gmem(L_s, first_g.at[bi, h])
        for i in range(2):
            plgpu.copy_smem_to_gmem(ends_s.at[i], ends_g.at[i, bi, h])
        plgpu.wait_smem_to_gmem(0)

    def floats(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    wide, square = tiles.factor(SIDE, K, dtype=dtype), tiles.factor(SIDE, SIDE, dtype=dtype)
    out, first, sums, ends, _ = tiles.kernel(
        body,
        out_type=[
            jax.ShapeDtypeStruct(k.shape, dtype),
            floats(B, H, K),
            floats(3, B, H, N * SIDE),
            floats(2, B, H, K),
            floats(B, H, SIDE, K),  # d of the tokens of one chunk, where a head goes through it one by one
        ],
        grid=(H, B),
        grid_names=("h", "b"),
        scratch_types={n: wide for n in ("k_s", "dk_s", "dw_s", "p_s", "h_s")}
        | {n: square for n in ("later_s", "Z_s")}
        | {n: plgpu.SMEM((SIDE,), jnp.float32) for n in ("b_s", "z_s")}
        | {n: plgpu.SMEM((K,), jnp.float32) for n in ("d_s", "L_s")}
        | {
            "sums_s": plgpu.SMEM((3, SIDE), jnp.float32),
            "ends_s": plgpu.SMEM((2, K), jnp.float32),
            "numbers_s": plgpu.SMEM((4,), jnp.float32),
            "arrived": {
                "chunk": plgpu.Barrier(num_arrivals=5),
                "dk": plgpu.Barrier(),
                "once": plgpu.Barrier(num_arrivals=2),
            },
        },
    )(k, dk, dw, b, z, d, slope, numbers)
    (db, deta, deps), (dlo, dhi) = sums, ends
    return out, db, first, jnp.stack([deta.sum(), dlo.sum(), dhi.sum(), deps.sum()])
