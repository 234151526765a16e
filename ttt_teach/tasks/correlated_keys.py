"""Two keys at an angle, two values: the smallest input on which the rules disagree."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class TwoKeys(NamedTuple):
    """Laid out for the rules: B = H = 1, T = 2, K = 2, V = 1."""

    k: Float[np.ndarray, "1 2 1 2"]
    v: Float[np.ndarray, "1 2 1 1"]
    beta: Float[np.ndarray, "1 2 1"]


def two_keys(angle: float = 45.0, *, swapped: bool = False) -> TwoKeys:
    """k_1 = (1, 0) stores 1 and k_2, ``angle`` degrees away, stores 0; ``swapped`` writes the second pair first.

    At 45 degrees this is the teaching example of the MesaNet reading: k_2 = (1, 1)/sqrt(2). beta is 1.
    """
    radians = np.deg2rad(angle)
    k = np.array([[1.0, 0.0], [np.cos(radians), np.sin(radians)]])
    v = np.array([[1.0], [0.0]])
    order = [1, 0] if swapped else [0, 1]
    return TwoKeys(k[order][None, :, None], v[order][None, :, None], np.ones((1, 2, 1)))
