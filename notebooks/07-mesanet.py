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
#     title: MesaNet
#     question: Trained on strings of 40 bits, can a Mesa layer tell the parity of 256?
#     minutes: 80
#     seconds: 40
#     settles: Yes with forget gates that may be negative, no with positive ones, at any depth. The whole model twice, in NumPy and in Equinox; why each of its parts; 146, 434 and 938 million parameters; from token 2177 on attention costs more than 30 solver steps.
# ---

# %% [markdown]
# # 07 · MesaNet
#
# **A Mesa layer is trained to tell whether a string of 40 bits holds an even or an odd number of ones. Can it tell for 256 bits?**
#
# The answer is a share of right answers, and one sign in the layer decides it. To get there we need the whole model: the layer around the Mesa rule, the block around the layer, the language model around the blocks.
# This notebook writes all of it down twice, once in plain NumPy and once in Equinox. It asks of every part what it is good for, and measures that where the paper's reading gives no reason.
#
# | | |
# |---|---|
# | **Time** | 80 minutes to read, about 40 seconds to run on two cores, no GPU |
# | **You need** | [notebook 03](03-mesa-objective.ipynb): why $o = G^\top(H+\Lambda)^{-1}q$. [Notebook 04](04-conjugate-gradient.ipynb): what a condition number does to the solver. |
# | **In a hurry** | [The layer in NumPy](#1--the-layer-written-out), [what a token costs](#F07a), [the sizes](#9--three-sizes), [parity](#F07b) |
#
# Symbols, once. Vectors are columns, $\odot$ multiplies entry by entry, $\sigma(z) = 1/(1+e^{-z})$ and $\mathrm{SiLU}(z) = z\,\sigma(z)$.
#
# | here | meaning |
# |---|---|
# | $x_t$ | the token's vector in the residual stream, of width $D$ |
# | $q_t, k_t, v_t$ | query, key and value of a head, of width $d$; there are $h$ heads, and in the paper's models $hd = D$ |
# | $\beta_t, \gamma_t$ | input gate and forget gate, one number per head and token |
# | $\zeta_{ti} = \gamma_{i+1}\cdots\gamma_t$ | what the forget gates have left at $t$ of the write at $i$ |
# | $G_t, H_t$ | $\sum_{i\le t}\zeta_{ti}\beta_i\,k_i v_i^\top$ and $\sum_{i\le t}\zeta_{ti}\beta_i\,k_i k_i^\top$ (the paper writes $G^\top$) |
# | $\Lambda = \mathrm{diag}(\lambda)$ | the regulariser, learned, the same for all tokens |
# | $\kappa$ | condition number of $H_t+\Lambda$, largest over smallest eigenvalue |
# | $n_t = \sum_{i\le t}\zeta_{ti}\beta_i$ | how many tokens the memory holds, counted by weight |
# | $J$ | steps of the solver |
#
# Paper = MesaNet (arXiv 2506.05233v2). The layer is described in its App. E and G.5, the parity experiment in App. I.

# %%
import inspect
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)

from ttt_teach import CG, nn
from ttt_teach.explore import explore
from ttt_teach.explore import mesanet as pictures
from ttt_teach.ledger import check, claim
from ttt_teach.solvers import cg_trace, steps_to
from ttt_teach.tasks import minilm_qkv, parity, unit
from ttt_teach.theory import costs

key_model, key_train, key_test = jax.random.key(5), jax.random.key(9), jax.random.key(7)
exact = CG(max_steps=None, tol=1e-14)


def off(x, y):
    """How far x is from y, relative to y."""
    return float(np.linalg.norm(np.asarray(x) - np.asarray(y)) / np.linalg.norm(np.asarray(y)))


# %% [markdown]
# ## 1 · The layer, written out
#
# A token comes in as $x_t$ and leaves as $y_t$. In order (App. E, G.5):
#
# $$ \begin{aligned}
# \tilde q_t,\ \tilde k_t,\ v_t &= \mathrm{SiLU}\bigl(\mathrm{conv}_4(W_{qkv}\,x)_t\bigr), \\
# q_t &= \tilde q_t/\lVert\tilde q_t\rVert, \quad k_t = \tilde k_t/\lVert\tilde k_t\rVert, \\
# \beta_t &= \sigma(w_\beta^\top x_t + b_\beta), \\
# \gamma_t &= \sigma(w_\gamma^\top x_t + b_\gamma)\,\bigl(1 - 0.0025\,\beta_t^2\bigr), \\
# \lambda &= 0.25 + \log(1+e^{z}), \\
# o_t &= G_t^\top (H_t+\Lambda)^{-1} q_t, \\
# y_t &= W_o\,\bigl[\mathrm{RMSNorm}(o_t^{(1)}),\dots,\mathrm{RMSNorm}(o_t^{(h)})\bigr].
# \end{aligned} \tag{E07.1} $$
#
# $W_{qkv}$ and $W_o$ have no bias. $z$ is one learned number per head and key channel. $\mathrm{RMSNorm}(o) = w\odot o\,/\sqrt{\tfrac1d\sum_m o_m^2 + 10^{-6}}$ with learned $w$.
# Here is all of it for one sequence, one token after the other.


# %%
def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def silu(z):
    return z * sigmoid(z)


def rms_norm(norm, x):
    return np.asarray(norm.weight) * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def linear_map(layer, x):
    return x @ np.asarray(layer.weight) + (0 if layer.bias is None else np.asarray(layer.bias))


def short_conv(conv, x):
    w = np.asarray(conv.weight)  # [4, channels], the last row meets the token itself
    padded = np.concatenate([np.zeros((len(w) - 1, x.shape[1])), x])
    return sum(w[j] * padded[j : j + len(x)] for j in range(len(w)))  # E07.2


def literal_read(layer, x, rule="sign in G", lam=None):
    """o [T, h, d] of E07.1 on x [T, D]. Sections 11 and 12 need negative gates, and other rules and lam."""
    T, heads, d = len(x), layer.heads, layer.norm.shape[0]
    q, k, v = silu(short_conv(layer.conv, linear_map(layer.project, x))).reshape(T, 3, heads, d).swapaxes(0, 1)
    q, k = unit(q), unit(k)
    beta, z = sigmoid(linear_map(layer.input_gate, x)), linear_map(layer.forget_gate, x)
    gamma = np.tanh(z / 2) if layer.negative_decay else sigmoid(z)
    gamma = gamma * (1 - (1 - 0.9975) * beta**2)
    lam = layer.lam_min + np.log1p(np.exp(np.asarray(layer.ridge))) if lam is None else np.full((heads, d), lam)
    G, H, o = np.zeros((heads, d, d)), np.zeros((heads, d, d)), np.empty((T, heads, d))
    for t in range(T):
        for n in range(heads):
            keep, write = gamma[t, n], beta[t, n] * k[t, n]
            G[n] = keep * G[n] + np.outer(write, v[t, n])
            H[n] = (keep if rule == "sign in both" else abs(keep)) * H[n] + np.outer(write, k[t, n])
            A = np.diag(lam[n]) + (0 if rule == "GLA" else H[n])
            o[t, n] = G[n].T @ np.linalg.solve(A, q[t, n])
    return o


def literal_mesa(layer, x, *which):
    return linear_map(layer.out, rms_norm(layer.norm, literal_read(layer, x, *which)).reshape(len(x), -1))


# %% [markdown]
# The Equinox module `nn.Mesa` is this layer for batches, with conjugate gradients in place of the direct solve. To compare, all its parameters are set at random, so that none sits at a start value that hides a mistake.


# %%
def filled(build):
    """What build() makes, with all parameters random."""
    random = np.random.default_rng(7)
    return jax.tree.map(lambda x: 0.5 * random.normal(size=x.shape), eqx.filter_eval_shape(build))


DIM, T = 12, 24
layer = filled(lambda: nn.Mesa(DIM, heads=2, head_dim=5, solver=exact, key=key_model))
x = np.random.default_rng(7).normal(size=(T, DIM))
run = eqx.filter_jit(lambda layer, x: layer(x)[0])
gap = off(run(layer, x[None])[0], literal_mesa(layer, x))
print(f"nn.Mesa and the literal layer differ by {gap:.0e}")
{
    name: list(a.shape)
    for name, a in zip(
        ("W_qkv", "conv", "w_beta", "b_beta", "w_gamma", "b_gamma", "w", "W_o", "z"),
        jax.tree.leaves(layer),
        strict=True,
    )
}

# %% tags=["nbval-check-output"]
claim(
    "C07.1",
    "the Equinox layer nn.Mesa is the layer written out in NumPy",
    source="E07.1; MesaNet App. E and G.5; 24 tokens, 2 heads, all parameters random",
    error=gap,
    tol=1e-12,
)

# %% [markdown]
# Sections 2 to 6 go through E07.1 from left to right. The question is always the same: what breaks without this?
#
# ## 2 · The short convolution: a key that knows the token before
#
# $$ \mathrm{conv}_4(u)_t = w_0\odot u_t + w_1\odot u_{t-1} + w_2\odot u_{t-2} + w_3\odot u_{t-3}, \tag{E07.2} $$
#
# channel by channel, with zeros before the first token.
#
# A memory layer stores the pair $(k_t, v_t)$ of *one* position. To continue a text one wants to store that $b$ came after $a$. These two stand at different positions. If $k_t$ and $v_t$ are both functions of $x_t$ alone, the layer can only store facts about single tokens.
# The convolution repairs this: let the key look one token back, $w_1 = 1$, and the value at the token itself, $w_0 = 1$. Then the pair is (token before, token), and a query made of the present token reads *what followed it the last time*.
#
# Set such weights by hand: 16 tokens as unit vectors, all maps the identity. Read 16 tokens in random order, then the same again.


# %%
def by_hand(key_looks_back):
    """A Mesa layer of width 16 whose maps do nothing and whose keys look so many tokens back."""
    conv = np.zeros((4, 3, 16))
    for part, back in zip((0, 1, 2), (0, key_looks_back, 0), strict=True):  # q, k, v
        conv[-1 - back, part] = 1
    where = lambda m: (m.project.weight, m.conv.weight, m.out.weight, m.norm.weight, m.forget_gate.bias)  # noqa: E731
    return eqx.tree_at(
        where, blank, (np.tile(np.eye(16), 3), conv.reshape(4, 48), np.eye(16), np.ones(16), np.full(1, 4.0))
    )


blank = filled(lambda: nn.Mesa(16, heads=1, head_dim=16, key=key_model))
order = np.random.default_rng(7).permutation(16)
text = np.concatenate([order, order])
says = {back: literal_mesa(by_hand(back), np.eye(16)[text]).argmax(-1) for back in (0, 1)}
right = {back: int((says[back][16:-1] == text[17:]).sum()) for back in says}  # in the second reading, next token
print(f"next token named: {right[1]} of 15 with a key that looks back, {right[0]} of 15 without")
print(f"price: 3 tokens of 3d channels are {3 * 3 * 128 / (2 * 128**2):.1%} of the state 2d² of a head with d = 128")

# %% tags=["nbval-check-output"]
claim(
    "C07.2",
    "one Mesa layer names the successor of every repeated token if its keys look one token back, and of none without",
    source="E07.2 with weights set by hand, 16 tokens read twice; misses with, hits without",
    error=(15 - right[1]) + right[0],
    tol=0,
)

# %% [markdown]
# ## 3 · SiLU: cheap, and it costs a step
#
# The paper's reading gives no reason for the SiLU after the convolution. What it does to the solver can be computed.
# Let the entries of $u$ be independent and standard normal. With $m = E[\mathrm{SiLU}(u)]$ and $s = E[\mathrm{SiLU}(u)^2]$, two independent keys of width $d$ have inner product about $dm^2$ and squared length about $ds$. After normalisation their cosine is about
#
# $$ c = \frac{m^2}{s}, \qquad E[k k^\top] \approx \frac{1-c}{d}\, I + \frac{c}{d}\,\mathbf 1\mathbf 1^\top . \tag{E07.3} $$
#
# (All diagonal entries are $1/d$, since the trace is 1; all others are $c/d$, since summed over pairs of entries they give the mean cosine.)
# The vector $\mathbf 1$ is an eigenvector with eigenvalue $c + (1-c)/d$. So $n$ such keys put one eigenvalue of about $n\,(c + \frac{1-c}d)$ above a crowd around $n\frac{1-c}{d}$. SiLU is nearly an absence of negative numbers, so all keys lean to one side.

# %%
nodes, mass = np.polynomial.hermite_e.hermegauss(80)
mean = lambda f: (mass * f(nodes)).sum() / mass.sum()  # noqa: E731 - over a standard normal
c = mean(silu) ** 2 / mean(lambda u: silu(u) ** 2)

d, n = 128, 1000
leaning = unit(silu(np.random.default_rng(7).normal(size=(n, d))))
top, *rest = np.linalg.eigvalsh(leaning.T @ leaning)[::-1]
predicted = n * (c + (1 - c) / d)  # E07.3
print(f"mean cosine {c:.3f} predicted; largest eigenvalue {top:.0f}, predicted {predicted:.0f}; next {rest[0]:.0f}")

# %% tags=["nbval-check-output"]
claim(
    "C07.3",
    "SiLU gives random keys a mean cosine of 0.12 and plants one large eigenvalue where E07.3 says",
    source="E07.3, quadrature with 80 nodes; 1000 keys of width 128; the larger of both relative errors",
    error=max(abs(c / 0.12 - 1), abs(top / predicted - 1)),
    tol=0.04,
)

# %% [markdown]
# One large eigenvalue is about the cheapest fault a spectrum can have: CG spends one step on it ([notebook 04](04-conjugate-gradient.ipynb), E04.20). We count in the next section.
#
# ## 4 · Unit length: a key may not be loud
#
# Suppose a key had length $\ell$, $k = \ell\,\hat k$ with $\lVert\hat k\rVert=1$. Its term of the loss is
#
# $$ \tfrac12\beta\,\bigl\lVert v - \Phi\,\ell\hat k\bigr\rVert^2 = \tfrac12\,(\beta\ell^2)\,\bigl\lVert \tfrac{v}{\ell} - \Phi\hat k\bigr\rVert^2 . \tag{E07.4} $$
#
# So a long key is a unit key with a **hidden input gate** $\ell^2$, and a value that is $\ell$ times smaller. The gate $\beta\le1$ no longer bounds anything. What it bounds for unit keys is the spectrum: the trace of $kk^\top$ is $\lVert k\rVert^2 = 1$, so
#
# $$ \operatorname{tr} H_t = \sum_{i\le t}\zeta_{ti}\beta_i = n_t, \qquad
#   \kappa \le \frac{n_t + \max\lambda}{\min\lambda}, \tag{E07.5} $$
#
# since no eigenvalue of $H$ exceeds its trace, and none is negative. With keys of length $\ell$ it is $\ell^2 n_t$. The scale of the keys now decides what $\lambda$ means: for $\ell\to0$ the ridge wins and the read becomes that of linear attention (section 11), for large $\ell$ it vanishes and the solver has to fight for it.
# Real keys, as they come out of an encoder, and the same keys at length 1:

# %%
LAM, d = 0.25, 32
layers = [minilm_qkv("plain", number) for number in (1, 4)]
raw_q, raw_k, raw_v = (
    np.concatenate([getattr(a, name).swapaxes(0, 1) for a in layers]).astype(float) for name in "qkv"
)
u = np.random.default_rng(7).normal(size=(8, 512, d))
KEYS = {
    "real, as they come": raw_k,
    "real, ten times shorter": raw_k / 10,
    "real, length 1": unit(raw_k),
    "normal, length 1": unit(u),
    "SiLU(normal), length 1": unit(silu(u)),
}


@jax.jit
@jax.vmap
def residuals(A, q):
    return cg_trace(lambda p: A @ p, q, max_steps=300).recurred


def memory(k):
    return k.swapaxes(1, 2) @ k + LAM * np.eye(d)  # beta 1, no forgetting


A = np.concatenate([memory(k) for k in KEYS.values()])
taken = steps_to(residuals(A, np.tile(unit(raw_q)[:, -1], (len(KEYS), 1))), 1e-4).reshape(len(KEYS), 8)
kappa = dict(zip(KEYS, np.linalg.cond(A).reshape(len(KEYS), 8), strict=True))
print("keys                      length          condition number  CG steps to 1e-4")
for (name, k), number in zip(kappa.items(), taken, strict=True):
    long = np.linalg.norm(KEYS[name], axis=-1)
    print(
        f"{name:24} {long.min():5.2f} to {long.max():5.2f} {k.min():7.0f} to {k.max():6.0f}   {number.min():4} to {number.max():3}"
    )

length = np.linalg.norm(raw_k, axis=-1, keepdims=True)
phi = np.random.default_rng(7).normal(size=(d, d))
loud = (0.5 * (raw_v - raw_k @ phi) ** 2).sum()
hidden = (0.5 * length**2 * (raw_v / length - unit(raw_k) @ phi) ** 2).sum()  # E07.4
highest = [kappa[name].max() for name in ("real, as they come", "real, length 1")]
print(f"E07.5 promises {(512 + LAM) / LAM:.0f} for unit keys; the highest is {highest[1]:.0f}")

# %% tags=["nbval-check-output"]
claim(
    "C07.4",
    "a key of length l is a unit key with weight beta l^2 and value v / l: the loss is the same",
    source="E07.4, eight real heads of 512 keys as they come, at a random map; relative",
    error=abs(loud / hidden - 1),
    tol=1e-14,
)
claim(
    "C07.5",
    "length 1 brings the highest condition number of eight real heads from 479 down to 294, and CG from 23 steps to 21",
    source="512 tokens, lam 0.25, beta 1, no forgetting, float64; largest distance of the four numbers",
    error=max(abs(highest[0] - 479), abs(highest[1] - 294), abs(taken[0].max() - 23), abs(taken[2].max() - 21)),
    tol=1,  # a residual that meets the tolerance on one processor misses it on another, and CG takes one more step
)

# %% [markdown]
# Read the table without hope for a miracle. On these heads unit length does little for the solver [C07.5]: without it the smallest eigenvalue grows along with the largest. What it gives is the *promise* E07.5, which holds for any keys that training may find, and a ridge that means the same to every token. A single pair with a key of length $\ell$ reads back $v/(1+\lambda/\ell^2)$ by E07.4 and [notebook 00](00-start-here.ipynb), E00.1: with $\lambda = 0.25$ that is 99.9 % at the largest length above, and 21 % at the smallest.
# SiLU costs a step or two, as the last section predicted.
#
# > **Takeaway.** Unit keys make $\beta$ the only weight of a pair, and bound the spectrum by a count.
#
# ## 5 · Gates, and the factor that punishes repetition
#
# $n_t$ can still grow with the text. The worst case is one token again and again: $k_i = k$, $\beta_i = \beta$, and a forget gate that has learned to keep everything, $\sigma(\cdot)\to1$. Then $H_t = n_t\,kk^\top$ with
#
# $$ n_t = \gamma n_{t-1} + \beta = \beta\,\frac{1-\gamma^t}{1-\gamma}, \qquad \gamma = 1 - c\beta^2, \quad c = 1-0.9975 = \tfrac1{400}. \tag{E07.6} $$
#
# Two bounds: $\gamma^t\ge 0$ gives $n_t \le \beta/(c\beta^2) = 400/\beta$; and $n_t\le\beta t$, since nothing is ever multiplied by more than 1. The product of the two is $400\,t$ whatever $\beta$ is, so the smaller of them is at most its root:
#
# $$ n_t \le \min\Bigl(\frac{400}{\beta},\ \beta t\Bigr) \le 20\sqrt t . \tag{E07.7} $$
#
# At $\beta = 1$ the memory saturates at 400 tokens. A timid $\beta$ escapes the correction, but then it also writes little. ([Notebook 04](04-conjugate-gradient.ipynb), C04.13, has the exact constant: 12.8 instead of 20.)

# %%
TOKENS = 2048  # the paper's training length
beta = np.geomspace(0.01, 1, 400)
n_by_beta = np.zeros_like(beta)
for _ in range(TOKENS):
    n_by_beta = (1 - beta**2 / 400) * n_by_beta + beta  # E07.6, as the layer runs it
closed = (1 - (1 - beta**2 / 400) ** TOKENS) * 400 / beta
worst = int(n_by_beta.argmax())
print("beta                     0.01   0.1   0.3     1")
print("tokens held, corrected ", *(f"{np.interp(b, beta, n_by_beta):5.0f}" for b in (0.01, 0.1, 0.3, 1)))
print("not corrected          ", *(f"{b * TOKENS:5.0f}" for b in (0.01, 0.1, 0.3, 1)))
print(
    f"worst: beta {beta[worst]:.2f} holds {n_by_beta[worst]:.0f}; condition number {n_by_beta[worst] / LAM + 1:.0f}, not corrected {TOKENS / LAM + 1:.0f}"
)

# %% tags=["nbval-check-output"]
claim(
    "C07.6",
    "with the correction a key repeated 2048 times counts for at most 905 tokens, whatever beta is",
    source="E07.6 and E07.7; largest over 400 values of beta, in units of 20 sqrt(2048)",
    error=max(n_by_beta.max() / (20 * np.sqrt(TOKENS)), off(closed, n_by_beta)),
    tol=1,
)

# %% [markdown]
# **Exercise 07.1 ★★ Which power?** The correction has $\beta^2$. Write `factor(beta)`, which multiplies $\gamma$ instead, so that a repeated key never counts for more than 400 tokens, for *any* $\beta$ in $(0, 1]$ and any length of text, and no more forgetting than this needs.
#
# <details><summary>Hint</summary>
#
# In E07.6 the limit is $\beta/(1-\gamma)$. Set it to 400.
#
# </details>


# %%
def factor(beta):
    return ...


def test_factor(answer):
    for b in (1.0, 0.5, 0.05, 0.001):
        limit = b / (1 - answer(b))
        if limit > 400 * (1 + 1e-9):
            return f"at beta = {b:g} the count goes to {limit:.0f}"
        if limit < 400 * (1 - 1e-9):
            return f"at beta = {b:g} the count stays below {limit:.0f}: you forget more than is needed"


check("07.1", factor, test_factor)


# %% jupyter={"source_hidden": true} tags=["solution"]
def factor_solution(beta):
    return 1 - beta / 400


check("07.1", factor_solution, test_factor)

# %% [markdown]
# The first power would do. The paper has the second; the reading does not say why. (With $\beta^2$ a token that writes little also erases little: a fraction $c\beta$ of its own weight.)
#
# ## 6 · Lambda, and what the norms make irrelevant
#
# **Lambda.** $\lambda = 0.25 + \mathrm{softplus}(z)$ with $\mathrm{softplus}(z) = \log(1+e^z)$, and $\lambda = 1$ at the start (G.5). The floor is what makes E07.5 a bound: with $n_t\le 905$ no condition number exceeds $(905+\max\lambda)/0.25$. Softplus alone would let $\lambda$, and the bound with it, run away. The start value solves $\log(1+e^z) = 0.75$: $z = \log(e^{0.75}-1)$. There the slope is $\sigma(z) = 1 - e^{-0.75}$.
#
# **RMSNorm per head.** For any number $a > 0$
#
# $$ \mathrm{RMSNorm}(a\,o) = w\odot\frac{a\,o}{\sqrt{a^2\,\overline{o^2} + 10^{-6}}} \approx \mathrm{RMSNorm}(o) \quad\text{while } a^2\,\overline{o^2} \gg 10^{-6}. \tag{E07.8} $$
#
# Now $o = G^\top(H+\Lambda)^{-1}q$ is linear in $q$ and in the values. So after this norm:
#
# - the length of $q$ is irrelevant. Normalising the *query* changes nothing but rounding. (It keeps CG's numbers in range; CG itself has no scale.)
# - a common factor of all values is irrelevant.
# - the shrinkage by a large $\lambda$ is irrelevant, as long as the $10^{-6}$ is: if $o\approx G^\top q/\lambda$, then the $\lambda$ drops out. Keep this for section 11, where $\lambda = 50$.
#
# Without the norm the size of a read would tell how full the memory is: a first token reads $v\,\beta/(\beta+\lambda)$, a thousandth nearly $v$.


# %%
at_start = eqx.filter_jit(lambda: nn.Mesa(DIM, heads=2, head_dim=5, key=key_model).lam)()
lowest = eqx.tree_at(lambda m: m.ridge, layer, np.full_like(layer.ridge, -1000.0)).lam
z = np.log(np.expm1(0.75))
print(
    f"z at the start {z:.4f}, slope of lambda there {sigmoid(z):.4f}; lambda {at_start[0, 0]:.4f}, at z = -1000 {lowest[0, 0]:.4f}"
)

o = literal_read(layer, x)
o = o / np.sqrt((o**2).mean(-1, keepdims=True))  # entries of size 1
moved = {a: off(rms_norm(layer.norm, a * o), rms_norm(layer.norm, o)) for a in (100, 0.1, 0.02, 0.002)}
print("normalised reads move by", ", ".join(f"{m:.0e} (o times {a:g})" for a, m in moved.items()))

# %% tags=["nbval-check-output"]
claim(
    "C07.7",
    "lambda starts at 1 and cannot fall below 0.25",
    source="nn.Mesa at its start, and with z = -1000; MesaNet App. G.5",
    error=max(float(jnp.abs(at_start - 1).max()), float(jnp.abs(lowest - 0.25).max())),
    tol=1e-14,
)
claim(
    "C07.8",
    "a read with entries of size 1 may become 50 times shorter: after the norm of its head it has changed by 0.125 %",
    source="E07.8, 48 reads of the layer of section 1, scaled to size 1; relative distance from 0.125 %",
    error=abs(moved[0.02] / 0.00125 - 1),
    tol=0.01,
)

# %% [markdown]
# Shorter still, and the read comes near the $10^{-3}$ whose square stands under the root: 500 times shorter it is damped by more than a tenth. (The reading gives no value for this number; $10^{-6}$ is ours.)
#
# ## 7 · The block and the model
#
# A block adds twice to the stream, and norms only what goes *into* its two parts (pre-norm, App. E):
#
# $$ \begin{aligned}
# x &\leftarrow x + \mathrm{mixer}(\mathrm{RMSNorm}(x)), \\
# x &\leftarrow x + W_\downarrow\bigl(\mathrm{SiLU}(W_g u)\odot W_\uparrow u\bigr), \quad u = \mathrm{RMSNorm}(x).
# \end{aligned} \tag{E07.9} $$
#
# **Why before and not after?** Let each of $L$ parts $f$ give, at the start of training, an output of variance $s$ per entry for an input of variance 1, independent of what came before.
#
# - *Before*: the variance of the stream after $l$ parts is $1 + sl$, a straight line. Part $l$ adds something of variance $s$ to that, so the relative size of a small change can grow by a factor of about $1 + a/(1+sl)$ only, with some constant $a$. The product of these factors over $L$ parts is about $(1+sL)^{a/s}$: a power of the depth.
# - *After*, $x\leftarrow\mathrm{RMSNorm}(x+f(x))$: the stream has variance 1 for ever, and every part weighs as much as the first. The same factor, $L$ times: exponential growth.
#
# For the SwiGLU part $s$ is known. Gate and up are independent normal numbers of variance 1, and the last map keeps the variance: $s = E[\mathrm{SiLU}(g)^2]\,E[u^2] = E[\mathrm{SiLU}(g)^2]$, the $s$ of E07.3.


# %%
def stream(depth, before, D=64):
    """Stacked random SwiGLU parts: size of the stream at the end, and how a small change at the start has grown."""
    random = np.random.default_rng(7)
    rms = lambda x: np.sqrt((x**2).mean(-1, keepdims=True))  # noqa: E731
    x = random.normal(size=(32, D))
    x /= rms(x)
    y = x + 1e-7 * random.normal(size=x.shape)
    first = off(y / rms(y), x)
    for _ in range(depth):
        gate, up, down = (random.normal(size=size) / size[0] ** 0.5 for size in ((D, 2 * D), (D, 2 * D), (2 * D, D)))
        part = lambda u: (silu(u @ gate) * (u @ up)) @ down  # noqa: B023, E731
        x, y = (u + part(u / rms(u)) if before else (u + part(u)) / rms(u + part(u)) for u in (x, y))
    return np.sqrt((x**2).mean()), off(y / rms(y), x / rms(x)) / first


s = mean(lambda u: silu(u) ** 2)
print(f"s = {s:.3f}.   parts  stream before  sqrt(1 + sL)   growth of a change: before    after")
rows = {depth: (stream(depth, True), stream(depth, False)) for depth in (7, 14, 28, 56)}
for depth, ((size, mild), (_, wild)) in rows.items():
    print(f"{depth:18} {size:14.2f} {np.sqrt(1 + s * depth):13.2f} {mild:28.1f} {wild:8.1f}")

# %% tags=["nbval-check-output"]
claim(
    "C07.9",
    "with the norm before each part the stream grows like sqrt(1 + sL)",
    source="E07.9, 7, 14, 28 and 56 random SwiGLU parts of width 64, s = 0.356; largest relative error",
    error=max(abs(size / np.sqrt(1 + s * depth) - 1) for depth, ((size, _), _) in rows.items()),
    tol=0.05,
)
claim(
    "C07.10",
    "twice the depth, 28 to 56 parts: a small change grows 1.5 times more with the norm before, 27 times more with it after",
    source="E07.9 and the same with the norm after; largest relative distance of both factors",
    error=max(abs(rows[56][0][1] / rows[28][0][1] / 1.5 - 1), abs(rows[56][1][1] / rows[28][1][1] / 27 - 1)),
    tol=0.2,
)

# %% [markdown]
# **Why gated?** A SwiGLU can multiply. Since $\sigma(z)+\sigma(-z) = 1$,
#
# $$ \mathrm{SiLU}(z) - \mathrm{SiLU}(-z) = z\,\sigma(z) + z\,\sigma(-z) = z . \tag{E07.10} $$
#
# Exercise 07.2 makes a product out of it. An MLP with ReLUs is piecewise linear and cannot.
#
# **Tied embeddings.** The model is: look up row $e_w$ for token $w$, run the blocks, norm, and score token $w$ with the inner product of $e_w$ again. One matrix of $50\,257\times D$ instead of two: section 9 counts what that saves.
#
# **Hawk** (arXiv 2402.19427) is the other recurrent layer of the paper. Its memory is a vector, no pairs: with $u = \mathrm{conv}_4(W_2x)$,
#
# $$ \begin{aligned}
# r_t &= \sigma(W_a u_t + b_a),\quad i_t = \sigma(W_x u_t+b_x),\quad a_t = \sigma(\mu)^{8 r_t}, \\
# s_t &= a_t\odot s_{t-1} + \sqrt{1-a_t^2}\odot i_t\odot u_t, \quad y_t = W_o\bigl(\mathrm{GeLU}(W_1x_t)\odot s_t\bigr).
# \end{aligned} \tag{E07.11} $$
#
# **Hawk-Mesa** alternates blocks with a Hawk and blocks with a Mesa layer. The reading says that they alternate, not which comes first; `nn.hawk_mesa` begins with Hawk. The whole model, literally:


# %%
def literal_hawk(layer, x):
    u = short_conv(layer.conv, linear_map(layer.enter, x))
    r, i = sigmoid(linear_map(layer.recurrence_gate, u)), sigmoid(linear_map(layer.input_gate, u))
    a = sigmoid(np.asarray(layer.retention)) ** (8 * r)
    s, state = np.empty_like(u), np.zeros(u.shape[1])
    for t in range(len(u)):
        state = a[t] * state + np.sqrt(1 - a[t] ** 2) * i[t] * u[t]  # E07.11
        s[t] = state
    z = linear_map(layer.gate, x)
    gelu = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    return linear_map(layer.out, gelu * s)


def literal_model(lm, tokens, mesa=literal_mesa):
    embedding = np.asarray(lm.embedding)
    x = embedding[tokens]
    for block in lm.blocks:
        mixer = literal_hawk if isinstance(block.mixer, nn.Hawk) else mesa
        x = x + mixer(block.mixer, rms_norm(block.mixer_norm, x))  # E07.9
        u, mlp = rms_norm(block.mlp_norm, x), block.mlp
        x = x + linear_map(mlp.down, silu(linear_map(mlp.gate, u)) * linear_map(mlp.up, u))
    return rms_norm(lm.norm, x) @ embedding.T


VOCAB = 11
build = lambda: nn.hawk_mesa(VOCAB, DIM, heads=2, depth=2, mlp_width=20, head_dim=5, solver=exact, key=key_model)  # noqa: E731
lm = filled(build)
tokens = np.random.default_rng(7).integers(0, VOCAB, T)
prefill = np.asarray(eqx.filter_jit(lambda lm, t: lm(t)[0])(lm, tokens[None])[0])
gap = off(prefill, literal_model(lm, tokens))
print(inspect.getsource(nn.Block.__call__), f"\nHawk-Mesa and the literal model differ by {gap:.0e}")

# %% tags=["nbval-check-output"]
claim(
    "C07.11",
    "a Hawk-Mesa language model in Equinox gives the logits of the model written out in NumPy",
    source="E07.1, E07.9 and E07.11, 24 tokens, one Hawk and one Mesa block, all parameters random",
    error=gap,
    tol=1e-12,
)

# %% [markdown]
# **Exercise 07.2 ★★ A product.** Give `weights()`: arrays gate `[2, m]`, up `[2, m]` and down `[m, 1]` of a SwiGLU that maps $(a, b)$ to $ab$, exactly.
#
# <details><summary>Hint</summary>
#
# E07.10 times $b$. Two units are enough.
#
# </details>


# %%
def weights():
    return ...


def test_weights(answer):
    gate, up, down = (np.asarray(w, float) for w in answer())
    for pair in np.array([[2.0, 3.0], [-1.5, 0.25], [0.0, 4.0], [30.0, -7.0]]):
        made = ((silu(pair @ gate) * (pair @ up)) @ down).item()
        if abs(made - pair.prod()) > 1e-9:
            return f"for {pair.tolist()} you make {made:.3g}, not {pair.prod():.3g}"


check("07.2", weights, test_weights)


# %% jupyter={"source_hidden": true} tags=["solution"]
def weights_solution():  # E07.10
    return [[1, -1], [0, 0]], [[0, 0], [1, -1]], [[1], [1]]


check("07.2", weights_solution, test_weights)

# %% [markdown]
# (The second unit has $\mathrm{SiLU}(-a)\cdot(-b)$, so both enter with a plus.)
#
# ## 8 · Decoding with a state that does not grow
#
# Reading a prompt at once (*prefill*) and one token after the other (*decoding*) must give the same logits. The proof is short. Call a map from sequences to sequences *finite-state* if there are functions $f$, $g$ with
#
# $$ y_t = f(x_t, s_{t-1}), \qquad s_t = g(x_t, s_{t-1}), \qquad s_0 \text{ fixed}, \tag{E07.12} $$
#
# and $s$ of a fixed size. Then the state after a prefix holds all that the rest needs: decoding continues where prefill stopped.
#
# 1. Maps of single tokens (projections, gates, norms, MLP, embedding) are finite-state with no state at all.
# 2. The convolution: $s_t$ is the **tail** $(u_t, u_{t-1}, u_{t-2})$.
# 3. The rules: $(G_t, H_t)$ for Mesa, the vector $s_t$ for Hawk. The read at $t$ uses nothing else of the past.
# 4. If two maps are finite-state, so is one after the other, and so is $x + f(x)$: keep both states. By induction over the layers so is the model. $\square$
#
# Item 2 is the one that implementations forget. We decode token by token, once properly, and once with the tails wiped at token 12.


# %%
@eqx.filter_jit
def decode(lm, tokens, keep):
    """Logits, one token after the other; keep [T] multiplies the tails of the convolutions before each token."""

    def step(state, now):
        token, keep = now
        state = tuple(s._replace(tail=keep * s.tail) for s in state)
        logits, state = lm(token[None, None], state)
        return state, logits[0, 0]

    _, start = lm(tokens[None, :0])
    return jax.lax.scan(step, start, (tokens, keep))[1]


wiped = np.ones(T)
wiped[12] = 0
one_by_one, forgetful = decode(lm, tokens, np.ones(T)), decode(lm, tokens, wiped)
apart = np.linalg.norm(forgetful - prefill, axis=-1) / np.linalg.norm(prefill, axis=-1)
print(f"decoding and prefill differ by {off(one_by_one, prefill):.0e}")
print(
    "tail wiped before token 12, relative error of the logits:",
    *(f"{t}: {apart[t]:.0%}" for t in (11, 12, 14, 15, 18, 23)),
)


def state_size(lm, length):
    after = eqx.filter_eval_shape(lambda lm: lm(jnp.zeros((1, length), int))[1], lm)
    return sum(leaf.size for leaf in jax.tree.leaves(after))


# %% tags=["nbval-check-output"]
claim(
    "C07.12",
    "decoding token by token gives the logits of prefill",
    source="E07.12, Hawk-Mesa model, 24 tokens",
    error=off(one_by_one, prefill),
    tol=1e-12,
)
claim(
    "C07.13",
    "the state has as many numbers after 1 token as after 1000",
    source="E07.12, all leaves of the state of the Hawk-Mesa model",
    error=abs(state_size(lm, 1) - state_size(lm, 1000)),
    tol=0,
)
claim(
    "C07.14",
    "a decoder that forgets the tail of the convolution is wrong for more than the 3 tokens that the tail spans",
    source="tails wiped before token 12; 1 % over the relative error of the logits at token 23",
    error=0.01 / apart[-1],
    tol=1,
)

# %% [markdown]
# **Exercise 07.3 ★ Cut anywhere.** A server gets its prompt in pieces. Give `state_numbers(heads, d, width)`: how many numbers must it keep, for one sequence, between two pieces, for one Mesa layer with this many heads of width $d$ plus one Hawk layer of this many channels?
#
# <details><summary>Hint</summary>
#
# Items 2 and 3. The convolution of a Mesa layer runs over queries, keys and values of all heads.
#
# </details>


# %%
def state_numbers(heads, d, width):
    return ...


def test_state_numbers(answer):
    for heads, d, width in ((2, 5, 12), (3, 4, 7)):
        sizes = dict(mlp_width=4, head_dim=d, width=width, key=key_model)
        kept = state_size(eqx.filter_eval_shape(lambda n, to: nn.hawk_mesa(5, 6, n, 2, **to), heads, sizes), 3)
        if answer(heads, d, width) != kept:
            return f"for {heads} heads of width {d} and {width} channels it keeps {kept}, you say {answer(heads, d, width)}"


check("07.3", state_numbers, test_state_numbers)


# %% jupyter={"source_hidden": true} tags=["solution"]
def state_numbers_solution(heads, d, width):
    return heads * (2 * d * d + 3 * 3 * d) + width + 3 * width


check("07.3", state_numbers_solution, test_state_numbers)

# %% [markdown]
# ## 9 · Three sizes
#
# The paper's models have 14 blocks, 6 heads, $D = 768$; 28 blocks, 8 heads, $D = 1024$; 28 blocks, 12 heads, $D=1536$. It calls them 140M, 440M and 940M in its architecture table, and 145M, 400M and 1B in its results. Key width $d = 128$, vocabulary 50 257. **The reading does not say how wide the MLP is.** So let its width be $mD$, and count:
#
# $$ \begin{aligned}
# N &= \underbrace{50\,257\,D + D}_{\text{embedding, last norm}} + L\,N_{\text{block}}, \\
# N_{\text{block}} &= \underbrace{4D^2}_{q,k,v,o} + \underbrace{12D}_{\text{conv}} + \underbrace{2h(D+1)}_{\text{gates}} + \underbrace{D + d}_{z,\ \text{head norm}} + \underbrace{3mD^2}_{\text{SwiGLU}} + \underbrace{2D}_{\text{norms}},
# \end{aligned} \tag{E07.13} $$
#
# where $hd = D$ was used. $N$ is a straight line in $m$, so each label can be turned into the $m$ that it asks for.


# %%
def by_formula(size, m):
    """E07.13."""
    D, h = size.dim, size.heads
    return 50_257 * D + D + size.depth * (4 * D**2 + 12 * D + 2 * h * (D + 1) + D + 128 + 3 * m * D**2 + 2 * D)


def of_module(size, m):
    build = lambda key: nn.mesanet(nn.VOCAB, size.dim, size.heads, size.depth, mlp_width=m * size.dim, key=key)  # noqa: E731
    return nn.parameters(eqx.filter_eval_shape(build, key_model))


LABELS = {"140M": (140e6, 145e6), "440M": (440e6, 400e6), "940M": (940e6, 1000e6)}
print("blocks heads   D     m = 8/3      m = 3      m = 4   asked for by the labels        tying saves")
for name, size in nn.SIZES.items():
    line = [by_formula(size, m) for m in (0, 8 / 3, 3, 4)]
    slope = 3 * size.depth * size.dim**2
    asks = " and ".join(f"m = {(label - line[0]) / slope:.2f}" for label in LABELS[name])
    print(
        f"{size.depth:6} {size.heads:5} {size.dim:5} {line[1] / 1e6:8.1f} M {line[2] / 1e6:8.1f} M {line[3] / 1e6:8.1f} M   {asks:22} {nn.VOCAB * size.dim / 1e6:12.1f} M"
    )
RATIOS = (2, 8 / 3, 3, 3.5, 4)
worst = {m: max(abs(by_formula(size, m) / LABELS[name][0] - 1) for name, size in nn.SIZES.items()) for m in RATIOS}
print("largest distance from 140M, 440M, 940M:", ", ".join(f"m = {m:.3g} {x:.1%}" for m, x in worst.items()))
counts = {name: of_module(size, 3) for name, size in nn.SIZES.items()}

# %% tags=["nbval-check-output"]
claim(
    "C07.15",
    "with MLPs 3 D wide the three sizes have 146 240 268, 434 006 912 and 937 664 256 parameters",
    source="modules nn.mesanet against E07.13 and theory.costs; number of parameters that differ",
    error=max(abs(counts[name] - by_formula(size, 3)) for name, size in nn.SIZES.items()),
    tol=0,
)
claim(
    "C07.16",
    "an MLP of 3 D comes within 5 % of 140M, 440M and 940M; of 2, 8/3, 3.5 and 4 D the best stays 7 % off or more",
    source="E07.13; the larger of: error of m = 3 over 5 %, 7 % over the least error of the others",
    error=max(worst[3] / 0.05, 0.07 / min(x for m, x in worst.items() if m != 3)),
    tol=1,
)

# %% [markdown]
# So $m = 3$ is our guess: 146M, 434M and 938M. It explains the 145M of the tables and the 440M and 940M of the text; no single width explains 400M or 1B, which are round numbers for the other two.
#
# ## 10 · What a token costs, against length
#
# Per head, with the recurrent form (MesaNet Table 5; [notebook 00](00-start-here.ipynb) counts the states). A multiplication or addition counts as one.
#
# | | numbers kept | FLOPs of token $t$ |
# |---|---|---|
# | softmax attention | $2td$ | $4td$: scores, and a weighted sum |
# | GLA | $d^2$ | $5d^2$: decay 1, write 2, read 2 |
# | delta rule with gate | $d^2$ | $7d^2$: and a read at the key |
# | Mesa, $J$ steps | $2d^2$ | $(2J+8)d^2$: as GLA for $G$; decay and write of $H$; $J$ products with $H$ |
#
# The caches cross at $t = d$. The FLOPs cross where
#
# $$ 4td > (2J+8)\,d^2 \iff t > \tfrac12 (J+4)\,d . \tag{E07.14} $$
#
# With $d = 128$ and the paper's 30 steps that is token 2176: **beyond the training length of 2048.** In training the *core* of attention is cheaper than that of Mesa at every single token. (Summed over a text of length $T$ attention pays half of its last token on average, so the sums cross at about twice the length.) With 9 steps, the mean that the paper reports for $\varepsilon = 10^{-4}$, it is token 832.

# %%
cache, solve = (lambda t: costs.attention(t, 128, 128)), (lambda steps: costs.mesa(128, 128, steps))
first = {J: next(t for t in range(1, 9999) if cache(t).flops > solve(J).flops) for J in (30, 9)}
whole = {J: sum(cache(t).flops for t in range(1, 2049)) / 2048 / solve(J).flops for J in (30, 9)}
print(f"attention costs more than 30 steps from token {first[30]} on, than 9 steps from token {first[9]} on")
print(f"over 2048 tokens attention costs {whole[30]:.2f} of Mesa with 30 steps, {whole[9]:.2f} of Mesa with 9")
print("       parameters    H, one sequence    30 steps / other products")
for name, size in nn.SIZES.items():
    extra = size.depth * size.heads * 128**2  # H, beside the G that GLA has as well
    dense = 2 * (by_formula(size, 3) - size.depth * 5 * size.dim)  # a multiplication and an addition for each weight
    solver = size.depth * size.heads * 30 * 2 * 128**2
    N = by_formula(size, 3)
    print(f"{name} {N / 1e6:11.1f} M {extra / 1e6:8.2f} M, {extra / N:.2%} {solver / dense:18.0%}")
share = [size.depth * size.heads * 128**2 / by_formula(size, 3) for size in nn.SIZES.values()]

# %% tags=["nbval-check-output"]
claim(
    "C07.17",
    "at width 128 attention's core needs more FLOPs than 30 solver steps from token 2177 on, than 9 from token 833",
    source="E07.14 and theory.costs; MesaNet Table 5",
    error=abs(first[30] - 2177) + abs(first[9] - 833),
    tol=0,
)
claim(
    "C07.18",
    "the second matrix of Mesa is below 1 % of the parameters, for one sequence: 0.94, 0.85 and 0.59 % in the three sizes",
    source="E07.13 with m = 3; numbers against numbers; largest distance in percent",
    error=float(np.abs(np.array(share) * 100 - [0.94, 0.85, 0.59]).max()),
    tol=0.005,
)

# %% [markdown]
# The paper says that the extra state is below 1 % of the memory (Sec. 3). That holds for one sequence, and if states have as many bits as parameters [C07.18]. Two sequences at a time, or float32 states beside bfloat16 parameters, and it is twice that.
# The last column is the other price: 30 steps add 18 to 28 % to the FLOPs of all other products. Drag the width and the steps.

# %%
LENGTHS = np.unique(np.geomspace(1, 200_000, 80).astype(int))


def draw_costs(width, steps):
    flat = np.ones(len(LENGTHS))
    rules = {
        "softmax attention": costs.attention(LENGTHS, width, width),
        "Mesa": costs.mesa(width, width, steps),
        "delta rule": costs.delta(width, width),
        "GLA": costs.linear(width, width),
    }
    state, flops = ({name: flat * cost[i] for name, cost in rules.items()} for i in (0, 1))
    equal = width, (steps + 4) * width / 2  # E07.14
    return pictures.costs(LENGTHS, state, flops, equal, width, steps)


explore(draw_costs, width=(32, 64, 128, 256), steps=(1, 5, 9, 15, 30), start={"width": 128, "steps": 30})

# %% [markdown]
# > **Takeaway.** Mesa's state is twice that of the delta rule and does not grow. Its solver is not cheap: only beyond the training length does the core of attention need more arithmetic than 30 steps.
#
# ## 11 · Parity, and why no positive gate can do it
#
# The task: after every bit, is the number of ones so far odd? One bit of memory would do. It has to *flip* at every one.
#
# **With gates in $[0, 1)$ the layer cannot, at any depth.** Feed it ones only: the answer alternates for ever. After three tokens the convolution sees the same four inputs every time, so $q, k, v, \beta, \gamma$ are constant, and
#
# $$ G_{t+1} - G_t = \gamma\,(G_t - G_{t-1}), \qquad H_{t+1}-H_t = \gamma\,(H_t-H_{t-1}), \tag{E07.15} $$
#
# by subtracting two lines of the recurrence. The differences shrink to nothing and never change their sign, so $G$, $H$ and with them $o$ and $y$ converge. The next block gets an input that converges. Its $k, v, \beta, \gamma$ converge too, the limit of its $\gamma$ is below 1, and a recurrence $G_t = \gamma_tG_{t-1}+w_t$ with convergent $\gamma_t$ and $w_t$ converges to $w/(1-\gamma)$. (All maps are continuous, a key of length 0 aside.) Block by block, the logits converge. A margin that converges to something other than 0 has one sign in the end, and is wrong on every second length. $\square$
#
# A model can still fit all lengths up to 40: the theorem is about long strings, and speaks through how small the differences are.
#
# **With $\gamma=-1$ the difference in E07.15 flips its sign every time and does not shrink.** MesaNet App. I therefore lets gates be negative, $\gamma_t\in(-1,1)$; `nn.Mesa` takes $\gamma_t = \tanh(z_t/2) = 2\sigma(z_t)-1$.
#
# **Exercise 07.4 ★★ Build the counter.** One number as memory, $g_t = \gamma(b_t)\,g_{t-1} + w(b_t)$ with $g_0 = 0$. Give `counter(bit)`, which returns $\gamma$ and $w$, so that $g_t$ *is* the parity, 0 or 1.
#
# <details><summary>Hint</summary>
#
# A zero must leave $g$ as it is. A one must turn 0 into 1 and 1 into 0.
#
# </details>


# %%
def counter(bit):
    return ...


def test_counter(answer):
    for word in ("0", "1", "11", "0110100", "1" * 33):
        g = 0.0
        for bit in map(int, word):
            gamma, write = answer(bit)
            g = gamma * g + write
        if abs(g - word.count("1") % 2) > 1e-9:
            return f"after {word} your memory holds {g:g}"


check("07.4", counter, test_counter)


# %% jupyter={"source_hidden": true} tags=["solution"]
def counter_solution(bit):
    return 1 - 2 * bit, bit


check("07.4", counter_solution, test_counter)

# %% [markdown]
# ### Where the sign goes
#
# Let $s_t$ be the product of the signs of $\gamma_1,\dots,\gamma_t$. Then $s_t\gamma_t = s_{t-1}\lvert\gamma_t\rvert$. Multiply the recurrence of $G$ by $s_t$:
#
# $$ s_tG_t = \lvert\gamma_t\rvert\,(s_{t-1}G_{t-1}) + \beta_t\,k_t\,(s_tv_t)^\top . \tag{E07.16} $$
#
# So $s_tG_t$ is the usual statistic with positive gates, of values turned by $s_t$, and $o_t = G_t^\top x = s_t\,(s_tG_t)^\top x$. No new kernel is needed for $G$: turn the values on the way in and the output on the way out.
#
# What about $H$? The reading leaves it open. Two answers:
#
# - **The sign in $G$ alone** (`nn.Mesa`): $H$ takes $\lvert\gamma_t\rvert$ and stays a sum of squares. The layer then solves a true ridge regression, with weights $\lvert\zeta_{ti}\rvert\beta_i$, of *turned* targets: by E07.16, $\min_\Phi\sum_i\lvert\zeta_{ti}\rvert\beta_i\lVert s_ts_iv_i-\Phi k_i\rVert^2 + \dots$ It does not reproduce the values that it was given: a pair from before an odd number of sign changes is to be read with the opposite sign, and the same pair stored on both sides of a change averages out.
# - **The sign in both** (Eq. 8 as printed): $H_t$ has weights $\zeta_{ti}\beta_i$ below zero. $\sum_i\zeta_{ti}\beta_i\lVert v_i-\Phi k_i\rVert^2$ then *rewards* errors on some pairs. It is no regression, $H_t+\Lambda$ may be indefinite, and CG has no ground to stand on.
#
# Is that why $\Lambda\ge49$? For unit keys and $\beta\le1$ no eigenvalue of $H_t$ is larger in size than
#
# $$ \lVert H_t\rVert \le \sum_{i\le t}\lvert\zeta_{ti}\rvert\,\beta_i \le t . \tag{E07.17} $$
#
# At the training length $t = 40$ this is below 49: **$H_t+\Lambda$ is positive definite whatever the gates do.** (The paper's reading gives the numbers 40, 49 and 50, and not this reason.) At 256 bits it is no longer safe. The worst case: one key again and again with $\gamma$ near 1, then one sign change.

# %%
signed = filled(lambda: nn.Mesa(DIM, heads=2, head_dim=5, negative_decay=True, solver=exact, key=key_model))
gap = off(run(signed, x[None])[0], literal_mesa(signed, x))
keep = 1 - 1 / 400  # E07.1 at beta = 1
smallest = [
    50 - keep * (1 - keep ** (t - 1)) * 400 + 1 for t in range(1, 257)
]  # 50 + H_t after t - 1 keys and a change
first = 1 + int(np.argmax(np.array(smallest) <= 0))
print(
    f"smallest possible eigenvalue of H + 50: {smallest[39]:.1f} at token 40, {smallest[255]:.0f} at token 256; negative from token {first} on"
)

# %% tags=["nbval-check-output"]
claim(
    "C07.19",
    "with negative gates nn.Mesa is the literal layer whose G takes the sign and whose H takes the size",
    source="E07.16, 24 tokens, 2 heads, all parameters random",
    error=gap,
    tol=1e-12,
)
claim(
    "C07.20",
    "with the sign in both and lam 50, H + Lambda is safe for 40 tokens and can be indefinite from token 56 on",
    source="E07.17; the same key with beta 1 and gamma near 1, then one sign change, with the correction of App. G.5",
    error=abs(first - 56) + (smallest[39] <= 0),
    tol=0,
)

# %% [markdown]
# ### Large Lambda is GLA
#
# For $\Lambda = \lambda I$ and $x = (H+\lambda I)^{-1}q$ we have $\lambda x - q = -Hx$. With the sign in $G$ alone, $H$ has eigenvalues $\mu\ge0$, and $H(H+\lambda I)^{-1}$ has $\mu/(\mu+\lambda)$. So
#
# $$ \bigl\lVert \lambda\,(H+\lambda I)^{-1}q - q\bigr\rVert \le \frac{\lVert H\rVert}{\lambda+\lVert H\rVert}\,\lVert q\rVert \le \frac{n_t}{\lambda}\,\lVert q\rVert . \tag{E07.18} $$
#
# For $\lambda\gg n_t$ the read is $G^\top q/\lambda$ with an error of the order $1/\lambda$: gated linear attention. The factor $1/\lambda$ goes in the head's RMSNorm (E07.8). So the variant that learns parity is close to a layer without a solver. The picture below the training measures how close.
#
# ## 12 · The experiment
#
# One block: $D=16$, 4 heads of width 4, an MLP of width 32. Strings of 40 random bits, the parity asked for at every position. $\lambda$ starts at 50 and cannot fall below 49, so $\kappa\le 90/50$ and 3 CG steps are plenty. The two models differ in one word, `negative_decay`.
# The loss of position $t$ has the weight $1/t$: short strings first, since nothing can be learned about bit 30 by a memory that still loses bit 5.
# Adam, 32 strings a step, float32, learning rate 0.02 with 20 steps of warmup and a cosine, gradients clipped to norm 1. `nn.fit` runs 25 steps in one call of one compiled program.

# %%
TRAIN, LONG, STEPS = 40, 256, 200
WEIGHT = jnp.asarray(1 / np.arange(1, TRAIN + 1) / (1 / np.arange(1, TRAIN + 1)).sum(), jnp.float32)


def loss(model, batch):
    bits, answers = batch
    logits, _ = model(bits)
    return optax.softmax_cross_entropy_with_integer_labels(logits, answers).mean(0) @ WEIGHT


def batches(step):
    return parity(jax.random.fold_in(key_train, step), 32, TRAIN)


rate = optax.warmup_cosine_decay_schedule(0.0, 0.02, 20, STEPS, 0.0)
optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


@eqx.filter_jit
def new_model(negative_decay):
    options = dict(head_dim=4, negative_decay=negative_decay, lam_min=49.0, lam_init=50.0, solver=CG(max_steps=3))
    return nn.cast(nn.mesanet(2, 16, 4, 1, mlp_width=32, key=key_model, **options), jnp.float32)


start = {name: new_model(negative) for name, negative in (("signed gates", True), ("positive gates", False))}
print(f"{nn.parameters(start['signed gates'])} parameters; before training the loss is that of a coin, {np.log(2):.4f}")
kept, fits = {name: {0: model} for name, model in start.items()}, {}
for name, model in start.items():
    print(name)
    fits[name] = nn.fit(model, loss, batches, optimiser, STEPS, block=25, watch=kept[name].__setitem__)

# %% [markdown]
# **Stopped and gone on.** The same run once more, with a checkpoint, and interrupted after 25 steps as by Ctrl-C. The same call then goes on from the file. All numbers must be those of the run that was never stopped, to the bit. (A batch depends on the number of the step and nothing else, so nothing has to be replayed.)


# %%
def interrupted(step, model):
    raise KeyboardInterrupt


with tempfile.TemporaryDirectory() as folder:
    again = dict(checkpoint=Path(folder) / "parity")
    try:
        nn.fit(start["signed gates"], loss, batches, optimiser, 100, block=25, watch=interrupted, **again)
    except KeyboardInterrupt:
        print("interrupted")
    resumed = nn.fit(start["signed gates"], loss, batches, optimiser, 100, block=25, **again)
    try:
        nn.fit(start["positive gates"], loss, batches, optimiser, 100, block=25, **again)
    except ValueError as error:
        print("with the other model:", str(error).replace(folder, "..."))

whole = kept["signed gates"][100], fits["signed gates"].losses[:100]
pairs = zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True)
differ = sum(int((np.asarray(a) != np.asarray(b)).sum()) for a, b in pairs)

# %% tags=["nbval-check-output"]
claim(
    "C07.21",
    "a run that was interrupted and resumed has the same parameters and losses, to the bit, as one that was not",
    source="nn.fit, 100 steps, stopped at 25; numbers that differ",
    error=differ,
    tol=0,
)

# %% [markdown]
# **The answer.** A hundred strings of 256 bits that nobody has seen, the parity asked for at every length.


# %%
@eqx.filter_jit
def margin(model, bits):
    """Logit of "odd" minus logit of "even" [B, T]."""
    logits, _ = model(bits)
    return logits[..., 1] - logits[..., 0]


bits, answers = parity(key_test, 100, LONG)
asked = jnp.concatenate([bits, jnp.ones((1, LONG), bits.dtype)])  # and a string of ones, for later
margins = {name: {step: np.asarray(margin(model, asked)) for step, model in of.items()} for name, of in kept.items()}
answers = np.asarray(answers)
share = {name: {step: ((m[:-1] > 0) == answers).mean(0) for step, m in of.items()} for name, of in margins.items()}
beyond = {name: of[STEPS][TRAIN:].mean() for name, of in share.items()}
for name, of in share.items():
    print(
        f"{name}: right up to length 40 {of[STEPS][:TRAIN].mean():.1%}, from 41 to 256 {beyond[name]:.1%}, at 256 {of[STEPS][-1]:.0%}"
    )

explore(
    lambda step: pictures.accuracy(np.arange(1, LONG + 1), {name: of[step] for name, of in share.items()}, TRAIN, step),
    step=tuple(share["signed gates"]),
    start={"step": STEPS},
)

# %% tags=["nbval-check-output"]
claim(
    "C07.22",
    "trained on 40 bits, the model with signed gates gives more than 90 % right answers at lengths 41 to 256",
    source="100 strings; share wrong",
    error=1 - beyond["signed gates"],
    tol=0.1,
)
claim(
    "C07.23",
    "the model with positive gates is at chance there, 50 %, to within 3 %",
    source="100 strings, lengths 41 to 256; distance from one half",
    error=abs(beyond["positive gates"] - 0.5),
    tol=0.03,
)

# %% [markdown]
# Drag the step. The model with signed gates first learns the short strings, then all: once $\gamma$ is near $-1$ for a one and near $1$ for a zero, nothing in it depends on the length. The other one creeps from left to right and never leaves the grey.
#
# Is that luck of the seed? With other start values the signed model learned the task in 6 of 8 tries (400 steps each, when this notebook was written); in the other two it sat at the loss of a coin for longer strings, and so did the positive one in 3 of 3. The seed of this notebook is one of the six, and tiny changes of its start values do not matter.
# [F07c](#F07c) shows ones only, the string of E07.15. Its answer changes with every bit. The margin of the positive model settles, as it must; that of the signed model swings for ever.

# %%
lengths = np.arange(1, LONG + 1)
ones = {name: of[STEPS][-1] for name, of in margins.items()}
changes = {name: int((np.diff(np.sign(m[-100:])) != 0).sum()) for name, m in ones.items()}
print("sign changes of the margin over the last 100 ones:", changes)
pictures.ones(lengths, ones)

# %% tags=["nbval-check-output"]
claim(
    "C07.24",
    "on a string of ones the margin of the positive model ends on one sign, that of the signed model changes at every bit",
    source="E07.15, the last 100 of 256 ones: changes of the first, missing changes of the second",
    error=changes["positive gates"] + 99 - changes["signed gates"],
    tol=0,
)

# %% [markdown]
# **What is left of Mesa in the model that won?** [F07d](#F07d): its reads on one string, with other values of $\lambda$ put in, against the read $G^\top q/\lambda$ of gated linear attention; and its answers on twelve strings when the rule is exchanged and nothing else.

# %%
winner = nn.cast(kept["signed gates"][STEPS], jnp.float64)
block = winner.blocks[0]
stream_in = rms_norm(block.mixer_norm, np.asarray(winner.embedding)[np.asarray(bits[0])])
LAMS = np.geomspace(5, 5e5, 11)  # below, with the sign in both, H + lam is not positive definite
distance = {
    rule: [off(*(literal_read(block.mixer, stream_in, r, lam) for r in (rule, "GLA"))) for lam in LAMS]
    for rule in ("sign in G", "sign in both")
}
at_50 = float(LAMS[np.argmin(np.abs(LAMS - 50))])


def answers_with(*which):
    """How often the literal model, with another rule in its layer, answers like the model itself."""
    swapped = lambda layer, x: literal_mesa(layer, x, *which)  # noqa: E731
    said = np.array([np.diff(literal_model(winner, np.asarray(row), swapped))[:, 0] > 0 for row in bits[:12]])
    return (said == (margins["signed gates"][STEPS][:12] > 0)).mean(), (said == answers[:12]).mean()


agree = {
    name: answers_with(*which)
    for name, which in {
        "the same": (),
        "sign in both": ("sign in both",),
        "GLA": ("GLA",),
        "lam = 1": ("sign in G", 1.0),
    }.items()
}
for name, (same, right_share) in agree.items():
    print(f"{name:13} answers like the trained model {same:6.1%}, right {right_share:6.1%}")
pictures.towards_gla(LAMS, distance, at_50)

# %% tags=["nbval-check-output"]
slopes = [np.log10(d[4] / d[-1]) / np.log10(LAMS[-1] / LAMS[4]) for d in distance.values()]
claim(
    "C07.25",
    "from lam = 500 on the distance between the Mesa and the GLA read falls like 1 / lam",
    source="E07.18 on the trained model, 256 tokens; distance of both exponents from 1",
    error=max(abs(x - 1) for x in slopes),
    tol=0.05,
)
claim(
    "C07.26",
    "read as gated linear attention, with nothing else changed, the trained model gives the same answers",
    source="12 strings, 256 lengths; share of other answers",
    error=1 - agree["GLA"][0],
    tol=0.01,
)

# %% [markdown]
# At $\lambda = 50$ there is little regression left in this layer: exchange its rule for gated linear attention, and one answer in a thousand changes [C07.26]. That is the tension which the paper's reading reports: the variant that tracks a state has given up the solve.
#
# But the last row of the printed table points the other way. With $\lambda = 1$ put in, untrained for it, the layer still answers nearly as before, and its solve is well posed, since $H$ has no sign. We have also trained signed gates *with the ordinary* $\lambda$ (floor 0.25, start 1, 10 CG steps): 3 of 5 tries (300 steps each) were right at all lengths to 256, against 6 of 8 with $\lambda\ge49$ (when this notebook was written; not run here). **So parity does not need a large $\Lambda$.** A sign in $H$ may need one [C07.20], and $H$ need not take the sign.
#
# > **Takeaway.** Counting needs a state that can flip. Put the flip into $G$ alone, and the regression survives, of turned targets.
#
# ## 13 · What was settled
#
# **The answer.** Trained on 40 bits, a Mesa layer of 2988 parameters with signed forget gates gives more than 90 % right answers at lengths 41 to 256, in the run above practically 100 % [C07.22]. With positive gates it is at chance [C07.23], and must be, at any depth: on a string of ones its margin settles [C07.24], while the answer alternates.
#
# | section | claims |
# |---|---|
# | the layer in NumPy and in Equinox | C07.1 |
# | short convolution, SiLU | C07.2, C07.3 |
# | unit length | C07.4, C07.5 |
# | gates and repetition | C07.6 |
# | Lambda and the head's norm | C07.7, C07.8 |
# | block and model | C07.9, C07.10, C07.11 |
# | decoding | C07.12, C07.13, C07.14 |
# | sizes | C07.15, C07.16 |
# | costs | C07.17, C07.18 |
# | negative gates | C07.19, C07.20 |
# | the experiment | C07.21, C07.22, C07.23, C07.24 |
# | what is left of Mesa | C07.25, C07.26 |
#
# **Where papers and reference codes differ from what runs.**
#
# | what is said or done | what we found | |
# |---|---|---|
# | MesaNet App. I: negative gates take the regression reading away | they do if $H$ has the sign (Eq. 8 as printed). With the sign in $G$ alone a ridge regression remains, of turned targets | C07.19 |
# | MesaNet App. I: $\Lambda\ge49$, strings of 40 bits | 49 is above the largest $\lVert H_t\rVert$ that 40 unit keys can make, so the solve is safe in training; at 256 it need not be | C07.20 |
# | MesaNet App. G.5: $\gamma$ times $1-0.0025\,\beta^2$ | bounds a repeated key by 400 at $\beta=1$, by $20\sqrt t$ over all $\beta$; the first power of $\beta$ would bound it by 400 for all | C07.6 |
# | MesaNet, architecture table 140M, 440M, 940M; result tables 145M, 400M, 1B | the reading gives no MLP width; $3D$ is within 5 % of the first three, no width gives all six | C07.16 |
# | MesaNet Sec. 3: the extra state is below 1 % of the memory | of the parameters, for one sequence and equal bits | C07.18 |
# | Hawk's published code (recurrentgemma, read, not run) | $W_a, W_x$ are block diagonal, other maps and the convolution have biases, the first token enters whole; here E07.11 as printed | – |
#
# **Three questions for the group.**
#
# 1. The theorem of section 11 is about converging inputs. Which tasks on *text* feed a layer something like a string of ones? Would a language model notice that it cannot count?
# 2. With turned targets the same pair on both sides of a sign change averages to nothing. Is that a fault, or is it what negation should do?
# 3. Attention's core is cheaper than 30 solver steps at every token of the training length [C07.17]. What then is the case for Mesa: the state, the quality, or the 9 steps?
#
# **Minutes per beat, for whoever leads.** Section 1: 8. Sections 2 to 6: 20, most of it at the table of section 4. Section 7: 10. Section 8: 8. Sections 9 and 10: 10, with F07a on the screen. Section 11: 12, somebody does E07.15 at the board. Section 12: 8. Questions: the rest. People get stuck at where the sign goes (E07.16).
#
# **Next.** [Notebook 08](08-solver-budget.ipynb): how many steps the solver needs when every token may stop for itself. Before: [notebook 05](05-chunkwise-mesa.ipynb) and [notebook 06](06-implicit-gradient.ipynb), how the rule runs and is trained in chunks.
