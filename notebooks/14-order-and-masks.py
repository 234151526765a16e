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
#     title: Order and masks
#     question: A memory is written in chunks of 2048 tokens. What does an attention window of 2047 beside it miss?
#     minutes: 70
#     seconds: 15
#     settles: That the order of writes and reads is the mask, measured for language, image sets and video; that a layer's window must reach exactly as far as its chunk; and which caches give a decoder other outputs than one call.
# ---

# %% [markdown]
# # 14 · Order and masks
#
# **A memory is written in chunks of 2048 tokens, each read before it is written. Attention with a window stands beside it. What does a window of 2047 tokens miss?**
#
# LaCT (arXiv 2505.23884v1) writes thousands of tokens into a small network in one step. Inside a chunk there is no first and no last token, and no attention mask either. Yet the same layer serves language, where nothing may look ahead, sets of images, where everything looks at everything, and video, where a noisy frame must not see its clean twin.
#
# (The paper is known to us through a reading that gives its equations, figures and numbers; "official code" is its repository a1600012888/LaCT at commit 1f84d47.)
#
# What differs is only **the order in which chunks are written and read** (its Fig. 3). This notebook derives a short rule for what an order lets through, measures it for four orders, and then asks what the order costs: a gap that a window must fill, a last chunk that nobody writes, and decoders that forget.
#
# | | |
# |---|---|
# | **Time** | 70 minutes without the exercises and the folded cells, about 110 with them; about 15 seconds to run on two cores, no GPU |
# | **You need** | [notebook 00](00-start-here.ipynb): keys, values, queries. A network as a memory; its step in detail is not needed here. |
# | **In a hurry** | [Order is the mask](#F14a), [the window](#F14b), [caches that forget](#F14d), [recall inside a chunk](#F14c) |
#
# Symbols that are used throughout; the others are explained where they appear. Tokens and chunks are counted from 0.
#
# | here | LaCT | meaning |
# |---|---|---|
# | $T$, $C$ | $n$, $b$ | tokens in the text, tokens in a chunk |
# | $c(t)=\lfloor t/C\rfloor$ | | the chunk that token $t$ is in |
# | $q_t, k_t, v_t$ | $q_i,k_i,v_i$ | query, key and value of token $t$ |
# | $\eta_t$ | $\eta_i$ | its rates, one for each of $W_1$, $W_3$, $W_2$, in this order |
# | $W$, $W_0$ | $W$ | the fast weights ($W_1$, $W_3$, $W_2$), and what they are before the first token |
# | $f_W(x)$ | $f_W(x)$ | the memory, $W_2[\mathrm{SiLU}(W_1x)\circ(W_3x)]$ (Eq. 6) |
# | $\mathrm U_S$, $\mathrm A_S$ | update, apply | write the tokens of a set $S$; read with the queries of $S$ |
# | $D_{ij}$ | | 1 if output $i$ depends on the write of token $j$, else 0: the mask |
# | $w$ | | attention window: how many tokens a token sees, itself included |

# %%
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)  # whether an output has moved is asked to the last bit

from ttt_teach import SwiGLU, attention, delta, lact
from ttt_teach.explore import explore
from ttt_teach.explore import order_and_masks as pictures
from ttt_teach.explore.order_and_masks import perform
from ttt_teach.ledger import check, claim
from ttt_teach.tasks import unit

TOKENS, NUDGE, DECODE, STREAM, SHUFFLE = range(1400, 1405)  # seeds, by purpose


def network(rng, width, hidden):
    """Random fast weights, rows of length about 1."""
    gate, up = rng.normal(size=(2, 1, hidden, width)) / np.sqrt(width)
    return SwiGLU(gate, up, rng.normal(size=(1, width, hidden)) / np.sqrt(hidden))


T, WIDTH = 16, 4
rng = np.random.default_rng(TOKENS)
q, k, v = unit(rng.normal(size=(3, 1, T, 1, WIDTH)))  # [B, T, H, width], one text, one head
lr = rng.uniform(0.5, 1.5, size=(1, T, 1, 3))
W0 = network(rng, WIDTH, 6)


def off(x, y):
    """How far x is from y, relative to the largest entry of y."""
    return float(np.abs(np.asarray(x) - np.asarray(y)).max() / np.abs(y).max())


# %% [markdown]
# ## 1 · Two operations
#
# Everything that LaCT does to a chunk is one of two things.
#
# **Update**, or write. Take the chunk's set of tokens $S$ and go up the sum of inner products (Eqs. 5 and 7), orthogonalise that direction (Muon), add it, and bring every row back to its length in $W_0$ (rows); [notebook 13](13-lact-memory.ipynb) derives each of these:
#
# $$ \mathrm U_S(W) = \operatorname{rows}\Bigl(W+\operatorname{Muon}\Bigl(\sum_{j\in S}\eta_j\nabla_W\langle f_W(k_j),v_j\rangle\Bigr)\Bigr) . \tag{E14.1} $$
#
# **Apply**, or read. Every query of $S$ goes through the network:
#
# $$ \mathrm A_S(W) = \bigl(f_W(q_i)\bigr)_{i\in S} . \tag{E14.2} $$
#
# Nothing else happens. ("Without Muon" means that the direction is added as it is. With momentum a write also looks at the last direction. Then read $W$ as "the weights and that direction", and a token's momentum number as one of its rates; no argument below changes.) Three facts follow by looking, and all of this notebook rests on them:
#
# 1. a write reads keys, values and rates **of its own set only**, and no query;
# 2. a read gives output $i$ from $W$ and $q_i$, and changes nothing;
# 3. a write sees its set only through a **sum**: it does not know the order of the tokens in it.
#
# A **schedule** is a list of entries (start, end, update, apply): the tokens from start to end, exclusive, are written, or read, or written and then read (so "read, then write" takes two entries). The entries run one after the other. In the masks below a token that is read twice counts with its last read. So a schedule *is* the layer's order, and the two orders with names are schedules too:
#
# $$ \text{apply-update: } \mathrm A_0\,\mathrm U_0\,\mathrm A_1\,\mathrm U_1\cdots\mathrm A_{\ell}, \qquad
#    \text{update-apply: } \mathrm U_0\,\mathrm A_0\,\mathrm U_1\,\mathrm A_1\cdots\mathrm U_{\ell}\,\mathrm A_{\ell}, \tag{E14.3} $$
#
# written from left to right, where $\mathrm U_c$ and $\mathrm A_c$ are for chunk $c$ and $\ell=\lceil T/C\rceil-1$ is the last chunk, perhaps a shorter one. Look at the end of the first list: no $\mathrm U_{\ell}$. Section 4 comes back to it.


# %%
def chunks(T, C):
    return [(start, min(start + C, T)) for start in range(0, T, C)]


def apply_update(T, C):
    steps = [entry for chunk in chunks(T, C) for entry in ((*chunk, False, True), (*chunk, True, False))]
    return steps[:-1]  # E14.3: nothing reads after the last chunk, so it is not written


def update_apply(T, C):
    return [(*chunk, True, True) for chunk in chunks(T, C)]


eleven = [x[:, :11] for x in (q, k, v, lr)]
by_name = [lact(*eleven, W0, chunk=5, order=order, muon=False)[0] for order in ("apply-update", "update-apply")]
as_list = [lact(*eleven, W0, chunk=5, order=order(11, 5), muon=False)[0] for order in (apply_update, update_apply)]
same = max(off(a, b) for a, b in zip(by_name, as_list, strict=True))
apart = off(*by_name)
print("apply-update, 11 tokens in chunks of 5:")
for start, end, update, _ in apply_update(11, 5):
    print(f"  tokens {start} to {end}:", "write" if update else "read")
print(f"the two orders give outputs that differ by {apart:.2f} of the largest")

# %% tags=["nbval-check-output"]
claim(
    "C14.1",
    "the two named orders are schedules: entry by entry gives what the name gives",
    source="E14.3; 11 tokens in chunks of 5, so that the last has one token; lact of the package, without Muon",
    error=same,
    tol=1e-13,
)

# %% [markdown]
# ## 2 · Four tokens, by hand
#
# Before any mask, a case small enough for a pencil. Four tokens, chunk 2. The memory reads two inputs and gives one number. We set its first two matrices to $W_1=40\,I$ and $W_3=I$ and let only $W_2$ learn: the rates of the other two are 0. On inputs made of zeros and ones, $\mathrm{SiLU}(40)\cdot1=40\,\sigma(40)=40$ (with the logistic function $\sigma(x)=1/(1+e^{-x})$), to the last bit of float64, and $\mathrm{SiLU}(0)\cdot 0=0$. So
#
# $$ f_W(x) = 40\;y^\top x \quad\text{for } x\in\{0,1\}^2, \tag{E14.4} $$
#
# with $y^\top$ the single row of $W_2$. It begins as $y=(1,0)$ and is brought back to length 1 after every write. The gradient of $\langle f_W(k),v\rangle=40\,v\,y^\top k$ in $y$ is $40\,v\,k$. With rates of $\frac1{40}$ and without Muon a write is therefore
#
# $$ y \leftarrow \frac{z}{\lVert z\rVert},\qquad z = y+\sum_{j\in S} v_j k_j . \tag{E14.5} $$
#
# | token | key | value | asks with | |
# |---|---|---|---|---|
# | 0 | $(1,0)$ | $2$ | $(1,0)$ | its own key |
# | 1 | $(0,1)$ | $4$ | $(1,0)$ | the key of token 0 |
# | 2 | $(1,0)$ | $-1$ | $(0,1)$ | the key of token 1 |
# | 3 | $(0,1)$ | $-\frac12$ | $(1,1)$ | both |
#
# **Apply-update.** Chunk 0 is read with $y=(1,0)$: $o_0=40$, $o_1=40$. Then it is written: $z=(1,0)+2(1,0)+4(0,1)=(3,4)$, of length 5, so $y=(0.6,0.8)$. Chunk 1 is read with it: $o_2=40\cdot0.8=32$, $o_3=40\cdot1.4=56$.
#
# **Update-apply.** Chunk 0 is written first, so $y=(0.6,0.8)$ and $o_0=o_1=40\cdot0.6=24$. Chunk 1: $z=(0.6,0.8)-1(1,0)-\frac12(0,1)=(-0.4,0.3)$, of length 0.5, so $y=(-0.8,0.6)$. Then $o_2=40\cdot0.6=24$ and $o_3=40\cdot(-0.2)=-8$.
#
# **Write chunk 0, then read all four**, as one reads a set of images: $y=(0.6,0.8)$ throughout, $o=(24,24,32,56)$.
#
# Token 1 asks for the value of token 0. Apply-update answers 40 whatever that value is: the answer was given before the write. Update-apply answers 24, which does contain it. It also contains the value of token 1 itself, although that has another key: through the length 5, since the first entry of $y$ is $(1+v_0)/\sqrt{(1+v_0)^2+v_1^2}$. It would contain every later token of the chunk.

# %%
hand_k = np.array([[1.0, 0], [0, 1], [1, 0], [0, 1]])
hand_v = np.array([[2.0], [4], [-1], [-0.5]])
hand_q = np.array([[1.0, 0], [1, 0], [0, 1], [1, 1]])
memory = SwiGLU(40 * np.eye(2)[None], np.eye(2)[None], np.array([[[1.0, 0.0]]]))  # E14.4
rates = np.tile([0, 0, 1 / 40], (4, 1))
by_hand = {
    "apply-update": [40, 40, 32, 56],
    "update-apply": [24, 24, 24, -8],
    "write 0, read all": [24, 24, 32, 56],
}
orders = {"write 0, read all": [(0, 2, True, False), (0, 4, False, True)]}
hand = [x[None, :, None] for x in (hand_q, hand_k, hand_v, rates)]
computed = {
    name: np.asarray(lact(*hand, memory, chunk=2, muon=False, order=orders.get(name, name))[0]).ravel()
    for name in by_hand
}
for name, o in computed.items():
    print(f"{name:18}", *(f"{x:9.4f}" for x in o))

# %% [markdown]
# The last digits are not rounding. The package divides by $\lVert z\rVert+10^{-5}$ where we divided by $\lVert z\rVert$, a guard of the reference code, in *all three* matrices and at every write: the 40 and the 1 shrink a little too. Put the guard into the pencil, and nothing is left.


# %%
def pencil(schedule, guard=1e-5):
    y, gate, up, o = np.array([1.0, 0.0]), 40.0, 1.0, []
    for start, end, update, apply in schedule:
        f = gate / (1 + np.exp(-gate)) * up  # E14.4: f(x) is this times y'x
        if update:
            z = y + hand_v[start:end, 0] @ hand_k[start:end] * f / 40  # E14.5
            y, gate, up = z / (np.linalg.norm(z) + guard), gate / (gate + guard) * 40, up / (up + guard)
        if apply:
            f = gate / (1 + np.exp(-gate)) * up
            o += list(f * hand_q[start:end] @ y)
    return np.array(o)


schedules = {"apply-update": apply_update(4, 2), "update-apply": update_apply(4, 2), **orders}
guarded = max(off(computed[name], pencil(schedules[name])) for name in by_hand)
plain = max(np.abs(pencil(schedules[name], guard=0) - by_hand[name]).max() for name in by_hand)
rest = max(np.abs(computed[name] - by_hand[name]).max() for name in by_hand)
print(f"whole numbers: {plain:.0e} from the pencil without the guard, {rest:.0e} from the package")

# %% tags=["nbval-check-output"]
claim(
    "C14.2",
    "four tokens in chunks of 2 give with a pencil, guard included, what the package gives, in three orders",
    source="E14.4 and E14.5 with 1e-5 added to each length; no Muon; relative to the largest output",
    error=guarded,
    tol=1e-14,
)
claim(
    "C14.28",
    "without the guard the pencil's outputs are the whole numbers of the text",
    source="E14.4 and E14.5: (40,40,32,56), (24,24,24,-8), (24,24,32,56); largest difference",
    error=plain,
    tol=1e-13,
)

# %% [markdown]
# ## 3 · The mask of an order, predicted and measured
#
# **What is a mask here?** No matrix of zeros and ones is ever multiplied with anything. But outputs do depend on some tokens and not on others. Say $D_{ij}=1$ if a change of key, value or rates of token $j$ can change output $i$.
#
# **The rule.** Follow a schedule and keep the set $R$ of tokens that have been written so far. Then
#
# $$ \begin{gathered} \text{after every entry, } W \text{ is a function of } W_0 \text{ and the tokens in } R \text{ alone}, \\
#    D_{ij} \le [\,j\in R \text{ when } i \text{ is read}\,] . \end{gathered} \tag{E14.6} $$
#
# *Proof.* By induction over the entries. Before the first, $R$ is empty and $W=W_0$. A write of $S$ makes $W$ a function of the old $W$ and of the tokens in $S$ (fact 1): of $R\cup S$. A read changes neither (fact 2), and gives $f_W(q_i)$: a function of the tokens in $R$, of $W_0$ and of $q_i$. $\square$
#
# That is all that "no leak" needs. Equality is not proved by looking: a write could cancel. That each of these tokens *does* matter we measure [C14.3], [C14.5]. The rule as code:


# %%
def predicted(schedule, T):
    written, D = np.zeros(T, bool), np.zeros((T, T), bool)
    for start, end, update, apply in schedule:
        written[start:end] |= update
        if apply:
            D[start:end] = written
    return D  # E14.6, with equality


# %% [markdown]
# **How to measure.** Take 33 copies of the text. In copy $j$ of the first 16, token $j$ has another key, value and rates; in the next 16, another query; the last is as it was. Run all of them, as one batch, and look which outputs differ from the last copy in any bit.
#
# Schedules differ in shape, and a compiler wants one. So a small program, `perform`, runs them all: it calls the package's write and read for one entry after the other, always on all 16 tokens; those that are not to be written get a rate of 0, and by E14.1 add nothing to the sum.

# %%
nudge = np.random.default_rng(NUDGE)
each, none = np.eye(T, dtype=bool), np.zeros((T, T), bool)
changes_write = np.concatenate([each, none, none[:1]])[:, :, None, None]  # copy by token
changes_query = np.concatenate([none, each, none[:1]])[:, :, None, None]


def changed(x, where):
    return np.where(where, x + nudge.normal(size=x.shape), x)


COPIES = (
    changed(q, changes_query),
    changed(k, changes_write),
    changed(v, changes_write),
    np.where(changes_write, lr * nudge.uniform(1.5, 2, size=lr.shape), lr),
)


def measured(schedule):
    """D, which outputs move with which query, and the least move that is not zero over the largest output."""
    o = perform(schedule, *COPIES, W0)[:, :, 0]
    moves = np.abs(o[:-1] - o[-1]).max(-1).reshape(2, T, T).swapaxes(1, 2)
    return moves[0] > 0, moves[1] > 0, moves[moves > 0].min(initial=np.inf) / np.abs(o[-1]).max()


NAMED = {"apply-update": apply_update, "update-apply": update_apply}
one_call = {name: np.asarray(lact(q, k, v, lr, W0, chunk=4, order=name)[0]) for name in NAMED}
small_program = max(off(perform(NAMED[name](T, 4), q, k, v, lr, W0), o) for name, o in one_call.items())
for name, order in NAMED.items():
    print(f"{name}, 16 tokens, chunk 5; rows are outputs, # depends on the write, . does not")
    for row in measured(order(T, 5))[0]:
        print("  ", "".join(".#"[int(x)] for x in row))

# %% tags=["nbval-check-output"]
claim(
    "C14.29",
    "the small program gives the outputs of the package's two named orders",
    source="E14.1 to E14.3; 16 tokens, chunk 4, with Muon",
    error=small_program,
    tol=1e-13,
)

# %% [markdown]
# Four orders will occupy us, the two named ones and
#
# - an **image set**: a chunk is an image; all images but the last are *sources*, written at once; then every token is read, those of the last image (the *target*) too;
# - a **video**: chunks take turns, noisy, clean, noisy, clean; a noisy chunk is only read, a clean one is written and then read.


# %%
def image_set(T, C):
    sources = chunks(T, C)[-1][0]  # all images but the last
    return [(0, sources, True, False), (0, T, False, True)]


def video(T, C):
    return [(*chunk, n % 2 == 1, True) for n, chunk in enumerate(chunks(T, C))]


ORDERS = {**NAMED, "image set": image_set, "video": video}
CHUNKS = (1, 2, 3, 4, 5, 8)
LENGTHS = (16, 13, 11)  # tokens beyond a length are neither written nor read
found = {
    (name, C, n): (*measured(order(n, C)), predicted(order(n, C), T))
    for name, order in ORDERS.items()
    for C in CHUNKS
    for n in LENGTHS
}
wrong = sum(int((D != rule).sum()) for D, _, _, rule in found.values())
own = sum(
    int((Q != (np.eye(T, dtype=bool) & (np.arange(T) < n)[:, None])).sum()) for (*_, n), (_, Q, *_) in found.items()
)
least = min(move for *_, move, _ in found.values())
checked = sum(n**2 for *_, n in found)
print(f"{len(found)} schedules, {checked} pairs of an output and a token")
print(f"the smallest move that is not zero is {least:.0e} of the largest output")

# %% tags=["nbval-check-output"]
claim(
    "C14.3",
    "the measured dependence on writes is what the rule predicts, for four orders, six chunks, three lengths",
    source="E14.6; 72 schedules with lengths 16, 13, 11; Muon, no momentum, float64; entries that differ",
    error=wrong,
    tol=0,
)
claim(
    "C14.4",
    "an output depends on the query of its own token and on no other query",
    source="E14.2; the same 72 schedules; entries that differ from the diagonal",
    error=own,
    tol=0,
)

# %% [markdown]
# Drag both sliders ([F14a](#F14a)). Blue: the output depends on key, value or rates of that token; orange: on its query. Lines are the borders of chunks. It opens with the case to remember, apply-update in chunks of 4: tokens 4 to 7 read what tokens 0 to 3 have written.

# %%
LETTERS = {"video": lambda n: "NX"[n % 2] + str(n // 2), "image set": lambda n: f"im {n}"}


def draw_mask(order, chunk):
    name = LETTERS.get(order, str)
    blocks = [(*ends, name(n)) for n, ends in enumerate(chunks(T, chunk))]
    if len(blocks) > 8:
        blocks = [(start, end, label if n % 2 == 0 else "") for n, (start, end, label) in enumerate(blocks)]
    return pictures.dependencies(*found[order, chunk, T][:2], order, chunk, blocks)


explore(draw_mask, order=list(ORDERS), chunk=CHUNKS, start={"order": "apply-update", "chunk": 4})

# %% [markdown]
# **Is a nudge a proof?** A nudge that moves an output proves that it depends. A nudge that does not move it proves nothing: perhaps that nudge happened to cancel. And there is a second way to measure, the derivative $\partial o_i/\partial(k_j,v_j)$ (we leave the rates to the nudges), with the same weakness: it may happen to be zero just here. Why do both nevertheless tell the truth?
#
# Fix everything but token $j$, and call the output as a function of that token $g(x)=o_i$. It is made of sums, products, $\mathrm{SiLU}$ and divisions by lengths; Muon is here a few polynomials after one such division ([notebook 13](13-lact-memory.ipynb)). Where no length is 0 that is a real-analytic function, and the points where one is 0 satisfy several equations at once, so that removing them does not cut the domain. Such a function has a property that smooth functions lack: if it vanishes on a set of positive measure, it vanishes everywhere. Apply this to $x\mapsto g(x)-g(x_0)$ and to $x\mapsto\nabla g(x)$:
#
# $$ g \text{ not constant}\;\Longrightarrow\; \Pr\bigl[g(x)=g(x_0)\bigr]=0 \;\text{ and }\; \Pr\bigl[\nabla g(x)=0\bigr]=0 \quad\text{for random } x . \tag{E14.7} $$
#
# So if the token matters, a random nudge shows it with probability 1, and so does the derivative at a random text. If it does not matter, both are zero, and *exactly* zero in floating point too: the number is either not used, or multiplied by an exact 0, and a backward pass that starts at output $i$ multiplies by zeros until it ends. What floating point can do is lose a dependence below its last bit. Here it loses none: every predicted entry moved [C14.3], by more than $10^{13}$ times that bit.
#
# The derivative measures the package's named orders, each compiled as it is, without our small program.


# %%
def jacobian_mask(n, order):
    """Which outputs have a derivative in key or value of which token, [outputs, tokens]; chunk 4."""

    def outputs(pairs):
        o, _ = lact(q[:, :n], *pairs, lr[:, :n], W0, chunk=4, order=order, muon=False)
        return o[0, :, 0]

    slopes = jax.jit(jax.jacobian(outputs))(jnp.stack([k[:, :n], v[:, :n]]))  # [outputs, V, 2, 1, tokens, 1, K]
    return np.abs(slopes).max((1, 2, 3, 5, 6)) > 0


SHORT = 13  # three whole chunks and a token
direct = {
    "apply-update": jacobian_mask(SHORT, "apply-update"),
    "update-apply": jacobian_mask(SHORT, "update-apply"),
}
differ = sum(int((D != predicted(ORDERS[name](SHORT, 4), SHORT)).sum()) for name, D in direct.items())
print("entries that are not zero:", ", ".join(f"{name} {D.sum()}" for name, D in direct.items()))

# %% tags=["nbval-check-output"]
claim(
    "C14.5",
    "the jacobian of the package's two named orders is zero exactly where the rule says so, and nowhere else",
    source="E14.6 and E14.7; 13 tokens, chunk 4, without Muon; entries that differ",
    error=differ,
    tol=0,
)

# %% [markdown]
# **Read the two named masks off the rule**, with the measured equality. In update-apply, chunk $c(i)$ has just been written when $i$ is read; in apply-update it has not:
#
# $$ D^{\mathrm{UA}}_{ij} = [\,c(j)\le c(i)\,], \qquad D^{\mathrm{AU}}_{ij} = [\,c(j)<c(i)\,] . \tag{E14.8} $$
#
# The first is *block-causal*, full inside the chunk. Since $c(i-C)=c(i)-1$, the second is the first moved down by one chunk:
#
# $$ D^{\mathrm{AU}}_{ij} = D^{\mathrm{UA}}_{i-C,\,j} \;\;(i\ge C), \qquad D^{\mathrm{AU}}_{ij}=0 \;\;(i<C) . \tag{E14.9} $$
#
# That is why the order is called *shifted* block-causal: every token reads what the token one chunk earlier would have read.

# %%
shift_wrong = formula_wrong = 0
for chunk in CHUNKS:
    AU, UA = (found[name, chunk, T][0] for name in NAMED)
    c = np.arange(T) // chunk
    formula_wrong += int((UA != (c[None] <= c[:, None])).sum() + (AU != (c[None] < c[:, None])).sum())
    shift_wrong += int((AU[chunk:] != UA[:-chunk]).sum() + AU[:chunk].sum())

# %% tags=["nbval-check-output"]
claim(
    "C14.6",
    "apply-update is update-apply moved down by one chunk, and both are what their formulas say",
    source="E14.8 and E14.9 against the measured masks, six chunks, 16 tokens; entries that differ",
    error=formula_wrong + shift_wrong,
    tol=0,
)

# %% [markdown]
# > **Takeaway.** The mask is not in the layer. It is in the order of two operations, and a few lines of bookkeeping predict it.
#
# ## 4 · Language: no leak
#
# A language model makes query, key, value and rates of token $t$ from token $t$, and from output $o_t$ it predicts token $t+1$. It may be trained on all positions at once only if $o_t$ does not know token $t+1$ or any later one.
#
# **Apply-update does not leak.** By E14.8 output $t$ depends on writes with $c(j)<c(t)$, hence on $j<t$, and on its own query:
#
# $$ D^{\mathrm{AU}}_{tj}=1 \;\Rightarrow\; c(j)<c(t) \;\Rightarrow\; j<C\,c(t)\le t . \tag{E14.10} $$
#
# And a stack of layers? Let every layer have a mask that is zero above the diagonal, the token itself counted as seen. Through two layers, the upper with mask $D$ and the lower with $D'$, output $i$ depends on token $j$ only if there is a token $m$ with $D_{im}D'_{mj}=1$. Then $j\le m\le i$. So the mask of a stack is zero above the diagonal too, however many layers it has. Window attention, convolutions over the past, norms and feed-forward parts are of this kind. $\square$
#
# **Update-apply leaks**, as soon as a chunk has two tokens: $D^{\mathrm{UA}}_{t,t+1}=1$ unless $t+1$ begins a chunk. Is that a mere formality? Make the classic memory of a language model: token $j$ writes the pair (key: the token before it, value: itself), and token $t$ asks with itself: *what came after me?* On a text in which no token occurs twice there is almost nothing to be known (only that what comes is none of the tokens seen), and an honest model guesses.

# %%
VOCABULARY, TEXT, LANGUAGE_CHUNK, TEXTS = 64, 33, 8, 8
rng = np.random.default_rng(STREAM)
embedding = np.linalg.qr(rng.normal(size=(VOCABULARY, VOCABULARY)))[0]  # orthonormal, one row a token
texts = np.array([rng.permutation(VOCABULARY)[:TEXT] for _ in range(TEXTS)])  # no token twice
wide = network(rng, VOCABULARY, VOCABULARY)
here = embedding[texts[:, 1:-1]][:, :, None]  # token t, for t from 1 to 31: value and query
before, after = embedding[texts[:, :-2]][:, :, None], texts[:, 2:]
fast = np.full((*here.shape[:3], 3), 10.0)  # rates


def right_guesses(order):
    o, _ = lact(here, before, here, fast, wide, chunk=LANGUAGE_CHUNK, order=order, muon=False)
    return np.argmax(np.asarray(o)[:, :, 0] @ embedding.T, -1) == after  # [texts, positions]


guesses = {order: right_guesses(order) for order in ("apply-update", "update-apply")}
inside = (np.arange(TEXT - 2) + 1) % LANGUAGE_CHUNK != 0  # the next token is in the same chunk
inside[-1] = False  # the last token's successor is not written at all
for order, right in guesses.items():
    print(
        f"{order}: {right.mean():.3f} of the next tokens guessed,",
        f"in the same chunk {right[:, inside].mean():.3f}, elsewhere {right[:, ~inside].mean():.3f}",
    )
unseen = 1 / (VOCABULARY - np.arange(2, TEXT))  # a guess among the tokens not seen so far
print(f"chance is {1 / VOCABULARY:.3f}, or {unseen.mean():.3f} among the tokens not seen")
print(f"{inside.mean():.3f} of the next tokens are in the same chunk")

# %% tags=["nbval-check-output"]
claim(
    "C14.7",
    "no output of apply-update depends on its own or a later write, for six chunks and three lengths",
    source="E14.10 on the measured masks; entries on and above the diagonal",
    error=sum(int(np.triu(found["apply-update", C, n][0]).sum()) for C in CHUNKS for n in LENGTHS),
    tol=0,
)
claim(
    "C14.8",
    "in update-apply the next token of a random text is read off the memory wherever it is in the same chunk",
    source="8 texts without repetition, orthonormal embeddings, chunk 8, rates 10, no Muon; share guessed wrong",
    error=float(1 - guesses["update-apply"][:, inside].mean()),
    tol=1e-12,
)
claim(
    "C14.9",
    "apply-update guesses the same tokens no better than a guess among all 64: at most 4 of 248",
    source="the same texts; right guesses beyond 4, where such guesses give 248/64 in the mean",
    error=max(0, int(guesses["apply-update"].sum()) - 4),
    tol=0,
)

# %% [markdown]
# **The last chunk.** In apply-update a chunk is written so that *later* chunks can read it. After the last one there is none, and E14.3 ends with a read. So in one call
#
# $$ \text{writes} = \lceil T/C\rceil-1, \qquad \text{and nothing is written at all while } T\le C . \tag{E14.11} $$
#
# Fig. 3 describes the order as: read a chunk, then write it. Taken for *every* chunk, each makes a write. The released language code makes one write less. Our golden file holds what that code computed in ten runs: the weights after each of its writes, and its gradients, so we can count.

# %%
golden = np.load("../tests/golden/lact.npz")  # the official functions' own numbers
runs = sorted({name.split("/")[0] for name in golden.files if name.startswith("causal_")})
unwritten, silent, last_slopes, other_slopes = 0, [], 0.0, np.inf
for name in runs:
    length, chunk = golden[f"{name}/k"].shape[1], int(name.split("_c")[1].split("_")[0])
    writes = sum(file.startswith(f"{name}/w0_after") for file in golden.files)
    unwritten += -(-length // chunk) - writes
    if not writes:
        silent.append(f"{length} tokens, chunk {chunk}")
    last = (length - 1) // chunk * chunk
    for field in ("k", "v", "lr0", "lr1", "lr2"):
        slope = np.abs(golden[f"{name}/grad_{field}"])
        last_slopes = max(last_slopes, slope[:, last:].max())
        if last and field in "kv":
            other_slopes = min(other_slopes, slope[:, :last].max((0, 2)).min())
print(f"{len(runs)} official runs: {unwritten} chunks were read and never written; no write at all:", *silent)
print(f"gradients in keys, values and rates of the last chunk: {last_slopes}")
print(f"elsewhere, in keys and values: at least {other_slopes:.0e}")
updates, share = sum(update for *_, update, _ in apply_update(32768, 2048)), 2048 / 32768
print(f"32768 tokens in chunks of 2048: {updates} writes, {share:.2%} of the tokens are never written")

# %% tags=["nbval-check-output"]
claim(
    "X14.1",
    "every chunk is written once it has been read",
    source="LaCT Fig. 3 (apply, then update), if taken for every chunk; ten runs of the official language code: unwritten chunks",
    error=unwritten,
    tol=0,
    expect=False,
)
claim(
    "C14.10",
    "keys, values and rates of the last chunk have no gradient in the official runs",
    source="E14.11; golden causal_*, ten cases, full and ragged last chunks; the largest such gradient",
    error=last_slopes,
    tol=0,
)

# %% [markdown]
# Within one call nothing is lost: no output of this text could have used that write [C14.10]. But whoever continues the text from the weights alone continues from a memory that ends up to $C$ tokens too early. And a text no longer than one chunk is read by $f_{W_0}$: a plain network that has learned nothing from it. Section 8 asks what must be carried instead.
#
# ## 5 · Image sets
#
# For view synthesis (Sec. 4.1) the tokens of all source images are written in one update. Then everything is read: the sources, which go on to the next layer, and the targets, the views to be rendered, which are never written. From E14.6, with $S$ the set of source tokens (the equality is measured [C14.11]):
#
# $$ D_{ij} = [\,j\in S\,] \quad\text{for every output } i . \tag{E14.12} $$
#
# Three consequences. The sources see each other in full, both ways. The order of the images does not matter, by fact 3. And target tokens get neither their own pair nor each other's *from the memory*, so for the memory targets can be rendered in parts, even token by token, in any number, from weights that stay as they are. (The paper's model also attends within each image: there the smallest part is one image.)

# %%
IMAGE = 4  # tokens
sources = image_set(T, IMAGE)[0][1]
D = found["image set", IMAGE, T][0]
shuffle = np.concatenate([np.random.default_rng(SHUFFLE).permutation(sources), np.arange(sources, T)])
in_order = perform(image_set(T, IMAGE), q, k, v, lr, W0)
mixed = perform(image_set(T, IMAGE), *(x[:, shuffle] for x in (q, k, v, lr)), W0)

first = [x[:, :sources] for x in (q, k, v, lr)]
_, scene = lact(*first, W0, chunk=IMAGE, order=[(0, sources, True, False)])  # the prefill: no output at all
views = []
for t in range(sources, T):  # one token at a time
    token = [x[:, t : t + 1] for x in (q, k, v, lr)]
    o, scene = lact(*token, None, chunk=IMAGE, order=[(0, 1, False, True)], state=scene)
    views.append(np.asarray(o))
rendered = np.concatenate(views, 1)
print(f"{sources} source and {T - sources} target tokens: {D.sum()} dependences, {D[:, sources:].sum()} on targets")

# %% tags=["nbval-check-output"]
claim(
    "C14.11",
    "in an image set every output depends on all source tokens and on no target token",
    source="E14.12 against the measured masks, six chunks; entries that differ",
    error=sum(int((found["image set", n, T][0] != (np.arange(T) < image_set(T, n)[0][1])[None]).sum()) for n in CHUNKS),
    tol=0,
)
claim(
    "C14.12",
    "the order of the source tokens changes no target, and targets rendered token by token are those rendered together",
    source="fact 3 and E14.12; 12 sources shuffled, 4 targets; weights carried in the state of lact",
    error=max(off(o, in_order[:, sources:]) for o in (mixed[:, sources:], rendered)),
    tol=1e-13,
)

# %% [markdown]
# **Exercise 14.1 ★ A dialogue.** The first $P$ tokens are a document that is known as a whole: it may be written at once and read both ways. The rest is generated and must not leak: chunks of $C$, apply-update, the last one never written. Write the schedule.
#
# <details><summary>Hint</summary>
#
# The chunks of the second part begin at $P$, not at a multiple of $C$. When is the document written, before or after it is read?
#
# </details>


# %%
def dialogue(P, T, C):
    return ...  # a list of (start, end, update, apply)


def test_dialogue(answer):
    for P, length, C in ((4, 16, 4), (6, 15, 4), (5, 6, 3), (8, 16, 8)):
        entries = answer(P, length, C)
        if [t for start, end, _, apply in entries if apply for t in range(start, end)] != list(range(length)):
            return f"P = {P}, T = {length}, C = {C}: read are not all tokens, each once, in order, and no others"
        D = predicted(entries, length)
        i, j = np.indices((length, length))
        wanted = np.where(i < P, j < P, (j < P) | ((j - P) // C < (i - P) // C))
        if (wrong := np.argwhere(D != wanted)).size:
            i, j = wrong[0]
            says = "depends" if D[i, j] else "does not depend"
            return f"P = {P}, T = {length}, C = {C}: output {i} {says} on token {j}"
        if (writes := sum(entry[2] for entry in entries)) != (needed := -(-(length - P) // C)):
            return f"P = {P}, T = {length}, C = {C}: {writes} entries write; {needed} are needed"


check("14.1", dialogue, test_dialogue)


# %% jupyter={"source_hidden": true} tags=["solution"]
def dialogue_solution(P, T, C):
    rest = [(start + P, end + P, update, apply) for start, end, update, apply in apply_update(T - P, C)]
    return [(0, P, True, True), *rest]


check("14.1", dialogue_solution, test_dialogue)

# %% [markdown]
# ## 6 · Video: a noisy frame must not see its clean twin
#
# A video model learns to denoise chunk $c$ (in the paper three latent frames, 4680 tokens) given the clean chunks before it. To train on all chunks in one pass, Sec. 4.3 interleaves them:
#
# $$ N_0,\,X_0,\,N_1,\,X_1,\,N_2,\dots \qquad N_c=(1-\tau_c)X_c+\tau_c\,\epsilon_c , \tag{E14.13} $$
#
# $X_c$ clean, $N_c$ noisy, $\tau_c$ the noise level (the paper's $t_i$) and $\epsilon_c$ the noise. If $N_c$ could read what $X_c$ wrote, the answer would lie beside the question. The schedule reads each $N_c$ *before* $X_c$ is written, and never writes $N_c$. By E14.6 an output of $N_c$ can depend on $X_m$ for $m<c$ only, an output of $X_c$ on $X_m$ for $m\le c$, and nothing on the keys, values or rates of a noisy chunk. The code's own grouping, $N_0,(X_0,N_1),(X_1,N_2),\dots$, writes the clean half of a group and then reads both halves: the same order.
#
# Two remarks. Several noisy versions of a chunk may be read before its clean twin, as in the 1.3B model's training (App. C.3): a read changes nothing (fact 2), so none disturbs another. And the window attention beside this memory must not undo the work. In the official video code $X_c$ attends to itself, and $N_c$ to itself and at most $X_{c-1}$ (`ar_lact_swa_repeat.py`, read in the source, not run). So through both branches clean outputs reach only clean chunks at or before their own, and a noisy output beyond its own chunk only clean chunks before it. Products of such masks are of the same kind: depth opens no way from $N_c$ to $X_c$.
#
# One exchange, easily made, ruins it: take $(N_c,X_c)$ as a group, write its clean half, read both.


# %%
def video_leaking(T, C):
    """Groups (noisy, clean): the clean half is written, then both are read."""
    ends = chunks(T, C)
    groups = [(*pair, pair[0][0], pair[1][1]) for pair in zip(ends[::2], ends[1::2], strict=False)]
    return [e for _, clean, start, end in groups for e in ((*clean, True, False), (start, end, False, True))]


def grouped(T, C):
    """Groups (clean, next noisy), after the first noisy chunk: as the official code runs it."""
    ends = chunks(T, C)
    steps = [(*ends[0], False, True)]
    for n in range(1, len(ends), 2):
        steps += [
            (*ends[n], True, False),
            (ends[n][0], ends[min(n + 1, len(ends) - 1)][1], False, True),
        ]
    return steps


def leaks(D, C):
    """Pairs of a noisy output and a token of its own clean twin or of a later chunk."""
    c = np.arange(len(D)) // C
    noisy = c % 2 == 0
    return int((D & noisy[:, None] & (c[None] > c[:, None])).sum())


def frames(D, C):
    """By chunk: on which chunks its outputs depend, if all of them agree, else None."""
    blocks = D.reshape(T // C, C, T // C, C)
    return blocks.all((1, 3)) if (blocks.all((1, 3)) == blocks.any((1, 3))).all() else None


row, column = np.indices((4, 4))  # chunks N0, X0, N1, X1
by_rule = (column % 2 == 1) & (column <= row)
right_frames, bad_frames = (frames(measured(order(T, 4))[0], 4) for order in (video, video_leaking))
together = sum(int((measured(grouped(T, C))[0] != found["video", C, T][0]).sum()) for C in CHUNKS)
names = ["N0", "X0", "N1", "X1"]
for title, table in (("noisy read first", right_frames), ("clean written first", bad_frames)):
    told = [f"{name} on {', '.join(np.array(names)[on]) or 'nothing'}" for name, on in zip(names, table, strict=True)]
    print(f"{title:20}", "; ".join(told))

# %% tags=["nbval-check-output"]
claim(
    "C14.13",
    "no noisy chunk depends on its clean twin, nor anything on a noisy write; the official grouping is the same order",
    source="E14.13 and E14.6; measured: leaks for six chunks, frames at chunk 4, and grouped against ungrouped",
    error=sum(leaks(found["video", C, T][0], C) for C in CHUNKS) + int((right_frames != by_rule).sum()) + together,
    tol=0,
)
claim(
    "C14.14",
    "with the clean chunk written first every noisy token depends on every token of its clean twin",
    source="N0 on X0 and N1 on X1 at chunk 4, 16 tokens; measured; twins on which not every token depends",
    error=int((~bad_frames[[0, 2], [1, 3]]).sum()),
    tol=0,
)

# %% [markdown]
# > **Takeaway.** Nobody masks a noisy frame. It is asked before the answer is written.
#
# ## 7 · The window that fills the gap
#
# Apply-update does not leak, and pays for it: a token knows nothing of its own chunk, not even its own pair. LaCT puts attention with a window beside it, in the same layer and with the same keys and values (Sec. 4.2). How long must the window be?
#
# Let token $t$ stand at place $p=t-C\,c(t)$ of its chunk, $0\le p<C$. The fast weights give it all tokens before its chunk, $j< t-p$. The window gives $t-w<j\le t$. Between them lie the tokens
#
# $$ t-p\;\le\; j\;\le\; t-w , \qquad\text{which are } \max(0,\;p-w+1) \text{ tokens} . \tag{E14.14} $$
#
# There is none at any place if and only if the last place has none: $p=C-1$ gives $C-w\le0$. So, for texts that fill at least one chunk,
#
# $$ \text{no gap} \iff w\ge C, \quad \text{missed: } \sum_{p=w}^{C-1}(p-w+1) = \frac{(C-w)(C-w+1)}{2} \;\text{ a chunk, if } w\le C . \tag{E14.15} $$
#
# **The off-by-one.** $w$ counts the token itself. In words about the past alone: a token must be able to look back at $C-1$ *earlier* tokens. For chunks of 2048 a library whose `window=(left, right)` counts earlier tokens wants `left` = 2047; one that counts the token itself, and is given 2047, misses one pair in every full chunk. The official layer gives its library `window_size=(w - 1, 0)` (`layer_lact_swiglu.py`, read in the source, not run), so its $w$ is ours. (A text shorter than $C$ needs only $w\ge T$.)
#
# For the mask no more is needed: all that a longer window adds is seen twice.
#
# Measured, not derived: outputs of the layer are the sum of both branches, so we change key and value of one token in both and look at the sum.

# %%
WINDOWS = (1, 2, 3, 4, 5, 8)
from_window = {w: np.asarray(attention(*COPIES[:3], window=w, form="definition")) for w in WINDOWS}
from_memory = {C: perform(apply_update(T, C), *COPIES, W0) for C in CHUNKS}


def moved(o):
    """Which outputs move when key, value and rates of a token change, [outputs, tokens]."""
    o = o[:, :, 0]
    return (np.abs(o[:T] - o[-1]).max(-1) > 0).T


causal = np.tril(np.ones((T, T), bool))
layer = {(C, w): moved(from_memory[C] + from_window[w]) for C in CHUNKS for w in WINDOWS}
gaps = {key: causal & ~D for key, D in layer.items()}


def missed_by_formula(C, w):
    """E14.14, summed over the tokens of a text, which may end inside a chunk."""
    place = np.arange(T) % C
    return int(np.maximum(0, place - w + 1).sum())


def missed_in_a_chunk(C, w):
    return (C - w) * (C - w + 1) // 2  # E14.15, for w <= C


count_wrong = sum(abs(int(gap.sum()) - missed_by_formula(*key)) for key, gap in gaps.items())
pairs = [(C, w) for C in (1, 2, 4, 8) for w in WINDOWS if w <= C]  # chunks that divide 16
count_wrong += sum(abs(int(gaps[pair].sum()) - T // pair[0] * missed_in_a_chunk(*pair)) for pair in pairs)
full = sum((int(gap.sum()) == 0) != (w >= C) for (C, w), gap in gaps.items())
print("missed pairs in 16 tokens; rows: window, columns: chunk")
print("      ", *(f"{C:4}" for C in CHUNKS))
for w in WINDOWS:
    print(f"   {w:3}", *(f"{int(gaps[C, w].sum()):4}" for C in CHUNKS))
told = ", ".join(f"of {w}: {missed_in_a_chunk(2048, w)}" for w in (2048, 2047, 1024))
print(f"pairs missed in a chunk of 2048 by a window {told}")

# %% tags=["nbval-check-output"]
claim(
    "C14.15",
    "window attention and fast weights together miss nothing if and only if the window reaches the chunk",
    source="E14.15; 36 pairs of a chunk and a window, 16 tokens, measured on the sum; pairs where the two disagree",
    error=full,
    tol=0,
)
claim(
    "C14.16",
    "the number of missed pairs is the formula's, whole chunks and ragged ones",
    source="E14.14 and E14.15; the same 36 measured masks, and the closed form for whole chunks",
    error=count_wrong,
    tol=0,
)
claim(
    "C14.17",
    "with the window the layer still has no entry above the diagonal",
    source="E14.10; 36 measured masks; entries above the diagonal",
    error=sum(int(np.triu(D, 1).sum()) for D in layer.values()),
    tol=0,
)

# %% [markdown]
# Drag both ([F14b](#F14b)). It opens at window 3 and chunk 4. Before you set window 4 and chunk 5, predict the crosses.

# %%
WINDOW_MASKS = {w: moved(o) for w, o in from_window.items()}


def draw_combined(chunk, window):
    return pictures.combined(found["apply-update", chunk, T][0], WINDOW_MASKS[window], chunk, window)


explore(draw_combined, chunk=CHUNKS, window=WINDOWS, start={"chunk": 4, "window": 3})

# %% [markdown]
# **Depth helps a little.** In a stack a gap can be bridged: token $t$ sees $m$ in the second layer, and $m$ saw $j$ in the first. Inside a chunk only the window makes such steps, for the fast weights give nothing of the own chunk, and no way leads out of the chunk and back, since no step goes forward in time. A step of the window goes back by at most $w-1$. So $L$ layers, all with chunks of $C$ and with windows $w_1,\dots,w_L$, have no gap if and only if
#
# $$ (w_1-1)+\dots+(w_L-1)\;\ge\; C-1, \qquad\text{for equal windows } L\,(w-1)\ge C-1 . \tag{E14.16} $$
#
# With $L=1$ this is E14.15. A path is not a memory, however: what arrives over several layers must have been passed on by each token between.

# %%
DEPTHS = (1, 2, 3)
bridged_wrong = 0
stacks = [(C, windows) for C in CHUNKS for L in DEPTHS for windows in product(WINDOWS, repeat=L)]
for C, windows in stacks:
    paths = np.eye(T)
    for w in windows:
        paths = paths @ (layer[C, w] | np.eye(T, dtype=bool))  # one more layer, and the residual
    bridged_wrong += (paths[causal] > 0).all() != (sum(windows) - len(windows) >= C - 1)


def stacked(C, w, L):
    """A stack of real layers: x + attention(x) + lact(x), the token is its own query, key and value."""
    *_, x, rates = COPIES
    for _ in range(L):
        near, far = attention(x, x, x, window=w, form="definition"), perform(apply_update(T, C), x, x, x, rates, W0)
        x = x + np.asarray(near) + far
    return moved(x)


deep = {L: int((causal & ~stacked(8, 4, L)).sum()) for L in DEPTHS}
told = ", ".join(f"{L}: {n}" for L, n in deep.items())
print(f"{len(stacks)} stacks; window 4, chunk 8, 16 tokens: pairs missed by a stack of {told}")

# %% tags=["nbval-check-output"]
claim(
    "C14.18",
    "a stack of layers has no gap if and only if the sum of their w - 1 reaches C - 1",
    source="E14.16; products of the measured masks, depths 1 to 3, equal and unequal windows; and a real stack at w 4, C 8",
    error=bridged_wrong + sum((deep[L] == 0) != (L * 3 >= 7) for L in DEPTHS),
    tol=0,
)

# %% [markdown]
# **Exercise 14.2 ★ Count the gap.** Write `missed(T, C, w)`: how many pairs (output, token not after it) a layer misses on a text of $T$ tokens, for any $T$. No loop over tokens.
#
# <details><summary>Hint</summary>
#
# E14.15 holds for a chunk of any length, also for the last. How many whole chunks are there, and how long is the rest?
#
# </details>


# %%
def missed(T, C, w):
    return ...


def test_missed(answer):
    for length in (1, 5, 16, 37):
        for C in (1, 4, 7, 40):
            for w in (1, 3, 7, 50):
                truth = sum(max(0, t % C - w + 1) for t in range(length))
                if answer(length, C, w) != truth:
                    return f"T = {length}, C = {C}, w = {w}: you say {answer(length, C, w)}, counted are {truth}"


check("14.2", missed, test_missed)


# %% jupyter={"source_hidden": true} tags=["solution"]
def missed_solution(T, C, w):
    def in_chunk(size):
        short = max(0, size - w)
        return short * (short + 1) // 2

    return T // C * in_chunk(C) + in_chunk(T % C)


check("14.2", missed_solution, test_missed)

# %% [markdown]
# **Exercise 14.3 ★★ A budget of windows.** Attention costs $w$ a token and layer. You have $L$ layers and want no gap through the whole stack. Write `cheapest(L, C)`: a list of $L$ windows, possibly different, of the least sum. Does depth save anything in total? If not, why do models spread the windows?
#
# <details><summary>Hint</summary>
#
# E14.16 fixes the sum of all windows. What are you free to choose?
#
# </details>


# %%
def cheapest(L, C):
    return ...  # [w_1, ..., w_L]


def test_cheapest(answer):
    for L, C in ((1, 8), (2, 8), (3, 8), (3, 5), (4, 4), (2, 1)):
        windows = list(answer(L, C))
        if len(windows) != L or any(w < 1 or w % 1 for w in windows):
            return f"L = {L}, C = {C}: {windows} is no list of {L} whole numbers of at least 1"
        i, j = np.indices((2 * C, 2 * C))
        through = i == j
        for w in windows:
            through = through.astype(int) @ ((j // C < i // C) | ((j <= i) & (j > i - w))) > 0
        if (wrong := np.argwhere((j <= i) & ~through)).size:
            return f"L = {L}, C = {C}: with {windows} output {wrong[0][0]} misses token {wrong[0][1]}"
        if sum(windows) > L + C - 1:
            return f"L = {L}, C = {C}: {windows} cost {sum(windows)}; it can be done with {L + C - 1}"


check("14.3", cheapest, test_cheapest)


# %% jupyter={"source_hidden": true} tags=["solution"]
def cheapest_solution(L, C):
    # The sum of w - 1 must be C - 1, however it is spread: in total depth saves nothing. Models spread it
    # because a path passes on only what every token between has kept, and a window of its own looks itself.
    return [C] + [1] * (L - 1)


check("14.3", cheapest_solution, test_cheapest)

# %% [markdown]
# ## 8 · Decoding: what the cache must hold
#
# A text is read in one call, the *prefill*, and then continued token by token. Both ways must give the same outputs, or a model is served that nobody trained. What must be carried?
#
# By E14.3, when token $t$ comes, the memory is $W$ after all whole chunks before its own, and its own chunk is not written yet. Its tokens must not be lost, since one day the chunk fills up. E14.1 says that a sum is enough: all gradients of a chunk are taken at the *same* $W$. So besides $W$ and the rows' first lengths the package carries the sum of directions so far and a count (with momentum also the last direction, and the sum of the momentum numbers of the chunk so far). Their size does not depend on $C$. That sum is written when the *next* token comes and finds the chunk full. Writing right after the chunk's last read would give the same outputs; the package waits, since one call does not write its last chunk either (E14.11), and so both leave the same state.
#
# We test the full rule, with Muon and momentum, on 21 tokens in chunks of 4: all in one call, and one by one. Prefills come below [C14.22].

# %%
LONG, DECODE_CHUNK = 21, 4
rng = np.random.default_rng(DECODE)
long = dict(zip("qkv", unit(rng.normal(size=(3, 1, LONG, 1, WIDTH))), strict=True))
long |= dict(lr=rng.uniform(0.5, 1.5, size=(1, LONG, 1, 3)), momentum=rng.uniform(0.2, 0.8, size=(1, LONG, 1)))


def part(text, start, end):
    return {name: x[:, start:end] for name, x in text.items()}


one_token = jax.jit(lambda token, state: lact(**token, weights=None, chunk=DECODE_CHUNK, state=state))


def decode(text, state):
    """Token by token: the outputs, and the state after the last."""
    outputs = []
    for t in range(text["q"].shape[1]):
        o, state = one_token(part(text, t, t + 1), state)
        outputs.append(np.asarray(o))
    return np.concatenate(outputs, 1), state


long_call, last_state = lact(**long, weights=W0, chunk=DECODE_CHUNK)
_, state0 = lact(**part(long, 0, 0), weights=W0, chunk=DECODE_CHUNK)
one_by_one, end_state = decode(long, state0)
same_state = max(off(a, b) for a, b in zip(jax.tree.leaves(end_state), jax.tree.leaves(last_state), strict=True))
print(f"one by one differs by {off(one_by_one, long_call):.0e}, the last state by {same_state:.0e}")
held = {field: sum(x.size for x in jax.tree.leaves(x)) for field, x in state0._asdict().items()}
print(f"the state holds {sum(held.values())} numbers:", ", ".join(f"{field} {n}" for field, n in held.items()))

# %% tags=["nbval-check-output"]
claim(
    "C14.19",
    "apply-update: token by token gives what one call gives, and leaves the same state",
    source="E14.3 and E14.1; 21 tokens, chunk 4, Muon and momentum; outputs, and every array of the last state",
    error=max(off(one_by_one, long_call), same_state),
    tol=1e-12,
)

# %% [markdown]
# **The other orders.** Update-apply writes a chunk *before* it is read. If a call ends inside a chunk, the outputs of its beginning must be given now, without its end. Nothing that is carried could help: a split is harmless only at the border of a chunk [C14.20], [C14.21]. An explicit schedule may be split between two of its entries, if the second call is given every token that its own entries name. As a schedule: update-apply that is split after $s$ tokens has chunks that begin anew at $s$.


# %%
def later(schedule, n):
    return [(start + n, end + n, update, apply) for start, end, update, apply in schedule]


text = dict(q=q, k=k, v=v, lr=lr)


def two_calls(n, order, then):
    o1, state = lact(**part(text, 0, n), weights=W0, chunk=DECODE_CHUNK, order=order)
    o2, _ = lact(**part(text, n, T), weights=None, chunk=DECODE_CHUNK, order=then, state=state)
    return np.concatenate([o1, o2], 1)


split_error = {}
for s in range(1, T):
    if s % DECODE_CHUNK:
        anew = update_apply(s, DECODE_CHUNK) + later(update_apply(T - s, DECODE_CHUNK), s)
        o = perform(anew, q, k, v, lr, W0)
    else:  # here that list is the one of one call: so make two real calls
        o = two_calls(s, "update-apply", "update-apply")
    split_error[s] = off(o, one_call["update-apply"])
told = ", ".join(f"{s}: {x:.2f}" for s, x in list(split_error.items())[:6])
print(f"update-apply, chunk 4, split after {told}")
at_border = max(x for s, x in split_error.items() if s % DECODE_CHUNK == 0)
within = min(x for s, x in split_error.items() if s % DECODE_CHUNK)

order = video(T, DECODE_CHUNK)  # the first two entries are the first 8 tokens
video_split = off(two_calls(8, order[:2], later(order[2:], -8)), perform(order, q, k, v, lr, W0))

# %% tags=["nbval-check-output"]
claim(
    "C14.20",
    "update-apply may be split at the borders of chunks, and a video schedule after two of its entries",
    source="two calls of lact, the state carried, chunk 4, 16 tokens: 3 borders; the video schedule after N0 and X0",
    error=max(at_border, video_split),
    tol=1e-13,
)
claim(
    "C14.21",
    "split at any other place update-apply gives other outputs, off by at least 0.1 of the largest",
    source="12 split points inside chunks of 4; 0.1 over the least error",
    error=0.1 / within,
    tol=1,
)

# %% [markdown]
# **Three caches that lose something.** Two are published, the third is the repair that suggests itself.
#
# - **The official language code** caches keys and values of the window attention. The fast weights it starts afresh in every call: with one token a call they are $W_0$, always (`layer_lact_swiglu.py`; its users ask about it in issues 22 and 23). What the prefill wrote is gone.
# - **A JAX block** (theseus, `LaCTBlock` in `theseus/model/block/lact.py` at commit 12b2774; read in the source, simulated here) keeps $W$, and in the prefill writes *all* chunks, the ragged last one too. A call shorter than a chunk only reads: nothing that is decoded is ever written.
# - **The half repair** keeps $W$ but not the unfinished chunk, so that its tokens, up to $C$ of them, are never written. And unless the prefill is whole chunks, all later chunks begin elsewhere.
#
# The first we can check on the official code's own numbers: our golden file has what enters and leaves the memory inside its language layer. A cached decode reads $f_{W_0}(q_t)$, so its error is the distance from there to what the code itself gives for the whole text.

# %%
forgets = {}
for name in sorted({f.split("/")[0] for f in golden.files if f.startswith("layer_llm_")}):
    w0, w1, w2, ask, whole_call = (golden[f"{name}/op_{n}"] for n in ("w0", "w1", "w2", "q", "o"))
    gate, up = ask @ w0.swapaxes(1, 2), ask @ w2.swapaxes(1, 2)
    token_calls = (gate / (1 + np.exp(-gate)) * up) @ w1.swapaxes(1, 2)  # f with the initial weights
    after = np.arange(ask.shape[1]) >= 8  # these layers have chunks of 8
    forgets[name] = [
        np.linalg.norm((token_calls - whole_call)[:, those]) / np.linalg.norm(whole_call[:, those])
        for those in (after, ~after)
    ]
for name, (late, early) in forgets.items():
    print(f"{name:38} first chunk off by {early:.0e}, later tokens by {late:.2f}")

# %% [markdown]
# In the first chunk both read $W_0$. After it the decoded outputs are off by as much as they are large. The other two we simulate, with our rule and their order of writes and reads; the fourth line is the package, with a real prefill and its whole state ([F14d](#F14d)). Drag the length of the prefill.

# %%
PREFILLS = (4, 5, 6, 7, 8, 9, 10, 11)
truth = one_call["apply-update"]  # all 16 tokens in one call, chunk 4


def cached(n):
    """The outputs of tokens n and later, by what is kept of a prefill of n tokens."""
    whole = apply_update(n, DECODE_CHUNK)
    ragged_too = [*whole, (*chunks(n, DECODE_CHUNK)[-1], True, False)]
    anew = later(apply_update(T - n, DECODE_CHUNK), n)
    simulated = {
        "nothing kept (official)": [(0, T, False, True)],
        "all written, then frozen (JAX block)": [*ragged_too, (n, T, False, True)],
        "W, unfinished chunk lost": whole + anew,
    }
    outputs = {name: perform(order, q, k, v, lr, W0)[:, n:] for name, order in simulated.items()}
    _, state = lact(**part(text, 0, n), weights=W0, chunk=DECODE_CHUNK)  # a real prefill
    outputs["the whole state"], _ = decode(part(text, n, T), state)
    return {name: o[0, :, 0] for name, o in outputs.items()}


size = np.abs(truth).max()
cache_errors = {
    n: {name: np.abs(o - truth[0, n:, 0]).max(-1) / size for name, o in cached(n).items()} for n in PREFILLS
}
print(f"{'largest error after a prefill of':37}", *(f"{n:5}" for n in PREFILLS))
for name in cache_errors[4]:
    print(f"{name:37}", *(f"{cache_errors[n][name].max():5.2f}" for n in PREFILLS))


def draw_decodes(prefill):
    return pictures.decodes(np.arange(prefill, T), cache_errors[prefill], prefill, DECODE_CHUNK)


explore(draw_decodes, prefill=PREFILLS, start={"prefill": 6})

# %% tags=["nbval-check-output"]
claim(
    "X14.2",
    "generation with a cache continues the function that was trained",
    source="official layer_lact_swiglu.py at 1f84d47, four golden layer_llm_* cases; least error of later tokens, relative",
    error=min(late for late, _ in forgets.values()),
    tol=1e-6,
    expect=False,
)
claim(
    "X14.3",
    "inference keeps the fast weights from call to call, so a cached decode continues the text",
    source="theseus LaCTBlock at 12b2774, read in the source, simulated with our rule; least over 8 prefills of the largest error",
    error=min(cache_errors[n]["all written, then frozen (JAX block)"].max() for n in PREFILLS),
    tol=1e-6,
    expect=False,
)
claim(
    "C14.22",
    "a prefill in one call and decoding from its whole state give what one call on the whole text gives",
    source="16 tokens, chunk 4, prefills of 4 to 11, Muon; the largest error",
    error=max(e["the whole state"].max() for e in cache_errors.values()),
    tol=1e-13,
)
claim(
    "C14.23",
    "a cache that keeps the weights and drops the unfinished chunk is wrong after every prefill, also of whole chunks",
    source="the same; 0.01 over the least of the 8 largest errors",
    error=0.01 / min(e["W, unfinished chunk lost"].max() for e in cache_errors.values()),
    tol=1,
)

# %% [markdown]
# Why also after whole chunks [C14.23]? Because a call never writes its last chunk, whole or not [E14.11]. A prefill of 8 tokens has written 4.
#
# **Exercise 14.4 ★★★ Repair it with a list.** Suppose you may not carry sums of directions, only $W$ and raw tokens. Write `decode_with_list(tokens, C, read, write, W0)`. `tokens` is a list of (q, k, v, lr), one for each token; `read(W, q)` gives an output, `write(W, keys, values, rates)` new weights, and `W0` are the first weights. Give back the outputs, and the largest number of raw tokens that you held between two tokens.
#
# <details><summary>Hint</summary>
#
# When exactly is a full list written: after its last token, or before the next one? Both give the same outputs here. One of them holds fewer tokens.
#
# </details>


# %% jupyter={"source_hidden": true}
_, fresh = lact(**part(text, 0, 0), weights=W0, chunk=DECODE_CHUNK)  # knows the rows' first lengths


def read(W, q):
    a = W.gate[0] @ q
    return W.out[0] @ (a / (1 + np.exp(-a)) * (W.up[0] @ q))


def write(W, keys, values, rates):
    keys, values, rates = (np.asarray(x)[None, :, None] for x in (keys, values, rates))  # one text, one head
    start = fresh._replace(weights=jax.tree.map(lambda w: jnp.asarray(w)[None], W))
    order = [(0, keys.shape[1], True, False)]
    _, state = lact(keys, keys, values, rates, None, chunk=DECODE_CHUNK, order=order, state=start)
    return jax.tree.map(lambda w: np.asarray(w)[0], state.weights)


# %%
def decode_with_list(tokens, C, read, write, W0):
    return ...  # outputs [T, width], and a number of tokens


def test_list(answer):
    tokens = list(zip(*(x[0, :, 0] for x in (q, k, v, lr)), strict=True))
    o, held = answer(tokens, DECODE_CHUNK, read, write, W0)
    wrong = np.abs(np.asarray(o) - truth[0, :, 0]).max(-1)
    if not wrong.max() <= 1e-10:
        t = int(np.argmin(wrong <= 1e-10))
        return f"output {t} is off by {wrong[t]:.2g}; it is token {t % DECODE_CHUNK} of its chunk"
    if held != DECODE_CHUNK - 1:
        return f"you say that you held {held} raw tokens; it takes {DECODE_CHUNK - 1}, and no more"


check("14.4", decode_with_list, test_list)


# %% jupyter={"source_hidden": true} tags=["solution"]
def decode_with_list_solution(tokens, C, read, write, W0):
    W, kept, outputs, held = W0, [], [], 0
    for q, *pair in tokens:
        outputs.append(read(W, q))  # read first: the chunk must not see itself
        kept.append(pair)
        if len(kept) == C:  # full: write at once, nobody of this chunk is left to be read
            W, kept = write(W, *map(np.array, zip(*kept, strict=True))), []
        held = max(held, len(kept))
    return outputs, held


check("14.4", decode_with_list_solution, test_list)

# %% [markdown]
# ## 9 · What a chunk loses against a rule that writes every token
#
# The delta rule writes at every token. What does it have that LaCT gave up? Two things that concern order: the recent pairs, and which of them came last.
#
# **Recent pairs.** Let a query ask for a pair that is $a$ tokens old. The fast weights hold it if $t-a$ lies in an earlier chunk, that is if the place $p$ of $t$ in its chunk is less than $a$. Over whole chunks all places are equally frequent, so that is the case for a share $\min(1,a/C)$ of the tokens. The window holds it if $a<w$, always. Together:
#
# $$ \text{share that can be recalled at age } a = \begin{cases}1, & a<w\\ \min(1,\;a/C), & a\ge w\end{cases} \tag{E14.17} $$
#
# With $w\ge C$ it is 1 everywhere, as it must be by E14.15. With $w<C$ the worst age is the first beyond the window, $a=w$, with $w/C$.
#
# E14.17 says what *can* be recalled. Is it? Take 64 pairs with orthonormal keys and values; at token $t$ the query is the key of token $t-a$. A pair counts as recalled if the output has its largest product with the right one of the 64 values. Attention is sharp (scores are 40 or 0), and the memory takes plain steps with rates of 10. A layer sets the length of the memory's output by a norm; attention has length 1 at most, and we set the memory to 1.5. At 1, 1.25, 1.5 and 1.75 the result is the same [C14.24]; far outside that one branch drowns the other. We look at tokens 32 to 63, whole chunks for all three chunk lengths.
#
# One saving: the weights that token $t$ reads with do not depend on its query. So read *all* 64 keys with the weights of every chunk, and then pick.

# %%
PAIRS, AT = 64, np.arange(32, 64)
RECALL_CHUNKS, RECALL_WINDOWS, AGES = (8, 16, 32), (6, 8, 12, 16, 24, 32), np.arange(33)
rng = np.random.default_rng(STREAM)
pair_k, pair_v = (np.linalg.qr(rng.normal(size=(PAIRS, PAIRS)))[0] for _ in range(2))
asked = (np.arange(PAIRS) - AGES[:, None]) % PAIRS  # token asked for, [age, token]; t >= age from token 32 on
ask = pair_k[asked][:, :, None]  # [ages, T, 1, width]
both_k, both_v = (np.broadcast_to(x[None, :, None], ask.shape) for x in (pair_k, pair_v))
write_and_read = jax.jit(partial(lact, weights=None, chunk=PAIRS, order=[(0, PAIRS, True, True)], muon=False))


def memory_reads(C):
    """What the memory of apply-update in chunks of C answers at tokens 32 to 63, [age, token, width]."""
    keys, values, none = pair_k[None, :, None], pair_v[None, :, None], np.zeros((1, PAIRS, 1, 3))
    _, state = lact(*(x[:, :0] for x in (keys, keys, values, none)), wide, chunk=PAIRS)
    answers = [None]  # by chunk: of all 64 keys
    for start, end in chunks(PAIRS, C)[:-1]:
        own_rates = none.copy()
        own_rates[:, start:end] = 10
        o, state = write_and_read(keys, keys, values, own_rates, state=state)
        answers.append(np.asarray(o)[0, :, 0])
    return np.stack([answers[t // C][asked[:, t]] for t in AT], 1)


def recalled(o):
    """Share of tokens 32 to 63 whose output points at the right value, by age."""
    return (np.argmax(o @ pair_v.T, -1) == asked[:, AT]).mean(1)


memory_o = {C: unit(memory_reads(C)) for C in RECALL_CHUNKS}
near_o = {
    w: np.asarray(attention(40 * ask, both_k, both_v, window=w, scale=1.0, form="definition"))[:, AT, 0]
    for w in RECALL_WINDOWS
}
delta_o, _ = delta(ask, both_k, both_v, np.ones(ask.shape[:3]), form="recurrent")


def with_window(length):
    """Recall of memory and window together, the memory's read at this length."""
    return {(C, w): recalled(length * memory_o[C] + near_o[w]) for C in RECALL_CHUNKS for w in RECALL_WINDOWS}


shares = with_window(1.5)
alone = {C: recalled(memory_o[C]) for C in RECALL_CHUNKS}
by_delta = recalled(np.asarray(delta_o)[:, AT, 0])


def law(C, w):
    return np.where(AGES < w, 1, np.minimum(1, AGES / C))  # E14.17


def off_the_law(length):
    return max(np.abs(share - law(*key)).max() for key, share in with_window(length).items())


alone_off = max(np.abs(alone[C] - law(C, 0)).max() for C in RECALL_CHUNKS)
law_off = max(off_the_law(length) for length in (1, 1.25, 1.5, 1.75))
print("age            ", *(f"{n:5}" for n in AGES[::4]))
print("delta rule     ", *(f"{x:5.2f}" for x in by_delta[::4]))
for C in RECALL_CHUNKS:
    print(f"LaCT, chunk {C:3}", *(f"{x:5.2f}" for x in alone[C][::4]))
    print("  and window 12", *(f"{x:5.2f}" for x in shares[C, 12][::4]))
print(f"largest difference from the law: {alone_off:.3f} without, {law_off:.3f} with a window; chance {1 / PAIRS:.3f}")
told = ", ".join(f"{length}: {off_the_law(length):.2f}" for length in (0.25, 0.5, 2, 4))
print(f"with the memory at another length: {told}")


def draw_recall(chunk, window):
    lines = {"delta rule": by_delta, "LaCT": alone[chunk], "LaCT with the window": shares[chunk, window]}
    return pictures.recall(AGES, lines, law(chunk, window), chunk, window)


explore(draw_recall, chunk=RECALL_CHUNKS, window=RECALL_WINDOWS, start={"chunk": 16, "window": 8})

# %% tags=["nbval-check-output"]
claim(
    "C14.24",
    "recall against age is exactly what the law allows, for 3 chunks, alone and with 6 windows",
    source="E14.17; 64 orthonormal pairs, rates 10, no Muon, memory at length 1 to 1.75, tokens 32 to 63, ages 0 to 32; largest difference",
    error=max(law_off, alone_off),
    tol=0,
)
claim(
    "C14.25",
    "the delta rule recalls every one of these pairs, at every age from 0 to 32",
    source="the same 64 orthonormal pairs, beta 1; largest distance from 1",
    error=float(np.abs(by_delta - 1).max()),
    tol=0,
)

# %% [markdown]
# Drag chunk and window ([F14c](#F14c)). With the window at or above the chunk LaCT's line lies on that of the delta rule; below it there is a notch between $w$ and $C$. These are orthonormal keys, as many as the memory is wide; overlapping ones are another subject.
#
# **Order.** By fact 3 a chunk is a set. Exchange two tokens of one chunk, key, value and rates together, and nothing after that chunk notices. If a key is written twice in a chunk, first with an old value and then with a new one, the memory cannot know which came last. The delta rule can: with $\beta=1$ and a key of length 1 it reads, right after the write, the later value. The window attention beside it does know who came when, but only within its reach. (The official language layer turns the memory's keys by their positions, unless `ttt_nope` is set. Then a token that comes twice writes two different keys: the key tells the place.)

# %%
SWAP_CHUNK, first_token, second_token = 8, 2, 5
swap = np.arange(T)
swap[[first_token, second_token]] = swap[[second_token, first_token]]
twice_k = k.copy()
twice_k[:, second_token] = twice_k[:, first_token]  # one key, two values
same_key = [x[:, swap] for x in (twice_k, v, lr)]
by_eight = apply_update(T, SWAP_CHUNK)
beta = np.ones((1, T, 1))
delta_before, delta_after = (delta(q, *pairs, beta, form="recurrent")[0] for pairs in ((twice_k, v), same_key[:2]))
swap_lact, swap_delta = (
    off(np.asarray(after)[:, SWAP_CHUNK:], np.asarray(before)[:, SWAP_CHUNK:])
    for after, before in (
        (perform(by_eight, q, *same_key, W0), perform(by_eight, q, twice_k, v, lr, W0)),
        (delta_after, delta_before),
    )
)
print(f"two values for one key, exchanged: later outputs move by {swap_lact:.0e} (LaCT), {swap_delta:.2f} (delta rule)")

# %% tags=["nbval-check-output"]
claim(
    "C14.26",
    "exchanging two tokens of a chunk changes no later output of LaCT",
    source="fact 3, E14.1; one key with two values, tokens 2 and 5 of chunks of 8; outputs 8 to 15",
    error=swap_lact,
    tol=1e-13,
)
claim(
    "C14.27",
    "the same exchange moves later outputs of the delta rule by more than 0.1 of the largest",
    source="the same tokens, beta 1; 0.1 over the move",
    error=0.1 / swap_delta,
    tol=1,
)

# %% [markdown]
# ## 10 · What was settled
#
# **The answer.** In one layer of apply-update, beside chunks of 2048, a window of 2047 tokens, the token itself included, misses exactly one pair in every full chunk: its last token does not see its first. If the text fills a chunk, the layer misses nothing if and only if $w\ge C$ [C14.15]; below that it misses $(C-w)(C-w+1)/2$ pairs in a full chunk [C14.16]; a stack needs a sum of all $w-1$ of at least $C-1$ [C14.18]. Masks are what the order of writes and reads makes them, in the four orders for language, image sets and video [C14.3], and nothing leaks where it must not [C14.7], [C14.13]. In apply-update a decoder that carries the whole state gives what one call gives [C14.19], [C14.22]; the three smaller caches do not.
#
# | section | claims |
# |---|---|
# | two operations | C14.1 |
# | four tokens by hand | C14.2, C14.28 |
# | masks, predicted and measured | C14.29, C14.3, C14.4, C14.5, C14.6 |
# | language | C14.7, C14.8, C14.9, C14.10 |
# | image sets | C14.11, C14.12 |
# | video | C14.13, C14.14 |
# | the window | C14.15, C14.16, C14.17, C14.18 |
# | decoding | C14.19, C14.20, C14.21, C14.22, C14.23 |
# | against a rule that writes every token | C14.24, C14.25, C14.26, C14.27 |
#
# **Where papers and codes differ from what runs.**
#
# | what is said or done | what we found | |
# |---|---|---|
# | LaCT Fig. 3, if taken for *every* chunk: it is read, then written | the last chunk of a call is never written; a text of at most $C$ tokens is not written at all | X14.1 |
# | official language code: `use_cache` in generation | only the window is cached; decoded tokens read the initial weights | X14.2 |
# | theseus, a JAX block (source read, simulated): fast weights persist across calls | the prefill writes its ragged last chunk, decoded tokens are never written | X14.3 |
#
# **Three questions for the group.**
#
# 1. The window at $w=C$ is needed in full only by the last token of a chunk; the first only for itself. What would a window that grows with the place in the chunk save, and what would it lose?
# 2. Image sets are a single chunk: every source sees every source. Where is the order of the images then, and where would one have to put it for a video?
# 3. A decoder could write its unfinished chunk early, as the JAX block does, and go on from there. The model was not trained so. Could it be?
#
# **Minutes per beat, for whoever leads**, the exercises not counted. Sections 1 and 2: 12, and let somebody do the four tokens at the board. Section 3: 15, half of it at [F14a](#F14a). Section 4: 8. Sections 5 and 6: 9. Section 7: 9, one drags [F14b](#F14b) and the others predict the number of crosses. Section 8: 9. Section 9 and questions: 8. People get stuck at "the last chunk is never written", and at the window that counts itself.
#
# **Next.** [Notebook 15](15-lact-at-scale.ipynb): what such a layer costs, and how it runs on several devices. [Notebook 01](01-fast-weights.ipynb) has the rules that write every token.
