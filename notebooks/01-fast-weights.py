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
#     title: Fast weights
#     question: A pair arrives. How many of the 63 pairs before it does the update look at?
#     minutes: 75
#     seconds: 15
#     settles: What is lost when the exponential of attention becomes a product of features; which gate remembers longest; when a delta step overshoots and why Longhorn's never does; and that of five rules only Mesa's update looks at earlier pairs.
# ---

# %% [markdown]
# # 01 · Fast weights
#
# **A pair arrives. How many of the 63 pairs before it does the update look at?**
#
# Softmax attention looks at all pairs whenever it reads, and pays for it with a cache that grows. The layers of this collection replace the cache by a matrix that is *trained* while the text is read.
# Here that matrix is built up one decision at a time: linear attention, gates, the delta rule, Longhorn, Mesa. Each is one step on one objective. The notebook derives every step, runs it, and then measures what each objective looks at: the latest pair, the last weights, or all pairs.
#
# | | |
# |---|---|
# | **Time** | 75 minutes to read, about 15 seconds to run on two cores, no GPU |
# | **You need** | [notebook 00](00-start-here.ipynb): keys, values, queries, and the names of the rules. A gradient, and the inverse of a matrix. |
# | **In a hurry** | [Cutting the exponential](#F01a), [a gate](#F01b), [two kinds of step](#F01c), [from one pair to all](#F01d), [the answer](#8-·-What-was-settled) |
#
# Symbols, once. Vectors are columns. The paper is MesaNet (arXiv 2506.05233v2); its Eqs. (1)-(3) are the first three rules of this page, and its App. B and Table 4 compare the objectives behind them.
#
# | here | in code | meaning |
# |---|---|---|
# | $k_t, v_t, q_t$ | `k`, `v`, `q` | key ($K$ numbers), value ($V$), query ($K$) of token $t$ |
# | $\Phi_t$, $V\times K$ | `Φ`; the package stores $S=\Phi^\top$ | the memory after the write at $t$; a read is $o_t=\Phi_t q_t$ |
# | $e_t = v_t-\Phi_{t-1}k_t$ | | the error of the new pair *before* it is written |
# | $\beta_t$, $\gamma_t$ | `beta`, `log_decay` $=\log\gamma_t$ | input gate, forget gate |
# | $\zeta_{ti}=\gamma_{i+1}\cdots\gamma_t$ | | what is left at $t$ of a write at $i$ |
# | $G_t$, $H_t$ | `MesaState(G, H)` | $\sum_i\zeta_{ti}\beta_i\,k_iv_i^\top$ and $\sum_i\zeta_{ti}\beta_i\,k_ik_i^\top$, the two sums that Mesa carries |
# | $\Lambda$, $\lambda$ | `lam` | Mesa's regulariser, a positive diagonal, and its entries |

# %%
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)  # a rounding error must not look like a difference between rules

from ttt_teach import attention, delta, linear, longhorn, mesa
from ttt_teach.explore import explore
from ttt_teach.explore import fast_weights as pictures
from ttt_teach.ledger import check, claim
from ttt_teach.tasks import minilm_qkv, overlapping_keys, unit

SMALL, PAST, TARGET, NUDGE, STREAM = range(100, 105)  # seeds, by purpose


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


# %% [markdown]
# Two inputs serve all sections. A small random one, for formulas. And eight heads of a real encoder (heads 0 to 3 of layers 1 and 4 of MiniLM-L6) on 512 tokens of English, for sizes.

# %%
T, K, V = 64, 8, 4
q, k, v = np.split(draw(SMALL, T, K + K + V), [K, K + K], axis=1)
k = unit(k)
beta, gamma = np.random.default_rng(SMALL).uniform(0.5, 1.0, size=(2, T))

layers = [minilm_qkv("plain", layer) for layer in (1, 4)]
Q, KEYS, VALUES = (np.concatenate([getattr(x, name).swapaxes(0, 1) for x in layers]).astype(float) for name in "qkv")
HEADS, LENGTH, WIDTH = Q.shape  # 8, 512, 32

linear, delta, longhorn, mesa = (jax.jit(partial(rule, form="recurrent")) for rule in (linear, delta, longhorn, mesa))
mesa_state = jax.jit(lambda *tokens, **gates: mesa(*tokens, **gates)[1])  # G and H; no query is solved for


def head(x):
    """[T, ...] as one text with one head, [1, T, 1, ...]."""
    return jnp.asarray(x)[None, :, None]


def off(x, y):
    """How far x is from y, relative to y."""
    return float(np.linalg.norm(np.asarray(x) - np.asarray(y)) / np.linalg.norm(y))


# %% [markdown]
# ## 1 · From softmax to linear attention: what is dropped
#
# Causal softmax attention (with the usual factor $K^{-1/2}$ taken into $q$) reads
#
# $$ o_t = \frac{\sum_{i\le t} \exp(q_t^\top k_i)\,v_i}{\sum_{i\le t}\exp(q_t^\top k_i)} . \tag{E01.1} $$
#
# To do so it must keep every $k_i$ and $v_i$: the query enters *inside* the exponential, so nothing can be summed before the query is known.
#
# **Suppose the weight were a product of features.** Let $\phi$ map $K$ numbers to $M$ numbers, and put $\phi(q)^\top\phi(k)$ in the place of $\exp(q^\top k)$. A dot product is one number, so it may stand behind its vector, and then brackets can be moved:
#
# $$ \sum_{i\le t} \bigl(\phi(k_i)^\top\phi(q_t)\bigr)\, v_i = \underbrace{\Bigl(\sum_{i\le t} v_i\,\phi(k_i)^\top\Bigr)}_{\Phi_t}\phi(q_t), \qquad
#    o_t = \frac{\Phi_t\,\phi(q_t)}{z_t^\top\phi(q_t)}, \quad z_t=\sum_{i\le t}\phi(k_i) . \tag{E01.2} $$
#
# The sums no longer contain the query. $\Phi_t$ has $V\times M$ entries and $z_t$ has $M$, for any length of text. That is all of linear attention.
#
# **Is the exponential such a product?** Yes, with infinitely many features. Write the series, and multiply out the $n$-th power of the dot product:
#
# $$ \exp(q^\top k) = \sum_{n\ge0}\frac{(q^\top k)^n}{n!}, \qquad
#    (q^\top k)^n = \Bigl(\sum_a q_a k_a\Bigr)^n = \sum_{a_1,\dots,a_n} (q_{a_1}\cdots q_{a_n})(k_{a_1}\cdots k_{a_n}) . \tag{E01.3} $$
#
# So the features of degree $n$ are all products of $n$ entries, divided by $\sqrt{n!}$. Cut after degree $n$. How many *different* products of at most $n$ of $K$ entries are there? Fill a short product up with ones: it becomes a choice of exactly $n$ out of $K+1$ symbols, with repetition and without order. There are
#
# $$ M = \binom{K+n}{n} \tag{E01.4} $$
#
# of those. (A product that occurs $m$ times in E01.3 is one feature, times $\sqrt m$.)
#
# **Only even degrees will do.** A weight should be positive, and for even $n$ the cut series $P_n$ is. It tends to $+\infty$ on both sides, so it has a lowest point. There $P_n'=0$; but the derivative of the series is the series one shorter, $P_n'=P_{n-1}$, so $P_n = P_{n-1}+\frac{x^n}{n!}=\frac{x^n}{n!}\ge0$, and $x=0$ is no such point, since $P_{n-1}(0)=1$. An odd $P_n$ has a zero, and E01.2 then divides by numbers near zero.
#
# First the check that E01.2 is only a change of brackets: degree 2, features written out, and the state carried by the package's `linear`.


# %%
def features(x):
    """All products of at most 2 entries, so that phi(q)'phi(k) = 1 + q'k + (q'k)^2 / 2: E01.3."""
    return np.concatenate([[1.0], x, np.outer(x, x).ravel() / np.sqrt(2)])


def series(scores, degree):
    """The exponential, cut after a degree (E01.3)."""
    return sum(scores**n / math.factorial(n) for n in range(degree + 1))


short, φq, φk = q @ k.T / np.sqrt(K), *(np.array([features(x) for x in xs]) for xs in (q / np.sqrt(K), k))
weights = np.tril(series(short, 2))
over_pairs = weights @ v / weights.sum(1, keepdims=True)
top, _ = linear(*map(head, (φq, φk, np.column_stack([v, np.ones(T)]))))  # z is one more column of values
through_state = top[0, :, 0, :V] / top[0, :, 0, V:]
distinct = {tuple(sorted(a)) for a in np.ndindex(*[K + 1] * 2)}
print(f"{len(distinct)} different products of at most 2 of {K} entries; E01.4 says {math.comb(K + 2, 2)}")

# %% tags=["nbval-check-output"]
claim(
    "C01.1",
    "attention whose weights are products of features gives the same outputs from a state as from all pairs",
    source="E01.2 and E01.3 to degree 2, 64 tokens; the state carried by the package's linear",
    error=off(through_state, over_pairs),
    tol=1e-14,
)

# %% [markdown]
# Now the price. For the eight real heads: how far from softmax are the outputs, if the series is cut after degree $n$?

# %%
ASKED = slice(3, LENGTH, 4)  # every fourth token
seen = np.tril(np.ones((LENGTH, LENGTH)))[ASKED]
scores = Q[:, ASKED] @ KEYS.swapaxes(1, 2) / np.sqrt(WIDTH)
exact = np.exp(scores) * seen
soft = np.asarray(attention(*(x.swapaxes(0, 1)[None] for x in (Q, KEYS, VALUES))))[0, ASKED].swapaxes(0, 1)  # E01.1


def read_with(weights):
    return weights @ VALUES / weights.sum(-1, keepdims=True)


def miss(o):
    """How far outputs are from those of softmax, relative, by head."""
    return np.sqrt(((o - soft) ** 2).sum((1, 2)) / (soft**2).sum((1, 2)))


DEGREES = list(range(0, 37, 2))
power, cut, by_degree = np.tile(seen, (HEADS, 1, 1)), np.zeros_like(scores), []
for n in range(DEGREES[-1] + 1):
    cut += power
    power *= scores / (n + 1)
    if n in DEGREES:
        by_degree.append(miss(read_with(cut)))
by_degree = np.array(by_degree)
needed = [DEGREES[int(np.argmax(by_degree[:, h] <= 0.01))] for h in range(HEADS)]
sizes = [math.comb(WIDTH + n, n) for n in DEGREES]
cache = 2 * LENGTH * WIDTH
state = math.comb(WIDTH + min(needed), min(needed)) * (WIDTH + 1)
print("softmax of the package against exp, written out:", f"{miss(read_with(exact)).max():.0e}")
for n, M, errors in list(zip(DEGREES, sizes, by_degree, strict=True))[:8]:
    print(f"degree {n:2}, {M:7.1e} features:", *(f"{x:6.4f}" for x in errors))
print("degree at which a head is within 1 %:", *needed)
print(f"the easiest head then needs a state of {state:.1e} numbers; the cache of all 512 tokens holds {cache}")

# %% tags=["nbval-check-output"]
claim(
    "C01.2",
    "to imitate softmax to 1 % the series must go to degree 10 on the easiest of eight real heads and to 30 on the hardest",
    source="E01.3 on minilm_qkv 'plain', every fourth token, even degrees; distance of least and most from 10 and 30",
    error=abs(min(needed) - 10) + abs(max(needed) - 30),
    tol=0,
)

# %% [markdown]
# Drag the degree ([F01a](#F01a)). On the left is the reason: a polynomial cannot be small where the score is very negative, and there most pairs are. It gives all of them a voice.

# %%
middle = np.quantile(scores[:, seen > 0], (0.05, 0.95))
SHOWN = [0, 2, 4, 6, 8, 10, 12, 14, 16]


def draw_series(degree):
    last = len(SHOWN)
    return pictures.truncated_exponential(degree, middle, SHOWN, by_degree[:last], sizes[:last])


explore(draw_series, degree=SHOWN, start={"degree": 6})

# %% [markdown]
# **What everybody does instead** is to give up the exponential. The simplest choice is $\phi(x)=x$, without $z_t$: the term of degree 1 alone. Compared with E01.1, four things are gone:
#
# 1. the terms of degree 2 and more, which make a weight *sharp*;
# 2. the term of degree 0, which makes the plain mean of the values;
# 3. the normaliser, so that the *scale* of $o_t$ grows with the text (the layer normalises it afterwards);
# 4. positive weights.
#
# Sharpness can be counted: how many of the pairs hold half of all (absolute) weight?


# %%
def half_of_the_weight(weights):
    """How many pairs hold half of the absolute weight; mean over the second half of the text, by head."""
    largest = np.sort(np.abs(weights[:, weights.shape[1] // 2 :]), -1)[..., ::-1]
    share = np.cumsum(largest, -1) / largest.sum(-1, keepdims=True)
    return (share < 0.5).sum(-1).mean(-1) + 1


sharp, flat = half_of_the_weight(exact), half_of_the_weight(scores * seen)
plain = (scores * seen) @ VALUES
plain = plain * ((plain * soft).sum((1, 2)) / (plain**2).sum((1, 2)))[:, None, None]  # at its best scale
print("half of the weight is on, softmax:     ", *(f"{x:5.1f}" for x in sharp), "pairs")
print("                          linear:      ", *(f"{x:5.1f}" for x in flat))
print("error of linear at its best scale:     ", *(f"{x:5.2f}" for x in miss(plain)))
print("error of the plain mean of all values: ", *(f"{x:5.2f}" for x in by_degree[0]))

# %% tags=["nbval-check-output"]
claim(
    "C01.3",
    "half of the weight lies on 4 to 44 pairs with softmax and on 96 to 129 with linear attention, by head",
    source="phi(x) = x, every fourth of tokens 256 to 511; largest distance of the four from 3.6, 43.7, 95.8, 129.2",
    error=float(np.abs([sharp.min() - 3.6, sharp.max() - 43.7, flat.min() - 95.8, flat.max() - 129.2]).max()),
    tol=0.1,
)

# %% [markdown]
# So linear attention is *not* an approximation of the softmax attention of these heads: on most of them it is further from it than the plain mean of the values. It is another layer, which must be trained as such, and the exponential is paid back in another currency: a better way to write. That is the rest of this page.
#
# > **Takeaway.** $\exp\to\phi\cdot\phi$ turns a growing cache into a fixed matrix. What goes is sharpness, and no affordable number of features brings it back.
#
# **Exercise 01.1 ★ A free lunch.** Softmax does not change if all keys of a head are moved by the same vector. The cut series does. Write `moved(k)`, `[T, K]` to `[T, K]`, so that degree 4 comes nearer to softmax in every one of the eight heads.
#
# <details><summary>Hint</summary>
#
# Moving the keys by $-c$ multiplies all weights of a query by the same $\exp(-q^\top c)$. The series is good near zero.
#
# </details>


# %%
def moved(k):
    return ...  # [T, K]


def test_moved(answer):
    keys = np.array([answer(x) for x in KEYS])
    if keys.shape != KEYS.shape:
        return f"your keys have shape {list(keys[0].shape)}; expected {list(KEYS[0].shape)}"
    if np.ptp(keys - KEYS, axis=1).max() > 1e-9:
        return "some keys are moved by another vector than the rest; softmax would notice"
    better = miss(read_with(series(Q[:, ASKED] @ keys.swapaxes(1, 2) / np.sqrt(WIDTH), 4) * seen))
    if (better >= by_degree[2]).any():
        h = int(np.argmax(better - by_degree[2]))
        return f"on head {h} of 8 the error of degree 4 was {by_degree[2, h]:.3f} and is {better[h]:.3f}"


check("01.1", moved, test_moved)


# %% jupyter={"source_hidden": true} tags=["solution"]
def moved_solution(k):
    return k - k.mean(0)


check("01.1", moved_solution, test_moved)

# %% [markdown]
# ## 2 · Linear attention is a gradient step too
#
# From here on $\phi(x)=x$ and there is no normaliser. The memory of E01.2 is a running sum; with gates it is MesaNet Eqs. (1)-(2):
#
# $$ \Phi_t = \gamma_t\,\Phi_{t-1} + \beta_t\, v_t k_t^\top, \qquad o_t=\Phi_t q_t . \tag{E01.5} $$
#
# $\Phi$ is called **fast weights**: weights of a linear layer that change at every token, while the slow weights, which make $k$, $v$ and $q$, stay.
#
# Which objective would a gradient step of size 1 turn into E01.5? We need one whose gradient at $\Phi_{t-1}$ is $(1-\gamma_t)\Phi_{t-1}-\beta_tv_tk_t^\top$. Now $v^\top\Phi k=\sum_{ab}v_a\Phi_{ab}k_b$ has the derivative $v_ak_b$ in $\Phi_{ab}$, and $\frac12\lVert\Phi\rVert^2$ has the derivative $\Phi_{ab}$. So it is
#
# $$ \ell^{\text{lin}}_t(\Phi) = -\beta_t\, v_t^\top\Phi k_t + \tfrac{1-\gamma_t}{2}\lVert\Phi\rVert^2 . \tag{E01.6} $$
#
# It wants $\Phi k_t$ to point *along* $v_t$, the longer the better, and a small $\Phi$. It never asks whether $\Phi k_t$ already *is* $v_t$. Without a forget gate it has no minimum at all: twice as far is twice as good.


# %%
def linear_objective(Φ, k, v, β, γ):
    return -β * v @ Φ @ k + 0.5 * (1 - γ) * jnp.sum(Φ**2)  # E01.6


def delta_objective(Φ, k, v):
    return 0.5 * jnp.sum((v - Φ @ k) ** 2)  # E01.10, section 4


@partial(jax.jit, static_argnums=0)
def walk(step, *tokens):
    """Φ after each token; step(Φ, *token) gives the next Φ."""
    return jax.lax.scan(lambda Φ, token: (step(Φ, *token),) * 2, jnp.zeros((V, K)), tokens)[1]


by_gradient = walk(lambda Φ, *token: Φ - jax.grad(linear_objective)(Φ, *token), k, v, beta, gamma)
o, S = linear(*map(head, (q, k, beta[:, None] * v)), log_decay=head(np.log(gamma)))

# %% tags=["nbval-check-output"]
claim(
    "C01.4",
    "gated linear attention takes one gradient step of size 1 on -beta v'Phi k + (1 - gamma) |Phi|^2 / 2",
    source="MesaNet Eqs. 1-2; E01.5 and E01.6, gradient by automatic differentiation; outputs and last memory",
    error=max(off(S[0, 0].T, by_gradient[-1]), off(o[0, :, 0], np.einsum("tvk,tk->tv", by_gradient, q))),
    tol=1e-15,
)

# %% [markdown]
# ## 3 · Gates: how long, and at what price
#
# **Unroll E01.5.** What was written at $i$ is multiplied by every forget gate after $i$:
#
# $$ \Phi_t = \sum_{i\le t}\zeta_{ti}\,\beta_i\,v_ik_i^\top, \qquad \zeta_{ti}=\gamma_{i+1}\gamma_{i+2}\cdots\gamma_t . \tag{E01.7} $$
#
# For $t=i$ the product is empty, 1; and going from $t-1$ to $t$ multiplies every term by $\gamma_t$ and adds one, as E01.5 does.
#
# With a constant gate $\zeta_{ti}=\gamma^{\,t-i}$: the share of a pair falls with its **age** $n=t-i$. All shares together are worth
#
# $$ \sum_{n\ge0}\gamma^n=\frac1{1-\gamma} \tag{E01.8} $$
#
# tokens at full strength: the **effective length**. A write is halved after $\ln 2/\ln(1/\gamma)\approx 0.69$ effective lengths.
#
# **Why forget at all?** Because of the others. Read with the key of age $n$ (all keys of length 1, $\beta=1$). What comes back is
#
# $$ \Phi_tk_i = \underbrace{\gamma^n v_i}_{\text{signal}} + \underbrace{\sum_{j\ne i}\gamma^{\,t-j}(k_j^\top k_i)\,v_j}_{\text{noise}} . $$
#
# Let the values be independent with mean square 1. Then in the mean square of the noise the mixed terms vanish, and $\sum_{j\ne i}\gamma^{2(t-j)}(k_j^\top k_i)^2$ is left. If the keys come evenly from all directions, the mean of $(k_j^\top k_i)^2$ is $1/K$: over the $K$ axes of a basis the squares of the components of $k_j$ add up to 1, and no axis is special. With $\sum_j\gamma^{2(t-j)}=\frac1{1-\gamma^2}$ for a long text,
#
# $$ \frac{\text{signal}^2}{\text{noise}^2} = \frac{K\,\gamma^{2n}}{\frac{1}{1-\gamma^2}-\gamma^{2n}} . \tag{E01.9} $$
#
# A long memory (large $\gamma$) keeps the old signal, but also the noise of everybody. Width helps in proportion to $K$. The input gate $\beta_i$ multiplies signal $i$ and its share in the noise of the others, nothing else.

# %%
GATES = [0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995]
STREAMS = {
    name: overlapping_keys(jax.random.key(STREAM), HEADS, LENGTH, WIDTH, cosine)[:, :, 0]
    for name, cosine in (("random keys", 0.0), ("overlapping keys", 0.5))
}
STREAMS["real keys"] = unit(KEYS)
overlaps = {name: (keys @ keys.swapaxes(1, 2)) ** 2 for name, keys in STREAMS.items()}


def loudness(overlap, γ):
    """Signal over noise by age [T], as amplitudes: root mean squares over the sets of keys."""
    left = γ ** (2.0 * np.arange(LENGTH)[::-1])
    noise = overlap @ left - left  # the j = i term of the sum is the signal
    return np.sqrt(left / noise.mean(0))[::-1]


def law(γ, n):
    return np.sqrt(WIDTH * γ ** (2 * n) / (1 / (1 - γ**2) - γ ** (2 * n)))  # E01.9


ages = np.arange(200)
for γ in (0.9, 0.99):
    ratio = {name: loudness(overlap, γ)[0] for name, overlap in overlaps.items()}
    print(f"gamma {γ}, effective length {1 / (1 - γ):.0f} (E01.8). Signal over noise of the newest pair:")
    print("   ", ", ".join(f"{x:.2f} on {name}" for name, x in ratio.items()), f"; by the law {law(γ, 0):.2f}")
apart = {γ: np.mean(loudness(overlaps["random keys"], γ)[:200] / law(γ, ages)) for γ in GATES[2:]}
unrolled = sum(np.prod(gamma[i + 1 :]) * beta[i] * np.outer(v[i], k[i]) for i in range(T))  # E01.7

# %% tags=["nbval-check-output"]
claim(
    "C01.5",
    "the running memory is the sum of all writes, each times the forget gates after it",
    source="E01.7 against the package's linear, 64 tokens",
    error=off(S[0, 0].T, unrolled),
    tol=1e-14,
)
claim(
    "C01.6",
    "on random keys signal over noise follows the law, in the mean over ages 0 to 199, for gates from 0.9 to 0.995",
    source="E01.9; 8 sets of 512 random keys of width 32; largest relative difference over six gates",
    error=max(abs(x - 1) for x in apart.values()),
    tol=0.02,
)

# %% [markdown]
# Drag the gate ([F01b](#F01b)). On random keys there is a trade: from $0.5$ up, more and more pairs stand above the noise, and then fewer again. On the real keys, which share directions, the noise is as loud as the newest pair already at an effective length of ten.

# %%
heard = {γ: {name: loudness(overlaps[name], γ)[:97] for name in ("random keys", "real keys")} for γ in GATES}
explore(
    lambda gamma: pictures.decay(gamma, law(gamma, np.arange(97)), heard[gamma]), gamma=GATES, start={"gamma": 0.95}
)

# %% [markdown]
# > **Takeaway.** A gate chooses which pairs to hear. It cannot lower the noise of those that it keeps: for that a write must look at what the memory already holds.
#
# **Exercise 01.2 ★★ The best gate.** You want to read the pair of age $n\ge1$ as clearly as possible: which $\gamma$ makes E01.9 largest? Give it in closed form; then find what the width $K$ buys: the largest age that can be read with signal equal to noise.
#
# <details><summary>Hint</summary>
#
# $a/(b-a)$ grows with $a/b$, so maximise $\gamma^{2n}(1-\gamma^2)$. Call $\gamma^2=x$.
#
# </details>


# %%
def best_gate(n):
    return ...


def test_best_gate(answer):
    for n in (1, 4, 30):
        mine = answer(n)
        for other in np.linspace(0.01, 0.999, 400):
            if law(other, n) > law(mine, n) * (1 + 1e-9):
                return (
                    f"at age {n} gamma = {mine:.4f} gives {law(mine, n):.3f}, but {other:.4f} gives {law(other, n):.3f}"
                )


check("01.2", best_gate, test_best_gate)


# %% jupyter={"source_hidden": true} tags=["solution"]
def best_gate_solution(n):
    # x^n (1 - x) has the slope x^(n-1) (n - (n + 1) x), zero at x = n / (n + 1).
    return np.sqrt(n / (n + 1))


check("01.2", best_gate_solution, test_best_gate)
oldest = max(n for n in range(1, 200) if law(best_gate_solution(n), n) >= 1)
print(
    f"width {WIDTH}: readable up to age {oldest}; K / e + 1 / 2 is {WIDTH / np.e + 0.5:.1f}, since (n/(n+1))^n tends to 1/e"
)

# %% [markdown]
# ## 4 · The delta rule: one gradient step on one error
#
# Now the write looks. Take the squared error of the latest pair as the objective,
#
# $$ \ell_t(\Phi)=\tfrac12\lVert v_t-\Phi k_t\rVert^2 . \tag{E01.10} $$
#
# **Its gradient.** Move $\Phi$ by a small $\epsilon\Delta$ and write $e=v_t-\Phi k_t$. Then $\ell_t(\Phi+\epsilon\Delta)=\frac12\lVert e-\epsilon\Delta k_t\rVert^2$, whose slope in $\epsilon$ at 0 is $-e^\top\Delta k_t=-\sum_{ab}e_a\Delta_{ab}k_{t,b}$. The factor of $\Delta_{ab}$ is the derivative: $\nabla\ell_t=-e\,k_t^\top$. One step of size $\beta_t$ from the last weights is MesaNet Eq. (3):
#
# $$ \Phi_t=\Phi_{t-1}+\beta_t\,e_t\,k_t^\top,\qquad e_t=v_t-\Phi_{t-1}k_t . \tag{E01.11} $$
#
# With a forget gate the step starts from $\gamma_t\Phi_{t-1}$, and the error is measured there (Gated DeltaNet).
#
# **What the step does to the new pair.** Multiply by $k_t$. With $n=\lVert k_t\rVert^2$,
#
# $$ v_t-\Phi_tk_t = (1-\beta_tn)\,e_t . \tag{E01.12} $$
#
# | $\beta n$ | the error after the write |
# |---|---|
# | 0 to 1 | smaller, same sign |
# | 1 | gone |
# | 1 to 2 | smaller, **with the other sign**: the step went past the goal |
# | above 2 | **larger** than before, with the other sign |
#
# **What it does to the memory.** Let $\Phi_\star$ be any map that reads this pair right, $\Phi_\star k_t=v_t$, and $E=\Phi_{t-1}-\Phi_\star$. Then $e_t=-Ek_t$, so $E$ becomes $E-\beta Ek_tk_t^\top$. Square it, using $\lVert Ek_tk_t^\top\rVert^2=n\lVert Ek_t\rVert^2$ and $\langle E,Ek_tk_t^\top\rangle=\lVert Ek_t\rVert^2$:
#
# $$ \lVert\Phi_t-\Phi_\star\rVert^2=\lVert\Phi_{t-1}-\Phi_\star\rVert^2-\beta(2-\beta n)\,\lVert e_t\rVert^2 . \tag{E01.13} $$
#
# For $0<\beta n<2$ a write takes the memory nearer to *every* map that is right about the pair. For $\beta n>2$ it takes it away from all of them. The border is sharp, and the same for one write and for many.

# %%
INSIDE_AND_OUT = [0.3, 1.0, 1.7, 2.0, 2.3]


def descend(Φ, k, v, β):
    return Φ - β * jax.grad(delta_objective)(Φ, k, v)


stepped = {β: walk(descend, k, v, np.full(T, β)) for β in INSIDE_AND_OUT}
told = {β: delta(*map(head, (q, k, v, np.full(T, β))))[1][0, 0].T for β in INSIDE_AND_OUT}  # E01.11

before, target = draw(PAST, V, K), draw(TARGET, V, K)
for β in INSIDE_AND_OUT:
    after = before + β * np.outer(target @ k[0] - before @ k[0], k[0])
    left = np.linalg.norm(target @ k[0] - after @ k[0]) / np.linalg.norm(target @ k[0] - before @ k[0])
    print(f"beta {β}: error of the new pair times {left:.2f}", end="; ")
    print(f"distance to a right map {np.linalg.norm(before - target):.3f} -> {np.linalg.norm(after - target):.3f}")

# %% tags=["nbval-check-output"]
claim(
    "C01.7",
    "the delta rule takes one gradient step of size beta on the squared error of the latest pair, inside and outside (0, 2)",
    source="MesaNet Eq. 3; E01.10 and E01.11, gradient by automatic differentiation, 64 tokens at five step sizes",
    error=max(off(told[β], stepped[β][-1]) for β in INSIDE_AND_OUT),
    tol=5e-14,
)

# %% [markdown]
# Does E01.13 hold along a whole stream that *some* map fits, $v_t=\Phi_\star k_t$? There every write takes off $\beta(2-\beta)\lVert e_t\rVert^2$, so the squared distance is its start minus a sum. For random unit keys the mean of $\lVert e_t\rVert^2=\lVert Ek_t\rVert^2$ is $\lVert E\rVert^2/K$, so a write multiplies the squared distance by $1-\beta(2-\beta)/K$ on average: slow decay inside, growth outside.

# %%
fitted = k @ target.T
start = np.linalg.norm(target) ** 2
distance = {}
worst = 0.0
for β in INSIDE_AND_OUT:
    path = np.asarray(walk(descend, k, fitted, np.full(T, β)))
    last = np.concatenate([np.zeros((1, V, K)), path[:-1]])
    e = fitted - np.einsum("tvk,tk->tv", last, k)
    left = fitted - np.einsum("tvk,tk->tv", path, k)
    square = ((path - target) ** 2).sum((1, 2))
    taken = ((last - target) ** 2).sum((1, 2)) - β * (2 - β) * (e**2).sum(1)  # E01.13
    worst = max(worst, off(left, (1 - β) * e) if β != 1 else np.abs(left).max(), off(square, taken))  # E01.12
    distance[β] = square[-1] / start
    mean = (1 - β * (2 - β) / K) ** T
    print(f"beta {β}: 64 writes leave {distance[β]:.1e} of the squared distance; the mean factor gives {mean:.1e}")

# %% tags=["nbval-check-output"]
claim(
    "C01.8",
    "every write leaves (1 - beta n) of the error and moves the squared distance to a right map by -beta (2 - beta n) |e|^2",
    source="E01.12 and E01.13, 64 writes at beta 0.3, 1, 1.7, 2 and 2.3",
    error=worst,
    tol=2e-14,
)
claim(
    "C01.9",
    "at beta = 2 the distance to a right map does not change over 64 writes",
    source="E01.13 at the border; relative change of the squared distance",
    error=abs(distance[2.0] - 1),
    tol=1e-13,
)

# %% [markdown]
# Steps between 1 and 2 are not a mistake: a write there *reflects* the memory in the direction of the key, with the factor $1-\beta n<0$. But a network that learns $\beta$ has to be kept from the border. MesaNet uses unit keys and $\beta\in[0,1]$.
#
# > **Takeaway.** The delta rule looks at the latest pair and starts from the last weights. Its step is right to first order only, and beyond $\beta n=2$ it does harm.
#
# ## 5 · Longhorn: the implicit step
#
# Longhorn (arXiv 2407.14207) does not take a step on the error. It asks for the map that is *best* when staying near the last weights has a price, and takes that map:
#
# $$ \Phi_t=\arg\min_\Phi\;\tfrac12\lVert\Phi-\Phi_{t-1}\rVert^2+\tfrac{\beta_t}2\lVert v_t-\Phi k_t\rVert^2 . \tag{E01.14} $$
#
# **Set the gradient to zero**, with the gradient of E01.10:
#
# $$ \Phi-\Phi_{t-1}-\beta_t\,(v_t-\Phi k_t)\,k_t^\top=0
# \qquad\Longleftrightarrow\qquad \Phi\,(I+\beta_tk_tk_t^\top)=\Phi_{t-1}+\beta_tv_tk_t^\top . \tag{E01.15} $$
#
# Read the left form as $\Phi_t=\Phi_{t-1}+\beta_t\,(v_t-\Phi_tk_t)\,k_t^\top$. It is the delta rule E01.11 with the error measured **after** the write. That is what makes it *implicit*: the new map stands on both sides.
#
# **The inverse** of $I+\beta kk^\top$ (Sherman and Morrison). Try $I-s\,kk^\top$ with a number $s$. As $kk^\top kk^\top=n\,kk^\top$,
#
# $$ (I+\beta kk^\top)(I-s\,kk^\top)=I+(\beta-s-\beta sn)\,kk^\top=I \quad\text{for}\quad s=\frac{\beta}{1+\beta n} . \tag{E01.16} $$
#
# **The closed form.** Multiply the right form of E01.15 by it:
#
# $$ \Phi_t=(\Phi_{t-1}+\beta vk^\top)(I-s\,kk^\top)=\Phi_{t-1}-s\,\Phi_{t-1}kk^\top+\beta(1-sn)\,vk^\top . $$
#
# Since $1-sn=\frac1{1+\beta n}$, the last factor $\beta(1-sn)$ is $s$ again, and
#
# $$ \Phi_t=\Phi_{t-1}+\frac{\beta_t}{1+\beta_tn}\;e_t\,k_t^\top,\qquad v_t-\Phi_tk_t=\Bigl(1-\frac{\beta_tn}{1+\beta_tn}\Bigr)e_t=\frac{1}{1+\beta_tn}\;e_t . \tag{E01.17} $$
#
# The objective is a sum of a positive definite quadratic and a square, so its only stationary point is its minimum.
#
# **It never overshoots.** For every $\beta\ge0$ the share $1/(1+\beta n)$ lies between 1 and 0: same sign, never larger. A huge $\beta$ stores the pair exactly and harms nothing; the step itself, $\beta/(1+\beta n)$, stays below $1/n$.


# %%
def longhorn_objective(Φ, last, k, v, β):
    return 0.5 * jnp.sum((Φ - last) ** 2) + 0.5 * β * jnp.sum((v - Φ @ k) ** 2)  # E01.14


@jax.jit
def slope_at(Φ, last, k, v, β):
    """The largest slope of the objective at Φ, over the largest at a map nudged by 0.001."""
    slope = jax.grad(longhorn_objective)
    return jnp.abs(slope(Φ, last, k, v, β)).max() / jnp.abs(slope(Φ + 1e-3, last, k, v, β)).max()


STRENGTHS = np.geomspace(1e-3, 1e6, 10)
key0, value0 = 1.5 * k[0], v[0]  # a key that is not of length 1
n = key0 @ key0
at_minimum = []
for β in STRENGTHS:
    closed = before + β / (1 + β * n) * np.outer(value0 - before @ key0, key0)  # E01.17
    inverse = np.eye(K) - β / (1 + β * n) * np.outer(key0, key0)  # E01.16
    solved = (before + β * np.outer(value0, key0)) @ inverse  # E01.15
    at_minimum.append(max(float(slope_at(closed, before, key0, value0, β)), off(solved, closed)))

copies = lambda x, N: np.broadcast_to(x, (N, 1, 1, *np.shape(x)))  # noqa: E731 - one token for each of N memories
latest = [copies(x, len(STRENGTHS)) for x in (key0, key0, value0)]
S = longhorn(*latest, STRENGTHS[:, None, None], state=copies(before.T, len(STRENGTHS))[:, 0])[1][:, 0]
e0 = value0 - before @ key0
shares = np.array([(value0 - x.T @ key0) @ e0 / (e0 @ e0) for x in np.asarray(S)])
for β, share in zip(STRENGTHS, shares, strict=True):
    print(f"beta n {β * n:9.3g}: the delta rule leaves {1 - β * n:11.4g} of the error, Longhorn {share:.3e}")

# %% tags=["nbval-check-output"]
claim(
    "C01.10",
    "Longhorn's closed form is where its objective has slope zero, for beta from 0.001 to a million",
    source="E01.14 to E01.17, slope by automatic differentiation over that of a nudged map; and E01.15 solved with E01.16",
    error=max(at_minimum),
    tol=1e-8,
)
claim(
    "C01.11",
    "the package's Longhorn leaves the share 1 / (1 + beta n) of the error: never negative, never above 1",
    source="E01.17; beta n from 0.002 to 2 million, error in units of the error before the write",
    error=float(np.abs(shares - 1 / (1 + STRENGTHS * n)).max()) + float((shares < -1e-15).any() or (shares > 1).any()),
    tol=1e-15,
)

# %% [markdown]
# **Three ways to follow one slope.** Let a map flow down the gradient of E01.10 for a time $\beta$: $\dot\Phi=e\,k^\top$. Then $\dot e=-\dot\Phi k=-n\,e$, and after the time $\beta$ the share $\mathrm{e}^{-\beta n}$ of the error is left. The delta rule makes one step with the slope at the start (Euler's explicit method), Longhorn one with the slope at the end (Euler's implicit method):
#
# $$ 1-\beta n \;\le\; \mathrm{e}^{-\beta n} \;\le\; \frac1{1+\beta n} . \tag{E01.18} $$
#
# (Both say that $\mathrm{e}^y\ge1+y$, a convex curve above its tangent at 0: with $y=-\beta n$, and with $y=\beta n$, turned over.) To first order in $\beta n$ the three agree. So Longhorn does not know more than the delta rule; it is more careful with the same knowledge. **It is a delta rule with another name for the step**: by E01.17, with $b=\beta/(1+\beta n)$. Turned around, $\beta=b/(1-bn)$: every delta step with $bn<1$ is a Longhorn step, and none with $bn\ge1$ is.

# %%
weight = np.random.default_rng(PAST).uniform(0.1, 9.0, size=T)
implicit = longhorn(*map(head, (q, k, v, weight)))[0]
explicit = delta(*map(head, (q, k, v, weight / (1 + weight * (k**2).sum(1)))))[0]
x = np.linspace(0, 5, 1001)
in_order = max((1 - x - np.exp(-x)).max(), (np.exp(-x) - 1 / (1 + x)).max())  # E01.18

# The same objective with only the diagonal of kk' kept, so that each channel of Φ has a decay of its own.
β = 1.0
s = β / (1 + β * n)
diagonal = before * (1 - s * key0**2) + s * np.outer(value0, key0)
full = before + s * np.outer(value0 - before @ key0, key0)
cost = [float(longhorn_objective(Φ, before, key0, value0, β)) for Φ in (before, full, diagonal)]
lost = (cost[2] - cost[1]) / (cost[0] - cost[1])
print(
    f"objective at the last weights {cost[0]:.3f}, at the minimum {cost[1]:.3f}, with the diagonal only {cost[2]:.3f}"
)

# %% tags=["nbval-check-output"]
claim(
    "C01.12",
    "Longhorn's outputs are those of the delta rule with the step beta / (1 + beta n), for beta from 0.1 to 9",
    source="E01.17; both rules of the package, 64 tokens",
    error=off(implicit, explicit),
    tol=1e-14,
)
claim(
    "C01.13",
    "one explicit step leaves no more of the error than the gradient flow does, one implicit step no less",
    source="E01.18 at 1001 values of beta n from 0 to 5; largest violation",
    error=max(0.0, float(in_order)),
    tol=1e-15,
)
claim(
    "C01.14",
    "with only the diagonal of k k' kept, 39 % of what a step could take off Longhorn's objective is missed on this write",
    source="E01.14, one write at beta 1; distance of the share from 0.39",
    error=abs(lost - 0.39),
    tol=0.005,
)

# %% [markdown]
# The last claim is about a variant: `longhorn` in the package notes that the published layer keeps the diagonal of $kk^\top$ only, with a $\beta$ for every value channel, which makes it fast to scan. It is then no longer the minimum of E01.14.
#
# Drag $\beta$ and the keys ([F01c](#F01c)). On the left the share of the error that one write leaves; the grey band is where an error does not grow. On the right all 512 pairs of a stream are read back after the last write.
#
# *Try:* random keys and $\beta$ from 0.1 up: the newest pair gets better and the rest worse, with both rules. Then 1.9 and 2.1: the border of E01.13. Then the real keys at $\beta=1$.

# %%
stream_values = dict.fromkeys(STREAMS, draw(STREAM, HEADS, LENGTH, WIDTH)) | {"real keys": VALUES}
for name, values in stream_values.items():
    stream_values[name] = values / np.sqrt((values**2).mean((1, 2), keepdims=True))  # in units of a value


@jax.jit
def write_all(keys, values, steps):
    """Memories [steps, sets, V, K] after all pairs were written by the delta rule, for each constant step (E01.11)."""

    def write(Φ, pair):
        k, v = pair
        e = v - jnp.einsum("mnvk,nk->mnv", Φ, k)
        return Φ + steps[:, None, None, None] * e[..., None] * k[:, None], None

    start = jnp.zeros((len(steps), len(keys), values.shape[-1], keys.shape[-1]))
    return jax.lax.scan(write, start, (keys.swapaxes(0, 1), values.swapaxes(0, 1)))[0]


def errors_of(Φ, keys, values):
    """Squared errors of reading all pairs back, [..., sets, T], in units of a value; none above 1e18."""
    return (np.clip(keys @ np.swapaxes(Φ, -1, -2) - values, -1e9, 1e9) ** 2).mean(-1)


BETAS = (0.1, 0.5, 1.0, 1.5, 1.9, 2.1, 4.0)
both = np.array([*BETAS, *(β / (1 + β) for β in BETAS)])
memories = {name: np.asarray(write_all(STREAMS[name], stream_values[name], both)) for name in STREAMS}
streamed = {}
for name, Φ in memories.items():
    missed = errors_of(Φ, STREAMS[name], stream_values[name])
    for i, β in enumerate(BETAS):
        streamed[β, name] = {"delta rule": missed[i], "Longhorn": missed[len(BETAS) + i]}
explore(
    lambda beta, keys: pictures.steps(beta, keys, streamed[beta, keys]),
    beta=BETAS,
    keys=tuple(STREAMS),
    start={"beta": 1.5, "keys": "random keys"},
)

# %% [markdown]
# > **Takeaway.** Longhorn is the delta rule with a step that cannot be too large. It looks at the latest pair and at the last weights; an older pair is protected only as far as it lives on in those weights.
#
# **Exercise 01.3 ★★ Longhorn with a forget gate.** Stay near $\gamma\Phi_{t-1}$ instead of $\Phi_{t-1}$ in E01.14. Write the step: from `last` `[V, K]`, `k`, `v`, `beta`, `gamma` to the new map. The judge looks at the slope of the objective.
#
# <details><summary>Hint</summary>
#
# Nothing in E01.15 to E01.17 uses where $\Phi_{t-1}$ came from.
#
# </details>


# %%
def forgetful_longhorn(last, k, v, beta, gamma):
    return ...  # [V, K]


def test_forgetful(answer):
    for β, γ in ((1.0, 0.9), (40.0, 0.5), (0.2, 1.0)):
        Φ = answer(before, key0, value0, β, γ)
        if np.shape(Φ) != before.shape:
            return f"your map has shape {list(np.shape(Φ))}; expected {list(before.shape)}"
        slope = float(slope_at(Φ, γ * before, key0, value0, β))
        if not slope < 1e-9:
            return f"at beta = {β:g}, gamma = {γ:g} the slope at your map is {slope:.1e} of that at a nudged one"


check("01.3", forgetful_longhorn, test_forgetful)


# %% jupyter={"source_hidden": true} tags=["solution"]
def forgetful_longhorn_solution(last, k, v, beta, gamma):
    kept = gamma * last
    return kept + beta / (1 + beta * k @ k) * np.outer(v - kept @ k, k)


check("01.3", forgetful_longhorn_solution, test_forgetful)

# %% [markdown]
# ## 6 · From one pair to all: Mesa
#
# **Let the implicit step look at more than one pair.** Write a block $\mathcal B$ of pairs at once, staying near the memory $\Phi_0$ that was there before it:
#
# $$ \Phi=\arg\min_\Phi\;\tfrac12\lVert\Phi-\Phi_0\rVert^2+\tfrac12\sum_{i\in\mathcal B}\beta_i\lVert v_i-\Phi k_i\rVert^2 . \tag{E01.19} $$
#
# The gradient is a sum of the same terms as in E01.15, so
#
# $$ \Phi\,\Bigl(I+\sum_{i\in\mathcal B}\beta_ik_ik_i^\top\Bigr)=\Phi_0+\sum_{i\in\mathcal B}\beta_iv_ik_i^\top . \tag{E01.20} $$
#
# One pair in the block: Longhorn. All pairs in one block, and nothing before it ($\Phi_0=0$): then the right side is $G_t^\top$, the bracket is $H_t+I$, and
#
# $$ \Phi_t=G_t^\top(H_t+\Lambda)^{-1},\qquad \Lambda=I , \tag{E01.21} $$
#
# which is Mesa (MesaNet Eqs. (4)-(8); [notebook 03](03-mesa-objective.ipynb) derives it with gates and any $\Lambda$). Longhorn and Mesa are two ends of one scale, and the scale is *how many pairs the objective looks at*.


# %%
def write_blocks(keys, values, β, size):
    """The memories after all pairs were written in blocks (E01.20). keys [sets, T, K], values [sets, T, V]."""
    Φ = np.zeros((len(keys), values.shape[-1], keys.shape[-1]))
    for first in range(0, keys.shape[1], size):
        k, v = keys[:, first : first + size], values[:, first : first + size]
        A = np.eye(k.shape[-1]) + β * k.swapaxes(1, 2) @ k
        Φ = np.linalg.solve(A, (Φ + β * v.swapaxes(1, 2) @ k).swapaxes(1, 2)).swapaxes(1, 2)
    return Φ


ends = write_blocks(k[None], v[None], 0.7, 1)[0], write_blocks(k[None], v[None], 0.7, T)[0]
constant = list(map(head, (q, k, v, np.full(T, 0.7))))
as_longhorn = longhorn(*constant)[1][0, 0].T
G, H = (x[0, 0] for x in mesa_state(*constant, np.ones((1, K)), log_decay=head(np.zeros(T))))
as_mesa = np.linalg.solve(H + np.eye(K), G).T  # E01.21

# %% tags=["nbval-check-output"]
claim(
    "C01.15",
    "the block step is Longhorn with one pair in a block and Mesa with lam = 1 with all of them",
    source="E01.19 to E01.21; the package's longhorn and mesa, 64 pairs, beta 0.7",
    error=max(off(ends[0], as_longhorn), off(ends[1], as_mesa)),
    tol=1e-13,
)

# %% [markdown]
# Drag the number of pairs ([F01d](#F01d)) on the eight real heads. At $\beta=1$ looking at more pairs is better nearly everywhere; what it costs is the newest pair, which is no longer a favourite. *Then set $\beta=10$.* A step that looks at 4 pairs and trusts them fully is **worse**, on every head, than one that looks at a single pair: it bends the memory until those few are right, whatever becomes of the others. With 256 in a block it pays [C01.17].

# %%
SIZES = [1, 2, 4, 8, 32, 128, 256, 512]
TRUST = (0.1, 1.0, 10.0)
real, real_values = STREAMS["real keys"], stream_values["real keys"]
squares = {
    (size, β): errors_of(write_blocks(real, real_values, β, size), real, real_values) for size in SIZES for β in TRUST
}
overall = {β: np.sqrt([squares[size, β].mean(1) for size in SIZES]) for β in TRUST}  # [sizes, heads]
explore(
    lambda pairs, beta: pictures.blocks(pairs, beta, SIZES, overall[beta], squares[pairs, beta]),
    pairs=SIZES,
    beta=TRUST,
    start={"pairs": 4, "beta": 10.0},
)

# %% tags=["nbval-check-output"]
one, every = (overall[1.0][SIZES.index(size)] for size in (1, 512))
print("beta 1, one pair a step: ", one.round(3))
print("beta 1, all 512 at once: ", every.round(3))
claim(
    "C01.16",
    "eight real heads read their pairs back with errors of 0.69 to 0.91 one pair at a time, and 0.50 to 0.72 all at once",
    source="E01.20 at beta 1, blocks of 1 and 512; largest distance of least and most from 0.694, 0.912, 0.501, 0.721",
    error=float(np.abs([one.min() - 0.694, one.max() - 0.912, every.min() - 0.501, every.max() - 0.721]).max()),
    tol=1e-3,
)
few, many = (overall[10.0][SIZES.index(size)] / overall[10.0][0] for size in (4, 256))
print("beta 10, 4 pairs a step over one pair a step:  ", few.round(3))
print("beta 10, 256 pairs a step over one pair a step:", many.round(3))
claim(
    "C01.17",
    "at beta 10 steps on 4 pairs read back worse than steps on one pair, and steps on 256 better, on all eight heads",
    source="E01.20, 512 tokens; error of what should be better over that of what should be worse, the largest of 16",
    error=float(max((1 / few).max(), many.max())),
    tol=1.0,
)

# %% [markdown]
# **Mesa, written as a step.** Mesa has no step: it solves. But its map does move from token to token, and we can ask how. Write $A_t=H_t+\Lambda$. By definition $\Phi_tA_t=G_t^\top$, and the same at $t-1$. Insert the recurrences of $G$ and $H$, and then $\gamma_tH_{t-1}=H_t-\beta_tk_tk_t^\top$:
#
# $$ \begin{aligned}
# \Phi_tA_t &= \gamma_tG_{t-1}^\top+\beta_tv_tk_t^\top=\gamma_t\,\Phi_{t-1}(H_{t-1}+\Lambda)+\beta_tv_tk_t^\top\\
# &=\Phi_{t-1}\bigl(H_t-\beta_tk_tk_t^\top+\gamma_t\Lambda\bigr)+\beta_tv_tk_t^\top\\
# &=\Phi_{t-1}A_t+\beta_t\,(v_t-\Phi_{t-1}k_t)\,k_t^\top-(1-\gamma_t)\,\Phi_{t-1}\Lambda .
# \end{aligned} $$
#
# Multiply by $A_t^{-1}$ from the right:
#
# $$ \Phi_t=\Phi_{t-1}+\bigl[\beta_t\,e_tk_t^\top-(1-\gamma_t)\,\Phi_{t-1}\Lambda\bigr]\,(H_t+\Lambda)^{-1} . \tag{E01.22} $$
#
# The bracket without forgetting ($\gamma_t=1$) is *the delta rule's write*, nothing else. (With forgetting the old pairs weigh less and $\Lambda$ does not; the second term is its pull towards zero.)
#
# Why the delta rule's? The slope of Mesa's loss at $\Phi_{t-1}$ has one term for every pair and one for $\Lambda$. But $\Phi_{t-1}$ was the minimum for all pairs up to $t-1$: their terms and that of $\Lambda$ cancel. What remains is the slope of the newest error alone,
#
# $$ \nabla L_t(\Phi_{t-1})=-\beta_t\,e_tk_t^\top\qquad(\gamma_t=1), \tag{E01.23} $$
#
# and E01.22 is a **Newton step**: the same slope as the delta rule, divided by the curvature of the whole loss. The three rules that look at an error are one formula,
#
# $$ \Phi_t=\Phi_{t-1}+\beta_t\,e_t\,w_t^\top,\qquad
#    w_t=\begin{cases}k_t&\text{delta rule}\\(I+\beta_tk_tk_t^\top)^{-1}k_t&\text{Longhorn}\\(\Lambda+\sum_{i\le t}\beta_ik_ik_i^\top)^{-1}k_t&\text{Mesa,}\end{cases} \tag{E01.24} $$
#
# and differ in where the correction is written: **what the inverse has seen is nothing, the latest key, all keys.** (Longhorn: by E01.16 $(I+\beta kk^\top)^{-1}k=k-snk=k/(1+\beta n)$, as in E01.17.)

# %%
lam = np.linspace(0.25, 2.0, K)
A = np.diag(lam)
Φ, g, h = np.zeros((V, K)), np.zeros((K, V)), np.zeros((K, K))
drift = 0.0
for i in range(T):
    g = gamma[i] * g + beta[i] * np.outer(k[i], v[i])
    h = gamma[i] * h + beta[i] * np.outer(k[i], k[i])
    bracket = beta[i] * np.outer(v[i] - Φ @ k[i], k[i]) - (1 - gamma[i]) * Φ * lam
    Φ = Φ + np.linalg.solve(h + A, bracket.T).T  # E01.22: h is symmetric
    drift = max(drift, off(Φ, np.linalg.solve(h + A, g).T))
by_package = mesa_state(*map(head, (q, k, v, beta)), lam[None], log_decay=head(np.log(gamma)))
drift = max(drift, off(Φ, np.linalg.solve(by_package.H[0, 0] + A, by_package.G[0, 0]).T))


def mesa_objective(Φ, k, v, β, lam):
    return 0.5 * jnp.sum(β[:, None] * (v - k @ Φ.T) ** 2) + 0.5 * jnp.sum(lam * Φ**2)  # MesaNet Eq. 4, gamma = 1


def mesa_map(k, v, β, lam):
    return np.linalg.solve((β[:, None] * k).T @ k + np.diag(lam), (β[:, None] * k).T @ v).T


last = mesa_map(k[:-1], v[:-1], beta[:-1], lam)
whole = jax.grad(mesa_objective)(last, k, v, beta, lam)
newest = beta[-1] * jax.grad(delta_objective)(last, k[-1], v[-1])

RULES = {  # what the inverse has seen at token t
    "delta rule": lambda t: np.eye(K),
    "Longhorn": lambda t: np.eye(K) + beta[t] * np.outer(k[t], k[t]),
    "Mesa": lambda t: np.diag(lam) + (beta[: t + 1, None] * k[: t + 1]).T @ k[: t + 1],
}


def arrive(Φ, rule, t):
    w = np.linalg.solve(RULES[rule](t), k[t])
    return Φ + beta[t] * np.outer(v[t] - Φ @ k[t], w)  # E01.24


one_formula = dict.fromkeys(RULES, np.zeros((V, K)))
for t in range(T):
    one_formula = {rule: arrive(Φ, rule, t) for rule, Φ in one_formula.items()}
tokens = list(map(head, (q, k, v, beta)))
by_rule = {"delta rule": delta(*tokens)[1][0, 0].T, "Longhorn": longhorn(*tokens)[1][0, 0].T}
by_rule["Mesa"] = mesa_map(k, v, beta, lam)
apart = {rule: off(Φ, by_rule[rule]) for rule, Φ in one_formula.items()}
for rule in RULES:
    w = np.linalg.solve(RULES[rule](T - 1), k[-1])
    print(
        f"{rule:10} writes the last pair at w of length {np.linalg.norm(w):.3f}, cosine with its key {w @ k[-1] / np.linalg.norm(w):.3f}"
    )

# %% tags=["nbval-check-output"]
claim(
    "C01.18",
    "stepping by the delta rule's write, less the pull of lam, through the inverse of H + lam gives Mesa's map at every token",
    source="E01.22 with random gates, 64 tokens; G'(H + lam)^-1 at each, and the package's state at the last",
    error=drift,
    tol=1e-13,
)
claim(
    "C01.19",
    "at the last minimum the slope of Mesa's whole loss is the slope of the newest error alone",
    source="E01.23, both by automatic differentiation, 64 pairs, no forgetting",
    error=off(whole, newest),
    tol=1e-13,
)
claim(
    "C01.20",
    "delta rule, Longhorn and Mesa are one formula that differs in the matrix through which the key is written",
    source="E01.24 over 64 tokens, no forgetting; against the package's delta and longhorn, and the solved regression",
    error=max(apart.values()),
    tol=1e-13,
)

# %% [markdown]
# > **Takeaway.** All three rules follow the same error. They differ in the curvature that they divide it by, and only Mesa's curvature contains the earlier keys.
#
# ## 7 · What does an objective look at?
#
# Now by measurement. Write each rule's objective at token $t$ as a function of *all* it might look at: the candidate $\Phi$, the last weights $\Phi_{t-1}$, the latest pair, the 63 earlier pairs. Its slope in $\Phi$ is what steers the update. Nudge one ingredient in a random direction of length 1 and see how fast that slope changes: a mixed second derivative, by automatic differentiation. **It is exactly zero if the objective does not look there.**

# %%
past, new = (k[:-1], v[:-1], beta[:-1]), (k[-1], v[-1])
β_T, γ_T = 0.8, 0.9  # the gates of the last token
OBJECTIVES = {
    "linear attention": lambda Φ, last, new, past: linear_objective(Φ, *new, β_T, γ_T),
    "delta rule": lambda Φ, last, new, past: delta_objective(Φ, *new),
    "Longhorn": lambda Φ, last, new, past: longhorn_objective(Φ, last, *new, β_T),
    "Mesa": lambda Φ, last, new, past: (
        γ_T * mesa_objective(Φ, *past, lam / γ_T) + β_T * delta_objective(Φ, *new)  # the past has faded by γ_T
    ),
}
INGREDIENTS = ("last weights", "latest pair", "earlier pairs")
given = dict(zip(INGREDIENTS, (last, new, past), strict=True))


@partial(jax.jit, static_argnums=0)
def looks(objective, given, nudges):
    """By ingredient: how much the slope at Φ changes when it is nudged, per unit of the nudge."""

    def slope(where, x):
        last, new, past = ((given | {where: x})[name] for name in INGREDIENTS)
        return jax.grad(objective)(before, last, new, past)

    return {
        where: jnp.linalg.norm(jax.jvp(partial(slope, where), (given[where],), (nudges[where],))[1]) for where in given
    }


def random_nudge(where):
    leaves, tree = jax.tree.flatten(given[where])
    parts = [draw(NUDGE + n, *x.shape) for n, x in enumerate(leaves)]
    length = np.sqrt(sum((x**2).sum() for x in parts))
    return jax.tree.unflatten(tree, [x / length for x in parts])


nudges = {where: random_nudge(where) for where in given}
table = {rule: jax.tree.map(float, looks(objective, given, nudges)) for rule, objective in OBJECTIVES.items()}
print(" " * 17, *(f"{where:>14}" for where in INGREDIENTS))
for rule, row in table.items():
    print(f"{rule:17}", *(f"{row[where]:14.3f}" for where in INGREDIENTS))
LOOKED_AT = {("Longhorn", "last weights"), ("Mesa", "earlier pairs"), *((rule, "latest pair") for rule in OBJECTIVES)}
blind = max(x for rule, row in table.items() for where, x in row.items() if (rule, where) not in LOOKED_AT)
sharpest = min(table[rule][where] for rule, where in LOOKED_AT)

# %% tags=["nbval-check-output"]
claim(
    "C01.21",
    "all four objectives look at the latest pair; besides, only Longhorn's at the last weights and only Mesa's at earlier pairs",
    source="mixed derivative of the slope of E01.6, E01.10, E01.14 and Mesa's loss: largest that should be zero over smallest that should not",
    error=blind / sharpest,
    tol=1e-15,
)

# %% [markdown]
# MesaNet compares the objectives in App. B and Table 4. What counts is not whether a step is solved exactly: Longhorn solves every step exactly, and the objective that it solves holds one pair.
#
# **But the last weights come from the earlier pairs.** Do the others not look at them through $\Phi_{t-1}$? They do, as far as $\Phi_{t-1}$ tells. So here is a sharper test: *exchange an earlier pair so that $\Phi_{t-1}$ stays as it is.* Take Mesa's map $\widehat\Phi$ of the first 63 pairs, give pair $i$ the weight $c\beta_i$ and another value,
#
# $$ v_i' = \widehat\Phi k_i+\tfrac1c\,(v_i-\widehat\Phi k_i) . \tag{E01.25} $$
#
# Its term in the slope of the loss at $\widehat\Phi$ is $c\beta_i(v_i'-\widehat\Phi k_i)k_i^\top=\beta_i(v_i-\widehat\Phi k_i)k_i^\top$, as before. So the slope is still zero at $\widehat\Phi$: **another past, the same map**, sure of pair $i$ in another degree. Then the 64th pair arrives, and we look whose map moves. (For the first three rules the outcome is certain beforehand: their state *is* the map. That is the point. We run it all the same.)

# %%
C, N = 4.0, T - 1  # 63 exchanges, and in the last row the past as it was
many_v, many_beta = np.tile(v, (T, 1, 1)), np.tile(beta, (T, 1))
for i in range(N):
    many_beta[i, i] *= C
    many_v[i, i] = last @ k[i] + (v[i] - last @ k[i]) / C  # E01.25
maps = np.array([mesa_map(k[:-1], *x, lam) for x in zip(many_v[:, :-1], many_beta[:, :-1], strict=True)])
same = max(off(x, last) for x in maps)

latest = [copies(x, T) for x in (k[-1], k[-1], v[-1])]
carried = maps.mT[:, None]  # each rule is given the map that its past has led to
one_beta = copies(beta[-1], T)
after = {
    "linear attention": linear(*latest, state=carried)[1],
    "delta rule": delta(*latest, one_beta, state=carried)[1],
    "Longhorn": longhorn(*latest, one_beta, state=carried)[1],
}
keys_of_all = np.tile(k, (T, 1, 1))[:, :, None]
G, H = mesa_state(keys_of_all, keys_of_all, many_v[:, :, None], many_beta[:, :, None], lam[None])
after["Mesa"] = np.linalg.solve(np.asarray(H) + np.diag(lam), np.asarray(G))
moved_by = {rule: np.array([off(x, S[N]) for x in S[:N]]) for rule, S in after.items()}
looked_at = {rule: int((moved > 1e-9).sum()) for rule, moved in moved_by.items()}
print(f"63 other pasts, whose maps differ by {same:.0e} at most. When the 64th pair is written:")
for rule, moved in moved_by.items():
    print(f"{rule:17} {looked_at[rule]:2} of 63 exchanged pairs change the new map, by up to {moved.max():.1e} of it")


def exchanged(keys, values, λ=0.25):
    """How far Mesa's map moves, relative, for each pair exchanged before the last one is written."""
    lam, ones = np.full(keys.shape[1], λ), np.ones(len(keys))
    now, then = mesa_map(keys[:-1], values[:-1], ones[:-1], lam), mesa_map(keys, values, ones, lam)
    moves = []
    for i in range(len(keys) - 1):
        v, β = values.copy(), ones.copy()
        v[i], β[i] = now @ keys[i] + (values[i] - now @ keys[i]) / C, C
        moves.append(off(mesa_map(keys, v, β, lam), then))
    return np.array(moves)


on_streams = {name: exchanged(STREAMS[name][5, :T], stream_values[name][5, :T]) for name in STREAMS}
for name, moves in on_streams.items():
    print(f"Mesa on {name:16} {(moves > 1e-9).sum()} of {N}, median {np.median(moves):.1e}, at most {moves.max():.1e}")

# %% tags=["nbval-check-output"]
claim(
    "C01.22",
    "a pair can be exchanged for one of another weight and value without moving Mesa's map",
    source="E01.25 for each of 63 pairs, weight times 4; the package's mesa",
    error=same,
    tol=1e-13,
)
claim(
    "C01.23",
    "given the same map, the update looks at 0, 0, 0 and 63 of the 63 earlier pairs: linear attention, delta rule, Longhorn, Mesa",
    source="pairs whose exchange moves the next map by more than 1e-9 of it; sum of the differences from 0, 0, 0, 63",
    error=sum(abs(looked_at[rule] - wanted) for rule, wanted in zip(looked_at, (0, 0, 0, 63), strict=True)),
    tol=0,
)
claim(
    "C01.26",
    "on random, overlapping and real keys of width 32, too, Mesa's update looks at all 63 earlier pairs",
    source="E01.25 at lam 0.25; 63 less the smallest of the three counts",
    error=N - min(int((moves > 1e-9).sum()) for moves in on_streams.values()),
    tol=0,
)

# %% [markdown]
# **That is the answer to the question**, and it has a simple reading: Mesa knows *how sure it is*. Take one key of length 1. It was written $m$ times with the value $v$, and now comes once with the value $w$. Everything happens along that key: $G^\top=(mv+w)k^\top$, $H=(m+1)kk^\top$, so Mesa reads
#
# $$ o=\frac{m\,v+w}{m+1+\lambda} . \tag{E01.26} $$
#
# After 63 repetitions it hardly moves. The delta rule with $\beta=1$ answers $w$, and Longhorn goes half way from what it reads to $w$, however often the old value was seen. (What two *different* keys do to each other is the subject of [notebook 02](02-correlated-keys.ipynb).)

# %%
m = np.array([1, 10, 63])
written = np.arange(T) >= N - m[:, None]  # the last m of 63 tokens are written, beta = 0 before them; then comes w
same_key = np.broadcast_to(np.eye(2)[0], (3, T, 1, 2))
stored = np.where(np.arange(T) < N, 1.0, -1.0) * np.ones((3, 1))
seen_so = same_key, same_key, stored[:, :, None, None], written[:, :, None].astype(float)
read = [delta(*seen_so)[0], longhorn(*seen_so)[0], mesa(*seen_so, np.full((1, 2), 0.25))[0]]
by_deltarule, by_longhorn, by_mesa = (np.asarray(o)[:, -1, 0, 0] for o in read)
for row in zip(m, by_deltarule, by_longhorn, by_mesa, strict=True):
    print("seen {:2} times as 1, then once as -1: delta rule {:.4f}, Longhorn {:.4f}, Mesa {:.4f}".format(*row))

# %% tags=["nbval-check-output"]
claim(
    "C01.24",
    "contradicted once, the delta rule answers the new value, Longhorn between 0 and -1/4, and Mesa (m - 1) / (m + 1.25)",
    source="E01.26, beta 1, lam 0.25, m = 1, 10, 63; Longhorn's old read is 1 - 2^-m and moves half way to -1",
    error=float(np.abs([by_deltarule + 1, by_longhorn + 0.5 ** (m + 1.0), by_mesa - (m - 1) / (m + 1.25)]).max()),
    tol=1e-15,
)

# %% [markdown]
# **And what does it cost not to look?** All rules on the three streams, 24 pairs (fewer than the width of 32) and 512 (far more). Errors of reading back, in units of a value: 1 is a memory that always answers 0. Linear attention stands at its best scale.


# %%
STEPS_READ = 0.2, 1.0, 0.5  # the last is that of Longhorn at beta 1


def reading_errors(name, length):
    keys, values = STREAMS[name][:, :length], stream_values[name][:, :length]
    added = values.swapaxes(1, 2) @ keys
    got = keys @ added.swapaxes(1, 2)
    scale = (got * values).sum((1, 2), keepdims=True) / (got**2).sum((1, 2), keepdims=True)
    written = dict(zip(STEPS_READ, write_all(keys, values, np.array(STEPS_READ)), strict=True))
    memories = {
        "linear attention": scale * added,
        "delta rule, beta 0.2": written[0.2],
        "delta rule, beta 1": written[1.0],
        "Longhorn, beta 1": written[0.5],
        "blocks of 8, beta 1": write_blocks(keys, values, 1.0, 8),
        "Mesa, lam 1": write_blocks(keys, values, 1.0, length),
        "Mesa, lam 0.25": write_blocks(keys, values, 4.0, length),  # only beta / lam counts
    }
    return {rule: np.sqrt(errors_of(np.asarray(Φ), keys, values).mean()) for rule, Φ in memories.items()}


columns = {(name, n): reading_errors(name, n) for n in (24, 512) for name in STREAMS}
print(f"{'':21} {'24 pairs':>30} {'512 pairs':>32}")
print(" " * 21, *(f"{name.split()[0]:>11}" for name, _ in columns))
for rule in columns["real keys", 24]:
    print(f"{rule:21}", *(f"{column[rule]:11.3f}" for column in columns.values()))

# %% tags=["nbval-check-output"]
runner_up = {
    case: min(x for rule, x in column.items() if "Mesa" not in rule) / column["Mesa, lam 0.25"]
    for case, column in columns.items()
}
claim(
    "C01.25",
    "Mesa at lam 0.25 reads back better than every other rule of the table, on all three streams and at both lengths",
    source="8 sets of keys each; its error over the least of the others, the largest of six",
    error=max(1 / x for x in runner_up.values()),
    tol=1.0,
)

# %% [markdown]
# Keep the comparison in proportion. On 512 random keys all linear memories are nearly helpless, and what Mesa gains is little: there is no structure to look at. It gains where keys overlap, and where there are fewer pairs than directions. These are pairs read back with their own keys, by rules with constant gates; a trained layer adapts its keys, $\beta$, $\gamma$ and $\lambda$.
#
# **Exercise 01.4 ★★★ Read the past from a reaction.** Somebody holds a Mesa memory (no forgetting, $\beta=1$) and lets you write into copies of it. `write(k, v)` gives the map after writing your pair into a fresh copy; `now` is its map before. Find the matrix $H+\Lambda$ that it hides.
#
# <details><summary>Hint</summary>
#
# By E01.24 the reaction is $e\,w^\top$ with $w=(A+kk^\top)^{-1}k$, $A=H+\Lambda$. By the argument of E01.16 that is $A^{-1}k/(1+k^\top A^{-1}k)$. Write at each axis of a basis, choose $v$ so that you know $e$, and solve for the column $A^{-1}k$.
#
# </details>


# %%
def hidden_matrix(now, write):
    return ...  # [K, K]


def test_hidden(answer):
    truth = np.diag(lam) + k[:-1].T @ k[:-1]
    g = k[:-1].T @ v[:-1]

    def write(key, value):
        key, value = np.asarray(key, float), np.asarray(value, float)
        return np.linalg.solve(truth + np.outer(key, key), g + np.outer(key, value)).T

    found = np.asarray(answer(np.linalg.solve(truth, g).T, write))
    if found.shape != truth.shape:
        return f"your matrix has shape {list(found.shape)}; expected {list(truth.shape)}"
    if not off(found, truth) < 1e-6:
        return f"your matrix is off by {off(found, truth):.1e} of the hidden one; its first row should be {truth[0].round(2)}"


check("01.4", hidden_matrix, test_hidden)


# %% jupyter={"source_hidden": true} tags=["solution"]
def hidden_matrix_solution(now, write):
    columns = []
    for axis in np.eye(now.shape[1]):
        value = now @ axis + 1  # so that e is all ones
        w = (write(axis, value) - now)[0]  # A^-1 k / (1 + k'A^-1 k)
        columns.append(w / (1 - w @ axis))  # with s = k'A^-1 k: k'w = s / (1 + s), so 1 - k'w = 1 / (1 + s)
    return np.linalg.inv(np.array(columns))


check("01.4", hidden_matrix_solution, test_hidden)

# %% [markdown]
# ## 8 · What was settled
#
# **The answer.** With the memory's map held fixed, the update of linear attention, of the delta rule and of Longhorn looks at none of the 63 earlier pairs, Mesa's at all 63 [C01.23], on real keys too [C01.26]. In objectives: all look at the latest pair, Longhorn also at the last weights, Mesa at all pairs [C01.21]. The delta rule, Longhorn and Mesa follow the same error and differ in the curvature that divides it: none, that of the latest key, that of all keys [C01.20]. On eight real heads, 512 pairs written one at a time are read back with errors of 0.69 to 0.91, all at once with 0.50 to 0.72 [C01.16]; and looking at a few pairs with full trust is worse than looking at one [C01.17]. Mesa reads back best on every stream, by little where nothing is shared and by much where keys overlap [C01.25].
#
# | section | claims |
# |---|---|
# | softmax to linear attention | C01.1, C01.2, C01.3 |
# | linear attention as a gradient step | C01.4 |
# | gates | C01.5, C01.6 |
# | the delta rule | C01.7, C01.8, C01.9 |
# | Longhorn | C01.10, C01.11, C01.12, C01.13, C01.14 |
# | from one pair to all | C01.15, C01.16, C01.17 |
# | Mesa as a step | C01.18, C01.19, C01.20 |
# | what is looked at | C01.21, C01.22, C01.23, C01.26, C01.24, C01.25 |
#
# **Where papers and reference codes differ from what runs.** No erratum belongs to this notebook; these are differences of form that cost time.
#
# | what | here | elsewhere |
# |---|---|---|
# | the map | $\Phi$ is $V\times K$ in the text, $S=\Phi^\top$ in the package | MesaNet writes $\Phi$ and calls our $G^\top$ $G$ |
# | the factor of the squared error | $\frac12$ in E01.14, as in E01.10 | the package's `longhorn` states its objective without $\frac12$ on both terms: the same minimum, since both are scaled |
# | Longhorn's layer | one $\beta$ per token, the exact minimum | published with a $\beta$ per value channel and the diagonal of $kk^\top$, which is not the minimum [C01.14] |
# | the input gate of linear attention | $\beta_t$ scales the value (MesaNet Eq. (2)) | the package's `linear` takes $\beta_tv_t$; in Mesa $\beta_t$ must enter $G$ *and* $H$ ([notebook 03](03-mesa-objective.ipynb)) |
# | "linear attention approximates softmax" | not on these heads [C01.2], [C01.3] | said often; a layer *trained* with it is another matter |
#
# **Three questions for the group.**
#
# 1. E01.23 says that at the old minimum the old pairs exert no pull. Why must Mesa remember them nevertheless? Which cheaper statistic than $H$ would keep most of what it knows?
# 2. A block of a few pairs with full trust is worse than single pairs [C01.17]. What does that predict for layers that write one large step per chunk?
# 3. Longhorn cannot take a step with $\beta n\ge1$ in the delta rule's sense, so its memory never reflects. What could a layer use a negative $1-\beta n$ for?
#
# **Minutes per beat, for whoever leads.** Section 1: 15, half of it at [F01a](#F01a). Sections 2 and 3: 12. Section 4: 10. Section 5: 13, one drags [F01c](#F01c) and the others predict. Section 6: 15, most of it from E01.22 to E01.24. Section 7 and questions: 10. People get stuck at "implicit" (the error *after* the write), and at E01.23.
#
# **Next.** [Notebook 02](02-correlated-keys.ipynb): the smallest example on which these rules disagree, two keys at an angle. [Notebook 00](00-start-here.ipynb) has the map.
