"""The LaCT layer of the language models: a small network written chunk by chunk, beside a sliding window (Sec. 4.2)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from ttt_teach.nn.attention import AttentionState, cached, rotate
from ttt_teach.nn.parts import Linear, check_input, check_state, inverse_softplus, over_last, rms_norm, unit, wide
from ttt_teach.rules.door import count
from ttt_teach.rules.lact import LaCTState, SwiGLU, lact, muon_steps

# What the low-rank start weights have on their diagonal; from the authors' code.
IDENTITY = 0.5
# Largest |z| of the momentum gate: sigmoid(15) still is below 1 in float32, as the rule wants it.
LARGEST_MOMENTUM = 15.0


class LowRank(eqx.Module):
    """left right + 0.5 I, for every head: fewer numbers to train, as many to write into."""

    left: Float[Array, "H M R"]
    right: Float[Array, "H R K"]

    def __init__(self, heads: int, rows: int, columns: int, rank: int, *, key: PRNGKeyArray):
        left, right = jax.random.split(key)
        self.left = jax.random.normal(left, (heads, rows, rank)) / rank**0.5
        self.right = jax.random.normal(right, (heads, rank, columns)) / columns**0.5

    def __call__(self) -> Float[Array, "H M K"]:
        left, right = wide(self.left), wide(self.right)
        return left @ right + IDENTITY * jnp.eye(left.shape[1], right.shape[2], dtype=left.dtype)[None]


class Pieces(NamedTuple):
    """What the layer gives the memory."""

    q: Float[Array, "B T H K"]  # of length 1
    k: Float[Array, "B T H K"]  # of length 1
    v: Float[Array, "B T H V"]
    lr: Float[Array, "B T H 3"]  # of gate, up, out; positive
    momentum: Float[Array, "B T H"] | None  # in (0, 1)


class WindowedState(NamedTuple):
    """All that a later call needs."""

    window: AttentionState  # the last window - 1 keys and values
    memory: LaCTState  # the weights, and the unfinished chunk's share of the next


class LaCT(eqx.Module):
    """W_o (window attention(q, k, v) + g * RMSNorm(memory(q', k', v'))), with one q, k, v = W x for both branches.

    The memory is a SwiGLU network per head, W_out (silu(W_gate q') * (W_up q')), read with the weights that the chunks
    before left and written once a chunk (:func:`ttt_teach.lact`, apply-update): within a chunk a token sees others
    through the window alone, so the window should be no shorter than a chunk. The memory's

    - q' and k' are q and k scaled and shifted channel by channel, passed through SiLU, brought to length 1 head by head
      and turned as those of the attention are. The memory is not linear in them, so here, other than in attention, the
      turn makes positions matter and not their distance alone. v' = SiLU(v).
    - rates are softplus(x w + b), three for each head and token, of gate, up and out. With Muon only their ratios
      matter; without it ``rate`` is how large a token's step is.
    - momentum is sigmoid(x w + b), one number for each head and token; a chunk takes the mean of its tokens.
    - output is normed head by head, with weights shared by the heads, and multiplied by g = SiLU(x w + b), one
      number for each head and token.
    - start weights are learned: those of gate and up as left right + 0.5 I with ``rank`` columns in left, or whole
      if rank is None; those of out whole.

    The reading says that the branches share q, k and v, that the rates are positive, and that a low-rank start saves
    parameters. The rest is as in the authors' code of the language models: scale and shift on the memory's side (their
    minimal file has them on the attention's), the turn, g, the 0.5, the size of the rates. Left out are its options: to
    norm q and k over all channels, to leave v without SiLU, to turn nothing, and to keep weights that are not normed.

    Args:
        dim: width of the residual stream.
        heads: of the memory; head_dim: its K = V, d / n_h in the paper. hidden: M, r K in the paper; head_dim if None.
        attention_heads: of the window attention, over the same heads * head_dim channels; a multiple of heads, heads
            if None.
        chunk: tokens between two writes; with Muon no fewer than the smaller of head_dim and hidden, or a direction
            has singular values of rounding size, which Newton-Schulz enlarges. window: tokens the attention sees, chunk
            if None.
        rank: of the start weights. rate: of all matrices at the start.
        muon: True, False or triples (a, b, c). momentum: whether there is a buffer.

    ``mixer(x [B, T, dim], state=None) -> (y [B, T, dim], state)``: x in the dtype of the parameters; memory, rates
    and gates in float32, or float64 if they are. Any T, 0 too, and any split gives the same: the state has the
    window's cache and the unfinished chunk. (The state of a layer with another chunk is refused only where its count is
    too large and known.) ValueErrors name the argument.
    """

    project: Linear
    scale: Float[Array, "two W"]  # of q and k
    shift: Float[Array, "two W"]
    rates: Linear
    momentum_gate: Linear | None
    weights: SwiGLU  # of LowRank or arrays [H, M, K]
    norm: eqx.nn.RMSNorm
    gate: Linear
    out: Linear
    heads: int = eqx.field(static=True)
    attention_heads: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    window: int = eqx.field(static=True)
    muon: tuple | None = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int = 128,
        hidden: int | None = None,
        attention_heads: int | None = None,
        chunk: int = 2048,
        window: int | None = None,
        rank: int | None = 32,
        rate: float = 1e-3,
        muon: bool | Sequence[tuple[float, float, float]] = True,
        momentum: bool = True,
        key: PRNGKeyArray,
    ):
        dim, heads, head_dim = count("dim", dim), count("heads", heads), count("head_dim", head_dim)
        hidden = head_dim if hidden is None else count("hidden", hidden)
        width = heads * head_dim
        turned = heads if attention_heads is None else count("attention_heads", attention_heads)
        if turned % heads or width % (2 * turned):
            raise ValueError(
                f"attention_heads is {turned}; expected a multiple of {heads}, the heads, that splits {width} channels "
                "into even numbers"
            )
        if not isinstance(momentum, bool):
            raise ValueError(f"momentum is {momentum!r}; expected True or False")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
            raise ValueError(f"rate is {rate!r}; expected a positive number")
        keys = jax.random.split(key, 8)
        self.project = Linear(dim, 3 * width, key=keys[0])
        self.scale, self.shift = jnp.ones((2, width)), jnp.zeros((2, width))
        rates = Linear(dim, 3 * heads, bias=True, key=keys[1])
        start = jnp.full(3 * heads, inverse_softplus(rate))
        self.rates = eqx.tree_at(lambda rates: rates.bias, rates, start)
        self.momentum_gate = Linear(dim, heads, bias=True, key=keys[2]) if momentum else None
        self.weights = SwiGLU(
            _start(heads, hidden, head_dim, rank, keys[3]),
            _start(heads, hidden, head_dim, rank, keys[4]),
            _start(heads, head_dim, hidden, None, keys[5]),
        )
        self.norm = rms_norm(head_dim)
        self.gate = Linear(dim, heads, bias=True, key=keys[6])
        self.out = Linear(width, dim, key=keys[7])
        self.heads, self.attention_heads, self.muon = heads, turned, muon_steps(muon)
        self.chunk = count("chunk", chunk)
        self.window = self.chunk if window is None else count("window", window)

    @property
    def start(self) -> SwiGLU:
        """The weights before the first token, [H, M, K] [H, M, K] [H, V, M]."""
        return SwiGLU(*(w() if isinstance(w, LowRank) else wide(w) for w in self.weights))

    def pieces(
        self,
        x: Float[Array, "B T D"],
        q: Float[Array, "B T W"],
        k: Float[Array, "B T W"],
        v: Float[Array, "B T W"],
        position: Int[Array, ""],
    ) -> Pieces:
        """What the memory gets of tokens whose first is at ``position``, and of their shared q, k and v."""

        def direction(y, scale, shift):
            y = unit(split(jax.nn.silu(y * scale[None, None] + shift[None, None]), self.heads))
            return split(rotate(split(y, self.attention_heads), position), self.heads)

        lr, momentum = split(jax.nn.softplus(wide(self.rates(x))), self.heads), None
        if self.momentum_gate is not None:
            momentum = jax.nn.sigmoid(jnp.clip(wide(self.momentum_gate(x)), -LARGEST_MOMENTUM, LARGEST_MOMENTUM))
        q, k = (direction(y, *how) for y, *how in zip((q, k), self.scale, self.shift, strict=True))
        return Pieces(q, k, split(jax.nn.silu(v), self.heads), lr, momentum)

    def __call__(
        self, x: Float[Array, "B T D"], state: WindowedState | None = None
    ) -> tuple[Float[Array, "B T D"], WindowedState]:
        check_input(x, len(self.project.weight), self.project.weight.dtype)
        check_state(state, WindowedState)
        before, memory = state or (None, None)
        q, k, v = jnp.split(self.project(x), 3, axis=-1)
        position = jnp.zeros((), jnp.int32) if before is None else before.position
        pieces = self.pieces(x, q, k, v, position)
        near, after = cached(*(split(y, self.attention_heads) for y in (q, k, v)), self.window, before)
        far, memory = lact(
            pieces.q,
            pieces.k,
            pieces.v,
            pieces.lr,
            self.start if memory is None else None,
            chunk=self.chunk,
            muon=False if self.muon is None else self.muon,
            momentum=pieces.momentum,
            state=memory,
        )
        gate = jax.nn.silu(wide(self.gate(x))).astype(x.dtype)
        far = gate[..., None] * over_last(self.norm, far)
        return self.out(near.reshape(q.shape) + far.reshape(q.shape)), WindowedState(after, memory)


def split(x: Float[Array, "B T ..."], heads: int) -> Float[Array, "B T H W"]:
    """All channels of a token, shared out among so many heads."""
    B, T, *channels = x.shape
    return x.reshape(B, T, heads, math.prod(channels) // heads)


def _start(heads: int, rows: int, columns: int, rank: int | None, key: PRNGKeyArray) -> LowRank | Array:
    """Start weights whose product keeps the size of what comes in, but for the 0.5."""
    if rank is None:
        return jax.random.normal(key, (heads, rows, columns)) / columns**0.5
    return LowRank(heads, rows, columns, count("rank", rank), key=key)
