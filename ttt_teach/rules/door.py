"""The door of every rule: arguments are read and checked here, once, and each form sees a single head.

A form is written for one head (``q`` is ``[T, K]``) and in one precision, float32 or float64; the door casts
on the way in, spreads the form over batch and heads, and gives the output back in the dtype of ``v``.
"""

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ttt_teach.solvers.precision import full_precision


def enter(**arguments: tuple) -> tuple[SimpleNamespace, SimpleNamespace]:
    """Read ``name=(value, layout, ...)``: the arrays in the compute dtype, and the sizes the layouts name.

    A layout is a string such as ``"B T H K"``; a letter has one size throughout the call. An argument may
    have several layouts (that with as many axes as the array counts), None among them if it may be left out. Sizes also
    carry ``dtype``, the compute dtype: float64 if any argument is, else float32.

    Raises ValueError: not a float array, or a shape that disagrees; NaN when ``jax_debug_nans`` is on.
    """
    for name, (value, *layouts) in arguments.items():
        if value is None and None not in layouts:
            raise ValueError(f"{name} is None; expected {_wanted(layouts)}")
    arrays = {name: _as_float(name, value) for name, (value, *_) in arguments.items() if value is not None}
    sizes: dict[str, int] = {}
    for name, x in arrays.items():
        _bind(name, x, arguments[name][1:], sizes)
    dtype = jnp.float64 if any(x.dtype == jnp.float64 for x in arrays.values()) else jnp.float32
    read = {name: arrays[name].astype(dtype) if name in arrays else None for name in arguments}
    return SimpleNamespace(**read), SimpleNamespace(**sizes, dtype=dtype)


def _as_float(name: str, value: ArrayLike) -> Array:
    if jax.config.jax_debug_nans and _holds_nan(value):
        raise ValueError(f"{name} holds NaN; expected numbers (jax_debug_nans is on)")
    try:
        x = jnp.asarray(value)
    except (TypeError, ValueError) as error:  # a list with holes, text, an object
        raise ValueError(f"{name} is a {type(value).__name__}; expected a floating-point array ({error})") from None
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"{name} has dtype {x.dtype}; expected a floating-point array")
    return x


def _holds_nan(value: ArrayLike) -> bool:
    try:
        return known(value) and bool(np.isnan(np.asarray(value)).any())
    except (TypeError, ValueError):  # no array of numbers at all, which has its own message
        return False


def _bind(name: str, x: Array, layouts: Sequence[str | None], sizes: dict[str, int]) -> None:
    """Give each letter of the layout its size, or complain if it already has another."""
    wanted = _wanted(layouts)
    letters = next((axes for layout in layouts if layout and len(axes := layout.split()) == x.ndim), None)
    if letters is None:
        raise ValueError(f"{name} has shape {list(x.shape)}; expected {wanted}")
    for letter, size in zip(letters, x.shape, strict=True):
        if sizes.setdefault(letter, size) != size:
            raise ValueError(f"{name} has shape {list(x.shape)}; expected {wanted} with {letter} = {sizes[letter]}")


def _wanted(layouts: Sequence[str | None]) -> str:
    return " or ".join(f"[{', '.join(layout.split())}]" for layout in layouts if layout)


def known(x: ArrayLike) -> bool:
    """Whether x has values here and now: not under jit, vmap or grad, nor if a part of it lies on other hosts."""
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)


def require(name: str, x: Array | None, holds: Callable[[np.ndarray], np.ndarray], expected: str) -> None:
    """Raise ValueError unless every known entry of x satisfies ``holds``; the message shows the first that does not.

    In NumPy, so that under jit too an array from outside, which still has its values, can be looked at.
    """
    if x is None or not known(x):
        return
    x = np.asarray(x)
    wrong = x[~holds(x)]
    if wrong.size:
        raise ValueError(f"{name} holds {float(wrong[0]):g}; expected {expected}")


def number(name: str, value: ArrayLike, dtype) -> Array:
    """One real number, in the compute dtype; it may be traced."""
    array = isinstance(value, jax.Array | np.ndarray) and value.ndim == 0 and jnp.issubdtype(value.dtype, jnp.number)
    if not (array or isinstance(value, numbers.Real | np.number)) or jnp.iscomplexobj(value):
        raise ValueError(f"{name} is {value!r}; expected one real number")
    return jnp.asarray(value if array else float(value), dtype)


def count(name: str, value: int, least: int = 1, of: str = "") -> int:
    """A whole number, as plain data: it decides shapes."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} is {value!r}; expected a whole number{of} >= {least}")
    return int(value)


def length(name: str, value: int) -> int:
    """A number of tokens, at least 1."""
    return count(name, value, of=" of tokens")


def per_channel(log_decay: Array | None, size: SimpleNamespace) -> Array:
    """log_decay as ``[B, T, H, 1]`` (one per head, zeros if None) or ``[B, T, H, K]`` (one per key channel)."""
    if log_decay is None:
        return jnp.zeros((size.B, size.T, size.H, 1), size.dtype)
    require("log_decay", log_decay, lambda g: g <= 0, "log_decay <= 0, a retention of at most 1")
    return log_decay if log_decay.ndim == 4 else log_decay[..., None]


def pick(rule: str, forms: Mapping[str, Callable], form: str, *, kernel: bool = False) -> Callable | None:
    """The form asked for; ``"auto"`` is the last that the rule has, the one for training on an accelerator.

    None is the rule's kernel, if it has one: that is no form for a single head, and the rule calls it itself.
    """
    name = list(forms)[-1] if form == "auto" else form
    names = (*forms, "kernel") if kernel else tuple(forms)
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"form is {form!r}; {rule} has {', '.join(map(repr, names))} and 'auto'")
    return forms.get(name)


@cache
def on_hopper() -> bool:
    """Whether JAX computes on GPUs of compute capability 9.0 here."""
    return jax.default_backend() == "gpu" and getattr(jax.devices()[0], "compute_capability", None) == "9.0"


def tries_kernel(form: str) -> bool:
    """Whether the rule's kernel is asked for, or ``"auto"`` takes it for what it covers."""
    return form == "kernel" or (form == "auto" and on_hopper())


def covers(form: str, refusal: str | None) -> bool:
    """Whether the kernel does this call; for ``form="kernel"``, which is nothing else, ValueError says why not."""
    if refusal is not None and form == "kernel":
        raise ValueError(f"form is 'kernel', which {refusal}")
    return refusal is None


def each_head(form: Callable, tokens: tuple, states: tuple, heads: tuple = (), shared: tuple = (), **options) -> tuple:
    """``form(*tokens, *heads, *states, *shared, **options) -> (o, state)`` for every head, which sees its own of each.

    tokens ``[B, T, H, ...]`` become ``[T, ...]``, heads ``[H, ...]`` become ``[...]``, states ``[B, H, ...]`` likewise;
    what is shared stays one for all, so that a lax.cond on it stays a branch and is no select. Options are plain data,
    hashable; a form gets those its signature names. Compiled once per form, shapes and options.
    """
    takes = inspect.signature(form).parameters
    return _spread(form, tokens, heads, states, shared, tuple((n, x) for n, x in options.items() if n in takes))


@partial(jax.jit, static_argnames=("form", "options"))
def _spread(form, tokens, heads, states, shared, options):
    t, h, s, all_same = len(tokens), len(heads), len(states), (None,) * len(shared)
    over_heads = jax.vmap(
        lambda *arrays: form(*arrays, **dict(options)),
        in_axes=(1,) * t + (0,) * h + (0,) * s + all_same,
        out_axes=(1, 0),
        axis_name="heads",
    )
    over_batch = jax.vmap(over_heads, in_axes=(0,) * t + (None,) * h + (0,) * s + all_same, axis_name="batch")
    return full_precision(over_batch)(*tokens, *heads, *states, *shared)


def start(state: Array | None, *shape: int, dtype) -> Array:
    """The given start state, or zeros."""
    return jnp.zeros(shape, dtype) if state is None else state


def leave(o: Array, v: ArrayLike) -> Array:
    """The output in the dtype the values came in."""
    return o.astype(jnp.asarray(v).dtype)
