"""What the layers are made of: linear maps, the short convolution, norms, the gated MLP."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from ttt_teach.rules.door import count

# Inside the root of every RMSNorm; the paper's reading names no value. A row much shorter than its root stays short.
RMS_EPS = 1e-6


def wide(x: Array) -> Array:
    """x in at least float32: gates, norms and logits are computed there, whatever the parameters are kept in."""
    return x.astype(jnp.float64 if x.dtype == jnp.float64 else jnp.float32)


def inverse_softplus(y: float) -> float:
    """The number whose softplus is y > 0."""
    return float(y + np.log(-np.expm1(-y)))


def check_input(x: Array, dim: int, dtype) -> None:
    """Raise ValueError unless x is ``[B, T, dim]`` in the dtype of the parameters."""
    if x.ndim != 3 or x.shape[2] != dim:
        raise ValueError(f"x has shape {list(x.shape)}; expected [B, T, {dim}]")
    if x.dtype != dtype:
        raise ValueError(f"x has dtype {x.dtype}; expected {dtype}, as the parameters have")


def check_state(state, kind: type) -> None:
    """Raise ValueError unless state is None or of the kind that the layer returns."""
    if state is not None and not isinstance(state, kind):
        raise ValueError(f"state is a {type(state).__name__}; expected {kind.__name__}, as this layer returns")


class Linear(eqx.Module):
    """x W + b over the last axis, any axes before it. W is normal with variance 1 / inputs, so it keeps the size."""

    weight: Float[Array, "I O"]
    bias: Float[Array, " O"] | None

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, key: PRNGKeyArray):
        self.weight = jax.random.normal(key, (count("inputs", inputs), count("outputs", outputs))) / inputs**0.5
        self.bias = jnp.zeros(outputs) if bias else None

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        y = x @ self.weight
        return y if self.bias is None else y + jnp.expand_dims(self.bias, range(y.ndim - 1))


class ShortConv(eqx.Module):
    """Causal depthwise convolution: y_t = sum_j w_j * x_{t-j}, j < width, channel by channel (MesaNet App. E: 4).

    The last width - 1 inputs are the state, zeros before the first token.
    """

    weight: Float[Array, "J C"]  # weight[-1] meets the token itself

    def __init__(self, channels: int, width: int, *, key: PRNGKeyArray):
        self.weight = jax.random.normal(key, (count("conv", width), count("channels", channels))) / width**0.5

    def __call__(
        self, x: Float[Array, "B T C"], tail: Float[Array, "B J1 C"] | None = None
    ) -> tuple[Float[Array, "B T C"], Float[Array, "B J1 C"]]:
        J, C = self.weight.shape
        B, T, _ = x.shape
        if tail is None:
            tail = jnp.zeros((B, J - 1, C), x.dtype)
        elif tail.shape != (B, J - 1, C):
            raise ValueError(f"state has a tail of shape {list(tail.shape)}; expected {[B, J - 1, C]}")
        x = jnp.concatenate([tail.astype(x.dtype), x], axis=1)
        return sum(w[None, None] * x[:, j : j + T] for j, w in enumerate(self.weight)), x[:, T:]


def rms_norm(size: int) -> eqx.nn.RMSNorm:
    """x / sqrt(mean(x^2) + RMS_EPS) times a learned weight, which starts at 1; no bias."""
    return eqx.nn.RMSNorm(size, eps=RMS_EPS, use_bias=False)


def over_last(norm: eqx.nn.RMSNorm, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """The norm of every vector of x."""
    return jnp.vectorize(norm, signature="(d)->(d)")(x)


def unit(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """x / |x| over the last axis. A vector too short for its square to be a number stays zero, and has gradient 0."""
    y = wide(x)
    square = jnp.sum(y * y, axis=-1, keepdims=True)
    has_direction = square >= jnp.finfo(square.dtype).tiny
    y = y * jnp.where(has_direction, jax.lax.rsqrt(jnp.where(has_direction, square, 1)), 0)
    return y.astype(x.dtype)


class MLP(eqx.Module):
    """SwiGLU: W_down (SiLU(W_gate x) * W_up x), no biases."""

    gate: Linear
    up: Linear
    down: Linear

    def __init__(self, dim: int, width: int, *, key: PRNGKeyArray):
        dim, width = count("dim", dim), count("width", width)
        gate, up, down = jax.random.split(key, 3)
        self.gate = Linear(dim, width, key=gate)
        self.up = Linear(dim, width, key=up)
        self.down = Linear(width, dim, key=down)

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))
