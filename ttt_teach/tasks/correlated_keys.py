"""Keys that overlap: two at an angle, the smallest input on which rules disagree, or many with a common direction."""

from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jaxtyping import Float

from ttt_teach.tasks.arrays import unit


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


def overlapping_keys(key: Array, sets: int, T: int, K: int, coherence: float) -> Float[np.ndarray, "sets T 1 K"]:
    """Random unit keys that share a direction: the cosine of two is about ``coherence``, from 0 to below 1."""
    if not 0 <= coherence < 1:
        raise ValueError(f"coherence is {coherence!r}; expected 0 <= coherence < 1")
    own = np.asarray(jax.random.normal(key, (sets, T, 1, K)), float)
    return unit(np.sqrt(1 - coherence) * own + np.sqrt(coherence * K) * np.eye(K)[0])
