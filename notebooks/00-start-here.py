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
#     title: Start here
#     question: After how many tokens does a key-value cache outgrow Mesa's two matrices?
#     minutes: 15
#     seconds: 10
#     settles: What every rule minimises, keeps and costs, in one table; the notation; what to read in one evening.
# ---

# %% [markdown]
# # 00 · Start here
#
# **The question.** A softmax attention head keeps every key and value it has seen. A Mesa head keeps two matrices.
# After how many tokens is the cache the larger of the two?
#
# **You leave with** the answer, one table that holds every rule side by side, and a way to read the other notebooks.
# 15 minutes, 10 seconds of compute, no GPU. **You need** vectors, matrices and the idea of a gradient; nothing about attention.
# In a hurry? Go to [the table](#one-table), [the picture](#F00a) or [the reading paths](#reading-paths).

# %%
import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

from ttt_teach import CG, MesaState, delta, linear, mesa
from ttt_teach.explore import explore
from ttt_teach.explore.start_here import state_picture
from ttt_teach.ledger import check, claim

# %% [markdown]
# ## A memory that is trained while it reads
#
# A sequence layer reads tokens one after the other. From each token it makes three vectors: a **key** $k_t$, a **value** $v_t$
# and a **query** $q_t$. It stores the pair $(k_t, v_t)$ and then asks its memory a question, $q_t$. The answer $o_t$ goes on
# to the next layer.
#
# The layers of this collection keep a memory of fixed size, whatever the length of the text. Mostly it is a matrix $\Phi$, and
# reading is a product, $o_t = \Phi_t q_t$. Storing means changing $\Phi$ so that $\Phi k_t$ comes nearer to $v_t$. That is
# learning: the keys are inputs, the values are targets, and the matrix is trained **at test time**, on the very text that
# is being read. So a layer is described by three choices:
#
# 1. **the objective**: what would a good memory get right? The latest pair, or all of them?
# 2. **the update**: how far does one token move the memory towards it? One gradient step, or the exact minimum?
# 3. **the state**: what must be carried from one token to the next to do so?

# %% [markdown]
# ## One table
#
# One head, key and value width $d$, $t$ tokens read so far. $S = \Phi^\top$ is the memory as the code keeps it. $\beta_t$ is the
# strength of a write and $\gamma_t$ what is kept of the past at token $t$ (1 where a rule has no forgetting), so
# $\zeta_{ti} = \gamma_{i+1}\cdots\gamma_t$ is what is left at $t$ of a write at $i$. Mesa carries the two sums
# $G_t = \sum_{i\le t}\zeta_{ti}\beta_i\,k_i v_i^\top$ and $H_t = \sum_{i\le t}\zeta_{ti}\beta_i\,k_i k_i^\top$, and $\Lambda$ is a positive diagonal matrix.
# "Kept" and "a token costs" count per head.
#
# | rule | it wants | update | read | kept | a token costs |
# | --- | --- | --- | --- | --- | --- |
# | linear attention; with $\gamma_t$: GLA, Mamba2 | large $\langle S^\top k_t, v_t\rangle$ | $S_t=\gamma_t S_{t-1}+k_t v_t^\top$ | $S_t^\top q_t$ | $d^2$ | $O(d^2)$ |
# | delta rule; with $\gamma_t$: Gated DeltaNet, KDA | small $\tfrac12\lVert v_t-S^\top k_t\rVert^2$: the latest pair | one gradient step of size $\beta_t$, from $\gamma_t S_{t-1}$ | $S_t^\top q_t$ | $d^2$ | $O(d^2)$ |
# | **Mesa** | small $\tfrac12\sum_i\zeta_{ti}\beta_i\lVert v_i-\Phi k_i\rVert^2+\tfrac12\operatorname{Tr}\Phi\Lambda\Phi^\top$: all pairs | its exact minimum, through $G_t$ and $H_t$ | $G_t^\top(H_t+\Lambda)^{-1}q_t$ | $2d^2$ | $O((n+1)d^2)$, $n$ solver steps |
# | softmax attention | nothing forgotten | append $k_t, v_t$ | $\sum_i \mathrm{softmax}_i(q_t\cdot k_i)\,v_i$ | $2td$ | $O(td)$ |
# | Longhorn | small $\lVert S-S_{t-1}\rVert^2+\beta_t\lVert v_t-S^\top k_t\rVert^2$: the latest pair, and not far from before | its exact minimum | $S_t^\top q_t$ | $d^2$ | $O(d^2)$ |
# | OSDN, the delta rule with a preconditioner | the error of the latest pair | the delta step, written at $w_t=D_t k_t$; the diagonal $D_t$ is learned online | $S_t^\top q_t$ | $d^2+d$ | $O(d^2)$ |
# | LaCT, a small network $f_W$ of hidden width $h$ as memory | large $\sum_i\langle f_W(k_i),v_i\rangle$ over a chunk of tokens | one step a chunk, its direction orthogonalised (Muon), the rows of $W$ kept at their first length | $f_W(q_t)$ | $3dh$ | $O(dh)$ |
# | RG-LRU, the layer of Hawk | no pairs: a decaying average of inputs $x_t$, with a gate $a_t$ | $s_t=a_t\odot s_{t-1}+\sqrt{1-a_t^2}\odot x_t$ | $s_t$ | $d$ | $O(d)$ |
#
# Sources: MesaNet (arXiv 2506.05233v2) Eqs. (1)-(8), App. B and Table 5; OSDN (arXiv 2605.13473v1) Algorithm 1; LaCT (arXiv
# 2505.23884v1) Sec. 3. Read the second column twice. Linear attention and LaCT push an inner product up and never look at an error.
# The delta rule, OSDN and Longhorn look at one error, the last. Only Mesa looks at every error so far: that is its whole point, and its cost.
#
# All are in the package, under the names `linear`, `delta`, `mesa`, `attention`, `longhorn`, `osdn`, `lact` and `rglru`. Each exists as a
# **definition**, which solves the problem as it is stated, and mostly also as a **recurrence**, which takes one token after the other, and in **chunks**, which turns
# many tokens at a time into products of matrices. All give the same numbers. Notebooks 01 to 08 lead from softmax attention to Mesa and the network around it.

# %% [markdown]
# ## The smallest example: one pair
#
# Store one pair, with $\lVert k\rVert = 1$ and $\beta = 1$, and ask for it: $q = k$. What comes back?
#
# **Linear attention** has $S = kv^\top$, so $S^\top k = v\,(k^\top k) = v$.
#
# **The delta rule** starts from $S = 0$. Its error is $v - 0 = v$, it writes $k v^\top$, the same matrix, and reads $v$.
#
# **Mesa** has $G = kv^\top$ and $H = kk^\top$, and solves $(kk^\top + \lambda I)\,x = k$. Try $x = ck$:
# $(kk^\top + \lambda I)\,ck = c\,k\,(k^\top k) + c\lambda k = c(1+\lambda)k$, so $c = 1/(1+\lambda)$. The matrix is positive definite,
# so this is the only solution, and the read is
#
# $$ o = G^\top x = v\,(k^\top x) = \frac{v}{1+\lambda}. \tag{E00.1} $$
#
# The regulariser shrinks what is read. At $\lambda = 0.25$, the smallest the MesaNet paper allows, a single pair comes back at 80 %.

# %%
rng = np.random.default_rng(0)
k = rng.normal(size=(1, 1, 1, 4))  # [B, T, H, K]: one text, one token, one head
k = k / np.linalg.norm(k)
v = rng.normal(size=(1, 1, 1, 4))
beta = np.ones((1, 1, 1))
lam = np.full((1, 4), 0.25)

reads = {
    "linear": linear(k, k, v)[0],
    "delta": delta(k, k, v, beta)[0],
    "mesa": mesa(k, k, v, beta, lam)[0],
}
for rule, o in reads.items():
    print(f"{rule:7} reads back {float(jnp.vdot(o, v) / jnp.vdot(v, v)):.3f} of the value")

# %% tags=["nbval-check-output"]
wanted = {"linear": v, "delta": v, "mesa": v / 1.25}
claim(
    "C00.1",
    "one stored pair reads back as v, v and v/(1+lam) with the linear, delta and Mesa rule",
    source="Eq. (E00.1)",
    error=max(np.abs(reads[rule] - wanted[rule]).max() for rule in reads),
    tol=1e-15,
)

# %% [markdown]
# So with one pair nobody needs Mesa [C00.1]. With two pairs whose keys are not at a right angle everything changes: that is
# [notebook 02](02-correlated-keys.ipynb).

# %% [markdown]
# ## The answer: what is kept
#
# After $t$ tokens a cache holds $t$ keys and $t$ values of width $d$, and Mesa two $d\times d$ matrices:
#
# $$ \underbrace{2td}_{\text{cache}} > \underbrace{2d^2}_{G\text{ and }H} \iff t > d. \tag{E00.2} $$
#
# The heads of the MesaNet paper are 128 wide. **From token 129 on, the cache is the larger.** Let us not trust the formula
# and count what the package really carries.

# %%
width, heads = 128, 2
shape = jax.eval_shape(
    lambda x, b, lam: mesa(x, x, x, b, lam)[1],
    jax.ShapeDtypeStruct((1, 5, heads, width), jnp.float32),
    jax.ShapeDtypeStruct((1, 5, heads), jnp.float32),
    jax.ShapeDtypeStruct((heads, width), jnp.float32),
)
mesa_numbers = sum(x.size for x in shape) // heads
cache_numbers = lambda t: 2 * t * width  # noqa: E731 - a key and a value for every token
first_larger = next(t for t in range(1, 10_000) if cache_numbers(t) > mesa_numbers)
print(f"Mesa keeps {mesa_numbers} numbers per head; a cache is larger from token {first_larger} on")

# %% tags=["nbval-check-output"]
claim(
    "C00.2",
    "at width 128 a key-value cache is larger than Mesa's state from token 129 on",
    source="Eq. (E00.2); MesaNet Table 5",
    error=abs(first_larger - 129),
    tol=0,
)

# %% [markdown]
# Drag the width. (In JupyterLab a slider needs the kernel, so run all cells first; on the static site it needs none.) The crossing moves with it, and always sits at $t = d$ [C00.2]. What the picture cannot show is the price: a fixed
# state cannot hold everything, and the notebooks are about what each rule does with that.

# %%
explore(state_picture, width=[16, 32, 64, 128, 256], start={"width": 128})

# %% [markdown]
# ## What a token costs
#
# The table says a multiple of $d^2$ for linear attention, the delta rule and Mesa. Ask the compiler: it counts the floating-point operations of one token. If the
# cost is a multiple of $d^2$, doubling the width must multiply it by 4. (A solver's loop is counted once, so for Mesa this is the cost
# with a single solver step.)


# %%
def flops(rule, d):
    x, b, S, lam = jnp.ones((1, 1, 1, d)), jnp.ones((1, 1, 1)), jnp.zeros((1, 1, d, d)), jnp.ones((1, d))
    run = {
        "linear": lambda x, b, S, lam: linear(x, x, x, state=S, form="recurrent"),
        "delta": lambda x, b, S, lam: delta(x, x, x, b, state=S, form="recurrent"),
        "mesa": lambda x, b, S, lam: mesa(
            x, x, x, b, lam, solver=CG(max_steps=1), state=MesaState(S, S), form="recurrent"
        ),
    }[rule]
    return jax.jit(run).lower(x, b, S, lam).compile().cost_analysis()["flops"]


growth = {rule: flops(rule, 256) / flops(rule, 128) for rule in ("linear", "delta", "mesa")}
for rule, factor in growth.items():
    print(f"{rule:7} {flops(rule, 128) / 128**2:5.1f} d² operations a token; twice the width costs {factor:.2f} times as many")

# %% tags=["nbval-check-output"]
claim(
    "C00.3",
    "twice the width makes a token 4 times as expensive in the linear, delta and Mesa rule",
    source="MesaNet Table 5",
    error=max(abs(factor / 4 - 1) for factor in growth.values()),
    tol=0.02,
)

# %% [markdown]
# The tolerance of [C00.3] leaves room for the few operations that grow with $d$ alone.

# %% [markdown]
# ## How to read a claim
#
# The boxes with an id are not typed. A **claim**, such as [C00.1], computes an error and compares it with a tolerance; if it
# fails, the notebook stops there. An **erratum** (X instead of C) is a statement from a paper or a reference
# implementation that turned out wrong when it was run; if it ever holds, the notebook stops too. Both are listed on the ledger
# page of the site, with how far they are from their tolerance. If you doubt one, the README says how to dispute it.
#
# Here is one more, of the kind that the package's tests are made of: definition, recurrence and chunks agree. The definition of Mesa writes down the loss
# of the table and minimises it from scratch at every token; the recurrence carries $G$ and $H$ and solves
# for the query only; the chunk form does so for 64 queries at once.

# %%
B, T, H, K, V = 2, 20, 3, 4, 5
q, k, v = (rng.normal(size=(B, T, H, d)) for d in (K, K, V))
beta = rng.uniform(size=(B, T, H))
log_decay = np.log(rng.uniform(0.8, 1, size=(B, T, H)))
lam = np.full((H, K), 0.25)
exact = CG(max_steps=None, tol=1e-14)


def gap(form):
    a, _ = mesa(q, k, v, beta, lam, log_decay=log_decay, solver=exact, form="definition")
    b, _ = mesa(q, k, v, beta, lam, log_decay=log_decay, solver=exact, form=form)
    return float(jnp.abs(a - b).max() / jnp.abs(a).max())


for form in ("recurrent", "chunk"):
    print(f"{form:9} differs by {gap(form):.1e} of the largest output")

# %% tags=["nbval-check-output"]
claim(
    "C00.4",
    "minimising the stated loss at every token and carrying G and H give the same outputs",
    source="MesaNet Eqs. (4)-(8)",
    error=max(gap("recurrent"), gap("chunk")),
    tol=1e-13,
)

# %% [markdown]
# [C00.4] is why the two matrices are enough: the loss is quadratic, so all that the past can say about its minimum is in its first and
# second derivatives, and those are sums that can be carried.

# %% [markdown]
# ## Notation
#
# Greek letters in the mathematics, ASCII words in the code. A test compares this table with the signatures of the package.
#
# | symbol | in code | shape | what it is |
# | --- | --- | --- | --- |
# | $q_t, k_t$ | `q`, `k` | `[B, T, H, K]` | query and key |
# | $v_t$ | `v` | `[B, T, H, V]` | value |
# | $o_t$ | the first result | `[B, T, H, V]` | output, read **after** the write at $t$ |
# | $\beta_t$ | `beta` | `[B, T, H]` | input gate: step size (delta) or weight of a pair (Mesa) |
# | $\log\gamma_t$ | `log_decay` | `[B, T, H]` or `[B, T, H, K]` | natural logarithm of the forget gate $\gamma_t\in[0,1]$ |
# | $\zeta_{ti}$ | – | – | decay from $i$ to $t$: $\gamma_{i+1}\gamma_{i+2}\cdots\gamma_t$; 1 for $i=t$, 0 for $i>t$ |
# | $\Lambda=\operatorname{diag}\lambda$ | `lam` | `[H, K]` | Mesa's regulariser, positive, does not decay |
# | $w_t$ | `write_key` | `[B, T, H, K]` | where a correction is written; $k_t$ if not given |
# | $S=\Phi^\top$ | `state` | `[B, H, K, V]` | fast-weight state; the papers write the transpose |
# | $G, H$ | `state` | `[B, H, K, V]`, `[B, H, K, K]` | Mesa's two statistics, a `MesaState` |
# | – | `scale` | number | multiplies $q$; 1 unless said, in attention $K^{-1/2}$ |
# | – | `window` | number | how many tokens attention sees, the latest included; all if not given |
# | $d$ | `state` | `[B, H, K]` | OSDN's diagonal, beside $S$ in an `OSDNState`; the write key is $d_t\odot k_t$ |
# | $\eta$ | `step_size` | number | OSDN: how fast $d$ learns |
# | $\mathcal D$ | `bounds` | two numbers | OSDN: $d$ is clipped to stay between them |
# | $\epsilon$ | `eps` | number | OSDN: $\lVert k\rVert^2$ counts as at least this |
# | – | `beta_aware` | true or false | OSDN: whether $\beta$ is in the step of $d$ |
# | $r_t$ | `retention` | `[B, T, H]` | OSDN: how much of $d$ is kept (APF); all if not given |
# | $W_1, W_3, W_2$ | `weights` | `[H, M, D]` twice, `[H, D, M]` | LaCT: the network `SwiGLU(gate, up, out)` before the first token |
# | $\eta_t$ | `lr` | `[B, T, H, 3]` | LaCT: a token's rate for each of the three |
# | $\bar\beta$ | `momentum` | `[B, T, H]` | LaCT: its mean over a chunk keeps so much of the last direction |
# | – | `muon` | true, false, or triples | LaCT: whether, and by which polynomials, a direction is orthogonalised |
# | – | `order` | text or a schedule | LaCT: whether a chunk is read before or after it is written |
# | $x_t$ | `x` | `[B, T, D]` | RG-LRU: the input |
# | $i_t$ | `input_gate` | `[B, T, D]` | RG-LRU: how much of it enters |
# | – | `solver` | `CG(max_steps, tol)` | how Mesa's system is solved; `PCG` is the same with a preconditioner |
# | $\epsilon$ | `tol` | number | stop once the residual is at most $\epsilon$ times the first |
# | – | `max_steps` | number | and after so many steps in any case |
# | – | `form` | text | `"definition"`, `"recurrent"`, `"chunk"`, `"kernel"` (where a rule has one, on a Hopper GPU), or `"auto"`, the fastest there is |
# | $C$ | `chunk` | number | how many tokens a chunk has; in LaCT it is part of the rule |
#
# $B$ batch, $T$ time, $H$ heads (the letter is also Mesa's matrix; the place tells which), $K$ key width, $V$ value width. A result is a pair: the
# outputs, and the state after the last token. Give that state to the next call, and two calls are one.

# %% [markdown]
# ## Reading paths
#
# | you have | read |
# | --- | --- |
# | half an hour | [00](00-start-here.ipynb), then the first explorer of [02](02-correlated-keys.ipynb#F02a) |
# | one evening | [00](00-start-here.ipynb), [02](02-correlated-keys.ipynb) up to its section 6, and [04](04-conjugate-gradient.ipynb) up to its section 3 |
# | a layer to implement | [03](03-mesa-objective.ipynb) what is solved, [04](04-conjugate-gradient.ipynb) sections 3 and 6 how, [05](05-chunkwise-mesa.ipynb) for many tokens at once, [06](06-implicit-gradient.ipynb) its gradient, [07](07-mesanet.ipynb) what stands around it |
# | a kernel to write | [05](05-chunkwise-mesa.ipynb) sections 1 and 2 the chunk, [12](12-arithmetic-intensity.ipynb) section 3 the roof, [20](20-kernels-on-hopper.ipynb) the rest, rung by rung |
# | three sessions with a group | **1** [00](00-start-here.ipynb) and the two keys of 02; **2** the rest of 02, on your own arrays; **3** all of 04 |
# | eight sessions, one paper | MesaNet from [01](01-fast-weights.ipynb) to [08](08-solver-budget.ipynb), a notebook each; whoever has read about fast weights begins with 02 |
# | three sessions, one paper | OSDN: [09](09-preconditioned-delta.ipynb) the write key, its slope, and what a residual ratio does not see; [10](10-super-geometric-bound.ipynb) what the theorems promise, after how many tokens, and what they do not control; [11](11-osdn-in-chunks.ipynb) both phases in chunks, forgetting, the 1.3B variant |
# | four sessions, one paper | LaCT: [12](12-arithmetic-intensity.ipynb) why chunks, [13](13-lact-memory.ipynb) what is written, [14](14-order-and-masks.ipynb) when, and what a decoder must carry, [15](15-lact-at-scale.ipynb) what it costs, and on eight devices |
# | only the results | [16](16-reading-the-tables.ipynb), which needs no other notebook |
#
# Questions that one notebook answers: what does each rule look at ([01](01-fast-weights.ipynb)); why a regression ([02](02-correlated-keys.ipynb)); why two matrices, and why not carry the inverse ([03](03-mesa-objective.ipynb));
# how many solver steps ([04](04-conjugate-gradient.ipynb)); how long a chunk ([05](05-chunkwise-mesa.ipynb)); which gradient ([06](06-implicit-gradient.ipynb)); which network ([07](07-mesanet.ipynb)); where the steps are best spent ([08](08-solver-budget.ipynb));
# what a learned scale of the write key learns ([09](09-preconditioned-delta.ipynb)); what a bound promises ([10](10-super-geometric-bound.ipynb)); what keeps the key where it is in chunks ([11](11-osdn-in-chunks.ipynb));
# how fast your machine can write ([12](12-arithmetic-intensity.ipynb)); what Muon does to a write ([13](13-lact-memory.ipynb)); who may see whom, and how long a window must be ([14](14-order-and-masks.ipynb)); what to add up before Muon ([15](15-lact-at-scale.ipynb)); which numbers of the papers hold ([16](16-reading-the-tables.ipynb)); what a GPU kernel must do to be fast ([20](20-kernels-on-hopper.ipynb)).
#
# Every notebook opens with a question and the minutes it takes, and ends with three questions for the group.

# %% [markdown]
# ## Exercise
#
# **Exercise 00.1 ★** A delta-rule head keeps one matrix instead of two. From which token on is a cache larger than that, for any width $d$? Write
# the function and run its check.
#
# <details><summary>Hint</summary>
#
# Replace the right side of (E00.2), and mind odd widths: a token number is whole.
#
# </details>


# %%
def first_token_larger(d):
    return ...


# %%
def right_for_every_width(attempt):
    for d in (1, 2, 3, 64, 127, 128):
        t = attempt(d)
        if t != int(t):
            return f"at width {d} it is {t}, and there is no such token"
        if not 2 * t * d > d * d:
            return f"at width {d} a cache of {t} tokens holds {2 * t * d} numbers, not more than {d * d}"
        if 2 * (t - 1) * d > d * d:
            return f"at width {d} token {t - 1} is already enough"


check("00.1", first_token_larger, right_for_every_width)


# %% tags=["solution"] jupyter={"source_hidden": true}
def solution(d):
    return d // 2 + 1  # 2 t d > d^2 means t > d / 2


check("00.1", solution, right_for_every_width)

# %% [markdown]
# ## What was settled
#
# - One stored pair reads back whole, but for Mesa's shrinkage by $1/(1+\lambda)$ [C00.1].
# - A cache outgrows Mesa's two matrices at token $d+1$, 129 for the paper's heads [C00.2].
# - All three matrix rules cost a multiple of $d^2$ a token [C00.3]; Mesa pays that once for every solver step.
# - Two matrices carry all that the regression needs [C00.4].
#
# **Where papers and codes differ from this page.** The MesaNet paper keeps $\Phi$ and $G$ as value × key; we keep key × value, as the flash-linear-attention
# library does. That library multiplies queries by $K^{-1/2}$ unless told otherwise, except in its Mesa; we multiply by 1 unless told. The paper calls
# Mesa's extra state less than 1 % of memory: that counts a whole model with its parameters; per head the state is twice that of the delta rule.
#
# **For the group** (15 minutes)
#
# 1. Linear attention never looks at an error. In what sense does it learn at all?
# 2. Mesa finds the best memory for every pair so far. Is that what predicting the next word needs?
# 3. If you could double one thing, the width of the state or the number of solver steps, which would you try first, and how would you find out?
