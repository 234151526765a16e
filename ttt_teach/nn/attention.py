"""Softmax attention with rotary positions: the layer that keeps every pair."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from ttt_teach.nn.parts import Linear, check_input, check_state, wide
from ttt_teach.rules.attention import attention
from ttt_teach.rules.door import count, require

BASE = 10_000.0  # channel pair j of K / 2 turns by BASE^(-2 j / K) radians a token (RoPE, arXiv 2104.09864)


class AttentionState(NamedTuple):
    """A cache: keys, already turned, and values of all tokens so far; with a window of window - 1 tokens, the last.

    Those before the first token are zeros, and are not seen: the state of a window has one size from the start.
    """

    k: Float[Array, "B S H K"]
    v: Float[Array, "B S H V"]
    position: Int[Array, ""]  # of the next token


class Attention(eqx.Module):
    """Causal softmax attention over everything so far, or over the last ``window`` tokens, the token itself included.

    ``mixer(x [B, T, dim], state=None) -> (y [B, T, dim], state)``; the state grows with T unless there is a window.
    """

    project: Linear
    out: Linear
    heads: int = eqx.field(static=True)
    window: int | None = eqx.field(static=True)

    def __init__(self, dim: int, heads: int, *, head_dim: int = 128, window: int | None = None, key: PRNGKeyArray):
        if count("head_dim", head_dim) % 2:
            raise ValueError(f"head_dim is {head_dim}; expected an even number, since channels are turned in pairs")
        first, second = jax.random.split(key)
        width = count("heads", heads) * head_dim
        self.project = Linear(dim, 3 * width, key=first)
        self.out = Linear(width, dim, key=second)
        self.heads = heads
        self.window = None if window is None else count("window", window)

    def __call__(
        self, x: Float[Array, "B T D"], state: AttentionState | None = None
    ) -> tuple[Float[Array, "B T D"], AttentionState]:
        check_input(x, len(self.project.weight), self.project.weight.dtype)
        B, T, width = *x.shape[:2], len(self.out.weight)
        q, k, v = jnp.moveaxis(self.project(x).reshape(B, T, 3, self.heads, width // self.heads), 2, 0)
        o, state = cached(q, k, v, self.window, state)
        return self.out(o.reshape(B, T, width)), state


def cached(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T H K"],
    v: Float[Array, "B T H V"],
    window: int | None,
    state: AttentionState | None,
) -> tuple[Float[Array, "B T H V"], AttentionState]:
    """Attention with rotary positions that goes on from a cache, and the cache after it."""
    check_state(state, AttentionState)
    B, T, H, K = k.shape
    if state is None:
        position = jnp.zeros((), jnp.int32)
        before = [jnp.zeros((B, 0 if window is None else window - 1, *y.shape[2:]), y.dtype) for y in (k, v)]
    else:
        position = state.position
        before = [y.astype(v.dtype) for y in state[:2]]
        held = state.k.shape[1]
        kept = held if window is None else window - 1
        if state.k.shape != (B, kept, H, K):
            raise ValueError(f"state has keys of shape {list(state.k.shape)}; expected {[B, kept, H, K]}")
        if window is None:
            expected = f"{held}: without a window all tokens are kept"
            require("state.position", position, lambda n: n == held, expected)
    q, k = rotate(q, position), rotate(k, position)
    read = [jnp.concatenate(pair, axis=1) for pair in zip(before, (k, v), strict=True)]
    o = attention(q, k, v, window=window) if state is None else attend(q, *read, window, position)
    return o, AttentionState(*(y if window is None else y[:, T:] for y in read), position + T)


def rotate(x: Float[Array, "B T H K"], position: Int[Array, ""]) -> Float[Array, "B T H K"]:
    """Channel pair (j, j + K/2) turned by the angle of its token, so q . k depends on their distance only."""
    half = x.shape[-1] // 2
    y = wide(x)
    speed = BASE ** (-jnp.arange(half, dtype=y.dtype) / half)
    angle = (position + jnp.arange(x.shape[1], dtype=position.dtype)).astype(y.dtype)[:, None] * speed[None]
    cos, sin = (f(angle)[None, :, None] for f in (jnp.cos, jnp.sin))
    a, b = y[..., :half], y[..., half:]
    return jnp.concatenate([cos * a - sin * b, sin * a + cos * b], axis=-1).astype(x.dtype)


def attend(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B S H K"],
    v: Float[Array, "B S H V"],
    window: int | None,
    position: Int[Array, ""],
) -> Float[Array, "B T H V"]:
    """Softmax attention of the last T of S tokens, the first of these T at ``position``."""
    T, S = q.shape[1], k.shape[1]
    back = (jnp.arange(T) + S - T)[:, None] - jnp.arange(S)[None]
    seen = (
        (back >= 0)
        & (back < (S if window is None else window))
        & (jnp.arange(S, dtype=position.dtype) >= S - T - position)[None]
    )
    scores = jnp.einsum("bthk,bshk->bhts", wide(q), wide(k)) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(seen[None, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhts,bshv->bthv", weights, wide(v)).astype(v.dtype)
