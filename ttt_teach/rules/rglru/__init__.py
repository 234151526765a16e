"""Hawk's real-gated linear recurrent unit: a vector that forgets channel by channel, and takes in what it forgot."""

from jax import Array
from jax.typing import ArrayLike

from ttt_teach.rules import door
from ttt_teach.rules.rglru.chunk import chunkwise
from ttt_teach.rules.rglru.definition import definition
from ttt_teach.rules.rglru.recurrent import recurrent

FORMS = {"definition": definition, "recurrent": recurrent, "chunk": chunkwise}


def rglru(
    x: ArrayLike,
    input_gate: ArrayLike,
    log_decay: ArrayLike,
    *,
    state: ArrayLike | None = None,
    form: str = "auto",
    chunk: int = 64,
) -> tuple[Array, Array]:
    """h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t * x_t) with log_decay = log a, and o_t = h_t (arXiv 2402.19427, Eq. 4).

    The gates are the layer's: r_t = sigmoid(W_a x_t + b_a), i_t = sigmoid(W_x x_t + b_x), and a_t = a^(c r_t) with
    a = sigmoid(Lambda) and c = 8 (Eqs. 1-3), so log_decay_t = -8 r_t softplus(-Lambda).

    The root keeps the size of h: for inputs i * x of variance 1, h has variance 1. Its slope in log_decay is infinite
    at log_decay = 0, where nothing enters; the gradient that runs through the root is 0 there, by convention.

    Args:
        x: ``[B, T, D]``. input_gate: i, in [0, 1], ``[B, T, D]``.
        log_decay: log a, natural logarithm, <= 0 (-inf forgets all, and takes in i * x whole): ``[B, T, D]``.
        state: h before the first token, ``[B, D]``; zeros if None.
        form: ``"definition"`` (the weighted sum over all inputs, T^2 D), ``"recurrent"`` (T D, a scan over tokens),
            ``"chunk"`` or ``"auto"`` (about 2 T D, a scan over chunks).
        chunk: tokens per chunk.

    Returns:
        o ``[B, T, D]`` in the dtype of x; h after the last token, ``[B, D]``, float32 (float64 if any input is).

    Raises:
        ValueError: a shape or dtype that disagrees, input_gate outside [0, 1], log_decay > 0, an unknown form,
            chunk < 1.
    """
    run = door.pick("rglru", FORMS, form)
    y, size = door.enter(
        x=(x, "B T D"),
        input_gate=(input_gate, "B T D"),
        log_decay=(log_decay, "B T D"),
        state=(state, "B D", None),
    )
    door.require("input_gate", y.input_gate, lambda i: (i >= 0) & (i <= 1), "a gate between 0 and 1")
    door.require("log_decay", y.log_decay, lambda g: g <= 0, "log_decay <= 0, a retention of at most 1")
    o, h = door.each_head(  # its channels are one head
        run,
        tokens=(y.x[:, :, None], y.input_gate[:, :, None], y.log_decay[:, :, None]),
        states=(door.start(y.state, size.B, size.D, dtype=size.dtype)[:, None],),
        chunk=door.length("chunk", chunk),
    )
    return door.leave(o[:, :, 0], x), h[:, 0]
