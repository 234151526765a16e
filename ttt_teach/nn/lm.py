"""One backbone for all mixers: pre-norm residual blocks and a language model with tied embeddings (MesaNet App. E)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from ttt_teach.nn.hawk import Hawk
from ttt_teach.nn.mesa import Mesa
from ttt_teach.nn.parts import MLP, over_last, rms_norm, wide
from ttt_teach.rules.door import count, require


class Block(eqx.Module):
    """x + mixer(RMSNorm(x)), then x + MLP(RMSNorm(x)). ``block(x [B, T, D], state=None) -> (x, state)``."""

    mixer_norm: eqx.nn.RMSNorm
    mixer: eqx.Module
    mlp_norm: eqx.nn.RMSNorm
    mlp: MLP

    def __init__(self, dim: int, mixer: eqx.Module, mlp_width: int, *, key: PRNGKeyArray):
        self.mixer_norm, self.mlp_norm = rms_norm(dim), rms_norm(dim)
        self.mixer = mixer
        self.mlp = MLP(dim, mlp_width, key=key)

    def __call__(self, x: Float[Array, "B T D"], state=None) -> tuple[Float[Array, "B T D"], Any]:
        y, state = self.mixer(over_last(self.mixer_norm, x), state)
        x = x + y
        return x + self.mlp(over_last(self.mlp_norm, x)), state


class LM(eqx.Module):
    """Embedding, blocks, RMSNorm, and the embedding once more as the output map.

    ``lm(tokens [B, T], state=None) -> (logits [B, T, vocab], state)``, logits in at least float32; state is a
    tuple, one entry per block. Split a sequence where you like and hand on the state: the logits are the same (with
    Mesa layers that solve with ``PCG``, as far as they have converged). A call with no tokens gives the state before
    the first.
    """

    embedding: Float[Array, "vocab D"]
    blocks: list[Block]
    norm: eqx.nn.RMSNorm

    def __init__(self, vocab: int, dim: int, blocks: Sequence[Block], *, key: PRNGKeyArray):
        self.embedding = jax.random.normal(key, (count("vocab", vocab), count("dim", dim))) / dim**0.5
        self.blocks = list(blocks)
        self.norm = rms_norm(dim)

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        tokens = jnp.asarray(tokens)
        if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(f"tokens is {tokens.dtype} of shape {list(tokens.shape)}; expected integers [B, T]")
        vocab = len(self.embedding)
        require("tokens", tokens, lambda t: (t >= 0) & (t < vocab), f"0 <= token < {vocab}, the vocabulary")
        return self.embedding[tokens]

    def __call__(
        self, tokens: Int[Array, "B T"], state: tuple | None = None
    ) -> tuple[Float[Array, "B T vocab"], tuple]:
        if state is not None and len(state) != len(self.blocks):
            raise ValueError(f"state has {len(state)} entries; expected one for each of the {len(self.blocks)} blocks")
        x, after = self.embed(tokens), []
        for block, before in zip(self.blocks, state or (None,) * len(self.blocks), strict=True):
            x, end = block(x, before)
            after.append(end)
        logits = jnp.einsum("btd,vd->btv", wide(over_last(self.norm, x)), wide(self.embedding))
        return logits, tuple(after)


def backbone(
    vocab: int, dim: int, mixers: Sequence[Callable[..., eqx.Module]], *, mlp_width: int, key: PRNGKeyArray
) -> LM:
    """An LM with one block per mixer; each of ``mixers`` is called with ``key=``, such as partial(GLA, dim, heads)."""
    embedding, *keys = jax.random.split(key, 1 + 2 * len(mixers))
    blocks = [Block(dim, make(key=keys[2 * i]), mlp_width, key=keys[2 * i + 1]) for i, make in enumerate(mixers)]
    return LM(vocab, dim, blocks, key=embedding)


def mesanet(vocab: int, dim: int, heads: int, depth: int, *, mlp_width: int, key: PRNGKeyArray, **options) -> LM:
    """``depth`` blocks with Mesa layers; options are those of :class:`Mesa`."""
    mixers = [partial(Mesa, dim, heads, **options)] * count("depth", depth)
    return backbone(vocab, dim, mixers, mlp_width=mlp_width, key=key)


def hawk(vocab: int, dim: int, depth: int, *, mlp_width: int, key: PRNGKeyArray, width: int | None = None) -> LM:
    """``depth`` blocks with Hawk layers of ``width`` channels, dim if None."""
    mixers = [partial(Hawk, dim, dim if width is None else width)] * count("depth", depth)
    return backbone(vocab, dim, mixers, mlp_width=mlp_width, key=key)


def hawk_mesa(
    vocab: int,
    dim: int,
    heads: int,
    depth: int,
    *,
    mlp_width: int,
    key: PRNGKeyArray,
    width: int | None = None,
    **options,
) -> LM:
    """Hawk and Mesa layers in turn, Hawk first, which the paper's reading leaves open.

    ``width`` is Hawk's, dim if None; options are those of :class:`Mesa`.
    """
    pair = [partial(Hawk, dim, dim if width is None else width), partial(Mesa, dim, heads, **options)]
    return backbone(vocab, dim, (pair * count("depth", depth))[:depth], mlp_width=mlp_width, key=key)


class Size(NamedTuple):
    """A model of the paper's Sec. 4 and App. G, with head key dimension 128 and the vocabulary of GPT-2.

    The width of the MLP is left open. In millions of parameters, with tied embeddings:

        width      140M    440M    940M
        8 dim / 3  138.0   404.6    871.6
        3 dim      146.2   434.0    937.7
        4 dim      171.0   522.1   1135.8

    so 3 dim comes nearest to the names, off by 4.5, 1.4 and 0.2 percent. The paper's tables call them 145M, 400M, 1B.
    """

    depth: int
    heads: int
    dim: int


SIZES = {"140M": Size(14, 6, 768), "440M": Size(28, 8, 1024), "940M": Size(28, 12, 1536)}
VOCAB = 50_257


def parameters(model) -> int:
    """How many numbers are trained. Of a shape from eqx.filter_eval_shape too, which allocates nothing."""
    return sum(int(np.prod(x.shape)) for x in jax.tree.leaves(model) if hasattr(x, "shape"))


def cast(model, dtype):
    """The model, or its state, with every float in ``dtype``."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, model)
