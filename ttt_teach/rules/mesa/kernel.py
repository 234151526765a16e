"""Mesa on a Hopper GPU, forward and backward: one sequential pass, and the rest chunk by chunk.

DRAFT
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
from ttt_teach.solvers import CG
from ttt_teach.solvers.precision import full_precision

HALF = jnp.bfloat16  # of every factor: the exponents of float32, and a second number for the bits that a first leaves
FADED = 2.0**-60  # less than this of H and H counts as this


def walk(terms, g, beta, start, *, backward=False, parts):
    """S <- fade S + sum_t w_t a_t c_t', and the state at each chunk's start (backward: end), as ``parts`` numbers.

    S = [G | H] is one matrix of 2 D columns; a block has 64 of them. terms: (a, for G: c, for H: c, signs).
    """
    a0 = terms[0][0]
    P, B, T, H, D = a0.shape
    N, halves, J = tiles.chunks(T), D // SIDE, len(terms)
    decays = g is not None
    flat = [x for a, cG, cH, _ in terms for x in (a, cG, cH)]

    def body(*refs, a_s, c_s, low_s, S_s, g_s, w_s, arrived):
        refs = iter(refs)
        sources = [tuple(next(refs) for _ in range(3)) for _ in terms]
        g_g = next(refs) if decays else None
        w_g = None if backward else next(refs)
        start_g, last_g, S_g = next(refs), next(refs), next(refs)
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

        def chunk(n, S):
            slot = n & 1
            pl.when(n + 1 < N)(lambda: fetch(n + 1))
            for i in range(parts):
                plgpu.copy_smem_to_gmem(S_s.at[i], S_g.at[i, bi, h, place(n), :, mine])
            plgpu.barrier_wait(arrived.at[slot])
            weight, fade = None, 1.0
            if decays:
                row, end = plgpu.load(g_s.at[slot], layout=tiles.PER_ROW), g_s[slot, SIDE - 1]
                weight, fade = jnp.exp(row if backward else end - row), jnp.exp(end)
            if not backward:
                kept = plgpu.load(w_s.at[slot], layout=tiles.PER_ROW)
                weight = kept if weight is None else kept * weight
            for j, (*_, signs) in enumerate(terms):
                c = sum(tiles.read(c_s.at[slot, j, i]) for i in range(P))
                c = c * jnp.where(of_G, *signs)
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
        ],
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
        },
    )(*flat, *([g] if decays else []), *([] if backward else [beta]), start)


def split(x):
    """x as a 16-bit number and what that leaves: 16 bits of it together."""
    high = x.astype(HALF)
    return high, (x - high.astype(jnp.float32)).astype(HALF)


def solve(b, k, S, g, beta, lam, *, cap, tol):
    """x with (H_t + diag(lam)) x_t = b_t for the 64 tokens of a chunk at once, as two 16-bit numbers."""
    P, B, T, H, D = k.shape
    N, halves, decays = tiles.chunks(T), D // SIDE, g is not None
    Q = len(b)
    lower = [(r, c) for r in range(halves) for c in range(r + 1)]
    least = max(tol, float(jnp.finfo(jnp.float32).eps) ** 2) ** 2

    def body(*refs, k_s, p_s, s_s, H_s, zeta_s, g_s, g2_s, beta_s, lam_s, arrived):
        refs = iter(refs)
        b_g, k_g, S_g = next(refs), next(refs), next(refs)
        g_g = next(refs) if decays else None
        beta_g, lam_g, x_g = next(refs), next(refs), next(refs)
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
        plgpu.barrier_wait(arrived)

        def hessian(i, r, c):
            if r < c:
                return transposed(hessian(i, c, r))
            return H_s.at[i, lower.index((r, c))]

        mask = tiles.causal("rows")
        beta = by_column(plgpu.load(beta_s, layout=tiles.PER_COLUMN))
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
        unit = largest(b)
        r = tuple(x * by_row(ratio(jnp.ones_like(unit), unit)) for x in b)
        x = tuple(plgpu.layout_cast(jnp.zeros((SIDE, SIDE), jnp.float32), tiles.WGMMA) for _ in r)
        for c in range(halves):
            p_s[:, columns[c]] = r[c].astype(HALF)
        plgpu.commit_smem()
        rr = dots(r, r)
        goal = least * rr

        def unfinished(rr):
            return jnp.max(plgpu.layout_cast(jnp.where(rr > goal, 1.0, 0.0), tiles.PER_ROW)) > 0

        def step(carry):
            j, _, x, r, rr = carry
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
            new = dots(r, r)
            more = by_row(ratio(new, rr))
            for c in range(halves):
                p_s[:, columns[c]] = (r[c] + more * p[c]).astype(HALF)
            plgpu.commit_smem()
            return j + 1, unfinished(new), x, r, new

        start = jnp.zeros((), jnp.int32), unfinished(rr), x, r, rr
        _, _, x, _, rr = lax.while_loop(lambda s: (s[0] < cap) & s[1], step, start)
        unit = jnp.where(rr < jnp.inf, unit * spread if decays else unit, jnp.nan)
        for c in range(halves):
            high, low = split(x[c] * by_row(unit))
            p_s[:, columns[c]], s_s[c] = high, low
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(p_s, x_g.at[0, bi, tokens, h])
        for c in range(halves):
            plgpu.copy_smem_to_gmem(s_s.at[c], x_g.at[1, bi, tokens, h, columns[c]])
        plgpu.wait_smem_to_gmem(0)

    vector = plgpu.SMEM((SIDE,), jnp.float32)
    copies = 1 + (Q == 2) * halves + P + 2 * len(lower) + 2 * decays + 2
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
        },
    )(*(z for z in (b, k, S, g, beta, lam) if z is not None))


def dots(x, y):
    """x_t . y_t for the 64 rows of tiles side by side."""
    return sum(jnp.sum(x_c * y_c, axis=1) for x_c, y_c in zip(x, y, strict=True))


def largest(x):
    return plgpu.layout_cast(jnp.max(jnp.abs(x[0]), axis=1), tiles.PER_ROW) if len(x) == 1 else jnp.maximum(
        *(jnp.max(jnp.abs(x_c), axis=1) for x_c in x)
    )


def ratio(a, b):
    """a / b, and 0 for 0 / 0."""
    return jnp.where(b == 0, 0.0, a / jnp.where(b == 0, 1.0, b))
