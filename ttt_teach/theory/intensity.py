"""How much arithmetic a matrix product offers for each byte it moves."""

import numpy as np
from numpy.typing import ArrayLike


def arithmetic_intensity(b: ArrayLike, h: ArrayLike, bytes_per_number: int = 2) -> np.ndarray:
    """r = 2 h^2 b / (2 h^2 + 4 h b) = b / (1 + 2 b / h), in FLOPs a byte (LaCT Eq. 3).

    Of the product of b tokens of width h with an h x h matrix: h^2 + 2 h b numbers move, of ``bytes_per_number``
    each, 2 for bfloat16 as in the paper. Never above min(b, h / 2) for 2: both a short chunk and a narrow
    matrix leave the arithmetic units waiting.

    Args: b, h, positive, broadcast against each other. Raises ValueError if one is not positive.
    """
    b, h = np.asarray(b, float), np.asarray(h, float)
    for name, x in (("b", b), ("h", h)):
        if not (x > 0).all():
            raise ValueError(f"{name} is {x}; expected a positive number of tokens or channels")
    return 2 * h**2 * b / (bytes_per_number * (h**2 + 2 * h * b))
