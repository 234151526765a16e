"""OSDN with one decay per head and token on a Hopper GPU: the scales d in one walk, then the delta rule's kernels.

With s = k^2, n = max(|k|^2, eps) and p = s / n, as long as nothing clips (``sweep.py``),

    z_t = b_t x_t      x_t = 1 - b_t <d_t, s_t>      d_t = d + eta sum_{i < t} z_i p_i

**Forward.** Within a chunk all is linear in d: x solves (I + A) x = y, where y_t = 1 - b_t <d, s_t> with d before the
chunk, and d after it is d + eta sum_i z_i p_i. So ``walk`` goes through the chunks with nothing but d, one warpgroup a
head. All its products but s s' have a vector for a factor, which is written out 8 wide, and so the tensor core does
them too. A is small, as eta is: x <- y - A x from x = y converges like the powers of its largest row sum, in one or two
rounds as a rule. If that is above 1/2, or if some d may leave the bounds (the tokens with z > 0 alone would take it
above hi, or the others below lo), the chunk is done token by token, for this head alone. Then ``scaled`` makes w_t =
d_t k_t of all chunks at once.

Within the walks vectors come and go through shared memory. ``commit_smem`` is a fence of all memory too, but that is
hardly what they wait for: without the one in ``solve`` the forward walk took 74.5 us and not 76.1 (B 16, T 2048, H 12,
D 128, an H200).

**Backward.** L_t, the gradient of the scale after t, is such a walk from the end (``back``), with h = k dw:

    L_{t-1} = L_t - eta b_t^2 c_t s_t + h_t      c_t = <L_t, p_t>
    dk_t = d_t dw_t + 2 k_t (eta z_t (L_t - c_t) / n_t - eta b_t^2 c_t d_t)      without - c_t if |k_t|^2 < eps
    deta = sum_t z_t c_t      db_t = eta (2 x_t - 1) c_t

and c solves a system with A' for A. Then ``between`` makes dk of all chunks at once, added to the delta rule's. Where a
token clipped, L_t is 0 for the channels that did (and their L_t belongs to the bound).

**Precision.** d, L and every sum are float32; as factors d and L are a sum of two numbers of 16 bits. s, z p and h are
rounded to 16 bits: what comes of the former two is multiplied by eta before it meets d or dk (or by d - 1 before it
meets x, which is what is left of 1 where b = 1 and |k| = 1), and h is no coarser than dw is.
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
from ttt_teach.rules.tiles import PER_COLUMN, PER_ROW, SIDE, WGMMA, block, by_column, by_row, products, transposed

SMALL = 0.5  # a row sum of A up to which its system is solved by x <- y - A x
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
    d, *learned = walk(k, b, d, numbers)
    return *delta.heads(q, k, scaled(k, b, learned, numbers), v, beta, G, S, scale), d


def _forward(q, k, v, beta, b, G, S, d, numbers, scale):
    last, *learned = walk(k, b, d, numbers)
    (o, S), kept = delta.forward(q, k, scaled(k, b, learned, numbers), v, beta, G, S, scale)
    return (o, S, last), (kept, b, learned, numbers)


def _backward(scale, kept, slopes):
    kept, b, learned, numbers = kept
    *slopes, dlast = slopes
    dq, dk, dw, dv, dbeta, dG, dS = delta.backward(scale, kept, tuple(slopes))
    dk, db, dd, dnumbers = unlearn(kept[1], dk, dw, b, learned, dlast, numbers)
    return dq, dk, dv, dbeta, db, dG, dS, dd, dnumbers


_heads.defvjp(_forward, _backward)


def unlearn(k, dk, dw, b, learned, slope, numbers):
    """dk with what flows through the scales, db, the first d's slope and those of the numbers."""
    first, ends, *found = back(k, dw, b, learned, slope, numbers)
    dk = between(k, dk, dw, b, learned, found, numbers)
    (x, n, *_), (c, *_), (eta, _, _, eps) = learned, found, numbers
    there = jnp.arange(c.shape[-1]) < k.shape[1]  # behind the last token c may be anything
    zc = jnp.where(there, b * x * c, 0)
    dlo, dhi = ends.sum((1, 2, 3))
    deps = -eta * jnp.where(n > eps, 0, zc / n).sum()
    return dk, eta * (2 * x - 1) * c, first, jnp.stack([zc.sum(), dlo, dhi, deps])


# -- what the kernels share --------------------------------------------------------------------------------------------


def columns(K: int):
    """Of a tile K wide, 64 at a time."""
    return [pl.ds(j * SIDE, SIDE) for j in range(K // SIDE)]


def small_squares(k: Array, n: Array | None) -> Array:
    """s in the 16 bits of k: bfloat16 has the range of float32, in float16 it is p = s / n that fits."""
    if k.dtype == jnp.bfloat16:
        return k * k
    k = k.astype(jnp.float32)
    return (k * k * by_row(1 / n, k.shape[1])).astype(jnp.float16)


def missing(n: Array, dtype) -> tuple[Array, Array]:
    """What small_squares have to be multiplied by to be p, and to be s."""
    return (1 / n, jnp.ones_like(n)) if dtype == jnp.bfloat16 else (jnp.ones_like(n), n)


def store(x_s, x: Array, y: Array) -> None:
    """A vector x and another, y, as a factor of 8 rows, x as the sum of two numbers of 16 bits: as good as float32."""
    column = eight(len(x))
    high = x.astype(x_s.dtype).astype(jnp.float32)
    high, low, y = (lax.broadcast_in_dim(x, column.shape, (0,)) for x in (high, x - high, y))
    transposed(x_s)[...] = jnp.where(column < 2, high, jnp.where(column < 4, low, y)).astype(x_s.dtype)


def answers(product: Array) -> tuple[Array, Array]:
    """The product with x and that with y, where the factor was of ``store``."""
    column = eight(len(product))
    both = (jnp.sum(jnp.where(which, product, 0.0), axis=1) for which in (column < 4, column >= 4))
    return tuple(x * share for x, share in zip(both, (0.5, 0.25), strict=True))


def eight(rows: int) -> Array:
    """The column of each number of a tile of 8."""
    return plgpu.broadcasted_iota(jnp.int32, (rows, 8), 1, layout=WGMMA)


def solve(A: Array, y: Array, outer: Array, inner: Array, turn_s) -> tuple[Array, Array]:
    """x with x + outer A (inner x) = y for a strictly triangular A >= 0, and its largest row sum.

    If that is not SMALL, x is y. turn_s: two vectors in shared memory, in turn, as the last may still be read.
    """
    largest = jnp.max(jnp.abs(outer * inner) * jnp.sum(A, axis=1))

    def again(state):
        i, left, x = state
        turn_s[i & 1] = inner * x
        plgpu.commit_smem()
        turned = by_column(plgpu.load(turn_s.at[i & 1], layout=PER_COLUMN))
        return i + 1, left * largest, y - outer * jnp.sum(A * turned, axis=1)

    left = jnp.where(largest <= SMALL, largest, 0.0)
    _, _, x = lax.while_loop(lambda state: state[1] > CLOSE, again, (jnp.zeros((), jnp.int32), left, y))
    return x, largest


def token(d, k, b, numbers):
    """s, |k|^2, <d, s>, z and the next scale before the clip, for one token; k and d as one or two times 64 columns."""
    eta, _, _, eps = numbers
    s = [x * x for x in k]
    length, hit = sum(jnp.sum(x) for x in s), sum(jnp.sum(x * y) for x, y in zip(d, s, strict=True))
    z = b * (1 - b * hit)
    step = eta * z / jnp.maximum(length, eps)
    return s, length, hit, z, [x + step * y for x, y in zip(d, s, strict=True)]


def one_by_one(k_g, b_g, i, T, d, numbers_g):
    """d of the tokens of chunk i, one after the other, as tiles of 64 channels."""
    numbers, (here, _) = [numbers_g[i] for i in range(4)], tiles.places()

    def step(t, state):
        d, scales = state
        scales = tuple(jnp.where(here == t, by_column(x), tile) for x, tile in zip(d, scales, strict=True))
        t = i * SIDE + t
        after = token(d, rows(k_g.at[t], PER_COLUMN), b_g[t], numbers)[-1]
        return tuple(jnp.clip(x, numbers[1], numbers[2]) for x in after), scales

    nothing = tuple(jnp.zeros_like(by_column(x)) for x in d)
    return tiles.steps(jnp.minimum(T - i * SIDE, SIDE), step, (tuple(d), nothing))[1]


def rows(x_g, layout):
    """K numbers of global memory, 64 at a time."""
    return [tiles.vector(x_g.at[c], layout).astype(jnp.float32) for c in columns(x_g.shape[-1])]


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


# -- forward -----------------------------------------------------------------------------------------------------------


def walk(k, b, d, numbers):
    """The last d; x and n of each token; d before each chunk, and 1 for the chunks in which nothing clips.

    While the tensor core is busy with a chunk, the next one is made ready, and the one after that is fetched. In shared
    memory (K = 128): k (then s) 16 KB, three times, d and z 3 KB: 51 KB. d itself stays in registers.
    """
    (B, T, H, K), dtype = k.shape, k.dtype
    N = tiles.chunks(T)

    def body(*refs, k_s, b_s, d_s, z_s, turn_s, border_s, x_s, n_s, arrived):
        k_g, b_g, first_g, numbers_g, last_g, x_g, n_g, borders_g, free_g = refs
        bi, h = lax.axis_index("b"), lax.axis_index("h")

        def fetch(i):  # behind the last chunk the last once more: it is made ready, but not used
            there, slot = pl.ds(jnp.minimum(i, N - 1) * SIDE, SIDE), i % 3
            plgpu.copy_gmem_to_smem(k_g.at[bi, there, h], k_s.at[slot], arrived.at[slot])
            plgpu.copy_gmem_to_smem(b_g.at[bi, h, there], b_s.at[slot], arrived.at[slot])

        def ready(i):
            """|k|^2 of a chunk, and s in the place of k: each thread overwrites what it has read."""
            plgpu.barrier_wait(arrived.at[i % 3])
            k = plgpu.load(k_s.at[i % 3], layout=WGMMA)
            length = jnp.sum(jnp.square(k.astype(jnp.float32)), axis=1)
            k_s[i % 3] = small_squares(k, jnp.maximum(length, eps))
            return length

        def chunk(i, carry):
            d, length = carry
            s_s, n = k_s.at[i % 3], jnp.maximum(length, eps)
            store(d_s, d - 1, jnp.zeros_like(d))
            plgpu.commit_smem()
            pl.when(i + 1 < N)(lambda: fetch(i + 2))
            b = plgpu.load(b_s.at[i % 3], layout=PER_ROW)

            next_length, (hit, ss) = tiles.in_turn(
                ([], lambda: ready(i + 1)),
                ([[(s_s, transposed(d_s))], [(s_s, transposed(s_s))]], lambda *both: both),
            )
            to_p, to_s = missing(n, dtype)
            hit = length + to_s * answers(hit)[0]  # <1, s> + <d - 1, s>: where z cancels, it is in the former
            x, largest = solve(jnp.where(below, ss, 0.0), 1 - b * hit, eta * b * to_s, b * to_p, turn_s)
            zeta = b * to_p * x
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last chunk's numbers have left
            border_s[...], n_s[...], x_s[...] = d, n, x
            store(z_s, zeta, jnp.maximum(zeta, 0.0))
            plgpu.commit_smem()
            (grown,) = products([(transposed(s_s), transposed(z_s))])
            all_z, up = answers(grown)
            after = d + eta * all_z
            # as far up as the tokens with z > 0 take d without the others, and as far down
            far = jnp.maximum(d + eta * up - hi, lo - (d + eta * (all_z - up)))
            # one number of all threads: so none of them reads s any more, when the next chunk's is written
            free = (largest <= SMALL) & (jnp.max(far) <= 0)

            free_g[bi, h, i] = jnp.where(free, 1.0, 0.0)

            def step(t, d):
                t = i * SIDE + t
                k = tiles.vector(k_g.at[bi, t, h], PER_ROW).astype(jnp.float32)
                b = b_s[i % 3, t - i * SIDE]
                _, _, hit, _, (after,) = token([d], [k], b, (eta, lo, hi, eps))
                x_s[t - i * SIDE] = 1 - b * hit
                return jnp.clip(after, lo, hi)

            after = lax.cond(free, lambda: after, lambda: tiles.steps(jnp.minimum(T - i * SIDE, SIDE), step, d))
            plgpu.commit_smem()
            tokens = pl.ds(i * SIDE, SIDE)
            plgpu.copy_smem_to_gmem(border_s, borders_g.at[bi, h, i])
            for y_s, y_g in ((x_s, x_g), (n_s, n_g)):
                plgpu.copy_smem_to_gmem(y_s, y_g.at[bi, h, tokens])
            return after, next_length

        for i in range(2):
            fetch(jnp.int32(i))
        eta, lo, hi, eps = (numbers_g[i] for i in range(4))
        here, there = tiles.places()
        below = here > there
        first = tiles.vector(first_g.at[bi, h], PER_ROW)
        last_g[bi, h], _ = tiles.steps(N, chunk, (first, ready(jnp.int32(0))))
        plgpu.wait_smem_to_gmem(0)

    return tiles.kernel(
        body,
        out_type=[floats(B, H, K)] + [floats(B, H, N * SIDE)] * 2 + [floats(B, H, N, K), floats(B, H, N)],
        grid=(B, H),  # the last is the innermost: a token's heads lie side by side
        grid_names=("b", "h"),
        scratch_types={
            "k_s": tiles.factor(3, SIDE, K, dtype=dtype),
            "b_s": plgpu.SMEM((3, SIDE), jnp.float32),
            "d_s": tiles.factor(8, K, dtype=dtype),  # an overflow makes d NaN, and that is not free
            "z_s": tiles.factor(8, SIDE, dtype=dtype),
            "turn_s": plgpu.SMEM((2, SIDE), jnp.float32),
            "border_s": plgpu.SMEM((K,), jnp.float32),
            "x_s": plgpu.SMEM((SIDE,), jnp.float32),
            "n_s": plgpu.SMEM((SIDE,), jnp.float32),
            "arrived": plgpu.Barrier(num_arrivals=2, num_barriers=3),
        },
    )(k, b, d, numbers)


def scaled(k, b, learned, numbers):
    """w = d k, every chunk for itself.

    In shared memory (K = 128): k (then w) and s 16 KB each, z 8 KB: 40 KB.
    """
    (B, T, H, K), dtype = k.shape, k.dtype
    N, cols = tiles.chunks(T), columns(k.shape[-1])
    x, n, borders, free = learned

    def body(k_g, b_g, x_g, n_g, borders_g, free_g, numbers_g, w_g, *, k_s, s_s, z_s, arrived):
        i, h, bi = (lax.axis_index(name) for name in ("n", "h", "b"))
        i = N - 1 - i  # the walk has ended there, and left the last keys in the L2 cache
        tokens = pl.ds(i * SIDE, SIDE)
        plgpu.copy_gmem_to_smem(k_g.at[bi, tokens, h], k_s, arrived)
        zeta = tiles.vector(b_g.at[bi, h, tokens], PER_COLUMN) * tiles.vector(x_g.at[bi, h, tokens], PER_COLUMN)
        if dtype == jnp.bfloat16:  # as in small_squares: what is missing to p goes with z
            n, zeta = None, zeta / tiles.vector(n_g.at[bi, h, tokens], PER_COLUMN)
        else:
            n = tiles.vector(n_g.at[bi, h, tokens], PER_ROW)
        d = rows(borders_g.at[bi, h, i], PER_COLUMN)
        eta, free = numbers_g[0], free_g[bi, h, i] > 0
        here, there = tiles.places()
        z_s[...] = jnp.where(here > there, by_column(zeta), 0.0).astype(dtype)
        plgpu.barrier_wait(arrived)
        for j, c in enumerate(cols):
            s_s[:, c] = small_squares(plgpu.load(block(k_s, j), layout=WGMMA), n)
        plgpu.commit_smem()

        def at_once():
            grown = products(*([(z_s, block(s_s, j))] for j in range(len(cols))))
            return tuple(by_column(x) + eta * more for x, more in zip(d, grown, strict=True))

        scales = lax.cond(free, at_once, partial(one_by_one, k_g.at[bi, :, h], b_g.at[bi, h], i, T, d, numbers_g))
        for j, c in enumerate(cols):
            k_s[:, c] = (scales[j] * tiles.read(block(k_s, j))).astype(dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(k_s, w_g.at[bi, tokens, h])
        plgpu.wait_smem_to_gmem(0)

    return tiles.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(k.shape, dtype),
        grid=(N, B, H),
        grid_names=("n", "b", "h"),
        scratch_types={
            "k_s": tiles.factor(SIDE, K, dtype=dtype),
            "s_s": tiles.factor(SIDE, K, dtype=dtype),
            "z_s": tiles.factor(SIDE, SIDE, dtype=dtype),
            "arrived": plgpu.Barrier(),
        },
    )(k, b, x, n, borders, free, numbers)


# -- backward ----------------------------------------------------------------------------------------------------------


def back(k, dw, b, learned, slope, numbers):
    """The first d's slope and the terms of dlo and dhi; c of each token; L after each chunk, 1 for the chunks in which
    nothing clips, and what dk gets in the others.

    In shared memory (K = 128): k (then s) and dw (then h) 16 KB each, three times, L and two more factors 4 KB: 101 KB,
    two blocks an SM. L itself stays in registers.
    """
    (B, T, H, K), dtype = k.shape, k.dtype
    N = tiles.chunks(T)
    _, n, borders, free = learned

    def body(*refs, k_s, dw_s, b_s, n_s, L_s, q_s, ones_s, turn_s, border_s, c_s, arrived):
        k_g, dw_g, b_g, n_g, borders_g, free_g, last_g, numbers_g, *refs = refs
        first_g, bounds_g, c_g, ends_g, fine_g, more_g, rows_g = refs
        bi, h = lax.axis_index("b"), lax.axis_index("h")

        def fetch(i):  # as in walk
            tokens, slot = pl.ds(jnp.maximum(N - 1 - i, 0) * SIDE, SIDE), i % 3
            plgpu.copy_gmem_to_smem(k_g.at[bi, tokens, h], k_s.at[slot], arrived.at[slot])
            plgpu.copy_gmem_to_smem(dw_g.at[bi, tokens, h], dw_s.at[slot], arrived.at[slot])
            plgpu.copy_gmem_to_smem(b_g.at[bi, h, tokens], b_s.at[slot], arrived.at[slot])
            plgpu.copy_gmem_to_smem(n_g.at[bi, h, tokens], n_s.at[slot], arrived.at[slot])

        def ready(i):
            """s in the place of k, h in that of dw."""
            plgpu.barrier_wait(arrived.at[i % 3])
            k, dw = (plgpu.load(y_s.at[i % 3], layout=WGMMA) for y_s in (k_s, dw_s))
            k_s[i % 3] = small_squares(k, plgpu.load(n_s.at[i % 3], layout=PER_ROW))
            dw_s[i % 3] = k * dw

        def chunk(i, carry):
            L, ends = carry
            place = N - 1 - i
            s_s, h_s = k_s.at[i % 3], dw_s.at[i % 3]
            store(L_s, L, jnp.zeros_like(L))
            plgpu.commit_smem()
            pl.when(i + 1 < N)(lambda: fetch(i + 2))
            b, n = (plgpu.load(y_s.at[i % 3], layout=PER_ROW) for y_s in (b_s, n_s))

            _, (met, ss, sh) = tiles.in_turn(
                ([], lambda: ready(i + 1)),
                (
                    [[(s_s, transposed(L_s))], [(s_s, transposed(s_s))], [(s_s, transposed(h_s))]],
                    lambda *all_three: all_three,
                ),
            )
            met = answers(met)[0] + jnp.sum(jnp.where(above, sh, 0.0), axis=1)
            to_p, to_s = missing(n, dtype)
            pull = eta * b * b * to_s
            e, largest = solve(jnp.where(above, ss, 0.0), met, jnp.ones_like(met), pull * to_p, turn_s)
            c, q = to_p * e, pull * to_p * e
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last chunk's numbers have left
            border_s[...], c_s[...] = L, c
            store(q_s, -q, jnp.zeros_like(q))
            plgpu.commit_smem()
            (more,) = products([(transposed(s_s), transposed(q_s)), (transposed(h_s), transposed(ones_s))])
            plgpu.commit_smem()  # all threads are done with s and h
            before = L + answers(more)[0]
            free = (largest <= SMALL) & (free_g[bi, h, place] > 0)
            fine_g[bi, h, place] = jnp.where(free, 1.0, 0.0)
            count = jnp.minimum(T - place * SIDE, SIDE)

            def row(x_g):
                return tiles.vector(x_g, PER_ROW).astype(jnp.float32)

            def there(t, d):
                rows_g[bi, h, t] = d
                t = place * SIDE + t
                *_, (after,) = token([d], [row(k_g.at[bi, t, h])], b_g[bi, h, t], (eta, lo, hi, eps))
                return jnp.clip(after, lo, hi)

            def and_back(t, L_ends):
                L, (low, high) = L_ends
                t = count - 1 - t
                d = row(rows_g.at[bi, h, t])
                t = place * SIDE + t
                b, k, dw = b_g[bi, h, t], row(k_g.at[bi, t, h]), row(dw_g.at[bi, t, h])
                (s,), length, _, z, (after,) = token([d], [k], b, (eta, lo, hi, eps))
                n = jnp.maximum(length, eps)
                low, high = low + jnp.where(after < lo, L, 0.0), high + jnp.where(after > hi, L, 0.0)
                L = jnp.where((after < lo) | (after > hi), 0.0, L)
                c = jnp.sum(L * s) / n
                ds = eta * z / n * (L - jnp.where(length > eps, c, 0.0)) - eta * b * b * c * d
                more_g[bi, t, h] = (d * dw + 2 * k * ds).astype(dtype)
                c_s[t - place * SIDE] = c
                return L - eta * b * b * c * s + dw * k, (low, high)

            def one_by_one(L=L, ends=ends):
                tiles.steps(count, there, row(borders_g.at[bi, h, place]))
                plgpu.commit_smem()  # all threads have written d
                return tiles.steps(count, and_back, (L, ends))

            L, ends = lax.cond(free, lambda: (before, ends), one_by_one)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(border_s, ends_g.at[bi, h, place])
            plgpu.copy_smem_to_gmem(c_s, c_g.at[bi, h, pl.ds(place * SIDE, SIDE)])
            return L, ends

        for i in range(2):
            fetch(jnp.int32(i))
        eta, lo, hi, eps = (numbers_g[i] for i in range(4))
        here, there = tiles.places()
        above = there > here
        transposed(ones_s)[...] = jnp.where(eight(SIDE) < 2, 1.0, 0.0).astype(dtype)
        L = tiles.vector(last_g.at[bi, h], PER_ROW)
        ready(jnp.int32(0))
        first_g[bi, h], ends = tiles.steps(N, chunk, (L, (jnp.zeros_like(L), jnp.zeros_like(L))))
        for i, y in enumerate(ends):
            bounds_g[i, bi, h] = y
        plgpu.wait_smem_to_gmem(0)

    *results, _ = tiles.kernel(
        body,
        out_type=[
            floats(B, H, K),
            floats(2, B, H, K),
            floats(B, H, N * SIDE),
            floats(B, H, N, K),
            floats(B, H, N),
            jax.ShapeDtypeStruct(k.shape, dtype),
            floats(B, H, SIDE, K),  # d of the tokens of one chunk, where a head goes through it one by one
        ],
        grid=(B, H),  # the last is the innermost: a token's heads lie side by side
        grid_names=("b", "h"),
        scratch_types={name: tiles.factor(3, SIDE, K, dtype=dtype) for name in ("k_s", "dw_s")}
        | {"L_s": tiles.factor(8, K, dtype=dtype)}
        | {name: tiles.factor(8, SIDE, dtype=dtype) for name in ("q_s", "ones_s")}
        | {name: plgpu.SMEM((3, SIDE), jnp.float32) for name in ("b_s", "n_s")}
        | {"turn_s": plgpu.SMEM((2, SIDE), jnp.float32)}
        | {"border_s": plgpu.SMEM((K,), jnp.float32), "c_s": plgpu.SMEM((SIDE,), jnp.float32)}
        | {"arrived": plgpu.Barrier(num_arrivals=4, num_barriers=3)},
    )(k, dw, b, n, borders, free, slope, numbers)
    return results


def between(k, dk, dw, b, learned, found, numbers):
    """dk with what flows through the scales, every chunk for itself.

    In shared memory (K = 128): k (then z p), dw (then what is added to L) and dk 16 KB each, ones 8 KB: 57 KB. Two
    blocks have the registers of an SM.
    """
    (B, T, H, K), dtype = k.shape, k.dtype
    N, cols = tiles.chunks(T), columns(k.shape[-1])
    x, n, borders, _ = learned
    c, ends, fine, more = found

    def body(*refs, k_s, dk_s, dw_s, later_s, d_s, L_s, arrived):
        k_g, dk_g, dw_g, b_g, x_g, n_g, borders_g, c_g, ends_g, fine_g, more_g, numbers_g, out_g = refs
        i, h, bi = (lax.axis_index(name) for name in ("n", "h", "b"))
        tokens = pl.ds(i * SIDE, SIDE)
        fine = fine_g[bi, h, i] > 0
        pl.when(fine)(lambda: plgpu.copy_gmem_to_smem(k_g.at[bi, tokens, h], k_s, arrived))
        pl.when(jnp.logical_not(fine))(lambda: plgpu.copy_gmem_to_smem(more_g.at[bi, tokens, h], k_s, arrived))
        for y_g, y_s in ((dw_g, dw_s), (dk_g, dk_s)):
            plgpu.copy_gmem_to_smem(y_g.at[bi, tokens, h], y_s, arrived)
        for y_g, y_s in ((borders_g, d_s), (ends_g, L_s)):
            plgpu.copy_gmem_to_smem(y_g.at[bi, h, i], y_s, arrived)
        b, x, n, c = (tiles.vector(y_g.at[bi, h, tokens], PER_ROW) for y_g in (b_g, x_g, n_g, c_g))
        eta, eps = numbers_g[0], numbers_g[3]
        here, there = tiles.places()
        later_s[...] = jnp.where(there > here, 1.0, 0.0).astype(dtype)
        step, pull = by_row(b * x / n), by_row(eta * b * b * c)
        double_push, double_pull = by_row(2 * eta * b * x / n), by_row(2 * eta * b * b * c)
        c = by_row(jnp.where(n > eps, c, 0.0))
        plgpu.barrier_wait(arrived)

        @pl.when(fine)
        def _():
            for j, cs in enumerate(cols):  # one half after the other, for want of registers
                k, dw = (tiles.read(block(y_s, j)) for y_s in (k_s, dw_s))
                k_s[:, cs] = (k * k * step).astype(dtype)  # each thread overwrites what it has read
                dw_s[:, cs] = (k * (dw - pull * k)).astype(dtype)
                plgpu.commit_smem()
                d, L = products([(transposed(later_s), block(k_s, j))], [(later_s, block(dw_s, j))])
                first, last = (plgpu.load(y_s.at[cs], layout=PER_COLUMN) for y_s in (d_s, L_s))
                d, L = by_column(first) + eta * d, by_column(last) + L
                more = d * (dw - double_pull * k) + k * (double_push * (L - c))
                dk_s[:, cs] = (tiles.read(block(dk_s, j)) + more).astype(dtype)

        @pl.when(jnp.logical_not(fine))
        def _():
            for j, cs in enumerate(cols):
                dk_s[:, cs] = (tiles.read(block(dk_s, j)) + tiles.read(block(k_s, j))).astype(dtype)

        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(dk_s, out_g.at[bi, tokens, h])
        plgpu.wait_smem_to_gmem(0)

    return tiles.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(k.shape, dtype),
        grid=(N, B, H),  # the walk has ended at the first chunks, and left them in the L2 cache
        grid_names=("n", "b", "h"),
        scratch_types={name: tiles.factor(SIDE, K, dtype=dtype) for name in ("k_s", "dk_s", "dw_s")}
        | {"later_s": tiles.factor(SIDE, SIDE, dtype=dtype)}
        | {name: plgpu.SMEM((K,), jnp.float32) for name in ("d_s", "L_s")}
        | {"arrived": plgpu.Barrier(num_arrivals=5)},
    )(k, dk, dw, b, x, n, borders, c, ends, fine, more, numbers)
