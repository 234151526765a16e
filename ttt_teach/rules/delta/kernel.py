"""The delta rule with one decay per head and token on a Hopper GPU, forward and backward; OSDN's kernel is built on it.

**A chunk.** With G_t the sum of log gamma from the start of t's chunk up to t, and S the state before the chunk, the
errors u_t and the outputs are (``chunk.py``; OSDN Sec. 4.3)

    u = T x       x_t = v_t - exp(G_t) S' k_t       T = (I + A)^-1      A_ti = exp(G_t - G_i) beta_i (k_t . w_i), i < t
    o_t = exp(G_t) S' q_t + sum_{i <= t} P_ti u_i                       P_ti = exp(G_t - G_i) beta_i (q_t . w_i)
    S  <- exp(G_C) S + sum_i exp(G_C - G_i) beta_i w_i u_i'

``inverses`` makes T of all chunks at once. ``walk`` goes through the chunks, one block per head and 64 value columns:
three products deep, as T x is not known before S, nor o and the next S before u. All is transposed there, S' k and so
on, as wgmma takes a first factor from registers: so S, x and u, each made of the last, never wait for a way through
shared memory. P, which waits for nothing, a second warpgroup makes. T multiplies the error, not k and v: where the
memory already holds v, x is small and so is its rounding (W and U of the UT transform would be rounded first and then
cancel).

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

**Measured** on an H200 (B 16, T 2048, H 12, D 128, bfloat16, no decay, w = k), in us: inverses 111, walk 147, or 230 if
it keeps these, back 190, between 276; all but the first read and write as much as takes 105, 188, 164 and 258 if
nothing else is done. With the whole head in a block walk and back took 164, 249 and 206: 192 blocks on 132
multiprocessors come in two turns, and the second is half empty. What inverses waits for is its chain of products: with
a seventh fewer instructions, masks kept in shared memory, it took 107; with four warpgroups of 128 registers, 158.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Float

from ttt_teach.rules import tiles
from ttt_teach.rules.tiles import SIDE, block, by_column, by_row, in_turn, onto, products, transposed

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
    o, S = walk(q, k, w, v, inverses(k, k if w is None else w, beta, G), beta, G, S, scale=scale)
    return o, S


def forward(q, k, w, v, beta, G, S, scale):
    T = inverses(k, k if w is None else w, beta, G)
    o, last, P, u, borders = walk(q, k, w, v, T, beta, G, S, scale=scale, keep=True)
    return (o, last), (q, k, w, beta, G, S, T, P, u, borders)


def backward(scale, kept, slopes):
    q, k, w, beta, G, S, T, P, u, borders = kept
    do, dlast = slopes
    dv, dfirst, dborders = back(q, k, w, do, T, P, beta, G, dlast, scale=scale)
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
                *others, T_s = free + [spare_s.at[0 * job + j] for j in range(spare)]  # see ``onto``
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


def inverse(A, A_s, turns, T_s):
    """(I + A)^-1 into T_s, for a strictly lower triangular A in registers; two A_s, two turns and T_s are shared.

    From the inverse T of the blocks of s on the diagonal that of blocks twice as large, for s = 1, 2, ..., 32: what
    is missing in them is -T_2 A_21 T_1, so T <- T - ((T A) on those places) T. The first factors come from registers;
    T is on its way to be a second one while T A is made. The factors are rounded to 16 bits, and for keys that are
    alike the products cancel; a last step of Newton's, T <- T + (I - T - T A) T with A in two parts of 16 bits, takes
    the error (up to 9e-2 of T x then) back under that of T in 16 bits. All terms stay as small as T, where a series of
    powers of A, for like keys, grows to 1e6 before it cancels.
    """
    high, low = A_s
    dtype = high.dtype
    row, column = tiles.places()
    one = jnp.where(row == column, 1.0, 0.0)

    def missing(s, x):
        """x on the places below the diagonal that are in one block of 2 s and not in one of s. -s: all bits from s."""
        return jnp.where((row & -s) == ((column & -s) ^ s), x, 0.0)

    def share(T, T_s):
        T_s[...] = T
        plgpu.commit_smem()

    high[...] = (-A).astype(dtype)
    low[...] = (-A - tiles.read(high)).astype(dtype)  # each thread reads what it has written
    plgpu.commit_smem()
    T = one + missing(1, -A)
    for s in (2, 4, 8, 16, 32):
        now, turns = turns[0], turns[::-1]  # in turn: another warp's products may still read the last one
        first = T.astype(dtype)
        _, more = in_turn(([], partial(share, first, now)), ([[(first, high)]], partial(missing, s)))
        (T,) = onto((T, (more.astype(dtype), now)))
    now, first = turns[0], T.astype(dtype)
    share(first, now)
    T = tiles.read(now)
    (more,) = onto((one - T, (first, high), (first, low)))
    (T,) = onto((T, (more.astype(dtype), now)))
    share(T.astype(dtype), T_s)


def walk(q, k, w, v, T, beta, G, S, *, scale, keep=False):
    """o, the last state and, if ``keep``, P, the errors u and the state before each chunk; without w, k is it.

    One block per head and 64 value columns, whose part of S a warpgroup carries in registers, transposed. A second one
    makes P, and fetches anew what the first has said that it is done with (``free``). In shared memory (K = 128): three
    slots of q, k and w, 16 KB each, three (two, if w is there and ``keep``) of v (then o) and T, two of P, 8 KB each;
    if ``keep``, u 8 KB and the 16-bit S' 16 KB, to leave from.
    """
    (B, tokens_in_all, H, K), V, dtype = q.shape, v.shape[-1], v.dtype
    N, own, decays, starts = tiles.chunks(tokens_in_all), w is not None, G is not None, S is not None
    slots = {"keys": 3, "values": 2 if own and keep else 3}

    def body(*refs, q_s, k_s, v_s, T_s, P_s, beta_s, g_s, arrived, free, made, w_s=None, u_s=None, S_s=None):
        refs = iter(refs)
        q_g, k_g, w_g, v_g, T_g, beta_g = (next(refs) if there else None for there in (1, 1, own, 1, 1, 1))
        G_g, first_g = next(refs) if decays else None, next(refs) if starts else None
        o_g, last_g = next(refs), next(refs)
        P_g, u_g, borders_g = refs if keep else (None, None, None)
        bi, h, half, who = (lax.axis_index(name) for name in ("b", "h", "half", "who"))
        mine = pl.ds(half * SIDE, SIDE)
        write_s = w_s if own else k_s

        def fetch(which, n):
            slot, tokens = n % slots[which], pl.ds(n * SIDE, SIDE)
            there = arrived[which].at[slot]
            if which == "keys":
                for x_g, x_s in ((k_g, k_s), (w_g, w_s), (q_g, q_s)):
                    if x_g is not None:
                        plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h], x_s.at[slot], there)
                for x_g, x_s in ((beta_g, beta_s), (G_g, g_s)):
                    if x_g is not None:
                        plgpu.copy_gmem_to_smem(x_g.at[bi, h, tokens], x_s.at[slot], there)
            else:
                plgpu.copy_gmem_to_smem(v_g.at[bi, tokens, h, mine], v_s.at[slot], there)
                plgpu.copy_gmem_to_smem(T_g.at[bi, h, n], T_s.at[slot], there)

        def make(n):
            """P of chunk n."""
            slot, turn = n % slots["keys"], n & 1
            plgpu.barrier_wait(arrived["keys"].at[slot])
            (P,) = products([(q_s.at[slot], transposed(write_s.at[slot]))])
            beta, *G = (plgpu.load(x_s.at[slot], layout=tiles.PER_COLUMN) for x_s in (beta_s, g_s)[: 1 + decays])
            row = [tiles.vector(G_g.at[bi, h, pl.ds(n * SIDE, SIDE)], tiles.PER_ROW)] if decays else []
            P = scale * weighted(P, weights(beta, *row, *G))
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # P of chunk n - 2 has left
            P_s[turn] = P.astype(dtype)
            plgpu.commit_smem()
            plgpu.barrier_arrive(made.at[turn])
            if keep:
                pl.when(half == 0)(lambda: plgpu.copy_smem_to_gmem(P_s.at[turn], P_g.at[bi, h, n]))

        def renew(n, nothing):
            pl.when(n + 1 < N)(lambda: make(n + 1))
            for which in arrived:
                plgpu.barrier_wait(free[which].at[n % slots[which]])
                plgpu.commit_smem()  # what has been read there comes before what is written
                pl.when(n + slots[which] < N)(partial(fetch, which, n + slots[which]))

        def chunk(n, S):
            slot, place, turn, tokens = n % slots["keys"], n % slots["values"], n & 1, pl.ds(n * SIDE, SIDE)
            now = S.astype(dtype)
            plgpu.barrier_wait(arrived["keys"].at[slot])
            # the barrier: LLVM takes a product's sign, as in v - found, for something to turn before it is waited for
            (found,) = lax.optimization_barrier(products([(now, transposed(k_s.at[slot]))]))
            read, write, fade = strengths(slot, beta_s, g_s if decays else None)
            plgpu.barrier_wait(arrived["values"].at[place])
            v_n = transposed(v_s.at[place])
            x = (tiles.read(v_n) - read * found).astype(dtype)
            (u, written), o = in_turn(
                ([[(x, transposed(T_s.at[place]))]], lambda u: (u.astype(dtype), (u * write).astype(dtype))),
                ([[(now, transposed(q_s.at[slot]))]], lambda o: scale * read * o),
            )
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last o, u and S have left
            pl.when(n > 0)(lambda: plgpu.barrier_arrive(free["values"].at[(n - 1) % slots["values"]]))
            if keep:
                S_s[...] = now
                transposed(u_s)[...] = u
            plgpu.barrier_wait(made.at[turn])
            S, o = onto((fade * S, (written, write_s.at[slot])), (o, (u, transposed(P_s.at[turn]))))
            plgpu.barrier_arrive(free["keys"].at[slot])
            v_n[...] = o.astype(dtype)  # each warp overwrites what it has read
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(v_s.at[place], o_g.at[bi, tokens, h, mine])
            if keep:
                plgpu.copy_smem_to_gmem(u_s, u_g.at[bi, tokens, h, mine])
                plgpu.copy_smem_to_gmem(S_s, borders_g.at[bi, h, n, mine])
            return S

        @pl.when(who == 0)
        def _():
            S = tiles.steps(N, chunk, start(first_g.at[bi, h, :, mine] if starts else None, K))
            plgpu.wait_smem_to_gmem(0)
            plgpu.barrier_arrive(free["values"].at[(N - 1) % slots["values"]])
            finish(S, last_g.at[bi, h, :, mine])

        @pl.when(who == 1)
        def _():
            zero = jnp.zeros((), jnp.int32)  # traced: a known start is refused where a box reaches over the end
            for which in arrived:
                for n in range(min(N, slots[which])):
                    fetch(which, zero + n)
            make(zero)
            tiles.steps(N, renew, None)
            plgpu.wait_smem_to_gmem(0)

    outputs = [jax.ShapeDtypeStruct(v.shape, dtype), jax.ShapeDtypeStruct((B, H, K, V), jnp.float32)]
    scratch = {n: tiles.factor(slots["keys"], SIDE, K, dtype=dtype) for n in ("q_s", "k_s", "w_s")[: 2 + own]}
    scratch |= {n: plgpu.SMEM((slots["keys"], SIDE), jnp.float32) for n in ("beta_s", "g_s")}
    scratch |= {n: tiles.factor(slots["values"], SIDE, SIDE, dtype=dtype) for n in ("v_s", "T_s")}
    scratch["P_s"] = tiles.factor(2, SIDE, SIDE, dtype=dtype)
    if keep:
        squares = jax.ShapeDtypeStruct((B, H, N, SIDE, SIDE), dtype)
        outputs += [squares, jax.ShapeDtypeStruct(v.shape, dtype), jax.ShapeDtypeStruct((B, H, N, V, K), dtype)]
        scratch |= {"u_s": tiles.factor(SIDE, SIDE, dtype=dtype), "S_s": tiles.factor(SIDE, K, dtype=dtype)}
    return tiles.kernel(
        body,
        out_type=outputs,
        grid=(B, H, V // SIDE),  # the last is the innermost: halves that read the same run side by side
        grid_names=("b", "h", "half"),
        num_threads=2,
        thread_name="who",
        scratch_types=scratch
        | {
            "arrived": {
                "keys": plgpu.Barrier(num_arrivals=3 + own + decays, num_barriers=slots["keys"]),
                "values": plgpu.Barrier(num_arrivals=2, num_barriers=slots["values"]),
            },
            "free": {which: plgpu.Barrier(num_barriers=n) for which, n in slots.items()},
            "made": plgpu.Barrier(num_barriers=2),
        },
    )(*(x for x in (q, k, w, v, T, beta, G, S) if x is not None))


def strengths(slot, beta_s, g_s=None):
    """What a read finds of the state before the chunk and what is left of a write at its end, by column; its fading."""
    beta = plgpu.load(beta_s.at[slot], layout=tiles.PER_COLUMN)
    if g_s is None:
        return 1.0, by_column(beta), 1.0
    G, end = plgpu.load(g_s.at[slot], layout=tiles.PER_COLUMN), g_s[slot, SIDE - 1]
    return by_column(jnp.exp(G)), by_column(beta * jnp.exp(end - G)), jnp.exp(end)


def start(first, K):
    """64 columns of a state, transposed, in registers: those in global memory, or zeros."""
    if first is None:
        return plgpu.layout_cast(jnp.zeros((SIDE, K), jnp.float32), tiles.WGMMA)
    S = plgpu.load(transposed(first), layout=plgpu.Layout.WGMMA_TRANSPOSED, optimized=False)
    return plgpu.layout_cast(S, tiles.WGMMA)


def finish(S, last):
    """They go to global memory."""
    transposed(last)[...] = plgpu.layout_cast(S, plgpu.Layout.WGMMA_TRANSPOSED)


def back(q, k, w, do, T, P, beta, G, dS, *, scale):
    """dv, dS before the first token, and dS after each chunk: the walk from the last chunk to the first.

    One block per head and 64 value columns as in ``walk``, dS and du in registers as S and u are there. In shared
    memory (K = 128): three slots of q, k and w, 16 KB each, three (two, if w is there) of do, T and P, 8 KB each; dv
    8 KB and the 16-bit dS' 16 KB.
    """
    (B, tokens_in_all, H, K), V, dtype = q.shape, do.shape[-1], do.dtype
    N, own, decays = tiles.chunks(tokens_in_all), w is not None, G is not None
    slots = {"keys": 3, "values": 2 if own else 3}

    def body(*refs, q_s, k_s, do_s, T_s, P_s, beta_s, g_s, dv_s, S_s, arrived, free, w_s=None):
        refs = iter(refs)
        q_g, k_g, w_g, do_g, T_g, P_g, beta_g = (next(refs) if there else None for there in (1, 1, own, 1, 1, 1, 1))
        G_g = next(refs) if decays else None
        last_g, dv_g, first_g, borders_g = refs
        bi, h, half, who = (lax.axis_index(name) for name in ("b", "h", "half", "who"))
        mine = pl.ds(half * SIDE, SIDE)
        write_s = w_s if own else k_s

        def fetch(which, n):
            slot, place = n % slots[which], N - 1 - n
            tokens, there = pl.ds(place * SIDE, SIDE), arrived[which].at[slot]
            if which == "keys":
                for x_g, x_s in ((w_g, w_s), (k_g, k_s), (q_g, q_s)):
                    if x_g is not None:
                        plgpu.copy_gmem_to_smem(x_g.at[bi, tokens, h], x_s.at[slot], there)
                for x_g, x_s in ((beta_g, beta_s), (G_g, g_s)):
                    if x_g is not None:
                        plgpu.copy_gmem_to_smem(x_g.at[bi, h, tokens], x_s.at[slot], there)
            else:
                plgpu.copy_gmem_to_smem(do_g.at[bi, tokens, h, mine], do_s.at[slot], there)
                for x_g, x_s in ((P_g, P_s), (T_g, T_s)):
                    plgpu.copy_gmem_to_smem(x_g.at[bi, h, place], x_s.at[slot], there)

        def renew(n, nothing):
            for which in ("values", "keys"):
                plgpu.barrier_wait(free[which].at[n % slots[which]])
                plgpu.commit_smem()  # what has been read there comes before what is written
                pl.when(n + slots[which] < N)(partial(fetch, which, n + slots[which]))

        def chunk(n, S):
            slot, other, place = n % slots["keys"], n % slots["values"], N - 1 - n
            now = S.astype(dtype)
            plgpu.barrier_wait(arrived["keys"].at[slot])
            plgpu.barrier_wait(arrived["values"].at[other])
            do = plgpu.load(transposed(do_s.at[other]), layout=tiles.WGMMA)
            later, du = products([(now, transposed(write_s.at[slot]))], [(do, P_s.at[other])])
            read, write, fade = strengths(slot, beta_s, g_s if decays else None)
            du = (du + write * later).astype(dtype)
            (dx,) = products([(du, T_s.at[other])])
            plgpu.barrier_arrive(free["values"].at[other])
            reads, writes = (scale * read * do.astype(jnp.float32)).astype(dtype), (-read * dx).astype(dtype)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last dv and dS have left
            S_s[...] = now
            transposed(dv_s)[...] = dx.astype(dtype)
            (S,) = onto((fade * S, (reads, q_s.at[slot]), (writes, k_s.at[slot])))
            plgpu.barrier_arrive(free["keys"].at[slot])
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(dv_s, dv_g.at[bi, pl.ds(place * SIDE, SIDE), h, mine])
            plgpu.copy_smem_to_gmem(S_s, borders_g.at[bi, h, place, mine])
            return S

        @pl.when(who == 0)
        def _():
            S = tiles.steps(N, chunk, start(last_g.at[bi, h, :, mine], K))
            finish(S, first_g.at[bi, h, :, mine])
            plgpu.wait_smem_to_gmem(0)

        @pl.when(who == 1)
        def _():
            zero = jnp.zeros((), jnp.int32)
            for which in arrived:
                for n in range(min(N, slots[which])):
                    fetch(which, zero + n)
            tiles.steps(N, renew, None)

    return tiles.kernel(
        body,
        out_type=[
            jax.ShapeDtypeStruct(do.shape, dtype),
            jax.ShapeDtypeStruct((B, H, K, V), jnp.float32),
            jax.ShapeDtypeStruct((B, H, N, V, K), dtype),
        ],
        grid=(B, H, V // SIDE),  # the last is the innermost: halves that read the same run side by side
        grid_names=("b", "h", "half"),
        num_threads=2,
        thread_name="who",
        scratch_types={n: tiles.factor(slots["keys"], SIDE, K, dtype=dtype) for n in ("q_s", "k_s", "w_s")[: 2 + own]}
        | {n: plgpu.SMEM((slots["keys"], SIDE), jnp.float32) for n in ("beta_s", "g_s")}
        | {n: tiles.factor(slots["values"], SIDE, SIDE, dtype=dtype) for n in ("do_s", "T_s", "P_s")}
        | {"dv_s": tiles.factor(SIDE, SIDE, dtype=dtype), "S_s": tiles.factor(SIDE, K, dtype=dtype)}
        | {
            "arrived": {
                "keys": plgpu.Barrier(num_arrivals=3 + own + decays, num_barriers=slots["keys"]),
                "values": plgpu.Barrier(num_arrivals=3, num_barriers=slots["values"]),
            },
            "free": {which: plgpu.Barrier(num_barriers=n) for which, n in slots.items()},
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
            plgpu.copy_gmem_to_smem(x_g.at[bi, h, n, :, mine], x_s, arrived)
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
            [(do_s, S_s)],
            [(dv_s, S_s)],
            [(u_s, dS_s)],
            [(do_s, transposed(u_s))],
            [(dv_s, transposed(u_s))],
        )
        dk, from_v = lax.optimization_barrier((dk, from_v))  # their signs will turn: see ``walk``
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
                both = tiles.read(block(S_s, j, 0)) * tiles.read(block(dS_s, j, 0))
                handed_on = handed_on + jnp.exp(end) * jnp.sum(both, axis=1)
            whole_s[...] = handed_on  # by token and by value channel, one on top of the other: only the sum is wanted
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
        | {n: tiles.factor(SIDE, V, dtype=dtype) for n in ("u_s", "do_s", "dv_s")}
        | {n: tiles.factor(V, SIDE, dtype=dtype) for n in ("S_s", "dS_s")}
        | {n: plgpu.SMEM((SIDE,), jnp.float32) for n in ("g_s", "dbeta_s", "dots_s", "whole_s")}
        | {"arrived": plgpu.Barrier(num_arrivals=5 + len(keys) + decays)},
    )(*(x for x in (q, k, w, u, do, dv, S, dS, beta, G) if x is not None))
    dw = sums.pop(0) if own else None
    dbeta, *sums = (x.sum(0) for x in sums)
    if not decays:
        return dq, dk, dw, dbeta, None
    dG, whole = (x.reshape(B, H, N, SIDE) for x in sums)
    return dq, dk, dw, dbeta, dG.at[..., -1].add(whole.sum(-1)).reshape(B, H, -1)
