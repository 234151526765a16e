"""The delta rule with one decay per head and token on a Hopper GPU, forward and backward; OSDN's kernel is built on it.

**A chunk.** With G_t the sum of log gamma from the start of t's chunk up to t, and S the state before the chunk, the
errors u_t and the outputs are (``chunk.py``; OSDN Sec. 4.3)

    u = T x       x_t = v_t - exp(G_t) S' k_t       T = (I + A)^-1      A_ti = exp(G_t - G_i) beta_i (k_t . w_i), i < t
    o_t = exp(G_t) S' q_t + sum_{i <= t} P_ti u_i                       P_ti = exp(G_t - G_i) beta_i (q_t . w_i)
    S  <- exp(G_C) S + sum_i exp(G_C - G_i) beta_i w_i u_i'

``pairs`` makes T and P of all chunks at once, and so all that is done for each pair of tokens is done once for a head.
``walk`` goes through the chunks, one warpgroup per head and 64 value columns: three products deep, as T x is not known
before S, nor o and the next S before u. T multiplies the error, not k and v: where the memory already holds v, x is
small and so is its rounding (W and U of the UT transform would be rounded first and then cancel).

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
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float

from ttt_teach.rules import tiles
from ttt_teach.rules.tiles import SIDE, block, by_column, by_row, products, transposed


def refusal(q: Array, k: Array, v: Array, w: Array, log_decay: Array | None, dtype, chunk: int) -> str | None:
    """Why the kernel does not do this call, or None if it does. dtype: what the other forms would compute in."""
    if chunk != SIDE:
        return f"takes chunk = {SIDE}, and chunk is {chunk}"
    if log_decay is not None and log_decay.ndim == 4:
        return "takes one decay per head, and log_decay has one per key channel"
    if dtype != jnp.float32:
        return "sums in float32, and an argument is float64"
    return tiles.refusal(q=q, k=k, v=v, write_key=w) or tiles.no_place()


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
    T = q.shape[1]
    if not isinstance(scale, float):  # it is compiled for a number: one known only later is rounded with q
        q, scale = (q.astype(scale.dtype) * scale).astype(q.dtype), 1.0
    q, k, v, w = (tiles.whole_rows(x) for x in (q, k, v, w))
    sums = None if log_decay is None else tiles.sums(log_decay)
    o, S = heads(q, k, w, v, tiles.vectors(beta), sums, S, scale)
    return o[:, :T], S


@partial(jax.custom_vjp, nondiff_argnums=(7,))
def heads(q, k, w, v, beta, G, S, scale):
    T, P = pairs(q, k, w, beta, G, scale=scale)
    o, S = walk(q, k, w, v, T, P, beta, G, S, scale=scale)
    return o, S


def forward(q, k, w, v, beta, G, S, scale):
    T, P = pairs(q, k, w, beta, G, scale=scale)
    o, last, u, borders = walk(q, k, w, v, T, P, beta, G, S, scale=scale, keep=True)
    return (o, last), (q, k, w, beta, G, S, T, P, u, borders)


def backward(scale, kept, slopes):
    q, k, w, beta, G, S, T, P, u, borders = kept
    do, dlast = slopes
    dv, dfirst, dborders = back(q, k, w, do, T, P, beta, G, dlast, scale=scale)
    dq, dk, dw, dbeta, dG = between(q, k, w, u, do, dv, borders, dborders, beta, G, scale=scale)
    return dq, dk, dw, dv, dbeta, dG, None if S is None else dfirst


heads.defvjp(forward, backward)


def pairs(q, k, w, beta, G, *, scale):
    """T and P of each chunk, ``[B, H, N, 64, 64]``: one block per head and chunk.

    In shared memory (K = 128): q, k and w 16 KB each (A and T take the places of k and w when they are used up), three
    tiles of 8 KB and G: 73 KB, three blocks an SM, which hide each other's chain of products.
    """
    (B, T, H, K), dtype = q.shape, q.dtype
    N, decays = tiles.chunks(T), G is not None

    def body(*refs, q_s, k_s, w_s, P_s, T_s, Y_s, g_s, arrived):
        refs = iter(refs)
        q_g, k_g, w_g, beta_g = (next(refs) for _ in range(4))
        G_g = next(refs) if decays else None
        T_g, P_g = refs
        n, h, bi = (lax.axis_index(name) for name in ("n", "h", "b"))
        tokens = pl.ds(n * SIDE, SIDE)
        for x_g, x_s in ((q_g, q_s), (k_g, k_s), (w_g, w_s)):
            plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h], x_s, arrived)
        weight = by_column(tiles.vector(beta_g.at[bi, h, tokens], tiles.PER_COLUMN))
        if decays:
            row = tiles.vector(G_g.at[bi, h, tokens], tiles.PER_ROW)
            plgpu.copy_gmem_to_smem(G_g.at[bi, h, tokens], g_s, arrived)  # by column: two layouts want two places
        plgpu.barrier_wait(arrived)

        A, P = products([(k_s, transposed(w_s))], [(q_s, transposed(w_s))])
        here, there = tiles.places()
        mask = here >= there
        if decays:
            column = plgpu.load(g_s, layout=tiles.PER_COLUMN)
            weight = weight * jnp.exp(jnp.where(mask, by_row(row) - by_column(column), -jnp.inf))
            mask = mask & (weight != 0)  # an overflow must not meet a zero
        P = jnp.where(mask, P * (weight * scale), 0.0)
        A = jnp.where(mask & (here > there), A * weight, 0.0)
        plgpu.commit_smem()  # all 128 threads are done with q, k and w
        P_s[...] = P.astype(dtype)
        inverse(A, block(k_s, 0), (block(w_s, 0), T_s), Y_s)
        plgpu.copy_smem_to_gmem(Y_s, T_g.at[bi, h, n])
        plgpu.copy_smem_to_gmem(P_s, P_g.at[bi, h, n])
        plgpu.wait_smem_to_gmem(0)

    chunks = jax.ShapeDtypeStruct((B, H, N, SIDE, SIDE), dtype)
    return tiles.kernel(
        body,
        out_type=[chunks, chunks],
        grid=(B, N, H),  # the last is the innermost: heads whose tokens lie side by side
        grid_names=("b", "n", "h"),
        scratch_types={n: tiles.factor(SIDE, K, dtype=dtype) for n in ("q_s", "k_s", "w_s")}
        | {n: tiles.factor(SIDE, SIDE, dtype=dtype) for n in ("P_s", "T_s", "Y_s")}
        | {"g_s": plgpu.SMEM((SIDE,), jnp.float32), "arrived": plgpu.Barrier(num_arrivals=4 if decays else 3)},
    )(*(x for x in (q, k, w, beta, G) if x is not None))


def inverse(A, A_s, T_s, Y_s):
    """(I + A)^-1 into Y_s, for a strictly lower triangular A in registers; A_s, two T_s and Y_s are shared memory.

    From the inverse T of the blocks of s on the diagonal that of blocks twice as large, for s = 1, 2, ..., 32: what
    is missing in them is -T_2 A_21 T_1, so T <- T - T ((A T) on those places). The factors are rounded to 16 bits, and
    for keys that are alike the products cancel; a last step of Newton's, T <- T + T (I - T - A T) with A in two parts
    of 16 bits, takes the error (up to 9e-2 of T x then) back under that of T in 16 bits. All terms stay as small as T,
    where a series of powers of A, for like keys, grows to 1e6 before it cancels.
    """
    dtype = A_s.dtype
    row, column = tiles.places()
    apart, one = row ^ column, jnp.where(row == column, 1.0, 0.0)  # apart is s to 2 s - 1: together in twice the block
    A_s[...] = A.astype(dtype)
    T = one - jnp.where(apart == 1, A, 0.0)
    for s in (2, 4, 8, 16, 32):
        now, T_s = T_s[0], T_s[::-1]  # in turn: another warp's products may still read the last one
        now[...] = T.astype(dtype)
        plgpu.commit_smem()
        (Y,) = products([(A_s, now)])
        Y_s[...] = jnp.where((apart >= s) & (apart < 2 * s), Y, 0.0).astype(dtype)
        plgpu.commit_smem()
        (more,) = products([(now, Y_s)])
        T = T - more
    plgpu.commit_smem()  # all threads are done with Y
    now, other = T_s
    now[...] = T.astype(dtype)
    Y_s[...] = (A - A.astype(dtype).astype(jnp.float32)).astype(dtype)
    plgpu.commit_smem()
    (AT,) = products([(A_s, now), (Y_s, now)])
    T = T.astype(dtype).astype(jnp.float32)
    other[...] = (one - T - AT).astype(dtype)
    plgpu.commit_smem()
    (more,) = products([(now, other)])
    Y_s[...] = (T + more).astype(dtype)
    plgpu.commit_smem()


def walk(q, k, w, v, T, P, beta, G, S, *, scale, keep=False):
    """o, the last state and, if ``keep``, the errors u and the state before each chunk.

    One slot for each argument: q and k are used up when a chunk's first products are made, v and T after its second,
    w and P after its third, and each is fetched anew right then. In shared memory (K = 128): q, k, w and the 16-bit
    copy of S 16 KB each, v (then x), T, P, u, u as it is written, and o 8 KB each: 112 KB, two blocks an SM. S itself,
    K x 64 float32, stays in registers from the first chunk to the last.
    """
    (B, tokens_in_all, H, K), V, dtype = q.shape, v.shape[-1], v.dtype
    N, decays, starts = tiles.chunks(tokens_in_all), G is not None, S is not None

    def body(*refs, q_s, k_s, w_s, v_s, T_s, P_s, u_s, written_s, o_s, S_s, arrived):
        refs = iter(refs)
        q_g, k_g, w_g, v_g, T_g, P_g, beta_g = (next(refs) for _ in range(7))
        G_g, first_g = next(refs) if decays else None, next(refs) if starts else None
        o_g, last_g = next(refs), next(refs)
        u_g, borders_g = (next(refs), next(refs)) if keep else (None, None)
        bi, h = lax.axis_index("b"), lax.axis_index("h")
        mine = pl.ds(lax.axis_index("half") * SIDE, SIDE)  # this block's columns of v, u, o and S

        def fetch(which, n):
            tokens, there = pl.ds(n * SIDE, SIDE), arrived[which]
            if which == "reads":
                plgpu.copy_gmem_to_smem(q_g.at[bi, tokens, h], q_s, there)
                plgpu.copy_gmem_to_smem(k_g.at[bi, tokens, h], k_s, there)
            if which == "errors":
                plgpu.copy_gmem_to_smem(v_g.at[bi, tokens, h, mine], v_s, there)
                plgpu.copy_gmem_to_smem(T_g.at[bi, h, n], T_s, there)
            if which == "writes":
                plgpu.copy_gmem_to_smem(w_g.at[bi, tokens, h], w_s, there)
                plgpu.copy_gmem_to_smem(P_g.at[bi, h, n], P_s, there)

        def chunk(n, S):
            def next_one(which):
                pl.when(n + 1 < N)(lambda: fetch(which, n + 1))

            tokens = pl.ds(n * SIDE, SIDE)
            if keep:  # the state before this chunk; the engine reads it while we compute
                plgpu.copy_smem_to_gmem(S_s, borders_g.at[bi, h, n, :, mine])
            read, write, fade = strengths(beta_g, G_g, bi, h, n)
            plgpu.barrier_wait(arrived["reads"])
            found, o = products([(k_s, S_s)], [(q_s, S_s)])
            found, o = found * read, o * read
            plgpu.barrier_wait(arrived["errors"])
            v_s[...] = (tiles.read(v_s) - found).astype(dtype)  # x takes the place of v
            plgpu.commit_smem()
            next_one("reads")

            (u,) = products([(T_s, v_s)])
            plgpu.wait_smem_to_gmem(1 if keep else 0, wait_read_only=True)  # the last u and o have left, not S yet
            u_s[...] = u.astype(dtype)
            written_s[...] = (u * write).astype(dtype)
            plgpu.commit_smem()
            next_one("errors")
            if keep:
                plgpu.copy_smem_to_gmem(u_s, u_g.at[bi, tokens, h, mine])

            plgpu.barrier_wait(arrived["writes"])
            rows = [(transposed(block(w_s, j)), written_s) for j in range(K // SIDE)]
            inside, *written = products([(P_s, u_s)], *([pair] for pair in rows))
            o_s[...] = (inside + scale * o).astype(dtype)
            S = tuple(fade * S_j + more for S_j, more in zip(S, written, strict=True))
            if keep:
                plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # the border has left S_s
            store(S, S_s)
            next_one("writes")
            plgpu.copy_smem_to_gmem(o_s, o_g.at[bi, tokens, h, mine])
            return S

        for which in arrived:
            fetch(which, jnp.zeros((), jnp.int32))  # traced: a known start is refused where a box reaches over the end
        S = start(first_g.at[bi, h, :, mine] if starts else None, K)
        store(S, S_s)
        S = tiles.steps(N, chunk, S)
        for j, S_j in enumerate(S):
            last_g[bi, h, pl.ds(j * SIDE, SIDE), mine] = S_j
        plgpu.wait_smem_to_gmem(0)

    outputs = [jax.ShapeDtypeStruct(v.shape, dtype), jax.ShapeDtypeStruct((B, H, K, V), jnp.float32)]
    if keep:
        outputs += [jax.ShapeDtypeStruct(v.shape, dtype), jax.ShapeDtypeStruct((B, H, N, K, V), dtype)]
    square = tiles.factor(SIDE, SIDE, dtype=dtype)
    return tiles.kernel(
        body,
        out_type=outputs,
        grid=(B, H, V // SIDE),  # the last is the innermost: halves that share q, k and w run side by side
        grid_names=("b", "h", "half"),
        scratch_types={n: tiles.factor(SIDE, K, dtype=dtype) for n in ("q_s", "k_s", "w_s")}
        | {n: square for n in ("v_s", "T_s", "P_s", "u_s", "written_s", "o_s")}
        | {"S_s": tiles.factor(K, SIDE, dtype=dtype)}
        | {
            "arrived": {
                "reads": plgpu.Barrier(num_arrivals=2),
                "errors": plgpu.Barrier(num_arrivals=2),
                "writes": plgpu.Barrier(num_arrivals=2),
            }
        },
    )(*(x for x in (q, k, w, v, T, P, beta, G, S) if x is not None))


def strengths(beta_g, G_g, bi, h, n):
    """Chunk n: what a read finds of the state before it and what is left of a write at its end, by row; its fading.

    From global to registers, with time until the first products are made: two blocks an SM leave no shared memory.
    """
    tokens = pl.ds(n * SIDE, SIDE)
    beta = tiles.vector(beta_g.at[bi, h, tokens], tiles.PER_ROW)
    if G_g is None:
        return 1.0, by_row(beta), 1.0
    G, end = tiles.vector(G_g.at[bi, h, tokens], tiles.PER_ROW), G_g[bi, h, n * SIDE + SIDE - 1]
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

    w, P and do are used up first here, then T, then q and k. Shared memory as in ``walk``: do as it came and as it is
    written, du (then dx), and dx as it is written, in the places of v, u and o.
    """
    (B, tokens_in_all, H, K), V, dtype = q.shape, do.shape[-1], do.dtype
    N, decays = tiles.chunks(tokens_in_all), G is not None

    def body(*refs, q_s, k_s, w_s, do_s, T_s, P_s, du_s, reads_s, writes_s, S_s, arrived):
        refs = iter(refs)
        q_g, k_g, w_g, do_g, T_g, P_g, beta_g = (next(refs) for _ in range(7))
        G_g = next(refs) if decays else None
        last_g, dv_g, first_g, borders_g = refs
        bi, h = lax.axis_index("b"), lax.axis_index("h")
        mine = pl.ds(lax.axis_index("half") * SIDE, SIDE)  # this block's columns of do, dv and dS

        def fetch(which, n):
            n = N - 1 - n
            tokens, there = pl.ds(n * SIDE, SIDE), arrived[which]
            if which == "writes":
                plgpu.copy_gmem_to_smem(w_g.at[bi, tokens, h], w_s, there)
                plgpu.copy_gmem_to_smem(P_g.at[bi, h, n], P_s, there)
                plgpu.copy_gmem_to_smem(do_g.at[bi, tokens, h, mine], do_s, there)
            if which == "errors":
                plgpu.copy_gmem_to_smem(T_g.at[bi, h, n], T_s, there)
            if which == "reads":
                plgpu.copy_gmem_to_smem(q_g.at[bi, tokens, h], q_s, there)
                plgpu.copy_gmem_to_smem(k_g.at[bi, tokens, h], k_s, there)

        def chunk(n, S):
            def next_one(which):
                pl.when(n + 1 < N)(lambda: fetch(which, n + 1))

            plgpu.copy_smem_to_gmem(S_s, borders_g.at[bi, h, N - 1 - n, :, mine])
            read, write, fade = strengths(beta_g, G_g, bi, h, N - 1 - n)
            plgpu.barrier_wait(arrived["writes"])
            later, du = products([(w_s, S_s)], [(transposed(P_s), do_s)])
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # the last dv has left du_s
            du_s[...] = (du + write * later).astype(dtype)
            reads_s[...] = (scale * tiles.read(do_s) * read).astype(dtype)
            plgpu.commit_smem()
            next_one("writes")

            plgpu.barrier_wait(arrived["errors"])
            (dx,) = products([(transposed(T_s), du_s)])
            plgpu.commit_smem()  # all threads are done with du, whose place dx takes, and with T
            next_one("errors")
            du_s[...] = dx.astype(dtype)
            writes_s[...] = (-dx * read).astype(dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(du_s, dv_g.at[bi, pl.ds((N - 1 - n) * SIDE, SIDE), h, mine])

            plgpu.barrier_wait(arrived["reads"])
            more = products(
                *(
                    [(transposed(block(q_s, j)), reads_s), (transposed(block(k_s, j)), writes_s)]
                    for j in range(K // SIDE)
                )
            )
            S = tuple(fade * S_j + more_j for S_j, more_j in zip(S, more, strict=True))
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # the border has left S_s
            store(S, S_s)
            next_one("reads")
            return S

        for which in arrived:
            fetch(which, jnp.zeros((), jnp.int32))
        S = start(last_g.at[bi, h, :, mine], K)
        store(S, S_s)
        S = tiles.steps(N, chunk, S)
        for j, S_j in enumerate(S):
            first_g[bi, h, pl.ds(j * SIDE, SIDE), mine] = S_j
        plgpu.wait_smem_to_gmem(0)

    square = tiles.factor(SIDE, SIDE, dtype=dtype)
    return tiles.kernel(
        body,
        out_type=[
            jax.ShapeDtypeStruct(do.shape, dtype),
            jax.ShapeDtypeStruct((B, H, K, V), jnp.float32),
            jax.ShapeDtypeStruct((B, H, N, K, V), dtype),
        ],
        grid=(B, H, V // SIDE),
        grid_names=("b", "h", "half"),
        scratch_types={n: tiles.factor(SIDE, K, dtype=dtype) for n in ("q_s", "k_s", "w_s")}
        | {n: square for n in ("do_s", "T_s", "P_s", "du_s", "reads_s", "writes_s")}
        | {"S_s": tiles.factor(K, SIDE, dtype=dtype)}
        | {
            "arrived": {
                "writes": plgpu.Barrier(num_arrivals=3),
                "errors": plgpu.Barrier(num_arrivals=1),
                "reads": plgpu.Barrier(num_arrivals=2),
            }
        },
    )(*(x for x in (q, k, w, do, T, P, beta, G, dS) if x is not None))


def between(q, k, w, u, do, dv, S, dS, beta, G, *, scale):
    """dq, dk, dw, dbeta and dG, every chunk for itself: one block per head, chunk and 64 key columns.

    In shared memory (V = 128): q, k and w 8 KB each, u, do, dv, S and dS 16 KB each: 104 KB, two blocks an SM.
    """
    (B, tokens_in_all, H, K), V, dtype = q.shape, u.shape[-1], q.dtype
    N, decays = tiles.chunks(tokens_in_all), G is not None

    def body(*refs, q_s, k_s, w_s, u_s, do_s, dv_s, S_s, dS_s, g_s, dbeta_s, dots_s, whole_s, arrived):
        refs = iter(refs)
        q_g, k_g, w_g, u_g, do_g, dv_g, S_g, dS_g, beta_g = (next(refs) for _ in range(9))
        G_g = next(refs) if decays else None
        dq_g, dk_g, dw_g, dbeta_g = (next(refs) for _ in range(4))
        dots_g, whole_g = refs if decays else (None, None)
        half, n, h, bi = (lax.axis_index(name) for name in ("half", "n", "h", "b"))
        tokens, mine = pl.ds(n * SIDE, SIDE), pl.ds(half * SIDE, SIDE)
        for x_g, x_s in ((do_g, do_s), (u_g, u_s), (dv_g, dv_s)):
            plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h], x_s, arrived)
        for x_g, x_s in ((S_g, S_s), (dS_g, dS_s)):
            plgpu.copy_gmem_to_smem(x_g.at[bi, h, n, mine], x_s, arrived)
        for x_g, x_s in ((q_g, q_s), (k_g, k_s), (w_g, w_s)):
            plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h, mine], x_s, arrived)
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
        for x_s, slope in ((q_s, dq), (k_s, dk), (w_s, y * by_row(beta))):
            x_s[...] = slope.astype(dtype)
        plgpu.commit_smem()
        for x_s, x_g in ((q_s, dq_g), (k_s, dk_g), (w_s, dw_g)):
            plgpu.copy_smem_to_gmem(x_s, x_g.at[bi, tokens, h, mine])
        plgpu.copy_smem_to_gmem(dbeta_s, dbeta_g.at[half, bi, h, tokens])
        if decays:
            plgpu.copy_smem_to_gmem(dots_s, dots_g.at[half, bi, h, tokens])
            plgpu.copy_smem_to_gmem(whole_s, whole_g.at[half, bi, h, tokens])
        plgpu.wait_smem_to_gmem(0)

    halves = K // SIDE
    per_token = jax.ShapeDtypeStruct((halves, B, H, N * SIDE), jnp.float32)
    dq, dk, dw, *sums = tiles.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(q.shape, dtype)] * 3 + [per_token] * (3 if decays else 1),
        grid=(B, N, H, halves),
        grid_names=("b", "n", "h", "half"),
        scratch_types={n: tiles.factor(SIDE, SIDE, dtype=dtype) for n in ("q_s", "k_s", "w_s")}
        | {n: tiles.factor(SIDE, V, dtype=dtype) for n in ("u_s", "do_s", "dv_s", "S_s", "dS_s")}
        | {n: plgpu.SMEM((SIDE,), jnp.float32) for n in ("g_s", "dbeta_s", "dots_s", "whole_s")}
        | {"arrived": plgpu.Barrier(num_arrivals=9 if decays else 8)},
    )(*(x for x in (q, k, w, u, do, dv, S, dS, beta, G) if x is not None))
    dbeta, *sums = (x.sum(0) for x in sums)
    if not decays:
        return dq, dk, dw, dbeta, None
    dG, whole = (x.reshape(B, H, N, SIDE) for x in sums)
    return dq, dk, dw, dbeta, dG.at[..., -1].add(whole.sum(-1)).reshape(B, H, -1)
