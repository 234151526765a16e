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
#     title: Conjugate gradients
#     question: How many CG steps does a token need to 1e-4, and what decides it?
#     minutes: 75
#     seconds: 15
#     settles: 16 to 19 steps on eight real heads in exact arithmetic, though their condition numbers differ tenfold; 18 to 28 in float32; about 6 with a preconditioner; and what sixteen bits or a guard of 1e-5 break.
# ---

# %% [markdown]
# # 04 · Conjugate gradients
#
# **How many steps of conjugate gradients does a token of a Mesa layer need until its residual has fallen to $10^{-4}$, and what decides that number?**
#
# At every token a Mesa layer solves a linear system.
# MesaNet (arXiv 2506.05233v2) trains with 30 steps of conjugate gradients (CG) for each, and reports that about 9 are enough on average when every token may stop at a relative residual of $10^{-4}$ (Sec. 5).
# The textbook says that the condition number decides.
# On the eight real heads below, the textbook's formula promises 30 to 110 steps. They need 16 to 19 in exact arithmetic, though their condition numbers differ tenfold, and 18 to 28 in float32.
# This notebook derives every formula that goes into those numbers, runs it, and finds out where the difference comes from.
#
# | | |
# |---|---|
# | **Time** | 75 minutes to read, about 20 seconds to run on two cores, no GPU |
# | **You need** | [notebook 02](02-correlated-keys.ipynb): why a layer would solve a regression at all. The gradient of a quadratic and the eigenvalues of a symmetric matrix. |
# | **In a hurry** | [Two paths](#F04a) (what CG does), [the polynomial](#F04b) (why it is fast), [sixteen bits](#F04d) (how it breaks), [the answer](#F04g) |
#
# Symbols, once. Vectors are columns, products of matrices are read from left to right.
#
# | here | MesaNet | meaning |
# |---|---|---|
# | $A = H + \Lambda$ | $H_t + \Lambda$ | the matrix, $D \times D$, symmetric; $\Lambda$ is diagonal, its entries are called $\lambda$ |
# | $x_j$, $x_\star$ | $q_t^*$ | the answer after $j$ steps, and the exact one |
# | $e_j = x_\star - x_j$ | | the error |
# | $r_j = q - A x_j = A e_j$ | $r$ | the residual: the error that can be seen without knowing $x_\star$ |
# | $\mu_1 \le \dots \le \mu_D$ | | the eigenvalues of $A$; $\kappa = \mu_D / \mu_1$ is the condition number |
# | $\lVert x \rVert_A = \sqrt{x^\top A x}$ | | length measured by $A$; plain $\lVert x \rVert$ is the usual length |
# | $\varepsilon$, $u$ | $\epsilon$ | the tolerance; the unit roundoff, $2^{-24}$ in float32 |
#
# Two lines of recall. After token $t$ the layer holds $G = \sum_{i\le t} \zeta_{ti}\beta_i\, k_i v_i^\top$ and $H = \sum_{i\le t} \zeta_{ti}\beta_i\, k_i k_i^\top$: sums over the past, where $\beta_i$ is the input gate and $\zeta_{ti} = \gamma_{i+1}\cdots\gamma_t$ what the forget gates have left of token $i$.
# The ridge regression that maps all retained keys to their values has the solution $\Phi = G^\top (H+\Lambda)^{-1}$, and the token reads $o = \Phi q$. (The paper writes our $G^\top$ as $G$.)

# %%
import inspect

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

from ttt_teach import CG, PCG, mesa
from ttt_teach.explore import conjugate_gradient as pictures
from ttt_teach.explore import explore
from ttt_teach.ledger import check, claim
from ttt_teach.solvers import cg_trace, steps_to
from ttt_teach.tasks import SHIPPED, load_qkv, minilm_qkv, unit

key_rotation, key_near, key_vector = jax.random.split(jax.random.key(4), 3)

# %% [markdown]
# The input for most of what follows: eight heads of a real, pretrained encoder on 512 tokens of English.
# Keys and queries are scaled to length 1, as MesaNet does. $\Lambda = 0.25\,I$, the smallest value that MesaNet allows. No forgetting and $\beta = 1$: the case in which $H$ only grows.

# %%
LAM = 0.25
layers = [minilm_qkv("plain", layer) for layer in (1, 4)]
q, k, v = (np.concatenate([getattr(x, name).swapaxes(0, 1) for x in layers]).astype(float) for name in "qkv")
q, k = unit(q), unit(k)  # [8 heads, 512 tokens, 32]
HEADS, T, D = q.shape
NAMES = [f"layer {layer} head {head}" for layer in (1, 4) for head in range(4)]

A = k.swapaxes(1, 2) @ k + LAM * np.eye(D)  # [8, 32, 32], at the last token
b = q[:, -1]  # the queries at the last token
x_star = np.linalg.solve(A, b[..., None])[..., 0]
mu = np.linalg.eigvalsh(A)  # ascending, and all positive: E04.2
kappa = mu[:, -1] / mu[:, 0]
for name, m, c in zip(NAMES, mu, kappa, strict=True):
    print(f"{name}: eigenvalues from {m[0]:.2f} to {m[-1]:.0f}, condition number {c:.0f}")


def off(x, y):
    """How far x is from y, relative to y."""
    return np.linalg.norm(x - y) / np.linalg.norm(y)


# %% tags=["nbval-check-output"]
claim(
    "C04.1",
    "the condition numbers of the eight real heads at token 512 run from 27 to 294",
    source="minilm_qkv 'plain', unit keys, lam 0.25, beta 1, no forgetting",
    error=max(abs(kappa.min() - 27), abs(kappa.max() - 294)),
    tol=0.5,
)

# %% [markdown]
# ## 1 · The system, and the bowl it is the bottom of
#
# The read is $o = G^\top (H+\Lambda)^{-1} q$. Brackets can be set from the right:
#
# $$ A\,x_\star = q, \qquad o = G^\top x_\star, \qquad A = H + \Lambda. \tag{E04.1} $$
#
# So the layer never needs the inverse, or $\Phi$. It needs one direction: the query, after $A^{-1}$ has acted on it.
# A product with $A$ takes $D^2$ multiplications, so $J$ steps of a method that makes one product a step take $JD^2$.
# A direct solve (Cholesky) takes about $D^3/6$, and for $D = 128$ that is as much as 21 products.
#
# Arithmetic is therefore not the reason for CG. The reason is that a product $H_t\,p$ can be made for all tokens of a chunk at once, as linear attention does it, without ever writing down the matrices $H_t$. A factorisation needs each of them.
#
# $A$ is *positive definite*: for every $x \ne 0$
#
# $$ x^\top A x = \sum_{i\le t} \zeta_{ti}\beta_i\,(k_i^\top x)^2 + \sum_m \lambda_m x_m^2 > 0, \tag{E04.2} $$
#
# since no term is negative and $\lambda_m > 0$. Now consider the function
#
# $$ f(x) = \tfrac12\, x^\top A x - q^\top x . \tag{E04.3} $$
#
# Its slope in the direction of entry $i$ is $\tfrac12\sum_n (A_{in} + A_{ni})\,x_n - q_i = (Ax)_i - q_i$, since $A$ is symmetric. So
#
# $$ \nabla f(x) = Ax - q = -r . \tag{E04.4} $$
#
# The gradient is zero exactly where the system is solved, and **the residual points downhill**.
#
# How high are we above the bottom? Write $x = x_\star - e$ and multiply out:
#
# $$ f(x_\star - e) = \underbrace{\tfrac12 x_\star^\top A x_\star - q^\top x_\star}_{f(x_\star)} \;-\; \underbrace{e^\top (A x_\star - q)}_{0} \;+\; \tfrac12\, e^\top A e
#    = f(x_\star) + \tfrac12\,\lVert e\rVert_A^2 . \tag{E04.5} $$
#
# By E04.2 the last term is positive unless $e = 0$: one bottom, no other. To go down in $f$ is to shrink the error in the $A$-norm. This is the length that CG cares about.
#
# First check, against the regression itself: one direction is enough. The form `"definition"` of the rule minimises the stated loss and knows nothing of E04.1.

# %%
WORST = 5  # layer 4 head 1 has the largest condition number


def one_head(x):
    return x[None, WORST, :64].swapaxes(0, 1)[None]  # [B, T, H, D] with B = H = 1 and 64 tokens


defined, _ = mesa(*map(one_head, (q, k, v)), np.ones((1, 64, 1)), np.full((1, D), LAM), form="definition")
keys, values = k[WORST, :64], v[WORST, :64]
one_direction = np.linalg.solve(keys.T @ keys + LAM * np.eye(D), q[WORST, 63])
read = (keys.T @ values).T @ one_direction
print(f"one direct solve at D = 128: the multiplications of {128**3 / 6 / 128**2:.0f} products")
print(f"o from one direction {read[0]:.15f} ..., from the minimised loss {defined[0, -1, 0, 0]:.15f} ...")


def f(x):
    return 0.5 * x @ A[WORST] @ x - b[WORST] @ x  # E04.3


x = np.asarray(jax.random.normal(key_vector, D))
slope, residual, e = jax.grad(f)(x), b[WORST] - A[WORST] @ x, x_star[WORST] - x
height = f(x) - f(x_star[WORST])
half = 0.5 * e @ A[WORST] @ e
print(f"height above the bottom {height:.12f}, half the squared A-norm of the error {half:.12f}")

# %% tags=["nbval-check-output"]
claim(
    "C04.2",
    "reading along one solved direction gives what the minimised regression loss gives",
    source="E04.1; MesaNet Eqs. 4-8",
    error=off(read, defined[0, -1, 0]),
    tol=1e-13,
)
claim(
    "C04.3",
    "the gradient of the quadratic is minus the residual, its height half the squared A-norm of the error",
    source="E04.4 and E04.5, gradient by automatic differentiation",
    error=max(off(slope, -residual), abs(height / half - 1)),
    tol=2e-15,
)

# %% [markdown]
# ## 2 · Steepest descent, and why it zigzags
#
# Start at $x_0 = 0$ and walk along the residual. How far? Along $x + \alpha r$ the slope is, by E04.4 at the new point,
#
# $$ \frac{d}{d\alpha} f(x+\alpha r) = r^\top\nabla f(x+\alpha r) = -r^\top (q - Ax - \alpha A r) = -r^\top r + \alpha\, r^\top A r , $$
#
# which is zero at
#
# $$ \alpha = \frac{r^\top r}{r^\top A r}, \qquad x^+ = x + \alpha r, \qquad r^+ = r - \alpha A r . \tag{E04.6} $$
#
# The middle expression above also says that $r^\top r^+ = 0$: we stop where the slope along the line has vanished, so the next direction is at a right angle to this one. That is the zigzag.
#
# **How fast?** An exact search ends at least as low in $f$, and by E04.5 at least as near in the $A$-norm, as any other step on the same line. So compare with the fixed step $\bar\alpha = 2/(\mu_1+\mu_D)$.
# With it, $e^+ = e - \bar\alpha r = (I - \bar\alpha A)\,e$. Write $e = \sum_i c_i u_i$ in unit eigenvectors of $A$. Then
#
# $$ \lVert e^+\rVert_A^2 = \sum_i \mu_i\,(1-\bar\alpha\mu_i)^2 c_i^2 \;\le\; \max_i (1-\bar\alpha\mu_i)^2\; \lVert e\rVert_A^2 . $$
#
# The factor $1-\bar\alpha\mu$ falls on a straight line from $\frac{\mu_D-\mu_1}{\mu_D+\mu_1}$ at $\mu_1$ to minus the same at $\mu_D$, so nothing between is larger in size. Divide by $\mu_1$:
#
# $$ \lVert e_{j+1}\rVert_A \;\le\; \frac{\kappa-1}{\kappa+1}\,\lVert e_j\rVert_A . \tag{E04.7} $$
#
# **Can it be that slow?** Take $A = \mathrm{diag}(1,\kappa)$ and $q = (1,1)$. Then $r_0 = (1,1)$, and E04.6 gives $\alpha = 2/(1+\kappa)$: this *is* $\bar\alpha$. The new residual is
# $\left(1-\frac{2}{1+\kappa},\,1-\frac{2\kappa}{1+\kappa}\right) = \frac{\kappa-1}{\kappa+1}\,(1,-1)$. From $(1,-1)$ the same calculation returns to a multiple of $(1,1)$. Every step shrinks residual and error by exactly this factor, forever.
#
# To reach $\varepsilon$ one needs $\ln(1/\varepsilon) \big/ \ln\frac{\kappa+1}{\kappa-1}$ steps. Since $\ln\frac{1+z}{1-z} = 2z + \tfrac23 z^3 + \dots$ with $z = 1/\kappa$, that is about $\frac{\kappa}{2}\ln\frac1\varepsilon$.


# %%
def steepest_descent(A, q, steps):
    x = np.zeros_like(q)
    path = [x]
    for _ in range(steps):
        r = q - A @ x
        x = x + (r @ r) / (r @ A @ r) * r  # E04.6
        path.append(x)
    return np.array(path)


def a_norm(A, e):
    return np.sqrt(np.einsum("...i,ij,...j->...", e, A, e))


def slowest(A, q, steps=50):
    """The largest factor by which one of the steps shrinks the error, in units of E04.7, and the smallest."""
    error = a_norm(A, np.linalg.solve(A, q) - steepest_descent(A, q, steps))
    c = np.linalg.cond(A)
    shrink = error[1:] / error[:-1] / ((c - 1) / (c + 1))
    return shrink.max(), shrink.min()


worst_case = [slowest(np.diag([1.0, c]), np.ones(2), steps=8) for c in (2, 5, 20, 294)]
real = [slowest(A[h], b[h])[0] for h in range(HEADS)]
promised = np.log(1e4) / np.log((kappa + 1) / (kappa - 1))
print(f"steepest descent to 1e-4 at condition number {kappa[WORST]:.0f}: E04.7 promises {promised[WORST]:.0f} steps")
print(f"the slowest of 50 steps on the eight heads, in units of E04.7: {min(real):.3f} to {max(real):.3f}")

# %% tags=["nbval-check-output"]
claim(
    "C04.4",
    "from the worst start every step of steepest descent shrinks the error by exactly (k-1)/(k+1)",
    source="E04.7 with equality: A = diag(1, k), q = (1, 1), k = 2, 5, 20, 294",
    error=np.abs(np.array(worst_case) - 1).max(),
    tol=5e-12,
)

# %% [markdown]
# Drag both sliders. The grey ellipses are lines of equal height of $f$. Orange circles are steepest descent; blue squares are the method that section 3 derives. In two dimensions blue is never there later than step 2.

# %%
STEPS = 48


@jax.jit
@jax.vmap
def solve_all(A, q):
    """48 steps of CG from zero for every system of a batch: iterates, true and carried residuals."""
    return cg_trace(lambda p: A @ p, q, max_steps=STEPS)


CONDITIONS = (2, 5, 10, 20)
flat = solve_all(jnp.array([np.diag([1.0, c]) for c in CONDITIONS]), jnp.ones((4, 2))).x


def draw_paths(condition, steps):
    bowl, query = np.diag([1.0, condition]), np.ones(2)
    blue = np.asarray(flat[CONDITIONS.index(condition)])[: steps + 1]
    return pictures.descent_paths(bowl, query / np.diag(bowl), steepest_descent(bowl, query, steps), blue)


explore(draw_paths, condition=CONDITIONS, steps=range(9), start={"condition": 10, "steps": 6})

# %% [markdown]
# ## 3 · Conjugate gradients, from one wish
#
# Steepest descent forgets. After a search along $p$ the residual is at a right angle to $p$: nothing is left to gain there. Now a step $\alpha d$ along some other direction $d$ changes the residual to $r - \alpha A d$, and
#
# $$ p^\top (r - \alpha A d) = \underbrace{p^\top r}_{0} - \alpha\, p^\top A d . \tag{E04.8} $$
#
# What was gained along $p$ stays gained exactly if $p^\top A d = 0$. Two such directions are called **conjugate**: at a right angle, as $A$ measures angles. The wish is that *all* directions $p_0, p_1, \dots$ are conjugate to each other.
#
# **What the wish buys.** Suppose $p_0,\dots,p_j$ are conjugate and not zero, and every step is an exact search: $x_{i+1} = x_i + \alpha_i p_i$ with $p_i^\top r_{i+1} = 0$. Then
#
# $$ p_i^\top r_{j+1} = 0 \quad\text{for all } i \le j . \tag{E04.9} $$
#
# *Proof.* For $i = j$ this is the exact search. For $i<j$ it held when $r_{i+1}$ was made, and every later step subtracted $\alpha_m A p_m$ with $p_i^\top A p_m = 0$. $\square$
#
# E04.9 says that the slope of $f$ at $x_{j+1}$ is zero in *every* direction tried so far. Then this is the lowest point of all that can be reached with them: for any $d$ in $\mathrm{span}(p_0,\dots,p_j)$, multiplying out gives $f(x_{j+1}+d) = f(x_{j+1}) - r_{j+1}^\top d + \tfrac12\lVert d\rVert_A^2$, and the middle term is zero. With E04.5:
#
# > $x_{j+1}$ has the least error in the $A$-norm of all points in $x_0 + \mathrm{span}(p_0,\dots,p_j)$.
#
# **Where do the directions come from?** From the residuals, made conjugate as Gram and Schmidt would do it: $p_0 = r_0$, and
#
# $$ p_{j+1} = r_{j+1} - \sum_{i\le j} \frac{p_i^\top A\, r_{j+1}}{p_i^\top A p_i}\; p_i . \tag{E04.10} $$
#
# Multiply from the left by $p_m^\top A$, $m \le j$: all terms of the sum but $i = m$ vanish, and that one cancels the first. So $p_{j+1}$ is conjugate to all before it.
# This looks expensive: $j$ old directions to store, $j$ products to make. It is not, and that is the discovery.
#
# **The space.** Let $\mathcal K_j = \mathrm{span}(r_0, A r_0, \dots, A^{j-1} r_0)$, the *Krylov space*. As long as no residual is zero,
#
# $$ \mathrm{span}(p_0,\dots,p_{j-1}) = \mathrm{span}(r_0,\dots,r_{j-1}) = \mathcal K_j . \tag{E04.11} $$
#
# *Proof by induction.* For $j=1$ all three are the multiples of $r_0$. Suppose E04.11 for $j$.
# The residual $r_j = r_{j-1} - \alpha_{j-1} A p_{j-1}$ is a sum of a member of $\mathcal K_j$ and $A$ times one, so it lies in $\mathcal K_{j+1}$; by E04.10 $p_j$ is $r_j$ plus members of $\mathcal K_j$, so it lies there too. Both spans are therefore inside $\mathcal K_{j+1}$, whose dimension is at most $j+1$.
#
# They have that dimension: by E04.9 $r_j$ is at a right angle to $\mathcal K_j$ and not zero, so it adds a dimension to it; and so does $p_j$, which differs from $r_j$ by members of $\mathcal K_j$. Equal dimensions and one inside the other: equal. $\square$
#
# On the way we have seen that **all residuals are at right angles to each other**: $r_j$ is at a right angle to $\mathcal K_j$, which holds all earlier ones.
#
# **Why one old direction is enough.** Look at a numerator in E04.10, $p_i^\top A\,r_{j+1} = (A p_i)^\top r_{j+1}$. Now $p_i \in \mathcal K_{i+1}$, so $Ap_i \in \mathcal K_{i+2}$. And $r_{j+1}$ is at a right angle to $\mathcal K_{j+1}$. For $i + 2 \le j+1$ the numerator is zero. Only $i = j$ remains:
#
# $$ p_{j+1} = r_{j+1} + \beta_j\, p_j, \qquad \beta_j = -\frac{p_j^\top A\, r_{j+1}}{p_j^\top A p_j} . \tag{E04.12} $$
#
# **The two numbers, cheaply.** The search along $p_j$ ends where $p_j^\top(r_j - \alpha_j A p_j) = 0$, so $\alpha_j = p_j^\top r_j / p_j^\top A p_j$. Since $p_j = r_j + \beta_{j-1}p_{j-1}$ and $p_{j-1}^\top r_j = 0$, the numerator is $r_j^\top r_j$:
#
# $$ \alpha_j = \frac{r_j^\top r_j}{p_j^\top A p_j} . \tag{E04.13} $$
#
# It is positive as long as $r_j \ne 0$. For $\beta_j$ insert $A p_j = (r_j - r_{j+1})/\alpha_j$. By the right angles, $r_{j+1}^\top A p_j = -\,r_{j+1}^\top r_{j+1}/\alpha_j$, and by E04.13 $p_j^\top A p_j = r_j^\top r_j/\alpha_j$. The $\alpha_j$ cancel:
#
# $$ \beta_j = \frac{r_{j+1}^\top r_{j+1}}{r_j^\top r_j} . \tag{E04.14} $$
#
# (These $\alpha_j$ and $\beta_j$ are CG's own. They have nothing to do with the gates.)
#
# **It ends.** More than $D$ nonzero vectors at right angles do not fit into $D$ dimensions. So one of $r_0,\dots,r_D$ is zero: **at most $D$ steps.** Better still: if $A$ has only $m$ different eigenvalues, split $r_0 = w_1 + \dots + w_m$ into its parts in the eigenspaces. All $A^i r_0 = \sum_n \mu_n^i w_n$ lie in the span of the $w_n$, which has at most $m$ dimensions, and so do all residuals: **at most $m$ steps.**
#
# Now read the code. It is the step of the package, begun at the other end: E04.14 and E04.12 give the direction, E04.13 the way along it, and last the residual is updated. (`z` is the residual `r` until section 10; `_ratio` is a division in which $0/0$ is 0.)

# %%
print(inspect.getsource(inspect.getmodule(cg_trace)._step))

# %% [markdown]
# Against the definition: does $x_j$ really have the least error in its Krylov space? We build an orthonormal basis of that space by force, each vector made perpendicular to all before it, and find its lowest point by setting the slope to zero: with $x = Qy$ the function $f$ becomes $\tfrac12 y^\top (Q^\top\! AQ)\,y - (Q^\top q)^\top y$, so $Q^\top\! A Q\,y = Q^\top q$.
# These points are also what CG *would* give if its arithmetic were exact. We keep them for all 32 steps.


# %%
def krylov(A, q, size):
    """An orthonormal basis [D, size] of span(q, Aq, ..., A^(size-1) q)."""
    Q = [q / np.linalg.norm(q)]
    while len(Q) < size:
        w = A @ Q[-1]
        for _ in range(2):  # the second pass removes what rounding left of the first
            w = w - np.array(Q).T @ (np.array(Q) @ w)
        Q.append(w / np.linalg.norm(w))
    return np.array(Q).T


def exact_iterates(A, q, steps):
    """x_0 to x_steps: the lowest points of f over the Krylov spaces."""
    Q = krylov(A, q, steps)
    H, g = Q.T @ A @ Q, Q.T @ q
    return np.array([Q[:, :j] @ np.linalg.solve(H[:j, :j], g[:j]) for j in range(steps + 1)])


exact = np.array([exact_iterates(A[h], b[h], D) for h in range(HEADS)])

run = solve_all(A, b)
moves = np.diff(run.x, axis=1)[:, :6]  # alpha_j p_j
residuals = (b[:, None] - run.x @ A)[:, :6]


def angles(vectors, A):
    """The largest cosine between two different vectors, as A measures angles."""
    gram = vectors @ A @ vectors.swapaxes(-1, -2)
    size = np.sqrt(np.einsum("...ii->...i", gram))
    return np.abs(gram / size[..., None] / size[..., None, :] - np.eye(gram.shape[-1])).max()


gap = max(a_norm(A[h], run.x[h, :7] - exact[h, :7]).max() / a_norm(A[h], x_star[h]) for h in range(HEADS))
print(f"cosines among 6 directions {angles(moves, A):.0e}, among 6 residuals {angles(residuals, np.eye(D)):.0e}")
print(f"distance of 6 iterates from the lowest points of their Krylov spaces {gap:.0e}")

# %% [markdown]
# And the end: eight matrices, the $m$-th with $m$ different eigenvalues from 1 to 10, in random directions.

# %%
turn, _ = np.linalg.qr(np.asarray(jax.random.normal(key_rotation, (D, D))))
few_eigenvalues = np.array([(turn * np.linspace(1, 10, m)[np.arange(D) % m]) @ turn.T for m in range(1, 9)])
ending = solve_all(few_eigenvalues, np.tile(turn.sum(1), (8, 1)))
at_m = [float(ending.residual[m - 1, m] / ending.residual[m - 1, 0]) for m in range(1, 9)]
before = [float(ending.residual[m - 1, m - 1] / ending.residual[m - 1, 0]) for m in range(1, 9)]
print("different eigenvalues      ", *(f"{m:>7}" for m in range(1, 9)))
print("residual one step too early", *(f"{x:7.0e}" for x in before))
print("residual at that step      ", *(f"{x:7.0e}" for x in at_m))

# %% tags=["nbval-check-output"]
claim(
    "C04.5",
    "the directions of CG are conjugate and its residuals at right angles (first 6 steps, float64)",
    source="E04.8, E04.9, E04.10 and E04.12 on eight real heads",
    error=max(angles(moves, A), angles(residuals, np.eye(D))),
    tol=1e-8,
)
claim(
    "C04.6",
    "every iterate of CG has the least error in the A-norm over its whole Krylov space (first 6 steps)",
    source="E04.9 and E04.11; least point found by a dense solve in an orthonormal basis",
    error=gap,
    tol=1e-9,
)
claim(
    "C04.7",
    "m different eigenvalues: the residual is zero after m steps and not before",
    source="E04.11; residual after m steps over the residual one step earlier, m = 1 to 8",
    error=max(x / y for x, y in zip(at_m, before, strict=True)),
    tol=1e-12,
)

# %% [markdown]
# > **Takeaway.** CG is steepest descent that never spoils what it has gained. Short memory suffices because residuals end up at right angles on their own.
#
# ## 4 · How fast: a game with polynomials
#
# By E04.11 the step $x_j - x_0$ is some $\sum_{i<j} a_i A^i r_0 = \sum_{i<j} a_i A^{i+1} e_0$. Subtract it from $e_0$:
#
# $$ e_j = P(A)\,e_0, \qquad P(\mu) = 1 - \sum_{i<j} a_i\,\mu^{i+1} . \tag{E04.15} $$
#
# $P$ has degree at most $j$ and $P(0) = 1$, and every such polynomial belongs to some choice of the $a_i$. CG chooses the best. In eigenvectors, $e_0 = \sum_i c_i u_i$, that reads
#
# $$ \lVert e_j\rVert_A^2 = \min_{\deg P\le j,\;P(0)=1}\; \sum_i \mu_i c_i^2\, P(\mu_i)^2
#   \;\le\; \min_{\deg P\le j,\;P(0)=1}\; \max_i P(\mu_i)^2 \;\; \lVert e_0\rVert_A^2 . \tag{E04.16} $$
#
# **This is the whole theory.** Find a polynomial that is 1 at zero and small at the eigenvalues. Any polynomial you can think of is a promise about CG.
#
# **One promise from the two ends alone.** Suppose we know only $\mu_1$ and $\mu_D$. Then $P$ must be small on all of $[\mu_1,\mu_D]$. Chebyshev's polynomials do that. They start with $T_0(s)=1$, $T_1(s)=s$ and go on with $T_{j+1}(s) = 2s\,T_j(s) - T_{j-1}(s)$. Two facts:
#
# 1. $T_j(\cos\theta) = \cos j\theta$. True for $j = 0, 1$; and $\cos (j{+}1)\theta + \cos (j{-}1)\theta = 2\cos\theta\cos j\theta$ carries it on. So $|T_j| \le 1$ on $[-1,1]$.
# 2. $T_j\!\left(\frac{z + z^{-1}}2\right) = \frac{z^j+z^{-j}}2$ for $z>0$. True for $j=0,1$; and $(z+z^{-1})\frac{z^j+z^{-j}}{2} - \frac{z^{j-1}+z^{-(j-1)}}{2} = \frac{z^{j+1}+z^{-(j+1)}}{2}$ carries it on.
#
# Map the interval onto $[-1,1]$ and rescale so that the value at zero is 1:
#
# $$ P(\mu) = \frac{T_j(s(\mu))}{T_j(s(0))}, \qquad s(\mu) = \frac{\mu_D+\mu_1-2\mu}{\mu_D-\mu_1}, \qquad s(0) = \frac{\kappa+1}{\kappa-1} . \tag{E04.17} $$
#
# On the interval the numerator is at most 1 by fact 1. For the denominator we need the $z$ with $\frac{z+z^{-1}}2 = \frac{\kappa+1}{\kappa-1}$. It is $z = \frac{\sqrt\kappa+1}{\sqrt\kappa-1}$:
#
# $$ z + z^{-1} = \frac{(\sqrt\kappa+1)^2+(\sqrt\kappa-1)^2}{(\sqrt\kappa-1)(\sqrt\kappa+1)} = \frac{2(\kappa+1)}{\kappa-1} . $$
#
# With $\rho = 1/z$ fact 2 gives $T_j(s(0)) = \frac12(\rho^{-j}+\rho^j)$, and so
#
# $$ \lVert e_j\rVert_A \;\le\; \frac{2}{\rho^{-j}+\rho^{j}}\,\lVert e_0\rVert_A \;\le\; 2\rho^j\,\lVert e_0\rVert_A, \qquad \rho = \frac{\sqrt\kappa-1}{\sqrt\kappa+1} . \tag{E04.18} $$
#
# Compare E04.7: $\kappa$ has become $\sqrt\kappa$.
#
# **In residuals.** $\lVert r\rVert^2 = e^\top\! A^2 e = \sum_i \mu_i\cdot\mu_i c_i^2$ lies between $\mu_1\lVert e\rVert_A^2$ and $\mu_D\lVert e\rVert_A^2$. Use the upper end for $r_j$, the lower for $r_0$:
#
# $$ \frac{\lVert r_j\rVert}{\lVert r_0\rVert} \le \sqrt\kappa\;\frac{\lVert e_j\rVert_A}{\lVert e_0\rVert_A} \le 2\sqrt\kappa\,\rho^j \;\le\; \varepsilon
# \quad\text{once}\quad j \ge \frac{\ln(2\sqrt\kappa/\varepsilon)}{\ln(1/\rho)} . \tag{E04.19} $$
#
# By the series of section 2 with $z = 1/\sqrt\kappa$, $\ln(1/\rho) \approx 2/\sqrt\kappa$, so this is about $\frac{\sqrt\kappa}{2}\ln\frac{2\sqrt\kappa}{\varepsilon}$.


# %%
def promise(mu, j, outliers=0):
    """The bound 2 rho^(j - outliers) of E04.18 and E04.20 on |e_j|_A / |e_0|_A."""
    root = np.sqrt(mu[len(mu) - 1 - outliers] / mu[0])
    return np.where(j < outliers, 2.0, 2.0 * ((root - 1) / (root + 1)) ** np.maximum(j - outliers, 0))


def steps_promised(mu, outliers=0, eps=1e-4):
    """The first j at which E04.19 brings the relative residual to eps."""
    j = np.arange(2000)
    return int(np.argmax(np.sqrt(mu[-1] / mu[0]) * promise(mu, j, outliers) <= eps))


def steps_taken(x, A, q, eps=1e-4):
    """The first of these iterates (from zero) whose residual, recomputed, is at most eps |q|."""
    return int(steps_to(np.linalg.norm(q - x @ A, axis=-1), eps))


by_condition = np.array([steps_promised(m) for m in mu])
needed = np.array([steps_taken(exact[h], A[h], b[h]) for h in range(HEADS)])
for name, c, p, n in zip(NAMES, kappa, by_condition, needed, strict=True):
    print(f"{name}: condition number {c:4.0f} promises {p:3} steps to 1e-4, exact CG takes {n}")

# %% [markdown]
# The promise is kept [C04.8], and it is useless: a head with condition number 294 is as easy as one with 71. So the two ends of the spectrum are not what matters. Look at what lies between.
#
# Drag the steps in the picture below. Dots are the eigenvalues; the area of a dot is its weight in the sum E04.16. The blue line is the polynomial of CG, the dashed orange one Chebyshev's of the same degree.
#
# On the real head blue spends its first zeros on the few large eigenvalues, one each, and from then on has only the crowd at the left to fight. Chebyshev's polynomial has to be small in the deserts between them, where nobody lives. Compare the two other spectra, which have the same ends: spread evenly, they make Chebyshev right; with four eigenvalues (however often each is repeated) blue is done in four steps.
#
# <details><summary>Where the zeros of the blue polynomial come from</summary>
#
# They are the eigenvalues of the $j\times j$ matrix $Q^\top\! AQ$, with $Q$ an orthonormal basis of $\mathcal K_j$. Let $\theta$ be a zero, $P(\mu) = (\mu-\theta)S(\mu)$. By E04.15 $r_j = Ae_j = P(A)\,r_0 = (A-\theta)\,w$ with $w = S(A)\,r_0$, a member of $\mathcal K_j$ since $S$ has degree at most $j-1$: $w = Qy$, and not zero, since $r_0,\dots,A^{j-1}r_0$ are independent. The residual is at a right angle to $\mathcal K_j$, so $Q^\top(A-\theta)Qy = 0$: $y$ is an eigenvector and $\theta$ its eigenvalue.
# $P$ has $j$ zeros (with a lower degree $x_j$ would lie in the space of the step before, and the step would have been 0). No zero counts twice: else $w = (A-\theta)Qy'$ as well, so $y = Q^\top\! Qy = Q^\top(A-\theta)Qy'$, and $y^\top y = y^\top Q^\top(A-\theta)Q\,y' = 0$ by the equation for $y$, which is impossible. So the $j$ zeros are all $j$ eigenvalues.
#
# </details>

# %%
components = np.einsum("hij,hi->hj", np.linalg.eigh(A)[1], b)  # of q, along the eigenvectors
ends = mu[WORST, [0, -1]]
SPECTRA = {
    "a real head": (mu[WORST], components[WORST]),
    "evenly spread": (np.linspace(*ends, D), np.ones(D)),
    "four eigenvalues": (np.geomspace(*ends, 4), np.ones(4)),
}
in_eigenbasis = {name: krylov(np.diag(m), c, min(12, len(m))) for name, (m, c) in SPECTRA.items()}


def draw_polynomials(spectrum, steps):
    m, c = SPECTRA[spectrum]
    Q = in_eigenbasis[spectrum][:, :steps]
    roots = np.linalg.eigvalsh(Q.T * m @ Q)  # the zeros of P in E04.15
    weights = c**2 / m  # mu_i c_i^2 of E04.16, for e_0 = A^-1 q
    return pictures.polynomials(m, weights / weights.sum(), roots, steps, spectrum.capitalize())


explore(draw_polynomials, spectrum=tuple(SPECTRA), steps=range(13), start={"spectrum": "a real head", "steps": 6})

# %% [markdown]
# **A better promise.** Do with a formula what blue does. Give each of the $m$ largest eigenvalues a zero of its own and let Chebyshev handle the rest:
#
# $$ P(\mu) = \prod_{i>D-m}\left(1-\frac{\mu}{\mu_i}\right)\; \times\; \bigl(\text{E04.17 of degree } j-m \text{ for } [\mu_1,\mu_{D-m}]\bigr) . $$
#
# $P(0)=1$ still. At the $m$ largest eigenvalues $P$ is zero. At the others each new factor lies between 0 and 1, so it does no harm. Hence, for every $m < D-1$ at once,
#
# $$ \lVert e_j\rVert_A \le 2\rho_m^{\,j-m}\,\lVert e_0\rVert_A, \qquad \rho_m = \frac{\sqrt{\kappa_m}-1}{\sqrt{\kappa_m}+1}, \qquad \kappa_m = \frac{\mu_{D-m}}{\mu_1} \qquad (j \ge m). \tag{E04.20} $$
#
# One step buys off one outlier; afterwards the condition number is that of the rest. We may take the $m$ that promises most.

# %%
OUTLIERS = range(D - 1)
with_outliers = np.array([min(steps_promised(m, outliers) for outliers in OUTLIERS) for m in mu])
spent = [int(np.argmin([steps_promised(m, outliers) for outliers in OUTLIERS])) for m in mu]
for h, name in enumerate(NAMES):
    rest = mu[h, D - 1 - spent[h]] / mu[h, 0]
    print(
        f"{name}: condition number {kappa[h]:3.0f}, without {spent[h]:2} outliers {rest:4.1f}; "
        f"steps promised {by_condition[h]:3}, now {with_outliers[h]}, taken {needed[h]}"
    )

j = np.arange(D)  # at j = D exact CG has ended
shrunk = np.array([a_norm(A[h], x_star[h] - exact[h, :D]) / a_norm(A[h], x_star[h]) for h in range(HEADS)])
kept = max((shrunk[h] / promise(mu[h], j, m)).max() for h in range(HEADS) for m in OUTLIERS)

# %% tags=["nbval-check-output"]
claim(
    "C04.8",
    "no head, step and number of outliers breaks the Chebyshev bounds",
    source="E04.18 and E04.20; the largest ratio of error to bound",
    error=kept,
    tol=1.0,
)
claim(
    "C04.9",
    "taking out the largest eigenvalues predicts the steps to 1e-4 of every head to within 8, never too few",
    source="E04.20 against exact CG; negative differences would count as 99",
    error=max(int(x) if x >= 0 else 99 for x in with_outliers - needed),
    tol=8,
)
claim(
    "C04.10",
    "exact CG takes 16 to 19 steps to 1e-4 on eight real heads whose condition numbers promise 30 to 110",
    source="E04.19; distance of least and most taken, least and most promised from 16, 19, 30, 110",
    error=max(
        abs(needed.min() - 16), abs(needed.max() - 19), abs(by_condition.min() - 30), abs(by_condition.max() - 110)
    ),
    tol=0,
)

# %% [markdown]
# > **Takeaway.** One step for each outlier, then the condition number of what is left. On real heads that bounds the count to within 5 to 8 steps [C04.9].
#
# **Exercise 04.1 ★★★ The bound is honest.** E04.18 cannot be improved from $\mu_1$ and $\mu_D$ alone: for every $\kappa$ and $j$ some spectrum and query attain its first form *exactly*, $\lVert e_j\rVert_A = \lVert e_0\rVert_A / T_j(s(0))$. Find them. Your function gets $\kappa$ and $j$ and returns $j+1$ eigenvalues from 1 to $\kappa$ and the entries of $q$ along their eigenvectors.
#
# <details><summary>Hint</summary>
#
# CG can only lose where Chebyshev's polynomial is largest: at the $j+1$ points where $T_j(s) = \pm1$, that is $s = \cos(i\pi/j)$. Which weights $w_i = \mu_i c_i^2$ make the polynomial with the least $\sum_i w_i P(\mu_i)^2$ have $P(\mu_i)=\pm$ the same number everywhere? Write $P(0)=1$ as $\sum_i l_i\,P(\mu_i) = 1$ with Lagrange's $l_i = \prod_{m\ne i}\frac{\mu_m}{\mu_m-\mu_i}$.
#
# </details>


# %%
def hardest(kappa, j):
    return ...  # eigenvalues [j + 1], entries of q [j + 1]


def test_hardest(answer):
    for c, j in ((10.0, 3), (294.0, 6)):
        m, entries = answer(c, j)
        if len(m) != j + 1 or abs(min(m) - 1) > 1e-9 or abs(max(m) / c - 1) > 1e-9:
            return f"at kappa = {c:g}, j = {j} it takes {j + 1} eigenvalues from 1 to {c:g}; yours are {np.round(m, 3)}"
        last = exact_iterates(np.diag(m), entries, j)[-1]
        left = a_norm(np.diag(m), entries / m - last) / a_norm(np.diag(m), entries / m)
        _, bound = pictures.chebyshev(np.ones(1), 1.0, c, j)
        if abs(left / bound - 1) > 1e-6:
            return f"at kappa = {c:g}, j = {j} your query leaves {left:.6f} of the error, the bound is {bound:.6f}"


check("04.1", hardest, test_hardest)

# %% [markdown]
# <details><summary>Why the solution works</summary>
#
# Minimise $\sum_i w_i P_i^2$ under $\sum_i l_i P_i = 1$, the values $P_i = P(\mu_i)$ being free. Where the sum is least, its slopes $2w_iP_i$ are proportional to those of the condition, $l_i$. So $P_i = \frac{l_i/w_i}{\sum_m l_m^2/w_m}$, and the least value is $1\big/\sum_m (l_m^2/w_m)$.
# Choose $w_i = \lvert l_i\rvert$ and call $L = \sum_m\lvert l_m\rvert$. Then the least value is $1/L$, while at the start, $P = 1$, the sum is $L$: the squared error falls by $1/L^2$.
# What is $L$? In $l_i$ the factors with $\mu_m<\mu_i$ are negative, so the $l_i$ alternate in sign, starting with plus, as $T_j(s(\mu_i)) = \cos i\pi$ does. Therefore $L = \sum_i l_i\,T_j(s(\mu_i))$. That is Lagrange's formula at zero, exact for a polynomial of degree $j$: $L = T_j(s(0))$. The error falls to exactly $1/T_j(s(0))$.
# Finally $w_i = \mu_i c_i^2$, and the entry of $q = A e_0$ is $\mu_i c_i = \sqrt{\mu_i w_i}$.
#
# </details>


# %% jupyter={"source_hidden": true} tags=["solution"]
def hardest_solution(kappa, j):
    m = (kappa + 1 - (kappa - 1) * np.cos(np.arange(j + 1) * np.pi / j)) / 2  # s = cos(i pi / j), mapped back
    lagrange = [np.prod([y / (y - x) for y in m if y != x]) for x in m]
    return m, np.sqrt(m * np.abs(lagrange))


check("04.1", hardest_solution, test_hardest)

# %% [markdown]
# ## 5 · What the spectrum of a Mesa layer looks like
#
# How bad can it get? By E04.2 $x^\top\! Ax \ge \min_m\lambda_m \lVert x\rVert^2$, so $\mu_1 \ge \min_m\lambda_m$.
#
# For the top: the eigenvalues of $H$ are not negative, so the largest is at most their sum, the trace, and $\mu_D$ is at most that plus $\max_m\lambda_m$. The trace of $kk^\top$ is $\lVert k\rVert^2$. With
#
# $$ n = \operatorname{tr} H = \sum_{i\le t}\zeta_{ti}\beta_i\lVert k_i\rVert^2 \qquad\text{we get}\qquad
#    \kappa \le \frac{\max_m\lambda_m + n}{\min_m\lambda_m}, \quad\text{for } \Lambda = \lambda I:\;\; \kappa \le 1+\frac n\lambda . \tag{E04.21} $$
#
# For unit keys and $\beta\le1$, $n$ is an *effective number of tokens*: at most $t$, and with a constant forget gate at most $1+\gamma+\gamma^2+\dots = \frac1{1-\gamma}$.
#
# The bound is attained when all keys are one key: $H = n\,kk^\top$ has the eigenvalues $n$ and 0. But then $A$ has *two* different eigenvalues, and CG is done in two steps [C04.12]. Exact repetition gives the worst condition number and the easiest system. The trouble is between: many directions, used with very different frequency.
#
# MesaNet keeps the spectrum in check in three ways (Apps. E and G.5): keys of length 1, $\lambda = 0.25 + \mathrm{softplus}(\cdot)$, and the forget gate multiplied by $1-(1-0.9975)\,\beta^2$, so that a token that writes at full strength also forgets a little. What each is worth on our hardest head:

# %%
raw_keys = layers[1].k[:, WORST - 4].astype(float)
fading = 0.9975 ** np.arange(T - 1, -1, -1)  # the third remedy at beta = 1 and gamma = 1
rows = {
    "raw keys, lam 0.001": (raw_keys, 0.001, np.ones(T)),
    "unit keys, lam 0.001": (k[WORST], 0.001, np.ones(T)),
    "unit keys, lam 0.25, the floor": (k[WORST], 0.25, np.ones(T)),
    "the same and the corrected gate": (k[WORST], 0.25, fading),
    "unit keys, lam 1, the initial value": (k[WORST], 1.0, np.ones(T)),
}
for name, (keys, lam, zeta) in rows.items():
    matrix = (keys * zeta[:, None]).T @ keys + lam * np.eye(D)
    n = zeta @ np.sum(keys**2, axis=1)
    taken = steps_taken(exact_iterates(matrix, b[WORST], D), matrix, b[WORST])
    print(
        f"{name:36} bound {1 + n / lam:10.0f}   condition number {np.linalg.cond(matrix):4.0f}   exact CG {taken} steps"
    )

lengths = np.linalg.norm(raw_keys, axis=1)
print(f"lengths of the raw keys: {lengths.min():.1f} to {lengths.max():.1f}")

repeated = T * np.outer(k[WORST, 0], k[WORST, 0]) + LAM * np.eye(D)
attained = np.linalg.cond(repeated) / (1 + T / LAM)
two_steps = solve_all(np.array([repeated] * HEADS), b).residual[:, :3]
print(f"one key 512 times: condition number {np.linalg.cond(repeated):.1f}, residuals of 2 steps {two_steps[0]}")

# %% tags=["nbval-check-output"]
claim(
    "C04.11",
    "one key repeated attains the bound 1 + n/lam on the condition number",
    source="E04.21 with n = 512 and lam = 0.25",
    error=abs(attained - 1),
    tol=4e-12,
)
claim(
    "C04.12",
    "and CG solves that system in two steps",
    source="two different eigenvalues; residual after two steps, eight queries, float64",
    error=float(two_steps[:, 2].max()),
    tol=5e-12,
)

# %% [markdown]
# The bound falls by orders of magnitude, the steps by a few. On this head the remedies are insurance: its keys fill all 32 directions by themselves, so $\mu_1$ stays well above the floor on $\lambda$, and its raw keys differ in length by no more than a factor of about three. A head with near-identical keys needs them (section 8). And the corrected gate bounds $n$ well only for some $\beta$: find out which $\beta$ spoils it.
#
# **Exercise 04.2 ★★ The gate's weak spot.** With $\gamma=1$ before the correction and a constant $\beta$, what $\beta$ in $(0, 1]$ makes the effective number of tokens $n = \beta\sum_{i<T}\left(1-0.0025\beta^2\right)^i$ largest? Your function gets $T$, from 2048 (the length MesaNet trains on) upwards.
#
# <details><summary>Hint</summary>
#
# Sum the geometric series. For small $0.0025\beta^2$ the power is close to $e^{-s}$ with $s = 0.0025\,\beta^2T$.
#
# </details>


# %%
def weak_spot(T):
    return ...  # beta


def tokens(beta, T):
    return beta * np.sum((1 - 0.0025 * beta**2) ** np.arange(T))


def test_weak_spot(answer):
    for T in (2048, 8192):
        mine = answer(T)
        for other in np.linspace(0.01, 1, 100):
            if tokens(other, T) > tokens(mine, T) * (1 + 1e-4):
                return f"at T = {T} beta = {mine:.4f} gives {tokens(mine, T):.1f} tokens, but {other:.2f} gives {tokens(other, T):.1f}"


check("04.2", weak_spot, test_weak_spot)

# %% [markdown]
# <details><summary>Why the solution works</summary>
#
# The series sums to $n = \frac{1-(1-0.0025\beta^2)^T}{0.0025\,\beta} \approx \sqrt{\frac{T}{0.0025}}\;\frac{1-e^{-s}}{\sqrt s}$. The last fraction is stationary where $2s\,e^{-s} = 1-e^{-s}$, that is at $s = 1.2564$, and is $0.6382$ there. So the worst gate is $\beta = \sqrt{s/(0.0025\,T)}$, about one half at the training length, and $n$ grows like $\sqrt T$ instead of $T$: slower, but without end. At $\beta=1$ alone it ends at 400.
#
# </details>


# %% jupyter={"source_hidden": true} tags=["nbval-check-output", "solution"]
def weak_spot_solution(T):
    return min(1.0, np.sqrt(1.2564312 / (0.0025 * T)))


check("04.2", weak_spot_solution, test_weak_spot)
worst_n = [tokens(weak_spot_solution(T), T) for T in (2048, 8192, 32768)]
print(
    f"worst beta at 2048 tokens {weak_spot_solution(2048):.3f}; n = {', '.join(f'{n:.0f}' for n in worst_n)}; at beta = 1 {tokens(1, 32768):.0f}"
)
claim(
    "C04.13",
    "under the corrected gate the effective length can still grow like the square root of T",
    source="n at the worst beta against 0.6382 sqrt(T / 0.0025), T = 2048, 8192, 32768; MesaNet App. G.5",
    error=max(abs(n / (0.63817 * np.sqrt(T / 0.0025)) - 1) for n, T in zip(worst_n, (2048, 8192, 32768), strict=True)),
    tol=1e-3,
)

# %% [markdown]
# ## 6 · When to stop
#
# MesaNet stops a token at the first step with
#
# $$ \lVert r_j\rVert \le \varepsilon\,\lVert r_0\rVert , \tag{E04.22} $$
#
# or at a cap. From zero, $r_0 = q$. Three questions: does the rule depend on a scale, does it see the truth, and what does it promise for the answer?
#
# **Scale.** Replace $q$ by $cq$ in E04.12 to E04.14: all $r_j$, $p_j$, $x_j$ are multiplied by $c$, the $\alpha_j$ and $\beta_j$ not at all, and E04.22 is unchanged. CG has no scale. Code has one only if somebody adds it (section 9) or if $r^\top r$ underflows. The package first divides by a power of two near the largest entry of $q$, which rounds nothing.
#
# **The answer.** $e_j = A^{-1}r_j$ gives $\lVert e_j\rVert \le \lVert r_j\rVert/\mu_1$, and $q = Ax_\star$ gives $\lVert q\rVert\le\mu_D\lVert x_\star\rVert$. Multiply:
#
# $$ \frac{\lVert x_j - x_\star\rVert}{\lVert x_\star\rVert} \;\le\; \kappa\,\frac{\lVert r_j\rVert}{\lVert q\rVert} . \tag{E04.23} $$
#
# Here the condition number *does* matter: not for the number of steps, but for what a residual is worth. Equality needs $q$ along the top eigenvector and the error along the bottom one.
#
# **The truth.** The rule looks at the residual that is *carried along*, $r - \alpha Ap$, not at $q - Ax$. In floating point the two part. The machine computes
# $x_{j+1} = x_j + \alpha p + \delta$ and $r_{j+1} = r_j - \alpha A p + \eta$ with rounding errors $\delta$, $\eta$; the first is at most $u\lVert x_{j+1}\rVert$ for the addition alone. Subtract:
#
# $$ (q - A x_{j+1}) - r_{j+1} = (q - Ax_j) - r_j \;-\; A\delta - \eta . \tag{E04.24} $$
#
# Nothing in CG ever looks at this gap, so it is never repaired. Each step can add $u\,\mu_D\lVert x_{j+1}\rVert$ through $\delta$. Relative to $q$ that is $u\,\mu_D\lVert x_\star\rVert/\lVert q\rVert$, a number between $u$ and $u\kappa$ (by the two inequalities above E04.23, the first taken for $x_j = 0$). The carried residual falls on and on [C04.17]; the true one stops there [C04.16]. (The package ends a run once the carried residual is below the square of the machine epsilon: it has long said nothing by then, and one more step would divide one underflow by another.)

# %%
run32 = solve_all(A.astype(np.float32), b.astype(np.float32))
true32 = np.linalg.norm(b[:, None] - np.asarray(run32.x, float) @ A, axis=-1)  # recomputed in float64
in_units = true32.min(1) / (2.0**-24 * mu[:, -1] * np.linalg.norm(x_star, axis=1))
taken64 = np.array([steps_taken(run.x[h], A[h], b[h]) for h in range(HEADS)])
taken32 = steps_to(run32.recurred, 1e-4)
print(f"{'steps to 1e-4':16} exact float64 float32   float32: true residual stops at, carried falls to")
for h, name in enumerate(NAMES):
    print(
        f"{name:16} {needed[h]:5} {taken64[h]:7} {taken32[h]:7} {true32[h].min():28.0e} {run32.recurred[h, -1]:17.0e}"
    )
along = [np.corrcoef(np.log(kappa), taken)[0, 1] for taken in (needed, taken32)]
print(f"correlation of steps with the logarithm of the condition number: exact {along[0]:.2f}, float32 {along[1]:.2f}")
scales = 2.0 ** np.arange(-40, 41, 10)  # powers of two: the scaling itself must not round
counts = [steps_to(solve_all(A.astype(np.float32), np.float32(s * b)).recurred, 1e-4) for s in scales]
moved = np.abs(np.array(counts) - taken32).max()
nudged = [steps_to(solve_all(A.astype(np.float32), np.float32(s * b)).recurred, 1e-4) for s in (0.3, 0.7, 3, 7)]
print(
    f"q times {scales[0]:.0e} to {scales[-1]:.0e}: step counts move by {moved}; q rounded anew: by {np.abs(nudged - taken32).max()}"
)

top, bottom = (np.linalg.eigh(A)[1][:, :, i] for i in (-1, 0))  # the worst query and the worst error
error_of = np.linalg.norm(1e-3 * bottom, axis=1) / np.linalg.norm(top / mu[:, -1:], axis=1)
residual_of = np.linalg.norm(np.einsum("hij,hj->hi", A, 1e-3 * bottom), axis=1)
answers = [off(run.x[h, taken64[h]], x_star[h]) for h in range(HEADS)]
print(f"relative error of the answers at 1e-4: {min(answers):.0e} to {max(answers):.0e}")

# %% tags=["nbval-check-output"]
claim(
    "C04.14",
    "scaling q by 1e-12 to 1e12 in float32 changes no step count",
    source="E04.22; powers of two, eight real heads",
    error=moved,
    tol=0,
)
claim(
    "C04.15",
    "at the worst query and error, relative error over relative residual is the condition number",
    source="E04.23 with equality, eight real heads",
    error=np.abs(error_of / residual_of / kappa - 1).max(),
    tol=1e-13,
)
claim(
    "C04.16",
    "the true residual in float32 stops between a twentieth and one and a half times u mu_D |x| / |q|",
    source="E04.24, eight real heads; the larger of most / 1.5 and (1/20) / least",
    error=max(in_units.max() / 1.5, 1 / (20 * in_units.min())),
    tol=1.0,
)
claim(
    "C04.17",
    "while the carried residual falls on, to less than a twentieth of that",
    source="48 steps in float32, eight real heads; carried residual at the end over the least true one",
    error=(run32.recurred[:, -1] / true32.min(1)).max(),
    tol=0.05,
)
claim(
    "C04.18",
    "float32 takes 2 to 9 more steps to 1e-4 than exact arithmetic",
    source="eight real heads; distance of the least and the largest surplus from 2 and 9",
    error=max(abs((taken32 - needed).min() - 2), abs((taken32 - needed).max() - 9)),
    tol=1,
)

# %% [markdown]
# Three things to take from the output.
#
# The bound E04.23 is seldom met: at $10^{-4}$ the answers are off by about $10^{-4}$, not $\kappa\cdot10^{-4}$. It takes an unlucky query to need the $\kappa$.
#
# **Rounding costs steps long before it costs accuracy.** At $10^{-4}$ the residuals are still far above $u$, yet float32 needs up to half as many steps again as exact arithmetic. (MesaNet's solver multiplies in float32, App. G.5.)
#
# The proof of section 3 rests on right angles. Once CG has nailed a large eigenvalue, every rounding lets a little of that direction back in; it grows, and must be removed again. This can be seen: the polynomial of the float32 run spends a second, third and fourth zero on the *same* outlier [C04.19]. Each of them is a step.
#
# **A float32 count is good to a step or so.** Scaling $q$ by a power of two changes nothing, but rounding it anew in the last bit moves a count by one, and another processor, which adds in another order, may move one by more.
#
# <details><summary>How to read the zeros off a run</summary>
#
# In exact arithmetic the zeros of CG's polynomial are the eigenvalues of $Q^\top\! AQ$ (under [F04b](#F04b)), and the residuals, scaled to length 1, are such a $Q$. From $r_j = p_j - \beta_{j-1}p_{j-1}$ and $Ap_j = (r_j-r_{j+1})/\alpha_j$
#
# $$ A r_j = \frac{r_j - r_{j+1}}{\alpha_j} - \frac{\beta_{j-1}}{\alpha_{j-1}}\,(r_{j-1}-r_j) . $$
#
# Multiply by $r_j/\lVert r_j\rVert^2$ and by $r_{j+1}/(\lVert r_j\rVert\lVert r_{j+1}\rVert)$: with the right angles, $Q^\top\! AQ$ has $\frac1{\alpha_j}+\frac{\beta_{j-1}}{\alpha_{j-1}}$ on the diagonal, $-\frac{\sqrt{\beta_j}}{\alpha_j}$ beside it and zeros elsewhere. The same numbers of a rounded run give the zeros of the polynomial that it really used. ($\beta_j$ comes from the carried residuals; the step is $m_j = \alpha_jp_j$, so $m_j^\top\! Am_j = \alpha_j^2\,p_j^\top\! Ap_j = \alpha_j\lVert r_j\rVert^2$ gives $\alpha_j$.)
#
# </details>


# %%
def zeros_of_run(x, carried, A, steps):
    moves, squares = np.diff(np.asarray(x, float), axis=0)[:steps], np.asarray(carried, float) ** 2
    alpha = np.einsum("ji,ik,jk->j", moves, A, moves) / squares[:steps]
    beta = squares[1:steps] / squares[: steps - 1]
    beside = np.sqrt(beta) / alpha[:-1]  # the sign does not change the eigenvalues
    return np.linalg.eigvalsh(
        np.diag(1 / alpha + np.append(0, beta / alpha[:-1])) + np.diag(beside, 1) + np.diag(beside, -1)
    )


def at_the_top(zeros, h):
    """How many zeros sit on the largest eigenvalue of head h, to a tenth of a per cent."""
    return int(np.sum(np.abs(zeros / mu[h, -1] - 1) < 1e-3))


Q20 = [krylov(A[h], b[h], 20) for h in range(HEADS)]
exact_zeros = [at_the_top(np.linalg.eigvalsh(Q.T @ A[h] @ Q), h) for h, Q in enumerate(Q20)]
float32_zeros = [at_the_top(zeros_of_run(run32.x[h], run32.recurred[h], A[h], 20), h) for h in range(HEADS)]
print("zeros on the largest eigenvalue after 20 steps: exact", *exact_zeros, "| float32", *float32_zeros)

# %% tags=["nbval-check-output"]
claim(
    "C04.19",
    "after 20 float32 steps CG's polynomial has two zeros or more on the largest eigenvalue, in exact arithmetic one",
    source="number of the eight real heads for which that is not so",
    error=sum(x != 1 or y < 2 for x, y in zip(exact_zeros, float32_zeros, strict=True)),
    tol=0,
)

# %% [markdown]
# Drag the tolerance and $\lambda$ in [F04c](#F04c): the query of the hardest head. The blue line is the truth, the orange one what the stopping rule sees, the green one the tolerance. A residual may rise on the way: CG promises only that the $A$-norm of the *error* falls. The dotted bound is E04.20 with the $\sqrt\kappa$ of E04.19: a promise about exact arithmetic, and float32 breaks it.

# %%
LAMS = (0.001, 0.01, 0.05, 0.25, 1.0, 4.0, 16.0, 64.0)
regularised = k[WORST].T @ k[WORST] + np.array(LAMS)[:, None, None] * np.eye(D)
query = np.tile(b[WORST], (len(LAMS), 1))
by_lam = solve_all(regularised.astype(np.float32), query.astype(np.float32))
spectra = np.linalg.eigvalsh(regularised)


def draw_stopping(lam, eps):
    i = LAMS.index(lam)
    true = np.linalg.norm(query[i] - np.asarray(by_lam.x[i], float) @ regularised[i], axis=-1)
    j, root = np.arange(STEPS + 1), np.sqrt(spectra[i, -1] / spectra[i, 0])
    bounds = {
        "promised by the condition number": root * promise(spectra[i], j),
        "promised with outliers": root * np.min([promise(spectra[i], j, m) for m in OUTLIERS], axis=0),
    }
    return pictures.stopping(true, np.asarray(by_lam.recurred[i]), bounds, eps, lam)


explore(draw_stopping, lam=LAMS, eps=(1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7), start={"lam": 0.25, "eps": 1e-4})

# %% [markdown]
# > **Takeaway.** Steps are decided by the eigenvalues that crowd below the outliers, and by rounding. The condition number bounds what a residual is worth; on our heads the answers were as good as the residual.
#
# ## 7 · Where to start
#
# Three starts are in use. $x_0 = 0$ (the library's prefill), $x_0 = q/(\operatorname{diag} H_t+\lambda)$ (MesaNet's App. C and the library's decoding), and $x_0 = q$ (Sec. 3, where zero steps are said to give gated linear attention, GLA: $o = G^\top q$).
#
# They do not agree at zero steps. From $0$ the layer reads 0. From the diagonal it reads $G^\top q$ with every entry of $q$ divided by something else. Only $x_0 = q$ gives GLA: what matters is that the *query map is the identity*, not that no step was taken.
#
# And App. C's text divides by the diagonal of $H_t$, its Algorithm 1 by that of $H_{t-1}$: the current key is in or out.
#
# Does a good start save steps? Careful, there is a trap in E04.22. It is relative to the residual **of the start**. A start with a *large* residual has its goal moved up with it; a start that is already good has it moved down.
# So we count twice: to $\varepsilon\lVert r_0\rVert$, as the rule says, and to $\varepsilon\lVert q\rVert$, the same accuracy for all.

# %%
TOKENS = np.arange(7, T, 8)  # every 8th token


def systems(k, tokens, gamma=1.0, lam=LAM):
    """H_t + lam at these tokens, for every head: [heads, tokens, D, D]."""
    past = [(k[:, : t + 1], gamma ** np.arange(t, -1, -1.0)[:, None]) for t in tokens]
    return np.stack([(kept * zeta).swapaxes(1, 2) @ kept for kept, zeta in past], axis=1) + lam * np.eye(k.shape[-1])


@jax.jit
@jax.vmap
def solve_from(A, q, x0):
    return cg_trace(lambda p: A @ p, q, x0, max_steps=STEPS)


def flat_batch(x):
    return x.reshape(-1, *x.shape[2:])


A_t, q_t = flat_batch(systems(k, TOKENS)), flat_batch(q[:, TOKENS])
diagonal = np.einsum("...ii->...i", A_t)  # of H_t + lam
earlier = diagonal - flat_batch(k[:, TOKENS]) ** 2  # of H_{t-1} + lam
halfway = solve_from(A_t, q_t, 0 * q_t).x[:, 8]
STARTS = {
    "0": 0 * q_t,
    "q": q_t,
    "q / (diag H_t + lam)": q_t / diagonal,
    "q / (diag H_t-1 + lam)": q_t / earlier,
    "8 steps from 0": halfway,
}
saved = {}
for name, x0 in STARTS.items():
    res = np.asarray(solve_from(A_t, q_t, x0).residual)
    by_rule = steps_to(res, 1e-4).mean()
    same_goal = saved[name] = np.argmax(res <= 1e-4, axis=1).mean()
    print(
        f"start {name:22}: |r_0| = {res[:, 0].mean():5.2f} |q|; steps to 1e-4 |r_0| {by_rule:5.2f}, to 1e-4 |q| {same_goal:5.2f}"
    )

G_t = flat_batch(np.stack([k[:, : t + 1].swapaxes(1, 2) @ v[:, : t + 1] for t in TOKENS], axis=1))
reads = {name: np.einsum("nkv,nk->nv", G_t, x0) for name, x0 in STARTS.items()}

# %% [markdown]
# By the rule the start $q$ looks best and the diagonal second: their first residuals are so large that the goal has moved up. At equal accuracy neither saves a whole step [C04.20]. (A diagonal is a poor picture of matrices whose eigenvectors point anywhere.)
#
# The last row shows the other side. The start has eight good steps behind it. But the rule asks for another factor $10^{-4}$ from there, and the fresh directions know nothing of the old ones: even to the same goal the eight steps and the restart together take longer than one run that goes on.

# %% tags=["nbval-check-output"]
claim(
    "C04.20",
    "at equal accuracy none of the three starts saves a whole step over zero",
    source="mean over 8 real heads and 64 tokens, float64; MesaNet App. C",
    error=max(abs(saved["0"] - saved[name]) for name in list(STARTS)[1:4]),
    tol=1.0,
)
claim(
    "X04.1",
    "with zero CG steps the Mesa layer falls back to gated linear attention",
    source="MesaNet Sec. 3, started as its App. C says; output against GLA's, 8 heads and 64 tokens",
    error=off(reads["q / (diag H_t + lam)"], reads["q"]),
    tol=1e-6,
    expect=False,
)
claim(
    "X04.2",
    "the start is q / diag(H_t + Lambda), as in the text of App. C, and q / diag(H_t-1 + Lambda), as in its Algorithm 1",
    source="MesaNet App. C; distance of the two at the 8th token, 8 heads",
    error=off((q_t / earlier)[:: len(TOKENS)], (q_t / diagonal)[:: len(TOKENS)]),
    tol=1e-6,
    expect=False,
)

# %% [markdown]
# ## 8 · Sixteen bits
#
# Training in 16 bits is usual, and it is tempting to keep $H$ in 16 bits too. The public library (flash-linear-attention, FLA) did, and a user reported NaN ([issue 1187](https://github.com/fla-org/flash-linear-attention/issues/1187)). The issue names two causes: values that do not fit into $G$, and an $H$ that is no longer positive definite. Here is the second, and a limit below which it cannot happen.
#
# Rounding changes every entry by at most $u\,\lvert H_{mn}\rvert$ (entries below $6\cdot10^{-5}$ aside, where float16 runs out of exponents): call the change $E$. For any unit vector $x$, $\lvert x^\top E x\rvert \le \lVert E\rVert_F$, the root of the sum of all squared entries (Cauchy and Schwarz). So
# $\lvert x^\top\! Ex\rvert \le u\lVert H\rVert_F \le u \operatorname{tr}H = u\,n$; the second step holds because $\lVert H\rVert_F^2$ is the sum of the squared eigenvalues of $H$ and these are not negative. Hence
#
# $$ x^\top (H + E + \Lambda)\,x \;\ge\; \mu_1 - u\,n . \tag{E04.25} $$
#
# With $\mu_1 \ge \lambda$: **if $\lambda > u\,n$, the rounded matrix is still positive definite.** Unit roundoff is $2^{-11}$ in float16 and $2^{-8}$ in bfloat16; the cell prints how many tokens that allows at $\lambda = 0.25$.
#
# Where the guarantee fails, something *can* happen if $H$ alone does not fill all directions. Near-collinear keys do that: one common direction, plus one per cent of noise.
#
# When $p^\top\! Ap$ is negative, E04.13 steps uphill; when it is near zero, the step is huge. CG has no defence: the residual can jump to a thousand times its start, as it does in the picture. It may still arrive, later, as bfloat16 at $\lambda = 0.25$ shows, but nothing guarantees it.

# %%
common, noise = unit(np.asarray(jax.random.normal(key_near, (2, T, D))))
near = unit(common[:1] + 0.01 * noise)  # 512 keys, each about 0.6 degrees from a common direction
H_near, q_near = near.T @ near, np.tile(noise[0], (8, 1))
DTYPES = {name: jnp.dtype(name) for name in ("float64", "float32", "float16", "bfloat16")}
ROUNDOFF = {name: float(jnp.finfo(dtype).eps) / 2 for name, dtype in DTYPES.items()}
for name in ("float16", "bfloat16"):
    print(f"{name}: u = {ROUNDOFF[name]:.1e}, so lam = {LAM} is safe below n = {LAM / ROUNDOFF[name]:.0f} tokens")


def stored(H, dtype):
    return H.astype(DTYPES[dtype]).astype(float)


def near_solves(dtype):
    """Eigenvalues and relative residuals for every lam, H stored as dtype."""
    matrices = stored(H_near, dtype) + np.array(LAMS)[:, None, None] * np.eye(D)
    solved = solve_all(matrices, q_near)
    return np.linalg.eigvalsh(matrices), np.asarray(solved.residual / solved.residual[:, :1])


by_dtype = {dtype: near_solves(dtype) for dtype in DTYPES}


def draw_storage(lam, dtype):
    eigenvalues, residual = (x[LAMS.index(lam)] for x in by_dtype[dtype])
    return pictures.storage(eigenvalues, residual[:31], lam, dtype)


explore(draw_storage, lam=LAMS, dtype=tuple(DTYPES), start={"lam": 0.001, "dtype": "float16"})

# %% [markdown]
# Only the storage is 16-bit here; all arithmetic is float64. Drag $\lambda$ up: the negative eigenvalues disappear, for these keys well before the guarantee of E04.25 sets in.
#
# **Where it is harmless, and where it only looks so.** Our real keys fill their 32 directions, so rounding a *finished* $H$ once does not make it indefinite [C04.22]; the answers keep two to three digits in float16, one to two in bfloat16.
#
# But a decoder stores $H$ after *every* token. Then each rounding error stays, and in bfloat16 there is worse: an entry near 16 has neighbours 0.125 apart, and a key adds about $1/32$ to it. Less than half the gap: such a sum stops growing, and on most heads the matrix goes indefinite [C04.23].

# %%
rounded_once = {
    dtype: [stored(A[h] - LAM * np.eye(D), dtype) + LAM * np.eye(D) for h in range(HEADS)] for dtype in DTYPES
}
share = max(
    np.linalg.norm(stored(H, dtype) - H, 2) / (ROUNDOFF[dtype] * np.trace(H))
    for dtype in list(DTYPES)[1:]
    for H in [H_near, *(A - LAM * np.eye(D))]
)
decoded = np.zeros((HEADS, D, D), jnp.bfloat16)
for t in range(T):
    written = decoded.astype(np.float32) + (k[:, t, :, None] * k[:, t, None, :]).astype(np.float32)
    decoded = written.astype(jnp.bfloat16)
decoded = decoded.astype(float) + LAM * np.eye(D)


def damage(matrices):
    answers = np.linalg.solve(np.array(matrices), b[..., None])[..., 0]
    return np.linalg.norm(answers - x_star, axis=1) / np.linalg.norm(x_star, axis=1)


for dtype, matrices in (*rounded_once.items(), ("bfloat16 after every token", decoded)):
    low = np.linalg.eigvalsh(matrices)[:, 0]
    print(
        f"H in {dtype:26}: smallest eigenvalue {low.min():6.2f}, exact answers off by {damage(matrices).min():.0e} to {damage(matrices).max():.0e}"
    )
print(f"trace of H after {T} unit keys, bfloat16 after every token: {np.trace(decoded[WORST]) - LAM * D:.1f}")

# %% tags=["nbval-check-output"]
low16 = by_dtype["float16"][0][0, 0]  # at lam 0.001
claim(
    "X04.3",
    "H kept in float16 leaves H + Lambda positive definite, as CG needs it",
    source="FLA before PR 1152 (issue 1187); negative eigenvalue of H + lam in units of lam, near-collinear keys, lam 0.001",
    error=max(0.0, -low16) / 0.001,
    tol=1e-3,
    expect=False,
)
claim(
    "C04.21",
    "rounding H moves its eigenvalues by at most u times its trace, so lam > u n keeps it safe",
    source="E04.25; largest spectral norm of the change over u n; float32, float16, bfloat16; near-collinear and real keys",
    error=share,
    tol=1.0,
)
claim(
    "C04.22",
    "rounded once to 16 bits, H + 0.25 of every real head stays positive definite and the answer within 5 percent",
    source="8 real heads at 512 tokens, float16 and bfloat16",
    error=max(
        damage(rounded_once[x]).max() if np.linalg.eigvalsh(rounded_once[x]).min() > 0 else 99
        for x in ("float16", "bfloat16")
    ),
    tol=0.05,
)
claim(
    "C04.23",
    "rounded to bfloat16 after every token, H + 0.25 of at least 5 of the 8 real heads is indefinite",
    source="a decoder that keeps H in bfloat16, 512 tokens; number of heads still positive definite",
    error=int(np.sum(np.linalg.eigvalsh(decoded)[:, 0] > 0)),
    tol=3,
)

# %% [markdown]
# ## 9 · A guard that is not free
#
# What if $r^\top r = 0$? The public library adds $g = 10^{-5}$ to both denominators, in its reference and in its kernel:
#
# $$ \alpha_j = \frac{r_j^\top r_j}{p_j^\top A p_j + g}, \qquad \beta_j = \frac{r_{j+1}^\top r_{j+1}}{r_j^\top r_j + g} . \tag{E04.26} $$
#
# While $r^\top r \gg g$ nothing happens. But a residual of $3\cdot10^{-3}$ has $r^\top r \approx g$. Far below that, $\beta\approx 0$, so $p\approx r$: CG has become steepest descent. And once $p^\top\! Ap \le \mu_D\, r^\top r$ is small against $g$ as well, $\alpha\approx r^\top r/g$, a tiny step:
# $r_{j+1} \approx \left(I - \frac{r_j^\top r_j}{g}A\right) r_j$. The part along the smallest eigenvalue shrinks slowest, so in the end it is all that is left. For it $s_j = r_j^\top r_j$ obeys $s_{j+1} = s_j(1 - \mu_1 s_j/g)^2$. With $\frac1{(1-z)^2} \approx 1 + 2z$ for small $z$ the reciprocals obey $1/s_{j+1} \approx 1/s_j + 2\mu_1/g$. So $1/s_j$ grows by the same amount at every step, and
#
# $$ \lVert r_j\rVert \;\approx\; \sqrt{\frac{g}{2\mu_1\,j}} . \tag{E04.27} $$
#
# No exponential any more: for half the residual, four times the steps. And **$q$ does not occur in it.** A query half as long gets an answer that is relatively twice as bad.


# %%
def guarded_cg(A, q, steps, g=1e-5, x0=0.0):
    x = x0 + np.zeros_like(q)
    r = p = q - A @ x
    rr = r @ r
    size = [np.sqrt(rr)]
    for _ in range(steps):
        Ap = A @ p
        alpha = rr / (p @ Ap + g)  # E04.26
        x, r = x + alpha * p, r - alpha * Ap
        rr, before = r @ r, rr
        p = r + rr / (before + g) * p
        size.append(np.sqrt(rr))
    return x, np.array(size)


golden = np.load("../tests/golden/mesa_cg.npz")  # FLA's own numbers
gate, strength, keys, queries, lam = (
    golden[f"t67_mid/{name}"][0].astype(float) for name in ("g", "beta", "k", "q", "lamb")
)
H, ours = np.zeros((8, 8)), []
for t in range(67):
    H = np.exp(gate[t, 0]) * H + strength[t, 0] * np.outer(keys[t, 0], keys[t, 0])
    ours.append(guarded_cg(H + np.diag(lam), queries[t, 0], 5)[0])
reproduced = off(np.array(ours), golden["t67_mid/q_star_it5"][0, :, 0])

LONG, SIZES = 3000, (1.0, 0.1, 0.01)
shown = np.unique(np.geomspace(1, LONG, 40).astype(int))  # steps to draw
floors = {f"|q| = {s:g}": guarded_cg(A[0], s * b[0], LONG)[1][shown] for s in SIZES}
law = np.sqrt(1e-5 / (2 * mu[0, 0] * shown))
after30 = np.array([[guarded_cg(A[h], s * b[h], 30)[1][-1] / s for h in range(HEADS)] for s in SIZES])
on_the_law = np.array(
    [
        [guarded_cg(A[h], s * b[h], LONG)[1][-1] for s in SIZES] / np.sqrt(1e-5 / (2 * mu[h, 0] * LONG))
        for h in range(HEADS)
    ]
)
plain30 = run.residual[:, 30] / run.residual[:, 0]
print(
    f"no guard: relative residual after 30 steps at most {plain30.max():.0e}; 1e-4 is reached after at most {taken64.max()} steps"
)
for s, worst in zip(SIZES, after30, strict=True):
    print(f"relative residual after 30 steps, guard 1e-5, |q| = {s:4g}: {worst.min():.0e} to {worst.max():.0e}")

G_last = G_t[len(TOKENS) - 1 :: len(TOKENS)]
prefilled = [guarded_cg(A[h], b[h], 30)[0] @ G_last[h] for h in range(HEADS)]
decoded_one = [guarded_cg(A[h], b[h], 30, x0=b[h] / np.diag(A[h]))[0] @ G_last[h] for h in range(HEADS)]
apart = [off(*pair) for pair in zip(decoded_one, prefilled, strict=True)]
print(
    f"reads of one token, started at 0 and at q / (diag H + lam), 30 guarded steps: apart by {min(apart):.0e} to {max(apart):.0e}"
)
pictures.guard(shown, floors, law)

# %% tags=["nbval-check-output"]
claim(
    "C04.24",
    "our guarded CG is the library's: it reproduces its intermediate answers",
    source="golden mesa_cg, case t67_mid, q* after 5 steps at 67 tokens; FLA's naive_mesa_net_CG in float64",
    error=reproduced,
    tol=4e-15,
)
claim(
    "X04.4",
    "30 steps of the reference CG, with 1e-5 in both denominators, solve a unit query to 1e-4",
    source="FLA 0.5.2, naive.py and chunk_cg_solver_fwd.py; relative residual, median of 8 heads, float64",
    error=np.median(after30[0]),
    tol=1e-4,
    expect=False,
)
claim(
    "X04.5",
    "prefilling a token and decoding it give the same read",
    source="FLA 0.5.2, naive.py: two starts, 30 guarded steps; median relative distance over 8 heads at the paper's 1e-4",
    error=np.median(apart),
    tol=1e-4,
    expect=False,
)
claim(
    "C04.25",
    "with the guard the residual ends on sqrt(g / (2 mu_1 j)), whatever the size of q",
    source="E04.27 after 3000 steps, 8 heads, |q| = 1, 0.1, 0.01; largest deviation from 1",
    error=np.abs(on_the_law - 1).max(),
    tol=0.12,
)

# %% [markdown]
# The picture [F04e](#F04e) shows it. With unit queries and 30 steps the guarded solver does not reach $10^{-4}$ on any of our heads; plain CG does, in the same arithmetic, in two thirds of the steps.
#
# It is worse in the backward pass. There the same solver runs on $G\,\partial\mathcal J/\partial o$ in place of $q$, with $\mathcal J$ the training loss, and gradients are small by nature. The residual ends on the same E04.27, so relative to the right-hand side it is larger by just the factor by which that is smaller [C04.25].
#
# **Exercise 04.3 ★★ A guard without a scale.** Write one CG step that survives $r = 0$ (no NaN, the answer stays) and is exact for any size of $q$.
#
# <details><summary>Hint</summary>
#
# A guard is needed for $0/0$ only, and there 0 is the right answer. `np.where` evaluates both branches: make the denominator harmless first.
#
# </details>


# %%
def my_step(A, x, r, p):
    return ...  # the next x, r, p


def test_my_step(step):
    for size in (1.0, 1e-6, 1e6, 0.0):
        x, r, p = np.zeros(D), size * b[1], size * b[1]
        for _ in range(40):
            x, r, p = step(A[1], x, r, p)
        left = np.linalg.norm(size * b[1] - A[1] @ x)
        if not left <= 1e-11 * size:
            return f"with |q| = {size:g} the residual after 40 steps is {left:.1e}, and {1e-11 * size:.1e} is wanted"


check("04.3", my_step, test_my_step)


# %% jupyter={"source_hidden": true} tags=["solution"]
def my_step_solution(A, x, r, p):
    def ratio(a, b):
        return np.where(a == 0, 0, a / np.where(a == 0, 1, b))

    Ap = A @ p
    alpha = ratio(r @ r, p @ Ap)  # E04.13
    after = r - alpha * Ap
    return x + alpha * p, after, after + ratio(after @ after, r @ r) * p  # E04.14, E04.12


check("04.3", my_step_solution, test_my_step)

# %% [markdown]
# ## 10 · Preconditioning at the chunk boundary
#
# What follows is not in the paper; it is this project's idea. Let $M$ be symmetric and positive definite, and close to $A^{-1}$. Write $M = EE^\top$ (say, by Cholesky) and solve instead
#
# $$ \widehat A\,\widehat x = \widehat q, \qquad \widehat A = E^\top\! A E, \quad \widehat q = E^\top q, \quad x = E\widehat x . \tag{E04.28} $$
#
# $\widehat A$ is symmetric and positive definite, so all of sections 3 and 4 holds for it. If $M\approx A^{-1}$, its eigenvalues are all close to 1. ($\widehat A = E^{-1}(MA)E$, so they are those of $MA$.)
#
# Translate CG back. $\widehat r = \widehat q-\widehat A\widehat x = E^\top(q - AE\widehat x) = E^\top r$, so $\widehat r^\top\widehat r = r^\top EE^\top r = r^\top M r$. Put $p = E\widehat p$; then $\widehat p^\top\!\widehat A\widehat p = p^\top\! Ap$. Multiply $\widehat x^+ = \widehat x+\alpha\widehat p$ and $\widehat p^+ = \widehat r^++\beta\widehat p$ by $E$. Everything is expressed by $M$ alone, and $E$ is never needed:
#
# $$ z_j = M r_j, \qquad \alpha_j = \frac{r_j^\top z_j}{p_j^\top\! A p_j}, \qquad \beta_j = \frac{r_{j+1}^\top z_{j+1}}{r_j^\top z_j}, \qquad p_{j+1} = z_{j+1}+\beta_j p_j . \tag{E04.29} $$
#
# That is the `z` in the step printed in section 3.
#
# **Which $M$?** A chunked implementation has $H_c$, the statistic at the start of the chunk, anyway. Inside the chunk
#
# $$ A_t = \zeta_{tc}H_c + \Lambda + \sum_{c<i\le t}\zeta_{ti}\beta_i\,k_ik_i^\top, \qquad M = (H_c+\Lambda)^{-1} . \tag{E04.30} $$
#
# First without forgetting, $\zeta = 1$: then $\widehat A = E^\top M^{-1}E + E^\top(\sum)E = I + {}$a matrix of rank at most $t-c$. All eigenvalues are 1 but $t-c$ of them: at most $t-c+1$ different ones, and by section 3 at most **$t-c+1$ steps**. At the start of the chunk that is next to nothing.
#
# With forgetting, put $y = Ew$. Then $y^\top(\zeta H_c + \Lambda)y$ lies between $\zeta$ and 1 times $y^\top(H_c+\Lambda)y = w^\top w$. The keys of the chunk add something that is never negative. So $w^\top\!\widehat Aw \ge \zeta_{tc}\,w^\top w$: **nothing lies below $\zeta_{tc}$.** And on the subspace where the $t-c$ keys add nothing, of dimension at least $D-(t-c)$, $w^\top\!\widehat Aw\le w^\top w$. More than $t-c$ eigenvectors with eigenvalues above 1 would span a space that meets this subspace, and there both could not hold. So at most $t-c$ outliers, all on the large side, where E04.20 buys them off one by one.

# %%
CHUNK = 64


def boundary_inverses(A_t, lam=LAM):
    """M for every token of `systems(k, TOKENS)`: the inverse at the last multiple of 64 before it."""
    ends = A_t[:, CHUNK // 8 - 1 :: CHUNK // 8]  # TOKENS holds every 8th token, 63 and 127 among them
    starts = np.concatenate([np.broadcast_to(lam * np.eye(D), ends[:, :1].shape), ends[:, :-1]], axis=1)
    return np.repeat(np.linalg.inv(starts), CHUNK // 8, axis=1)


@jax.jit
@jax.vmap
def solve_preconditioned(A, q, M):
    return cg_trace(lambda p: A @ p, q, max_steps=STEPS, precondition=lambda r: M @ r)


A_h = systems(k, TOKENS)
M_h = boundary_inverses(A_h)
c = 448  # the last chunk
M = np.linalg.inv(k[WORST, :c].T @ k[WORST, :c] + LAM * np.eye(D))
early = np.array([k[WORST, : c + n].T @ k[WORST, : c + n] + LAM * np.eye(D) for n in range(1, 9)])
few = solve_preconditioned(early, q[WORST, c : c + 8], np.array([M] * 8))
ends = [float(few.residual[n - 1, n + 1]) for n in range(1, 9)]

E = np.linalg.cholesky(M)
hat = solve_all(np.array([E.T @ early[7] @ E] * HEADS), np.array([E.T @ q[WORST, c + 7]] * HEADS)).x[0, :6] @ E.T
print("tokens into the chunk        ", *(f"{n:>7}" for n in range(1, 9)))
print("residual after one step more ", *(f"{x:7.0e}" for x in ends))

zeta = 0.99**CHUNK
faded = zeta * k[WORST, :c].T @ k[WORST, :c] + LAM * np.eye(D)
for t in range(CHUNK):
    faded = faded + 0.99 ** (CHUNK - 1 - t) * np.outer(k[WORST, c + t], k[WORST, c + t])
spectrum = np.linalg.eigvalsh(E.T @ faded @ E)
print(f"gamma = 0.99, end of the chunk: zeta {zeta:.3f}, eigenvalues of MA {spectrum[0]:.3f} to {spectrum[-1]:.2f}")

# %% tags=["nbval-check-output"]
claim(
    "C04.26",
    "preconditioned CG is CG on the transformed system: the iterates agree",
    source="E04.28 and E04.29, first 5 steps, 8 tokens into a chunk",
    error=max(off(few.x[7, j], hat[j]) for j in range(1, 6)),
    tol=1e-13,
)
claim(
    "C04.27",
    "n tokens into a chunk the preconditioned solve ends after n + 1 steps",
    source="E04.30 without forgetting; relative residual, n = 1 to 8, layer 4 head 1, float64",
    error=max(ends),
    tol=1e-13,
)
claim(
    "C04.28",
    "with forgetting, no eigenvalue of MA lies below zeta",
    source="E04.30, gamma 0.99, end of a chunk of 64, layer 4 head 1; zeta over the smallest eigenvalue",
    error=zeta / spectrum[0],
    tol=1.0,
)

# %% [markdown]
# Now the count that matters: float32, every eighth token of every head, and the same with $M$ rounded to float16. $M$ may be rough: CG repairs it, since $M$ only bends the path and does not move the goal. (What section 8 forbids is rounding $A$.)

# %%
A32, q32 = A_t.astype(np.float32), q_t.astype(np.float32)
variants = {
    "plain": solve_all(A32, q32).recurred,
    "preconditioned": solve_preconditioned(A32, q32, flat_batch(M_h).astype(np.float32)).recurred,
    "M in float16": solve_preconditioned(A32, q32, flat_batch(M_h).astype(np.float16).astype(np.float32)).recurred,
}
counts = {name: steps_to(res, 1e-4).reshape(HEADS, -1) for name, res in variants.items()}
later = slice(CHUNK // 8, None)  # from the second chunk on: in the first, H_c is zero and M does nothing
means = {name: count[:, later].mean() for name, count in counts.items()}

twice = [minilm_qkv("twice", layer) for layer in (1, 4)]
q_twice, k_twice = (
    unit(np.concatenate([getattr(x, name).swapaxes(0, 1) for x in twice]).astype(float)) for name in "qk"
)
A_twice = systems(k_twice, TOKENS)
batch = [flat_batch(x).astype(np.float32) for x in (A_twice, q_twice[:, TOKENS], boundary_inverses(A_twice))]
on_twice = solve_all(*batch[:2]), solve_preconditioned(*batch)
repeat = [steps_to(one.recurred, 1e-4).reshape(HEADS, -1)[:, later].mean() for one in on_twice]
by_head = counts["preconditioned"][:, later]
print("preconditioned, mean of each head:", *by_head.mean(1).round(1), "; largest of all tokens:", by_head.max())
print("mean steps to 1e-4 from the second chunk on:", ", ".join(f"{name} {x:.1f}" for name, x in means.items()))
print(f"a text that repeats itself: plain {repeat[0]:.1f}, preconditioned {repeat[1]:.1f}")
pictures.steps_by_token(
    TOKENS,
    {NAMES[WORST]: {name: count[WORST] for name, count in counts.items()}},
    "To 1e-4 in float32",
    "F04f",
)

# %% tags=["nbval-check-output"]
claim(
    "C04.29",
    "on real keys the preconditioner takes 22 float32 steps to 6, and 16 bits are enough for it",
    source="E04.30, chunks of 64, 8 heads, tokens 64 to 511; largest distance of the three means from 22, 6, 6",
    error=max(abs(means[name] - x) for name, x in {"plain": 22, "preconditioned": 6, "M in float16": 6}.items()),
    tol=0.4,
)
claim(
    "C04.30",
    "on a text that repeats itself it takes 22 float32 steps to 6",
    source="minilm_qkv 'twice', 8 heads, tokens 64 to 511; largest distance of the two means from 22 and 6",
    error=max(abs(repeat[0] - 22), abs(repeat[1] - 6)),
    tol=0.4,
)

# %% [markdown]
# Be fair in the comparison. A preconditioned step makes two products instead of one, so 6 of them cost 12, and the inverse costs about $D^3$ once for 64 tokens. It still wins, and it wins twice: fewer *rounds* that must wait for each other, and hardly any loss to rounding, since a spectrum near 1 has few outliers to come back. In the first chunk of a sequence $M = \Lambda^{-1}$ and nothing is won: the picture [F04f](#F04f) shows it.
#
# The solver `PCG` of the package goes on from here. To the inverse at the boundary it adds the keys of the chunk, each a rank-one update (recursive least squares, MesaNet App. H), for all tokens of the chunk at once. Without forgetting this is $A_t^{-1}$ itself, so one step must be enough.

# %%
ask = [np.swapaxes(x, 0, 1)[None] for x in (q, k, v)]
weights, lams = np.ones(ask[0].shape[:3]), np.full((HEADS, D), LAM)
one_step, _ = mesa(*ask, weights, lams, solver=PCG(max_steps=1))
converged, _ = mesa(*ask, weights, lams, solver=CG(max_steps=None, tol=1e-14))
missed = float(jnp.linalg.norm(one_step - converged) / jnp.linalg.norm(converged))
print(f"one step of PCG misses the converged output by {missed:.0e} of it")

# %% tags=["nbval-check-output"]
claim(
    "C04.33",
    "without forgetting one step of the package's PCG is enough, at all 512 tokens of the eight heads",
    source="mesa in chunks of 64, float64; against CG run to the end",
    error=missed,
    tol=1e-13,
)

# %% [markdown]
# [C04.33] holds in every head, whose condition numbers differ tenfold [C04.1]. With forgetting the keys of the chunk fade while it is read, and a few steps remain.
#
# > **Takeaway.** The chunk boundary knows almost everything about the tokens after it. About 6 steps on average in every head we have, 13 at most.
#
# ## 11 · The answer, and your own keys
#
# Everything is in place. All eight heads, every eighth token, in float32, as the layer would run; without forgetting, and with a forget gate $\gamma$, which shortens the memory to $n\le 1/(1-\gamma)$ tokens.

# %%
forgetting = {gamma: flat_batch(systems(k, TOKENS, gamma)).astype(np.float32) for gamma in (0.9, 0.99)}
average = {gamma: steps_to(solve_all(batch, q32).recurred, 1e-4).mean() for gamma, batch in forgetting.items()}
average[1.0] = counts["plain"].mean()
print(f"steps to 1e-4 at token {T}, head by head:", *taken32)
print("mean over all tokens:", ", ".join(f"gamma {gamma} {n:.1f}" for gamma, n in average.items()))

# %% tags=["nbval-check-output"]
claim(
    "C04.31",
    "at the last of 512 tokens the eight heads need 18 to 28 float32 steps to 1e-4",
    source="unit keys and queries, lam 0.25, beta 1, no forgetting; distance of least and most from 18 and 28",
    error=max(abs(taken32.min() - 18), abs(taken32.max() - 28)),
    tol=1,
)
claim(
    "C04.32",
    "with a memory of ten tokens (gamma 0.9) the mean is just below 10 steps, without forgetting above 21",
    source="8 heads, 64 tokens, float32; largest distance of the two means from 9.7 and 21.3",
    error=max(abs(average[0.9] - 9.7), abs(average[1.0] - 21.3)),
    tol=0.25,
)

# %% [markdown]
# **Against the paper.** MesaNet reports about 9 steps on average at $\varepsilon=10^{-4}$ where 30 were fixed (Sec. 5). Our heads need more than twice that, without forgetting. This is no contradiction, and no confirmation: its heads are 128 wide and trained for this layer, with learned $\lambda$, $\beta$ and $\gamma$; ours are 32 wide, from an encoder with softmax attention, at the lowest $\lambda$.
#
# What we can say: a mean of 9 to 10 is what our heads give with a memory of ten tokens. The paper's internal analysis (App. O) points the same way: many heads with low and steady condition numbers, a few with weak forgetting and more steps. And fewer steps are not the same as less time: a batch waits for its slowest token.
#
# **Your own keys.** Name any `.npz` with arrays `q`, `k`, `v` of shape `[T, H, D]`, written for instance by `np.savez("mine.npz", q=q, k=k, v=v)`, and run the cells from here on. Then drag $\gamma$ and $\varepsilon$.

# %%
PATH, GROUPS = SHIPPED, ("plain/layer1", "plain/layer4")  # yours: "mine.npz", ("",)
LAMBDA = 0.25

loaded = [load_qkv(PATH, group) for group in GROUPS]
my_q, my_k = (unit(np.concatenate([getattr(x, name).swapaxes(0, 1) for x in loaded]).astype(float)) for name in "qk")
my_tokens = np.unique(np.linspace(0, my_k.shape[1] - 1, 1 + max(1, 512 // len(my_k))).astype(int)[1:])
my_names = [
    (group or "yours", f"head {h}") for group, x in zip(GROUPS, loaded, strict=True) for h in range(x.k.shape[1])
]


def my_residuals(gamma):
    batch = flat_batch(systems(my_k, my_tokens, gamma, LAMBDA)), flat_batch(my_q[:, my_tokens])
    return solve_all(*(x.astype(np.float32) for x in batch)).recurred


GAMMAS, EPSILONS = (0.8, 0.9, 0.95, 0.98, 0.99, 0.9975, 1.0), (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
by_gamma = {gamma: my_residuals(gamma) for gamma in GAMMAS}


def draw_heads(gamma, eps):
    steps = steps_to(by_gamma[gamma], eps).reshape(len(my_k), -1)
    panels = {group or "yours": {} for group in GROUPS}
    for (group, head), line in zip(my_names, steps, strict=True):
        panels[group][head] = line
    return pictures.steps_by_token(my_tokens, panels, f"float32, gamma = {gamma:g}, eps = {eps:g}", "F04g")


explore(draw_heads, gamma=GAMMAS, eps=EPSILONS, start={"gamma": 1.0, "eps": 1e-4})

# %%
my_spectra = np.linalg.eigvalsh(systems(my_k, my_tokens[-1:], 1.0, LAMBDA)[:, 0])
my_counts = steps_to(by_gamma[1.0], 1e-4).reshape(len(my_k), -1)
for (group, head), m, steps in zip(my_names, my_spectra, my_counts, strict=True):
    best = min(steps_promised(m, outliers) for outliers in range(len(m) - 1))
    print(
        f"{group} {head}: condition number {m[-1] / m[0]:.0f} promises {steps_promised(m)}, "
        f"with outliers {best}; taken {steps[-1]}, mean {steps.mean():.1f}"
    )

# %% [markdown]
# (At the last token a count may differ by one from the table above: the sums over tokens ran in another order, and a float32 count is good to a step or so.)
#
# **Exercise 04.4 ★ Plan a budget.** Write `cap(mu, eps)`: from the eigenvalues of a head alone, a number of steps after which exact CG is sure to have reached $\varepsilon$. Make it as small as you can with this notebook's formulas.
#
# <details><summary>Hint</summary>
#
# E04.20 holds for every number of outliers. And do not forget how section 3 ends.
#
# </details>


# %%
def cap(mu, eps):
    return ...


def test_cap(answer):
    for h, eps in ((1, 1e-2), (5, 1e-4), (5, 1e-8)):
        mine = answer(mu[h], eps)
        sure = min(D, *(steps_promised(mu[h], outliers, eps) for outliers in OUTLIERS))
        needs = steps_taken(exact[h], A[h], b[h], eps)
        if mine < needs:
            return f"for {NAMES[h]} and eps = {eps:g} you say {mine}, but CG needs {needs}"
        if mine > sure:
            return f"for {NAMES[h]} and eps = {eps:g} you say {mine}, but {sure} is sure to do"


check("04.4", cap, test_cap)


# %% jupyter={"source_hidden": true} tags=["solution"]
def cap_solution(mu, eps):
    return min(len(mu), *(steps_promised(mu, outliers, eps) for outliers in range(len(mu) - 1)))


check("04.4", cap_solution, test_cap)

# %% [markdown]
# ## 12 · What was settled
#
# **The answer.** On eight real heads of width 32 with $\lambda = 0.25$ and no forgetting, a token at position 512 needs 16 to 19 CG steps to $10^{-4}$ in exact arithmetic [C04.10], 18 to 28 in float32 [C04.31], and from the second chunk on about 6 on average with a preconditioner from the chunk boundary [C04.29]. What decides it is the crowd of eigenvalues below the outliers (E04.20, [C04.9]), the precision of the arithmetic [C04.18] and the memory length [C04.32]. The condition number says little: from the best head to the worst it grows tenfold, the steps by 3 in exact arithmetic [C04.10] and by 10 in float32 [C04.31]. It bounds what a residual is worth, and the worst query attains the bound [C04.15].
#
# | section | claims |
# |---|---|
# | the system and its bowl | C04.1, C04.2, C04.3 |
# | steepest descent | C04.4 |
# | conjugate gradients | C04.5, C04.6, C04.7 |
# | polynomials and bounds | C04.8, C04.9, C04.10 |
# | the spectrum of a Mesa layer | C04.11, C04.12, C04.13 |
# | stopping | C04.14, C04.15, C04.16, C04.17, C04.18, C04.19 |
# | starts | C04.20 |
# | sixteen bits | C04.21, C04.22, C04.23 |
# | the guard | C04.24, C04.25 |
# | preconditioning | C04.26, C04.27, C04.28, C04.29, C04.30 |
# | real heads | C04.31, C04.32 |
#
# **Where papers and reference codes differ from what runs.**
#
# | what is said or done | what we found | |
# |---|---|---|
# | MesaNet Sec. 3: zero CG steps give GLA | only with the start $x_0 = q$; from App. C's start the output is another one | X04.1 |
# | MesaNet App. C: text starts from $H_t$, Algorithm 1 from $H_{t-1}$ | they differ by several per cent early in a sequence, and saving steps is no reason for either [C04.20] | X04.2 |
# | FLA before PR 1152: $H$ in float16 | can be indefinite; the residual then jumps and no proof holds. Safe if $\lambda > u\,n$ [C04.21] | X04.3 |
# | FLA: $10^{-5}$ added to both denominators | turns CG into a method that crawls like $1/\sqrt j$, at an absolute scale [C04.25] | X04.4 |
# | FLA: prefill starts at 0, decoding at $q/(\operatorname{diag}H_t+\lambda)$ | with the guard the two read different outputs for the same token, even after 30 steps | X04.5 |
# | MesaNet App. G.5: gate times $1-0.0025\,\beta^2$ | bounds the effective length by 400 at $\beta=1$; for the worst $\beta$ it still grows like $\sqrt T$ | C04.13 |
#
# **Three questions for the group.**
#
# 1. A model is trained with 30 fixed float32 steps and served with $\varepsilon = 10^{-4}$. On which heads and positions does it compute a function that it was not trained with?
# 2. Float32 costs up to nine extra steps because outliers come back [C04.19]. What would you spend on: re-orthogonalising, a preconditioner, more bits, or training the keys so that there are no outliers?
# 3. The rule stops on the residual, the layer uses $G^\top x$. Is there a cheap quantity that tells when *the output* is good enough?
#
# **Minutes per beat, for whoever leads.** Sections 1 and 2: 8. Section 3: 12, and let somebody explain E04.12 at the board. Section 4: 10, most of it at F04b. Sections 5 and 6: 10. Section 7: 4. Sections 8 and 9: 10. Section 10: 8. Section 11 and questions: the rest. People get stuck at the induction under E04.11 and at the trap of section 7.
#
# **Next.** [Notebook 03](03-mesa-objective.ipynb) is where this system comes from. [Notebook 05](05-chunkwise-mesa.ipynb) takes a step for all tokens of a chunk at once, and [notebook 08](08-solver-budget.ipynb) asks where the steps are best spent.
