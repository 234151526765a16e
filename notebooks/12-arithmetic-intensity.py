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
#     title: Arithmetic intensity
#     question: How many tokens must a chunk have before writing it keeps a GPU busy, and when is no number enough?
#     minutes: 60
#     seconds: 9
#     settles: On an H200, 2048 tokens reach 92 % of the measured peak at width 768 and 74 % at 384; at width 128 no chunk passes 35 %, product by product. One line of counting predicts products of 16 and 64 tokens to 2 %, and promises up to 30 % too much elsewhere; your own machine is measured beside it.
# ---

# %% [markdown]
# # 12 · Arithmetic intensity
#
# **How many tokens must a chunk have before writing it keeps a GPU busy, and when is no number enough?**
#
# LaCT (arXiv 2505.23884v1) writes 2048 tokens and more at once. Its argument is one line of counting (Sec. 2.2, Eq. 3): a product with few tokens, or with a small matrix, moves too many bytes for the arithmetic it does.
# So this notebook counts, predicts how fast a product can run, and then looks: at 32 products measured on an H200, and at products on the computer that runs these cells.
# The prediction is right to 2 % for 16 and 64 tokens. Elsewhere it promises up to 30 % too much, most near the point where both limits meet.
#
# (The paper is known here through a reading that gives its equations, figures and numbers. All that is measured here is ours.)
#
# | | |
# |---|---|
# | **Time** | 60 minutes to read, about 9 seconds to run on two cores, no GPU |
# | **You need** | What a matrix product is. From [notebook 01](01-fast-weights.ipynb) only that a memory is a matrix that tokens write into and read from. |
# | **In a hurry** | [The roof](#F12a), [when 2048 tokens are enough](#F12b), [your own machine](#F12d) |
#
# | here | LaCT | meaning |
# |---|---|---|
# | $b$ | $b$ | tokens in a chunk |
# | $h$ | $h$ | width of a head; its fast weights are $h\times h$, or $mh\times h$ with the multiplier below |
# | $m$ | $r$ | hidden width of the SwiGLU memory, in units of $h$ (the paper's $r$ has two meanings; ours has one) |
# | $r$ | $r$ | arithmetic intensity: FLOPs done for each byte moved |
# | $s$ | 2 | bytes of a number: 2 in bfloat16, 4 in float32 |
# | $P$, $B$ | | what a machine can do at most: FLOPs a second, and bytes a second between memory and arithmetic units |
# | $r_\star = P/B$ | | the ridge: the intensity from which on the arithmetic is the limit |
#
# A FLOP is one multiplication or one addition of floating-point numbers.

# %%
import inspect
import json
from importlib.resources import files

import jax
import jax.numpy as jnp
import numpy as np

from ttt_teach import SwiGLU, lact
from ttt_teach.bench import roofline
from ttt_teach.explore import arithmetic_intensity as pictures
from ttt_teach.explore import explore
from ttt_teach.ledger import check, claim
from ttt_teach.theory import intensity as theory
from ttt_teach.theory.counting import product_flops, products
from ttt_teach.theory.intensity import arithmetic_intensity, product_intensity, roof, tokens_needed

# %% [markdown]
# ## 1 · What a product costs, and what it moves
#
# Reading a linear memory means multiplying $b$ queries of width $h$ with an $h\times h$ matrix: $Y = XW$ with $X$ of $b\times h$.
# Each of the $bh$ entries of $Y$ is a sum of $h$ products, $h$ multiplications and $h$ additions (the first onto zero):
#
# $$ F = 2\,b\,h^2 . \tag{E12.1} $$
#
# If $X$ and $W$ lie in memory and $Y$ must go there, then at least every number of the three is moved once:
#
# $$ M = s\,\bigl(\underbrace{h^2}_{W} + \underbrace{bh}_{X} + \underbrace{bh}_{Y}\bigr) = s\,(h^2 + 2bh) . \tag{E12.2} $$
#
# The ratio is the **arithmetic intensity**. (As $M$ is the least that moves, it is the most that can be had.) In bfloat16, $s = 2$:
#
# $$ r = \frac{F}{M} = \frac{2bh^2}{2h^2 + 4bh} = \frac{b}{1 + 2b/h} . \tag{E12.3} $$
#
# The last step divides above and below by $2h^2$. This is LaCT's Eq. 3.
#
# It is easier to see through upside down. Divide $1 + 2b/h$ by $b$:
#
# $$ \frac1r = \frac1b + \frac2h . \tag{E12.4} $$
#
# The two limits add like resistors in a row. And the 2 has a simple reason, which shows if the product is not square.
# For an $m\times k$ by $k\times n$ product the same count gives $F = 2mkn$ and $M = s(mk + kn + mn)$, so
#
# $$ \frac1r = \frac{s}{2}\cdot\frac{mk+kn+mn}{mkn} = \frac s2\Bigl(\frac1m+\frac1k+\frac1n\Bigr) . \tag{E12.5} $$
#
# **All three sizes count alike, and the smallest counts most.** It does not matter which of them is summed over. E12.4 is the case $b, h, h$. (In E12.5 alone, $m$, $k$ and $n$ are any three sizes.)
#
# Does a compiler agree? Ask it for its own count of FLOPs and bytes, for products of many shapes.

# %%
print(inspect.getsource(theory.product_intensity).split('"""')[-1].strip())


# %%
def counted(m, k, n, dtype):
    """FLOPs a byte of the product (E12.1 over E12.2), as XLA counts both."""
    x, y = jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)
    cost = jax.jit(jnp.matmul).lower(x, y).cost_analysis()
    return cost["flops"] / cost["bytes accessed"]


shapes = [(1, 128, 128), (64, 128, 128), (2048, 384, 384), (384, 2048, 768), (7, 300, 50)]
for shape in shapes:
    r16, r32 = (counted(*shape, dtype) for dtype in ("bfloat16", "float32"))
    print(f"{shape[0]:5} x {shape[1]:4} x {shape[2]:3}: {r16:7.2f} FLOPs a byte in bfloat16, {r32:6.2f} in float32")

# %% tags=["nbval-check-output"]
claim(
    "C12.1",
    "FLOPs a byte as the compiler counts them are 2 / (s (1/m + 1/k + 1/n)), for five shapes in two dtypes",
    source="E12.5, LaCT Eq. 3; XLA's cost analysis; square ones also by E12.3",
    error=max(
        abs(counted(*shape, dtype) / product_intensity(*shape, jnp.dtype(dtype).itemsize) - 1)
        for shape in shapes
        for dtype in ("bfloat16", "float32")
    )
    + max(abs(arithmetic_intensity(b, h) / (b / (1 + 2 * b / h)) - 1) for b, h, _ in shapes),
    tol=1e-14,
)

# %% [markdown]
# ## 2 · Two limits that no chunk and no width can pass alone
#
# All of this section is for bfloat16. From E12.4, $1/r > 1/b$ and $1/r > 2/h$, so $r < b$ and $r < h/2$:
#
# $$ r < \min(b,\ h/2) . \tag{E12.6} $$
#
# This is how the paper states it, with $\le$. How far below? The larger of the two terms in E12.4 is at least half of their sum:
#
# $$ \frac1r = \frac1b+\frac2h \le 2\max\Bigl(\frac1b,\frac2h\Bigr)
#    \quad\Longrightarrow\quad r \ge \tfrac12\min(b,\ h/2) . \tag{E12.7} $$
#
# So the simple bound is never wrong by more than a factor of two, and it is wrong by exactly two at $b = h/2$, where both limits are equal.
# **Chunks of more than $5h$ tokens buy little:** at $b = 5h$, $1/r = 1/(5h) + 2/h = 11/(5h)$, so the intensity is already $10/11$ of its limit $h/2$.

# %%
grid_b, grid_h = np.geomspace(1, 1e6, 121)[:, None], np.geomspace(16, 4096, 61)
ratio = arithmetic_intensity(grid_b, grid_h) / np.minimum(grid_b, grid_h / 2)
at_crossing = arithmetic_intensity(grid_h / 2, grid_h) / (grid_h / 2)
long_chunk = arithmetic_intensity(5 * grid_h, grid_h) / (grid_h / 2)
print(
    f"r / min(b, h/2) from {ratio.min():.3f} to {ratio.max():.5f};",
    f"at b = h/2 {at_crossing.max():.3f}; at b = 5h {long_chunk.max():.3f}",
)

# %% tags=["nbval-check-output"]
claim(
    "C12.2",
    "r lies between half of min(b, h/2) and all of it, is exactly half at b = h/2, and 10/11 of h/2 at b = 5h",
    source="E12.4, E12.6, E12.7; LaCT Eq. 3; b from 1 to a million, h from 16 to 4096",
    error=max(0.5 - ratio.min(), ratio.max() - 1, 0.0)
    + np.abs(at_crossing - 0.5).max()
    + np.abs(long_chunk - 10 / 11).max(),
    tol=1e-14,
)

# %% [markdown]
# ## 3 · The roof
#
# A machine does at most $P$ FLOPs a second and moves at most $B$ bytes a second. A product of $F$ FLOPs and $M$ bytes therefore takes
#
# $$ t \ \ge\ \max\Bigl(\frac FP,\ \frac MB\Bigr), \tag{E12.8} $$
#
# with equality if moving and computing overlap perfectly. Its rate is $F/t$, and with $F/M = r$
#
# $$ \frac Ft \ \le\ \min\Bigl(P,\ \frac{F}{M}B\Bigr) = \min(P,\ rB) . \tag{E12.9} $$
#
# Plotted against $r$ this is a roof: a slope, then a flat top. They meet at the **ridge** $r_\star = P/B$.
# Left of it the memory is the limit: a longer chunk helps, or a wider matrix, whichever term of E12.4 is the larger. Right of it, under the roof, only a faster chip does.
#
# If nothing overlaps, the times add up:
#
# $$ t = \frac FP + \frac MB \quad\Longrightarrow\quad \frac Ft = \frac{1}{1/P + 1/(rB)} = \frac{P}{1 + r_\star/r} . \tag{E12.10} $$
#
# So a product that has no other cost is expected between E12.10 and E12.9, which differ by at most a factor of two (at the ridge).
#
# Now an H200. `python -m ttt_teach.bench.roofline` measures $P$ (one product of 8192 x 8192 matrices), $B$ (the faster of two: read 2 GB and write as many, or read 2 GB and sum them up), and 32 products:
# so many of each at once, every one with its own matrix, that 4 GB move (2 to 3 at width 128 with 1 or 16 tokens, as there are at most 65535 of a kind) and no cache can help.
# So $P$ and $B$ are what this chip *reached*; its data sheet promises more, and all shares below are of what was reached. The file with the results is part of the package.

# %%
h200 = json.loads(files("ttt_teach.bench").joinpath("results/roofline_h200.json").read_text())
P, B = h200["peak"], h200["bandwidth"]
ridge = P / B
print(f"{h200['device']}, {h200['date']}, jax {h200['jax']}, bfloat16")
print(f"P {P / 1e12:.0f} TFLOP/s, B {B / 1e12:.2f} TB/s, ridge {ridge:.0f} FLOPs a byte\n")
print("share of the peak, measured, and in brackets the roof of E12.9")
print("tokens" + "".join(f"{f'h = {h}':>16}" for h in h200["widths"]))
for b in h200["tokens"]:
    reached = [pictures.rate(h200, b, h) / P for h in h200["widths"]]
    allowed = [roof(arithmetic_intensity(b, h), P, B) / P for h in h200["widths"]]
    print(f"{b:6}" + "".join(f"{x:8.1%} ({y:5.1%})" for x, y in zip(reached, allowed, strict=True)))

# %% [markdown]
# Drag both. One token at a time, as a recurrence does that fetches its memory for each, is half a per cent of what the chip can do, at each of the four widths.

# %%
explore(lambda b, h: pictures.under_the_roof(h200, b, h), b=h200["tokens"], h=h200["widths"], start={"b": 64, "h": 128})

# %%
r = np.array([[arithmetic_intensity(b, h) for b in h200["tokens"]] for h in h200["widths"]])
reached = np.array([h200["rates"][str(h)] for h in h200["widths"]])
against_roof = reached / roof(r, P, B)  # E12.8, E12.9
against_sum = reached / (P / (1 + ridge / r))
b_of = np.broadcast_to(h200["tokens"], r.shape)
short, one = (b_of >= 16) & (b_of <= 64), b_of == 1
print(f"16 and 64 tokens: {against_roof[short].min():.3f} to {against_roof[short].max():.3f} of the roof")
print(f"one token: {against_roof[one].min():.2f} to {against_roof[one].max():.2f}")
for h, row in zip(h200["widths"], against_roof, strict=True):
    print(f"256 tokens and more at h = {h}: " + ", ".join(f"{x:.2f}" for x in row[np.array(h200["tokens"]) >= 256]))

# %% tags=["nbval-check-output"]
claim(
    "C12.3",
    "with 16 or 64 tokens the eight measured products run at the roof to 2 percent: widths 128, 384, 768 and 1536",
    source="LaCT Eq. 3 and E12.9; bench/results/roofline_h200.json, bfloat16",
    error=np.abs(against_roof[short] - 1).max(),
    tol=0.02,
)

# %% tags=["nbval-check-output"]
claim(
    "C12.4",
    "none of the 32 measured products is more than 1 percent faster than the roof allows",
    source="E12.9; bench/results/roofline_h200.json; the largest excess",
    error=max(against_roof.max() - 1, 0),
    tol=0.01,
)

# %% tags=["nbval-check-output"]
claim(
    "C12.5",
    "with 16 tokens or more every measured product lies between adding the two times up and overlapping them, to 1 percent",
    source="E12.9, E12.10; bench/results/roofline_h200.json; how far the worst is outside",
    error=max((1 - against_sum[b_of >= 16]).max(), (against_roof[b_of >= 16] - 1).max(), 0),
    tol=0.01,
)

# %% [markdown]
# A count of bytes that a child can check predicts eight products to 2 % [C12.3]. With more tokens it is too kind, most at width 384, whose long chunks lie at the ridge: there the machine would have to do both things at once without a pause. But the long chunks of width 128, left of the ridge, stay 5 to 9 % below the roof too. The truth lies between E12.10 and E12.9 [C12.5].
# A single token stays below both lines, by 5 to 21 % of the roof. Bytes do not explain that, and the cause is not measured here.
#
# ## 4 · When are 2048 tokens enough?
#
# To reach a share $\sigma$ of the peak under the roof, the intensity must be at least $\sigma r_\star$. With E12.4 and bfloat16:
#
# $$ \frac1b + \frac2h \le \frac1{\sigma r_\star}
#    \quad\Longleftrightarrow\quad b \ge \frac{1}{\dfrac{1}{\sigma r_\star} - \dfrac2h}, \tag{E12.11} $$
#
# provided the denominator is positive, that is
#
# $$ h > 2\,\sigma\, r_\star . \tag{E12.12} $$
#
# If it is not, **no chunk is long enough**: the width is the limit. On this H200, with $r_\star$ = 183, the full peak needs a width above 366, and 384 is only just more.

# %%
shares, widths = (0.5, 0.75, 0.9, 1.0), (64, 128, 256, 384, 512, 768, 1536)
print("tokens a chunk needs (E12.11); 'none': no chunk is long enough (E12.12)")
print("share of the peak" + "".join(f"{share:8.0%}" for share in shares))
for h in widths:
    needed = tokens_needed(np.array(shares), ridge, h)
    print(f"{f'h = {h}':>17}" + "".join(f"{np.ceil(b):8.0f}" if b < np.inf else f"{'none':>8}" for b in needed))

# %%
explore(lambda share: pictures.enough(share, h200), share=[0.1, 0.25, 0.35, 0.5, 0.65, 0.75, 0.85, 0.9, 0.95])

# %%
best_128 = max(h200["rates"]["128"]) / P
limit_128 = roof(64.0, P, B) / P
at_2048 = {h: pictures.rate(h200, 2048, h) / P for h in h200["widths"]}
print(f"h = 128: limit {limit_128:.1%} of the peak for any chunk, best measured {best_128:.1%}")
print("2048 tokens: " + ", ".join(f"h = {h} {share:.0%}" for h, share in at_2048.items()))
print(f"h = 384, 8 times as many tokens: {pictures.rate(h200, 16384, 384) / P:.0%}")

# %% tags=["nbval-check-output"]
claim(
    "C12.6",
    "product by product, the roof at width 128 is 35 percent of the H200's peak for the longest chunk, and none measured up to 16384 tokens passes 33",
    source="E12.6 and E12.9 with h/2 = 64; bench/results/roofline_h200.json",
    error=max(abs(limit_128 - 0.35), best_128 - 0.33),
    tol=1e-3,
)

# %% tags=["nbval-check-output"]
gain = pictures.rate(h200, 16384, 384) / pictures.rate(h200, 2048, 384)
claim(
    "C12.7",
    "2048 tokens reach 74 percent of the peak at width 384, 92 at 768; 8 times as many at 384 are 7 percent faster, and reach 79",
    source="bench/results/roofline_h200.json; the largest of the four differences",
    error=max(
        abs(at_2048[384] - 0.74), abs(at_2048[768] - 0.92), abs(gain - 1.07), abs(max(h200["rates"]["384"]) / P - 0.79)
    ),
    tol=0.005,
)

# %% [markdown]
# So the answer has two halves. **Where the memory is wide, tokens help:** at width 768 the table has 77 % of the peak for 256 tokens, 88 % for 1024 and 92 % for 2048. (For 90 % the formula asks for 289.) **Where it is narrow, tokens soon stop helping:** at width 384 a chunk of 16384 tokens gains 7 % over 2048, and no chunk measured reaches the 90 % for which the formula asks 1155 [C12.7]. At width 128, that of MesaNet's heads, a third of the peak is all there is, product by product [C12.6].
# That speaks for LaCT's few and wide heads. So does the state, which grows with the width too ([notebook 15](15-lact-at-scale.ipynb)).
#
# **Exercise 12.1 ★ Half the bytes.** In float8 a number has one byte, and the matrix units are about twice as fast. By which factors do $r$ and $r_\star$ change, and does a width of 384 now reach 90 % of the new peak under the roof? Write the function: tokens needed for a share, for any bytes per number. Its argument `ridge` is $P/B$ of the format asked about.
#
# <details><summary>Hint</summary>
#
# Put $s$ back into E12.4: by E12.5, $1/r = (s/2)(1/b+2/h)$.
#
# </details>


# %%
def tokens_in_any_format(share, ridge, h, s):
    return ...  # np.inf if no chunk is long enough


def test_tokens(answer):
    for share, peak_ratio, h, s in (
        (0.9, 183.0, 384, 2),
        (0.9, 366.0, 384, 1),
        (0.5, 12.0, 128, 4),
        (0.9, 366.0, 128, 1),
    ):
        found = answer(share, peak_ratio, h, s)
        # Independent of the formula: walk along the chunks.
        tried = np.arange(1, 20_000)
        enough = 2 * tried * h**2 / (s * (h**2 + 2 * tried * h)) >= share * peak_ratio
        wanted = tried[enough][0] if enough.any() else np.inf
        if not (found == wanted or wanted - 1 < found <= wanted):
            case = f"share {share}, ridge {peak_ratio}, h {h}, s {s}"
            return f"{case}: you say {found}; {wanted} tokens are the first that are enough"


check("12.1", tokens_in_any_format, test_tokens)


# %% jupyter={"source_hidden": true} tags=["solution"]
def tokens_in_any_format_solution(share, ridge, h, s):
    room = 2 / (s * share * ridge) - 2 / h
    return 1 / room if room > 0 else np.inf


check("12.1", tokens_in_any_format_solution, test_tokens)
for s, at in ((2, ridge), (1, 2 * ridge)):
    print(
        f"{s} bytes, ridge {at:.0f}, h = 384: {np.ceil(tokens_in_any_format_solution(0.9, at, 384, s)):.0f} tokens for 90 %"
    )

# %% [markdown]
# Both double, so under the roof nothing changes: half the bytes for twice the speed leaves the chunk where it was.
#
# ## 5 · The whole memory: nine products
#
# LaCT's memory is a SwiGLU network with three matrices ([notebook 13](13-lact-memory.ipynb) derives it), $W_1, W_3$ of $mh\times h$ and $W_2$ of $h\times mh$. A chunk takes
#
# - to write: $W_1K$, $W_3K$ and $W_2^\top V$ for what the gradient needs, and one outer product summed over the tokens for each of the three gradients: 6. (The loss $-v^\top f_W(k)$ is linear in the output, so $W_2$ times the hidden layer is not needed.)
# - to read: $W_1Q$, $W_3Q$, and $W_2$ times the hidden layer: 3.
#
# In the forward products the sizes are $b$, $h$ and $mh$, with $h$ or $mh$ summed over. In the gradients they are $mh$, $b$ and $h$, with $b$ summed over. By E12.5 that makes no difference: **all nine have the same intensity**,
#
# $$ \frac1r = \frac s2\Bigl(\frac1b + \frac1h + \frac1{mh}\Bigr), \qquad F = 9\cdot 2\,b\,m\,h^2 = 18\,b\,m\,h^2 . \tag{E12.13} $$
#
# Count them in the program itself: all products in the package's chunk form, for three chunks. (The last is not written to the weights here, but its gradient is taken and kept for a later call, so it too has nine. Muon is left out in this notebook: once a chunk it multiplies matrices with each other, which by [notebook 13](13-lact-memory.ipynb) adds $5h/b$ of the nine products' FLOPs at $m = 1$: as many again at $b = 5h$.)

# %%
b, h, m, chunks = 256, 64, 2, 3
token = jnp.zeros((1, chunks * b, 1, h))
weights = SwiGLU(jnp.ones((1, m * h, h)), jnp.ones((1, m * h, h)), jnp.ones((1, h, m * h)))
program = jax.make_jaxpr(lambda q, k, v, lr, w: lact(q, k, v, lr, w, chunk=b, muon=False, form="chunk")[0])(
    token, token, token, jnp.ones((1, chunks * b, 1, 3)), weights
)
found = list(products(program.jaxpr))
flops = product_flops(program.jaxpr)
expected, allowed_sizes = 9 * 2 * b * m * h**2 * chunks, {tuple(sorted((b, h, m * h)))}
sizes = {tuple(sorted(x[:3])) for x in found}
print(f"sizes of the products: {sizes}")
print(f"{flops} FLOPs in {sum(x[3] for x in found)} products; nine a chunk by E12.13: {expected}")

# %% tags=["nbval-check-output"]
claim(
    "C12.8",
    "every product of a LaCT chunk without Muon has the sizes b, h and m h, and a chunk has nine",
    source="E12.13; the jaxpr of lact(form='chunk'), three chunks of 256 tokens, h = 64, m = 2",
    error=abs(flops - expected) + len(sizes ^ allowed_sizes),
    tol=0,
)

# %% [markdown]
# A layer is more than its products. Here is one (4 sequences of 32768 tokens, one head of width 384, $m = 1$, no Muon), forward, in the package's chunk form on the H200, against its chunk, and what its nine products would take in bfloat16 at the roof.

# %%
layer = h200["layer"]
tokens_of_layer = layer["sequences"] * layer["length"]
chunk = np.array(layer["chunks"])
floor = 1e3 * 18 * tokens_of_layer * layer["width"] ** 2 / roof(arithmetic_intensity(chunk, layer["width"]), P, B)
pictures.layer(h200, floor)

# %% tags=["nbval-check-output"]
speedup = dict(zip(layer["chunks"], layer["ms"][0] / np.array(layer["ms"]), strict=True))
claim(
    "C12.9",
    "the whole layer is 4.5 times faster with chunks of 2048 tokens than with 64, and 6.3 times with 8192",
    source="bench/results/roofline_h200.json, forward, no Muon; the larger difference",
    error=max(abs(speedup[2048] - 4.5), abs(speedup[8192] - 6.3)),
    tol=0.05,
)

# %% [markdown]
# Longer chunks pay [C12.9], but look in F12c at the distance between the two lines: 19 to 31 times. The package computes in float32, and between two products it writes to memory what the next one reads. And chunks come one after the other: only four heads share the chip at a time, where the roof was measured with thousands of products at once. Halving the chunk adds chunks and no arithmetic. So what does one more chunk cost, and what of that are its bytes by E12.2, nine times $h^2$ numbers for each head?

# %%
count = layer["length"] / chunk
per_chunk = 1e3 * -np.diff(layer["ms"]) / -np.diff(count)
weights_moved = 1e6 * 9 * layer["sequences"] * 4 * layer["width"] ** 2 / B
prices = [f"{b} for {2 * b}: {x:.0f}" for b, x in zip(chunk[:-1], per_chunk, strict=True)]
print("microseconds for one more chunk:", ", ".join(prices))
print(f"to move the matrices nine times, in float32: {weights_moved:.0f}")

# %% tags=["nbval-check-output"]
claim(
    "C12.11",
    "up to 512 tokens one more chunk costs the layer 78 to 85 microseconds, of which moving its matrices explains 5",
    source="bench/results/roofline_h200.json, 64 for 128, 128 for 256, 256 for 512 tokens; E12.2 in float32; microseconds",
    error=max(abs(per_chunk[:3].min() - 78), abs(per_chunk[:3].max() - 85), abs(weights_moved - 5)),
    tol=0.5,
)

# %% [markdown]
# So with short chunks this layer is slow for a reason that is not in Eq. 3: a price for every chunk, nearly the same up to 256 tokens [C12.11]. (Beyond, it rises; why, we have not measured.) And Eq. 3 counts *each product by itself*; nobody forces a kernel to do so.
#
# What if a kernel keeps everything of a chunk on the chip? Then only $q, k, v, o$ move, $4bh$ numbers, and the three matrices in and out, $6mh^2$:
#
# $$ r_{\text{fused}} = \frac{18\,b\,m\,h^2}{s\,(4bh + 6mh^2)}, \qquad
#    \frac1{r_{\text{fused}}} = \frac s2\Bigl(\frac{4}{9\,mh} + \frac{2}{3\,b}\Bigr) . \tag{E12.14} $$
#
# (Divide the bracket below by $18\,b\,m\,h^2$ and multiply by $s$: $4bh/18bmh^2 = \tfrac29\cdot\tfrac1{mh}$ and $6mh^2/18bmh^2 = \tfrac13\cdot\tfrac1b$; then take $\tfrac s2$ out.)
# In bfloat16 and with $m=1$ the limits are now $\tfrac94h$ instead of $h/2$ for the width and $\tfrac32b$ instead of $b$ for the chunk. By this count neither width 384 nor 128 is a limit any more.


# %%
def fused(b, h, m=1, s=2):
    """FLOPs a byte if only q, k, v, o and the matrices move: E12.14, as counted."""
    return 18 * b * m * h**2 / (s * (4 * b * h + 6 * m * h**2))


for h in (128, 384, 768):
    apart, together = arithmetic_intensity(2048, h), fused(2048, h)
    print(
        f"h = {h}, 2048 tokens: {apart:5.0f} FLOPs a byte product by product,",
        f"{together:5.0f} fused; the ridge is {ridge:.0f}",
    )
print(f"the limits, over h and over b: {fused(1e12, 100) / 100:.4f}, {fused(100, 1e12) / 100:.4f}")
some = [(b, h, m, s) for b in (1, 64, 2048) for h in (128, 768) for m in (1, 2, 4) for s in (1, 2, 4)]
resistors = max(abs(s / 2 * (4 / (9 * m * h) + 2 / (3 * b)) * fused(b, h, m, s) - 1) for b, h, m, s in some)

# %% tags=["nbval-check-output"]
claim(
    "C12.10",
    "a fused chunk has the limits 9/4 m h and 3/2 b in bfloat16; at m = 1, 2048 tokens pass this H200's ridge at width 128",
    source="E12.14, its second form against the count for 54 sizes; the ridge of bench/results/roofline_h200.json",
    error=resistors + max(ridge / fused(2048, 128) - 1, 0),
    tol=1e-14,
)

# %% [markdown]
# This is a count and no measurement, and it needs room: the tokens can stream through, but the matrices and the sums of their gradients, $6mh^2$ numbers, must stay: $0.1$ million at width 128, $0.9$ million at 384. If the matrices stay there from chunk to chunk too, the second term goes, and a chunk of any length has $\tfrac94mh$.
#
# **Exercise 12.2 ★★ Why ordinary layers have no such problem.** In a plain feed-forward layer all sequences of a batch share the weights; in a test-time-training layer each sequence has its own. For a batch of $N$ sequences and a chunk of $b$ tokens each, write the intensity of one product in both cases (bfloat16), and find the smallest $N$ with which the shared layer of width 768 passes the H200's ridge at $b = 1$, as in decoding.
#
# <details><summary>Hint</summary>
#
# Shared weights make one product with $Nb$ tokens. Own weights make $N$ products with $b$ tokens: both FLOPs and bytes are multiplied by $N$.
#
# </details>


# %%
def shared_and_own(N, b, h):
    return ...  # the two intensities


def test_shared(answer):
    for N, b, h in ((1, 64, 384), (16, 1, 768), (300, 4, 128)):
        numbers = {"shared": (h**2 + 2 * N * b * h), "own": N * (h**2 + 2 * b * h)}
        for name, found in zip(numbers, answer(N, b, h), strict=True):
            wanted = 2 * N * b * h**2 / (2 * numbers[name])
            if not abs(found / wanted - 1) < 1e-9:
                return f"N {N}, b {b}, h {h}, {name}: you say {found}; FLOPs over bytes are {wanted:.3f}"


check("12.2", shared_and_own, test_shared)


# %% jupyter={"source_hidden": true} tags=["solution"]
def shared_and_own_solution(N, b, h):
    return N * b / (1 + 2 * N * b / h), b / (1 + 2 * b / h)


check("12.2", shared_and_own_solution, test_shared)
first = next(N for N in range(1, 10_000) if shared_and_own_solution(N, 1, 768)[0] >= ridge)
print(f"a batch of {first} sequences is enough where weights are shared; where they are not, no batch is")

# %% [markdown]
# ## 6 · Your own machine
#
# The same measurement on the computer that runs this notebook, in float32, with smaller arrays. **Nothing here is a claim**: a computer may be busy, hot or on battery, so the numbers are printed and not tested. The predictions come from this machine's own $P$ and $B$, and each number is one reading.

# %%
print(inspect.getsource(roofline.product_rate).split('"""')[-1].strip())

# %%
mine = roofline.measure((64, 512), (1, 4, 16, 64, 256), jnp.float32, nbytes=64_000_000, side=1024, rounds=1)
own_ridge = mine["peak"] / mine["bandwidth"]
print(
    f"peak {mine['peak'] / 1e9:.0f} GFLOP/s, memory {mine['bandwidth'] / 1e9:.1f} GB/s,",
    f"ridge {own_ridge:.1f} FLOPs a byte",
)
print("measured over the roof of E12.9 (with s = 4)")
print("tokens" + "".join(f"{f'h = {h}':>10}" for h in mine["widths"]))
for i, b in enumerate(mine["tokens"]):
    allowed = [roof(arithmetic_intensity(b, h, 4), mine["peak"], mine["bandwidth"]) for h in mine["widths"]]
    rates = [mine["rates"][str(h)][i] for h in mine["widths"]]
    print(f"{b:6}" + "".join(f"{x / y:10.2f}" for x, y in zip(rates, allowed, strict=True)))

# %%
pictures.own_machine(mine)

# %% [markdown]
# Read it like this. Points on a line: the count of bytes explains the rate. Points far below: something else is the limit, such as the starting of many small products or a routine that does not suit their shape; Eq. 3 knows neither. Points above: part of the arrays stayed in a cache, this memory reads faster than the test of $B$ could, or the machine was busy just when $P$ or $B$ was read. A processor's ridge is low, so the roof asks for a few tokens where a GPU's asks for hundreds; the table says whether the products obey.
#
# **Exercise 12.3 ★ Your chunk.** For your own machine, which chunk reaches 75 % of the peak under the roof at width 512? Compute it from the two numbers you measured, then look: does a product that long reach it?
#
# <details><summary>Hint</summary>
#
# `tokens_needed` takes the share, the ridge, the width and the bytes of a number.
#
# </details>


# %%
def my_chunk(peak, bandwidth):
    return ...  # tokens at width 512, float32


def test_my_chunk(answer):
    own = [(mine["peak"], mine["bandwidth"])] if 0.75 * own_ridge < 512 / 4 else []  # else no chunk is enough
    for at_peak, at_bandwidth in (*own, (1e11, 2e10), (5e11, 5e10)):
        found = answer(at_peak, at_bandwidth)
        if not 0 < found < np.inf:
            return f"you say {found}; expected a number of tokens"
        share = roof(2 * found * 512**2 / (4 * (512**2 + 2 * found * 512)), at_peak, at_bandwidth) / at_peak
        if not abs(share - 0.75) < 1e-9:
            return f"with P {at_peak:.3g} and B {at_bandwidth:.3g}, {found:.2f} tokens reach {share:.1%} of the peak"


check("12.3", my_chunk, test_my_chunk)


# %% jupyter={"source_hidden": true} tags=["solution"]
def my_chunk_solution(peak, bandwidth):
    return float(tokens_needed(0.75, peak / bandwidth, 512, bytes_per_number=4))


check("12.3", my_chunk_solution, test_my_chunk)
enough = my_chunk_solution(mine["peak"], mine["bandwidth"])
print(f"here {enough:.1f} tokens by the roof; measured at width 512:")
for b, x in zip(mine["tokens"], mine["rates"]["512"], strict=True):
    print(f"{b:5} tokens reach {x / mine['peak']:.0%} of the peak" + "  (enough, by the roof)" * (b >= enough))

# %% [markdown]
# ## 7 · What was settled
#
# **The answer.** On this H200 in bfloat16, product by product, it depends on the share of the peak that counts as busy, and on the width: 2048 tokens reach 92 % at width 768 and 74 % at 384, where 16384 reach no more than 79 % [C12.7]. At width 128 no chunk passes 35 % [C12.6]: the width is the limit, and a kernel that keeps more than one product on the chip would move it, by a count that is not measured [C12.10]. The roof is right to 2 % for 16 and 64 tokens [C12.3]; beyond, it is an upper bound.
#
# | section | claims |
# |---|---|
# | what a product moves | C12.1 |
# | two limits | C12.2 |
# | the roof, measured | C12.3, C12.4, C12.5 |
# | when 2048 tokens are enough | C12.6, C12.7 |
# | nine products, the layer, fusing | C12.8, C12.9, C12.11, C12.10 |
#
# **Where paper and practice differ.** No erratum: Eq. 3 is right.
#
# | what | here | elsewhere |
# |---|---|---|
# | $r \le \min(b, h/2)$ | never equal, and at least half of it [C12.2] | Eq. 3 gives the upper bound alone |
# | one product or a layer | a layer's time also holds what lies between its products, and a price for each chunk [C12.9, C12.11] | utilisation is reported for a layer (Fig. 1), and is not that of a whole model |
#
# **Three questions for the group.**
#
# 1. E12.5 treats the three sizes alike. Which of them can a designer of layers choose freely, and what does each cost elsewhere (state, causality, batch)?
# 2. A chip that doubles its arithmetic and not its memory: what happens to every table in this notebook, and which of the rules in this collection suffers most?
# 3. Decoding reads one token at a time. Why does no chunk rule help there, and what does?
#
# **Minutes per beat, for whoever leads.** Section 1: 12. Section 2: 5. Section 3: 12, with [F12a](#F12a) on the screen. Section 4: 11. Section 5: 14. Section 6 and questions: 6.
#
# **Next.** [Notebook 13](13-lact-memory.ipynb): what is written into the memory, and how.
