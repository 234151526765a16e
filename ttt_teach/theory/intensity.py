"""How much arithmetic a matrix product offers for each byte it moves, and how fast it can therefore run."""

import numpy as np
from numpy.typing import ArrayLike

from ttt_teach.theory.sizes import positive


def product_intensity(m: ArrayLike, k: ArrayLike, n: ArrayLike, bytes_per_number: int = 2) -> np.ndarray:
    """FLOPs a byte of an m x k by k x n product: 2 m k n of the one, m k + k n + m n numbers of the other.

    1/r = (bytes_per_number / 2) (1/m + 1/k + 1/n): the three sizes count alike, and the smallest most.

    Args: sizes, positive, broadcast against each other. Raises ValueError if one is not positive.
    """
    return 2 / (_bytes(bytes_per_number) * sum(1 / positive(name, x) for name, x in (("m", m), ("k", k), ("n", n))))


def arithmetic_intensity(b: ArrayLike, h: ArrayLike, bytes_per_number: int = 2) -> np.ndarray:
    """r = 2 h^2 b / (2 h^2 + 4 h b) = b / (1 + 2 b / h), in FLOPs a byte (LaCT Eq. 3).

    Of the product of b tokens of width h with an h x h matrix, 2 bytes a number for bfloat16 as in the paper. Never
    above min(b, h / 2) then, and at least half of that: both a short chunk and a narrow matrix leave the arithmetic
    units waiting.

    Args: b, h, positive, broadcast against each other. Raises ValueError if one is not positive.
    """
    b, h = positive("b", b), positive("h", h)
    return product_intensity(b, h, h, bytes_per_number)


def roof(intensity: ArrayLike, peak: float, bandwidth: float) -> np.ndarray:
    """The most FLOPs a second: min(peak, bandwidth * intensity), peak in FLOP/s, bandwidth in bytes/s; all positive."""
    peak, bandwidth = positive("peak", peak), positive("bandwidth", bandwidth)
    return np.minimum(peak, bandwidth * positive("intensity", intensity))


def tokens_needed(share: ArrayLike, ridge: ArrayLike, h: ArrayLike, bytes_per_number: int = 2) -> np.ndarray:
    """The chunk b at which the roof of Eq. (3) reaches ``share`` of the peak; inf where the width h allows none.

    Eq. (3) solved for b, at r = share * ridge: 1/b = 2 / (bytes_per_number share ridge) - 2/h.

    Args:
        share: of the peak, in (0, 1]. ridge: peak / bandwidth, FLOPs a byte. h: width. Broadcast.
    """
    share, ridge, h = positive("share", share), positive("ridge", ridge), positive("h", h)
    if np.any(share > 1):
        raise ValueError(f"share is {share}; expected a share of the peak, at most 1")
    room = 2 / (_bytes(bytes_per_number) * share * ridge) - 2 / h
    return np.where(room > 0, 1 / np.where(room > 0, room, 1), np.inf)


def _bytes(bytes_per_number: int) -> int:
    return positive("bytes_per_number", bytes_per_number)
