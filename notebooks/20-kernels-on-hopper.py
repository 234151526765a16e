# %% tags=["rung"]
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ttt_teach.rules import tiles
from ttt_teach.rules.tiles import SIDE as C
from ttt_teach.rules.tiles import block, by_column, by_row, products, transposed


def here():
    """Which sequence and head this block has, and which 64 columns of v, o and S."""
    return lax.axis_index("b"), lax.axis_index("h"), pl.ds(lax.axis_index("half") * C, C)


def strips(K):
    """The rows of S, 64 at a time: a tile of 64 x 64 is 32 registers in each of the 128 threads."""
    return [pl.ds(j * C, C) for j in range(K // C)]


def decays(G, again):
    """Of a chunk: zeta_ti, what a read finds of S, what the end finds of a write, what is left of S at the end."""
    t, i = tiles.vector(G, tiles.PER_ROW), tiles.vector(again, tiles.PER_COLUMN)
    zeta = jnp.exp(jnp.where(tiles.causal("rows"), by_row(t) - by_column(i), -jnp.inf))
    return zeta, by_row(jnp.exp(t)), by_row(jnp.exp(G[C - 1] - t)), jnp.exp(G[C - 1])


def launch(body, q, k, v, G, *, slots=(), order=("half", "h", "b"), **barrier):
    """o and the last S: one warpgroup for each head and 64 columns; q_s, k_s and v_s have so many slots."""
    (B, T, H, K), dtype = q.shape, v.dtype
    size = {"half": K // C, "h": H, "b": B}
    return tiles.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(v.shape, dtype), jax.ShapeDtypeStruct((B, H, K, K), jnp.float32)],
        grid=tuple(size[name] for name in order),
        grid_names=order,
        scratch_types={
            "q_s": tiles.factor(*slots, C, K, dtype=dtype),
            "k_s": tiles.factor(*slots, C, K, dtype=dtype),
            "v_s": tiles.factor(*slots, C, C, dtype=dtype),
            "p_s": tiles.factor(C, C, dtype=dtype),  # the scores, and then o
            "S_s": tiles.factor(K, C, dtype=dtype),  # S in 16 bits, as the products read it
            "there": plgpu.Barrier(num_arrivals=3, **barrier),
        },
    )(q, k, v, G, G)  # G twice: one array cannot be read by row and by column


# %% tags=["rung"]
def first(q, k, v, G):
    """Every line waits for the one before; S lives in global memory, as in the scan."""
    T, K = q.shape[1], q.shape[3]

    def body(q_g, k_g, v_g, G_g, again_g, o_g, S_g, *, q_s, k_s, v_s, p_s, S_s, there):
        b, h, mine = here()
        for rows in strips(K):
            S_g[b, h, rows, mine] = plgpu.layout_cast(jnp.zeros((C, C), jnp.float32), tiles.WGMMA)

        def chunk(n, _):
            tokens = pl.ds(n * C, C)
            plgpu.copy_gmem_to_smem(q_g.at[b, tokens, h], q_s, there)
            plgpu.copy_gmem_to_smem(k_g.at[b, tokens, h], k_s, there)
            plgpu.copy_gmem_to_smem(v_g.at[b, tokens, h, mine], v_s, there)
            plgpu.barrier_wait(there)
            zeta, reads, writes, fade = decays(G_g.at[b, h, tokens], again_g.at[b, h, tokens])
            for rows in strips(K):
                S_s[rows] = tiles.vector(S_g.at[b, h, rows, mine], tiles.WGMMA).astype(S_s.dtype)

            (scores,) = products([(q_s, transposed(k_s))])
            p_s[...] = (scores * zeta).astype(p_s.dtype)
            plgpu.commit_smem()  # the scores and S are there, for all threads and for wgmma
            (inside,) = products([(p_s, v_s)])
            (before,) = products([(q_s, S_s)])
            plgpu.commit_smem()  # no thread needs the scores and v any more
            p_s[...] = (inside + reads * before).astype(p_s.dtype)
            v_s[...] = (writes * tiles.read(v_s)).astype(v_s.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(p_s, o_g.at[b, tokens, h, mine])
            for j, rows in enumerate(strips(K)):
                (written,) = products([(transposed(block(k_s, j)), v_s)])
                S = tiles.vector(S_g.at[b, h, rows, mine], tiles.WGMMA)
                S_g[b, h, rows, mine] = fade * S + written
            plgpu.wait_smem_to_gmem(0)

        tiles.steps(T // C, chunk, None)

    return launch(body, q, k, v, G)


# %% tags=["rung"]
def second(q, k, v, G):
    """S stays in registers, and products that do not need each other are issued together."""
    T, K = q.shape[1], q.shape[3]

    def body(q_g, k_g, v_g, G_g, again_g, o_g, S_g, *, q_s, k_s, v_s, p_s, S_s, there):
        b, h, mine = here()

        def copied(S):
            for rows, part in zip(strips(K), S, strict=True):
                S_s[rows] = part.astype(S_s.dtype)
            plgpu.commit_smem()
            return S

        def chunk(n, S):
            tokens = pl.ds(n * C, C)
            plgpu.copy_gmem_to_smem(q_g.at[b, tokens, h], q_s, there)
            plgpu.copy_gmem_to_smem(k_g.at[b, tokens, h], k_s, there)
            plgpu.copy_gmem_to_smem(v_g.at[b, tokens, h, mine], v_s, there)
            plgpu.barrier_wait(there)
            zeta, reads, writes, fade = decays(G_g.at[b, h, tokens], again_g.at[b, h, tokens])

            (scores,) = products([(q_s, transposed(k_s))])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the last o has left p_s
            p_s[...] = (scores * zeta).astype(p_s.dtype)
            plgpu.commit_smem()
            inside, before = products([(p_s, v_s)], [(q_s, S_s)])
            plgpu.commit_smem()
            p_s[...] = (inside + reads * before).astype(p_s.dtype)
            v_s[...] = (writes * tiles.read(v_s)).astype(v_s.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(p_s, o_g.at[b, tokens, h, mine])
            written = products(*([(transposed(block(k_s, j)), v_s)] for j in range(K // C)))
            return copied(tuple(fade * part + more for part, more in zip(S, written, strict=True)))

        S = copied(tuple(plgpu.layout_cast(jnp.zeros((C, C), jnp.float32), tiles.WGMMA) for _ in strips(K)))
        S = tiles.steps(T // C, chunk, S)
        for rows, part in zip(strips(K), S, strict=True):
            S_g[b, h, rows, mine] = part
        plgpu.wait_smem_to_gmem(0)

    return launch(body, q, k, v, G)


# %% tags=["rung"]
def third(q, k, v, G, order=("half", "h", "b")):
    """While a chunk is computed, the next is on its way into the other of two slots."""
    T, K = q.shape[1], q.shape[3]

    def body(q_g, k_g, v_g, G_g, again_g, o_g, S_g, *, q_s, k_s, v_s, p_s, S_s, there):
        b, h, mine = here()

        def fetch(n):
            slot, tokens = n & 1, pl.ds(n * C, C)
            plgpu.copy_gmem_to_smem(q_g.at[b, tokens, h], q_s.at[slot], there.at[slot])
            plgpu.copy_gmem_to_smem(k_g.at[b, tokens, h], k_s.at[slot], there.at[slot])
            plgpu.copy_gmem_to_smem(v_g.at[b, tokens, h, mine], v_s.at[slot], there.at[slot])

        def copied(S):
            for rows, part in zip(strips(K), S, strict=True):
                S_s[rows] = part.astype(S_s.dtype)
            plgpu.commit_smem()  # and the barrier after which the slot of this chunk may be filled again
            return S

        def chunk(n, S):
            slot, tokens = n & 1, pl.ds(n * C, C)
            q, k, v = q_s.at[slot], k_s.at[slot], v_s.at[slot]
            pl.when(n + 1 < T // C)(lambda: fetch(n + 1))
            zeta, reads, writes, fade = decays(G_g.at[b, h, tokens], again_g.at[b, h, tokens])
            plgpu.barrier_wait(there.at[slot])

            (scores,) = products([(q, transposed(k))])
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            p_s[...] = (scores * zeta).astype(p_s.dtype)
            plgpu.commit_smem()
            inside, before = products([(p_s, v)], [(q, S_s)])
            plgpu.commit_smem()
            p_s[...] = (inside + reads * before).astype(p_s.dtype)
            v[...] = (writes * tiles.read(v)).astype(p_s.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(p_s, o_g.at[b, tokens, h, mine])
            written = products(*([(transposed(block(k, j)), v)] for j in range(K // C)))
            return copied(tuple(fade * part + more for part, more in zip(S, written, strict=True)))

        fetch(jnp.zeros((), jnp.int32))
        S = copied(tuple(plgpu.layout_cast(jnp.zeros((C, C), jnp.float32), tiles.WGMMA) for _ in strips(K)))
        S = tiles.steps(T // C, chunk, S)
        for rows, part in zip(strips(K), S, strict=True):
            S_g[b, h, rows, mine] = part
        plgpu.wait_smem_to_gmem(0)

    return launch(body, q, k, v, G, slots=(2,), order=order, num_barriers=2)


def fourth(q, k, v, G):
    """The halves of a head run side by side, so that the second finds q and k in the cache."""
    return third(q, k, v, G, order=("b", "h", "half"))


RUNGS = {rung.__name__: rung for rung in (first, second, third, fourth)}
