"""The door of the formulas: numbers are checked, and become Python's or float64, which do not wrap as int32 does."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ttt_teach.rules.door import count


def whole(**sizes: int) -> tuple[int, ...]:
    """Each of them a whole number >= 1."""
    return tuple(count(name, size) for name, size in sizes.items())


def positive(name: str, x: ArrayLike) -> int | np.ndarray:
    """Numbers above 0; infinity is one."""
    return _real(name, x, lambda x: x > 0, "a positive number")


def at_least(name: str, x: ArrayLike, least: int, of: str = "") -> int | np.ndarray:
    """Finite numbers that are not below ``least``; ``of`` says what they are of."""
    return _real(name, x, lambda x: (x >= least) & (x < np.inf), f"at least {least}{of}")


def _real(name: str, x: ArrayLike, holds: Callable[[np.ndarray], np.ndarray], expected: str) -> int | np.ndarray:
    try:
        read = np.asarray(x)
    except ValueError:  # a list with holes
        read = np.asarray(None)
    if read.dtype.kind not in "iuf" or not holds(read).all():
        raise ValueError(f"{name} is {x!r}; expected {expected}")
    return int(read) if read.ndim == 0 and read.dtype.kind in "iu" else read.astype(float)
