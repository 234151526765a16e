"""Linear attention with one decay per head and token on a Hopper GPU, forward and backward.

**Forward** (``walk``): one warpgroup per head and 64 value columns goes through the chunks. With G_t the sum of
log gamma from the start of t's chunk up to t, and S the state before the chunk,

    o_t = exp(G_t) S' q_t + sum_{i <= t} exp(G_t - G_i) (k_i . q_t) v_i
    S  <- exp(G_C) S + sum_i exp(G_C - G_i) k_i v_i'

Every exponent is a sum of log gamma over some tokens of one chunk, or a difference of two such sums, and <= 0.

**Backward.** dS, the gradient of the state, obeys the same recurrence from the end:
dS_{t-1} = gamma_t (dS_t + q_t do_t'). So dv, with dv_i = sum_{t >= i} zeta_ti (k_i . q_t) do_t, is the same walk in the
other direction with the roles changed, (q, k, v, S_0) -> (k, q, do, dS_T). Both walks leave the state at each chunk's
border behind in 16 bits (as the products read it), after which dq and dk of all chunks are independent (``between``):

    dq_t = sum_{i <= t} zeta_ti (do_t . v_i) k_i + exp(G_t) S do_t
    dk_i = sum_{t >= i} zeta_ti (do_t . v_i) q_t + exp(G_C - G_i) dS v_i

**The decay.** exp(G_t) multiplies what q_t reads and exp(-G_i) what k_i writes, so dG_t = q_t . dq_t - k_t . dk_t, and
G_C gets besides what the whole chunk hands on,

    <S_end, dS_end> = exp(G_C) <S, dS> + sum_i k_i . (exp(G_C - G_i) dS v_i)

Ending the sums at the chunk is what keeps them accurate: over the whole sequence (dlog gamma_t = sum_{s >= t} dG_s,
s up to T) thousands of rounded terms would have to cancel.

**What limits it** (H200, B 16, T 2048, H 12, D 128, bfloat16): 403 MB take 0.10 ms, the forward walk 0.17. Fewer
dependent products in a chunk gained nothing, and three warpgroups a block, for which the registers are too few, lost
half: what is left is probably the number of instructions between the products (mask, exp, 16-bit copies).
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


def refusal(q: Array, k: Array, v: Array, log_decay: Array | None, dtype, chunk: int) -> str | None:
    """Why the kernel does not do this call, or None if it does. dtype: what the other forms would compute in."""
    if chunk != SIDE:
        return f"takes chunk = {SIDE}, and chunk is {chunk}"
    if log_decay is not None and log_decay.ndim == 4:
        return "takes one decay per head, and log_decay has one per key channel"
    if dtype != jnp.float32:
        return "sums in float32, and an argument is float64"
    return tiles.refusal(q=q, k=k, v=v) or tiles.no_place()


def kernel(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T H K"],
    v: Float[Array, "B T H V"],
    log_decay: Float[Array, "B T H"] | None = None,
    S: Float[Array, "B H K V"] | None = None,
    *,
    scale: float | Float[Array, ""] = 1.0,
) -> tuple[Float[Array, "B T H V"], Float[Array, "B H K V"]]:
    """o and the last S. q, k and v in 16 bits, K = V in {64, 128}; S and log_decay in float32."""
    T = q.shape[1]
    if not isinstance(scale, float):  # it is compiled for a number: one known only later is rounded with q
        q, scale = (q.astype(scale.dtype) * scale).astype(q.dtype), 1.0
    q, k, v = (tiles.whole_rows(x) for x in (q, k, v))
    sums = None if log_decay is None else tiles.sums(log_decay)
    o, S = _heads(q, k, v, sums, S, scale)
    return o[:, :T], S


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _heads(q, k, v, G, S, scale):
    o, S, _ = walk(q, k, v, G, S, scale=scale)
    return o, S


def _forward(q, k, v, G, S, scale):
    o, last, borders = walk(q, k, v, G, S, scale=scale, keep=True)
    return (o, last), (q, k, v, G, S, borders)


def _backward(scale, kept, slopes):
    q, k, v, G, S, borders = kept
    do, dlast = slopes
    dv, dfirst, dborders = walk(k, q, do, G, dlast, scale=scale, backward=True, keep=True)
    dq, dk, dG = between(q, k, v, do, borders, dborders, G, scale=scale)
    return dq, dk, dv, dG, None if S is None else dfirst


_heads.defvjp(_forward, _backward)


def walk(a, b, c, G, S, *, scale, backward=False, keep=False):
    """o_t = sum_i zeta_ti (scale a_t . b_i) c_i, the last state and, if ``keep``, the state before each chunk.

    Forwards i <= t and (a, b, c) = (q, k, v); backwards i >= t, (k, q, do) and zeta_it. In shared memory (K = 128): a
    and b 16 KB and c 8 KB, each twice, o 8 KB, the 16-bit copy of S 16 KB: 105 KB with the
    decays, two blocks an SM. S itself, K x 64 float32, stays in registers from the first chunk to the last.
    """
    (B, T, H, K), V, dtype = a.shape, c.shape[-1], c.dtype
    N = tiles.chunks(T)
    decays, starts = G is not None, S is not None

    def body(*refs, a_s, b_s, c_s, g_s, g2_s, o_s, S_s, arrived):
        refs = iter(refs)
        a_g, b_g, c_g = next(refs), next(refs), next(refs)
        G_g, first_g = next(refs) if decays else None, next(refs) if starts else None
        o_g, last_g, borders_g = next(refs), next(refs), next(refs) if keep else None
        bi, h = lax.axis_index("b"), lax.axis_index("h")
        mine = pl.ds(lax.axis_index("half") * SIDE, SIDE)  # this block's columns of c, o and S
        mask = tiles.causal("columns" if backward else "rows")

        def place(n):  # of the n-th chunk of the walk
            return N - 1 - n if backward else n

        def fetch(n):
            slot, tokens = n & 1, pl.ds(place(n) * SIDE, SIDE)
            there = arrived.at[slot]
            plgpu.copy_gmem_to_smem(a_g.at[bi, tokens, h], a_s.at[slot], there)
            plgpu.copy_gmem_to_smem(b_g.at[bi, tokens, h], b_s.at[slot], there)
            plgpu.copy_gmem_to_smem(c_g.at[bi, tokens, h, mine], c_s.at[slot], there)
            if decays:
                plgpu.copy_gmem_to_smem(G_g.at[bi, h, tokens], g_s.at[slot], there)
                plgpu.copy_gmem_to_smem(G_g.at[bi, h, tokens], g2_s.at[slot], there)

        def store_state(S):
            for j, S_j in enumerate(S):
                S_s[pl.ds(j * SIDE, SIDE)] = S_j.astype(dtype)
            plgpu.commit_smem()

        def chunk(n, S):
            slot = n & 1
            a, b, c = a_s.at[slot], b_s.at[slot], c_s.at[slot]
            pl.when(n + 1 < N)(lambda: fetch(n + 1))  # into the other slot, which the last chunk left
            if keep:  # the state before this chunk; the engine reads it while we compute
                plgpu.copy_smem_to_gmem(S_s, borders_g.at[bi, h, place(n), :, mine])
            plgpu.barrier_wait(arrived.at[slot])

            (scores,) = products([(a, transposed(b))])  # a_t . b_i
            if decays:
                row = plgpu.load(g_s.at[slot], layout=tiles.PER_ROW)
                column = plgpu.load(g2_s.at[slot], layout=tiles.PER_COLUMN)
                end = g_s[slot, SIDE - 1]
                away = by_column(column) - by_row(row) if backward else by_row(row) - by_column(column)
                zeta = jnp.exp(jnp.where(mask, away, -jnp.inf))
                scores = jnp.where(zeta == 0, 0.0, scores * zeta)
                # what a read finds of S, what is left of a write at the chunk's end (backwards: its start)
                reads, writes = jnp.exp(row), jnp.exp(end - row)
                reads, writes = (writes, reads) if backward else (reads, writes)
            else:
                scores = jnp.where(mask, scores, 0.0)
            inside, o = products([((scores * scale).astype(dtype), c)], [(a, S_s)])
            o = o * by_row(reads) if decays else o
            o = inside + (o if backward else o * scale)
            plgpu.wait_smem_to_gmem(1 if keep else 0, wait_read_only=True)  # the last o has left
            plgpu.commit_smem()  # all 128 threads are done with c
            o_s[...] = o.astype(dtype)
            if decays or backward:
                left = tiles.read(c) * (scale if backward else 1.0)
                c[...] = (left * by_row(writes) if decays else left).astype(dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(o_s, o_g.at[bi, pl.ds(place(n) * SIDE, SIDE), h, mine])

            fade = jnp.exp(end) if decays else 1.0
            written = products(*([(transposed(block(b, j)), c)] for j in range(K // SIDE)))
            S = tuple(fade * S_j + more for S_j, more in zip(S, written, strict=True))
            if keep:
                plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # the border has left S_s
            store_state(S)
            return S

        fetch(jnp.zeros((), jnp.int32))  # traced: a known start is refused where the box reaches over the end
        rows = [pl.ds(j * SIDE, SIDE) for j in range(K // SIDE)]
        if starts:
            S = tuple(plgpu.load(first_g.at[bi, h, r, mine], layout=tiles.WGMMA, optimized=False) for r in rows)
        else:
            S = tuple(plgpu.layout_cast(jnp.zeros((SIDE, SIDE), jnp.float32), tiles.WGMMA) for _ in rows)
        store_state(S)
        S = tiles.steps(N, chunk, S)
        for r, S_j in zip(rows, S, strict=True):
            last_g[bi, h, r, mine] = S_j
        plgpu.wait_smem_to_gmem(0)

    outputs = [jax.ShapeDtypeStruct((B, T, H, V), dtype), jax.ShapeDtypeStruct((B, H, K, V), jnp.float32)]
    if keep:
        outputs.append(jax.ShapeDtypeStruct((B, H, N, K, V), dtype))
    o, last, *borders = tiles.kernel(
        body,
        out_type=outputs,
        grid=(B, H, V // SIDE),  # the last is the innermost: halves that share a and b run side by side
        grid_names=("b", "h", "half"),
        scratch_types={
            "a_s": tiles.factor(2, SIDE, K, dtype=dtype),  # two slots: one fills while the other is computed with
            "b_s": tiles.factor(2, SIDE, K, dtype=dtype),
            "c_s": tiles.factor(2, SIDE, SIDE, dtype=dtype),
            "g_s": plgpu.SMEM((2, SIDE), jnp.float32),  # G twice: one load cannot be laid out by row and by column
            "g2_s": plgpu.SMEM((2, SIDE), jnp.float32),
            "o_s": tiles.factor(SIDE, SIDE, dtype=dtype),
            "S_s": tiles.factor(K, SIDE, dtype=dtype),
            "arrived": plgpu.Barrier(num_arrivals=5 if decays else 3, num_barriers=2),
        },
    )(*(x for x in (a, b, c, G, S) if x is not None))
    return o, last, *(borders or [None])


def between(q, k, v, do, S, dS, G, *, scale):
    """dq, dk and dG, every chunk for itself: one block per head, chunk and 64 key columns.

    In shared memory (V = 128): q and k 8 KB each, v, do, S and dS 16 KB each, the scores 8 KB: 88 KB, two blocks an SM.
    """
    (B, T, H, K), V, dtype = q.shape, v.shape[-1], q.dtype
    N, decays = tiles.chunks(T), G is not None

    def body(*refs, q_s, k_s, v_s, do_s, S_s, dS_s, g_s, g2_s, p_s, dots_s, whole_s, arrived):
        refs = iter(refs)
        q_g, k_g, v_g, do_g, S_g, dS_g = (next(refs) for _ in range(6))
        G_g = next(refs) if decays else None
        dq_g, dk_g = next(refs), next(refs)
        dots_g, whole_g = (next(refs), next(refs)) if decays else (None, None)
        half, n, h, bi = (lax.axis_index(name) for name in ("half", "n", "h", "b"))
        tokens, mine = pl.ds(n * SIDE, SIDE), pl.ds(half * SIDE, SIDE)

        plgpu.copy_gmem_to_smem(do_g.at[bi, tokens, h], do_s, arrived.at[0])
        plgpu.copy_gmem_to_smem(v_g.at[bi, tokens, h], v_s, arrived.at[1])
        plgpu.copy_gmem_to_smem(S_g.at[bi, h, n, mine], S_s, arrived.at[2])
        plgpu.copy_gmem_to_smem(dS_g.at[bi, h, n, mine], dS_s, arrived.at[3])
        plgpu.copy_gmem_to_smem(q_g.at[bi, tokens, h, mine], q_s, arrived.at[4])
        plgpu.copy_gmem_to_smem(k_g.at[bi, tokens, h, mine], k_s, arrived.at[5])
        if decays:
            plgpu.copy_gmem_to_smem(G_g.at[bi, h, tokens], g_s, arrived.at[6])
            plgpu.copy_gmem_to_smem(G_g.at[bi, h, tokens], g2_s, arrived.at[7])
        for i in range(6 + 2 * decays):
            plgpu.barrier_wait(arrived.at[i])

        # do_t . v_i; S do_t and dS v_i, the parts that cross the chunk's borders
        scores, dq, dk = products([(do_s, transposed(v_s))], [(do_s, transposed(S_s))], [(v_s, transposed(dS_s))])
        mask = tiles.causal("rows")
        if decays:
            row = plgpu.load(g_s, layout=tiles.PER_ROW)
            column = plgpu.load(g2_s, layout=tiles.PER_COLUMN)
            end = g_s[SIDE - 1]
            zeta = jnp.exp(jnp.where(mask, by_row(row) - by_column(column), -jnp.inf))
            scores = jnp.where(zeta == 0, 0.0, scores * zeta)
            dq, dk = dq * by_row(jnp.exp(row)), dk * by_row(jnp.exp(end - row))
            handed_on = jnp.sum(tiles.read(k_s) * dk, axis=1)
        else:
            scores = jnp.where(mask, scores, 0.0)
        p_s[...] = (scores * scale).astype(dtype)
        plgpu.commit_smem()
        inside_q, inside_k = products([(p_s, k_s)], [(transposed(p_s), q_s)])
        dq, dk = inside_q + scale * dq, inside_k + dk
        if decays:
            dots_s[...] = jnp.sum(tiles.read(q_s) * dq, axis=1) - jnp.sum(tiles.read(k_s) * dk, axis=1)
            for j in range(V // SIDE):
                both = tiles.read(block(S_s, j)) * tiles.read(block(dS_s, j))
                handed_on = handed_on + jnp.exp(end) * jnp.sum(both, axis=1)
            whole_s[...] = handed_on  # by token and by key channel, one on top of the other: only the sum is wanted
        plgpu.commit_smem()  # all threads are done with q and k, whose places dq and dk take
        q_s[...] = dq.astype(dtype)
        k_s[...] = dk.astype(dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(q_s, dq_g.at[bi, tokens, h, mine])
        plgpu.copy_smem_to_gmem(k_s, dk_g.at[bi, tokens, h, mine])
        if decays:
            plgpu.copy_smem_to_gmem(dots_s, dots_g.at[half, bi, h, tokens])
            plgpu.copy_smem_to_gmem(whole_s, whole_g.at[half, bi, h, tokens])
        plgpu.wait_smem_to_gmem(0)

    halves = K // SIDE
    per_token = jax.ShapeDtypeStruct((halves, B, H, N * SIDE), jnp.float32)
    vector = plgpu.SMEM((SIDE,), jnp.float32)
    dq, dk, *dots = tiles.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(x.shape, dtype) for x in (q, k)] + [per_token] * (2 * decays),
        grid=(B, N, H, halves),  # so neighbours read a token's heads, which lie side by side
        grid_names=("b", "n", "h", "half"),
        scratch_types={
            "q_s": tiles.factor(SIDE, SIDE, dtype=dtype),
            "k_s": tiles.factor(SIDE, SIDE, dtype=dtype),
            "v_s": tiles.factor(SIDE, V, dtype=dtype),
            "do_s": tiles.factor(SIDE, V, dtype=dtype),
            "S_s": tiles.factor(SIDE, V, dtype=dtype),
            "dS_s": tiles.factor(SIDE, V, dtype=dtype),
            "g_s": vector,
            "g2_s": vector,
            "p_s": tiles.factor(SIDE, SIDE, dtype=dtype),
            "dots_s": vector,
            "whole_s": vector,
            "arrived": plgpu.Barrier(num_barriers=8),
        },
    )(*(x for x in (q, k, v, do, S, dS, G) if x is not None))
    if not decays:
        return dq, dk, None
    dG, whole = (x.sum(0).reshape(B, H, N, SIDE) for x in dots)
    return dq, dk, dG.at[..., -1].add(whole.sum(-1)).reshape(B, H, -1)
