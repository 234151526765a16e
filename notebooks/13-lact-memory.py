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
#     title: The LaCT memory
#     question: 64 real pairs are written with one step. How many can be told apart afterwards, and what decides it, the network or Muon?
#     minutes: 75
#     seconds: 12
#     settles: On correlated pairs Muon decides. Of 64 real pairs, written once from random first weights, a plain step lets a network tell 7 apart and Muon 37, a single matrix 7 and 47; dealt anew, so that nothing can be guessed, 5 and 27, 3 and 27. The length of the first rows is the forget gate; and Muon costs 0.94 and 1.88 times the memory's own products at 760M and 3B.
# ---

# %% [markdown]
# # 13 · The LaCT memory
#
# **64 real pairs are written with a single step. How many can be told apart afterwards, and what decides it: the network or Muon?**
#
# LaCT (arXiv 2505.23884v1) stores a context in the weights of a small network. It takes thousands of tokens at once, a *chunk*, and makes one step on the three matrices of the network. The step is the gradient of a loss, made orthogonal by an algorithm called Muon, and afterwards every row of every matrix is scaled back to the length that it had at first.
#
# This notebook derives these parts, and takes them away one at a time.
#
# Where it comes from: the paper is known here through a reading that quotes its equations and numbers. "The reference" is the code that its authors published. Golden numbers are what the functions of the reference computed in float64; names of golden cases stand in the claims.
#
# | | |
# |---|---|
# | **Time** | 75 minutes to read, about 12 seconds to run on two cores, no GPU |
# | **You need** | [notebook 01](01-fast-weights.ipynb): fast weights, and a write as a gradient step. The singular value decomposition (SVD). For section 4, [notebook 02](02-correlated-keys.ipynb): what correlated keys do. |
# | **In a hurry** | [Three gradients](#E13.6), [Newton-Schulz](#F13a), [half-way to Mesa](#E13.15), [what is told apart](#F13b), [too few tokens](#F13c), [the rows](#F13e), [the bill](#F13f), [the answer](#11-·-What-was-settled) |
#
# Symbols, once. Vectors are columns; in code, tokens are rows.
#
# | here | LaCT | in code | meaning |
# |---|---|---|---|
# | $k_i, v_i, q_i$ | the same | `k`, `v`, `q` | key, value and query of token $i$, each of width $d$ |
# | $d$, $r$, $rd$ | $h$, $r$, $rh$ | `D`, `RATIO`, `HIDDEN` | width of a head; the hidden width is $r$ times that. Here $d=32$, $r=2$ |
# | $c$; $K$, $V$ | $b$ | | tokens in a chunk; its keys and its values, as rows: $c\times d$ |
# | $W=(W_1, W_3, W_2)$ | the same | `SwiGLU(gate, up, out)` | the fast weights: $rd\times d$ twice, and $d\times rd$ |
# | $f_W$, $\varphi$ | $f_W$ | `read` | the network; the logistic function $\varphi(a) = 1/(1+e^{-a})$ |
# | $\eta_{1i}, \eta_{3i}, \eta_{2i}$ | $\eta_i$ | `rates` | the positive rates of token $i$, one for each matrix |
# | $G_1, G_3, G_2$ | $-g$ | `directions` | the direction of a chunk: the way *down* the loss, summed over its tokens |
# | $\sigma_n$; $U, \Sigma, Y$ | $U, \Sigma, V$ | | singular values of a matrix, and its SVD $U\Sigma Y^\top$ with columns $u_n$, $y_n$ ($V$ is taken) |
# | $X$; $a_j, b_j, c_j$; $p$ | | `SCHED5`, `CONST5` | the matrix inside Newton-Schulz; the coefficients of its step $j$, always with an index; the polynomial they make |
# | $M$, $\bar\beta$ | the same | `momentum` | momentum buffer, and the share of it that a chunk keeps |
# | $G^{(t)}$, $M^{(t)}$, … | | | those of chunk $t$ |
# | $\nu$ | | | the length of a row of the *first* weights |
# | $x\circ y$, $\langle G, S\rangle$ | | `x * y` | product entry by entry; the same, added up |

# %%
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

from ttt_teach import SwiGLU, lact
from ttt_teach.explore import explore
from ttt_teach.explore import lact_memory as pictures
from ttt_teach.ledger import check, claim
from ttt_teach.rules.lact.definition import direction as stated_direction
from ttt_teach.rules.lact.definition import f as network
from ttt_teach.rules.lact.definition import length as row_length
from ttt_teach.rules.lact.definition import loss as stated_loss
from ttt_teach.solvers.newton_schulz import CONST5, SCHED5, newton_schulz
from ttt_teach.tasks import minilm_qkv, unit
from ttt_teach.theory import costs
from ttt_teach.theory.counting import product_flops

D, RATIO = 32, 2
HIDDEN, HEADS, LENGTH = RATIO * D, 8, 512


def random(purpose):
    """A generator of random numbers of its own for every purpose."""
    return np.random.default_rng([13, *purpose.encode()])


def off(x, y):
    """How far x is from y, relative to y."""
    return float(np.linalg.norm(np.asarray(x) - np.asarray(y)) / np.linalg.norm(y))


# %% [markdown]
# Two inputs. Eight heads of a real encoder (heads 0 to 3 of layers 1 and 4 of MiniLM-L6) on 512 tokens of English, and eight sets of random vectors of the same width. Keys *and values* are scaled to length 1, so that a value is a direction and nothing else. (LaCT scales queries and keys, after a silu on all three.) The first weights are random too: entries of variance $1/\text{width of the input}$, as in the reference's minimal layer, so that a row has a length near 1.

# %%
layers = [minilm_qkv("plain", layer) for layer in (1, 4)]
real_keys, real_values = (
    unit(np.concatenate([getattr(x, name).swapaxes(0, 1) for x in layers]).astype(float)) for name in "kv"
)
random_keys, random_values = unit(random("tokens").normal(size=(2, HEADS, LENGTH, D)))
STREAMS = {"random": (random_keys, random_values), "real": (real_keys, real_values)}


def first_weights(purpose, *sets, d=D, hidden=HIDDEN):
    gate, up = random(purpose).normal(size=(2, *sets, hidden, d)) / np.sqrt(d)
    return SwiGLU(gate, up, random(purpose + ", out").normal(size=(*sets, d, hidden)) / np.sqrt(hidden))


W0 = first_weights("first weights", HEADS)
rows_of = {name: np.linalg.norm(w, axis=-1) for name, w in zip(("W1", "W3", "W2"), W0, strict=True)}
print("rows of the first weights:", ", ".join(f"{n} {x.mean():.2f} +- {x.std():.2f}" for n, x in rows_of.items()))

# %% [markdown]
# ## 1 · A network as memory, and a loss that looks at no error
#
# The memory is a network with one hidden layer and a gate (SwiGLU; LaCT Eq. 6). It is asked with a query, and trained on a key:
#
# $$ f_W(x) = W_2\,\bigl[\operatorname{silu}(W_1x)\circ(W_3x)\bigr], \qquad \operatorname{silu}(a) = a\,\varphi(a),\quad \varphi(a)=\frac1{1+e^{-a}} . \tag{E13.1} $$
#
# To *store* the pairs of a chunk is to go down a loss (LaCT Eqs. 5 and 7):
#
# $$ \mathcal L(W) = -\sum_{i=1}^{c} \eta_i\, f_W(k_i)^\top v_i . \tag{E13.2} $$
#
# (Here with one rate $\eta_i$ for a token, as the paper prints it. The code has three, one for each matrix: section 2.)
#
# This is no squared error. It wants the answer to point the way of the value, and long. What does that change? Take one matrix first, $f_W(k)=Wk$, and one pair. The entry $W_{ab}$ is in $-v^\top Wk=-\sum_{ab}v_aW_{ab}k_b$ once, with the factor $-v_ak_b$. Beside it the squared error:
#
# $$ \nabla_W\bigl(-v^\top Wk\bigr) = -\,v\,k^\top, \qquad \nabla_W\,\tfrac12\lVert v-Wk\rVert^2 = -\,(v-Wk)\,k^\top . \tag{E13.3} $$
#
# The right one holds the **residual** $v-Wk$: it asks what the memory answers already, and is zero when the answer is right. The left one holds no $W$ at all. Whoever writes the same pair $N$ times stores it $N$ times: the first matrix plus $N\eta\,vk^\top$.
#
# In the network the same is true of $W_2$: with $W_1$ and $W_3$ held, $f_W$ is linear in $W_2$, with the hidden vector $z=\operatorname{silu}(W_1k)\circ(W_3k)$ in the place of $k$. If all three matrices move, it is worse: $z$ moves too, towards a larger answer, and in the table below each step is larger than the last.
#
# Is there a bottom that one could reach at last? Multiply $W_3$ by $\alpha$ and $W_2$ by $\alpha'$: both enter as factors, so
#
# $$ f_{(W_1,\;\alpha W_3,\;\alpha' W_2)} = \alpha\alpha' f_W , \qquad \mathcal L(W_1,\alpha W_3,\alpha' W_2)=\alpha\alpha'\,\mathcal L(W) . \tag{E13.4} $$
#
# Wherever the loss is not zero, some $\alpha\alpha'$ sends it to $-\infty$. **There is no minimum.** The loss says which way to go and never how far: something else must bound the step (Muon, section 3) and the weights (the rows, section 8).

# %%
pair = random("a pair")
key, value = unit(pair.normal(size=(2, D)))
one = SwiGLU(*(w[0] for w in W0))


def pair_loss(W, k, v):
    return stated_loss(W, k[None], v[None], jnp.ones(1))  # E13.2, one token of rate 1


slope = jax.jit(jax.grad(pair_loss))
W, by_network, by_delta, delta_W = one, [], [], np.zeros((D, D))
for _ in range(8):
    by_network.append(float(network(W, key) @ value))
    by_delta.append(value @ delta_W @ key)
    W = SwiGLU(*(w - g for w, g in zip(W, slope(W, key, value), strict=True)))
    delta_W = delta_W + np.outer(value - delta_W @ key, key)  # E13.3, right, with a step of 1
print("times written      ", *(f"{n:9}" for n in range(8)))
print("network, E13.2     ", *(f"{x:9.3g}" for x in by_network))
print("matrix, delta rule ", *(f"{x:9.3g}" for x in by_delta))

first = slope(one, key, value).out
again = slope(one._replace(out=one.out - 5 * first), key, value).out  # after five writes of this pair into W2
scaled = pair_loss(one._replace(up=3 * one.up, out=-7 * one.out), key, value)

# %% tags=["nbval-check-output"]
claim(
    "C13.1",
    "the gradient with respect to W2 does not depend on W2: a pair written five times is written in full once more",
    source="E13.3 with z for k; LaCT Eqs. 5-7, autodiff of the stated loss at W2 and at W2 after five writes",
    error=off(again, first),
    tol=1e-15,
)
claim(
    "C13.2",
    "W3 times 3 and W2 times -7 make the loss -21 times as large: it has no minimum",
    source="E13.4, the package's stated loss",
    error=abs(float(scaled / pair_loss(one, key, value)) / -21 - 1),
    tol=1e-13,
)

# %% [markdown]
# Read the two lines of the table: the answer in the direction of the value, which should be 1. The delta rule gets there with one write, and further writes change nothing. The network, with plain gradient steps of rate 1, begins slowly, passes 1 and does not stop: after seven writes it answers 15.9.
#
# > **Takeaway.** The loss is blind to what is stored already, and has no bottom. It gives directions.
#
# ## 2 · Three gradients by hand
#
# Take one pair, of rate 1. Name what the forward pass makes, and one vector of the backward pass:
#
# $$ a = W_1k,\qquad u = W_3k,\qquad s=\operatorname{silu}(a),\qquad z = s\circ u,\qquad f = W_2z,\qquad e = W_2^\top v . \tag{E13.5} $$
#
# The loss is $\ell=-v^\top f$. Move the three matrices by small $dW_2, dW_3, dW_1$. By the product rule
#
# $$ -d\ell = v^\top dW_2\,z + v^\top W_2\,dz = v^\top dW_2\,z + e^\top dz, \qquad dz = s\circ du + u\circ ds . $$
#
# Further $du=dW_3\,k$, $da=dW_1\,k$, and $ds=\operatorname{silu}'(a)\circ da$, since silu acts on every entry alone. Two identities move everything to its place: $x^\top(y\circ w)=\sum_n x_ny_nw_n=(x\circ y)^\top w$, and $x^\top\,dW\,y=\sum_{ab}x_a\,dW_{ab}\,y_b=\langle xy^\top, dW\rangle$. So
#
# $$ -d\ell = \langle v z^\top,\,dW_2\rangle + \langle (e\circ s)\,k^\top,\,dW_3\rangle + \langle (e\circ u\circ \operatorname{silu}'(a))\,k^\top,\,dW_1\rangle , $$
#
# and what stands beside each $dW$ is the direction *down* the loss, minus the gradient:
#
# $$ G_2 = v\,z^\top, \qquad G_3 = (e\circ s)\,k^\top, \qquad G_1 = \bigl(e\circ u\circ\operatorname{silu}'(a)\bigr)\,k^\top . \tag{E13.6} $$
#
# Each is one outer product. The missing derivative: $\varphi'(a) = \frac{e^{-a}}{(1+e^{-a})^2}=\varphi\cdot\frac{e^{-a}}{1+e^{-a}}=\varphi\,(1-\varphi)$, so
#
# $$ \operatorname{silu}'(a) = \varphi + a\,\varphi' = \varphi\,\bigl(1+a\,(1-\varphi)\bigr) . \tag{E13.7} $$
#
# **A chunk.** All tokens of a chunk take their gradient at the *same* weights, those before the chunk. So their directions simply add up, and a sum of outer products is a product of matrices: $\sum_i x_iy_i^\top=X^\top Y$ with the vectors as rows. Put the keys and values of the chunk into the rows of $K$ and $V$, and the rates of a matrix into a column, which multiplies row $i$ by the rate of token $i$. With $A_K$, $U_K$, $E_V$ for the $a$, $u$, $e$ of all tokens, as rows:
#
# $$ A_K=KW_1^\top,\quad U_K=KW_3^\top,\quad E_V=VW_2, \qquad
#    \begin{aligned}
#    G_1 &= \bigl(\eta_1\circ E_V\circ U_K\circ\operatorname{silu}'(A_K)\bigr)^\top K,\\
#    G_3 &= \bigl(\eta_3\circ E_V\circ\operatorname{silu}(A_K)\bigr)^\top K,\\
#    G_2 &= (\eta_2\circ V)^\top\bigl(\operatorname{silu}(A_K)\circ U_K\bigr).
#    \end{aligned} \tag{E13.8} $$
#
# Three products to prepare, three for the directions; reading the queries (E13.1) takes three more. These nine products are the work of a LaCT layer, and each is as large as the chunk is long.
#
# Here it is line by line, against automatic differentiation of E13.2 and against the reference.


# %%
def silu(a):
    """silu(a) and its derivative (E13.7)."""
    small = np.exp(-np.abs(a))  # so that no exponential overflows
    φ = np.where(a > 0, 1, small) / (1 + small)
    return a * φ, φ * (1 + a * (1 - φ))


def read(W, x):
    """f_W of every row of x (E13.1)."""
    return (silu(x @ W.gate.mT)[0] * (x @ W.up.mT)) @ W.out.mT


def directions(W, k, v, rates=(1.0, 1.0, 1.0)):
    """G_1, G_3, G_2 of a chunk (E13.8); rates: numbers or columns, of W1, W3, W2."""
    a, u, e = k @ W.gate.mT, k @ W.up.mT, v @ W.out  # E13.5 of every token
    s, s1 = silu(a)
    η1, η3, η2 = rates
    return SwiGLU((η1 * e * u * s1).mT @ k, (η3 * e * s).mT @ k, (η2 * v).mT @ (s * u))


chunk_k, chunk_v = real_keys[0, :64], real_values[0, :64]
chunk_rates = random("rates").uniform(0.1, 1, size=(64, 3))
by_hand = directions(one, chunk_k, chunk_v, np.split(chunk_rates, 3, axis=1))
by_autodiff = stated_direction(one, chunk_k, chunk_v, chunk_rates)
print(
    "by hand, off from autodiff:",
    *(f"{name} {off(x, y):.0e}" for name, x, y in zip("132", by_hand, by_autodiff, strict=True)),
)

golden = np.load("../tests/golden/lact.npz")  # the reference's own numbers, from the folder of this notebook


def case(name, *fields):
    return [golden[f"{name}/{field}"].astype(float) for field in fields]


def weights_of(name, after=""):
    """The reference calls the gate w0, the branch that it multiplies w2, and the last matrix w1."""
    return SwiGLU(*case(name, *(f"w{n}{after}" for n in (0, 2, 1))))


ref_k, ref_v, *ref_rates = case("fwgrad_c16_h8", "k", "v", "lr0", "lr2", "lr1")
ref_W, ref_G = weights_of("fwgrad_c16_h8"), SwiGLU(*case("fwgrad_c16_h8", "dw0", "dw2", "dw1"))
ours = directions(ref_W, ref_k, ref_v, ref_rates)

# %% tags=["nbval-check-output"]
claim(
    "C13.3",
    "the three directions by hand are what autodiff makes of the stated loss",
    source="E13.6 to E13.8 on 64 real tokens with three rates each, float64; largest of three",
    error=max(off(x, y) for x, y in zip(by_hand, by_autodiff, strict=True)),
    tol=1e-14,
)
claim(
    "C13.4",
    "and what the reference implementation computes",
    source="golden lact, case fwgrad_c16_h8, float64; largest of three",
    error=max(off(x, y) for x, y in zip(ours, ref_G, strict=True)),
    tol=1e-13,
)

# %% [markdown]
# **Three rates, not one.** The paper writes one rate $\eta_i$ for a token (Eq. 7 and Algorithm 1, as the reading of it gives them). The reference code makes *three* from every token, one for each matrix, and [C13.4] agrees with it only so. Could one number do, if it is chosen well? For the three directions of the reference, find the rates $\eta_i$, one a token, that come nearest to all of them together. The directions are linear in the rates, so this is least squares.

# %%
misses = []
for b in range(len(ref_k)):  # two heads
    W_b = SwiGLU(*(w[b] for w in ref_W))
    alone = [directions(W_b, ref_k[b, i : i + 1], ref_v[b, i : i + 1]) for i in range(ref_k.shape[1])]
    columns = np.array([np.concatenate([g.ravel() for g in G]) for G in alone]).T
    target = np.concatenate([g[b].ravel() for g in ref_G])
    best, *_ = np.linalg.lstsq(columns, target)
    misses.append(off(columns @ best, target))
print("with one rate a token, as good as can be, the directions are off by", *(f"{x:.0%}" for x in misses))

# %% tags=["nbval-check-output"]
claim(
    "X13.1",
    "one rate for each token, the same for its three matrices",
    source="LaCT Eq. 7 as its reading gives it, against the reference's directions (golden fwgrad_c16_h8), best rates",
    error=min(misses),
    tol=0.01,
    expect=False,
)

# %% [markdown]
# **Exercise 13.1 ★ Another network.** The memory is $f(x)=W_b\tanh(W_ax)$. Write `tanh_directions(Wa, Wb, k, v)`: the directions for $W_a$ and $W_b$ down $-f(k)^\top v$, for one pair.
#
# <details><summary>Hint</summary>
#
# $\tanh'=1-\tanh^2$. Move $d\ell$ about as above until each matrix stands alone.
#
# </details>


# %%
def tanh_directions(Wa, Wb, k, v):
    return ...  # two arrays, shaped as Wa and Wb


def test_tanh(answer):
    draw = random("exercise 1")
    Wa, Wb, k, v = (draw.normal(size=size) for size in ((6, 4), (5, 6), 4, 5))
    wanted = jax.grad(lambda Wa, Wb: (Wb @ jnp.tanh(Wa @ k)) @ v, argnums=(0, 1))(Wa, Wb)
    for name, x, y in zip(("Wa", "Wb"), answer(Wa, Wb, k, v), wanted, strict=True):
        if np.shape(x) != y.shape:
            return f"the direction of {name} has shape {np.shape(x)}; expected {y.shape}"
        if off(x, y) > 1e-10:
            return f"the direction of {name} is off by {off(x, y):.1e} of it"


check("13.1", tanh_directions, test_tanh)


# %% jupyter={"source_hidden": true} tags=["solution"]
def tanh_directions_solution(Wa, Wb, k, v):
    hidden = np.tanh(Wa @ k)
    return np.outer((Wb.T @ v) * (1 - hidden**2), k), np.outer(v, hidden)


check("13.1", tanh_directions_solution, test_tanh)

# %% [markdown]
# ## 3 · Muon: a polynomial of the singular values
#
# A direction $G$ has an SVD, $G=U\Sigma Y^\top=\sum_n\sigma_n\,u_ny_n^\top$ with orthonormal $u_n$, orthonormal $y_n$ and $\sigma_n>0$. A plain step $\eta G$ moves by $\eta\sigma_n$ along the $n$-th of these. If the $\sigma_n$ are very different, no rate suits all. Muon replaces them all by 1, $G\mapsto UY^\top$, the *orthogonal factor* of $G$.
#
# **Which step is that?** To first order, a step $S$ lowers the loss by $\langle G,S\rangle$. Of all steps that stretch no vector ($\lVert S\rVert_2\le1$, the largest singular value), which one gains most? Since $\langle u_ny_n^\top,S\rangle=u_n^\top Sy_n\le\lVert S\rVert_2\le 1$,
#
# $$ \langle G,S\rangle=\sum_n\sigma_n\,u_n^\top S\,y_n\;\le\;\sum_n\sigma_n, \qquad\text{with equality for } S=UY^\top . \tag{E13.9} $$
#
# (For $S=UY^\top$, $u_n^\top UY^\top y_n=1$.) So Muon is the steepest step, if the step of a matrix is measured by how far it moves what the matrix *answers* to a vector of length 1, at most, rather than by the sum of the squares of their entries.
#
# **Without an SVD.** An SVD is slow on accelerators; products of matrices are fast. Let $X=U\Sigma Y^\top$ and $A=XX^\top$. Because $Y^\top Y=I$ and $U^\top U=I$,
#
# $$ \begin{aligned} &A = U\Sigma^2U^\top, \quad AX = U\Sigma^3Y^\top, \quad A^2X=U\Sigma^5Y^\top, \\ &a_jX+(b_jA+c_jA^2)X = U\,\bigl(a_j\Sigma+b_j\Sigma^3+c_j\Sigma^5\bigr)\,Y^\top . \end{aligned} \tag{E13.10} $$
#
# The singular vectors stay as they are. Every singular value is sent through the same odd polynomial, and nobody has computed $U$, $\Sigma$ or $Y$. Now iterate:
#
# $$ \begin{aligned} &X_0=\frac{G}{\lVert G\rVert_F+10^{-7}}, && X_j = a_jX_{j-1}+(b_jA+c_jA^2)X_{j-1}, \\ &p = p_5\circ\dots\circ p_1, && p_j(\sigma)=a_j\sigma+b_j\sigma^3+c_j\sigma^5 . \end{aligned} \tag{E13.11} $$
#
# The division makes $\sum_n\sigma_n^2=1$ (but for the guard $10^{-7}$, which keeps the zero matrix zero), so that every $\sigma_n\le1$: the polynomials are made for $[0,1]$ and explode not far beyond. Two schedules are in use. The language models take five different steps, `SCHED5`; view synthesis takes the original step of Muon five times, `CONST5`. (The reference has the latter for video too, but the paper's video models do without Muon: App. C.3.)
#
# Near zero only the first term counts, and a small singular value is multiplied by the product of the $a_j$:
#
# $$ p(\sigma)\approx\Bigl(\prod_{j=1}^5 a_j\Bigr)\,\sigma \qquad\text{for tiny }\sigma . \tag{E13.12} $$


# %%
def muon(G, steps=SCHED5):
    """E13.11, on the side with fewer rows: for the transpose the same singular values, and a smaller A."""
    X = G / (np.linalg.norm(G, axis=(-2, -1), keepdims=True) + 1e-7)
    X = X.mT if G.shape[-2] > G.shape[-1] else X
    for a, b, c in steps:
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return X.mT if G.shape[-2] > G.shape[-1] else X


def p(sigma, steps=SCHED5):
    for a, b, c in steps:
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return sigma


def polar(G):
    """The orthogonal factor U Y' by the SVD; directions that G does not have are left out."""
    U, sigma, Yt = np.linalg.svd(G, full_matrices=False)
    return U @ ((sigma > 1e-12 * sigma.max(-1, keepdims=True))[..., None] * Yt)


SCHEDULES = {"language": SCHED5, "view synthesis": CONST5}
G2 = by_hand.out  # 32 x 64, of 64 real pairs
U, sigma, Yt = np.linalg.svd(G2 / (np.linalg.norm(G2) + 1e-7), full_matrices=False)
print(f"singular values of a real direction, |G| = 1: first {sigma[0]:.2f}, tenth {sigma[9]:.3f}, last {sigma[-1]:.4f}")

gain, top = np.sum(G2 * polar(G2)), np.linalg.norm(G2, "nuc")  # E13.9, left and right
tries = [random(f"step {n}").normal(size=G2.shape) for n in range(250)]
tries[200:] = [G2 + 0.1 ** (1 + n % 2) * np.linalg.norm(G2, 2) * polar(x) for n, x in enumerate(tries[200:])]
others = [np.sum(G2 * polar(x)) for x in tries]
print(f"UY' gains the sum of the singular values, but for {abs(gain / top - 1):.0e} of it")

grid = np.concatenate([np.geomspace(1e-5, 0.01, 200)[:-1], np.linspace(0.01, 1, 20001)])
useful = grid >= 0.01
print(f"{'schedule':14} {'steps':>5} {'from 0.01 to 1':>20} {'tiny ones times':>16}")
for name, steps in SCHEDULES.items():
    for j in range(1, 6):
        ends = p(grid[useful], steps[:j])
        print(f"{name:14} {j:5} {ends.min():9.3f} to {ends.max():6.3f} {np.prod([a for a, _, _ in steps[:j]]):16.1f}")
ends = {name: p(grid, steps) for name, steps in SCHEDULES.items()}
ranges = {name: (x[useful].min(), x[useful].max()) for name, x in ends.items()}
reach = {name: grid[np.argmax(x >= ranges[name][0])] for name, x in ends.items()}
slopes = {name: p(1e-9, steps) / 1e-9 for name, steps in SCHEDULES.items()}
print("this range is entered at singular values of", ", ".join(f"{x:.4f} ({name})" for name, x in reach.items()))
p_max = p(np.linspace(0, 1, 100001)).max()
print(f"on all of [0, 1] the language schedule goes up to {p_max:.3f}")

tall = random("tall").normal(size=(48, 20))
U_t, s_t, Yt_t = np.linalg.svd(tall, full_matrices=False)
by_svd = {
    name: max(
        off(muon(G2, steps), (U * p(sigma, steps)) @ Yt),
        off(muon(tall, steps), (U_t * p(s_t / (np.linalg.norm(s_t) + 1e-7), steps)) @ Yt_t),
        off(newton_schulz(G2, steps), (U * p(sigma, steps)) @ Yt),
    )
    for name, steps in SCHEDULES.items()
}
(square,) = case("ns_square", "G")
of_reference = {
    name: off(muon(square, steps), *case("ns_square", out))
    for (name, steps), out in zip(SCHEDULES.items(), ("out_sched5", "out_const5"), strict=True)
}

# %% tags=["nbval-check-output"]
claim(
    "C13.5",
    "of 250 other steps of largest singular value 1, 50 of them neighbours, none gains the sum of the singular values",
    source="E13.9, a real direction; the best of them over that sum, which U Y' gains",
    error=max(others) / top,
    tol=1.0,
)
claim(
    "C13.6",
    "Newton-Schulz leaves the singular vectors alone and sends every singular value through the same polynomial",
    source="E13.10 and E13.11 against the SVD: a real direction 32 x 64, a random one 48 x 20, both schedules; ours and the package's",
    error=max(by_svd.values()),
    tol=1e-12,
)
claim(
    "C13.7",
    "both schedules give the reference's matrices",
    source="golden lact, case ns_square, float64",
    error=max(of_reference.values()),
    tol=1e-12,
)
claim(
    "C13.8",
    "singular values from 0.01 to 1 end between 0.978 and 1.032 with the language schedule, 0.682 and 1.134 with the other",
    source="E13.11 at 20001 points; largest distance of the four ends",
    error=float(np.abs(np.array(list(ranges.values())) - [[0.978, 1.032], [0.682, 1.134]]).max()),
    tol=1e-3,
)
claim(
    "C13.9",
    "five steps multiply a tiny singular value by 493 with the language schedule, by 485 with the other",
    source="E13.12, at 1e-9",
    error=float(np.abs(np.array(list(slopes.values())) - [493, 485]).max()),
    tol=0.5,
)

# %% [markdown]
# Drag the number of steps, and the schedule ([F13a](#F13a)). The language schedule ends near 1; the other one never does: even a singular value of exactly 1 comes out of one step as $3.4445-4.7750+2.0315=0.701$. It was chosen for a steep start, not for a good end.

# %%
SHOWN = np.geomspace(1e-5, 1, 201)


def draw_map(steps, schedule):
    some = SCHEDULES[schedule][:steps]
    return pictures.newton_schulz_map(steps, schedule, SHOWN, p(SHOWN, some), sigma, p(sigma, some))


explore(draw_map, steps=range(6), schedule=list(SCHEDULES), start={"steps": 5, "schedule": "language"})

# %% [markdown]
# > **Takeaway.** Muon is a function of the singular values, and an almost flat one: whatever is in the direction, strong or weak, is written with a strength near 1, down to 0.0025 of the direction's length.
#
# **Exercise 13.2 ★★ A step that ends at 1.** Find the only three numbers $(a,b,c)$ as the coefficients of a step, after which the distance of a singular value from 1 goes with the *third* power of what it was: $p(1)=1$, $p'(1)=0$, $p''(1)=0$. Then compare $a$ with those above. What is its price?
#
# <details><summary>Hint</summary>
#
# Three linear equations: $a+b+c=1$, $a+3b+5c=0$, $6b+20c=0$. The price: how often must you multiply by this $a$ to bring a singular value of 0.01 near 1?
#
# </details>


# %%
def cubic_step():
    return ...  # a, b, c


def test_cubic(answer):
    a, b, c = answer()
    for name, x, wanted in (("p(1)", a + b + c, 1), ("p'(1)", a + 3 * b + 5 * c, 0), ("p''(1)", 6 * b + 20 * c, 0)):
        if abs(x - wanted) > 1e-9:
            return f"{name} is {x:g} and should be {wanted}"


check("13.2", cubic_step, test_cubic)


# %% jupyter={"source_hidden": true} tags=["solution"]
def cubic_step_solution():
    return np.linalg.solve([[1, 1, 1], [1, 3, 5], [0, 6, 20]], [1, 0, 0])  # 15/8, -10/8, 3/8: 0.01 takes 8 such steps


check("13.2", cubic_step_solution, test_cubic)

# %% [markdown]
# ## 4 · What Muon does to a write: half of Mesa
#
# Why should equal singular values be good for a *memory*? There is a case in which everything can be calculated. Let the memory be one matrix that starts at zero, $f_W(k)=Wk$, all rates 1, so that $G=\sum_iv_ik_i^\top=V^\top K$. Let the $c\le d$ keys be linearly independent and the values orthonormal, $VV^\top=I$. All that matters about the keys is the matrix of their products,
#
# $$ R = KK^\top,\qquad R_{ij}=k_i^\top k_j . \tag{E13.13} $$
#
# It is positive definite, so it has a positive root $R^{1/2}$, and $R^{-1/2}$. **The orthogonal factor of $G$ is**
#
# $$ Q = V^\top R^{-1/2}K . \tag{E13.14} $$
#
# To see it, put $P=V^\top R^{1/2}V$. First, $PQ=V^\top R^{1/2}(VV^\top)R^{-1/2}K=V^\top K=G$. Second, $P$ is symmetric without negative eigenvalues, and $P^2=V^\top RV=V^\top KK^\top V=GG^\top$. But $GG^\top=U\Sigma^2U^\top$ has only one such root, $U\Sigma U^\top$. So $G=U\Sigma U^\top Q$, and also $G=U\Sigma Y^\top=U\Sigma U^\top\,(UY^\top)$. The columns of $UY^\top$ lie in the span of $U$, those of $Q$ in the span of the values, which is the same (it is all that $G$ can answer), and on this span $U\Sigma U^\top$ is invertible. Hence $Q=UY^\top$.
#
# Now ask with the keys themselves. The answers, as rows, are $KW^\top$:
#
# $$ \underbrace{KG^\top = R\,V}_{\text{plain sum}}, \qquad \underbrace{KQ^\top = KK^\top R^{-1/2}V=R^{1/2}\,V}_{\text{Muon}}, \qquad \underbrace{V\vphantom{^\top}}_{\text{Mesa, }\lambda\to0} . \tag{E13.15} $$
#
# The plain sum answers $v_j$ with the weight $k_i^\top k_j$: cross-talk in full. Mesa, the regression of [notebook 02](02-correlated-keys.ipynb), has none ($R^0=I$). **Muon goes exactly half of the way, in the exponent.** And E13.14 says how: it stores the values under the keys $R^{-1/2}K$, which are orthonormal, since $R^{-1/2}KK^\top R^{-1/2}=I$. Of all orthonormal sets this is the nearest to the keys: $R^{-1/2}K$ is the orthogonal factor of $K$ itself, and by E13.9 (with $K$ for $G$) no other has as large a sum of products with the keys.
#
# Two unit keys at an angle $\theta$, the example of notebook 02: $R$ has the eigenvectors $(1,\pm1)/\sqrt2$ with eigenvalues $1\pm\cos\theta$, that is $2\cos^2\frac\theta2$ and $2\sin^2\frac\theta2$. The root has $\sqrt2\cos\frac\theta2$ and $\sqrt2\sin\frac\theta2$, so on and off the diagonal stand half their sum and half their difference:
#
# $$ R^{1/2} = \begin{pmatrix}\rho&\tau\\\tau&\rho\end{pmatrix},\qquad \rho=\tfrac{1}{\sqrt2}\bigl(\cos\tfrac\theta2+\sin\tfrac\theta2\bigr)=\cos\bigl(45°-\tfrac\theta2\bigr),\quad \tau=\sin\bigl(45°-\tfrac\theta2\bigr) . \tag{E13.16} $$
#
# The two keys are turned apart, each by $45°-\frac\theta2$, until they are at a right angle.

# %%
c = 20
k20 = unit(real_keys[0, :c])
v20 = np.linalg.qr(random("orthonormal values").normal(size=(D, c)))[0].T
mu, vectors = np.linalg.eigh(k20 @ k20.T)  # R, E13.13
root = (vectors * np.sqrt(mu)) @ vectors.T
inverse_root = (vectors / np.sqrt(mu)) @ vectors.T
exact = k20 @ polar(v20.T @ k20).T
by_steps = k20 @ muon(v20.T @ k20).T

angle = np.deg2rad(45)
two_k, two_v = np.array([[1, 0], [np.cos(angle), np.sin(angle)]]), np.eye(2)
two_reads = {"sum": two_k @ (two_v.T @ two_k).T, "Muon": two_k @ polar(two_v.T @ two_k).T}
two_reads["Mesa"] = two_k @ np.linalg.solve(two_k.T @ two_k, two_k.T @ two_v)
turned = [np.cos(angle / 2), np.sin(angle / 2)]  # at 45 degrees, 45 - 45/2 is 45/2
for name, x in two_reads.items():
    own, other = np.abs(x[0].round(3))
    print(f"two keys at 45 degrees, {name:4}: the first answers {own:.3f} of its value and {other:.3f} of the other")
print(
    f"20 real keys, condition number of R {mu[-1] / mu[0]:.0f}: Newton-Schulz answers off by {off(by_steps, exact):.1%}"
)

# %% tags=["nbval-check-output"]
claim(
    "C13.10",
    "on orthonormal values the orthogonal factor is V' R^(-1/2) K, and answers R^(1/2) V: half of the way from the sum to Mesa",
    source="E13.14, E13.15: 20 real keys of layer 1, head 0; the factor by the SVD, the roots by eigenvectors; the larger of two",
    error=max(off(polar(v20.T @ k20), v20.T @ inverse_root @ k20), off(exact, root @ v20)),
    tol=1e-12,
)
claim(
    "C13.11",
    "two keys at 45 degrees answer cos and sin of 22.5 degrees: 0.924 and 0.383",
    source="E13.16",
    error=float(np.abs(two_reads["Muon"][0] - turned).max()),
    tol=1e-15,
)

# %% [markdown]
# Mind the conditions: one matrix, from zero, orthonormal values, exact $UY^\top$ (five steps of Newton-Schulz are 1.4 % off on these keys). In the network $W_2$ is written in just this way, with the hidden vectors $z_i$ in the place of the keys, but it does not start at zero, and $W_1$ and $W_3$ move too. What is left of the effect? Now we count.
#
# ## 5 · How many pairs of one write are told apart?
#
# The measure: write $c$ pairs at once, then ask with each key. A pair is **told apart** if the answer has its largest product with the pair's own value, among the directions of all $c$ values. Five memories:
#
# - one matrix from zero: the plain sum; the same with Muon; and Mesa with $\lambda=0.25$ (least squares; neither it nor $\lambda$ is chosen for the count);
# - the network from its first weights: one plain gradient step, with the best of seven rates (chosen for each number of pairs, after the fact); and one Muon step. Rows are scaled back in both, as LaCT does (section 8).
#
# The matrix has $d^2=1024$ numbers, the network $3rd^2=6144$.
#
# A trap: the key and the value of a real token are made from the same vector, so the key foretells the value, and a memory may *guess* pairs that it never saw. So a third kind of pairs: the real keys and values of a chunk, **dealt anew** at random. What keys share and what values share is as before; nothing can be guessed.


# %%
def rows_kept(Z, ν):
    """Every row of Z at the length ν."""
    return Z / (np.linalg.norm(Z, axis=-1, keepdims=True) + 1e-5) * ν


def write(W, G, ν=None, rate=None, steps=SCHED5):
    """One write of the direction G: Muon, or with a rate the plain step; rows back to ν, if it is given."""
    moved = [w + (muon(g, steps) if rate is None else rate * g) for w, g in zip(W, G, strict=True)]
    return SwiGLU(*(moved if ν is None else map(rows_kept, moved, ν)))


def lengths(W):
    return SwiGLU(*(np.linalg.norm(w, axis=-1, keepdims=True) for w in W))


def told_apart(o, v):
    """How many rows of o have their largest product with their own row of v; by head."""
    return (np.argmax(o @ unit(v).mT, -1) == np.arange(v.shape[-2])).sum(-1)


RATES = (0.3, 1, 3, 10, 30, 100, 300)
ν0 = lengths(W0)


def dealt(v):
    """The values of every head in another order."""
    order = random("deal").permuted(np.tile(np.arange(v.shape[1]), (len(v), 1)), axis=1)
    return np.take_along_axis(v, order[..., None], axis=1)


def count(k, v, asked=None):
    """Pairs told apart, a mean over the heads, by memory; other pairs than the written ones, if they are given."""
    G, GW = v.mT @ k, directions(W0, k, v)
    mesa = np.linalg.solve(k.mT @ k + 0.25 * np.eye(D), G.mT)
    k, v = asked or (k, v)
    reads = {
        "matrix, Mesa": k @ mesa,
        "matrix, Muon": k @ muon(G).mT,
        "matrix, sum": k @ G.mT,
        "network, Muon": read(write(W0, GW, ν0), k),
    }
    counts = {memory: told_apart(o, v).mean() for memory, o in reads.items()}
    plain = [told_apart(read(write(W0, GW, ν0, rate), k), v).mean() for rate in RATES]
    return counts | {"network, gradient": max(plain)}


PAIRS = (8, 16, 32, 64, 128, 256)
MEMORIES = ("network, gradient", "network, Muon", "matrix, sum", "matrix, Muon", "matrix, Mesa")
KINDS = ("random pairs", "real pairs", "real, dealt anew")


def some(n, kind):
    k, v = (x[:, :n] for x in STREAMS["random" if kind == "random pairs" else "real"])
    return k, dealt(v) if kind == "real, dealt anew" else v


by_size = {kind: [count(*some(n, kind)) for n in PAIRS] for kind in KINDS}
counts = {kind: {memory: np.array([x[memory] for x in of]) for memory in MEMORIES} for kind, of in by_size.items()}
for name, of in counts.items():
    print(f"{name}, written at once: {'':4}", *(f"{n:6}" for n in PAIRS))
    for memory, x in of.items():
        print(f"   {memory:26}", *(f"{y:6.1f}" for y in x))
pictures.recall_counts(PAIRS, counts, 64)

# %% [markdown]
# Read the three blocks ([F13b](#F13b)). **On random pairs** the keys are nearly orthogonal and everything works up to 32 pairs, the width. At 64 Mesa is first, and from 128 on the network, as well with a plain step as with Muon [C13.30]. For the matrix Muon helps at 64 pairs and does harm beyond. **On real pairs** the keys share much, and so do the values. The plain writes drown in it, network or not, and Muon rescues them [C13.12]. The matrix with Muon is ahead of the network. **Dealt anew**, plain writes do worse still, Muon rescues fewer, and at 64 pairs that lead is gone [C13.31].
#
# Three doubts, at 64 real pairs: the plain step had one rate for all matrices; the first weights are a single draw; and perhaps the mean is all that is shared. Then parts of the network's write are taken away.

# %%
k64, v64 = real_keys[:, :64], real_values[:, :64]
G64, before = directions(W0, k64, v64), read(W0, k64)
guessed = count(real_keys[:, 64:128], real_values[:, 64:128], asked=(k64, v64))
print("the next 64 pairs written, these asked:", ", ".join(f"{m} {guessed[m]:.1f}" for m in MEMORIES))


def plain(rates):
    moved = (w + rate * g for w, rate, g in zip(W0, rates, G64, strict=True))
    return told_apart(read(SwiGLU(*map(rows_kept, moved, ν0)), k64), v64).mean()


triples = max(map(plain, product((0.1, 1, 10, 100), repeat=3)))
redrawn = [first_weights(f"first weights {n}", HEADS) for n in range(3)]
draws = [told_apart(read(write(W, directions(W, k64, v64), lengths(W)), k64), v64).mean() for W in redrawn]
no_mean = [x - x.mean(1, keepdims=True) for x in (k64, v64)]
centred = told_apart(no_mean[0] @ (no_mean[0].mT @ no_mean[1]), v64).mean()
print(
    f"plain, best of 64 triples of rates: {triples:.1f}; Muon from other first weights:", *(f"{x:.1f}" for x in draws)
)
print(f"matrix, plain sum, keys and values less their means: {centred:.1f}")

free = read(write(W0, G64), k64)
small = read(SwiGLU(*(w + 0.1 * muon(g) for w, g in zip(W0, G64, strict=True))), k64)
only_out = W0._replace(out=W0.out + muon(G64.out))
lone_out = W0._replace(out=muon(G64.out))
parts = {
    "as LaCT writes": read(write(W0, G64, ν0), k64),
    "rows left free, less what the first weights answered": free - before,
    "a tenth of the step, less the same": small - before,
    "W2 alone is written": read(only_out, k64),
    "W2 alone is written, from zero": read(lone_out, k64),
}
apart = {name: told_apart(o, v64).mean() for name, o in parts.items()}
for name, x in apart.items():
    print(f"{name:52} {x:5.1f} of 64")

# %% tags=["nbval-check-output"]
SAID = dict(zip(MEMORIES, (6.9, 36.8, 6.6, 47.1, 55.5), strict=True))
DEALT = dict(zip(MEMORIES, (4.9, 26.5, 3.2, 26.6, 32.2), strict=True))
at64 = {name: {m: x[PAIRS.index(64)] for m, x in of.items()} for name, of in counts.items()}
claim(
    "C13.12",
    "of 64 real pairs the network tells 6.9 apart with a plain step, 36.8 with Muon; a matrix 6.6, 47.1, with Mesa 55.5",
    source="means of 8 heads of minilm_qkv, unit keys and values, first weights random, one write; largest distance",
    error=max(abs(at64["real pairs"][memory] - x) for memory, x in SAID.items()),
    tol=0.3,  # two pairs of one head
)
claim(
    "C13.13",
    "W2 alone, written from zero with Muon, tells 51.2 of the 64 apart, more than a matrix; all three from the first weights 36.8",
    source="the same pairs and first weights; larger distance of the two",
    error=max(abs(apart["W2 alone is written, from zero"] - 51.2), abs(apart["as LaCT writes"] - 36.8)),
    tol=0.3,  # two pairs of one head
)
claim(
    "C13.30",
    "on 128 random pairs the network comes first: 89.6 with Muon and 82.2 with a plain step, against 74.1 with Mesa",
    source="8 sets, the best of seven rates for the plain step; largest distance",
    error=max(
        abs(counts["random pairs"][memory][PAIRS.index(128)] - x)
        for memory, x in {"network, Muon": 89.6, "network, gradient": 82.2, "matrix, Mesa": 74.1}.items()
    ),
    tol=0.3,  # two pairs of one head
)
claim(
    "C13.31",
    "of 64 real pairs dealt anew the network tells 4.9 apart with a plain step, 26.5 with Muon; a matrix 3.2, 26.6, with Mesa 32.2",
    source="the same keys and values, one deal for each head; largest distance",
    error=max(abs(at64["real, dealt anew"][memory] - x) for memory, x in DEALT.items()),
    tol=0.3,  # two pairs of one head
)
claim(
    "C13.32",
    "Muon from the worst of four draws of first weights tells 34.9 of the 64 apart, a plain step with the best of 64 triples of rates 16.0",
    source="64 real pairs; one rate for each matrix from 0.1, 1, 10, 100; larger distance of the two",
    error=max(abs(min(*draws, at64["real pairs"]["network, Muon"]) - 34.9), abs(triples - 16.0)),
    tol=0.3,  # two pairs of one head
)
claim(
    "C13.33",
    "real keys foretell values: with 64 other pairs written, a matrix with Muon tells 13.0 of these 64 apart, the network 5.0",
    source="the next 64 tokens written; larger distance of the two",
    error=max(abs(guessed["matrix, Muon"] - 13.0), abs(guessed["network, Muon"] - 5.0)),
    tol=0.3,  # two pairs of one head
)

# %% [markdown]
# Real pairs can be guessed: with the *next* 64 pairs of the text written instead of these, the matrix with Muon still tells 13.0 of these apart, the network 5.0 [C13.33]. The doubts: a rate for each matrix, the best of 64 triples, lifts the plain step to 16.0, and Muon from any of four first weights stays far ahead [C13.32]. Without their means the plain sum of the matrix tells 21.4 apart: the mean is a part of what the pairs share, not all of it.
#
# What keeps the network from more? First, the step is long for $W_1$ and $W_3$: it moves the hidden vectors, so that a key is read with another $z$ than it was written with. With a tenth of the step, and what the first weights answered taken off, it does nearly as well as the matrix (45.5; with the whole step 37.8). Second, the answers of random first weights are noise to whoever listens for the stored value: $W_2$ alone tells 38.6 apart, and 51.2 if it starts from zero, *more* than the matrix [C13.13]. A key has 64 hidden numbers there instead of 32.
#
# Mind what this is: one write, from first weights that nobody trained. A trained layer learns keys, values, first weights and rates that suit its way of writing; LaCT's Fig. 8 finds a nonlinear memory ahead of a linear one *after* training.
#
# > **Takeaway.** On pairs that share much the orthogonal step is what counts, in a network as in a matrix. To compare the two, ask for pairs that cannot be guessed.

# %% [markdown]
# ## 6 · Chunks that are too short
#
# The direction of $c$ tokens is a sum of $c$ outer products, so it has at most $c$ singular values that are not zero. $G$ has $d$ of them in all. If $c<d$, then $d-c$ directions of the matrix were touched by no token, and an exact $UY^\top$ leaves them alone.
#
# The entries of $G$ are rounded, and the rounding error $\Delta G$ is a matrix of full rank: the zeros become small singular values. By E13.12 those are multiplied by 493. In float32, with errors of $10^{-8}$, nobody would notice [C13.16]. But the reference rounds every direction to bfloat16, which keeps 8 significant bits, before Newton-Schulz starts. (It works the five steps in bfloat16 too; we round the direction only.)
#
# How large is the damage? Let $\varepsilon=\lVert \Delta G\rVert_F/\lVert G\rVert_F$, and suppose that $\Delta G$ points every way alike. $G$ occupies $c$ of the $d$ dimensions on its one side and $c$ of the $rd$ on its other side. The part of $\Delta G$ that lies outside of both has the share $(1-\frac cd)(1-\frac c{rd})$ of $\lVert\Delta G\rVert_F^2$. There nothing but $\Delta G$ is found; $X_0$ has the length 1, so this part is $\varepsilon\sqrt{\cdots}$ long at the start and 493 times that at the end (as long as it stays well below 1, where E13.12 holds). The step that was wanted has $c$ singular values near 1, so its length is $\sqrt c$:
#
# $$ \frac{\text{error}}{\text{size}} \;\approx\; 493\,\varepsilon\,\sqrt{\Bigl(1-\frac cd\Bigr)\Bigl(1-\frac c{rd}\Bigr)\frac1c} . \tag{E13.17} $$

# %%
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256)


def rounded(x, dtype=jnp.bfloat16):
    return np.asarray(jnp.asarray(x).astype(dtype).astype(jnp.float64))


def by_head(x, y):
    """The relative distance of x from y, a mean over the heads."""
    return np.mean(np.linalg.norm(x - y, axis=(1, 2)) / np.linalg.norm(y, axis=(1, 2)))


ask = unit(random("queries").normal(size=(HEADS, 64, D)))
noise, ε = {}, []
for name, (k, v) in STREAMS.items():
    for n in TOKENS:
        G = directions(W0, k[:, :n], v[:, :n])
        coarse = SwiGLU(*map(rounded, G))
        answers, wanted = (read(write(W0, x, ν0), ask) for x in (coarse, G))
        row = by_head(muon(coarse.out), muon(G.out)), by_head(answers, wanted)
        row += (by_head(muon(rounded(G.out, jnp.float32)), muon(G.out)),)
        row += (by_head(muon(coarse.out, CONST5), muon(G.out, CONST5)),)
        noise[name, n] = np.array(row)
        ε.append(by_head(coarse.out, G.out))
ε = np.mean(ε)
c = np.minimum(TOKENS, D)
law = slopes["language"] * ε * np.sqrt((1 - c / D) * (1 - c / HIDDEN) / c)  # E13.17
law = np.where(c < D, law, np.nan)  # from the width on it says nothing
print(f"bfloat16 moves a direction by {ε:.2%}. Errors of the step of W2 and of answers to random queries:")
print("tokens      law | random: step  answers |  real: step  answers  float32   CONST5")
for n, x in zip(TOKENS, law, strict=True):
    a, b = noise["random", n], noise["real", n]
    told = f"{x:8.1%}" if n < D else f"{'none':>8}"
    print(f"{n:6} {told} | {a[0]:12.1%} {a[1]:8.1%} | {b[0]:11.1%} {b[1]:8.1%} {b[2]:8.0e} {b[3]:8.1%}")
shown = {
    "step of W2, random tokens": np.array([noise["random", n][0] for n in TOKENS]),
    "step of W2, real tokens": np.array([noise["real", n][0] for n in TOKENS]),
    "answers, real tokens": np.array([noise["real", n][1] for n in TOKENS]),
}
pictures.rounding_noise(TOKENS, shown, law, D)

# %% tags=["nbval-check-output"]
near = [noise["random", n][0] / x for n, x in zip(TOKENS, law, strict=True) if n < D]
claim(
    "C13.14",
    "rounding a direction of fewer tokens than the width to bfloat16 puts its orthogonalised step off by what E13.17 says, within 15 %",
    source="E13.17, W2, random tokens, 1 to 24 of them at width 32, 8 sets; largest distance of the ratio from 1",
    error=float(np.abs(np.array(near) - 1).max()),
    tol=0.15,
)
claim(
    "C13.15",
    "with 8 random tokens at width 32 the step is off by 22 %, with 64 by 0.27 %, with 64 real ones by 1.8 %",
    source="W2, bfloat16 directions, everything else in float64; largest distance in units of the number said",
    error=max(
        abs(x / y - 1)
        for x, y in ((noise["random", 8][0], 0.22), (noise["random", 64][0], 0.0027), (noise["real", 64][0], 0.018))
    ),
    tol=0.05,
)
claim(
    "C13.16",
    "in float32 it is off by less than 2e-5 from one token on",
    source="the same directions rounded to float32, real tokens, largest of all chunk lengths",
    error=max(noise["real", n][2] for n in TOKENS),
    tol=2e-5,
)

# %% [markdown]
# With one token, three quarters of the step are noise; with 8, a fifth [C13.15]. In the answers less of it arrives, 17 % with one or two tokens and 13 % with 8, because the first weights answer too. With half as many tokens again as the head has channels, random tokens are safe. Real ones are not quite: their direction has small singular values of its own (the last one in section 3 was 0.0046), and with no chunk of ours does the error of the step fall below 1 %.
#
# Where does it matter? Chunks of 2048 tokens at widths of 384 or 768 are long enough; a schedule with short entries is not. The cure costs little:
#
# **Exercise 13.3 ★★★ A step for short chunks.** You have $c<d$ tokens, the vectors $v_i$ as rows of `V` and the hidden vectors $z_i$ as rows of `Z`, and want the orthogonal factor of $V^\top Z$. Every product of matrices that is as wide as the model must go through `times(A, B)`, which rounds its result to bfloat16; the products inside `muon`, and QR decompositions, are exact. Write `short_step(V, Z, times)` so that the rounding is not amplified.
#
# <details><summary>Hint</summary>
#
# Write $V^\top=Q_vR_v$ and $Z^\top=Q_zR_z$ (`np.linalg.qr`). Then $V^\top Z=Q_v\,(R_vR_z^\top)\,Q_z^\top$, and the middle is only $c\times c$: no room for noise.
#
# </details>


# %%
def short_step(V, Z, times):
    return ...  # [d, rd]


def bfloat16_times(A, B):
    return rounded(A @ B)


def test_short(answer):
    for n in (4, 8):
        V, Z = random("exercise 3").normal(size=(n, D)), random("exercise 3, Z").normal(size=(n, HIDDEN))
        got, wanted = np.asarray(answer(V, Z, bfloat16_times)), polar(V.T @ Z)
        if got.shape != wanted.shape:
            return f"your step has shape {got.shape}; expected {wanted.shape}"
        if off(got, wanted) > 0.05:
            naive = off(muon(bfloat16_times(V.T, Z)), wanted)
            return f"with {n} tokens your step is off by {off(got, wanted):.0%}; Newton-Schulz of the product by {naive:.0%}"


check("13.3", short_step, test_short)


# %% jupyter={"source_hidden": true} tags=["solution"]
def short_step_solution(V, Z, times):
    (Qv, Rv), (Qz, Rz) = np.linalg.qr(V.T), np.linalg.qr(Z.T)
    return times(times(Qv, muon(times(Rv, Rz.T))), Qz.T)


check("13.3", short_step_solution, test_short)

# %% [markdown]
# ## 7 · Momentum, and what is left of the rates
#
# With momentum, the direction $G^{(t)}$ of chunk $t$ goes into a buffer, one for each matrix, and the step is made from the buffer (LaCT Sec. 3.2). $\bar\beta^{(t)}$ is the mean over the chunk of a number that every token gives; unrolled, the buffer is a sum that decays:
#
# $$ M^{(t)} = \bar\beta^{(t)}M^{(t-1)}+G^{(t)} = \sum_{i\le t}\bar\beta^{(i+1)}\cdots\bar\beta^{(t)}\,G^{(i)}, \qquad M^{(0)}=0, \qquad W\leftarrow W+\operatorname{Muon}\bigl(M^{(t)}\bigr) . \tag{E13.18} $$
#
# There is no factor $1-\bar\beta$, and with Muon none is needed: $\kappa M$ has the same $U$ and $Y$ as $M$, for every $\kappa>0$, so
#
# $$ \operatorname{Muon}(\kappa M)=\operatorname{Muon}(M) . \tag{E13.19} $$
#
# (Up to the guard $10^{-7}$ of E13.11, which is seen once $\lVert\kappa M\rVert$ is nearly as small.) The same goes for the rates. **Multiply all rates of a matrix by any positive number, and nothing changes.** Inside a chunk the rates say how much a token counts beside the others; with momentum also how much a chunk counts beside the last. How *far* a write goes, they do not say. Every chunk with at least $d$ tokens is written about equally far, whether it held something worth remembering or not.

# %%
k16, v16 = random_keys[:1, :48].swapaxes(0, 1)[None], random_values[:1, :48].swapaxes(0, 1)[None]
first_head = SwiGLU(*(w[:1] for w in W0))
lr = random("three rates").uniform(0.01, 1, size=(1, 48, 1, 3))
run = jax.jit(lambda lr: lact(k16, k16, v16, lr, first_head, chunk=16)[0])
as_given, as_scaled = run(lr), run(lr * np.array([1e-3, 1, 1e3]))
print(f"rates times 0.001, 1 and 1000: outputs move by {off(as_scaled, as_given):.0e}")

name, half = "update_muonmom", 8
ref_k, ref_v, *ref_rates, ref_β = case(name, "k", "v", "lr0", "lr2", "lr1", "momentum")
W, M = weights_of(name), SwiGLU(0.0, 0.0, 0.0)
ν = lengths(W)
for part in (slice(0, half), slice(half, None)):
    G = directions(W, ref_k[:, part], ref_v[:, part], [η[:, part] for η in ref_rates])
    M = SwiGLU(*(ref_β[:, part].mean(1, keepdims=True) * m + g for m, g in zip(M, G, strict=True)))  # E13.18
    W = write(W, M, ν)
two_writes = max(off(x, y) for x, y in zip(W, weights_of(name, "_after2"), strict=True))

# %% tags=["nbval-check-output"]
claim(
    "C13.17",
    "momentum, Muon and rows give the reference's weights after two writes",
    source="E13.18, golden lact, case update_muonmom, float64; largest of three matrices",
    error=two_writes,
    tol=1e-12,
)
claim(
    "C13.18",
    "with Muon, rates of W1, W3, W2 times 0.001, 1 and 1000 move the outputs by less than 0.02 per cent",
    source="E13.19, the package's lact, three chunks of 16 random tokens at width 32; the guard of 1e-7 is what is left",
    error=off(as_scaled, as_given),
    tol=2e-4,
)

# %% [markdown]
# ## 8 · The rows
#
# After the step, every row of every matrix is scaled back to the length that it had *in the first weights*, before any token ($w$ is a row, $\delta$ the same row of the step):
#
# $$ w \;\leftarrow\; \frac{\nu}{\lVert w+\delta\rVert+10^{-5}}\,(w+\delta) . \tag{E13.20} $$
#
# **What happens without?** With plain steps, each direction of E13.6 is a product of the *other* two matrices. If all three have a length of about $x$, a step adds about $\eta x^2$. While $\eta x$ is small, $1/x$ falls by about $\eta$ with every write; after some $1/(\eta x)$ writes $\eta x$ passes 1, and from there on each write about *squares* it, so that the number of its digits doubles: the weights explode. With Muon no step has a singular value above $p_{\max}=\max_{[0,1]}p=1.145$, the hump of [F13a](#F13a) left of the grey. So after $t$ writes each matrix, here $W$, which was $W^{(0)}$ at first, has
#
# $$ \lVert W\rVert_2\le\lVert W^{(0)}\rVert_2+p_{\max}\,t, \qquad \lVert f_W(x)\rVert\le\lVert W_2\rVert_2\,\lVert W_1\rVert_2\,\lVert W_3\rVert_2\,\lVert x\rVert^2 . \tag{E13.21} $$
#
# (The second: $|\operatorname{silu}(a)|\le|a|$, so $\lVert z\rVert\le\lVert W_1x\rVert\,\lVert W_3x\rVert$.) Growth in proportion to $t$, and answers like $t^3$ at most. Run it: 64 writes of 32 real tokens, which is the text four times ([F13d](#F13d)).

# %%
WRITES, C = 64, 32
LONG = 4  # layer 4 head 0
long_k, long_v = (np.tile(x[LONG], (4, 1)).reshape(WRITES, C, D) for x in (real_keys, real_values))
start = SwiGLU(*(w[LONG] for w in W0))
VARIANTS = {
    "gradient, rows free": {"rate": 1.0},
    "gradient, rows kept": {"rate": 1.0, "ν": lengths(start)},
    "Muon, rows free": {},
    "Muon, rows kept": {"ν": lengths(start)},
}


def size(W):
    return np.sqrt(sum(np.sum(w**2) for w in W))


spectral, sizes, answers = [], {}, {}
for name, how in VARIANTS.items():
    W, length, loud = start, [size(start)], [np.sqrt(np.mean(read(start, long_k[0]) ** 2))]
    with np.errstate(over="ignore", invalid="ignore"):  # one of them leaves the numbers of a computer
        for k, v in zip(long_k, long_v, strict=True):
            W = write(W, directions(W, k, v), **how)
            length.append(size(W))
            loud.append(np.sqrt(np.mean(read(W, k) ** 2)))
            if name == "Muon, rows free":
                spectral.append([np.linalg.norm(w, 2) for w in W])
    sizes[name], answers[name] = np.array(length) / length[0], np.array(loud) / loud[0]
allowed = np.array([np.linalg.norm(w, 2) for w in start]) + p_max * np.arange(1, WRITES + 1)[:, None]
doubling = [x["Muon, rows free"][64] / x["Muon, rows free"][32] for x in (sizes, answers)]
overflow = int(np.argmin(np.isfinite(sizes["gradient, rows free"])))
print(
    f"Muon, rows free: from write 32 to 64 the weights grow {doubling[0]:.2f}-fold, the answers {doubling[1]:.1f}-fold"
)
print(f"gradient, rows free: no number any more after write {overflow}")
pictures.blow_up(sizes, answers)

# %% tags=["nbval-check-output"]
claim(
    "C13.19",
    "with Muon and free rows the largest singular value grows by at most the top of the polynomial, 1.145, a write",
    source="E13.21, 64 writes of 32 real tokens; largest ratio of a matrix to its bound",
    error=float((np.array(spectral) / allowed).max()),
    tol=1.0,
)
claim(
    "C13.20",
    "and the growth is real: from write 32 to write 64 the weights double and the answers grow eightfold",
    source="layer 4 head 0, the text four times; largest distance from 2 and 8, relative",
    error=max(abs(doubling[0] / 2 - 1), abs(doubling[1] / 8 - 1)),
    tol=0.15,
)
claim(
    "C13.21",
    "plain steps of rate 1 without the rows overflow float64 within a dozen writes",
    source="the same tokens; the write after which the length is no number",
    error=overflow,
    tol=12,
)

# %% [markdown]
# Without the rows, plain steps leave the numbers of a computer within a dozen writes [C13.21]. Muon's steps stay within E13.21 [C13.19], and here the growth is of its kind: the weights double and the answers grow eightfold when the writes double [C13.20]. With the rows kept, both ways of writing settle ([F13d](#F13d)).
#
# **The rows are a forget gate.** Read E13.20 again: it multiplies the *old* row too, by $\gamma=\nu/\lVert w+\delta\rVert$. If the step is at a right angle to the row, then $\lVert w+\delta\rVert^2=\nu^2+\lVert\delta\rVert^2$, and
#
# $$ \gamma = \frac{1}{\sqrt{1+\lVert\delta\rVert^2/\nu^2}} . \tag{E13.22} $$
#
# And the length of $\delta$ is known beforehand, if the direction has its full rank $d$ (at least $d$ tokens). $W_2$ is wide, $d\times rd$, so its step $S=UY^\top$ with $d$ singular values has $SS^\top=I$: every row has length 1. $W_1$ and $W_3$ are tall: $S^\top S=I$, the squares of all $rd$ rows add up to $d$, so a row has $\lVert\delta\rVert^2=1/r$ on average. So, for first rows all of length $\nu$,
#
# $$ \gamma_2 = \frac1{\sqrt{1+1/\nu^2}}, \qquad \gamma_1=\gamma_3 \approx \frac1{\sqrt{1+1/(r\nu^2)}} . \tag{E13.23} $$
#
# No rate is in it: **the length of the first rows decides how fast the memory forgets.** Long rows: a long memory, in which a write is a small change. Short rows: every chunk overwrites the last.

# %%
CHUNKS, PER = 8, 64


def after_chunks(k, v, norm, kept):
    """Pairs of each chunk told apart after all eight; what is left of W0; pairs of the latest before its write."""
    W = first = SwiGLU(*(norm * w / n for w, n in zip(W0, ν0, strict=True)))  # every row has the length `norm`
    shares = [[1.0] * 3]
    latest = k[:, -PER:], v[:, -PER:]
    for j in range(CHUNKS):
        here = slice(j * PER, (j + 1) * PER)
        never = told_apart(read(W, latest[0]), latest[1]).mean()  # at last: with all others written
        W = write(W, directions(W, k[:, here], v[:, here]), SwiGLU(norm, norm, norm) if kept else None)
        shares.append([np.mean(np.sum(w * o, (1, 2)) / np.sum(o * o, (1, 2))) for w, o in zip(W, first, strict=True)])
    o = read(W, k)
    counts = [told_apart(o[:, j : j + PER], v[:, j : j + PER]).mean() for j in range(0, CHUNKS * PER, PER)]
    return np.array(counts), np.array(shares), never


def gates(norm):
    """E13.22 with the lengths of E13.23."""
    return {"W1": (1 + 1 / (RATIO * norm**2)) ** -0.5, "W2": (1 + 1 / norm**2) ** -0.5}


NORMS, ROWS = (0.25, 0.5, 1, 2, 4, 8), ("kept", "free")
print(f"rows of length 0.5, r = 1: a write leaves {(1 + 1 / 0.5**2) ** -0.5:.3f} of W1")
horizons = {
    (norm, rows): {name: after_chunks(*stream, norm, rows == "kept") for name, stream in STREAMS.items()}
    for norm in NORMS
    for rows in ROWS
}
print("told apart of 64, oldest chunk to latest; after the semicolon the latest before its write")
for (norm, rows), of in horizons.items():
    if rows == "kept" or norm == 1:
        left, gate = of["random"][1][1], gates(norm)
        print(f"ν {norm:4g}, rows {rows}: a write leaves {left[0]:.3f} of W1, {left[2]:.3f} of W2", end="")
        print(f" (gates {gate['W1']:.3f}, {gate['W2']:.3f})" if rows == "kept" else "")
        for name, (told, _, never) in of.items():
            print(f"   {name:6} pairs ", *(f"{x:5.1f}" for x in told), f"; {never:5.1f}")
gap = max(
    abs(horizons[norm, "kept"]["random"][1][1][i] - gates(norm)[n]) for norm in NORMS for i, n in ((0, "W1"), (2, "W2"))
)


def draw_horizon(norm, rows):
    of = horizons[norm, rows]
    counts = {f"{name} pairs": of[name][0] for name in STREAMS}
    left = of["random"][1]
    law = gates(norm) if rows == "kept" else {}
    never = [of[name][2] for name in STREAMS]
    return pictures.horizon(norm, rows, counts, {"W1": left[:, 0], "W2": left[:, 2]}, law, PER, never)


explore(draw_horizon, norm=NORMS, rows=list(ROWS), start={"norm": 1, "rows": "kept"})

# %% tags=["nbval-check-output"]
claim(
    "C13.22",
    "one write leaves of W1 and W2 the share that the length of the first rows says",
    source="E13.23 for six lengths, random tokens, 8 sets; largest difference of the shares, chunk of 64",
    error=float(gap),
    tol=0.01,
)

# %% [markdown]
# Drag ([F13e](#F13e)). The dotted lines are the latest chunk *before* its write: what can be guessed. **Random pairs**, rows kept: with a first length of 1 three chunks are left. With 2 the memory reaches back further and the latest hardly suffers (56.2 for 59.5); with 4 and 8 all ages become alike, at the price of the latest. Very short rows do not help the latest either (28.6 with 0.25). **Real pairs**: with a length of 1, a chunk that is four writes old or older is told apart no better than one without a write. With the rows free nothing is taken away, but everything piles up: old random chunks fade all the same, and of the real ones none is far above a guess.
#
# The reference's language layer starts $W_1$ and $W_3$ from $\frac12 I$ plus a part of low rank. Were the rows just half a unit long, at $r=1$, a single write would leave 0.447 of them (E13.23). Training may lengthen the rows; that is how such a layer can learn to remember longer.
#
# **To which length?** The reference keeps the *initial* lengths; the paper's formula, as the reading prints it, is $W\leftarrow\operatorname{L2Norm}(W-\operatorname{Muon}(g))$, whose plain meaning is rows of length 1. With $\nu=1$ for all rows, training could not choose the memory's length.
#
# **A trap: the zero row.** E13.20 divides safely, thanks to $10^{-5}$. Its *derivative* does not: $\lVert w\rVert$ has no slope at $w=0$, and JAX's `norm` answers NaN there, where torch answers 0. A row is zero when it was initialised so, or a key when the token is padding, and one NaN is enough for the whole gradient. The package takes the root only where the square is positive.

# %%
ref_W, ref_k, ref_v = weights_of("update_muon"), *case("update_muon", "k", "v")
G = directions(ref_W, ref_k, ref_v, case("update_muon", "lr0", "lr2", "lr1"))
after = weights_of("update_muon", "_after1")
kept_first, kept_one = (write(ref_W, G, ν) for ν in (lengths(ref_W), SwiGLU(1.0, 1.0, 1.0)))
to_first, to_one = ([off(x, y) for x, y in zip(W, after, strict=True)] for W in (kept_first, kept_one))
print(
    "rows to the first length: off by", *(f"{x:.0e}" for x in to_first), "; to length 1:", *(f"{x:.0%}" for x in to_one)
)

l2_in, l2_ct, l2_grad = case("pieces_a", "l2_in", "l2_ct", "l2_grad")


def plain_unit(x):
    return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-5)


def package_unit(x):
    return x / (row_length(x) + 1e-5)


plain_slope, safe_slope = (jax.grad(lambda x: jnp.sum(f(x) * l2_ct))(l2_in) for f in (plain_unit, package_unit))  # noqa: B023
zero_rows = int(np.sum(~l2_in.any(-1)))
not_a_number = int(np.isnan(plain_slope).sum())
print(
    f"zero rows: {zero_rows} of {l2_in[..., 0].size}; slopes of the plain norm that are NaN: {not_a_number} of {l2_in.size}"
)

# %% tags=["nbval-check-output"]
claim(
    "X13.2",
    "after the step a row is normalised to length 1",
    source="LaCT Sec. 3.2 as its reading prints it, L2Norm taken so; golden update_muon, the smallest distance of three matrices",
    error=min(to_one),
    tol=0.01,
    expect=False,
)
claim(
    "C13.23",
    "a row goes back to its length in the first weights",
    source="E13.20, golden update_muon, largest of three matrices, float64",
    error=max(to_first),
    tol=1e-12,
)
claim(
    "X13.3",
    "x / (norm(x) + 1e-5), written so in JAX, has a finite gradient everywhere",
    source="the reference's normalisation, translated word by word; golden pieces_a, number of slopes that are NaN",
    error=not_a_number,
    tol=0,
    expect=False,
)
claim(
    "C13.24",
    "with the length of the package the gradient is the reference's, at the zero row too",
    source="golden pieces_a, l2_grad",
    error=off(safe_slope, l2_grad),
    tol=1e-13,
)

# %% [markdown]
# **Exercise 13.4 ★★ A memory of a given length.** Write `first_norm(share, writes)`: the length $\nu$ of the first rows of $W_2$ for which the given share of a row is left after so many writes, by E13.23. What does it cost?
#
# <details><summary>Hint</summary>
#
# $\gamma_2^{n}=$ share. The cost: look at the latest chunk in [F13e](#F13e) for large $\nu$.
#
# </details>


# %%
def first_norm(share, writes):
    return ...


def test_norm(answer):
    for share, writes in ((0.5, 1), (0.5, 16), (0.9, 100), (0.01, 3)):
        ν = answer(share, writes)
        left = (1 + 1 / ν**2) ** (-writes / 2)
        if abs(left - share) > 1e-6:
            return f"with rows of {ν:.3f} a share of {left:.3f} is left after {writes}, not {share}"


check("13.4", first_norm, test_norm)


# %% jupyter={"source_hidden": true} tags=["solution"]
def first_norm_solution(share, writes):
    return (share ** (-2 / writes) - 1) ** -0.5  # long rows make every write a small change, the latest too


check("13.4", first_norm_solution, test_norm)

# %% [markdown]
# ## 9 · Two places where the reference code does something else
#
# **Two matrices as one.** A fast path of the reference stacks $G_1$ and $G_3$, both $rd\times d$, into one matrix of $2rd\times d$ and orthogonalises that: one call instead of two. Is that the same? The stack has $d$ singular values, not $2d$. With $Q$ its orthogonal factor and $Q_1$, $Q_3$ the halves,
#
# $$ Q^\top Q = Q_1^\top Q_1+Q_3^\top Q_3=I . \tag{E13.24} $$
#
# The squared singular values of *both together* add up to $d$, where two separate steps would have $d$ each. So the step is shorter, by about $\sqrt2$ if the two are alike, and what one of the two has too little of is taken from the other.
#
# **The initial weights dropped.** The reference's minimal bidirectional file writes the orthogonalised directions *over* the weights and then adds the raw directions to them: $W\leftarrow\operatorname{Muon}(G)+G$ in place of $W+\operatorname{Muon}(G)$. The trained first weights are then in the memory only through $G$ and through the lengths of their rows.

# %%
name, C8 = "fused_muonmom_T20_c8", 8
q, k, v, *lr, β = case(name, "q", "k", "v", "lr0", "lr2", "lr1", "momentum")


def causal(together):
    """Chunk by chunk, read, then written with momentum and Muon; W1 and W3 orthogonalised together or each alone."""
    W, M, o = weights_of(name), SwiGLU(0.0, 0.0, 0.0), []
    ν = lengths(W)
    for i in range(0, q.shape[1], C8):
        part = slice(i, i + C8)
        o.append(read(W, q[:, part]))
        G = directions(W, k[:, part], v[:, part], [η[:, part] for η in lr])
        M = SwiGLU(*(β[:, part].mean(1, keepdims=True) * m + g for m, g in zip(M, G, strict=True)))
        S = [muon(m) for m in M]
        if together:
            S[:2] = np.split(muon(np.concatenate(M[:2], axis=1)), 2, axis=1)
        W = SwiGLU(*(rows_kept(w + s, n) for w, s, n in zip(W, S, ν, strict=True)))
    return np.concatenate(o, 1)


(reference_o,) = case(name, "o")
o_stacked, o_apart = causal(True), causal(False)
print(
    f"off from the reference's outputs: stacked {off(o_stacked, reference_o):.0e}, alone {off(o_apart, reference_o):.0%}"
)

ref_W, ref_q = weights_of("bidir_muon_aspublished_T20"), *case("bidir_muon_aspublished_T20", "q")
G = directions(
    ref_W, *case("bidir_muon_aspublished_T20", "k", "v"), case("bidir_muon_aspublished_T20", "lr0", "lr2", "lr1")
)
as_published = read(SwiGLU(*(rows_kept(muon(g) + g, n) for g, n in zip(G, lengths(ref_W), strict=True))), ref_q)
intended = read(write(ref_W, G, lengths(ref_W)), ref_q)
(published_o,), (intended_o,) = case("bidir_muon_aspublished_T20", "o"), case("bidir_muon_intended_T20", "o")
print(f"bidirectional file: published and intended outputs differ by {off(published_o, intended_o):.0%}")

# %% tags=["nbval-check-output"]
claim(
    "X13.4",
    "orthogonalising the directions of W1 and W3 stacked is orthogonalising both",
    source="the reference's fused path, golden fused_muonmom_T20_c8, against each alone",
    error=off(o_apart, reference_o),
    tol=0.01,
    expect=False,
)
claim(
    "C13.25",
    "stacked, we get the reference's outputs; what is left is its other place for the 1e-5 of the rows",
    source="E13.24, golden fused_muonmom_T20_c8, float64",
    error=off(o_stacked, reference_o),
    tol=2e-5,
)
claim(
    "X13.5",
    "the minimal bidirectional file adds the orthogonalised step to the weights",
    source="golden bidir_muon, as published against as intended",
    error=off(published_o, intended_o),
    tol=0.01,
    expect=False,
)
claim(
    "C13.27",
    "it is Muon(G) + G, with rows of the first lengths; the intended one is W + Muon(G)",
    source="golden bidir_muon_aspublished_T20 and bidir_muon_intended_T20, float64; the larger of two",
    error=max(off(as_published, published_o), off(intended, intended_o)),
    tol=1e-12,
)

# %% [markdown]
# ## 10 · The bill
#
# A product of an $m\times n$ with an $n\times l$ matrix takes $2mnl$ operations. We count the forward pass. **The tokens** (E13.8 and the read): nine products of $2\cdot c\cdot d\cdot rd$, together $18\,rd^2c$ a chunk. **Muon**, for a matrix of $d\times rd$ with $r\ge1$: a step has $A=XX^\top$ with $2\,d\cdot rd\cdot d$, $A^2$ with $2d^3$, and the product with $X$ with $2\,d\cdot d\cdot rd$; together $2d^3(2r+1)$. Five steps and three matrices make $30\,d^3(2r+1)$. The quotient:
#
# $$ \frac{\text{Muon}}{\text{tokens}}=\frac{30\,d^3(2r+1)}{18\,rd^2c}=\frac{5\,d\,(2r+1)}{3\,r\,c} . \tag{E13.25} $$
#
# The number of heads and of sequences cancels. What counts is the chunk against the *width of a head*. The paper says that large chunks amortise the overhead of the matrix updates. Put in its own sizes:
#
# - the language models: 4 heads, $r=1$, chunks of 2048 (the defaults of the reference's configuration). The 3B model has $d=3072/4=768$, which fits its state of $3rd=2304$ numbers a channel; the 760M model has heads of $d=384$;
# - view synthesis: a state of $6d_{\text{model}}^2$ a block. Since it is $3r\,d_{\text{model}}^2$ over the number of heads, that is one head of $d=768$ with $r=2$ (more heads would have a larger $r$ and a smaller $d$); one chunk is all of the 48 input images of $512\times512$, 196 608 tokens.
#
# The formula first, against the products that the package really makes.


# %%
def of_a_chunk(d, r, c):
    """Counted in the package's program for two chunks, of which one is written: Muon, and half of the tokens."""
    token, wide, tall = (1, 2 * c, 1, d), (1, d, r * d), (1, r * d, d)
    arrays = [jax.ShapeDtypeStruct(x, jnp.float32) for x in (token, token, token, (1, 2 * c, 1, 3), tall, tall, wide)]

    def run(muon):
        def two_chunks(q, k, v, lr, *W):
            o, state = lact(q, k, v, lr, SwiGLU(*W), chunk=c, muon=muon)
            return o, state.pending, state.weights

        return product_flops(jax.make_jaxpr(two_chunks)(*arrays))

    return run(True) - run(False), run(False) / 2


MODELS = {"760M": (384, 1, 2048), "3B": (768, 1, 2048), "view synthesis": (768, 2, 196_608)}
quotient = {name: costs.muon_share(d, r, n) for name, (d, r, n) in MODELS.items()}
counted_quotient = {name: float(np.divide(*of_a_chunk(*size))) for name, size in MODELS.items()}
for name, (d, r, n) in MODELS.items():
    tenth = n * quotient[name] / 0.1
    print(
        f"{name:15} d {d}, r {r}, chunk {n:7,}: Muon / tokens {quotient[name]:.4f}, counted {counted_quotient[name]:.4f};"
        f" a tenth at {tenth:,.0f}"
    )
CHUNK_SIZES = 2.0 ** np.arange(7, 19)
lines = {name: costs.muon_share(d, r, CHUNK_SIZES) for name, (d, r, _) in MODELS.items()}
pictures.muon_cost(CHUNK_SIZES, lines, {name: (MODELS[name][2], x) for name, x in quotient.items()})

# %% tags=["nbval-check-output"]
claim(
    "C13.28",
    "the products of the package are those of the formula",
    source="E13.25, counted in the package's program for the three models; largest relative difference",
    error=max(abs(counted_quotient[name] / x - 1) for name, x in quotient.items()),
    tol=1e-12,
)
claim(
    "X13.6",
    "chunks of 2048 tokens amortise Muon in the language models",
    source="LaCT Sec. 3.2, read as: less than a tenth of the memory's products for the tokens, forward; the smaller of 760M and 3B",
    error=min(quotient["760M"], quotient["3B"]),
    tol=0.1,
    expect=False,
)
claim(
    "C13.29",
    "Muon costs 0.94 and 1.88 times the products of the tokens at 760M and 3B, and 1.6 per cent in view synthesis",
    source="E13.25; largest distance in units of the number said",
    error=max(abs(x / y - 1) for x, y in zip(quotient.values(), (0.94, 1.88, 0.016), strict=True)),
    tol=0.02,
)

# %% [markdown]
# In the language models Muon takes about as many operations as all products of the memory for the tokens, or twice as many. For a tenth the chunks would have to be 19 200 and 38 400 tokens long, and the second is longer than the sequences of 32K that the models were trained on. In view synthesis the sentence of the paper holds. A whole model has other products too: in the paper's Table 3, at 3B, Muon lowers the throughput of training from 4.9K to 4.3K tokens a second and GPU, by an eighth. Whether that is "amortised" is a matter of taste. (All this is operations, not seconds.)
#
# E13.25 also says what would help: narrower heads, in proportion (at the price of a smaller state). A larger $r$ helps little, since $(2r+1)/r$ only falls from 3 to 2. And $A$ and $A^2$ are symmetric: whoever computes half of them saves up to a third at $r=1$.
#
# ## 11 · What was settled
#
# **The answer.** Of 64 real pairs that are written with one step from random first weights, a plain gradient step lets the network tell 6.9 apart on average of eight heads with the best of seven rates, 16.0 with the best rates for each matrix [C13.32]; with Muon it is 36.8, and a single matrix goes from 6.6 to 47.1 [C13.12]. With the values dealt anew, so that keys do not foretell them, Muon brings both to 27 [C13.31]. So Muon decides, and not the network. For one matrix from zero and orthonormal values we know why: Muon answers with the *root* of the keys' products, half of the way from the sum to Mesa [C13.10]. On 128 random pairs, which share nothing, the network is ahead of the matrix, with a plain step too [C13.30].
#
# The other parts follow from the loss, which knows directions only [C13.1], [C13.2]. With Muon the rates lose their scale [C13.18], and with chunks of at least $d$ tokens the length of the first rows is a forget gate [C13.22].
#
# | section | claims |
# |---|---|
# | the loss | C13.1, C13.2 |
# | three gradients | C13.3, C13.4 |
# | Muon | C13.5, C13.6, C13.7, C13.8, C13.9 |
# | half of Mesa | C13.10, C13.11 |
# | one write | C13.12, C13.13, C13.30, C13.31, C13.32, C13.33 |
# | short chunks | C13.14, C13.15, C13.16 |
# | momentum and rates | C13.17, C13.18 |
# | rows | C13.19, C13.20, C13.21, C13.22, C13.23, C13.24 |
# | the reference code | C13.25, C13.27 |
# | the bill | C13.28, C13.29 |
#
# **Where papers and reference codes differ from what runs.**
#
# | what is said or done | what we found | |
# |---|---|---|
# | LaCT Eq. 7: one rate $\eta_i$ for a token | three, one for each matrix; the best single rate misses the directions of the reference by 61 % | X13.1 |
# | LaCT Sec. 3.2: L2Norm after the step, read as length 1 | to the length in the *first* weights [C13.23], and that length is the gate | X13.2 |
# | $x/(\lVert x\rVert+10^{-5})$, translated word by word | in JAX the gradient of a zero row is NaN | X13.3 |
# | the reference's fused path | one orthogonal matrix of two directions; the outputs of the golden case differ by a third | X13.4 |
# | the reference's minimal bidirectional file | $\operatorname{Muon}(G)+G$: the first weights are dropped | X13.5 |
# | LaCT: large chunks amortise the update | with 2048 tokens 0.94 and 1.88 times the memory's own products, forward; in view synthesis 1.6 % [C13.29] | X13.6 |
# | the reference rounds directions to bfloat16 first | noise times 493, if a chunk has fewer tokens than the head has channels | C13.14 |
#
# **Three questions for the group.**
#
# 1. For a matrix Muon goes half of the way to Mesa, in one step and without a solver. Would two chunks with the same pairs go further? What would a second write add, given that the loss looks at no error?
# 2. Every write goes equally far, whatever the chunk holds. Which part of a layer could still make a dull chunk count less?
# 3. The length of the first rows is one number a row, learned once for all texts. What would you lose, and win, with a gate that depends on the chunk?
#
# **Minutes per beat, for whoever leads.** Section 1: 6. Section 2: 10, with E13.6 at the board. Section 3: 10, half of it at [F13a](#F13a). Section 4: 9. Section 5: 9, and let people guess the table first. Section 6: 7. Section 7: 3. Section 8: 9, most of it at [F13e](#F13e). Section 9: 4. Section 10: 5. Questions: 3. People get stuck at E13.14, and at the thought that rates do not set the size of a step.
#
# **Next.** [Notebook 05](05-chunkwise-mesa.ipynb) shows what chunks do for a rule that looks at errors. [Notebook 00](00-start-here.ipynb) has the map.
