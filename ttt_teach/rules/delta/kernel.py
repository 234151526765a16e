"""The delta rule with one decay per head and token on a Hopper GPU, forward and backward; OSDN's kernel is built on it.

**A chunk.** With G_t the sum of log gamma from the start of t's chunk up to t, and S the state before the chunk, the
errors u_t and the outputs are (``chunk.py``; OSDN Sec. 4.3)

    u = T x       x_t = v_t - exp(G_t) S' k_t       T = (I + A)^-1      A_ti = exp(G_t - G_i) beta_i (k_t . w_i), i < t
    o_t = exp(G_t) S' q_t + sum_{i <= t} P_ti u_i                       P_ti = exp(G_t - G_i) beta_i (q_t . w_i)
    S  <- exp(G_C) S + sum_i exp(G_C - G_i) beta_i w_i u_i'

``inverses`` makes T of all chunks at once. ``walk`` goes through the chunks, one block per head, in which a warpgroup
for each 64 value columns shares what the head reads: three products deep, as T x is not known before S, nor o and the
next S before u. P, which waits for nothing, they make in turn. T multiplies the error, not k and v: where the memory
already holds v, x is small and so is its rounding (W and U of the UT transform would be rounded first and then cancel).

**Backward.** ``back`` is the same walk from the end, with dS the gradient of the state after the chunk:

    du = P' do + exp(G_C - G_i) beta_i dS' w_i      dx = T' du = dv
    dS <- exp(G_C) dS + sum_t exp(G_t) (q_t do_t' - k_t dx_t')

Both walks leave the state at each chunk's border behind in 16 bits, after which all chunks are independent
(``between``): beside do, -dv is what flows into the reads of the memory, at k, so dk is made as dq is; and beta appears
only as beta_i w_i.

    dq_t =   exp(G_t) S do_t + sum_{i <= t} exp(G_t - G_i) (do_t . u_i) beta_i w_i
    dk_t = - exp(G_t) S dv_t - sum_{i <  t} exp(G_t - G_i) (dv_t . u_i) beta_i w_i
    dw_i = beta_i y_i, dbeta_i = w_i . y_i, where
    y_i  = exp(G_C - G_i) dS u_i + sum_{t >= i} exp(G_t - G_i) ((do_t . u_i) q_t - [t > i] (dv_t . u_i) k_t)

**The decay** (as in ``linear``). exp(G_t) multiplies what q_t and k_t read and exp(-G_i) what w_i writes, so
dG_t = q_t . dq_t + k_t . dk_t - w_t . dw_t, and G_C gets besides what the whole chunk hands on,

    <S_end, dS_end> = exp(G_C) <S, dS> + sum_i beta_i w_i . (exp(G_C - G_i) dS u_i)

**Kept for the backward pass**, in 16 bits beside the arguments: T, P, u and the borders, 128 + V + K V / 64 numbers for
each token and head, where q, k, w and v have 3 K + V.

**Measured** on an H200 (B 16, T 2048, H 12, D 128, bfloat16, no decay, w = k), in us: inverses 127, walk 209, or 272 if
it keeps these, back 213, between 275. Only between is bound by the bandwidth, the others by their chains of products
and barriers. To make P, x and the next S beside products of other things made the walk slower (226): registers.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float

from ttt_teach.rules import tiles
from ttt_teach.rules.tiles import SIDE, block, by_column, by_row, in_turn, products, transposed

TOGETHER = 3  # warpgroups in a block of ``inverses``
RUN = 8  # chunks that each goes through


def refusal(q: Array, k: Array, v: Array, w: Array, log_decay: Array | None, dtype, chunk: int) -> str | None:
    """Why the kernel does not do this call, or None if it does. dtype: what the other forms would compute in."""
    if chunk != SIDE:
        return f"takes chunk = {SIDE}, and chunk is {chunk}"
    if log_decay is not None and log_decay.ndim == 4:
        return "takes one decay per head, and log_decay has one per key channel"
    if dtype != jnp.float32:
        return "sums in float32, and an argument is float64"
    return tiles.refusal(q=q, k=k, v=v, write_key=w) or tiles.no_place(warpgroups=TOGETHER)


def kernel(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T H K"],
    v: Float[Array, "B T H V"],
    beta: Float[Array, "B T H"],
    w: Float[Array, "B T H K"],
    log_decay: Float[Array, "B T H"] | None = None,
    S: Float[Array, "B H K V"] | None = None,
    *,
    scale: float | Float[Array, ""] = 1.0,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H K V"]]:
    """o and the last S. q, k, v and w in 16 bits, K = V in {64, 128}; S, beta and log_decay in float32."""
    T, own = q.shape[1], w is not k
    if not isinstance(scale, float):  # it is compiled for a number: one known only later is rounded with q
        q, scale = (q.astype(scale.dtype) * scale).astype(q.dtype), 1.0
    q, k, v = (tiles.whole_rows(x) for x in (q, k, v))
    w = tiles.whole_rows(w) if own else None
    sums = None if log_decay is None else tiles.sums(log_decay)
    o, S = heads(q, k, w, v, tiles.vectors(beta), sums, S, scale)
    return o[:, :T], S


@partial(jax.custom_vjp, nondiff_argnums=(7,))
def heads(q, k, w, v, beta, G, S, scale):
    """o and the last S. Without w what is read is also where it is written, and dk is the gradient of both."""
    write = k if w is None else w
    o, S = walk(q, k, write, v, inverses(k, write, beta, G), beta, G, S, scale=scale)
    return o, S


def forward(q, k, w, v, beta, G, S, scale):
    write = k if w is None else w
    T = inverses(k, write, beta, G)
    o, last, P, u, borders = walk(q, k, write, v, T, beta, G, S, scale=scale, keep=True)
    return (o, last), (q, k, w, beta, G, S, T, P, u, borders)


def backward(scale, kept, slopes):
    q, k, w, beta, G, S, T, P, u, borders = kept
    do, dlast = slopes
    dv, dfirst, dborders = back(q, k, k if w is None else w, do, T, P, beta, G, dlast, scale=scale)
    dq, dk, dw, dbeta, dG = between(q, k, w, u, do, dv, borders, dborders, beta, G, scale=scale)
    return dq, dk, dw, dv, dbeta, dG, None if S is None else dfirst


heads.defvjp(forward, backward)


def inverses(k, w, beta, G):
    """T of each chunk, ``[B, H, N, 64, 64]``: a warpgroup goes through eight chunks of a head, one by one.

    There are three to a block, which hide each other's chain of products; none gets more than 168 registers a thread.
    In shared memory (K = 128), for each: k and w of two chunks, 64 KB, so that the next are on their way (when k and w
    are used up, A in two parts and two T take their places); 8 KB for T to leave from; beta and G: 219 KB in all.
    """
    (B, T, H, K), dtype = k.shape, k.dtype
    N, decays, spare = tiles.chunks(T), G is not None, 5 - 2 * K // SIDE
    runs = pl.cdiv(N, RUN)

    def body(*refs, k_s, w_s, spare_s, beta_s, row_s, column_s, arrived):
        refs = iter(refs)
        k_g, w_g, beta_g = (next(refs) for _ in range(3))
        G_g = next(refs) if decays else None
        (T_g,) = refs
        mine = lax.axis_index("mine")
        job = lax.axis_index("three") * TOGETHER + mine
        k_s, w_s, spare_s, beta_s, row_s, column_s = (x.at[mine] for x in (k_s, w_s, spare_s, beta_s, row_s, column_s))

        @pl.when(job < B * runs * H)
        def _():
            rest, h = job // H, job % H  # heads whose tokens lie side by side are innermost
            bi, first = rest // runs, rest % runs * RUN

            def fetch(i):
                slot, tokens = i & 1, pl.ds((first + i) * SIDE, SIDE)
                there = arrived.at[2 * mine + slot]
                for x_g, x_s in ((k_g, k_s), (w_g, w_s)):
                    plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h], x_s.at[slot], there)
                plgpu.copy_gmem_to_smem(beta_g.at[bi, h, tokens], beta_s.at[slot], there)
                if decays:  # two layouts want two places
                    for x_s in (row_s, column_s):
                        plgpu.copy_gmem_to_smem(G_g.at[bi, h, tokens], x_s.at[slot], there)

            def chunk(i, nothing):
                slot = i & 1
                plgpu.barrier_wait(arrived.at[2 * mine + slot])
                (A,) = products([(k_s.at[slot], transposed(w_s.at[slot]))])
                G = [plgpu.load(row_s.at[slot], layout=tiles.PER_ROW)] if decays else []
                G += [plgpu.load(column_s.at[slot], layout=tiles.PER_COLUMN)] if decays else []
                weight = weights(plgpu.load(beta_s.at[slot], layout=tiles.PER_COLUMN), *G)
                here, there = tiles.places()
                A = jnp.where(here > there, weighted(A, weight), 0.0)
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last T has left
                plgpu.commit_smem()  # all 128 threads are done with k and w
                free = [block(x_s.at[slot], j) for x_s in (k_s, w_s) for j in range(K // SIDE)]
                *others, T_s = free + [spare_s.at[j] for j in range(spare)]
                inverse(A, others[:2], others[2:4], T_s)
                plgpu.copy_smem_to_gmem(T_s, T_g.at[bi, h, first + i])
                pl.when(i + 2 < count)(lambda: fetch(i + 2))

            count = jnp.minimum(N - first, RUN)
            fetch(jnp.zeros((), jnp.int32))
            pl.when(count > 1)(lambda: fetch(jnp.ones((), jnp.int32)))
            tiles.steps(count, chunk, None)
            plgpu.wait_smem_to_gmem(0)

    return tiles.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((B, H, N, SIDE, SIDE), dtype),
        grid=(pl.cdiv(B * runs * H, TOGETHER),),
        grid_names=("three",),
        num_threads=TOGETHER,
        thread_name="mine",
        scratch_types={n: tiles.factor(TOGETHER, 2, SIDE, K, dtype=dtype) for n in ("k_s", "w_s")}
        | {"spare_s": tiles.factor(TOGETHER, spare, SIDE, SIDE, dtype=dtype)}
        | {n: plgpu.SMEM((TOGETHER, 2, SIDE), jnp.float32) for n in ("beta_s", "row_s", "column_s")}
        | {"arrived": plgpu.Barrier(num_arrivals=5 if decays else 3, num_barriers=2 * TOGETHER)},
    )(*(x for x in (k, w, beta, G) if x is not None))


def weights(beta, row=None, column=None):
    """exp(G_t - G_i) beta_i where token i (the column) is not after token t, else 0; G by row and by column."""
    here, there = tiles.places()
    before = here >= there
    if row is None:
        return jnp.where(before, by_column(beta), 0.0)
    return by_column(beta) * jnp.exp(jnp.where(before, by_row(row) - by_column(column), -jnp.inf))


def weighted(x, weight):
    return jnp.where(weight != 0, x * weight, 0.0)  # an overflow must not meet a zero


def inverse(A, A_s, T_s, Y_s):
    """(I + A)^-1 into Y_s, for a strictly lower triangular A in registers; two A_s, two T_s and Y_s are shared memory.

    From the inverse T of the blocks of s on the diagonal that of blocks twice as large, for s = 1, 2, ..., 32: what
    is missing in them is -T_2 A_21 T_1, so T <- T - T ((A T) on those places). The factors are rounded to 16 bits, and
    for keys that are alike the products cancel; a last step of Newton's, T <- T + T (I - T - A T) with A in two parts
    of 16 bits, takes the error (up to 9e-2 of T x then) back under that of T in 16 bits. All terms stay as small as T,
    where a series of powers of A, for like keys, grows to 1e6 before it cancels.
    """
    high, low = A_s
    dtype = high.dtype
    row, column = tiles.places()
    one = jnp.where(row == column, 1.0, 0.0)

    def doubles(s, x):
        """The places below the diagonal that are in one block of 2 s and not in one of s. -s: all bits from s on."""
        return jnp.where((row & -s) == ((column & -s) ^ s), x, 0.0)

    high[...] = A.astype(dtype)
    low[...] = (A - A.astype(dtype).astype(jnp.float32)).astype(dtype)
    T = one - doubles(1, A)
    for s in (2, 4, 8, 16, 32):
        now, T_s = T_s[0], T_s[::-1]  # in turn: another warp's products may still read the last one
        now[...] = T.astype(dtype)
        plgpu.commit_smem()
        (Y,) = products([(high, now)])
        Y_s[...] = doubles(s, Y).astype(dtype)
        plgpu.commit_smem()
        (more,) = products([(now, Y_s)])
        T = T - more
    now, other = T_s
    now[...] = T.astype(dtype)
    plgpu.commit_smem()
    (AT,) = products([(high, now), (low, now)])
    T = T.astype(dtype).astype(jnp.float32)
    other[...] = (one - T - AT).astype(dtype)
    plgpu.commit_smem()
    (more,) = products([(now, other)])
    Y_s[...] = (T + more).astype(dtype)
    plgpu.commit_smem()


def walk(q, k, w, v, T, beta, G, S, *, scale, keep=False):
    """o, the last state and, if ``keep``, P, the errors u and the state before each chunk: one block per head.

    It has a warpgroup for each 64 value columns, and they share what is read: one block an SM, and the copies do not
    rest as long as heads are left. P they make in turn, a chunk each. Each argument has two slots. The first warpgroup
    fetches anew what all have said that they are done with (``free``). In shared memory (K = V = 128): q, k, w and v
    (then x, then o) 32 KB each, T and P 16 KB each, the 16-bit copy of S 32 KB, u and u as it is written 16 KB each,
    beta and G: 226 KB. S itself, K x 64 float32 for each warpgroup, stays in registers all the time.
    """
    (B, tokens_in_all, H, K), V, dtype = q.shape, v.shape[-1], v.dtype
    N, halves, decays, starts = tiles.chunks(tokens_in_all), V // SIDE, G is not None, S is not None

    def body(*refs, q_s, k_s, w_s, v_s, T_s, P_s, u_s, written_s, S_s, beta_s, g_s, arrived, free, made):
        refs = iter(refs)
        q_g, k_g, w_g, v_g, T_g, beta_g = (next(refs) for _ in range(6))
        G_g, first_g = next(refs) if decays else None, next(refs) if starts else None
        o_g, last_g = next(refs), next(refs)
        P_g, u_g, borders_g = refs if keep else (None, None, None)
        bi, h, half = (lax.axis_index(name) for name in ("b", "h", "half"))
        mine = pl.ds(half * SIDE, SIDE)  # this warpgroup's columns of v, u, o and S
        u_s, written_s, S_s = (x_s.at[half] for x_s in (u_s, written_s, S_s))
        vectors = [(beta_g, beta_s), (G_g, g_s)] if decays else [(beta_g, beta_s)]

        def fetch(which, n):
            slot, tokens = n & 1, pl.ds(n * SIDE, SIDE)
            there = arrived[which].at[slot]
            if which == "reads":
                for x_g, x_s in ((q_g, q_s), (k_g, k_s)):
                    plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h], x_s.at[slot], there)
            elif which == "writes":
                plgpu.copy_gmem_to_smem(w_g.at[bi, tokens, h], w_s.at[slot], there)
                for x_g, x_s in vectors:
                    plgpu.copy_gmem_to_smem(x_g.at[bi, h, tokens], x_s.at[slot], there)
            else:
                for j in range(halves):
                    box = v_g.at[bi, tokens, h, pl.ds(j * SIDE, SIDE)]
                    plgpu.copy_gmem_to_smem(box, v_s.at[slot, j], there)
                plgpu.copy_gmem_to_smem(T_g.at[bi, h, n], T_s.at[slot], there)

        def renew(which, n):
            plgpu.barrier_wait(free[which].at[n & 1])
            fetch(which, n)

        def make(slot, G):
            """P of a chunk, which the others wait for just before they need it."""
            (P,) = products([(q_s.at[slot], transposed(w_s.at[slot]))])
            beta, *column = (plgpu.load(x_s.at[slot], layout=tiles.PER_COLUMN) for _, x_s in vectors)
            P_s[slot] = (scale * weighted(P, weights(beta, *G, *column))).astype(dtype)
            plgpu.commit_smem()
            plgpu.barrier_arrive(made.at[slot])

        def chunk(n, carry):
            S, (beta, *G) = carry
            slot, tokens, turn = n & 1, pl.ds(n * SIDE, SIDE), (n & (halves - 1)) == half
            coming = numbers(beta_g, G_g, bi, h, jnp.minimum(n + 1, N - 1))
            reads_again, again = n + 2 < N, (n > 0) & (n + 1 < N)
            if keep:  # the state before this chunk; the engine reads it while we compute
                plgpu.copy_smem_to_gmem(S_s, borders_g.at[bi, h, n, :, mine])
            pl.when(again & (half == 0))(lambda: renew("writes", n + 1))
            plgpu.barrier_wait(arrived["reads"].at[slot])
            plgpu.barrier_wait(arrived["writes"].at[slot])
            pl.when(turn)(lambda: make(slot, G[:1]))
            found, o = products([(k_s.at[slot], S_s)], [(q_s.at[slot], S_s)])
            pl.when(reads_again)(lambda: plgpu.barrier_arrive(free["reads"].at[slot]))
            read, write, fade = strengths(beta, *G)
            found, o = found * read, o * read
            plgpu.barrier_wait(arrived["errors"].at[slot])
            x_s = v_s.at[slot, half]  # x takes the place of v
            x_s[...] = (tiles.read(x_s) - found).astype(dtype)
            plgpu.wait_smem_to_gmem(1 if keep else 0, wait_read_only=True)  # the last P, u and o have left, not S yet
            plgpu.commit_smem()
            pl.when(again)(lambda: plgpu.barrier_arrive(free["errors"].at[1 - slot]))
            pl.when(again & (half == 0))(lambda: renew("errors", n + 1))

            (u,) = products([(T_s.at[slot], x_s)])
            u_s[...] = u.astype(dtype)
            written_s[...] = (u * write).astype(dtype)
            plgpu.commit_smem()
            pl.when(reads_again & (half == 0))(lambda: renew("reads", n + 2))
            if keep:
                plgpu.copy_smem_to_gmem(u_s, u_g.at[bi, tokens, h, mine])
                pl.when(turn)(lambda: plgpu.copy_smem_to_gmem(P_s.at[slot], P_g.at[bi, h, n]))

            plgpu.barrier_wait(made.at[slot])
            rows = [(transposed(block(w_s.at[slot], j)), written_s) for j in range(K // SIDE)]
            inside, *written = products([(P_s.at[slot], u_s)], *([pair] for pair in rows))
            pl.when(reads_again)(lambda: plgpu.barrier_arrive(free["writes"].at[slot]))
            x_s[...] = (inside + scale * o).astype(dtype)  # and o that of x
            S = tuple(fade * S_j + more for S_j, more in zip(S, written, strict=True))
            if keep:
                plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # the border has left S_s
            store(S, S_s)
            plgpu.copy_smem_to_gmem(x_s, o_g.at[bi, tokens, h, mine])
            return S, coming

        @pl.when(half == 0)
        def _():
            zero = jnp.zeros((), jnp.int32)  # traced: a known start is refused where a box reaches over the end
            for n in range(min(N, 2)):
                for which in arrived:
                    fetch(which, zero + n)

        S = start(first_g.at[bi, h, :, mine] if starts else None, K)
        store(S, S_s)
        S, _ = tiles.steps(N, chunk, (S, numbers(beta_g, G_g, bi, h, 0)))
        for j, S_j in enumerate(S):
            last_g[bi, h, pl.ds(j * SIDE, SIDE), mine] = S_j
        plgpu.wait_smem_to_gmem(0)

    outputs = [jax.ShapeDtypeStruct(v.shape, dtype), jax.ShapeDtypeStruct((B, H, K, V), jnp.float32)]
    if keep:
        squares = jax.ShapeDtypeStruct((B, H, N, SIDE, SIDE), dtype)
        outputs += [squares, jax.ShapeDtypeStruct(v.shape, dtype), jax.ShapeDtypeStruct((B, H, N, K, V), dtype)]
    return tiles.kernel(
        body,
        out_type=outputs,
        grid=(B, H),  # the last is the innermost: heads whose tokens lie side by side
        grid_names=("b", "h"),
        num_threads=halves,
        thread_name="half",
        scratch_types={n: tiles.factor(2, SIDE, K, dtype=dtype) for n in ("q_s", "k_s", "w_s")}
        | {"v_s": tiles.factor(2, halves, SIDE, SIDE, dtype=dtype)}
        | {n: tiles.factor(2, SIDE, SIDE, dtype=dtype) for n in ("T_s", "P_s")}
        | {n: tiles.factor(halves, SIDE, SIDE, dtype=dtype) for n in ("u_s", "written_s")}
        | {"S_s": tiles.factor(halves, K, SIDE, dtype=dtype)}
        | {n: plgpu.SMEM((2, SIDE), jnp.float32) for n in ("beta_s", "g_s")}
        | {
            "arrived": {
                "reads": plgpu.Barrier(num_arrivals=2, num_barriers=2),
                "writes": plgpu.Barrier(num_arrivals=2 + decays, num_barriers=2),
                "errors": plgpu.Barrier(num_arrivals=1 + halves, num_barriers=2),
            },
            "free": {n: plgpu.Barrier(num_arrivals=halves, num_barriers=2) for n in ("reads", "writes", "errors")},
            "made": plgpu.Barrier(num_barriers=2),
        },
    )(*(x for x in (q, k, w, v, T, beta, G, S) if x is not None))


def numbers(beta_g, G_g, bi, h, n):
    """beta of chunk n and, if it decays, its G and the last of them: asked for a chunk ahead, global to registers."""
    tokens = pl.ds(n * SIDE, SIDE)
    beta = tiles.vector(beta_g.at[bi, h, tokens], tiles.PER_ROW)
    if G_g is None:
        return (beta,)
    return beta, tiles.vector(G_g.at[bi, h, tokens], tiles.PER_ROW), G_g[bi, h, n * SIDE + SIDE - 1]


def strengths(beta, G=None, end=None):
    """What a read finds of the state before the chunk and what is left of a write at its end, by row; its fading."""
    if G is None:
        return 1.0, by_row(beta), 1.0
    return by_row(jnp.exp(G)), by_row(beta * jnp.exp(end - G)), jnp.exp(end)


def start(first, K):
    """The columns of a state, as tiles of 64 rows in registers: those in global memory, or zeros."""
    if first is None:
        zeros = jnp.zeros((SIDE, SIDE), jnp.float32)
        return tuple(plgpu.layout_cast(zeros, tiles.WGMMA) for _ in range(K // SIDE))
    return tuple(plgpu.load(block(first, j, 0), layout=tiles.WGMMA, optimized=False) for j in range(K // SIDE))


def store(S, S_s):
    """The 16-bit copy that the next chunk's products read; all threads are done with what lay there."""
    for j, S_j in enumerate(S):
        S_s[pl.ds(j * SIDE, SIDE)] = S_j.astype(S_s.dtype)
    plgpu.commit_smem()


def back(q, k, w, do, T, P, beta, G, dS, *, scale):
    """dv, dS before the first token, and dS after each chunk: the walk from the last chunk to the first.

    One block per head as in ``walk``. Shared memory: two slots for the arguments (do, then do as it is written), du
    (then dx) and dx as it is written, and the 16-bit copy of dS: 224 KB.
    """
    (B, tokens_in_all, H, K), V, dtype = q.shape, do.shape[-1], do.dtype
    N, halves, decays = tiles.chunks(tokens_in_all), V // SIDE, G is not None

    def body(*refs, q_s, k_s, w_s, do_s, T_s, P_s, du_s, writes_s, S_s, arrived, free):
        refs = iter(refs)
        q_g, k_g, w_g, do_g, T_g, P_g, beta_g = (next(refs) for _ in range(7))
        G_g = next(refs) if decays else None
        last_g, dv_g, first_g, borders_g = refs
        bi, h, half = (lax.axis_index(name) for name in ("b", "h", "half"))
        mine = pl.ds(half * SIDE, SIDE)  # this warpgroup's columns of do, dv and dS
        du_s, writes_s, S_s = (x_s.at[half] for x_s in (du_s, writes_s, S_s))

        def fetch(which, n):
            slot, place = n & 1, N - 1 - n
            tokens, there = pl.ds(place * SIDE, SIDE), arrived[which].at[slot]
            if which == "first":
                plgpu.copy_gmem_to_smem(w_g.at[bi, tokens, h], w_s.at[slot], there)
                plgpu.copy_gmem_to_smem(P_g.at[bi, h, place], P_s.at[slot], there)
            else:
                for j in range(halves):
                    box = do_g.at[bi, tokens, h, pl.ds(j * SIDE, SIDE)]
                    plgpu.copy_gmem_to_smem(box, do_s.at[slot, j], there)
                plgpu.copy_gmem_to_smem(T_g.at[bi, h, place], T_s.at[slot], there)
                for x_g, x_s in ((q_g, q_s), (k_g, k_s)):
                    plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h], x_s.at[slot], there)

        def renew(which, n):
            plgpu.barrier_wait(free[which].at[n & 1])
            fetch(which, n)

        def step(slot, j, S_j, fade, reads_s):
            """64 rows of dS and of their copy, for :func:`tiles.in_turn`."""

            def renewed(more):
                after = fade * S_j + more
                S_s[pl.ds(j * SIDE, SIDE)] = after.astype(dtype)
                return after

            q, k = (transposed(block(x_s.at[slot], j)) for x_s in (q_s, k_s))
            return [[(q, reads_s), (k, writes_s)]], renewed

        def chunk(n, carry):
            S, now = carry
            slot, place, again = n & 1, N - 1 - n, n + 2 < N
            coming = numbers(beta_g, G_g, bi, h, jnp.maximum(place - 1, 0))
            plgpu.copy_smem_to_gmem(S_s, borders_g.at[bi, h, place, :, mine])
            for which in arrived:
                plgpu.barrier_wait(arrived[which].at[slot])
            reads_s = do_s.at[slot, half]
            later, du = products([(w_s.at[slot], S_s)], [(transposed(P_s.at[slot]), reads_s)])
            pl.when(again)(lambda: plgpu.barrier_arrive(free["first"].at[slot]))
            read, write, fade = strengths(*now)
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # the last dv has left du_s
            du_s[...] = (du + write * later).astype(dtype)
            plgpu.commit_smem()  # all threads are done with do too, whose place what it writes takes

            def strengthen():
                reads_s[...] = (scale * tiles.read(reads_s) * read).astype(dtype)

            _, dx = in_turn(([], strengthen), ([[(transposed(T_s.at[slot]), du_s)]], lambda dx: dx))
            plgpu.commit_smem()  # all threads are done with du, whose place dx takes
            du_s[...] = dx.astype(dtype)
            writes_s[...] = (-dx * read).astype(dtype)
            plgpu.commit_smem()
            pl.when(again & (half == 0))(lambda: renew("first", n + 2))
            plgpu.copy_smem_to_gmem(du_s, dv_g.at[bi, pl.ds(place * SIDE, SIDE), h, mine])

            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # the border has left S_s
            S = in_turn(*(step(slot, j, S_j, fade, reads_s) for j, S_j in enumerate(S)))
            pl.when(again)(lambda: plgpu.barrier_arrive(free["then"].at[slot]))
            plgpu.commit_smem()
            pl.when(again & (half == 0))(lambda: renew("then", n + 2))
            return S, coming

        @pl.when(half == 0)
        def _():
            zero = jnp.zeros((), jnp.int32)
            for n in range(min(N, 2)):
                for which in arrived:
                    fetch(which, zero + n)

        S = start(last_g.at[bi, h, :, mine], K)
        store(S, S_s)
        S, _ = tiles.steps(N, chunk, (S, numbers(beta_g, G_g, bi, h, N - 1)))
        for j, S_j in enumerate(S):
            first_g[bi, h, pl.ds(j * SIDE, SIDE), mine] = S_j
        plgpu.wait_smem_to_gmem(0)

    return tiles.kernel(
        body,
        out_type=[
            jax.ShapeDtypeStruct(do.shape, dtype),
            jax.ShapeDtypeStruct((B, H, K, V), jnp.float32),
            jax.ShapeDtypeStruct((B, H, N, K, V), dtype),
        ],
        grid=(B, H),  # the last is the innermost: heads whose tokens lie side by side
        grid_names=("b", "h"),
        num_threads=halves,
        thread_name="half",
        scratch_types={n: tiles.factor(2, SIDE, K, dtype=dtype) for n in ("q_s", "k_s", "w_s")}
        | {"do_s": tiles.factor(2, halves, SIDE, SIDE, dtype=dtype)}
        | {n: tiles.factor(2, SIDE, SIDE, dtype=dtype) for n in ("T_s", "P_s")}
        | {n: tiles.factor(halves, SIDE, SIDE, dtype=dtype) for n in ("du_s", "writes_s")}
        | {"S_s": tiles.factor(halves, K, SIDE, dtype=dtype)}
        | {
            "arrived": {
                "first": plgpu.Barrier(num_arrivals=2, num_barriers=2),
                "then": plgpu.Barrier(num_arrivals=3 + halves, num_barriers=2),
            },
            "free": {n: plgpu.Barrier(num_arrivals=halves, num_barriers=2) for n in ("first", "then")},
        },
    )(*(x for x in (q, k, w, do, T, P, beta, G, dS) if x is not None))


def between(q, k, w, u, do, dv, S, dS, beta, G, *, scale):
    """dq, dk, dw, dbeta and dG, every chunk for itself: one block per head, chunk and 64 key columns.

    Without w, which then is k, dk has both gradients in it and dw is None. In shared memory (V = 128): q, k and w 8 KB
    each, u, do, dv, S and dS 16 KB each: 104 KB, two blocks an SM.
    """
    (B, tokens_in_all, H, K), V, dtype = q.shape, u.shape[-1], q.dtype
    N, decays, own = tiles.chunks(tokens_in_all), G is not None, w is not None
    keys = ("q_s", "k_s", "w_s") if own else ("q_s", "k_s")

    def body(*refs, q_s, k_s, u_s, do_s, dv_s, S_s, dS_s, g_s, dbeta_s, dots_s, whole_s, arrived, w_s=None):
        refs = iter(refs)
        q_g, k_g = next(refs), next(refs)
        w_g = next(refs) if own else None
        u_g, do_g, dv_g, S_g, dS_g, beta_g = (next(refs) for _ in range(6))
        G_g = next(refs) if decays else None
        dq_g, dk_g = next(refs), next(refs)
        dw_g, dbeta_g = next(refs) if own else None, next(refs)
        dots_g, whole_g = refs if decays else (None, None)
        half, n, h, bi = (lax.axis_index(name) for name in ("half", "n", "h", "b"))
        tokens, mine = pl.ds(n * SIDE, SIDE), pl.ds(half * SIDE, SIDE)
        for x_g, x_s in ((do_g, do_s), (u_g, u_s), (dv_g, dv_s)):
            plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h], x_s, arrived)
        for x_g, x_s in ((S_g, S_s), (dS_g, dS_s)):
            plgpu.copy_gmem_to_smem(x_g.at[bi, h, n, mine], x_s, arrived)
        for x_g, x_s in ((q_g, q_s), (k_g, k_s), (w_g, w_s)):
            if x_g is not None:
                plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h, mine], x_s, arrived)
        w_s = w_s if own else k_s
        beta = tiles.vector(beta_g.at[bi, h, tokens], tiles.PER_ROW)
        if decays:
            row = tiles.vector(G_g.at[bi, h, tokens], tiles.PER_ROW)
            plgpu.copy_gmem_to_smem(G_g.at[bi, h, tokens], g_s, arrived)  # by column: two layouts want two places
            end = G_g[bi, h, n * SIDE + SIDE - 1]
        plgpu.barrier_wait(arrived)

        # S do_t, S dv_t and dS u_i, which cross the chunk's borders; do_t . u_i and dv_t . u_i
        dq, dk, y, from_o, from_v = products(
            [(do_s, transposed(S_s))],
            [(dv_s, transposed(S_s))],
            [(u_s, transposed(dS_s))],
            [(do_s, transposed(u_s))],
            [(dv_s, transposed(u_s))],
        )
        here, there = tiles.places()
        mask = here >= there
        if decays:
            column = plgpu.load(g_s, layout=tiles.PER_COLUMN)
            zeta = jnp.exp(jnp.where(mask, by_row(row) - by_column(column), -jnp.inf))
            mask, from_o, from_v = zeta != 0, from_o * zeta, from_v * zeta
            read = by_row(jnp.exp(row))
            dq, dk, y = dq * read, dk * read, y * by_row(jnp.exp(end - row))
            handed_on = beta * jnp.sum(tiles.read(w_s) * y, axis=1)
            for j in range(V // SIDE):
                both = tiles.read(block(S_s, j)) * tiles.read(block(dS_s, j))
                handed_on = handed_on + jnp.exp(end) * jnp.sum(both, axis=1)
            whole_s[...] = handed_on  # by token and by key channel, one on top of the other: only the sum is wanted
        plgpu.commit_smem()  # all threads are done with do, dv and u
        from_o_s, from_v_s, written_s = (block(x_s, 0) for x_s in (do_s, dv_s, u_s))
        from_o_s[...] = (scale * jnp.where(mask, from_o, 0.0)).astype(dtype)
        from_v_s[...] = (-jnp.where(mask & (here > there), from_v, 0.0)).astype(dtype)
        written_s[...] = (tiles.read(w_s) * by_row(beta)).astype(dtype)
        plgpu.commit_smem()
        inside_q, inside_k, inside_y = products(
            [(from_o_s, written_s)],
            [(from_v_s, written_s)],
            [(transposed(from_o_s), q_s), (transposed(from_v_s), k_s)],
        )
        dq, dk, y = inside_q + scale * dq, inside_k - dk, inside_y + y
        dbeta = jnp.sum(tiles.read(w_s) * y, axis=1)
        dbeta_s[...] = dbeta
        if decays:
            dots_s[...] = jnp.sum(tiles.read(q_s) * dq + tiles.read(k_s) * dk, axis=1) - beta * dbeta
        plgpu.commit_smem()  # all threads are done with q, k and w, whose places their gradients take
        dw = y * by_row(beta)
        slopes = [(q_s, dq, dq_g), (k_s, dk, dk_g), (w_s, dw, dw_g)] if own else [(q_s, dq, dq_g), (k_s, dk + dw, dk_g)]
        for x_s, slope, _ in slopes:
            x_s[...] = slope.astype(dtype)
        plgpu.commit_smem()
        for x_s, _, x_g in slopes:
            plgpu.copy_smem_to_gmem(x_s, x_g.at[bi, tokens, h, mine])
        plgpu.copy_smem_to_gmem(dbeta_s, dbeta_g.at[half, bi, h, tokens])
        if decays:
            plgpu.copy_smem_to_gmem(dots_s, dots_g.at[half, bi, h, tokens])
            plgpu.copy_smem_to_gmem(whole_s, whole_g.at[half, bi, h, tokens])
        plgpu.wait_smem_to_gmem(0)

    halves = K // SIDE
    per_token = jax.ShapeDtypeStruct((halves, B, H, N * SIDE), jnp.float32)
    dq, dk, *sums = tiles.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(q.shape, dtype)] * len(keys) + [per_token] * (3 if decays else 1),
        grid=(B, N, H, halves),  # the last is the innermost: halves that share u, do and dv run side by side
        grid_names=("b", "n", "h", "half"),
        scratch_types={n: tiles.factor(SIDE, SIDE, dtype=dtype) for n in keys}
        | {n: tiles.factor(SIDE, V, dtype=dtype) for n in ("u_s", "do_s", "dv_s", "S_s", "dS_s")}
        | {n: plgpu.SMEM((SIDE,), jnp.float32) for n in ("g_s", "dbeta_s", "dots_s", "whole_s")}
        | {"arrived": plgpu.Barrier(num_arrivals=5 + len(keys) + decays)},
    )(*(x for x in (q, k, w, u, do, dv, S, dS, beta, G) if x is not None))
    dw = sums.pop(0) if own else None
    dbeta, *sums = (x.sum(0) for x in sums)
    if not decays:
        return dq, dk, dw, dbeta, None
    dG, whole = (x.reshape(B, H, N, SIDE) for x in sums)
    return dq, dk, dw, dbeta, dG.at[..., -1].add(whole.sum(-1)).reshape(B, H, -1)
