"""Mesa on a Hopper GPU, forward and backward: a walk from chunk to chunk, and all else for every chunk by itself.

With S = [G | H] the two statistics before a chunk of 64, zeta_t what t finds of them and zeta_ti of the write at i,

    A_t = zeta_t H + sum_{i <= t} zeta_ti beta_i k_i k_i' + diag(lam)
    x_t = A_t^-1 q_t,    o_t = zeta_t G'x_t + sum_{i <= t} zeta_ti beta_i (k_i . x_t) v_i

**Forward**: ``walk`` leaves S at each chunk's start, ``solve`` finds x, ``read`` makes o of it.

**Backward** (MesaNet App. D, notebook 06). u_t = A_t^-1 g_t is dq_t, where ``read`` makes g_t = G_t do_t and the same
``solve`` finds u. The slopes of the statistics, dG = sum_t zeta_ti x_t do_t' and dH = -sum_t zeta_ti (u_t x_t' +
x_t u_t'), which is twice its symmetric part, are the same walk from the end. Then, from the chunk and what follows it,

    dv_i = beta_i (sum_t zeta_ti (k_i . x_t) do_t + zeta_Ci dG'k_i)                                       (``read``)
    dk_i = beta_i (sum_t zeta_ti ((v_i . do_t - k_i . u_t) x_t - (k_i . x_t) u_t) + zeta_Ci (dG v_i + dH k_i))
    dbeta_i = sum_t zeta_ti (k_i . x_t)(v_i . do_t - k_i . u_t) + zeta_Ci k_i'(dG v_i + dH k_i / 2)      (``between``)
    dlam = -sum_t u_t x_t  (by channel)

**The decay.** exp(G_t), the sum of log gamma from the chunk's start to t, multiplies both statistics that t reads and
exp(-G_i) what i writes. Scaling both by s makes o = s G'(s H + Lam)^-1 q, whose slope is that of Lam alone:
dG_t = u_t'diag(lam) x_t - beta_t dbeta_t, and G_C gets what the whole chunk hands on, <G, dG> + <H, dH> / 2 at its end.

**Numbers.** Every product has bfloat16 factors and a float32 sum; float16 arguments come as a sum of two bfloat16. What
the solver reads is twice that, 16 bits: H (with 8, at 4096 collinear keys, H + Lam is indefinite), the scores inside
the chunk, x. The direction p is rounded to 8 bits, and **the rounded p** is what x and r are updated with, so r stays
the residual of x; only the conjugacy suffers, and no step is lost. So the error of x is that of A: 5e-4 at a condition
number of 16000. bfloat16 has the exponents of float32: an upstream gradient of 1e-6 costs no digits.

**What should limit it** (B 16, T 2048, H 12, D 128; arithmetic, not measured yet): a step multiplies 64 x 128 x 448
numbers twice over, 1800 cycles of a tensor core that 2 blocks share, 0.06 ms for all 6144 chunks; S costs 0.8 GB, or
0.2 ms to write and as much to read.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float

from ttt_teach.rules import tiles
from ttt_teach.rules.tiles import SIDE, block, by_column, by_row, products, transposed
from ttt_teach.solvers import CG, PCG
from ttt_teach.solvers.cholesky import inverse_factor
from ttt_teach.solvers.precision import full_precision

HALF = jnp.bfloat16  # of every factor: the exponents of float32, and a second number for the bits that a first leaves
RANK = 32  # directions of H that the preconditioner knows
FLOOR = 2.0**-6  # the least share of a residual that it leaves in one
FADED = 2.0**-60  # less than this of H and H counts as this


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
    S = jnp.concatenate([zero if G is None else G, zero if H is None else H], axis=-1)
    o, S = _heads(q, k, v, beta, g, lam, S, solver)
    return o[:, :T], S[..., :D], S[..., D:]


def in_parts(x):
    """``[P, B, T, H, D]``, bfloat16: P is 1 for bfloat16 and 2 for float16."""
    return x[None] if x.dtype == HALF else jnp.stack(split(x.astype(jnp.float32)))


@partial(jax.custom_vjp, nondiff_argnums=(7,))
def _heads(q, k, v, beta, g, lam, S, solver):
    return _forward(q, k, v, beta, g, lam, S, solver)[0]


def _forward(q, k, v, beta, g, lam, S, solver):
    q2, k2, v2 = (in_parts(x) for x in (q, k, v))
    signs = probes(k.shape[-1]) if isinstance(solver, PCG) else None
    last, borders, *sketch = walk([(k2, v2, k2, (1.0, 1.0))], g, beta, S, parts=2, signs=signs)
    near = each_chunk(nystrom)(sketch[0], signs, lam) if sketch else None
    x = solve(q2, k2, borders, g, beta, lam, near, solver=solver)
    o = read(x, k2, v2, borders, g, beta, place="o", dtype=v.dtype)
    return (o, last), (k, v, beta, g, lam, borders, near, x)


def _backward(solver, kept, slopes):
    k, v, beta, g, lam, borders, near, x = kept
    do, dlast = slopes
    D, dtype = k.shape[-1], k.dtype
    k, v, do = (in_parts(z) for z in (k, v, do))
    P = len(k)
    b = read(do, v, k, borders, g, beta, place="b")
    u = solve(b, k, borders, g, beta, lam, near, solver=solver)
    dG, dH = dlast[..., :D], dlast[..., D:]
    dlast = jnp.concatenate([dG, dH + dH.mT], axis=-1)
    x1, u1 = x[:P], u[:P]
    dfirst, dborders = walk(
        [(x1, do, u1, (1.0, -1.0)), (u1, x1, x1, (0.0, -1.0))], g, None, dlast, backward=True, parts=P
    )
    dv = read(k, x, do, dborders, g, beta, place="dv", dtype=dtype)
    dk, dbeta, dlam, *decays = between(x1, u1, k, v, do, borders, dborders, g, beta, lam, dtype=dtype)
    dg = None
    if decays:
        reads, whole = decays
        dg = (reads - beta * dbeta).reshape(*beta.shape[:2], -1, SIDE)
        dg = dg.at[..., -1].add(whole.reshape(dg.shape).sum(-1)).reshape(beta.shape)
    dq = u[0] if P == 1 else (u[0].astype(jnp.float32) + u[1].astype(jnp.float32)).astype(dtype)
    dfirst = jnp.concatenate([dfirst[..., :D], dfirst[..., D:] / 2], axis=-1)
    return dq, dk, dv, dbeta, dg, dlam, dfirst


_heads.defvjp(_forward, _backward)


def probes(D):
    """RANK directions of signs, exact in 16 bits."""
    return jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (RANK, D)), HALF)


def each_chunk(f):
    """f of ``[B, H, N, ...]``, something shared and ``[H, ...]``."""
    return jax.vmap(jax.vmap(jax.vmap(f, (0, None, None)), (0, None, 0)), (0, None, None))


@full_precision
def nystrom(Y, signs, lam):
    """(U, e): diag(e) - U'U is about (H + diag(lam))^-1, from Y = H signs' (Nystrom; Halko et al. 2011, Alg. 5.5).

    It knows no token of the chunk, so any number of steps is causal, and a split of the sequence at a chunk's border
    changes nothing. No step is saved where H has no large eigenvalues (random keys), or has all but faded.

    H ~ Y (signs Y)^-1 Y' = B B', and as much in every other direction as its trace leaves, so with W = 1 + B'diag(e)B

        (diag(1/e) + B B')^-1 = diag(e) - diag(e) B W^-1 B' diag(e)

    U has 16 bits, so the second term must not come nearer to the first than these resolve: less FLOOR of it.
    """
    D = len(lam)
    signs = signs.astype(Y.dtype)
    core = signs @ Y
    trace = jnp.trace(core) / RANK  # of H, as signs estimate it
    shift = 1e-6 * trace + 1e-30
    B = (Y + shift * signs.T) @ inverse_factor((core + core.T) / 2 + shift * (signs @ signs.T)).T
    rest = jnp.maximum(trace - jnp.sum(B * B), 0) / (D - RANK)
    e = 1 / (lam + rest)
    U = inverse_factor(jnp.eye(RANK, dtype=Y.dtype) + B.T @ (e[:, None] * B)) @ (e[:, None] * B).T
    return jnp.pad((1 - FLOOR) ** 0.5 * U, [(0, SIDE - RANK), (0, 0)]).astype(HALF), e


def walk(terms, g, beta, start, *, backward=False, parts, signs=None):
    """The last S, S at each chunk's start (backward: its end) as ``parts`` numbers and, given signs, H signs' there.

    S <- exp(G_C) S + sum_t w_t a_t c_t' for S = [G | H], 2 D columns; a block has 64 of them, in registers from the
    first chunk to the last. w_t = beta_t exp(G_C - G_t), or exp(G_t) backwards. terms: a, the c of G, that of H, and
    their factors. In shared memory (D = 128, one part): forward two slots of a and c, 48 KB, c's low part 8, S 32:
    88 KB, two blocks an SM; backward, with two terms, 128 KB.
    """
    a0 = terms[0][0]
    P, B, T, H, D = a0.shape
    N, halves, J = tiles.chunks(T), D // SIDE, len(terms)
    decays = g is not None
    flat = [x for a, cG, cH, _ in terms for x in (a, cG, cH)]

    def body(*refs, a_s, c_s, low_s, S_s, g_s, w_s, arrived, signs_s=None, ready=None):
        refs = iter(refs)
        sources = [tuple(next(refs) for _ in range(3)) for _ in terms]
        g_g = next(refs) if decays else None
        w_g = None if backward else next(refs)
        start_g = next(refs)
        signs_g = None if signs is None else next(refs)
        last_g, S_g = next(refs), next(refs)
        sketch_g = None if signs is None else next(refs)
        bi, h, column = lax.axis_index("b"), lax.axis_index("h"), lax.axis_index("column")
        mine = pl.ds(column * SIDE, SIDE)
        of_G = column < halves
        half = pl.ds(jnp.where(of_G, column, column - halves) * SIDE, SIDE)

        def place(n):
            return N - 1 - n if backward else n

        def fetch(n):
            slot, tokens = n & 1, pl.ds(place(n) * SIDE, SIDE)
            there = arrived.at[slot]
            for j, (a, cG, cH) in enumerate(sources):
                for i in range(P):
                    plgpu.copy_gmem_to_smem(a.at[i, bi, tokens, h], a_s.at[slot, j, i], there)
                    for here, c in ((of_G, cG), (~of_G, cH)):
                        pl.when(here)(
                            lambda c=c, j=j, i=i: plgpu.copy_gmem_to_smem(
                                c.at[i, bi, tokens, h, half], c_s.at[slot, j, i], there
                            )
                        )
            if decays:
                plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g_s.at[slot], there)
            if not backward:
                plgpu.copy_gmem_to_smem(w_g.at[bi, h, tokens], w_s.at[slot], there)

        def store_state(S):
            for r, S_r in enumerate(S):
                for i, part in enumerate(split(S_r)[:parts]):
                    S_s[i, pl.ds(r * SIDE, SIDE)] = part
            plgpu.commit_smem()

        def sketch(n):
            (y,) = products([(transposed(S_s.at[i]), transposed(signs_s)) for i in range(parts)])
            sketch_g[bi, h, n, half] = y

        def chunk(n, S):
            slot = n & 1
            pl.when(n + 1 < N)(lambda: fetch(n + 1))
            for i in range(parts):
                plgpu.copy_smem_to_gmem(S_s.at[i], S_g.at[i, bi, h, place(n), :, mine])
            plgpu.barrier_wait(arrived.at[slot])
            if signs is not None:
                pl.when(~of_G)(lambda: sketch(n))
            weight, fade = None, 1.0
            if decays:
                row, end = plgpu.load(g_s.at[slot], layout=tiles.PER_ROW), g_s[slot, SIDE - 1]
                weight, fade = jnp.exp(row if backward else end - row), jnp.exp(end)
            if not backward:
                kept = plgpu.load(w_s.at[slot], layout=tiles.PER_ROW)
                weight = kept if weight is None else kept * weight
            for j, (*_, sign) in enumerate(terms):
                c = sum(tiles.read(c_s.at[slot, j, i]) for i in range(P))
                c = c * jnp.where(of_G, *sign)
                c = c if weight is None else c * by_row(weight)
                c_s[slot, j, 0], low_s[j] = split(c)
            plgpu.commit_smem()
            written = products(
                *(
                    [
                        (transposed(block(a_s.at[slot, j, i], r)), c)
                        for j in range(J)
                        for i, c in [(0, c_s.at[slot, j, 0]), (0, low_s.at[j]), (1, c_s.at[slot, j, 0])][: P + 1]
                    ]
                    for r in range(halves)
                )
            )
            S = tuple(fade * S_r + more for S_r, more in zip(S, written, strict=True))
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            store_state(S)
            return S

        fetch(jnp.zeros((), jnp.int32))
        if signs is not None:
            plgpu.copy_gmem_to_smem(signs_g, signs_s, ready)
            plgpu.barrier_wait(ready)
        rows = [pl.ds(r * SIDE, SIDE) for r in range(halves)]
        S = tuple(plgpu.load(start_g.at[bi, h, r, mine], layout=tiles.WGMMA, optimized=False) for r in rows)
        store_state(S)
        S = tiles.steps(N, chunk, S)
        for r, S_r in zip(rows, S, strict=True):
            last_g[bi, h, r, mine] = S_r
        plgpu.wait_smem_to_gmem(0)

    copies = 2 * P * J + decays + (not backward)
    return tiles.kernel(
        body,
        out_type=[
            jax.ShapeDtypeStruct((B, H, D, 2 * D), jnp.float32),
            jax.ShapeDtypeStruct((parts, B, H, N, D, 2 * D), HALF),
        ]
        + ([] if signs is None else [jax.ShapeDtypeStruct((B, H, N, D, RANK), jnp.float32)]),
        grid=(2 * halves, H, B),
        grid_names=("column", "h", "b"),
        scratch_types={
            "a_s": tiles.factor(2, J, P, SIDE, D, dtype=HALF),
            "c_s": tiles.factor(2, J, P, SIDE, SIDE, dtype=HALF),
            "low_s": tiles.factor(J, SIDE, SIDE, dtype=HALF),
            "S_s": tiles.factor(parts, D, SIDE, dtype=HALF),
            "g_s": plgpu.SMEM((2, SIDE), jnp.float32),
            "w_s": plgpu.SMEM((2, SIDE), jnp.float32),
            "arrived": plgpu.Barrier(num_arrivals=copies, num_barriers=2),
        }
        | ({} if signs is None else {"signs_s": tiles.factor(RANK, D, dtype=HALF), "ready": plgpu.Barrier()}),
    )(*flat, *(z for z in (g, None if backward else beta, start, signs) if z is not None))


def split(x):
    """x as a 16-bit number and what that leaves: 16 bits of it together."""
    high = x.astype(HALF)
    return high, (x - high.astype(jnp.float32)).astype(HALF)


def solve(b, k, S, g, beta, lam, near, *, solver):
    """x with A_t x_t = b_t as two 16-bit numbers, the 64 tokens of a chunk at once: a block per chunk and head.

    CG (solvers/cg.py), until every token of the chunk is done, on A_t / zeta_t = H + sum_i (zeta_ti / zeta_t) beta_i
    k_i k_i' + diag(lam / zeta_t), so that one sum takes p H and the scores times k. near: U and e of ``nystrom``.

    In registers: x, r and A p, 64 x D float32 each. In shared memory (D = 128): H twice, its blocks on and under the
    diagonal, 48 KB; k, p and the scores 16 KB each, zeta_ti 8: 104 KB, two blocks an SM; U is 16 KB more. p, the scores
    and zeta_ti are written and read by the rows of a warp, which are its own; commits are for the tensor core.
    """
    P, B, T, H, D = k.shape
    N, halves, decays = tiles.chunks(T), D // SIDE, g is not None
    Q, (U, easy) = len(b), near or (None, None)
    lower = [(r, c) for r in range(halves) for c in range(r + 1)]
    cap = 10 * D if solver.max_steps is None else solver.max_steps
    least = max(solver.tol, float(jnp.finfo(jnp.float32).eps) ** 2) ** 2

    def body(*refs, k_s, p_s, s_s, H_s, zeta_s, g_s, g2_s, beta_s, lam_s, arrived, U_s=None, easy_s=None):
        refs = iter(refs)
        b_g, k_g, S_g = next(refs), next(refs), next(refs)
        g_g = next(refs) if decays else None
        beta_g, lam_g = next(refs), next(refs)
        U_g, easy_g = (next(refs), next(refs)) if near else (None, None)
        x_g = next(refs)
        bi, h, n = (lax.axis_index(name) for name in ("b", "h", "n"))
        tokens = pl.ds(n * SIDE, SIDE)
        columns = [pl.ds(c * SIDE, SIDE) for c in range(halves)]

        plgpu.copy_gmem_to_smem(b_g.at[0, bi, tokens, h], p_s, arrived)
        if Q == 2:
            for c in range(halves):
                plgpu.copy_gmem_to_smem(b_g.at[1, bi, tokens, h, columns[c]], s_s.at[c], arrived)
        for i in range(P):
            plgpu.copy_gmem_to_smem(k_g.at[i, bi, tokens, h], k_s.at[i], arrived)
        for i in range(2):
            for j, (r, c) in enumerate(lower):
                there = pl.ds(D + c * SIDE, SIDE)
                plgpu.copy_gmem_to_smem(S_g.at[i, bi, h, n, columns[r], there], H_s.at[i, j], arrived)
        if decays:
            plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g_s, arrived)
            plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g2_s, arrived)
        plgpu.copy_gmem_to_smem(beta_g.at[bi, h, tokens], beta_s, arrived)
        plgpu.copy_gmem_to_smem(lam_g.at[h], lam_s, arrived)
        if near:
            plgpu.copy_gmem_to_smem(easy_g.at[bi, h, n], easy_s, arrived)
            plgpu.copy_gmem_to_smem(U_g.at[bi, h, n], U_s, arrived)
        plgpu.barrier_wait(arrived)

        def hessian(i, r, c):
            if r < c:
                return transposed(hessian(i, c, r))
            return H_s.at[i, lower.index((r, c))]

        mask = tiles.causal("rows")
        if decays:
            row = plgpu.load(g_s, layout=tiles.PER_ROW)
            column = plgpu.load(g2_s, layout=tiles.PER_COLUMN)
            zeta_s[...] = jnp.exp(jnp.where(mask, by_row(row) - by_column(column), -jnp.inf)).astype(jnp.float16)

        def weighed(scores):
            if not decays:
                return jnp.where(mask, scores * by_column(plgpu.load(beta_s, layout=tiles.PER_COLUMN)), 0.0)
            zeta = tiles.read(zeta_s)
            some = scores * by_column(plgpu.load(beta_s, layout=tiles.PER_COLUMN)) * by_row(spread)
            return jnp.where(zeta == 0, 0.0, zeta * some)

        spread = 1 / jnp.maximum(jnp.exp(row), FADED) if decays else None
        b = [tiles.read(block(p_s, c)) for c in range(halves)]
        if Q == 2:
            b = [high + tiles.read(s_s.at[c]) for c, high in enumerate(b)]

        def preconditioned(r, rr):
            if not near:
                return r, rr
            for c in range(halves):
                p_s[:, columns[c]] = r[c].astype(HALF)
            plgpu.commit_smem()
            (along,) = products([(p_s, transposed(U_s))])
            s_s[0] = along.astype(HALF)
            plgpu.commit_smem()
            known = products(*([(s_s.at[0], block(U_s, c))] for c in range(halves)))
            z = tuple(
                by_column(plgpu.load(easy_s.at[columns[c]], layout=tiles.PER_COLUMN)) * r[c] - known[c]
                for c in range(halves)
            )
            return z, dots(r, z)

        unit = largest(b)  # dots must neither underflow nor overflow
        r = tuple(x * by_row(ratio(jnp.ones_like(unit), unit)) for x in b)
        x = tuple(plgpu.layout_cast(jnp.zeros((SIDE, SIDE), jnp.float32), tiles.WGMMA) for _ in r)
        rr = dots(r, r)
        z, rz = preconditioned(r, rr)
        for c in range(halves):
            p_s[:, columns[c]] = z[c].astype(HALF)
        plgpu.commit_smem()
        goal = least * rr

        def unfinished(rr):
            return jnp.max(plgpu.layout_cast(jnp.where(rr > goal, 1.0, 0.0), tiles.PER_ROW)) > 0

        def step(carry):
            j, _, x, r, rz = carry
            (scores,) = products([(p_s, transposed(k_s.at[i])) for i in range(P)])
            s_s[0], s_s[1] = split(weighed(scores))
            plgpu.commit_smem()
            Ap = products(
                *(
                    [(block(p_s, s), hessian(i, s, c)) for i in range(2) for s in range(halves)]
                    + [(s_s.at[0], block(k_s.at[i], c)) for i in range(P)]
                    + [(s_s.at[1], block(k_s.at[0], c))]
                    for c in range(halves)
                )
            )
            p = [tiles.read(block(p_s, c)) for c in range(halves)]
            for c in range(halves):
                ridge = by_column(plgpu.load(lam_s.at[columns[c]], layout=tiles.PER_COLUMN)) * p[c]
                Ap = (*Ap[:c], Ap[c] + (ridge * by_row(spread) if decays else ridge), *Ap[c + 1 :])
            alpha = by_row(ratio(dots(p, r), dots(p, Ap)))
            x = tuple(x_c + alpha * p_c for x_c, p_c in zip(x, p, strict=True))
            r = tuple(r_c - alpha * Ap_c for r_c, Ap_c in zip(r, Ap, strict=True))
            rr = dots(r, r)
            z, new = preconditioned(r, rr)
            more = by_row(ratio(new, rz))
            for c in range(halves):
                p_s[:, columns[c]] = (z[c] + more * p[c]).astype(HALF)
            plgpu.commit_smem()
            return j + 1, unfinished(rr), x, r, new

        start = jnp.zeros((), jnp.int32), unfinished(rr), x, r, rz
        _, _, x, _, rz = lax.while_loop(lambda s: (s[0] < cap) & s[1], step, start)
        unit = jnp.where(rz < jnp.inf, unit * spread if decays else unit, jnp.nan)
        for c in range(halves):
            high, low = split(x[c] * by_row(unit))
            p_s[:, columns[c]], s_s[c] = high, low
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(p_s, x_g.at[0, bi, tokens, h])
        for c in range(halves):
            plgpu.copy_smem_to_gmem(s_s.at[c], x_g.at[1, bi, tokens, h, columns[c]])
        plgpu.wait_smem_to_gmem(0)

    vector = plgpu.SMEM((SIDE,), jnp.float32)
    copies = 1 + (Q == 2) * halves + P + 2 * len(lower) + 2 * decays + 2 + 2 * bool(near)
    return tiles.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((2, B, T, H, D), HALF),
        grid=(N, H, B),
        grid_names=("n", "h", "b"),
        scratch_types={
            "k_s": tiles.factor(P, SIDE, D, dtype=HALF),
            "p_s": tiles.factor(SIDE, D, dtype=HALF),
            "s_s": tiles.factor(2, SIDE, SIDE, dtype=HALF),
            "H_s": tiles.factor(2, len(lower), SIDE, SIDE, dtype=HALF),
            "zeta_s": tiles.factor(SIDE, SIDE, dtype=jnp.float16),
            "g_s": vector,
            "g2_s": vector,
            "beta_s": vector,
            "lam_s": plgpu.SMEM((D,), jnp.float32),
            "arrived": plgpu.Barrier(num_arrivals=copies),
        }
        | ({"U_s": tiles.factor(SIDE, D, dtype=HALF), "easy_s": plgpu.SMEM((D,), jnp.float32)} if near else {}),
    )(*(z for z in (b, k, S, g, beta, lam, U, easy) if z is not None))


def read(a, b, c, S, g, beta, *, place, dtype=None):
    """out_t = zeta_t a_t M + sum_{i <= t} zeta_ti beta_i (a_t . b_i) c_i for 64 columns of out: linear attention.

    place "o": M is G; "b": M is G', and out is two 16-bit numbers; "dv": M is dG at the chunk's end, which t reaches
    by zeta_Ct, i >= t, and beta_t takes the place of beta_i. In shared memory (D = 128): 112 KB at most in bfloat16.
    """
    _, B, T, H, D = a.shape
    N, halves, decays = tiles.chunks(T), D // SIDE, g is not None
    A, P, C, M = len(a), len(b), len(c), len(S)
    later, turned = place == "dv", place == "b"

    def body(*refs, a_s, b_s, c_s, M_s, s_s, o_s, g_s, g2_s, beta_s, arrived):
        refs = iter(refs)
        a_g, b_g, c_g, S_g = (next(refs) for _ in range(4))
        g_g = next(refs) if decays else None
        beta_g, o_g = next(refs), next(refs)
        half, n, h, bi = (lax.axis_index(name) for name in ("half", "n", "h", "b"))
        tokens, mine = pl.ds(n * SIDE, SIDE), pl.ds(half * SIDE, SIDE)

        for i in range(A):
            plgpu.copy_gmem_to_smem(a_g.at[i, bi, tokens, h], a_s.at[i], arrived)
        for i in range(P):
            plgpu.copy_gmem_to_smem(b_g.at[i, bi, tokens, h], b_s.at[i], arrived)
        for i in range(C):
            plgpu.copy_gmem_to_smem(c_g.at[i, bi, tokens, h, mine], c_s.at[i], arrived)
        for i in range(M):
            G = S_g.at[i, bi, h, n]
            plgpu.copy_gmem_to_smem(G.at[mine, pl.ds(0, D)] if turned else G.at[:, mine], M_s.at[i], arrived)
        if decays:
            plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g_s, arrived)
            plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g2_s, arrived)
        plgpu.copy_gmem_to_smem(beta_g.at[bi, h, tokens], beta_s, arrived)
        plgpu.barrier_wait(arrived)

        a, b, c = parts(a_s), parts(b_s), parts(c_s)
        state = [transposed(x) if turned else x for x in parts(M_s)]
        scores, o = products(pairs(a, [transposed(x) for x in b]), pairs(a, state))
        mask = tiles.causal("columns" if later else "rows")
        if decays:
            row = plgpu.load(g_s, layout=tiles.PER_ROW)
            column = plgpu.load(g2_s, layout=tiles.PER_COLUMN)
            away = by_column(column) - by_row(row) if later else by_row(row) - by_column(column)
            zeta = jnp.exp(jnp.where(mask, away, -jnp.inf))
            scores = jnp.where(zeta == 0, 0.0, scores * zeta)
            o = o * by_row(jnp.exp(g_s[SIDE - 1] - row if later else row))
        else:
            scores = jnp.where(mask, scores, 0.0)
        if not later:
            scores = scores * by_column(plgpu.load(beta_s, layout=tiles.PER_COLUMN))
        s_s[0], s_s[1] = split(scores)
        plgpu.commit_smem()
        (inside,) = products(pairs(parts(s_s), c))
        o = o + inside
        if later:
            o = o * by_row(plgpu.load(beta_s, layout=tiles.PER_ROW))
        if dtype is None:
            o_s[0], o_s[1] = split(o)
        else:
            o_s[0] = o.astype(dtype)
        plgpu.commit_smem()
        if dtype is None:
            for i in range(2):
                plgpu.copy_smem_to_gmem(o_s.at[i], o_g.at[i, bi, tokens, h, mine])
        else:
            plgpu.copy_smem_to_gmem(o_s.at[0], o_g.at[bi, tokens, h, mine])
        plgpu.wait_smem_to_gmem(0)

    vector = plgpu.SMEM((SIDE,), jnp.float32)
    shape = (B, T, H, D)
    return tiles.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((2, *shape), HALF) if dtype is None else jax.ShapeDtypeStruct(shape, dtype),
        grid=(halves, N, H, B),
        grid_names=("half", "n", "h", "b"),
        scratch_types={
            "a_s": tiles.factor(A, SIDE, D, dtype=HALF),
            "b_s": tiles.factor(P, SIDE, D, dtype=HALF),
            "c_s": tiles.factor(C, SIDE, SIDE, dtype=HALF),
            "M_s": tiles.factor(M, *((SIDE, D) if turned else (D, SIDE)), dtype=HALF),
            "s_s": tiles.factor(2, SIDE, SIDE, dtype=HALF),
            "o_s": tiles.factor(2 if dtype is None else 1, SIDE, SIDE, dtype=dtype or HALF),
            "g_s": vector,
            "g2_s": vector,
            "beta_s": vector,
            "arrived": plgpu.Barrier(num_arrivals=A + P + C + M + 2 * decays + 1),
        },
    )(*(z for z in (a, b, c, S, g, beta) if z is not None))


def between(x, u, k, v, do, S, dS, g, beta, lam, *, dtype):
    """dk, dbeta, dlam and, if there are decays, by token u'diag(lam) x and what the chunk hands on (any token's place).

    A block per head, chunk and 64 channels; rows are the tokens that write. In shared memory (D = 128): x, u, k, v, do,
    dG, dH 16 KB each; the scores take the place of do: 120 KB with the result (float16: twice that).
    """
    P, B, T, H, D = k.shape
    N, halves, decays = tiles.chunks(T), D // SIDE, g is not None
    room = max(halves, 2)  # for do, and then for two tiles of scores

    def body(*refs, x_s, u_s, k_s, v_s, do_s, dG_s, dH_s, out_s, g_s, g2_s, beta_s, lam_s, sum_s, arrived):
        refs = iter(refs)
        x_g, u_g, k_g, v_g, do_g, S_g, dS_g = (next(refs) for _ in range(7))
        g_g = next(refs) if decays else None
        beta_g, lam_g, dk_g, dbeta_g, dlam_g = (next(refs) for _ in range(5))
        reads_g, whole_g = (next(refs), next(refs)) if decays else (None, None)
        half, n, h, bi = (lax.axis_index(name) for name in ("half", "n", "h", "b"))
        tokens, mine = pl.ds(n * SIDE, SIDE), pl.ds(half * SIDE, SIDE)
        of_H = pl.ds(D + half * SIDE, SIDE)

        for i in range(P):
            for z_g, z_s in ((x_g, x_s), (u_g, u_s), (k_g, k_s), (v_g, v_s)):
                plgpu.copy_gmem_to_smem(z_g.at[i, bi, tokens, h], z_s.at[i], arrived)
            for j in range(halves):
                there = pl.ds(j * SIDE, SIDE)
                plgpu.copy_gmem_to_smem(do_g.at[i, bi, tokens, h, there], do_s.at[i, j], arrived)
            plgpu.copy_gmem_to_smem(dS_g.at[i, bi, h, n, mine, pl.ds(0, D)], dG_s.at[i], arrived)
            plgpu.copy_gmem_to_smem(dS_g.at[i, bi, h, n, :, of_H], dH_s.at[i], arrived)
        if decays:
            plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g_s, arrived)
            plgpu.copy_gmem_to_smem(g_g.at[bi, h, tokens], g2_s, arrived)
        plgpu.copy_gmem_to_smem(beta_g.at[bi, h, tokens], beta_s, arrived)
        plgpu.copy_gmem_to_smem(lam_g.at[h, mine], lam_s, arrived)
        plgpu.barrier_wait(arrived)

        x, u, k, v, dG, dH = (parts(z) for z in (x_s, u_s, k_s, v_s, dG_s, dH_s))
        read_out = [
            pair
            for j in range(halves)
            for pair in pairs([block(z, j) for z in v], [transposed(do_s.at[i, j]) for i in range(P)])
        ]
        kx, ku, vdo = products(pairs(k, turn(x)), pairs(k, turn(u)), read_out)  # row: the token that wrote
        mask = tiles.causal("columns")
        if decays:
            row = plgpu.load(g_s, layout=tiles.PER_ROW)
            column = plgpu.load(g2_s, layout=tiles.PER_COLUMN)
            zeta = jnp.exp(jnp.where(mask, by_column(column) - by_row(row), -jnp.inf))
            to_x = jnp.where(zeta == 0, 0.0, (vdo - ku) * zeta)
            to_u = jnp.where(zeta == 0, 0.0, -kx * zeta)
        else:
            to_x, to_u = jnp.where(mask, vdo - ku, 0.0), jnp.where(mask, -kx, 0.0)
        dbeta = jnp.sum(kx * to_x, axis=1) / halves
        plgpu.commit_smem()  # all threads are done with do, whose place the scores take
        for z, j in ((to_x, 0), (to_u, 1)):
            for i, part in enumerate(split(z)[:P]):
                do_s[i, j] = part
        plgpu.commit_smem()
        mine_of = [z.at[:, mine] for z in x], [z.at[:, mine] for z in u]
        scores = [[do_s.at[i, j] for i in range(P)] for j in range(2)]
        dk, from_G, from_H = products(
            pairs(scores[0], mine_of[0]) + pairs(scores[1], mine_of[1]), pairs(v, turn(dG)), pairs(k, dH)
        )
        k_mine = sum(tiles.read(z.at[:, mine]) for z in k)
        left = by_row(jnp.exp(g_s[SIDE - 1] - row)) if decays else 1.0
        from_G, from_H = left * from_G, left * from_H
        handed_on = jnp.sum(k_mine * (from_G + 0.5 * from_H), axis=1)
        beta = plgpu.load(beta_s, layout=tiles.PER_ROW)
        dk = by_row(beta) * (dk + from_G + from_H)
        xu = sum(tiles.read(z) for z in mine_of[0]) * sum(tiles.read(z) for z in mine_of[1])
        sum_s[0] = dbeta + handed_on
        sum_s[1] = -jnp.sum(xu, axis=0)
        if decays:
            sum_s[2] = jnp.sum(xu * by_column(plgpu.load(lam_s, layout=tiles.PER_COLUMN)), axis=1)
            handed_on = beta * handed_on
            fade = jnp.exp(g_s[SIDE - 1])
            for j in range(halves):
                there = pl.ds(j * SIDE, SIDE)
                G = plgpu.load(S_g.at[0, bi, h, n, mine, there], layout=tiles.WGMMA, optimized=False)
                H = plgpu.load(S_g.at[0, bi, h, n, there, of_H], layout=tiles.WGMMA, optimized=False)
                both = G.astype(jnp.float32) * sum(tiles.read(z.at[:, there]) for z in dG)
                both = both + 0.5 * H.astype(jnp.float32) * sum(tiles.read(z.at[there]) for z in dH)
                handed_on = handed_on + fade * jnp.sum(both, axis=1)
            sum_s[3] = handed_on
        out_s[...] = dk.astype(dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_s, dk_g.at[bi, tokens, h, mine])
        plgpu.copy_smem_to_gmem(sum_s.at[0], dbeta_g.at[half, bi, h, tokens])
        plgpu.copy_smem_to_gmem(sum_s.at[1], dlam_g.at[bi, h, n, mine])
        if decays:
            plgpu.copy_smem_to_gmem(sum_s.at[2], reads_g.at[half, bi, h, tokens])
            plgpu.copy_smem_to_gmem(sum_s.at[3], whole_g.at[half, bi, h, tokens])
        plgpu.wait_smem_to_gmem(0)

    per_token = jax.ShapeDtypeStruct((halves, B, H, N * SIDE), jnp.float32)
    vector = plgpu.SMEM((SIDE,), jnp.float32)
    dk, dbeta, dlam, *sums = tiles.kernel(
        body,
        out_type=[
            jax.ShapeDtypeStruct((B, T, H, D), dtype),
            per_token,
            jax.ShapeDtypeStruct((B, H, N, D), jnp.float32),
        ]
        + [per_token] * (2 * decays),
        grid=(halves, N, H, B),
        grid_names=("half", "n", "h", "b"),
        scratch_types={
            **{f"{name}_s": tiles.factor(P, SIDE, D, dtype=HALF) for name in "xukv"},
            "do_s": tiles.factor(P, room, SIDE, SIDE, dtype=HALF),
            "dG_s": tiles.factor(P, SIDE, D, dtype=HALF),
            "dH_s": tiles.factor(P, D, SIDE, dtype=HALF),
            "out_s": tiles.factor(SIDE, SIDE, dtype=dtype),
            "g_s": vector,
            "g2_s": vector,
            "beta_s": vector,
            "lam_s": vector,
            "sum_s": plgpu.SMEM((4, SIDE), jnp.float32),
            "arrived": plgpu.Barrier(num_arrivals=P * (6 + halves) + 2 * decays + 2),
        },
    )(*(z for z in (x, u, k, v, do, S, dS, g, beta, lam) if z is not None))
    return dk, dbeta.sum(0), dlam.sum((0, 2)), *(z.sum(0) for z in sums)


def parts(x):
    return [x.at[i] for i in range(x.shape[0])]


def turn(x):
    return [transposed(z) for z in x]


def pairs(a, b):
    """The products of sums of parts, but for that of the two low ones."""
    return [(y, z) for i, y in enumerate(a) for j, z in enumerate(b) if i + j < 2]


def dots(x, y):
    """x_t . y_t for the 64 rows of tiles side by side."""
    return sum(jnp.sum(x_c * y_c, axis=1) for x_c, y_c in zip(x, y, strict=True))


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
