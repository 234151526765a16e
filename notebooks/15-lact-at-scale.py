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
#     title: LaCT at scale
#     question: Eight devices write one chunk together. How wrong is the step if each does its own Muon and they average?
#     minutes: 75
#     seconds: 15
#     settles: What a LaCT layer keeps and costs, counted from its program; that directions are added up before Muon, and how wrong it is to do it after; and from how many tokens on the read of a chunk can hide the sum.
# ---

# %% [markdown]
# # 15 · LaCT at scale
#
# **Eight devices write one chunk together. How wrong is the step if each does its own Muon and they average?**
#
# A LaCT layer (arXiv 2505.23884v1) takes one step on a small network for every chunk of thousands of tokens. A chunk is a set, so many devices can share it. This notebook counts first: what the network keeps, and what a token costs, forward and backward.
# Then it splits a chunk over eight devices, which your processor plays, finds what they must add up and when, and compares what they send with what they compute.
#
# | | |
# |---|---|
# | **Time** | 75 minutes to read, about 15 seconds to run on two cores, no GPU |
# | **You need** | [notebook 00](00-start-here.ipynb): keys, values, queries, and LaCT's row of the table. Matrix products, gradients, singular values. |
# | **In a hurry** | [what layers keep](#F15a), [added up too late](#F15b), [who waits for whom](#F15c), [the answer](#9-·-What-was-settled) |
#
# Symbols, once. The paper is known to us through a reading that quotes its equations; sizes that the reading does not give are those of the authors' code (repository a1600012888/LaCT, commit 1f84d47), and are marked so.
#
# | here | paper | meaning |
# |---|---|---|
# | $d$, $n_h$, $h=d/n_h$ | $d$, $n_h$, $h$ | width of the layer, its heads, width of a head |
# | $r$ | $r$ | hidden width of the memory over $h$ |
# | $W=(W_1,W_3,W_2)$ | the same | fast weights of a head: $W_1,W_3\in\mathbb R^{rh\times h}$, $W_2\in\mathbb R^{h\times rh}$; in code `gate`, `up`, `out` |
# | $f_W(x)=W_2\,[\mathrm{silu}(W_1x)\circ(W_3x)]$ | Eq. 6 | the memory; $\mathrm{silu}(a)=a/(1+e^{-a})$, and $\circ$ multiplies entry by entry |
# | $S$ | $S$ | fast weights of a layer, a number of numbers |
# | $n$, $C$, $N$ | $n$, $b$ | tokens of a sequence, tokens of a chunk, number of chunks |
# | $K$, $V$ | | widths of the keys and values of a head, where they may differ; in LaCT $K=V=h$ |
# | $P$ | | devices that share a chunk, or its shards |
# | $g$, $g_j$ | $g$ | ascent direction of a chunk: one matrix for each of $W_1,W_3,W_2$; and that of the tokens of shard $j$ |
# | $\eta_i$ | $\eta_i$ | rate of token $i$, positive (the layer has three, one for each matrix; nothing below depends on it) |
# | $\mathcal M(g)$ | $\mathrm{Muon}(g)$ | five steps of Newton-Schulz: they bring the singular values near 1 |
#
# One write, in words: at the old weights, add up over the chunk how $\eta_i\langle f_W(k_i),v_i\rangle$ rises with $W$. That is $g$. Then $W\leftarrow W+\mathcal M(g)$, matrix by matrix, and every row of $W$ is brought back to the length it had at the start (LaCT Eqs. 5 and 7, Sec. 3.2). In language a chunk is read *before* it is written, so that no token sees a later one.
#
# JAX must be told before it starts that this processor shall pass for eight devices. They share your cores: nothing becomes faster, but all is sent and added up as between real ones.

# %%
import os

eight = "--xla_force_host_platform_device_count=8"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {eight}"  # before jax is imported

import inspect
import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

jax.config.update("jax_platforms", "cpu")  # also where there is a GPU
jax.config.update("jax_enable_x64", True)

from ttt_teach import SwiGLU, delta, lact, linear, mesa
from ttt_teach.bench import hosts
from ttt_teach.explore import explore
from ttt_teach.explore import lact_at_scale as pictures
from ttt_teach.ledger import check, claim
from ttt_teach.rules.lact import sharded as package
from ttt_teach.rules.lact.chunk import direction
from ttt_teach.rules.lact.definition import length, loss
from ttt_teach.rules.lact.sharded import sharded
from ttt_teach.rules.lact.steps import restored
from ttt_teach.solvers.newton_schulz import newton_schulz
from ttt_teach.tasks import minilm_qkv, unit
from ttt_teach.theory import costs, sharding
from ttt_teach.theory.counting import product_flops

print(len(jax.devices()), "devices")

# %% [markdown]
# ## 1 · What a layer keeps
#
# **LaCT.** $W_1$ and $W_3$ have $rh\cdot h$ entries each, $W_2$ has $h\cdot rh$. So a head keeps $3rh^2$ numbers. A layer has $n_h$ heads of width $h=d/n_h$:
#
# $$ S = n_h\cdot 3rh^2 = 3\,r\,h\,d = \frac{3\,r\,d^2}{n_h} . \tag{E15.1} $$
#
# The width is given, so **fewer heads mean a larger memory**: the heads are blocks on the diagonal of a $d\times d$ matrix, and wide blocks cover more.
#
# **The others.** A matrix memory (linear attention with or without gates, the delta rule) keeps $K\times V$ numbers a head. If its values fill the layer, $n_hV=d$, then
#
# $$ n_h K V = K\,d : \tag{E15.2} $$
#
# in units of $d$ it is simply the width of a key. Mesa with $K=V$ keeps two matrices, $2Kd$. And E15.1 reads $3rh\cdot d$: three matrices with keys of width $h$, $r$ times as tall.
#
# Attention keeps a key and a value of every token, $2td$ after $t$ tokens, or $2wd$ in a window of $w$.
#
# Now the models. The reading's Table 3 compares three layers of width $d=3072$ and gives $384d$, $128d$ and $2304d$, without the heads of GLA and DeltaNet. Ours below are usual ones that fit.
#
# * GLA: $384d$ are keys of 384. Four heads with values of 768 fill the layer, so keys are half as wide as values.
# * DeltaNet: $128d$ are keys of 128, and 24 heads of $128\times128$.
# * LaCT: four heads ($h=768$) with $r=1$ in the code. E15.1 gives $3\cdot768\,d=2304d$.
# * For view synthesis $d=768$, one head, $r=2$ (code): $6d^2$, as the reading has it. In the smaller video model $d=1536$, $h=768$, $r=2$ (code).
# * Mesa is in none of LaCT's tables. MesaNet's heads are 128 wide.
#
# The table below does not use E15.1 or E15.2. It counts what is in a state of the package. (`eval_shape` computes shapes and no numbers.)


# %%
def array(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def tokens(T, heads, K, V):
    return [array(1, T, heads, K), array(1, T, heads, K), array(1, T, heads, V)]


def network(heads, h, ratio):
    """The fast weights of a layer, as shapes."""
    M = ratio * h
    return SwiGLU(*(array(heads, *size) for size in ((M, h), (M, h), (h, M))))


def numbers(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


def lact_state(dim, heads, ratio, momentum=False):
    h = dim // heads
    more = [array(1, 9, heads)] if momentum else []

    def run(W, q, k, v, lr, momentum=None):
        return lact(q, k, v, lr, W, chunk=4, momentum=momentum)[1]

    return jax.eval_shape(run, network(heads, h, ratio), *tokens(9, heads, h, h), array(1, 9, heads, 3), *more)


def matrix_state(rule, heads, K, V, *gates):
    return numbers(jax.eval_shape(lambda *x: rule(*x)[1], *tokens(9, heads, K, V), *gates))


DIM, WINDOW = 3072, 2048
beta = array(1, 9, 24)
LAYERS = {  # name: width, numbers that the package keeps, what E15.1 or E15.2 says in units of the width
    "DeltaNet, 24 heads of 128 x 128": (DIM, matrix_state(delta, 24, 128, 128, beta), 128),
    "Mesa, 24 heads of 128 x 128": (
        DIM,
        matrix_state(mesa, 24, 128, 128, beta, array(24, 128)),
        2 * 128,
    ),
    "GLA, 4 heads of 384 x 768": (DIM, matrix_state(linear, 4, 384, 768), 384),
    "LaCT language, 4 heads, r = 1": (DIM, numbers(lact_state(DIM, 4, 1).weights), 3 * 1 * 768),
    "LaCT views, 1 head, r = 2": (768, numbers(lact_state(768, 1, 2).weights), 3 * 2 * 768),
    "LaCT video, 2 heads, r = 2": (1536, numbers(lact_state(1536, 2, 2).weights), 3 * 2 * 768),
}
print(f"{'layer':34} {'d':>5} {'numbers kept':>13}   in d   in d^2")
for name, (dim, kept, _) in LAYERS.items():
    print(f"{name:34} {dim:5} {kept:13,} {kept / dim:6.0f} {kept / dim**2:8.3f}")
kept = {name.split(",")[0]: n for name, (_, n, _) in LAYERS.items()}
views = 24 * kept["LaCT views"]
print(
    f"\n24 layers of views: {views / 1e6:.1f} million fast weights, {views / 312e6:.0%} of 312 million;",
    end=" ",
)
print(f"with r = 4 {2 * views / (312e6 + views):.0%}")

# %% [markdown]
# (A layer of view synthesis *trains* its initial weights, so they are among the 312 million. The code has 24 layers. The paper's 40 % belongs to a larger memory, which the reading does not describe. With $r=4$, which the code has too, and everything else as it is, both numbers grow by another 84.9 million: 43 %.)

# %% tags=["nbval-check-output"]
claim(
    "C15.1",
    "a LaCT layer keeps 3 r d^2 / n_h fast weights, a matrix memory its key width times d, and Mesa twice that",
    source="E15.1 and E15.2; LaCT App. A; the states of the package, six layers; largest difference",
    error=max(abs(n - per_width * dim) for dim, n, per_width in LAYERS.values()),
    tol=0,
)
claim(
    "C15.2",
    "heads and widths that fit give the 384d, 128d, 2304d and 6d^2 of the reading; LaCT keeps 6 times what GLA does, 18 times DeltaNet",
    source="LaCT Table 3 and Sec. 5; heads of GLA and DeltaNet assumed, of LaCT from its code; sum of the differences",
    error=abs(kept["GLA"] - 384 * DIM)
    + abs(kept["DeltaNet"] - 128 * DIM)
    + abs(kept["LaCT language"] - 2304 * DIM)
    + abs(kept["LaCT views"] - 6 * 768**2)
    + abs(kept["LaCT language"] - 6 * kept["GLA"])
    + abs(kept["LaCT language"] - 18 * kept["DeltaNet"]),
    tol=0,
)

# %% [markdown]
# **Against a cache.** $2td>S$ from $t>\tfrac32rh$ on: with $h=768$ after 1152 tokens.
#
# But a LaCT layer of a language model is not its fast weights alone. Within a chunk it relies on a window of attention, here of 2048 tokens (reading: 2048 or 4096), and that cache holds $2\cdot2048\,d=4096\,d$ numbers. The window keeps *more* than the memory it assists. And to stop within a chunk and go on later, as decoding does, the state of the package (`LaCTState`) holds:
#
# * the weights, $S$;
# * the sum of the directions of the unfinished chunk, $S$;
# * with momentum, its buffer, $S$;
# * the lengths that rows are brought back to: $2rh+h$ a head, $(2r+1)\,d$ in all.
#
# and two small counts.

# %%
whole = lact_state(DIM, 4, 1, momentum=True)
parts = {name: numbers(getattr(whole, name)) / DIM for name in whole._fields}
for name, n in parts.items():
    print(f"{name:17} {n:9.3f} d" + ("   (a number, or one a head)" if n < 0.01 else ""))
print(f"{'all but those':17} {sum(n for n in parts.values() if n >= 0.01):9.3f} d")
carried = sum(n for name, n in parts.items() if n >= 0.01) * DIM
cache = costs.attention(np.arange(1, 2**15 + 1), 128, 128).state * 24  # by tokens read, from 1
longer = 1 + int(np.argmax(cache > kept["LaCT language"]))
window = int(cache[WINDOW - 1])
print(f"\nthe cache is larger from token {longer} on;", end=" ")
print(f"a window of {WINDOW} keeps {window / kept['LaCT language']:.2f} S")
print(f"at 32768 tokens: cache {cache[-1] / DIM:.0f} d,", end=" ")
print(f"LaCT with momentum and window {(carried + window) / DIM:.0f} d")

# %% tags=["nbval-check-output"]
claim(
    "C15.3",
    "a cache of keys and values outgrows the fast weights of the 3B layer after 1152 tokens, and its window of 2048 is 16/9 of them",
    source="E15.1, 2td > S; d = 3072, 4 heads, r = 1; sum of both differences",
    error=abs(longer - 1153) + abs(9 * window - 16 * kept["LaCT language"]) / DIM,
    tol=0,
)
claim(
    "C15.4",
    "a layer with momentum that may stop within a chunk carries 3 S + (2 r + 1) d numbers, not S",
    source="LaCTState of the package, counts aside; E15.1; d = 3072, 4 heads, r = 1",
    error=abs(carried - 3 * kept["LaCT language"] - 3 * DIM),
    tol=0,
)

# %% [markdown]
# Drag the tokens ([F15a](#F15a)).


# %%
FIXED = {
    "DeltaNet": kept["DeltaNet"],
    "Mesa": kept["Mesa"],
    "GLA": kept["GLA"],
    "LaCT, fast weights": kept["LaCT language"],
    "LaCT, all but its window": carried,
}


def draw_states(tokens):
    seen = min(tokens, WINDOW)
    return pictures.states(tokens, DIM, FIXED, int(cache[tokens - 1]), int(cache[seen - 1]))


explore(draw_states, tokens=[2**n for n in range(6, 16)], start={"tokens": 4096})

# %% [markdown]
# > **Takeaway.** $S=3rhd$: in units of $d$ a memory is as large as its keys are wide, times the number of its matrices. LaCT's is large because its heads are wide. In the 3B layer the fast weights are still fewer than the numbers in the window beside them.
#
# **Exercise 15.1 ★ Where the cache loses.** Write `outgrown(dim, heads, ratio, window)`: after how many tokens does full attention ($2td$) keep more than a LaCT layer with momentum does with everything it carries, its window included? Return the first such $t$.
#
# <details><summary>Hint</summary>
#
# Set $2td$ against $3S+(2r+1)d+2wd$ and divide by $2d$. Mind "more than".
#
# </details>


# %%
def outgrown(dim, heads, ratio, window):
    return ...


def test_outgrown(answer):
    for dim, heads, ratio, w in (
        (3072, 4, 1, 2048),
        (1536, 4, 1, 2048),
        (1536, 2, 2, 4680),
        (64, 4, 1, 1),
    ):
        state = lact_state(dim, heads, ratio, momentum=True)
        keeps = sum(numbers(x) for x in (state.weights, state.momentum, state.pending, state.norms)) + 2 * w * dim
        t = answer(dim, heads, ratio, w)
        if not 2 * t * dim > keeps >= 2 * (t - 1) * dim:
            return f"for dim {dim}, {heads} heads, ratio {ratio}, window {w}: {keeps} against {2 * t * dim}"


check("15.1", outgrown, test_outgrown)


# %% jupyter={"source_hidden": true} tags=["solution"]
def outgrown_solution(dim, heads, ratio, window):
    return (9 * ratio * dim // heads + 2 * ratio + 1 + 2 * window) // 2 + 1


check("15.1", outgrown_solution, test_outgrown)

# %% [markdown]
# ## 2 · What a token costs
#
# **Forward.** A product of a $p\times q$ matrix with a vector multiplies and adds $pq$ pairs: $2pq$ FLOPs. So does an outer product that is added to a sum. Write $a=W_1k$, $u=W_3k$, $e=W_2^\top v$ for a token. The direction of the chunk is ([notebook 13](13-lact-memory.ipynb) derives it)
#
# $$ \begin{aligned} g_1&=\sum_i\eta_i\,\bigl(e_i\circ u_i\circ\mathrm{silu}'(a_i)\bigr)k_i^\top, \\
#    g_3&=\sum_i\eta_i\,\bigl(e_i\circ\mathrm{silu}(a_i)\bigr)k_i^\top, \quad
#    g_2=\sum_i\eta_i\,v_i\bigl(\mathrm{silu}(a_i)\circ u_i\bigr)^\top . \end{aligned} \tag{E15.3} $$
#
# Count the products a token takes part in:
#
# | | $W_1$ | $W_3$ | $W_2$ | |
# |---|---|---|---|---|
# | write: through the network | $W_1k$ | $W_3k$ | $W_2^\top v$ | 3 |
# | write: outer products | in $g_1$ | in $g_3$ | in $g_2$ | 3 |
# | read | $W_1q$ | $W_3q$ | $W_2[\cdot]$ | 3 |
#
# Note what is *not* in the table: $f_W(k)$. The loss is linear in it, so the write needs its slope and never its value.
#
# Every matrix is in three products, and all three matrices of all heads together have $S$ entries. For $n$ tokens
#
# $$ \text{FLOPs, forward} = n\cdot 3\cdot 2\,S = 6\,n\,S, \tag{E15.4} $$
#
# of which the write has $4nS$ and the read $2nS$. Left out are entry-by-entry products ($O(rd)$ a token), and Muon, which runs once a chunk and does not grow with it. ([Notebook 13](13-lact-memory.ipynb): per chunk and head Muon costs $5h(2r+1)/(3rC)$ of the rest.) Read forward, a weight costs 2 FLOPs a token. **A fast weight costs 6**, because it is also written.
#
# **The last chunk.** Its write is read by nobody if the sequence ends there; in the reference code of the language models the loop ends before it. With $N$ chunks, read all and write all but one:
#
# $$ \text{FLOPs, forward, outputs only} = 6nS\Bigl(1-\frac{2}{3N}\Bigr) . \tag{E15.5} $$
#
# **Backward.** A product $Y=AB$ has two gradients, $\bar A=\bar Y B^\top$ and $\bar B=A^\top\bar Y$, where a bar marks the gradient of the training loss. Each multiplies and adds as many pairs as $Y$ did. Training needs both everywhere: tokens come from slow weights, and the fast weights go back to the initial ones. This holds for the products of the write as well, since the write is part of the forward pass like any other. So
#
# $$ \text{FLOPs, backward} \ge 2\cdot 6nS, \qquad \text{together at least } 18\,nS. \tag{E15.6} $$
#
# If the vectors $a,u,e$ of all tokens are not kept (five vectors of $rd$ numbers for every token of a layer), five products are made again: $W_1k,W_3k,W_2^\top v,W_1q,W_3q$. With $K=V$ each is $\tfrac23nS$, so
#
# $$ \text{forward and backward, recomputed} = \Bigl(9+18+5\Bigr)\cdot\tfrac23\,nS = \tfrac{64}{3}\,nS\approx 21.3\,nS . \tag{E15.7} $$
#
# That is what the package does. To check, the 3B layer on 32,768 tokens is traced, forward and backward, and all matrix products in the program are counted.

# %%
print(inspect.getsource(product_flops))

# %%
N_TOKENS, CHUNK_3B = 32768, 2048
S = kept["LaCT language"]
given = network(4, 768, 1), *tokens(N_TOKENS, 4, 768, 768), array(1, N_TOKENS, 4, 3)


def layer(W, q, k, v, lr):
    """Outputs, and the sum (E15.3) that the unfinished chunk leaves."""
    o, state = lact(q, k, v, lr, W, chunk=CHUNK_3B, muon=False)
    return o, state.pending


def gradient(W, q, k, v, lr):
    """Of all results' sum, in everything: two products for each (E15.6), and five again."""

    def total(*x):
        return sum(jnp.sum(y) for y in jax.tree.leaves(layer(*x)))

    return jax.grad(total, argnums=range(5))(W, q, k, v, lr)


def for_outputs(f, *given):
    """The traced program without what only other results need."""
    program = jax.make_jaxpr(f)(*given)
    needed = [True] + [False] * (len(program.out_avals) - 1)
    return jax.interpreters.partial_eval.dce_jaxpr(program.jaxpr, needed)[0]


forward = product_flops(jax.make_jaxpr(layer)(*given))
outputs = product_flops(for_outputs(layer, *given))
training = product_flops(jax.make_jaxpr(gradient)(*given))
for name, flops in {
    "forward": forward,
    "outputs only": outputs,
    "forward and backward": training,
}.items():
    print(f"{name:21} {flops / 1e12:6.2f} TFLOP = {flops / (N_TOKENS * S):6.3f} n S")
print(f"saved by not writing the last chunk: {1 - outputs / forward:.1%}")
slow = 4 * DIM**2  # four projections
read_window = costs.attention(WINDOW, 128, 128).flops * 24
print(
    f"\na token forward, MFLOP: fast weights {6 * S / 1e6:.0f}, four projections {2 * slow / 1e6:.0f}",
    end="",
)
print(f", a window of 2048 {read_window / 1e6:.0f}")

# %% tags=["nbval-check-output"]
claim(
    "C15.5",
    "write and read of n tokens take 6 n S FLOPs, forward: 9 products, 3 for each matrix",
    source="E15.4; LaCT App. A; products of the traced program, 3B layer, 32768 tokens, relative",
    error=abs(forward / (6 * N_TOKENS * S) - 1),
    tol=1e-15,
)
claim(
    "C15.6",
    "for the outputs alone the last of N chunks is only read: 1 - 2/(3N) of that",
    source="E15.5 with N = 16; the same program without what only the state needs, relative",
    error=abs(outputs / forward - (1 - 2 / (3 * 16))),
    tol=1e-15,
)
claim(
    "C15.7",
    "forward and backward take 64/3 n S FLOPs in the package, which keeps no hidden vector: 32 products",
    source="E15.7; products of the traced gradient in all inputs and initial weights, relative",
    error=abs(training / (64 / 3 * N_TOKENS * S) - 1),
    tol=1e-15,
)

# %% [markdown]
# So $6nS$ is the forward pass [C15.5]. Do not take it for the rule "6 FLOPs a weight and token to *train* a transformer" (2 forward, 4 backward): to train, a fast weight costs 18 FLOPs a token, and 21.3 as the package does it [C15.7] (less what E15.5 saves). For going back through a write a comment in the authors' fused kernel counts 30 FLOPs a token, hidden unit and channel: 15 products, as E15.7 does (6 twice, and 3 again). Last line of the output: forward, the fast weights cost more than half of what the four projections around them do, and more than the window.
#
# > **Takeaway.** Three products for each fast weight forward, six backward, and one or two more to save memory.
#
# ## 3 · One chunk on eight devices
#
# Split the tokens of a chunk into $P$ shards, one a device. All devices hold the same old weights. The direction is a sum over tokens, E15.3, so it is a sum over shards:
#
# $$ g=\nabla_W\sum_{i\le C}\eta_i\langle f_W(k_i),v_i\rangle=\sum_{j\le P}g_j, \qquad g_j=\nabla_W\sum_{i\in\text{shard }j}\eta_i\langle f_W(k_i),v_i\rangle . \tag{E15.8} $$
#
# Each device computes its $g_j$; one all-reduce gives all of them $g$ (and the sum of the tokens' momentum rates, a number for each head). From there on every device does the same: momentum, $\mathcal M(g)$, the step, the rows. No device needs another's tokens, and each query is read alone.
#
# This is the whole code of the split. `psum` is the all-reduce. (`copies` says to JAX that from here on the weights are each device's own, and so their gradient is added up over devices in the backward pass: the same sum, mirrored.)

# %%
for part in (package.chunks, package.added_up, package.copies):
    print(inspect.getsource(part))

# %% [markdown]
# Is it the same as on one device? The reference is the form `"definition"` of the rule on one device: the stated loss, differentiated by autodiff, no mesh and no hand-made gradient. Input: eight real heads of a pretrained encoder (MiniLM-L6, heads 0 to 3 of layers 1 and 4) on 512 tokens of English, in four chunks of 128, so 16 tokens of every chunk on each device; keys and queries of length 1; rates at random in $(0.1, 1)$; $r=2$.

# %%
layers = [minilm_qkv("plain", layer) for layer in (1, 4)]
QUERIES, KEYS, VALUES = (
    np.concatenate([getattr(x, name) for x in layers], axis=1).astype(float)[None] for name in "qkv"
)
QUERIES, KEYS = unit(QUERIES), unit(KEYS)  # [1, 512, 8, 32]
_, T, HEADS, WIDTH = QUERIES.shape
HIDDEN, CHUNKS, CHUNK = 2 * WIDTH, 4, 128
SIZES = (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)
rng = np.random.default_rng(15)
RATES = rng.uniform(0.1, 1, (1, T, HEADS, 3))
W0 = SwiGLU(*(rng.normal(size=(HEADS, *n)) / np.sqrt(n[1]) for n in SIZES))
MOMENTUM = rng.uniform(0.1, 0.9, (1, T, HEADS))
mesh = Mesh(jax.devices(), ("devices",))


def in_chunks(x):
    return x.reshape(1, CHUNKS, CHUNK, *x.shape[2:])


def single(x):
    """As float32."""
    return jax.tree.map(lambda x: np.asarray(x, np.float32), x)


def flat(tree):
    return np.concatenate([np.ravel(leaf).astype(float) for leaf in jax.tree.leaves(tree)])


def off(x, y):
    """How far x is from y, relative to y; over all leaves together."""
    x, y = flat(x), flat(y)
    return float(np.linalg.norm(x - y) / np.linalg.norm(y))


WHOLE = (QUERIES, KEYS, VALUES, RATES, W0, MOMENTUM)


@jax.jit
def one_device(q, k, v, lr, W, momentum):
    o, state = lact(q, k, v, lr, W, chunk=CHUNK, momentum=momentum, form="definition")
    return o, state.weights


def on_eight(given, mesh=mesh, **split):
    """Compiled for these inputs: the program, whose text can be read, and its results."""
    q, k, v, lr, W, momentum = given
    spread = [in_chunks(x) for x in (q, k, v, lr, momentum)]

    def run(q, k, v, lr, momentum, W):
        return sharded(q, k, v, lr, W, mesh=mesh, momentum=momentum, **split)

    program = jax.jit(run).lower(*spread, W).compile()
    o, W = program(*spread, W)
    return program, (o.reshape(v.shape), W)


alone = one_device(*WHOLE)
by_tokens, together = on_eight(WHOLE, tokens="devices")
_, together32 = on_eight(single(WHOLE), tokens="devices")
alone32 = one_device(*single(WHOLE))
for name, x, y in (("float64", together, alone), ("float32", together32, alone32)):
    print(f"{name}: outputs off by {off(x[0], y[0]):.0e}, weights after three writes {off(x[1], y[1]):.0e}")

muon = jax.jit(newton_schulz)  # at least two axes; the last two are the matrix
whole_direction = jax.jit(jax.vmap(direction))(W0, *(x[0].swapaxes(0, 1) for x in (KEYS, VALUES, RATES)))
sum_and_mean = [jax.tree.map(lambda g, c=c: muon(c * g), whole_direction) for c in (1, 1 / 8)]

# %% tags=["nbval-check-output"]
claim(
    "C15.8",
    "a chunk split over eight devices by tokens, directions added up before Muon, gives what one device gives: float64",
    source="E15.8, LaCT Sec. 3.4; real heads, 3 writes, Muon and momentum; against the definition; outputs and weights",
    error=max(off(together[0], alone[0]), off(together[1], alone[1])),
    tol=1e-12,
)
claim(
    "C15.9",
    "in float32 the chunk split over eight devices gives what one device gives to 1e-5",
    source="the same in float32 on both sides; outputs and weights",
    error=max(off(together32[0], alone32[0]), off(together32[1], alone32[1])),
    tol=1e-5,
)
claim(
    "C15.10",
    "Muon of an eighth of a direction is Muon of the direction, to 1e-7",
    source="the directions of 512 real tokens, eight heads, three matrices, of length 10 and more, float64; relative",
    error=off(*sum_and_mean),
    tol=1e-7,
)

# %% [markdown]
# **Sum or mean?** Before Muon it does not matter: $\mathcal M$ begins by dividing its matrix by its length, so $\mathcal M(cg)=\mathcal M(g)$ as long as the length of $cg$ is far above the $10^{-7}$ that the code adds to it [C15.10]. Without Muon a mean would be a step $P$ times too small.
#
# The gradient of the training loss goes through the same split; the tests of the package compare it with one device's, in everything.
#
# > **Takeaway.** One sum a chunk, of $S$ numbers, taken where everything is still a sum.
#
# ## 4 · Added up too late
#
# It is tempting to let every device finish its step and to average the steps. Why is that wrong? First on paper. $\mathcal M$ keeps singular vectors and sets singular values to about 1. For a diagonal matrix that means: it keeps the signs. Two shards:
#
# $$ \begin{aligned} &g_1=\begin{pmatrix}3&0\\0&1\end{pmatrix},\quad g_2=\begin{pmatrix}-1&0\\0&1\end{pmatrix}:\quad
#    \mathcal M(g_1+g_2)=\mathcal M\begin{pmatrix}2&0\\0&2\end{pmatrix}\approx\begin{pmatrix}1&0\\0&1\end{pmatrix}, \\
#    &\tfrac12\bigl(\mathcal M(g_1)+\mathcal M(g_2)\bigr)\approx\begin{pmatrix}0&0\\0&1\end{pmatrix}. \end{aligned} \tag{E15.9} $$
#
# In the first direction shard 1 says 3 and shard 2 says $-1$. Added up, that is a clear 2. Muon makes a vote of each, $+1$ and $-1$, and the direction is gone. **Muon is not linear: it forgets how loud a shard was.** Three things follow for the average of late steps.
#
# 1. Its largest singular value is at most the mean of theirs (a norm), and directions in which shards disagree shrink. The point of Muon, equal size in all directions, is lost.
# 2. A shard with fewer tokens than the smaller side of a matrix has a direction of no more rank than tokens. In the rest Muon can say nothing, or worse, blows up rounding.
# 3. A shard that has almost nothing to say (low rates) counts as much as any other.

# %%
by_hand = np.array([np.diag([3.0, 1.0]), np.diag([-1.0, 1.0])])
print("Muon of the sum:   ", np.diag(muon(by_hand.sum(0))).round(3))
print("average of Muons:  ", np.diag(muon(by_hand).mean(0)).round(3))
apart = max(
    np.abs(muon(by_hand.sum(0)) - np.eye(2)).max(),
    np.abs(muon(by_hand).mean(0) - np.diag([0.0, 1.0])).max(),
)

# %% tags=["nbval-check-output"]
claim(
    "C15.11",
    "in the example of two shards the step of the sum is the identity, and the average of two steps loses a direction",
    source="E15.9 with the five steps of the language models, whose singular values end in 0.977 to 1.032; largest distance",
    error=apart,
    tol=0.033,
)

# %% [markdown]
# Now measured. The eight heads from above, all 512 tokens as one chunk, at the initial weights, which are random and not trained. For random tokens keys and values are drawn independently. The chunk is cut into 1, 2, 4, …, 64 shards of neighbouring tokens; then, on eight devices, it is made shorter, or dealt out in turn.

# %%
GROUPS, COUNTS = 64, [1, 2, 4, 8, 16, 32, 64]
groups = jax.jit(jax.vmap(jax.vmap(direction, (None, 0, 0, 0))))


def grouped(x):
    """[1, 512, 8, n] as [8, 64 groups, 8 tokens, n]."""
    return x[0].swapaxes(0, 1).reshape(HEADS, GROUPS, -1, x.shape[-1])


def sums(d):
    """Directions of 1 shard, of 2, of 4, ..., 127 in all; those of n shards begin at place n - 1."""
    return np.concatenate([d.reshape(HEADS, n, -1, *d.shape[2:]).sum(2) for n in COUNTS], axis=1)


def late_steps(directions):
    """{shards: the average of their steps}; with one shard it is the right step."""
    each = jax.tree.map(lambda d: np.asarray(muon(sums(np.asarray(d)))), directions)
    return {n: jax.tree.map(lambda x, n=n: x[:, n - 1 : 2 * n - 1].mean(1), each) for n in COUNTS}


def cosine(x, y):
    x, y = flat(x), flat(y)
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


random_k, random_v = unit(rng.normal(size=KEYS.shape)), rng.normal(size=VALUES.shape)
DIRECTIONS = {
    "random tokens": groups(W0, *map(grouped, (random_k, random_v, RATES))),
    "real tokens": groups(W0, *map(grouped, (KEYS, VALUES, RATES))),
}
STEPS = {name: late_steps(d) for name, d in DIRECTIONS.items()}
errors = {name: [off(step[n], step[1]) for n in COUNTS] for name, step in STEPS.items()}
cosines = {name: [cosine(step[n], step[1]) for n in COUNTS] for name, step in STEPS.items()}
print(f"{'shards':24}", *(f"{n:6}" for n in COUNTS))
for name in STEPS:
    print(f"{name + ', error':24}", *(f"{x:6.3f}" for x in errors[name]))
    print(f"{name + ', cosine':24}", *(f"{x:6.3f}" for x in cosines[name]))


def on_eight_devices(tokens, in_turn=False):
    """Error of the average, for the first real tokens: neighbours together, or groups of 8 dealt out in turn."""
    shape, axis = ((-1, 8), 1) if in_turn else ((8, -1), 2)
    parts = (np.asarray(d)[:, : tokens // 8] for d in DIRECTIONS["real tokens"])
    each = [d.reshape(HEADS, *shape, *d.shape[2:]).sum(axis) for d in parts]
    return off([muon(d).mean(1) for d in each], [muon(d.sum(1)) for d in each])


fewer = [on_eight_devices(n) for n in (128, 256, 512)]
dealt = on_eight_devices(512, in_turn=True)
print("\n8 devices, real tokens: 16, 32, 64 a device", *(f"{x:.2f}" for x in fewer), end="; ")
print(f"64 dealt out in turn {dealt:.2f}")
added = {name: jax.tree.map(lambda d: np.asarray(d).sum(1), d) for name, d in DIRECTIONS.items()}
lengths_one = {k: [x / np.linalg.norm(x, axis=(1, 2), keepdims=True) for x in d] for k, d in added.items()}
no_muon = ", ".join(f"{cosine(d, STEPS[k][1]):.2f} ({k})" for k, d in lengths_one.items())
print(f"cosine of the direction, no Muon, with the right step: {no_muon}")

# %% [markdown]
# Why does the cosine on random tokens rise again? A shard of one token has a direction of rank one, and Muon gives it its vote whatever its rate. So with ever more shards the average becomes a sum of such products, much like the direction without Muon, whose cosine is printed last.
#
# Drag the shards ([F15b](#F15b); on the left $W_1$ of layer 4, head 1).

# %%
HEAD = 5  # layer 4 head 1; the matrix W1


def sizes(step):
    return np.linalg.svd(step.gate[HEAD], compute_uv=False)


def draw_late(shards, data):
    step = STEPS[data]
    return pictures.late(shards, data, COUNTS, errors, cosines, sizes(step[1]), sizes(step[shards]))


plain_sizes = [sizes(step[1]) for step in STEPS.values()]
print("right step, singular values:", end=" ")
print(
    *(f"{x.min():.2f} to {x.max():.2f} on {name}" for name, x in zip(STEPS, plain_sizes, strict=True)),
    sep=", ",
)
explore(draw_late, shards=COUNTS, data=list(STEPS), start={"shards": 8, "data": "real tokens"})

# %% [markdown]
# (Blue is not quite flat on real tokens. The five steps bring singular values of at least 0.01 of the matrix's length to between 0.977 and 1.032; smaller ones, which real keys have, end elsewhere.)
#
# What does the average do to what is remembered? The chunk's objective is $\sum_i\langle f_W(k_i),v_i\rangle$ over the tokens written (all rates 1). Each step is taken from the initial weights, and the rows are restored. The average is a shorter step, so we also stretch it, matrix by matrix, to the length of the right one, and the direction without Muon too.


# %%
@jax.jit
@jax.vmap
def after(W, step):
    return jax.tree.map(lambda W, step: restored(W + step, length(W)), W, step)


@jax.jit
@jax.vmap
def objective(W, k, v):
    return -loss(W, k, v, jnp.ones(len(k)))


def gains(steps, k, v):
    """How much the objective rises with each step, over how much with the first one; mean of the heads."""
    pairs = [x[0].swapaxes(0, 1) for x in (k, v)]
    rise = [objective(after(W0, step), *pairs) - objective(W0, *pairs) for step in steps]
    return [float((x / rise[0]).mean()) for x in rise]


def stretched(step, right):
    def size(x):
        return np.linalg.norm(x, axis=(1, 2), keepdims=True)

    return jax.tree.map(lambda x, y: x * size(y) / size(x), step, right)


gained, same_length = {}, {}
for name, pair in {"random tokens": (random_k, random_v), "real tokens": (KEYS, VALUES)}.items():
    steps = STEPS[name]
    gained[name] = gains(steps.values(), *pair)
    same_length[name] = gains([steps[1], *(stretched(x, steps[1]) for x in (steps[8], added[name]))], *pair)
    print(f"{name:14} share of the gain", *(f"{y:6.3f}" for y in gained[name]))
    _, late, plain = same_length[name]
    print(f"{'':14} as long as the right step: 8 shards {late:.3f}, without Muon {plain:.2f}")

quiet = np.repeat([1.0, *[1e-3] * 7], GROUPS // 8)[None, :, None, None]
hushed = late_steps(jax.tree.map(lambda d: np.asarray(d) * quiet, DIRECTIONS["real tokens"]))
loud = jax.tree.map(lambda d: muon(np.asarray(d)[:, : GROUPS // 8].sum(1)), DIRECTIONS["real tokens"])
print("\nrates of 1/1000 on seven of eight shards; how far from the step of the loud shard alone:")
print(f"added up {off(hushed[1], loud):.3f}, averaged {off(hushed[8], loud):.3f}.", end=" ")
print(f"The low rates have moved the average by {off(hushed[8], STEPS['real tokens'][8]):.0e}")

# %% tags=["nbval-check-output"]
at_8 = COUNTS.index(8)
claim(
    "C15.12",
    "averaging the Muons of 8 shards is off by 69 % of the step on real tokens (cosine 0.77) and 75 % on random ones (0.79)",
    source="512 tokens, eight heads of width 32, random initial weights, float64; largest distance of the four numbers",
    error=max(
        abs(errors["real tokens"][at_8] - 0.69),
        abs(errors["random tokens"][at_8] - 0.75),
        abs(cosines["real tokens"][at_8] - 0.77),
        abs(cosines["random tokens"][at_8] - 0.79),
    ),
    tol=0.005,
)
claim(
    "C15.13",
    "the objective then rises by 87 % of what the right step gives on real tokens, 64 % on random ones; with 64 shards by 48 and 15 %",
    source="rows restored, rates 1, mean of eight heads; largest distance of the four shares",
    error=max(
        abs(gained["real tokens"][at_8] - 0.87),
        abs(gained["random tokens"][at_8] - 0.64),
        abs(gained["real tokens"][-1] - 0.48),
        abs(gained["random tokens"][-1] - 0.15),
    ),
    tol=0.006,
)
claim(
    "C15.14",
    "a thousandth of the rates on seven of eight shards moves the late average by less than 1e-4 of it",
    source="real tokens, 8 shards, against the late average at full rates; relative",
    error=off(hushed[8], STEPS["real tokens"][8]),
    tol=1e-4,
)
claim(
    "C15.23",
    "stretched to the length of the right step, the average of 8 shards gains 112 % of it on real tokens, 97 % on random ones",
    source="each matrix by itself; the objective of C15.13, on the tokens written; largest distance of the two",
    error=max(abs(same_length["real tokens"][1] - 1.12), abs(same_length["random tokens"][1] - 0.97)),
    tol=0.006,
)
claim(
    "C15.24",
    "on real tokens the error is 80, 74 and 69 % with 16, 32 and 64 tokens on each of 8 devices, less if they are dealt out: 60 %",
    source="chunks of 128, 256 and 512 tokens; 512 in groups of 8, dealt out in turn; largest distance of the four",
    error=np.abs(np.subtract([*fewer, dealt], [0.80, 0.74, 0.69, 0.60])).max(),
    tol=0.006,
)

# %% [markdown]
# Read these with care. The late average is another step, off by two thirds and more with eight shards [C15.12]; by less with more tokens a device, or if they are dealt out in turn [C15.24]. At the sizes of the paper we have not measured it. It still climbs [C15.13], and most of what it loses is length: eight shards' average, as long as the right step, climbs 97 % as far on random tokens and *further* on real ones [C15.23]. So we have not found a worse memory. (Nor does this objective reward Muon: without it the direction climbs three and a half times as far on real tokens.) What is wrong is this. The layer depends on the number of devices, in length and in direction: trained on eight and served on one, it reads with weights that it was not trained with. And it cannot hear how loud a shard is [C15.14]: the rates, which the layer learns, stop working between shards, and a shard of padding with rates near zero has its full vote.
#
# > **Takeaway.** Everything up to the direction is a sum and may be done in parts. Muon is the first thing that is not, so the parts must meet before it.
#
# **Exercise 15.2 ★★ The wrong way.** Averaging late can be worse than useless. Find three shards, $2\times2$ matrices, whose sum has the step $\mathcal M(g_1+g_2+g_3)\approx I$ while the average of the three steps points the *other* way, $-\frac13I$. Your function returns an array `[3, 2, 2]`.
#
# <details><summary>Hint</summary>
#
# Two quiet shards can outvote a loud one.
#
# </details>


# %%
def outvoted():
    return ...  # [3, 2, 2]


def test_outvoted(answer):
    g = np.asarray(answer(), float)
    if g.shape != (3, 2, 2):
        return f"your shards have shape {list(g.shape)}; expected [3, 2, 2]"
    right, average = np.asarray(muon(g.sum(0))), np.asarray(muon(g)).mean(0)
    if not np.abs(right - np.eye(2)).max() <= 0.033:
        return f"the step of the sum is {right.round(2).tolist()}; expected about the identity"
    if not np.abs(average + np.eye(2) / 3).max() <= 0.033:
        return f"the average of the steps is {average.round(2).tolist()}; expected about -1/3 of the identity"


check("15.2", outvoted, test_outvoted)


# %% jupyter={"source_hidden": true} tags=["solution"]
def outvoted_solution():
    return np.eye(2) * np.array([3.0, -1.0, -1.0])[:, None, None]


check("15.2", outvoted_solution, test_outvoted)

# %% [markdown]
# ## 5 · Or split the heads
#
# Heads share nothing: each has its own $W$, and Muon is done for each matrix by itself. So a device may take $n_h/P$ whole heads, with all their tokens, and never hear of the others. Inside the memory nothing is sent. That can be read off the compiled program, in which every exchange is an instruction with a name.
#
# The catch lies before and after. Elsewhere in the network tokens are usually split, since everything else treats tokens alike. So queries, keys and values (and the few rates) must be turned from "my tokens, all heads" to "all tokens, my heads", and the outputs back: four all-to-alls of $nd$ numbers. And $P$ cannot be larger than $n_h$: 4 in the language models, 2 in the smaller video model, 1 for views (code).

# %%
EXCHANGES = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"


def exchanges(program):
    return re.findall(rf" (?:{EXCHANGES})(?:-start)?\(", program.as_text())


by_heads, each_own = on_eight(WHOLE, heads="devices")
print(f"exchanges: {len(exchanges(by_tokens))} with tokens split (in the loop, at every write),", end=" ")
print(f"{len(exchanges(by_heads))} with heads split")
print(f"heads split against one device: {off(each_own, alone):.0e}")

# %% tags=["nbval-check-output"]
claim(
    "C15.15",
    "with the heads split over eight devices the compiled program has no exchange, and gives what one device gives",
    source="LaCT Sec. 3.4; exchanges in the text of the program (with tokens split it has some); off the definition, float64",
    error=len(exchanges(by_heads)) + (not exchanges(by_tokens)) + off(each_own, alone),
    tol=1e-12,
)

# %% [markdown]
# ## 6 · Not chunk by chunk
#
# There is a third way to cut a long sequence: device 1 takes the first chunk, device 2 the second, and so on. This is how one would split linear attention, whose direction does not look at the memory: with $f(x)=Wx$ the objective of a token is $v^\top Wk$, and
#
# $$ \nabla_W\,v^\top Wk=vk^\top , \tag{E15.10} $$
#
# whatever $W$ is. All devices can compute their directions at once. For the SwiGLU memory every line of E15.3 contains $W$: the direction of a chunk needs the weights that the chunk before it has left. How much would it matter to take the initial weights for all? Measured on the real heads: four chunks of 128 tokens, Muon, no momentum.

# %%
heads_direction = jax.jit(jax.vmap(direction))
heads_write = jax.jit(
    jax.vmap(lambda W, d, n0: jax.tree.map(lambda W, d, n0: restored(W + newton_schulz(d), n0), W, d, n0))
)
norms = jax.tree.map(length, W0)
fresh = stale = jax.tree.map(jnp.asarray, W0)
outdated = []
for c in range(CHUNKS):
    own = [x[0, c * CHUNK : (c + 1) * CHUNK].swapaxes(0, 1) for x in (KEYS, VALUES, RATES)]
    now, at_first = heads_direction(fresh, *own), heads_direction(W0, *own)
    outdated.append(off(at_first, now))
    fresh, stale = heads_write(fresh, now, norms), heads_write(stale, at_first, norms)
print("directions at the initial weights, off by", *(f"{x:.2f}" for x in outdated), "in chunks 1 to 4")
print(f"weights after four writes with them, off by {off(stale, fresh):.2f};")
print(f"the initial weights, never written, are off by {off(W0, fresh):.2f}")


@jax.jit
def linear_direction(W, k, v):
    return jax.grad(lambda W: jnp.sum((k @ W.T) * v))(W)


linear_pair = [linear_direction(W, KEYS[0, :, 0], VALUES[0, :, 0]) for W in rng.normal(size=(2, WIDTH, WIDTH))]

# %% tags=["nbval-check-output"]
claim(
    "C15.16",
    "at the initial weights the directions of the second to fourth chunk are off by 0.83 to 0.91 of the right ones",
    source="SwiGLU memory, r = 2, chunks of 128 real tokens, Muon; largest distance of least and most, and that in chunk 1",
    error=max(outdated[0], abs(min(outdated[1:]) - 0.83), abs(max(outdated[1:]) - 0.91)),
    tol=0.005,
)
claim(
    "C15.17",
    "the direction of a linear memory does not depend on the memory",
    source="E15.10; autodiff at two random memories, 512 real tokens",
    error=off(*linear_pair),
    tol=1e-15,
)

# %% [markdown]
# The weights end up almost as wrong (0.93) as if nothing had been written (1.02). So chunks come one after the other. Only the reads can be put off: a chunk may be read on its device while the next device already writes. Of the 9 products 6 are then in a row and 3 are not. With $N$ chunks on $N$ devices, each of which writes and reads its own, in units of one product,
#
# $$ \frac{\text{time on one device}}{\text{time on } N} = \frac{9N}{6N+3} < \frac32 : \tag{E15.11} $$
#
# $N$ writes one after the other, and the read of the last chunk. (Here the last chunk is written too, for whoever comes next; Muon, which comes on top of each write, makes it worse.) Is there no better order? Every device may read its chunk before it writes it, or after. Try all. (If an idle device took the last read, $6N$ would remain: $\tfrac32$.)


# %%
def finished(read_first):
    """When all is done, if these devices read before they write."""
    ready, last = 0, 0  # when the weights that a chunk finds are there; when the latest device is done
    for first in read_first:
        done = ready + 9
        ready = done if first else ready + 6
        last = max(last, done)
    return last


best = {N: min(map(finished, itertools.product((False, True), repeat=N))) for N in range(1, 9)}
print("N devices, N chunks, times as fast:", *(f"{9 * N / time:.2f}" for N, time in best.items()))

# %% tags=["nbval-check-output"]
claim(
    "C15.18",
    "eight devices with a chunk each are at best 9N / (6N + 3) = 1.41 times as fast as one",
    source="E15.11; all orders of write and read, N = 1 to 8; largest difference of the times",
    error=max(abs(time - (6 * N + 3)) for N, time in best.items()),
    tol=0,
)

# %% [markdown]
# **Within a chunk all tokens are alike; between chunks there is an order.** This is why large chunks make LaCT parallel.
#
# ## 7 · Bytes against FLOPs
#
# **All-reduce.** Devices in a ring cut the array of $S$ numbers into $P$ shares. First, $P-1$ times, each passes a share on, and adds what it got to its own: afterwards each device has the full sum of one share. Then, $P-1$ times, the sums are passed round. A device sends
#
# $$ 2\,(P-1)\cdot\frac SP\ \text{numbers} \tag{E15.12} $$
#
# for each chunk, however long it is. The FLOPs grow with the chunk, so a chunk that is long enough wins. How long? **If a chunk is read before it is written**, as in language, its direction and its read both use the old weights. So a device can compute its direction, start the all-reduce, and *read* while it runs. The read of its $C/P$ tokens takes $2CS/P$ FLOPs (section 2). With $F$ FLOPs a second, $B$ bytes a second on a link, and $z$ bytes a number it covers the all-reduce if
#
# $$ \frac{2CS}{PF}\ge\frac{2(P-1)\,S\,z}{PB} \iff C\ge (P-1)\,z\,\frac FB . \tag{E15.13} $$
#
# **$S$ has cancelled.** (Whether a compiler does overlap the two is another question; here it is what could be hidden. And $z=4$ below: the package adds up in float32. In 16 bits this threshold and the next one halve. The time to begin a message is left out, and the backward pass, which adds up once more.) If a chunk is written *before* it is read, as with views, the read waits for the new weights and hides nothing. A larger memory sends and computes more, in proportion. What decides is how many FLOPs the machine does while a byte is on its way.
#
# **All-to-all.** Of an array of $nd$ numbers a device holds one $P$-th and keeps one $P$-th of that; it sends $\frac{P-1}{P^2}nd$. For queries, keys, values and outputs of a chunk, in 16 bits, that is $\frac{P-1}{P^2}\,4Cd\cdot2$ bytes. The all-reduce of float32 directions sends $2\frac{P-1}P S\cdot4$ bytes. The two are equal at
#
# $$ C_\times = \frac{P\,S}{d} = 3\,r\,h\,P . \tag{E15.14} $$
#
# Shorter chunks should split heads, longer ones tokens.
#
# **Muon does not shrink.** With tokens split every device orthogonalises the whole direction. One step of Newton-Schulz on an $rh\times h$ matrix ($r\ge1$) makes three products, of $2rh^3$, $2h^3$ and $2rh^3$ FLOPs; five steps and three matrices make $30\,h^3(2r+1)$ a head. Against $6C\cdot3rh^2/P$ for its share of the tokens that is
#
# $$ \frac{\text{Muon}}{\text{the rest}} = P\;\frac{5h(2r+1)}{3rC} . \tag{E15.15} $$
#
# Now the numbers. $F$ and $B$ are inputs. 800 TFLOP/s is what large bfloat16 products reach on one H200 (this project's measurement, not repeated here); 450 GB/s in each direction is the maker's figure for its links within a machine, and 50 GB/s is one 400-gigabit network card. A layer below the peak waits less: this is the hard case.

# %%
PEAK = 800e12
CASES = {  # width, heads, ratio, tokens of a chunk: the reading's Sec. 5 and the code's configurations
    "language 3B": (3072, 4, 1, 2048),
    "video 1.3B": (1536, 2, 2, 4680),
    "views": (768, 1, 2, 48 * (512 // 8) ** 2),  # 48 images of 512 x 512 in patches of 8 x 8
}


def shares(dim, heads, ratio, chunk, devices, link):
    """Seconds over the seconds of a device's products: sums of directions, turning the split, Muon."""
    S, h = costs.lact_state(dim, heads, ratio), dim / heads
    products = 6 * chunk * S / devices / PEAK
    by_tokens = sharding.all_reduce(S, devices) / (link * 1e9)
    by_heads = sharding.all_to_all(4 * chunk * dim, devices) / (link * 1e9)
    return (
        by_tokens / products,
        by_heads / products,
        devices * 5 * h * (2 * ratio + 1) / (3 * ratio * chunk),
    )


def ring(arrays):
    """Add up [P, P shares, n] over P devices; what each then has, and the numbers it sent."""
    P, held, sent = len(arrays), arrays.copy(), 0
    for adding in (True, False):  # reduce-scatter, then all-gather
        for step in range(P - 1):
            moving = [(device, (device - step + (not adding)) % P) for device in range(P)]
            packets = [held[place].copy() for place in moving]
            for (device, share), packet in zip(moving, packets, strict=True):
                to = (device + 1) % P
                held[to, share] = held[to, share] + packet if adding else packet
            sent += packets[0].size
    return held, sent


own = rng.normal(size=(8, 8, 3))
everywhere, sent = ring(own)
hidden = sharding.hidden_from(8, PEAK / 450e9)  # E15.13
print("8 devices, links of 450 GB/s; times over the time of a device's products")
print(f"{'':12} {'chunk':>7} {'all-reduce':>11} {'all-to-all':>11} {'Muon':>6} {'split tokens from':>18}")
for name, (dim, heads, ratio, chunk) in CASES.items():
    cross = sharding.crossover(costs.lact_state(dim, heads, ratio), dim, 8)  # E15.14
    reduce, turn, again = shares(dim, heads, ratio, chunk, 8, 450)
    again = "none" if name.startswith("video") else f"{again:.2f}"
    print(f"{name:12} {chunk:7,} {reduce:11.2f} {turn:11.2f} {again:>6} {cross:18,.0f}")
print(f"a read before the write hides the all-reduce from {hidden:,.0f} tokens on, whatever the layer")
video = CASES["video 1.3B"][:3]
print(
    "the video model on 2 devices: split tokens from",
    f"{sharding.crossover(costs.lact_state(*video), 1536, 2):,.0f} on",
)


def imbalance(dim, heads, ratio, _):
    """How far the two thresholds are from where the times, and the bytes, are equal."""
    S = costs.lact_state(dim, heads, ratio)
    read, reduce = 2 * hidden * S / 8 / PEAK, sharding.all_reduce(S, 8) / 450e9
    turn = sharding.all_to_all(4 * sharding.crossover(S, dim, 8) * dim, 8)
    return max(abs(read / reduce - 1), abs(turn / sharding.all_reduce(S, 8) - 1))


# %% tags=["nbval-check-output"]
claim(
    "C15.19",
    "a ring sends 2 (P - 1) / P numbers for each it adds up; reading 49,778 tokens takes as long, whatever the layer",
    source="E15.12 by passing shares round, P = 8; E15.13 and E15.14 on three layers, 800 TFLOP/s and 450 GB/s; relative",
    error=max(
        off(everywhere, np.broadcast_to(own.sum(0), own.shape)),
        abs(4 * sent / sharding.all_reduce(own[0].size, 8) - 1),
        abs(round(hidden) - 49778),
        *(imbalance(*case) for case in CASES.values()),
    ),
    tol=1e-15,
)

# %% [markdown]
# Read the table by rows. (With fewer than eight heads, the column for all-to-all shows what eight devices would send if they could.)
#
# * *Views.* The chunk is the whole set of images, 196,608 tokens, and the sum takes 8 % of the time of the memory's products. The chunk is written before it is read, so no read hides this. The heads could not be split: there is one. Muon, repeated on every device, takes another 13 %. The reading reports that 1 to 3 % of the throughput is lost; of a whole model, we take it, whose other costs are not counted here.
# * *Language.* With a chunk of 2048 tokens eight such devices would send for longer than they compute, and Muon, which all repeat, would cost many times the rest. The language models are not said to be split like this; their slow weights are (reading: FSDP).
# * *Video.* A chunk has 4680 tokens, so splitting heads sends less, and there is no Muon in these models (reading). The authors' code does that. Their smaller model has two heads; with $P=2$ E15.14 gives 9216 tokens, and the same answer.
#
# Count the products of one device in the traced programs of section 3, here without momentum.


# %%
def per_device(**split):
    spread = [in_chunks(x) for x in (QUERIES, KEYS, VALUES, RATES)]
    return product_flops(jax.make_jaxpr(lambda W, *x: sharded(*x, W, mesh=mesh, **split))(W0, *spread))


one = per_device()
muons = 3 * product_flops(jax.make_jaxpr(lambda W: jax.tree.map(newton_schulz, W))(W0))  # three writes
shared = {split: per_device(**{split: "devices"}) for split in ("tokens", "heads")}
written_and_read = 3 * CHUNK * HEADS * costs.lact(WIDTH, WIDTH, HIDDEN).flops
print(f"of the products of one device alone Muon is {muons / one:.3f};", end=" ")
print("of eight each makes", *(f"{flops / one:.3f} with {split} split" for split, flops in shared.items()), sep="  ")

# %% tags=["nbval-check-output"]
claim(
    "C15.20",
    "of eight devices each makes an eighth of the products if heads are split, and an eighth of all but Muon if tokens are",
    source="products of the traced programs, those of one device; r = 2, h = 32, C = 128, relative",
    error=max(abs(8 * shared["heads"] / one - 1), abs((muons + (one - muons) / 8) / shared["tokens"] - 1)),
    tol=1e-15,
)
claim(
    "C15.21",
    "Muon takes 5 h (2 r + 1) / (3 r C) of what writing and reading a chunk takes",
    source="E15.15 with P = 1; products of the traced Newton-Schulz steps, r = 2, h = 32, C = 128, relative",
    error=abs(muons / written_and_read / (5 * WIDTH * (2 * 2 + 1) / (3 * 2 * CHUNK)) - 1),
    tol=1e-15,
)

# %% [markdown]
# Drag both sliders ([F15c](#F15c)); the layer is the language model's, whose four heads can be split over four devices at most.

# %%
TOKENS = np.geomspace(256, 2**20, 25)
MARKS = {name: case[3] for name, case in CASES.items()}


def draw_links(devices, link):
    by_tokens, by_heads, repeated = shares(*CASES["language 3B"][:3], TOKENS, devices, link)
    hidden = sharding.hidden_from(devices, PEAK / (link * 1e9))
    cross = sharding.crossover(costs.lact_state(DIM, 4, 1), DIM, devices)
    return pictures.links(devices, link, TOKENS, by_tokens, by_heads[0], repeated, hidden, cross, MARKS)


explore(draw_links, devices=[2, 4, 8, 16], link=[10, 50, 150, 450], start={"devices": 8, "link": 450})

# %% [markdown]
# > **Takeaway.** Whether a read can hide the sum is a matter of order, tokens in a chunk, FLOPs and links; the size of the memory drops out. Whether tokens or heads should be split is a matter of $3rhP$.
#
# **Exercise 15.3 ★★★ An eighth of the Muon.** An all-reduce is a reduce-scatter and an all-gather (E15.12). Between the two each device has the full sum of *its share*. Let the shares be heads: then Muon can be done there, once for each head, and the *steps* are handed round. The bytes are the same, and Muon is divided by $P$, if there are as many heads (the view model has one). Write `shared_muon(g, axis)`, which runs on each device inside `shard_map`: `g` `[8, rows, columns]` holds the directions of all eight heads from this device's tokens; return the steps of all heads, of the same shape. `muon` takes such a stack.
#
# <details><summary>Hint</summary>
#
# `jax.lax.psum_scatter` and `jax.lax.all_gather`, both with `tiled=True` along the heads.
#
# </details>


# %%
def shared_muon(g, axis):
    return ...  # [8, rows, columns]


def test_shared_muon(answer):
    own = np.random.default_rng(3).normal(size=(8, 8, 12, 10))  # devices, heads, rows, columns
    split = PartitionSpec("devices")
    over = partial(jax.shard_map, mesh=mesh, in_specs=split, out_specs=split)
    program = over(lambda d: answer(d[0], "devices")[None])
    steps = np.asarray(program(own))
    if steps.shape != own.shape:
        return f"each device returns {list(steps.shape[1:])}; expected {list(own.shape[1:])}"
    apart = np.abs(steps - np.asarray(muon(own.sum(0)))).max()
    if not apart <= 1e-10:
        return f"a step is {apart:.1e} off Muon of the sum"
    makes, all_heads = (product_flops(jax.make_jaxpr(f)(x)) for f, x in ((program, own), (muon, own[0])))
    if makes > all_heads / 8:
        return f"a device makes {makes:,} FLOPs of products; an eighth of Muon is {all_heads // 8:,}"


check("15.3", shared_muon, test_shared_muon)


# %% jupyter={"source_hidden": true} tags=["solution"]
def shared_muon_solution(g, axis):
    own = jax.lax.psum_scatter(g, axis, scatter_dimension=0, tiled=True)  # one head, added up
    return jax.lax.all_gather(muon(own), axis, axis=0, tiled=True)


check("15.3", shared_muon_solution, test_shared_muon)

# %% [markdown]
# ## 8 · Several hosts
#
# On several machines the code of the layer does not change: a mesh may hold the devices of all. Each host runs the same program, says where the first one is, and makes only its own tokens. `ttt_teach/bench/hosts.py` does this and compares with one device. On two machines that see each other:
#
# ```
# python -m ttt_teach.bench.hosts --coordinator HOST0:9876 --hosts 2 --host 0     # on HOST0
# python -m ttt_teach.bench.hosts --coordinator HOST0:9876 --hosts 2 --host 1     # on the other, at the same time
# python -m ttt_teach.bench.hosts --rehearse 2    # or both as processes of this machine
# ```

# %%
print(inspect.getsource(hosts.run))
said = hosts.rehearse(2)
print(said)

# %% tags=["nbval-check-output"]
claim(
    "C15.22",
    "two processes of this machine with two devices each, which exchange by network, give what one device gives",
    source="ttt_teach.bench.hosts, float64, two writes with Muon; outputs and fast weights, the largest of all four",
    error=max(float(x) for x in re.findall(r"within ([^ ,]+)", said)),
    tol=1e-12,
)

# %% [markdown]
# ## 9 · What was settled
#
# **The answer.** The step that eight devices get by averaging their own Muons is off by 69 % on real tokens and 75 % on random ones: 64 tokens a device, heads of width 32, weights not trained [C15.12]. Most of what it loses in the objective is length [C15.23], and it makes the layer depend on $P$. Adding up the directions first is right to rounding [C15.8], in float32 too [C15.9], and between two processes that exchange by network [C15.22]. It costs one all-reduce of $S$ numbers a chunk, forward. A read that comes before the write can hide it from 49,778 tokens on, with eight devices of 800 TFLOP/s and 450 GB/s, whatever $S$ is [C15.19]. No model of the paper is there: views write first, the others have shorter chunks.
#
# | section | claims |
# |---|---|
# | what a layer keeps | C15.1, C15.2, C15.3, C15.4 |
# | what a token costs | C15.5, C15.6, C15.7 |
# | one chunk on eight devices | C15.8, C15.9, C15.10 |
# | added up too late | C15.11, C15.12, C15.13, C15.14, C15.23, C15.24 |
# | heads | C15.15 |
# | chunk by chunk | C15.16, C15.17, C15.18 |
# | bytes against FLOPs | C15.19, C15.20, C15.21 |
# | several hosts | C15.22 |
#
# **Where papers and reference codes say less than what runs.**
#
# | what is said or done | what we found | |
# |---|---|---|
# | LaCT App. A, as the reading prints it: write and read take about $6nS$ FLOPs | the forward pass; to train takes $18nS$, and $21.3\,nS$ in the package | C15.5, C15.7 |
# | the reading's Table 3: a state of $2304d$ | the weights alone; decoding with momentum carries $6915d$, and the window's cache of $4096d$ beside it | C15.3, C15.4 |
#
# **Three questions for the group.**
#
# 1. Large models are also trained by averaging *finished* optimiser steps of workers that meet rarely. That works. What is different here, where the step is part of the layer?
# 2. $S=3rhd$ and $C_\times=3rhP$: wide heads make a large memory, and make it dearer to split tokens, and there are fewer of them to split. What would you choose for a model that must run on 8 devices with chunks of 2048?
# 3. A fast weight costs 18 FLOPs a token to train through, a slow one 6. For which tasks is a fast weight worth three slow ones?
#
# **Minutes per beat, for whoever leads.** Section 1: 12. Section 2: 12; let somebody fill the table of nine products at the board. Section 3: 8. Section 4: 15, most of it at F15b. Section 5: 5. Section 6: 6. Section 7: 12. Section 8 and questions: 5. People get stuck at what cancels in E15.13.
#
# **Next.** [Notebook 13](13-lact-memory.ipynb) derives the direction and Muon, [notebook 14](14-order-and-masks.ipynb) the orders in which chunks are read and written.
