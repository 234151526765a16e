"""What a sequence mixer keeps and computes for a token (MesaNet Table 5), and the parameters of a model.

Of one head with keys of width K and values of width V. FLOPs: a multiplication or an addition is one, so a dot
product of length n has 2 n, as compilers count. Counted is the recurrent form, and of it what touches a matrix (of
softmax attention: the cache), with beta multiplied into a vector first; left out are vectors alone, O(K + V) a token,
and the projections around the rule. Sizes are whole numbers >= 1, and what is ArrayLike one positive number or many;
a ValueError names what is not.
"""

from collections.abc import Sequence
from typing import NamedTuple

from numpy.typing import ArrayLike

from ttt_teach.rules.door import count
from ttt_teach.theory.sizes import at_least, positive, whole


class Cost(NamedTuple):
    """Of one head and one sequence."""

    state: ArrayLike  # numbers that the next token needs
    flops: ArrayLike  # to write and read one token


def attention(t: ArrayLike, K: int, V: int) -> Cost:
    """Softmax attention at token t >= 0: a cache of t keys and values; t scores of 2 K, a weighted sum of t values."""
    t, (K, V) = at_least("t", t, 0), whole(K=K, V=V)
    return Cost(state=t * (K + V), flops=2 * t * (K + V))


def linear(K: int, V: int) -> Cost:
    """Linear attention with a gate (GLA, Mamba2; MesaNet Eqs. 1-2): per entry 1 to decay, 2 to write, 2 to read."""
    K, V = whole(K=K, V=V)
    return Cost(state=K * V, flops=5 * K * V)


def delta(K: int, V: int) -> Cost:
    """The delta rule with a gate (MesaNet Eq. 3), Longhorn without: like :func:`linear`, and 2 to read at the key."""
    K, V = whole(K=K, V=V)
    return Cost(state=K * V, flops=7 * K * V)


def mesa(K: int, V: int, steps: int) -> Cost:
    """Mesa with a solver of so many steps (MesaNet Eqs. 7-8): :func:`linear` for G, decay and write of H, 2 K^2 a step.

    With K = V = d that is 2 d^2 numbers and (2 steps + 8) d^2 FLOPs; Table 5 has O((steps + 1) d^2).
    """
    (K, V), steps = whole(K=K, V=V), count("steps", steps, 0)
    return Cost(state=K * V + K * K, flops=5 * K * V + 3 * K * K + steps * 2 * K * K)


def osdn(K: int, V: int) -> Cost:
    """OSDN with a gate (OSDN Eqs. 2 and 4): :func:`delta`, and a scale of K numbers, 1 / V of its state.

    The paper's "at most 0.05 percent" is 0.78 percent at V = 128. What the scale costs is vectors alone.
    """
    K, V = whole(K=K, V=V)
    return Cost(state=K * V + K, flops=delta(K, V).flops)


def lact(K: int, V: int, M: ArrayLike) -> Cost:
    """LaCT's SwiGLU of hidden width M (LaCT Eq. 6, App. A): three matrices, S = M (2 K + V) numbers, and 6 S FLOPs.

    Each matrix is in three products of 2 FLOPs a number: gate and up of the key and out' of the value, three outer
    products, and the read. Momentum and Muon are done once a chunk and are not in it.
    """
    K, V = whole(K=K, V=V)
    state = positive("M", M) * (2 * K + V)
    return Cost(state=state, flops=6 * state)


def lact_gradient(K: int, V: int, M: int, recompute: bool = True) -> int:
    """FLOPs to go back through :func:`lact`, for one token: 12 S, two products for each.

    With ``recompute`` as the package does it, which keeps no hidden vector and makes five products again: gate and up
    of the key and of the query, and out' of the value.
    """
    K, V, M = whole(K=K, V=V, M=M)
    return 2 * lact(K, V, M).flops + recompute * 2 * M * (4 * K + V)


def lact_state(dim: int, heads: int, ratio: ArrayLike = 1) -> ArrayLike:
    """The fast weights of a LaCT layer, 3 r d^2 / n_h (LaCT App. A): heads of width h = d / n_h, hidden width r h.

    Raises ValueError: a width that the heads do not divide.
    """
    dim, heads = whole(dim=dim, heads=heads)
    if dim % heads:
        raise ValueError(f"heads is {heads}; expected a whole number that divides dim = {dim}")
    width = dim // heads
    return heads * lact(width, width, positive("ratio", ratio) * width).state


def muon(K: int, V: int, M: int, steps: int = 5) -> int:
    """FLOPs to orthogonalise LaCT's three directions once, by so many Newton-Schulz steps (LaCT App. A).

    A step on a matrix whose smaller side is m and whose larger is n makes three products: X X', its square, and one
    with X. That is 2 m^2 (2 n + m).
    """
    (K, V, M), steps = whole(K=K, V=V, M=M), count("steps", steps, 0)

    def step(rows: int, columns: int) -> int:
        m, n = sorted((rows, columns))
        return 2 * m * m * (2 * n + m)

    return steps * (2 * step(M, K) + step(V, M))


def muon_share(d: int, r: ArrayLike, chunk: ArrayLike, steps: int = 5) -> ArrayLike:
    """:func:`muon` over the products of a chunk's tokens, steps d (2 r + 1) / (3 r chunk), for r >= 1 and K = V = d.

    From 6 steps d^3 (2 r + 1) and 18 r d^2 chunk; heads and sequences cancel. Raises ValueError: r below 1.
    """
    (d,), chunk, steps = whole(d=d), positive("chunk", chunk), count("steps", steps, 0)
    r = at_least("r", r, 1, of=", a network no narrower inside than its keys")
    return steps * d * (2 * r + 1) / (3 * r * chunk)


# --- parameters


def attention_parameters(dim: int, heads: int, head_dim: int = 128) -> int:
    """Softmax attention: four projections."""
    dim, heads, head_dim = whole(dim=dim, heads=heads, head_dim=head_dim)
    return 4 * dim * heads * head_dim


def gla_parameters(dim: int, heads: int, head_dim: int = 128, conv: int = 4) -> int:
    """GLA or a gated delta rule in the paper's layer (App. E): like attention, and three short convolutions, two gates
    with bias, and a norm shared by the heads."""
    dim, heads, head_dim, conv = whole(dim=dim, heads=heads, head_dim=head_dim, conv=conv)
    gates = 2 * (dim * heads + heads)
    return attention_parameters(dim, heads, head_dim) + 3 * conv * heads * head_dim + gates + head_dim


def mesa_parameters(dim: int, heads: int, head_dim: int = 128, conv: int = 4) -> int:
    """Mesa in the same layer: lam besides, one for every head and key channel."""
    heads, head_dim = whole(heads=heads, head_dim=head_dim)
    return gla_parameters(dim, heads, head_dim, conv) + heads * head_dim


def osdn_parameters(
    dim: int,
    heads: int,
    head_dim: int = 128,
    conv: int = 4,
    *,
    forget: str | None = None,
    retention: bool = False,
    start: str = "ones",
) -> int:
    """OSDN in the same layer, with the options of ``nn.OSDN``: gates per head or per channel or none, APF's H (dim + 1)
    (OSDN Eq. 7), and a learned start scale."""
    dim, heads, head_dim = whole(dim=dim, heads=heads, head_dim=head_dim)
    gate = heads * (dim + 1)
    gates = _choose("forget", forget, {None: 0, "head": gate, "channel": head_dim * gate}) + retention * gate
    learned = _choose("start", start, {"ones": 0, "projected": heads * head_dim, "free": heads * head_dim})
    return gla_parameters(dim, heads, head_dim, conv) - gate + gates + learned


def _choose(name: str, option: str | None, numbers: dict) -> int:
    if option not in list(numbers):  # of a list: what cannot be hashed is not among them either
        raise ValueError(f"{name} is {option!r}; expected one of {', '.join(map(repr, numbers))}")
    return numbers[option]


def lact_parameters(
    dim: int,
    heads: int,
    head_dim: int = 128,
    *,
    hidden: int | None = None,
    rank: int | None = 32,
    momentum: bool = True,
) -> int:
    """LaCT beside a sliding window that shares its projections (LaCT Sec. 4.2), as ``nn.LaCT``: like attention; a scale
    and a shift for the channels of q and k; three rates, a momentum and a gate per head, with bias; a norm shared by
    the heads; start weights of rank ``rank``, those of the out matrix whole."""
    dim, heads, head_dim = whole(dim=dim, heads=heads, head_dim=head_dim)
    width, M = heads * head_dim, head_dim if hidden is None else count("hidden", hidden)
    gates = (3 + momentum + 1) * heads * (dim + 1)
    inner = 2 * (M * head_dim if rank is None else count("rank", rank) * (M + head_dim))
    start = heads * (inner + head_dim * M)
    return attention_parameters(dim, heads, head_dim) + 4 * width + gates + head_dim + start


def hawk_parameters(dim: int, width: int, conv: int = 4) -> int:
    """Hawk: gate, entrance and exit; a short convolution; two square gates with bias; a decay for every channel."""
    dim, width, conv = whole(dim=dim, width=width, conv=conv)
    return 3 * dim * width + conv * width + 2 * (width * width + width) + width


def swiglu_parameters(dim: int, width: int) -> int:
    """Gate, up and down, without bias."""
    dim, width = whole(dim=dim, width=width)
    return 3 * dim * width


def lm_parameters(vocab: int, dim: int, mixers: Sequence[int], mlp_width: int) -> int:
    """A language model with one block per mixer (of so many parameters): the embedding, tied with the output, a norm
    before every mixer, every MLP and the output."""
    vocab, dim = whole(vocab=vocab, dim=dim)
    block = 2 * dim + swiglu_parameters(dim, mlp_width)
    return vocab * dim + sum(count("mixers", n) for n in mixers) + len(mixers) * block + dim
