"""Keys that overlap by a known amount."""

import jax
import numpy as np
import pytest

from ttt_teach.tasks import overlapping_keys, two_keys


def test_two_keys():
    pair = two_keys(45)
    np.testing.assert_allclose(pair.k[0, :, 0], [[1, 0], [0.5**0.5, 0.5**0.5]])
    np.testing.assert_array_equal(pair.v[0, :, 0, 0], [1, 0])
    swapped = two_keys(45, swapped=True)
    np.testing.assert_array_equal(swapped.k[:, ::-1], pair.k)
    np.testing.assert_array_equal(swapped.v[:, ::-1], pair.v)


@pytest.mark.parametrize("coherence", [0, 0.3, 0.9])
def test_overlapping_keys_have_length_1_and_about_the_cosine_asked_for(coherence):
    k = overlapping_keys(jax.random.key(1), 1, 400, 32, coherence)[0, :, 0]
    np.testing.assert_allclose(np.linalg.norm(k, axis=1), 1)
    cosine = ((k @ k.T).sum() - 400) / (400 * 399)
    assert abs(cosine - coherence) < 0.05


@pytest.mark.parametrize("coherence", [-0.1, 1.0, float("nan")])
def test_overlapping_keys_refuse_another_coherence(coherence):
    with pytest.raises(ValueError, match=f"coherence is {coherence}; expected 0 <= coherence < 1"):
        overlapping_keys(jax.random.key(1), 1, 4, 2, coherence)
