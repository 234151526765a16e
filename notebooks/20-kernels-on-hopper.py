# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     notebook_metadata_filter: ttt_teach
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   ttt_teach:
#     title: Kernels on Hopper
#     question: How near to the speed of its memory does a GPU run linear attention, and which change bought how much?
#     minutes: 80
#     seconds: 20
#     settles: On an H200 linear attention takes 31 ms as a loop, 4.5 in chunks, 0.50 in a first kernel and 0.20 in the fourth, where its bytes ask for 0.095; each rung short enough to read, run in an interpreter on your computer and measured beside what had been predicted. What the delta rule, OSDN, Mesa and LaCT ask for besides; times and errors beside other libraries; and a page of predictions that were wrong.
# ---

# %% [markdown]
# # 20 · Kernels on Hopper
#
# **How near to the speed of its memory does a GPU run linear attention, and which change bought how much?**
#
# A kernel is a program that you write for one multiprocessor of a GPU, when the compiler's own programs leave most of it idle. This notebook carries one rule, linear attention with a decay, from a loop over tokens up to such a kernel.
# Each rung of that ladder is code that you can read in one go, and that runs here: JAX's interpreter simulates the GPU, its shared memory, its barriers and its copy engine, on any computer.
# What an interpreter cannot tell is time. So each rung was also run on an H200, and what it took stands beside what had been **predicted** for it. The predictions were written down first, and many were wrong: section 9 is about those.
#
# | | |
# |---|---|
# | **Time** | 80 minutes to read, about 20 seconds to run on two cores, no GPU |
# | **You need** | Chunks: [notebook 05](05-chunkwise-mesa.ipynb), sections 1 and 2, or [notebook 01](01-fast-weights.ipynb). The roof: [notebook 12](12-arithmetic-intensity.ipynb), section 3. Section 8 has one rule each of [04](04-conjugate-gradient.ipynb), [11](11-osdn-in-chunks.ipynb) and [15](15-lact-at-scale.ipynb). |
# | **In a hurry** | [The ladder](#F20b), [what fits](#F20a), [beside the others](#F20c), [what was predicted wrong](#9--what-was-predicted-wrong) |
#
# | here | meaning |
# |---|---|
# | $B$, $T$, $H$, $D$ | sequences, tokens, heads, and width $K=V=D$ of a head; measured: 16, 2048, 12, 128 |
# | $C$, $c$ | tokens in a chunk, 64; the last token before it |
# | $G_t$ | $\sum\log\gamma$ from the first token of $t$'s chunk up to $t$, so $\zeta_{ti} = e^{G_t-G_i}$ inside a chunk (section 3) |
# | SM | a multiprocessor: 132 of them on the chip, each with its own registers and shared memory |
# | block | one run of the kernel's program; it stays on one SM. Ours has 128 threads, a *warpgroup* |
# | global, shared, registers | the three memories, from the largest and farthest to the smallest and nearest |

# %%
import contextlib
import io
import itertools

import numpy as np

from ttt_teach import CG, linear
from ttt_teach.bench import device, rungs, summary
from ttt_teach.explore import explore
from ttt_teach.explore import kernels_on_hopper as pictures
from ttt_teach.ledger import check, claim
from ttt_teach.theory import hopper
from ttt_teach.theory.counting import product_flops

climbed, results = rungs.load(), summary.read()  # what was predicted and measured; all times of this notebook

# %% [markdown]
# What the kernels need comes in a cell of its own, with four small functions that they share. You can skip it now and come back when a name is new.

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
    (B, _, H, K), dtype = q.shape, v.dtype
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


# %% [markdown]
# ## 1 · The floor, before any code
#
# A kernel must bring its arguments from global memory and take its results there, and it must multiply. So with $M$ bytes, $F$ FLOPs, bandwidth $\mathcal B$ and peak $\mathcal P$ no program is faster than
#
# $$ t \ \ge\ \max\Bigl(\frac{M}{\mathcal B},\ \frac{F}{\mathcal P}\Bigr), \qquad \mathcal B = 4.27\ \text{TB/s}, \quad \mathcal P = 800\ \text{TFLOP/s in bfloat16} . \tag{E20.1} $$
#
# Both are what a copy and a large product reached on an H200 (the data sheet promises more). For linear attention each of $q$, $k$, $v$ and $o$ has $BTHD$ numbers of two bytes. The products of the chunk form are counted from the traced program, as in [notebook 12](12-arithmetic-intensity.ipynb).
# With the backward pass, $do$ comes in besides and a gradient goes out for each argument; of the products we count twice those of the forward pass, since each has at least one in the gradient.


# %%
def floors(name):
    """E20.1 of a case of the benchmark, in ms: every argument and result moved once, products in 16 bits."""
    case = device.CASES[name]
    args, do = jax.eval_shape(lambda: device.draw(case))
    options = {"form": "chunk"} | case.shared | ({"solver": CG(max_steps=1)} if "lam" in args else {})
    flops = product_flops(jax.make_jaxpr(lambda args: case.rule(**args, **options)[0])(args).jaxpr)
    moved = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(args))
    o = do.size * do.dtype.itemsize
    by = {"forward": (moved + o, flops), "both": (2 * moved + 2 * o, 2 * flops)}
    return {part: (1e3 * M / hopper.H200.bandwidth, 1e3 * F / hopper.H200.peak) for part, (M, F) in by.items()}


asked = {name: floors(name) for name in device.CASES}
floor = {name: {part: max(both) for part, both in of.items()} for name, of in asked.items()}
print(f"{'ms, at least':16}{'bytes':>8}{'products':>10}   with backward:{'bytes':>8}{'products':>10}")
for name, of in asked.items():
    print(f"{name:16}{of['forward'][0]:8.3f}{of['forward'][1]:10.3f}{'':17}{of['both'][0]:8.3f}{of['both'][1]:10.3f}")

# %% tags=["nbval-check-output"]
B, T, H, D = device.LAYER.values()
by_hand = 4 * B * T * H * D * 2 / 4.27e12, 2 * B * T * H * (2 * 64 * D + 2 * D * D) / 800e12
claim(
    "C20.1",
    "linear attention at 16 x 2048 tokens, 12 heads of 128, is bound by memory: q, k, v and o ask for 0.095 ms, the products for 0.049",
    source="E20.1; bytes of the arguments with their decays, products of the traced chunk form; ms",
    error=max(abs(asked["linear"]["forward"][0] - 0.095), abs(asked["linear"]["forward"][1] - 0.049))
    + max(1e3 * by_hand[1] - asked["linear"]["forward"][1], 0)
    + max(1e3 * by_hand[0] - asked["linear"]["forward"][0], 0),
    tol=5e-4,
)

# %% [markdown]
# So for linear attention the memory sets the pace: 0.095 ms for a layer's forward pass. For the delta rule the two are nearly even. LaCT, whose matrices are wide, is bound by its products, and so is Mesa, even with the single solver step that is counted here (how many it takes is up to the keys).
#
# > **Takeaway.** Compute the floor first. It says what there is to win, and when to stop.
#
# ## 2 · Two rungs without a kernel
#
# The rule, one token after the other:
#
# $$ S_t = \gamma_t S_{t-1} + k_tv_t^\top, \qquad o_t = S_t^\top q_t . \tag{E20.2} $$
#
# And in chunks ([notebook 05](05-chunkwise-mesa.ipynb), E05.2 and E05.6). With $\zeta_{ti}=\gamma_{i+1}\cdots\gamma_t$ and the rows of $Q$, $K$, $V$ the tokens $c+1,\dots,c+C$ of a chunk,
#
# $$ O = \operatorname{diag}(\zeta_{tc})\,Q S_c + \bigl[Z\odot (QK^\top)\bigr]V, \qquad
#    S_{c+C} = \zeta_{c+C,c}\,S_c + K^\top\operatorname{diag}(\zeta_{c+C,i})\,V, \tag{E20.3} $$
#
# where $Z$ has $\zeta_{ti}$ in row $t$, column $i \le t$ and zeros above. Four products of matrices for 64 tokens, where the recurrence has 64 outer products and 64 reads.


# %%
def scan(q, k, v, log_decay):
    """E20.2 for one head."""

    def step(S, token):
        q, k, v, g = token
        S = jnp.exp(g) * S + jnp.outer(k, v)
        return S, S.T @ q

    return lax.scan(step, jnp.zeros((k.shape[1], v.shape[1])), (q, k, v, log_decay))[::-1]


def chunked(q, k, v, log_decay):
    """E20.3 for one head."""

    def step(S, chunk):
        q, k, v, g = chunk
        G = jnp.cumsum(g)
        Z = jnp.exp(jnp.where(jnp.tri(C, dtype=bool), G[:, None] - G, -jnp.inf))
        o = jnp.exp(G)[:, None] * (q @ S) + (Z * (q @ k.T)) @ v
        return jnp.exp(G[-1]) * S + k.T @ (jnp.exp(G[-1] - G)[:, None] * v), o

    chunks = [x.reshape(-1, C, *x.shape[1:]) for x in (q, k, v, log_decay)]
    S, o = lax.scan(step, jnp.zeros((k.shape[1], v.shape[1])), chunks)
    return o.reshape(v.shape), S


def draw(T, D):
    """One sequence of one head, [1, T, 1, D] in bfloat16, and the logarithms of its decays."""
    rng = np.random.default_rng(20)
    q, k, v = (rng.normal(size=(1, T, 1, D)) / (1 if name == "v" else D**0.5) for name in "qkv")
    gamma = rng.uniform(0.9, 1, (1, T, 1))
    return *(jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)), jnp.asarray(np.log(gamma), jnp.float32)


def off(x, wanted):
    """How far x is from what is wanted, relative to it."""
    x, wanted = np.asarray(x, np.float64), np.asarray(wanted, np.float64)
    return np.linalg.norm(x.reshape(wanted.shape) - wanted) / np.linalg.norm(wanted)


tokens = draw(3 * C, 64)
wide = [x[0, :, 0].astype(jnp.float32) for x in tokens]
exact = linear(*(x.astype(jnp.float32) for x in tokens[:3]), log_decay=tokens[3], form="definition")[0][0, :, 0]
wanted, last = scan(*wide)
in_chunks, last_in_chunks = chunked(*wide)

# %% tags=["nbval-check-output"]
claim(
    "C20.2",
    "the loop over tokens, chunks of 64 and the weighted sum over all pairs are the same outputs and last state",
    source="E20.2, E20.3 in float32 against form 'definition'; 192 tokens of width 64",
    error=max(off(wanted, exact), off(in_chunks, exact), off(last_in_chunks, last)),
    tol=3e-6,
)

# %% [markdown]
# What do they cost on the card? The loop has 2048 steps, each a small program that XLA starts anew: it reads and writes all the states, $BHD^2$ float32 numbers or 12.6 MB, and adds next to nothing to them.
# The chunks have 32 steps, and what one of their products leaves is in global memory before the next one reads it.
# In both the state travels, and in both the card waits for the next program to start. A kernel ends that.
#
# ## 3 · The first kernel
#
# A kernel's program runs once for each cell of a **grid**: here for each sequence, each head, and each 64 columns of $v$, $o$ and $S$ (these columns never meet: column $j$ of $O$ needs all of $Q$ and $K$, and column $j$ of $V$ and $S$). At the measured size that is $16\cdot12\cdot2 = 384$ blocks on 132 SMs.
#
# It sees three memories.
#
# - **Global memory** holds arguments and results (`q_g`, ...). A copy engine brings a box of an array to shared memory while the threads do something else: `copy_gmem_to_smem` only *starts* that. A **barrier** counts arrivals, and `barrier_wait` waits for them.
# - **Shared memory** (`q_s`, ..., 227 KB on each SM) holds the factors of products: on Hopper `wgmma` multiplies tiles there, in 16 bits, and adds up in float32 in the registers.
# - **Registers** hold sums, decays and everything else between two products.
#
# What the threads write to shared memory, neither the copy engine nor `wgmma` sees before `commit_smem`, which is also the barrier at which the 128 threads wait for each other.
#
# The algebra is E20.3, with all exponents at most 0 and no division: by the definition of $G_t$,
#
# $$ \zeta_{tc} = e^{G_t}, \qquad \zeta_{ti} = e^{G_t - G_i}, \qquad \zeta_{c+C,\,i} = e^{G_{c+C} - G_i} . \tag{E20.4} $$
#
# Read `chunk` below from top to bottom. It *is* E20.3, and every line waits for the one before.


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


# %% [markdown]
# Run it. The interpreter keeps a clock for each thread and each engine, and reports two of them that touch the same place without an order between them: a **race**. It prints what it finds; we catch what it prints.


# %%
def interpreted(kernel, *args):
    """The results in JAX's interpreter of GPU kernels, and whether it saw a race (some versions raise then)."""
    said = io.StringIO()
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        with contextlib.redirect_stdout(said):
            results = jax.block_until_ready(jax.jit(kernel)(*args))
    return results, "RACE DETECTED" in said.getvalue()


G = tiles.sums(tokens[3])  # [B, H, T]: a number for each token and head, 1.5 MB where q has 100. XLA may do it
ran = {"first": interpreted(first, *tokens[:3], G)}


def judged(name):
    """The larger error of o and of the last S; 1 more if there was a race."""
    (o, S), raced = ran[name]
    return max(off(o, wanted), off(S, last)) + raced


print(f"first: o off by {off(ran['first'][0][0], wanted):.1e}, S by {off(ran['first'][0][1], last):.1e}")

# %% tags=["nbval-check-output"]
claim(
    "C20.3",
    "the first kernel gives the recurrence's outputs and last state, to the rounding of 16-bit factors, and has no race",
    source="E20.3, E20.4 in JAX's interpreter of GPU kernels, 192 tokens of width 64; relative error, 1 added for a race",
    error=judged("first"),
    tol=4e-3,
)

# %% [markdown]
# A rounding to bfloat16 is at most $2^{-8} = 0.004$ of the number, and half of that as a rule, and the scores, the faded $v$ and the copy of $S$ are each rounded once: that is the error.
#
# **Why races are looked for.** Here is a kernel of one line that forgets to wait for its copy. The interpreter runs things in *some* order, and in that order the answer is right. On a GPU it would be, sometimes.


# %%
def doubled(x, wait):
    def body(x_g, o_g, *, x_s, there):
        plgpu.copy_gmem_to_smem(x_g, x_s, there)
        if wait:
            plgpu.barrier_wait(there)
        o_g[...] = 2 * x_s[...]

    scratch = {"x_s": plgpu.SMEM(x.shape, x.dtype), "there": plgpu.Barrier()}
    return tiles.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype), scratch_types=scratch)(x)


x = jnp.arange(128.0)
waits, forgets = (interpreted(lambda x, wait=wait: doubled(x, wait), x) for wait in (True, False))
print(f"with the wait: right {bool((waits[0] == 2 * x).all())}, race {waits[1]}")
print(f"without:       right {bool((forgets[0] == 2 * x).all())}, race {forgets[1]}")

# %% tags=["nbval-check-output"]
claim(
    "C20.4",
    "a kernel that does not wait for its copy gives the right answer in the interpreter, and only the race detector sees it",
    source="the two kernels above; wrong numbers, a race where the wait is, and no race where it is missing, counted",
    error=int((waits[0] != 2 * x).any()) + int((forgets[0] != 2 * x).any()) + waits[1] + (not forgets[1]),
    tol=0,
)

# %% [markdown]
# (The interpreter takes a warpgroup for a single thread. So it does not see a *missing barrier among the 128 threads*: each `commit_smem` has to be thought through. Lowering for CUDA, which also needs no GPU, finds the third kind of mistake: layouts and sizes that the chip has not.)
#
# ## 4 · The second: keep the state where it is used
#
# `first` fetches the state for each chunk and writes it back. It comes from the level-2 cache, not from memory, but it is a wait of a thousand cycles twice a chunk. A float32 tile of $64\times64$ is 32 registers in each of 128 threads; two of them hold a block's $S$ at $D = 128$, and a thread has 255. So **the state can stay in registers** from the first chunk to the last.
#
# And products that do not need each other are issued together: `products` with several arguments starts all of them before it waits for one. The tensor core then has the next while it finishes the last.


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


# %% [markdown]
# ## 5 · The third and the fourth: fetch ahead, and in the right order
#
# `second` still asks for a chunk and then waits for it, some 2000 cycles. With **two slots** for $q$, $k$ and $v$ the next chunk is on its way while this one is computed. It costs shared memory, and so perhaps a block on the SM: section 7.
#
# The fourth changes one line. Both halves of a head need the same $q$ and $k$. Which blocks run at the same time is decided by the order of the grid, and **the last axis is the innermost one**. With the halves first, the second half of a head starts 192 blocks after the first; with the halves last, right after it, and finds $q$ and $k$ in the level-2 cache. (The package's kernels had them first, with a comment that said the opposite of what was true, until Nsight Compute counted more bytes than there were.)


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

# %%
ran |= {name: interpreted(RUNGS[name], *tokens[:3], G) for name in ("second", "third")}
for name in ran:
    (o, S), raced = ran[name]
    print(f"{name}: o off by {off(o, wanted):.1e}, S by {off(S, last):.1e}, {'a race' if raced else 'no race'}")

# %% tags=["nbval-check-output"]
claim(
    "C20.5",
    "with the state in registers, and with a chunk fetched ahead, the kernel gives the same, without a race",
    source="second and third in the interpreter against E20.2; the larger relative error, 1 added for a race",
    error=max(judged("second"), judged("third")),
    tol=4e-3,
)
claim(
    "C20.6",
    "the second and the third kernel do the same arithmetic: their outputs and states are equal to the last bit",
    source="192 tokens of width 64; numbers that differ (the fourth is the third, with the grid in another order)",
    error=sum(int((a != b).sum()) for a, b in zip(ran["second"][0], ran["third"][0], strict=True)),
    tol=0,
)

# %% [markdown]
# > **Takeaway.** Every rung is the same four products. What changes is what is in the way when the next one could start.
#
# ## 6 · The ladder, measured
#
# On an H200, the first six rungs in turn within one run. *package* is `linear(form="kernel")`, as it was when the rung was measured: the third rung with its decays fetched ahead too, plus what a library owes (a start state, decays of 0, any $T$). `package, first` and `package, prefetch` are its own history. The same log holds the rungs of the other rules, each with what had been written down before it ran. Move the slider through the rules.

# %%
print(*rungs.table(climbed), sep="\n")

# %%
explore(lambda rule: pictures.ladder(rule, climbed, floor), rule=[*climbed], start={"rule": "linear"})

# %% tags=["nbval-check-output"]
claim(
    "C20.7",
    "no rung of any rule was measured below its floor",
    source="E20.1 and bench/results/rungs.json; how far the fastest is below, relative to the floor",
    error=max(
        max(1 - rung.measured[part] / floor[rule][part], 0)
        for rule, some in climbed.items()
        for rung in some
        for part in rungs.PASSES
        if rung.measured[part]
    ),
    tol=0,
)

# %%
print("linear attention, what each rung bought:")
measured = [rung for rung in climbed["linear"] if rung.measured["forward"]]
for before, rung in itertools.pairwise(measured):
    gain = before.measured["forward"] / rung.measured["forward"]
    left = rung.measured["forward"] / floor["linear"]["forward"]
    print(f"{rung.rung:28} {gain:6.2f} times as fast as {before.rung}; {left:.1f} floors")
for rung in climbed["linear"]:
    if rung.outcome:
        print(f"\n{rung.rung}: {rung.outcome}")

# %% tags=["nbval-check-output"]
ms = {rung.rung: rung.measured["forward"] for rung in climbed["linear"]}
steps = ["scan", "chunk", "first", "second", "third", "fourth"]
bought = [ms[before] / ms[after] for before, after in itertools.pairwise(steps)]
claim(
    "C20.16",
    "on an H200 chunks make the scan 6.9 times faster, a kernel makes the chunks 8.9 times faster, the state in registers 2.0, the fetch ahead 1.2 and the order of the grid 1.04 times; the fourth kernel takes 2.1 floors",
    source="bench/results/rungs.json, forward, one run of all six; the largest relative difference",
    error=max(
        abs(x / y - 1)
        for x, y in zip(
            [*bought, ms["fourth"] / floor["linear"]["forward"]], (6.9, 8.9, 2.0, 1.2, 1.04, 2.1), strict=True
        )
    ),
    tol=0.03,
)

# %% [markdown]
# From the loop to the last kernel that is a factor of 155, of which the tensor cores and the end of XLA's launches make 62 and everything that one calls tuning 2.5.
#
# ## 7 · What fits on a multiprocessor
#
# A block that waits leaves its SM idle, unless another block is there to run meanwhile. How many share an SM is a matter of division. Shared memory: $q$ and $k$ take $2CD$ bytes each and $v$ takes $2\cdot64\,C$, times the slots; the scores (and then $o$) $2C\max(C,64)$; the copy of $S$ $2\cdot64\,D$. Each block takes 1 KB more than it asks for, and an SM has 228 KB. Registers: 65,536 of an SM, at most 255 for a thread. A longer chunk would have a warpgroup for each 64 tokens, $2C$ threads.
#
# $$ \text{shared} = 2\,\bigl[\,n\,C\,(2D + 64) + C\max(C, 64) + 64D\,\bigr], \qquad
#    \text{sums} = \frac{64D + \max(2C^2,\ 128\,C,\ 64D)}{2C} . \tag{E20.5} $$
#
# (Sums: $S$, and beside it the largest of what stands in registers at one time: scores and decays, both parts of $o$, or what is written to $S$. Addresses and vectors come on top; the picture adds 40, which is little.)
# Drag both. At chunk 64 and width 128 two slots cost one of three blocks. At chunk 128 there is room for one block, whatever the slots, and the scores, of which the decays are a second copy, fill the registers.

# %%
explore(
    lambda chunk, width: pictures.room(chunk, width, B * T * H * 128 // width),
    chunk=[64, 128, 192],
    width=[64, 128, 192, 256],
    start={"chunk": 64, "width": 128},
)

# %% tags=["nbval-check-output"]
told = {slots: hopper.walk(C, D, slots) for slots in (1, 2)}
fit = [hopper.blocks(w.shared, w.sums + pictures.OTHERS, w.threads) for w in told.values()]
n = np.array([1, 2])
by_formula = 2 * (n * C * (2 * D + 64) + C * 64 + 64 * D), (64 * D + max(2 * C**2, 128 * C, 64 * D)) / (2 * C)
claim(
    "C20.8",
    "at chunk 64 and width 128 a block has 64 KB with one slot and 104 with two, and 128 registers of sums: three blocks an SM, or two",
    source="E20.5; 233,472 bytes and 65,536 registers of an SM",
    error=sum(abs(w.shared - 1024 * kb) for w, kb in zip(told.values(), (64, 104), strict=True))
    + abs(by_formula[0] - [w.shared for w in told.values()]).sum()
    + abs(by_formula[1] - 128)
    + abs(told[1].sums - 128)
    + abs(fit[0] - 3)
    + abs(fit[1] - 2),
    tol=0,
)

# %% [markdown]
# So much for counting. The compiler decides, and can be asked: `ptxas -v` needs no GPU either.

# %%
compiled = {"first": 191, "second": 252, "third": 248, "fourth": 248}  # ptxas for sm_90a, width 128, jax 0.11.2
for name, registers in compiled.items():
    w = hopper.walk(C, D, slots=1 if name in ("first", "second") else 2)
    by_count, really = (hopper.blocks(w.shared, r, w.threads) for r in (w.sums + pictures.OTHERS, registers))
    print(f"{name:6} {registers} registers a thread: {really} blocks an SM, by the count {by_count}")

# %% [markdown]
# It takes what it may have, 255, and keeps more than sums there: masks, decays, addresses. So there are two blocks an SM in every rung, and the second slots cost nothing after all: **three blocks were a prediction too.**
# 384 blocks at two an SM are 264 places: the last 120 blocks run when the first are done, so the card is full for one round and less than half full for another.
#
# **Exercise 20.1 ★ How full.** Write `full(n, per_sm, sms)`: $n$ equal blocks run in rounds of `per_sm * sms` places, and a round takes as long however few blocks it has. Which share of all places is used?
#
# <details><summary>Hint</summary>
#
# The number of rounds is $n$ over the places, rounded up.
#
# </details>


# %%
def full(n, per_sm, sms=132):
    return ...


def test_full(answer):
    for n, per_sm, sms in ((384, 2, 132), (384, 3, 132), (264, 2, 132), (265, 2, 132), (1, 1, 4)):
        rounds, left = 0, n
        while left > 0:  # let them run
            rounds, left = rounds + 1, left - per_sm * sms
        found, share = answer(n, per_sm, sms), n / (rounds * per_sm * sms)
        if not abs(found - share) < 1e-12:
            return f"{n} blocks, {per_sm} on each of {sms}: you say {found}; {rounds} rounds make it {share:.4f}"


check("20.1", full, test_full)


# %% jupyter={"source_hidden": true} tags=["solution"]
def full_solution(n, per_sm, sms=132):
    places = per_sm * sms
    return n / (-(-n // places) * places)


check("20.1", full_solution, test_full)
for per_sm in (2, 3):
    print(f"384 blocks, {per_sm} on an SM: {full_solution(384, per_sm):.0%} of the places")

# %% [markdown]
# **Exercise 20.2 ★★ The floor of a plan.** E20.1 is the floor of the *task*. A plan has its own, since it may fetch a number twice or leave something for later. `linear`'s gradient is three launches: the forward walk (reads $q, k, v$, writes $o$), the backward walk (reads $k, q, do$, writes $dv$), each of which writes its states, $D\times D$ for each chunk in 16 bits; and one that makes $dq$ and $dk$ of $q, k, v, do$ and both kinds of states. Write `plan(B, T, H, D, C)`: the bytes of all three, each array moved once a launch.
#
# <details><summary>Hint</summary>
#
# Count arrays of $BTHD$ numbers: 4, 4 and 6. The states are $BH(T/C)D^2$ numbers, written twice and read twice.
#
# </details>


# %%
def plan(B, T, H, D, C):
    return ...


def test_plan(answer):
    for sizes in ((16, 2048, 12, 128, 64), (1, 128, 1, 64, 64), (2, 512, 3, 128, 32)):
        (B, T, H, D, chunk), numbers = sizes, 0
        for moved in ("qkvo", "kqdx", "qkvdxy"):  # do is d; dv, dq and dk are x and y
            numbers += len(moved) * B * T * H * D
        numbers += 4 * sum(D * D for _ in range(B * H) for _ in range(0, T, chunk))
        if not abs(answer(*sizes) - 2 * numbers) < 1:
            return f"at {sizes} you say {answer(*sizes)}; expected {2 * numbers} bytes"


check("20.2", plan, test_plan)


# %% jupyter={"source_hidden": true} tags=["solution"]
def plan_solution(B, T, H, D, C):
    return 2 * (14 * B * T * H * D + 4 * B * H * (T // C) * D**2)


check("20.2", plan_solution, test_plan)
ms = 1e3 * plan_solution(B, T, H, D, C) / hopper.H200.bandwidth
print(f"the plan asks for {ms:.2f} ms, the task for {floor['linear']['both']:.2f}")

# %% tags=["nbval-check-output"]
claim(
    "C20.9",
    "the three launches of linear's gradient move 2.7 times the bytes of the task: 2.2 GB, 0.52 ms",
    source="exercise 20.2 and E20.1; the largest of three differences, in GB, in ms and of the ratio",
    error=max(abs(plan_solution(B, T, H, D, C) / 1e9 - 2.2), abs(ms - 0.52), abs(ms / floor["linear"]["both"] - 2.7)),
    tol=0.05,
)

# %% [markdown]
# ## 8 · What the other rules ask for besides
#
# **The delta rule: an inverse.** Its errors $u$ obey $(I+A)u = x$ with a strictly lower triangular $64\times64$ matrix $A$ for each chunk ([notebook 11](11-osdn-in-chunks.ipynb)). Forward substitution is 64 steps that wait for each other. A tensor core would rather have products. Split $I + A$ into blocks; if $T_1$ and $T_2$ are the inverses of the two on the diagonal,
#
# $$ \begin{pmatrix} I+A_{11} & 0\\ A_{21} & I+A_{22}\end{pmatrix}^{-1} = \begin{pmatrix} T_1 & 0\\ -T_2A_{21}T_1 & T_2\end{pmatrix} . \tag{E20.6} $$
#
# (Multiply: the lower left corner is $A_{21}T_1 - (I+A_{22})T_2A_{21}T_1 = 0$.) Begin with blocks of one, where $T = I$, and double: six levels, two products each, for all blocks at once with a mask $M_s$ for the corners of level $s$: $T \leftarrow T - T\,[(AT)\odot M_s]$.
# There is a shorter formula, $\prod_j\bigl(I + (-A)^{2^j}\bigr)$, with as many products. It is the trap: for keys that are alike the powers of $A$ grow before they cancel.


# %%
def by_doubling(A, dtype):
    """E20.6, level by level, in a dtype."""
    place = np.arange(len(A))
    apart, A = place[:, None] ^ place, A.astype(dtype)  # from s to 2 s - 1: together in a block of 2 s
    T = np.eye(len(A), dtype=dtype)
    for s in (1, 2, 4, 8, 16, 32):
        T = T - T @ np.where((apart >= s) & (apart < 2 * s), A @ T, 0)
    return T


def by_powers(A, dtype):
    """The product of 1 + (-A)^(2^j), j = 0 to 5."""
    T, power = np.eye(len(A), dtype=dtype), -A.astype(dtype)
    for _ in range(6):
        T, power = T + T @ power, power @ power
    return T


rng = np.random.default_rng(20)
keys = {"random": rng.normal(size=(C, D)), "nearly alike": 1 + 0.1 * rng.normal(size=(C, D))}
found = {}
for name, k in keys.items():
    k = k / np.linalg.norm(k, axis=1, keepdims=True)
    A = np.tril(k @ k.T, -1)  # beta 1, no decay
    true = np.linalg.inv(np.eye(C) + A)
    found[name] = {f.__name__: off(f(A, np.float32), true) for f in (by_doubling, by_powers)}
    print(f"{name:13} " + ", ".join(f"{how}: off by {error:.0e}" for how, error in found[name].items()))

# %% tags=["nbval-check-output"]
claim(
    "C20.10",
    "doubled blocks invert a chunk of the delta rule to 1e-5 in float32, for keys that are nearly alike too; the product of powers is then wrong by more than itself",
    source="E20.6 against an inverse in float64; beta 1, 64 tokens of width 128; 1 added if the powers are right",
    error=max(told["by_doubling"] for told in found.values()) + float(found["nearly alike"]["by_powers"] < 1),
    tol=1e-5,
)

# %% [markdown]
# **OSDN: a sweep.** The scales of a chunk are a chain too ([notebook 11](11-osdn-in-chunks.ipynb)): $z_t = y_t - \sum_{i<t}A_{ti}z_i$ with $A_{ti} = \eta b_t^2\,(s_t\cdot s_i)/n_i$, $s = k^2$. But $\eta$ is small, so $A$ is, and there is no need for an inverse:
#
# $$ z^{(m+1)} = y - A z^{(m)}, \qquad \lVert z^{(m)} - z\rVert_\infty \le \rho^m\,\lVert z^{(0)} - z\rVert_\infty, \qquad \rho = \max_t \sum_{i<t} |A_{ti}| . \tag{E20.7} $$
#
# (Subtract $z = y - Az$: the error is multiplied by $-A$, whose largest row sum bounds what it does to the largest entry.) From $z^{(0)} = y$ a few rounds are enough, and a row sum above one half says that they are not: then the chunk is done token by token.

# %%
k = keys["random"] / np.linalg.norm(keys["random"], axis=1, keepdims=True)
s, b, eta = k**2, rng.uniform(size=C), 3e-3
A = eta * np.tril(s @ s.T, -1) * (b**2)[:, None]
y = b * (1 - b * s.sum(1))
true, z, distance = np.linalg.solve(np.eye(C) + A, y), y, []
for _ in range(4):
    distance.append(np.abs(z - true).max())
    z = y - A @ z
rho = A.sum(1).max()
print(f"rho {rho:.1e}; distances " + ", ".join(f"{d:.0e}" for d in distance))

# %% tags=["nbval-check-output"]
claim(
    "C20.11",
    "at the paper's step size the sweep of a chunk is solved to 1e-5 by two rounds, and each takes off at least the factor rho",
    source="E20.7; unit keys of width 128, d = 1 at the start, eta 0.003, 64 tokens; excess over the bound added",
    error=distance[2] / np.abs(true).max() + sum(max(b - rho * a - 1e-15, 0) for a, b in itertools.pairwise(distance)),
    tol=1e-5,
)

# %% [markdown]
# **Mesa: two numbers for one.** Its solver multiplies by $H + \Lambda$ ten times or so for each chunk, so the products must be on the tensor cores, in 16 bits. But can $H$ be rounded to 16 bits at all? A rounding changes each entry by at most $2^{-8}$ of itself, so it adds a matrix $R$ with
#
# $$ \lVert R\rVert_2 \le \lVert R\rVert_F \le 2^{-8}\,\lVert H\rVert_F , \tag{E20.8} $$
#
# and $H + R + \Lambda$ can have an eigenvalue below zero as soon as that is more than $\lambda$. For $T$ keys of length one that are all alike, $\lVert H\rVert_F = T$. CG on a matrix that is not positive definite goes anywhere ([notebook 04](04-conjugate-gradient.ipynb)).
# The cure is to keep what the rounding left, as a second 16-bit number: $H \approx H_1 + H_2$, two products instead of one, and $2^{-17}$ instead of $2^{-8}$ (what is left has a sign of its own, which is one more bit).


# %%
def halves(H, parts):
    """H as a sum of so many bfloat16 numbers."""
    kept = np.zeros_like(H)
    for _ in range(parts):
        kept = kept + np.asarray(jnp.asarray(H - kept, jnp.bfloat16), np.float64)
    return kept


LAM = 0.25
key = rng.normal(size=128)
key = key / np.linalg.norm(key)
smallest = {}
for n in (64, 256, 1024, 4096):
    H_n = n * np.outer(key, key)
    smallest[n] = [np.linalg.eigvalsh(halves(H_n, parts) + LAM * np.eye(128))[0] for parts in (1, 2)]
    print(f"{n:5} equal keys: smallest eigenvalue {smallest[n][0]:8.4f} with one part, {smallest[n][1]:.6f} with two")

# %% tags=["nbval-check-output"]
claim(
    "C20.12",
    "with H in one 16-bit number H + Lam is indefinite at 4096 equal keys; with two it is definite, and its smallest eigenvalue right to 2 percent",
    source="E20.8; bfloat16, width 128, lam 0.25; the second error, 1 added if the first is definite",
    error=abs(smallest[4096][1] / LAM - 1) + float(smallest[4096][0] > 0),
    tol=0.02,
)

# %% [markdown]
# **Exercise 20.3 ★ From which length on.** E20.8 guarantees that $H+\Lambda$ stays definite while $2^{1-9p}\lVert H\rVert_F < \lambda$ with $p$ parts. Write `safe(lam, parts)`: up to how many equal keys of length one is it guaranteed?
#
# <details><summary>Hint</summary>
#
# $T < \lambda\,2^{9p-1}$.
#
# </details>


# %%
def safe(lam, parts):
    return ...  # a whole number of keys


def test_safe(answer):
    for lam, parts in ((0.25, 1), (0.25, 2), (1.0, 1), (0.3, 2)):
        T = answer(lam, parts)
        bound = [2.0 ** (1 - 9 * parts) * n for n in (T, T + 1)]
        if not bound[0] < lam <= bound[1]:
            return f"lam {lam}, {parts} parts: at {T} keys the bound is {bound[0]:.6g}, at one more {bound[1]:.6g}"


check("20.3", safe, test_safe)


# %% jupyter={"source_hidden": true} tags=["solution"]
def safe_solution(lam, parts):
    return int(np.ceil(lam * 2 ** (9 * parts - 1))) - 1


check("20.3", safe_solution, test_safe)
print(f"lam 0.25: {safe_solution(0.25, 1)} keys with one part, {safe_solution(0.25, 2)} with two")

# %% [markdown]
# **And: how many steps?** A step saved is time saved. The direction $p$ of a step is a factor too, and is rounded to bfloat16. The solver moves along the rounded $p$ and takes the residual along, so nothing is wrong at the end; but the rounding puts a little of every eigenvector back into the residual, and where $H$ has one large eigenvalue $\theta + \mu$, as it has as soon as keys have a mean, a little of that one is much.
# So tell CG of it. If all other eigenvalues are near their mean $\mu$ and $u$ is that one eigenvector, of length one, the inverse is known (Sherman and Morrison), and costs two vectors:
#
# $$ M = \bigl(\Lambda + \mu I + \theta uu^\top\bigr)^{-1} = E - \frac{\theta}{1 + \theta\,u^\top Eu}\,Eu\,u^\top E, \qquad E = (\Lambda + \mu I)^{-1} . \tag{E20.9} $$
#
# As a preconditioner ([notebook 04](04-conjugate-gradient.ipynb)) it takes no product, only sums over channels. $H$ times $H$ times its diagonal is near enough to $u$, and the trace gives $\mu$. The kernel's `PCG` is this. We expect a step to take a fifth longer. Where $H$ has several large eigenvalues, or none, it saves few steps.


# %%
def one_direction(H, lam):
    """M of E20.9."""
    v = H @ np.diag(H)
    u = H @ v
    most = v @ u / (v @ v)  # of v the Rayleigh quotient: theta + mu
    mu = (np.trace(H) - most) / (len(H) - 1)
    u = u / np.linalg.norm(u)
    return np.linalg.inv(np.diag(lam + mu) + (most - mu) * np.outer(u, u))


def steps_needed(H, K, Q, beta, lam, M, rounded, tol=3e-3):
    """Until every token of a chunk is done, token t with H + sum_{i <= t} beta_i k_i k_i' + diag(lam)."""
    weights, r, n = np.tri(C) * beta, Q, 0
    z = r @ M
    p, rz = rounded(z), (r * z).sum(1)
    while (np.linalg.norm(r, axis=1) > tol * np.linalg.norm(Q, axis=1)).any():
        Ap = p @ H + (weights * (p @ K.T)) @ K + lam * p
        r = r - (rz / (p * Ap).sum(1))[:, None] * Ap
        z, before = r @ M, rz
        rz = (r * z).sum(1)
        p, n = rounded(z + (rz / before)[:, None] * p), n + 1
    return n


def silu_unit(x):
    x = x / (1 + np.exp(-x))
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def in_16_bits(p):
    return np.asarray(jnp.asarray(p, jnp.bfloat16), np.float64)


taken = []
for _ in range(8):
    keys, Q = silu_unit(rng.normal(size=(1024, 128))), silu_unit(rng.normal(size=(C, 128)))
    beta, lam = rng.uniform(size=1024), rng.uniform(0.25, 1.25, 128)
    H = (keys[:-C].T * beta[:-C]) @ keys[:-C]
    system = H, keys[-C:], Q, beta[-C:], lam
    plain, near = np.eye(128), one_direction(H, lam)
    taken.append([steps_needed(*system, M, how) for M in (plain, near) for how in (lambda p: p, in_16_bits)])
exactly, rounded, exactly_near, rounded_near = np.mean(taken, axis=0)
print(f"CG {exactly:.1f} steps, with p in 16 bits {rounded:.1f}; with M {exactly_near:.1f} and {rounded_near:.1f}")

# %% tags=["nbval-check-output"]
claim(
    "C20.17",
    "at 1024 keys with a mean CG takes 7.0 steps to 3e-3, with its direction in bfloat16 9.0; told of the trace and one direction of H it takes 6.0, rounded or not",
    source="E20.9; SiLU of normal numbers, unit length, width 128, beta in [0, 1], lam in [0.25, 1.25]; mean of eight chunks, largest difference",
    error=np.abs(np.array([exactly, rounded, exactly_near, rounded_near]) - (7.0, 9.0, 6.0, 6.0)).max(),
    tol=0.13,
)

# %% [markdown]
# **LaCT: no chain, but products that fit badly.** Its chunks are long, 2048 tokens, and its matrices wide, so the products themselves are the time. What a program product by product adds are the hidden arrays between them, written and read in 16 bits: six for the direction of a write ([notebook 15](15-lact-at-scale.ipynb), E15.3), $a$, $u$ and $e$ of the products and the three left factors made of them. In a kernel a block takes 128 tokens and goes through strips of the hidden layer, and tokens and matrices pass by in a ring of four places in shared memory, 64 columns at a time. The sums $a$, $u$ and $e$ of a strip stay in registers, and the other three leave once.
# (The first kernels kept the tokens in shared memory, to read them once. Nothing wider than 64 columns fitted beside them, and width 768 not at all. Tokens that come back from the level-2 cache for each strip turned out to be the smaller price: 35.5 microseconds for the six sums of a direction's gradient, where it had been 65.5.)

# %%
tokens_in_all, width, chunk = 4 * 32768, 384, 2048
hidden = 6 * 2 * tokens_in_all * width * 2 / hopper.H200.bandwidth * 1e3
task = asked["lact 760M"]["forward"]
ring = 4 * (128 + 256) * 64 * 2  # bytes: four places for 64 columns of 128 tokens and of matrices, 256 rows at most
ring += 4 * 64 * 64 * 2  # and two tiles of results for each warpgroup
parallel = 4 * chunk // 128 * 2  # blocks: four heads, 128 tokens each, two halves of the hidden layer
print(f"hidden arrays {hidden:.2f} ms, bytes of the task {task[0]:.2f}, its products {task[1]:.2f}")
print(f"a block takes {ring / 1024:.0f} KB at most, at any width, and there are {parallel} for {hopper.H200.sms} SMs")

# %% tags=["nbval-check-output"]
claim(
    "C20.13",
    "LaCT's hidden arrays, written and read, would take more time than all arguments and results, and its blocks fit one to an SM and nearly fill the card",
    source="760M: 4 x 32768 tokens, width 384, chunks of 2048; the shares by which each of the three fails",
    error=max(1 - hidden / task[0], 0)
    + max(ring / (hopper.H200.shared - hopper.RESERVED) - 1, 0)
    + max(0.9 - parallel / hopper.H200.sms, 0),
    tol=0,
)

# %% [markdown]
# ## 9 · What was predicted wrong
#
# All rungs for which there is a prediction, by how far it was off. A ratio above 1: slower than predicted.

# %%
misses = [
    (ratio, part, rung)
    for some in climbed.values()
    for rung in some
    for part in rungs.PASSES
    if (ratio := rungs.miss(rung, part)) is not None
]
for ratio, part, rung in sorted(misses, key=lambda miss: -abs(np.log(miss[0]))):
    passes = "forward" if part == "forward" else "with backward"
    print(f"{ratio:5.2f}  {rung.rule}, {rung.rung} ({passes})")
print()
for some in climbed.values():
    for rung in some:
        if rung.outcome:
            print(f"{rung.rule}, {rung.rung}: {rung.outcome}")
slower = [ratio for ratio, *_ in misses if ratio > 1]
print(
    f"\n{len(slower)} of {len(misses)} took longer than predicted; the median ratio is {np.median([r for r, *_ in misses]):.2f}"
)

# %% [markdown]
# **Why.** Six kinds of mistake, and each has a rule that would have avoided it.
#
# 1. *A chain was counted as a sum.* Bytes and FLOPs are throughput. The sweep of OSDN moves little and multiplies little, but its 32 chunks wait for each other, on 192 blocks for 132 SMs: nothing is there to run while one waits. **Count the links of the longest chain and give each its latency**, about 300 cycles for a product that somebody waits for, 2000 for a fetch. We forgot it once more at the end: Mesa's `between` waited a seventh of its time for loads at its end; fetched earlier, in three parts that take each other's places, they are perhaps three waits for one, and both passes took 18 % longer than before, of which the other libraries in that run explain 5.
# 2. *Registers were counted, not asked for.* Mesa's solver held three tiles of 64 x 128 in float32, 192 registers of each thread's 255, and the rest did not fit: the compiler *spilled* it, kept it in memory: 25 million accesses a launch. Twice the cure made it worse: to work on one thing while the tensor core multiplies another needs more registers still, and linear's kernel and Mesa's both became slower. Twice two kernels were fused to save the bytes between them (OSDN's $w$, Mesa's reads) and taken apart again: the registers of both were now needed at once. **Ask the compiler (`ptxas -v`) before you ask the card.**
#    And ask *what* does not fit. We took Mesa's spills for its tiles, which no loop can do without. A profile by instruction (`ncu`, source counters) showed something else: 22 % of the solver's samples waited for *descriptors*, the 64 bits by which `wgmma` is told where a tile lies, one for each 16 columns. They do not change in the loop, so the compiler computed all of them before it and had no registers to keep them. With an index that is always 0, and that no compiler can know to be 0 (`tiles.unforeseen_zero`), they are computed where they are needed: nothing is spilled, and the solve, which had taken 1.3 to 1.4 ms, took 1.04.
# 3. *What stands between the kernels was not counted at all.* In LaCT's first rung the kernels took little more than half of the time; XLA's copies, concatenations and transposes the rest. In the delta rule one addition of two gradients took 0.07 ms, as long as a quarter of a kernel. **Read the whole timeline, not your own lines in it.**
# 4. *Bytes were counted once that were moved twice.* The order of the grid (section 5): three kernels said "the first axis is the innermost" and put the halves there, and it is the last. Nsight Compute shows the bytes that DRAM really moved; **compare them with your count.** And then ask whether bytes are what the kernel waits for: putting this right was worth 4 % to linear attention, where 17 had been predicted.
# 5. *The prediction was for another task.* Mesa's was made for six steps and a tolerance of 0.003, and measured at 0.001. **Write the arguments beside the number.**
# 6. *Something was taken for granted.* The factors of a product are in shared memory, we thought, and so every link of a chain of products paid for a store, a fence (which shows what was stored to `wgmma`) and a barrier. But `wgmma` takes its *first* factor from registers too, laid out as the sum of the last product is. With states carried transposed, each sum of the delta rule's chain is the next product's first factor: its forward pass lost a quarter of its time (its blocks were cut anew, too), Mesa's a sixth, linear attention's a twentieth. **Read what an instruction takes, before you count what it costs.** And count whom it helps: the same made OSDN's $w$ in the inverses no better, and Mesa's solver came to 0.81 ms where 0.65 had been predicted, as it waits for more than stores.
#
# Something that no arithmetic would have told, and no test on a CPU: XLA on a GPU took $x - \text{float32}(\text{bfloat16}(x))$, the second part of a number, for zero (it may compute with more precision than was asked for), and Mesa's float16 kernel lost half of its digits there until the rounding was written as `lax.reduce_precision`.
#
# And one that has nothing to do with hardware: what the first two rungs of linear attention's own kernel took, nobody wrote down. They stand in the log as dashes.

# %% tags=["nbval-check-output"]
first_kernels = [
    (rung.predicted[part], rung.measured[part])
    for some in climbed.values()
    for rung in some
    for part in rungs.PASSES
    if rung.rung.startswith("first kernel") and rungs.miss(rung, part)
]
claim(
    "C20.15",
    "each first kernel of delta, OSDN and Mesa was predicted too fast, forward and with the backward pass",
    source="bench/results/rungs.json, rungs called first kernel that have a prediction; how many were not slower, and six less their number",
    error=sum(measured <= predicted for predicted, measured in first_kernels) + abs(len(first_kernels) - 6),
    tol=0,
)

# %% [markdown]
# ## 10 · Beside the others
#
# The same card, the same arguments, every contestant once a round and in turn, 20 rounds. Each ratio is taken within a round. Where ours is slower, its dot is left of the line and the table says so. What a library lacks, what did not load and what the run did not reach is named under the table; the last times of a rule that is missing are in the log of section 6. The table is a day older than the rungs of 2026-12-01 in section 6, which were timed by themselves, three rules as sums of kernels without what lies between: all five are faster there. (Mesa is here, and as "kernel" in F20d, with `CG`, and with the `between` of section 9 that lost and was taken back; "kernel, PCG" in F20d is an older one, of 32 probes. That of E20.9 has no time yet.)

# %%
print(*summary.times(results), sep="\n")

# %%
pictures.beside(results)

# %% tags=["nbval-check-output"]
claim(
    "C20.14",
    "no measured time, ours or another's, is below the floor of its task",
    source="E20.1 and bench/results/device.json; how far the fastest is below, relative to the floor",
    error=max(
        [
            max(1 - told["median"] / floor[name][short], 0)
            for name, row in results["rows"].items()
            for part, short in (("forward", "forward"), ("forward+backward", "both"))
            for told in row.get(part, {"ms": {}})["ms"].values()
        ]
    ),
    tol=0,
)

# %% [markdown]
# **Right, too?** A kernel is worth as much as its gradient. In training an upstream gradient of $10^{-4}$ or $10^{-6}$ is ordinary: the loss is a mean over all tokens. A rule that is linear in it must not care, and a solver that adds $10^{-5}$ to a denominator does ([notebook 06](06-implicit-gradient.ipynb)). Below, against float64 on the same rounded inputs: the error of the worst gradient, for upstream gradients of three sizes; [F20d](#F20d) draws it for each rule.

# %%
print(*summary.errors(results), sep="\n")

# %%
with_errors = [name for name, row in results["rows"].items() if len(row.get("errors", {})) > 1]
explore(lambda rule: pictures.errors(rule, results), rule=with_errors, start={"rule": with_errors[0]})

# %% [markdown]
# ## 11 · What was settled
#
# **The answer.** The memory sets the pace: 0.095 ms for the forward pass of this layer [C20.1], and no rung of any rule is below its floor [C20.7]. A kernel is 9 times as fast as the chunks that XLA compiles; then the state in registers is worth a factor of 2.0, the fetch ahead 1.2, and the order of the grid 1.04 [C20.16]. The last of these rungs takes 2.1 floors; what remains is not bytes and not products, but waiting: one product for the last, a block for a barrier, the second round of a grid for the first. Every rung gives the recurrence's numbers [C20.2, C20.3, C20.5, C20.6], and what looks right may still be a race [C20.4].
#
# | section | claims |
# |---|---|
# | the floor | C20.1 |
# | two rungs without a kernel | C20.2 |
# | the first kernel, races | C20.3, C20.4 |
# | state in registers, fetched ahead | C20.5, C20.6 |
# | the ladder, measured | C20.7, C20.16 |
# | what fits | C20.8, C20.9 |
# | delta, OSDN, Mesa, LaCT | C20.10, C20.11, C20.12, C20.17, C20.13 |
# | predictions | C20.15 |
# | beside the others | C20.14 |
#
# **Where this differs from the papers and from reference code.** No erratum here; three choices.
#
# | what | here | elsewhere |
# |---|---|---|
# | the matrix of Mesa's solver | two 16-bit numbers for each entry: one makes it indefinite [C20.12] | MesaNet keeps float32 products (App. G.5); a library that stores $H$ in 16 bits gave its users NaN |
# | small numbers added to denominators | none: the gradient's error must not depend on the upstream gradient's size ([F20d](#F20d)) | $10^{-5}$ in a Triton kernel of Mesa ([notebook 06](06-implicit-gradient.ipynb)) |
# | the inverse of a chunk | doubled blocks, whose terms stay as small as the result [C20.10] | the UT transform by forward substitution |
#
# **Three questions for the group.**
#
# 1. Two slots or three blocks an SM: both hide the wait for memory, one inside a block, one between blocks. Which would you expect to win on a chip with twice the shared memory, and which with half the latency?
# 2. Section 9 has six kinds of wrong prediction. Which of them would a measurement of the *scan* have shown already?
# 3. The interpreter finds races and the compiler finds layouts. What is left that only the card can tell, and how would you test it in a project whose tests have no card?
#
# **Minutes per beat, for whoever leads.** Sections 1 and 2: 12. Section 3: 18, with the kernel on the screen and E20.3 beside it. Sections 4 and 5: 12. Section 6: 8, [F20b](#F20b) with every rule. Section 7: 8. Section 8: 10, one rule of your choice. Section 9: 7. Section 10 and questions: 5. People get stuck at `commit_smem`: say each time what it separates.
#
# **Next.** The kernels themselves are in `ttt_teach/rules/*/kernel.py`; each begins with the equations of its lines. `python -m ttt_teach.bench.rungs --device` measures this ladder on your own card. [Notebook 00](00-start-here.ipynb) has the map.
