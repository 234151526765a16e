"""What a sequence mixer keeps and computes for a token (MesaNet Table 5), and the parameters of a model.

Of one head with keys of width K and values of width V. FLOPs: a multiplication or an addition is one, so a dot
product of length n has 2 n, as compilers count. Counted is the recurrent form, and of it what touches a matrix (of
softmax attention: the cache), with beta multiplied into a vector first; left out are vectors alone, O(K + V) a token,
and the projections around the rule.
"""

from collections.abc import Sequence
from typing import NamedTuple

from numpy.typing import ArrayLike


class Cost(NamedTuple):
    """Of one head and one sequence."""

    state: ArrayLike  # numbers that the next token needs
    flops: ArrayLike  # to write and read one token


def attention(t: ArrayLike, K: int, V: int) -> Cost:
    """Softmax attention at token t: a cache of t keys and values; t scores of 2 K, a sum of t values with weights."""
    return Cost(state=t * (K + V), flops=2 * t * (K + V))


def linear(K: int, V: int) -> Cost:
    """Linear attention with a gate (GLA, Mamba2; MesaNet Eqs. 1-2): per entry 1 to decay, 2 to write, 2 to read."""
    return Cost(state=K * V, flops=5 * K * V)


def delta(K: int, V: int) -> Cost:
    """The delta rule with a gate (MesaNet Eq. 3), Longhorn without: like :func:`linear`, and 2 to read at the key."""
    return Cost(state=K * V, flops=7 * K * V)


def mesa(K: int, V: int, steps: int) -> Cost:
    """Mesa with a solver of so many steps (MesaNet Eqs. 7-8): :func:`linear` for G, decay and write of H, 2 K^2 a step.

    With K = V = d that is 2 d^2 numbers and (2 steps + 8) d^2 FLOPs; Table 5 has O((steps + 1) d^2).
    """
    return Cost(state=K * V + K * K, flops=5 * K * V + 3 * K * K + steps * 2 * K * K)


# --- parameters


def attention_parameters(dim: int, heads: int, head_dim: int = 128) -> int:
    """Softmax attention: four projections."""
    return 4 * dim * heads * head_dim


def gla_parameters(dim: int, heads: int, head_dim: int = 128, conv: int = 4) -> int:
    """GLA or a gated delta rule in the paper's layer (App. E): like attention, and three short convolutions, two gates
    with bias, and a norm shared by the heads."""
    gates = 2 * (dim * heads + heads)
    return attention_parameters(dim, heads, head_dim) + 3 * conv * heads * head_dim + gates + head_dim


def mesa_parameters(dim: int, heads: int, head_dim: int = 128, conv: int = 4) -> int:
    """Mesa in the same layer: lam besides, one for every head and key channel."""
    return gla_parameters(dim, heads, head_dim, conv) + heads * head_dim


def hawk_parameters(dim: int, width: int, conv: int = 4) -> int:
    """Hawk: gate, entrance and exit; a short convolution; two square gates with bias; a decay for every channel."""
    return 3 * dim * width + conv * width + 2 * (width * width + width) + width


def swiglu_parameters(dim: int, width: int) -> int:
    """Gate, up and down, without bias."""
    return 3 * dim * width


def lm_parameters(vocab: int, dim: int, mixers: Sequence[int], mlp_width: int) -> int:
    """A language model with one block per mixer (of so many parameters): the embedding, tied with the output, a norm
    before every mixer, every MLP and the output."""
    block = 2 * dim + swiglu_parameters(dim, mlp_width)
    return vocab * dim + sum(mixers) + len(mixers) * block + dim
