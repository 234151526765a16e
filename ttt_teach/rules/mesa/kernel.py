"""Mesa on a Hopper GPU, forward and backward: a walk from chunk to chunk, and all else for every chunk by itself.

With S = [G | H] the two statistics before a chunk of 64, zeta_t what t finds of them and zeta_ti of the write at i,

    A_t = zeta_t H + sum_{i <= t} zeta_ti beta_i k_i k_i' + diag(lam)
    x_t = A_t^-1 q_t,    o_t = zeta_t G'x_t + sum_{i <= t} zeta_ti beta_i (k_i . x_t) v_i

**Forward**: ``walk`` leaves S at each chunk's start, ``solve`` finds x, ``read`` makes o of it.

**Backward** (MesaNet App. D, notebook 06). u_t = A_t^-1 g_t is dq_t, where ``read`` makes g_t = G_t do_t and the same
``solve`` finds u. The slopes of the statistics, dG = sum_t zeta_ti x_t do_t' and dH = -sum_t zeta_ti (u_t x_t' +
x_t u_t'), which is twice its symmetric part, are the same walk from the end. Then, from the chunk and what follows it
(``between``),

    dv_i = beta_i (sum_t zeta_ti (k_i . x_t) do_t + zeta_Ci dG'k_i)
    dk_i = beta_i (sum_t zeta_ti ((v_i . do_t - k_i . u_t) x_t - (k_i . x_t) u_t) + zeta_Ci (dG v_i + dH k_i))
    dbeta_i = sum_t zeta_ti (k_i . x_t)(v_i . do_t - k_i . u_t) + zeta_Ci k_i'(dG v_i + dH k_i / 2)
    dlam = -sum_t u_t x_t  (by channel)

**The decay.** exp(G_t), the sum of log gamma from the chunk's start to t, multiplies both statistics that t reads and
exp(-G_i) what i writes. Scaling both by s makes o = s G'(s H + Lam)^-1 q, whose slope is that of Lam alone:
dG_t = u_t'diag(lam) x_t - beta_t dbeta_t, and G_C gets what the whole chunk hands on, <G, dG> + <H, dH> / 2 at its end.

**Numbers.** Every product has bfloat16 factors and a float32 sum; float16 arguments come as a sum of two bfloat16. What
the solver reads is twice that, 16 bits: H (with 8, at 4096 collinear keys, H + Lam is indefinite), the scores inside
the chunk, x; and G, which with 8 bits makes o 15 % wrong there (1 % at keys of condition number 2000). The direction p
is rounded to 8 bits, and **the rounded p** is what x and r are updated with, so r stays the residual of x, also with a
step of r.z / p.A p, as if p were not rounded; only the conjugacy suffers, which costs two steps of ten. So the error of
x is that of A: 5e-4 at a condition number of 16000. bfloat16 has the exponents of float32: an upstream gradient of 1e-6
costs no digits.

**What limits it** (H200, B 16, T 2048, H 12, D 128, bfloat16, CG to 3e-3). The walk takes 0.31 ms for
0.94 GB, 0.69 of which it writes, at 3.1 TB/s; ``read`` 0.21 for 0.9 GB and the walk back 0.20 for 0.7: memory.
``between`` took 0.47 ms for 1.4 GB, with a second load to wait for in the middle; dH comes with the first since then.
``solve`` takes most, 0.81 ms: a step multiplies 64 x 128 x 448 numbers twice over, 1800 cycles of a tensor core that
2 blocks share, 0.47 ms for all 6144 chunks and the 9.8 steps that they take on average. The tensor core is busy for 55
percent of it: a warp issues a product whose first factor is in registers as fast as that takes it (a quarter of the
samples), so what it does between is beside the other block's products only, and two blocks meet at random. With PCG
they are 6.0 (simulated, not timed yet).
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
from ttt_teach.solvers import CG, PCG

HALF = jnp.bfloat16  # of every factor: the exponents of float32, and a second number for the bits that a first leaves
FLOOR = 2.0**-10  # the least share of a residual that the preconditioner leaves in one direction
FADED = 2.0**-60  # less than this of H and H counts as this
# Where each thread reads float32 that it wrote itself: the threads of a warp side by side, no two in one bank.
EIGHTS = (plgpu.TilingTransform((8, 8)), plgpu.SwizzleTransform(32))


def refusal(q: Array, k: Array, v: Array, dtype, chunk: int, solver: CG) -> str | None:
    """Why the kernel does not do this call, or None if it does. dtype: what the other forms would compute in."""
    if chunk != SIDE:
        return f"takes chunk = {SIDE}, and chunk is {chunk}"
    if dtype != jnp.float32:
        return "sums in float32, and an argument is float64"
    return tiles.refusal(q=q, k=k, v=v) or tiles.no_place()


def kernel(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T H K"],
    v: Float[Array, "B T H K"],
    beta: Float[Array, "B T H"],
    lam: Float[Array, "H K"],
    log_decay: Float[Array, "B T H"] | None = None,
    G: Float[Array, "B H K K"] | None = None,
    H: Float[Array, "B H K K"] | None = None,
    *,
    solver: CG,
) -> tuple[Float[Array, "B T H K"], Float[Array, "B H K K"], Float[Array, "B H K K"]]:
    """o, and the last G and H. q, k and v in 16 bits, K in {64, 128}; the rest in float32."""
    B, T, heads, D = q.shape
    q, k, v = (tiles.whole_rows(x) for x in (q, k, v))
    beta = tiles.vectors(beta)  # zeros at the end, which write nothing
    g = None if log_decay is None else tiles.sums(log_decay)
    zero = jnp.zeros((B, heads, D, D), jnp.float32)
    o, last = _heads(q, k, v, beta, g, lam, (zero if G is None else G, zero if H is None else H), solver)
    return o[:, :T], *last


def in_parts(x):
    """``[P, B, T, H, D]``, bfloat16: P is 1 for bfloat16 and 2 for float16."""
    if x.dtype == HALF:
        return x[None]
    x = x.astype(jnp.float32)
    high = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)  # XLA takes x - float32(bfloat16(x)) for zero
    return jnp.stack([high, x - high]).astype(HALF)


def of_parts(x, dtype):
    """The opposite of ``in_parts``; from float16, P = 2 is rounded once more."""
    return x[0] if len(x) == 1 else (x[0].astype(jnp.float32) + x[1].astype(jnp.float32)).astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(7,))
def _heads(q, k, v, beta, g, lam, first, solver):
    return _forward(q, k, v, beta, g, lam, first, solver)[0]


def _forward(q, k, v, beta, g, lam, first, solver):
    q2, k2, v2 = (in_parts(x) for x in (q, k, v))
    *last, G, H = walk(k2, v2, None, g, beta, first, parts=2)
    x = solve(q2, k2, H, g, beta, lam, solver=solver, parts=2)
    o = of_parts(read(x, k2, v2, G, g, beta, parts=len(q2)), v.dtype)
    return (o, last), (k, v, beta, g, lam, G, H, x)


def _backward(solver, kept, slopes):
    k, v, beta, g, lam, G, H, x = kept
    do, (dG, dH) = slopes
    k, v, do = (in_parts(z) for z in (k, v, do))
    b = read(do, v, k, G, g, beta, parts=2, turned=True)
    u = solve(b, k, H, g, beta, lam, solver=solver, parts=len(k))
    dG0, dH0, dG, dH = walk(x, do, u, g, None, (dG, dH + dH.mT), parts=len(k))
    dk, dv, dbeta, dlam, *decays = between(x, u, k, v, do, G, H, dG, dH, g, beta, lam)
    dq, dk, dv = (of_parts(z, slopes[0].dtype) for z in (u, dk, dv))
    dg = None
    if decays:
        reads, whole = decays
        dg = (reads - beta * dbeta).reshape(*beta.shape[:2], -1, SIDE)
        dg = dg.at[..., -1].add(whole.sum(-1)).reshape(beta.shape)
    return dq, dk, dv, dbeta, dg, dlam, (dG0, dH0 / 2)


_heads.defvjp(_forward, _backward)


def walk(a, c, d, g, beta, first, *, parts):
    """The last G and H, and both at each chunk's start as ``parts`` numbers.

    G <- exp(G_C) G + sum_t w_t a_t c_t',  H <- exp(G_C) H + sum_t w_t a_t a_t',  w_t = beta_t exp(G_C - G_t)

    and, given d, from the last chunk to the first, leaving both at each chunk's end, with -(a_t d_t' + d_t a_t') for
    a_t a_t' and w_t = exp(G_t). Of H the blocks on and under the diagonal are kept. A block has 64 columns of G or H,
    in registers from the first chunk to the last. In shared memory (D = 128, bfloat16): two slots of a and c, 48 KB,
    the weighed c 16, S 32: 96 KB, two blocks an SM; with d as much: its slots are 64, but there are no low parts.
    """
    _, B, T, H, D = a.shape
    P, N, halves, decays, backward = len(c), tiles.chunks(T), D // SIDE, g is not None, d is not None
    terms = 2 if backward else 1

    def body(*refs, a_s, c_s, w_s, S_s, g_s, beta_s, of_G, of_H):
        refs = iter(refs)
        a_g, c_g = next(refs), next(refs)
        d_g = next(refs) if backward else None
        g_g = next(refs) if decays else None
        beta_g = None if backward else next(refs)
        first_G, first_H = next(refs), next(refs)
        last_G, last_H, G_g, H_g = (next(refs) for _ in range(4))
        bi, h, column = lax.axis_index("b"), lax.axis_index("h"), lax.axis_index("column")

        def along(here, arrived, first_g, last_g):
            """One column block from the first chunk to the last, of G or (here) of H."""
            half = column - halves * here
            mine = pl.ds(half * SIDE, SIDE)
            rows = [pl.ds(r * SIDE, SIDE) for r in range(halves)]

            def place(n):
                return N - 1 - n if backward else n

            def fetch(n):
                slot, tokens = n & 1, pl.ds(place(n) * SIDE, SIDE)
                there = arrived.at[slot]
                for i in range(P):
                    plgpu.copy_gmem_to_smem(a_g.at[i, bi, tokens, h], a_s.at[slot, i], there)
                    if backward:
                        plgpu.copy_gmem_to_smem((d_g if here else c_g).at[i, bi, tokens, h], c_s.at[slot, i], there)
                    elif not here:
                        plgpu.copy_gmem_to_smem(c_g.at[i, bi, tokens, h, mine], c_s.at[slot, i], there)
                if decays:
                    plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g_s.at[slot], there)
                if not backward:
                    plgpu.copy_gmem_to_smem(beta_g.at[bi, h, tokens], beta_s.at[slot], there)

            def store_state(S):
                for r, S_r in zip(rows, S, strict=True):
                    for i, part in enumerate(split(S_r)[:parts]):
                        S_s[i, r] = part
                plgpu.commit_smem()

            def keep(n):
                for i in range(parts):
                    if not here:
                        plgpu.copy_smem_to_gmem(S_s.at[i], G_g.at[bi, h, n, i, :, mine])
                        continue
                    for r, there in enumerate(rows):
                        block_g = H_g.at[bi, h, n, i, r * (r + 1) // 2 + half]
                        pl.when(half <= r)(
                            lambda i=i, there=there, block_g=block_g: plgpu.copy_smem_to_gmem(S_s.at[i, there], block_g)
                        )

            def added(slot):
                """(factor by rows, where the one by columns is, its sign)"""
                a, c = parts_of(a_s.at[slot], P), parts_of(c_s.at[slot], P)
                if here and backward:
                    return [(a, [x.at[:, mine] for x in c], -1.0), (c, [x.at[:, mine] for x in a], -1.0)]
                return [(a, [x.at[:, mine] for x in (a if here else c)] if here or backward else c, 1.0)]

            def chunk(n, S):
                slot = n & 1
                pl.when(n + 1 < N)(lambda: fetch(n + 1))
                keep(place(n))
                plgpu.barrier_wait(arrived.at[slot])
                weight, fade = None, 1.0
                if decays:
                    row, end = plgpu.load(g_s.at[slot], layout=tiles.PER_ROW), g_s[slot, SIDE - 1]
                    weight, fade = jnp.exp(row if backward else end - row), jnp.exp(end)
                if not backward:
                    beta = plgpu.load(beta_s.at[slot], layout=tiles.PER_ROW)
                    weight = beta if weight is None else beta * weight
                sums = [[] for _ in rows]
                for j, (left, right, sign) in enumerate(added(slot)):
                    right = sign * whole_tile(right)
                    for i, part in enumerate(split(right if weight is None else right * by_row(weight))[:parts]):
                        w_s[j, i] = part
                    for r in range(halves):
                        sums[r] += pairs([transposed(block(x, r)) for x in left], parts_of(w_s.at[j], parts))
                plgpu.commit_smem()
                S = tuple(fade * S_r + more for S_r, more in zip(S, products(*sums), strict=True))
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                store_state(S)
                return S

            fetch(jnp.zeros((), jnp.int32))
            S = tuple(plgpu.load(first_g.at[bi, h, r, mine], layout=tiles.WGMMA, optimized=False) for r in rows)
            store_state(S)
            S = tiles.steps(N, chunk, S)
            for r, S_r in zip(rows, S, strict=True):
                last_g[bi, h, r, mine] = S_r
            plgpu.wait_smem_to_gmem(0)

        pl.when(column < halves)(lambda: along(False, of_G, first_G, last_G))
        pl.when(column >= halves)(lambda: along(True, of_H, first_H, last_H))

    vectors = decays + (not backward)
    state = jax.ShapeDtypeStruct((B, H, D, D), jnp.float32)
    return tiles.kernel(
        body,
        out_type=[
            state,
            state,
            jax.ShapeDtypeStruct((B, H, N, parts, D, D), HALF),
            jax.ShapeDtypeStruct((B, H, N, parts, len(triangle(halves)), SIDE, SIDE), HALF),
        ],
        grid=(B, H, 2 * halves),  # the last is the innermost: blocks that share a run side by side
        grid_names=("b", "h", "column"),
        scratch_types={
            "a_s": tiles.factor(2, P, SIDE, D, dtype=HALF),
            "c_s": tiles.factor(2, P, SIDE, D if backward else SIDE, dtype=HALF),
            "w_s": tiles.factor(terms, parts, SIDE, SIDE, dtype=HALF),
            "S_s": tiles.factor(parts, D, SIDE, dtype=HALF),
            "g_s": plgpu.SMEM((2, SIDE), jnp.float32),
            "beta_s": plgpu.SMEM((2, SIDE), jnp.float32),
            "of_G": plgpu.Barrier(num_arrivals=2 * P + vectors, num_barriers=2),
            "of_H": plgpu.Barrier(num_arrivals=terms * P + vectors, num_barriers=2),
        },
    )(*(z for z in (a, c, d, g, None if backward else beta, *first) if z is not None))


def split(x):
    """x as a 16-bit number and what that leaves: 16 bits of it together. A NaN is in both."""
    high = packed(x)
    return high, (x - high.astype(jnp.float32)).astype(HALF)


def packed(x):
    """x in 16 bits, rounded two at a time though it is widened again: LLVM would round one by one, which is slow."""
    return lax.optimization_barrier(x.astype(HALF))


def cut(x):
    """The same where nobody reads the first part alone: its first bits as they are: to round is slow."""
    high = lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFF0000), jnp.float32)
    return high.astype(HALF), (x - high).astype(HALF)


def solve(b, k, H2, g, beta, lam, *, solver, parts):
    """x with A_t x_t = b_t as ``parts`` 16-bit numbers, the 64 tokens of a chunk at once: a block per chunk and head.

    CG (solvers/cg.py), until every token of the chunk is done, on A_t / zeta_t = H + sum_i (zeta_ti / zeta_t) beta_i
    k_i k_i' + diag(lam / zeta_t), so that one sum takes p H and the scores times k.

    PCG: M = A^-1 where H has one large eigenvalue, theta + rest of the direction u, and all others are ``rest``, their
    mean (Sherman and Morrison):

        M = (diag(lam) + rest + theta u u')^-1 = diag(e) - w w'    e = 1 / (lam + rest)
        w = e u (theta / (1 + a))^1/2    a = theta u'diag(e) u     u ~ H H diag(H), which is near enough, |u| = 1

    but for FLOOR and a factor, of which CG knows nothing: the largest e is 1. For a token that finds zeta of H, theta
    is zeta theta beside lam: w w' (1 + a) / (1 / zeta + a). Two vectors and that number: a step has no product more
    than without. No later token is in them, so any number of steps is causal, and a split of the sequence at a chunk's
    border changes nothing. It saves a third of the steps where keys have a mean, and few where H has several large
    eigenvalues.

    In registers: r and A p, 64 x D float32 each, p in 16 bits and the scores. p and the weighed scores are first
    factors and never leave them: a step waits for no store. In shared memory (D = 128): H twice, its blocks on and
    under the diagonal, 48 KB; k 16; b and then x, which a step touches once, 32; zeta_ti beta_i 8: 104 KB, two blocks
    an SM; e, w and u are 3 KB more. Each thread reads the x, each warp the weights that it wrote: neither needs a
    barrier.
    """
    P, B, T, H, D = k.shape
    N, halves, decays = tiles.chunks(T), D // SIDE, g is not None
    Q, lower, near = len(b), triangle(halves), isinstance(solver, PCG)
    cap = 10 * D if solver.max_steps is None else solver.max_steps
    least = max(solver.tol, float(jnp.finfo(jnp.float32).eps) ** 2) ** 2

    def body(*refs, k_s, H_s, bx_s, weights_s, g_s, g2_s, beta_s, lam_s, arrived, e_s=None, w_s=None, u_s=None):
        refs = iter(refs)
        b_g, k_g, H_g = next(refs), next(refs), next(refs)
        g_g = next(refs) if decays else None
        beta_g, lam_g = next(refs), next(refs)
        x_g = next(refs)
        bi, h, n = (lax.axis_index(name) for name in ("b", "h", "n"))
        tokens = pl.ds(n * SIDE, SIDE)
        columns = [pl.ds(c * SIDE, SIDE) for c in range(halves)]

        b_s, x_s = bx_s
        for i in range(Q):
            plgpu.copy_gmem_to_smem(b_g.at[i, bi, tokens, h], b_s.at[i], arrived)
        for i in range(P):
            plgpu.copy_gmem_to_smem(k_g.at[i, bi, tokens, h], k_s.at[i], arrived)
        for i in range(2):
            plgpu.copy_gmem_to_smem(H_g.at[bi, h, n, i], H_s.at[i], arrived)
        if decays:
            plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g_s, arrived)
            plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g2_s, arrived)
        plgpu.copy_gmem_to_smem(beta_g.at[bi, h, tokens], beta_s, arrived)
        plgpu.copy_gmem_to_smem(lam_g.at[h], lam_s, arrived)
        plgpu.barrier_wait(arrived)

        def hessian(i, r, c):
            if r < c:
                return transposed(hessian(i, c, r))
            return H_s.at[i, lower.index((r, c))]

        mask = tiles.causal("rows")
        if decays:
            row = plgpu.load(g_s, layout=tiles.PER_ROW)
            column = plgpu.load(g2_s, layout=tiles.PER_COLUMN)
            zeta = jnp.exp(jnp.where(mask, by_row(row) - by_column(column), -jnp.inf))
            zeta *= by_column(plgpu.load(beta_s, layout=tiles.PER_COLUMN))
            most = jnp.max(jnp.abs(zeta), axis=1)  # float16 has few exponents; and no later token is in it
            weights_s[...] = (zeta * by_row(ratio(jnp.ones_like(most), most))).astype(jnp.float16)
            spread = 1 / jnp.maximum(jnp.exp(row), FADED)

        def weighed(scores):
            if not decays:
                return jnp.where(mask, scores * by_column(plgpu.load(beta_s, layout=tiles.PER_COLUMN)), 0.0)
            weights = tiles.read(weights_s)
            return jnp.where(weights == 0, weights, weights * (scores * by_row(spread * most)))  # not 0 inf

        b = [whole_tile(columns_of(parts_of(b_s, Q), c)) for c in range(halves)]
        plgpu.commit_smem()  # all threads have read b, whose place x takes

        def by_channel(x_s, c):
            return by_column(plgpu.load(x_s.at[columns[c]], layout=tiles.PER_COLUMN))

        def prepare():
            """e and w of M into shared memory, and a."""
            row, column = tiles.places()
            blocks = [whole_tile(hessian(i, r, r) for i in range(2)) for r in range(halves)]
            diagonal = [jnp.sum(jnp.where(row == column, x, 0.0), axis=1) for x in blocks]
            trace = jnp.sum(sum(diagonal[1:], diagonal[0]))
            per_trace = jnp.where(trace >= jnp.finfo(jnp.float32).tiny, 1 / trace, 0.0)  # less of H is as good as none

            def along(v):
                """H v / trace. The tensor core takes no fewer than 8 columns: all are v."""
                for c in range(halves):
                    transposed(block(u_s, c))[...] = lax.broadcast_in_dim(v[c].astype(HALF), (SIDE, 8), (0,))
                plgpu.commit_smem()
                found = products(
                    *(
                        [(hessian(i, r, c), transposed(block(u_s, c))) for i in range(2) for c in range(halves)]
                        for r in range(halves)
                    )
                )
                plgpu.commit_smem()  # all threads are done with v
                return [jnp.sum(x, axis=1) * (per_trace / 8) for x in found]

            v = along([x * per_trace for x in diagonal])
            u = along(v)
            most = trace * ratio(dot(v, u), dot(v, v))
            rest = jnp.maximum(trace - most, 0.0) / (D - 1)
            ridge = [tiles.vector(lam_g.at[h, there], tiles.PER_ROW) + rest for there in columns]
            low = jnp.min(ridge[0] if halves == 1 else jnp.minimum(*ridge))
            theta = jnp.maximum(most - rest, 0.0) / low
            e, length = [low / x for x in ridge], jnp.sqrt(dot(u, u))
            u = [x * ratio(jnp.float32(1), length) for x in u]
            w = [e_c * u_c for e_c, u_c in zip(e, u, strict=True)]
            a = theta * dot(w, u)
            for c, there in enumerate(columns):
                e_s[there], w_s[there] = e[c], jnp.sqrt((1 - FLOOR) * theta / (1 + a)) * w[c]
            plgpu.commit_smem()  # for all threads
            return a

        def preconditioned(r, rr):
            """z = M r and r'z."""
            if not near:
                return r, rr
            z = [by_channel(e_s, c) * r_c for c, r_c in enumerate(r)]
            w = [by_channel(w_s, c) for c in range(halves)]
            hit = dots(w, r)
            share = hit * left if decays else hit
            return tuple(z_c - by_row(share) * w_c for z_c, w_c in zip(z, w, strict=True)), dots(z, r) - share * hit

        if near:
            a = prepare()
            left = (1 + a) / (spread + a) if decays else None
        unit = largest(b)  # dots must neither underflow nor overflow
        r = tuple(x * by_row(ratio(jnp.ones_like(unit), unit)) for x in b)
        for c in range(halves):
            x_s[:, columns[c]] = plgpu.layout_cast(jnp.zeros((SIDE, SIDE), jnp.float32), tiles.WGMMA)
        rr = dots(r, r)
        z, rz = preconditioned(r, rr)
        p = tuple(packed(z_c) for z_c in z)
        goal = least * rr

        def unfinished(rr):
            return jnp.max(plgpu.layout_cast(jnp.where(rr > goal, 1.0, 0.0), tiles.PER_ROW)) > 0

        def step(carry):
            j, _, p, r, rz = carry
            anew = tiles.unforeseen_zero(j)  # 22 % of the samples on an H200 waited for spilled descriptors
            k = parts_of(k_s, P, anew)

            def inside(scores):
                s = cut(weighed(scores))
                return [pairs(s, columns_of(k, c)) for c in range(halves)]

            Ap = tiles.products_with(
                inside,
                [(p[d], transposed(block(y, d))) for y in k for d in range(halves)],
                *([(p[d], hessian(anew + i, d, c)) for i in range(2) for d in range(halves)] for c in range(halves)),
            )
            wide, Ap = [p_c.astype(jnp.float32) for p_c in p], list(Ap)
            for c in range(halves):
                ridge = by_channel(lam_s, c) * wide[c]
                Ap[c] += ridge * by_row(spread) if decays else ridge
            alpha = by_row(ratio(rz, dots(wide, Ap)))
            r = tuple(r_c - alpha * Ap_c for r_c, Ap_c in zip(r, Ap, strict=True))
            rr = dots(r, r)
            z, new = preconditioned(r, rr)
            more = by_row(ratio(new, rz))
            for c in range(halves):
                x_s[:, columns[c]] = tiles.read(block(x_s, c)) + alpha * wide[c]
            p = tuple(packed(z_c + more * p_c) for z_c, p_c in zip(z, wide, strict=True))
            return j + 1, unfinished(rr), p, r, new

        start = jnp.zeros((), jnp.int32), unfinished(rr), p, r, rz
        *_, rz = lax.while_loop(lambda s: (s[0] < cap) & s[1], step, start)
        unit = jnp.where(rz < jnp.inf, unit * spread if decays else unit, jnp.nan)
        x = [tiles.read(block(x_s, c)) * by_row(unit) for c in range(halves)]
        plgpu.commit_smem()  # all threads have read x, whose place its parts take
        for c in range(halves):
            for i, part in enumerate(split(x[c])[:parts]):
                b_s[i, :, columns[c]] = part
        plgpu.commit_smem()
        for i in range(parts):
            plgpu.copy_smem_to_gmem(b_s.at[i], x_g.at[i, bi, tokens, h])
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    vector, per_channel = plgpu.SMEM((SIDE,), jnp.float32), plgpu.SMEM((D,), jnp.float32)
    copies = Q + P + 2 + 2 * decays + 2
    return tiles.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((parts, B, T, H, D), HALF),
        grid=(N, H, B),
        grid_names=("n", "h", "b"),
        barriers=False,
        scratch_types={
            "k_s": tiles.factor(P, SIDE, D, dtype=HALF),
            "H_s": tiles.factor(2, len(lower), SIDE, SIDE, dtype=HALF),
            "bx_s": plgpu.RefUnion(
                tiles.factor(2, SIDE, D, dtype=HALF),
                plgpu.SMEM((SIDE, D), jnp.float32, transforms=EIGHTS),
            ),
            "weights_s": tiles.factor(SIDE, SIDE, dtype=jnp.float16),
            "g_s": vector,
            "g2_s": vector,
            "beta_s": vector,
            "lam_s": per_channel,
            "arrived": plgpu.Barrier(num_arrivals=copies),
        }
        | ({"e_s": per_channel, "w_s": per_channel, "u_s": tiles.factor(8, D, dtype=HALF)} if near else {}),
    )(*(z for z in (b, k, H2, g, beta, lam) if z is not None))


def read(a, b, c, G, g, beta, *, parts, turned=False):
    """out_t = zeta_t G'a_t + sum_{i <= t} zeta_ti beta_i (a_t . b_i) c_i (turned: G), as ``parts`` 16-bit numbers.

    A block per head and chunk. In shared memory (D = 128, bfloat16; a or out are two numbers): a, b, c 64 KB or 48, G's
    part for 64 columns of out 32, out 16 or 32: 112 KB, two blocks an SM. The rest of G takes the place of the first
    part while the scores are weighed, which from registers are the next product's factor.
    """
    _, B, T, H, D = a.shape
    N, halves, decays = tiles.chunks(T), D // SIDE, g is not None
    A, P = len(a), len(b)

    def body(*refs, a_s, b_s, c_s, G_s, o_s, arrived, rest):
        refs = iter(refs)
        a_g, b_g, c_g, G_g = (next(refs) for _ in range(4))
        g_g, g2_g = (next(refs), next(refs)) if decays else (None, None)  # by row and by column: two layouts, two refs
        beta_g, o_g = next(refs), next(refs)
        bi, h, n = (lax.axis_index(name) for name in ("b", "h", "n"))
        tokens = pl.ds(n * SIDE, SIDE)

        def fetch(half, there):
            mine = pl.ds(half * SIDE, SIDE)
            for i in range(2):
                G = G_g.at[bi, h, n, i]
                plgpu.copy_gmem_to_smem(G.at[mine] if turned else G.at[:, mine], G_s.at[i], there)

        for x_g, x_s in ((a_g, a_s), (b_g, b_s), (c_g, c_s)):
            for i in range(x_s.shape[0]):
                plgpu.copy_gmem_to_smem(x_g.at[i, bi, tokens, h], x_s.at[i], arrived)
        fetch(0, arrived)
        beta = tiles.vector(beta_g.at[bi, h, tokens], tiles.PER_COLUMN)
        if decays:
            row = tiles.vector(g_g.at[bi, h, tokens], tiles.PER_ROW)
            column = tiles.vector(g2_g.at[bi, h, tokens], tiles.PER_COLUMN)
        plgpu.barrier_wait(arrived)

        a, b, c, G = parts_of(a_s, A), parts_of(b_s, P), parts_of(c_s, P), parts_of(G_s, 2)
        G = [transposed(x) if turned else x for x in G]
        scores, *found = products(pairs(a, turn(b)), pairs(a, G))
        if halves == 2:
            plgpu.commit_smem()  # all threads are done with the first half of G, whose place the second takes
            fetch(1, rest)
        mask = tiles.causal("rows")
        if decays:
            zeta = jnp.exp(jnp.where(mask, by_row(row) - by_column(column), -jnp.inf))
            scores = jnp.where(zeta == 0, zeta, scores * zeta)
        else:
            scores = jnp.where(mask, scores, 0.0)
        s = cut(scores * by_column(beta))
        inside = products(*(pairs(s, columns_of(c, j)) for j in range(halves)))
        if halves == 2:
            plgpu.barrier_wait(rest)
            found += products(pairs(a, G))
        for j in range(halves):
            o = inside[j] + (found[j] * by_row(jnp.exp(row)) if decays else found[j])
            for i, part in enumerate(split(o)[:parts]):
                o_s[i, :, pl.ds(j * SIDE, SIDE)] = part
        plgpu.commit_smem()
        for i in range(parts):
            plgpu.copy_smem_to_gmem(o_s.at[i], o_g.at[i, bi, tokens, h])
        plgpu.wait_smem_to_gmem(0)

    return tiles.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((parts, B, T, H, D), HALF),
        grid=(B, N, H),  # the last is the innermost: the heads of a token, which lie side by side
        grid_names=("b", "n", "h"),
        scratch_types={
            "a_s": tiles.factor(A, SIDE, D, dtype=HALF),
            "b_s": tiles.factor(P, SIDE, D, dtype=HALF),
            "c_s": tiles.factor(P, SIDE, D, dtype=HALF),
            "G_s": tiles.factor(2, *((SIDE, D) if turned else (D, SIDE)), dtype=HALF),
            "o_s": tiles.factor(parts, SIDE, D, dtype=HALF),
            "arrived": plgpu.Barrier(num_arrivals=A + 2 * P + 2),
            "rest": plgpu.Barrier(num_arrivals=2),
        },
    )(*(z for z in (a, b, c, G, g, g, beta) if z is not None))


def between(x, u, k, v, do, G, H, dG, dH, g, beta, lam):
    """dk, dv, dbeta, dlam and, if there are decays, by token u'diag(lam) x and, to be summed, what the chunk hands on.

    A block per head and chunk; rows are the tokens that write. In shared memory (D = 128, bfloat16): x, u, do, k and v
    16 KB each, dH's blocks on and under the diagonal 24: 104 KB, two blocks an SM. dG then takes the place of x and u,
    dk that of do and dv that of v. float16: twice that. In registers at most: dk and dv, 128, and the three tiles of
    scores that they are made of or a tile that is added to them.
    """
    P, B, T, heads, D = k.shape
    N, halves, decays = tiles.chunks(T), D // SIDE, g is not None
    under = triangle(halves)

    def body(*refs, reads_s, writes_s, H_s, arrived, states):
        refs = iter(refs)
        x_g, u_g, k_g, v_g, do_g = (next(refs) for _ in range(5))
        G_g, H_g = (next(refs), next(refs)) if decays else (None, None)
        dG_g, dH_g = next(refs), next(refs)
        g_g, g2_g = (next(refs), next(refs)) if decays else (None, None)  # by row and by column: two layouts, two refs
        beta_g, lam_g, dk_g, dv_g, dbeta_g, dlam_g = (next(refs) for _ in range(6))
        xu_g, whole_g = (next(refs), next(refs)) if decays else (None, None)
        bi, h, n = (lax.axis_index(name) for name in ("b", "h", "n"))
        tokens, columns = pl.ds(n * SIDE, SIDE), [pl.ds(c * SIDE, SIDE) for c in range(halves)]

        in_shared = [*parts_of(reads_s, 3), *parts_of(writes_s, 2)]
        for z_g, z_s in zip((x_g, u_g, do_g, k_g, v_g), in_shared, strict=True):
            for i in range(P):
                plgpu.copy_gmem_to_smem(z_g.at[i, bi, tokens, h], z_s.at[i], arrived)
        for i in range(P):
            for j in range(len(under)):
                plgpu.copy_gmem_to_smem(dH_g.at[bi, h, n, i, j], H_s.at[j, i], states)
        beta = tiles.vector(beta_g.at[bi, h, tokens], tiles.PER_ROW)
        if decays:
            row = tiles.vector(g_g.at[bi, h, tokens], tiles.PER_ROW)
            column = tiles.vector(g2_g.at[bi, h, tokens], tiles.PER_COLUMN)
            end = g_g[bi, h, n * SIDE + SIDE - 1]
        plgpu.barrier_wait(arrived)

        x, u, do, k, v = (parts_of(z, P) for z in in_shared)
        read_lam = 0.0
        for c, there in enumerate(columns):
            xu = whole_tile(columns_of(x, c)) * whole_tile(columns_of(u, c))
            dlam_g[bi, h, n, there] = -jnp.sum(xu, axis=0)
            if decays:
                ridge = by_column(tiles.vector(lam_g.at[h, there], tiles.PER_COLUMN))
                read_lam = read_lam + jnp.sum(xu * ridge, axis=1)
        if decays:
            xu_g[bi, h, tokens] = read_lam

        kx, ku, vdo = products(pairs(k, turn(x)), pairs(k, turn(u)), pairs(v, turn(do)))  # row: the token that wrote
        rest, mask = vdo - ku, tiles.causal("columns")
        if decays:
            zeta = jnp.exp(jnp.where(mask, by_column(column) - by_row(row), -jnp.inf))
            kx, to_x = (jnp.where(zeta == 0, zeta, z * zeta) for z in (kx, rest))
        else:
            kx, to_x = jnp.where(mask, kx, 0.0), jnp.where(mask, rest, 0.0)
        dbeta = jnp.sum(kx * rest, axis=1)
        to_x, to_u, to_do = (split(z)[:P] for z in (to_x, -kx, kx))
        inside = products(
            *(pairs(to_x, columns_of(x, c)) + pairs(to_u, columns_of(u, c)) for c in range(halves)),
            *(pairs(to_do, columns_of(do, c)) for c in range(halves)),
        )
        plgpu.commit_smem()  # all threads are done with x, u and do, whose places dG and dk take
        for i in range(P):
            for r in range(halves):
                plgpu.copy_gmem_to_smem(dG_g.at[bi, h, n, i, columns[r]], reads_s.at[r, i], states)
        plgpu.barrier_wait(states)

        anew = tiles.unforeseen_zero(n)  # or the descriptors of x and u, which are dG's too, are kept in registers
        slope_G = [parts_of(reads_s.at[anew + r], P) for r in range(halves)]

        def slope_H(r, c):
            tile = parts_of(H_s.at[under.index((max(r, c), min(r, c)))], P)
            return tile if r >= c else turn(tile)

        left = by_row(jnp.exp(end - row)) if decays else 1.0
        handed_on = 0.0
        for c, there in enumerate(columns):
            (more,) = products(
                pairs(v, turn(slope_G[c])) + [y for r in range(halves) for y in pairs(columns_of(k, r), slope_H(r, c))]
            )
            more = left * more
            handed_on = handed_on + jnp.sum(whole_tile(columns_of(k, c)) * more, axis=1)  # k'(dG v + dH k)
            for i, part in enumerate(split(by_row(beta) * (inside[c] + more))[:P]):
                reads_s[2, i, :, there] = part
        dv = []
        for c in range(halves):
            (more,) = products([y for r in range(halves) for y in pairs(columns_of(k, r), columns_of(slope_G[r], c))])
            more = left * more
            handed_on = handed_on + jnp.sum(whole_tile(columns_of(v, c)) * more, axis=1)  # v'dG'k
            dv.append(by_row(beta) * (inside[halves + c] + more))
        dbeta_g[bi, h, tokens] = dbeta + handed_on / 2
        plgpu.commit_smem()  # all threads are done with v
        for c, there in enumerate(columns):
            for i, part in enumerate(split(dv[c])[:P]):
                writes_s[1, i, :, there] = part
        plgpu.commit_smem()
        for i in range(P):
            plgpu.copy_smem_to_gmem(reads_s.at[2, i], dk_g.at[i, bi, tokens, h])
            plgpu.copy_smem_to_gmem(writes_s.at[1, i], dv_g.at[i, bi, tokens, h])
        if decays:
            both = 0.0
            for i in range(P):
                for r in range(halves):
                    for c in range(halves):
                        G = tiles.vector(G_g.at[bi, h, n, i, columns[r], columns[c]], tiles.WGMMA).astype(jnp.float32)
                        both = both + jnp.sum(G * whole_tile(columns_of(slope_G[r], c)), axis=1)
                for j, (r, c) in enumerate(under):
                    H = tiles.vector(H_g.at[bi, h, n, i, j], tiles.WGMMA).astype(jnp.float32)
                    both = both + (0.5 if r == c else 1.0) * jnp.sum(H * whole_tile(slope_H(r, c)), axis=1)
            whole_g[bi, h, n] = beta * handed_on / 2 + jnp.exp(end) * both
        plgpu.wait_smem_to_gmem(0)

    per_token = jax.ShapeDtypeStruct((B, heads, N * SIDE), jnp.float32)
    result = jax.ShapeDtypeStruct(k.shape, HALF)
    dk, dv, dbeta, dlam, *sums = tiles.kernel(
        body,
        out_type=[result, result, per_token, jax.ShapeDtypeStruct((B, heads, N, D), jnp.float32)]
        + ([per_token, jax.ShapeDtypeStruct((B, heads, N, SIDE), jnp.float32)] if decays else []),
        grid=(B, N, heads),
        grid_names=("b", "n", "h"),
        scratch_types={
            "reads_s": tiles.factor(3, P, SIDE, D, dtype=HALF),
            "writes_s": tiles.factor(2, P, SIDE, D, dtype=HALF),
            "H_s": tiles.factor(len(under), P, SIDE, SIDE, dtype=HALF),
            "arrived": plgpu.Barrier(num_arrivals=5 * P),
            "states": plgpu.Barrier(num_arrivals=P * (halves + len(under))),
        },
    )(*(z for z in (x, u, k, v, do, *((G, H) if decays else ()), dG, dH, g, g, beta, lam) if z is not None))
    return dk, dv, dbeta, dlam.sum((0, 2)), *sums


def triangle(halves):
    """(row, column) of the blocks of a symmetric matrix on and under its diagonal."""
    return [(r, c) for r in range(halves) for c in range(r + 1)]


def parts_of(x, n, start=0):
    return [x.at[start + i] for i in range(n)]


def columns_of(x, c):
    """The c-th 64 columns of each part."""
    return [block(z, c) for z in x]


def whole_tile(x):
    """The sum of a tile's parts, in registers."""
    first, *others = (tiles.read(z) for z in x)
    return sum(others, first)  # not from 0: the compiler must add it, for -0


def turn(x):
    return [transposed(z) for z in x]


def pairs(a, b):
    """The products of sums of parts, but for those that are smaller than what is left of either sum."""
    return [(y, z) for i, y in enumerate(a) for j, z in enumerate(b) if i + j < max(len(a), len(b))]


def dots(x, y):
    """x_t . y_t for the 64 rows of tiles side by side."""
    x, y = ([z_c[:, j : j + 8] for z_c in z for j in range(0, z_c.shape[1], 8)] for z in (x, y))
    first, *others = (x_j * y_j for x_j, y_j in zip(x, y, strict=True))
    return jnp.sum(sum(others, first), axis=1)  # 8 columns at a time, or the sum is one of products


def dot(x, y):
    """The inner product of two vectors, each in pieces of 64."""
    first, *others = (x_c * y_c for x_c, y_c in zip(x, y, strict=True))
    return jnp.sum(sum(others, first))


def largest(x):
    """The largest |entry| of each of the 64 rows."""
    return (
        plgpu.layout_cast(jnp.max(jnp.abs(x[0]), axis=1), tiles.PER_ROW)
        if len(x) == 1
        else jnp.maximum(*(jnp.max(jnp.abs(x_c), axis=1) for x_c in x))
    )


def ratio(a, b):
    """a / b, and 0 for 0 / 0."""
    return jnp.where(b == 0, 0.0, a / jnp.where(b == 0, 1.0, b))
