"""LaCT Eq. (3) against what the compiler counts for the product itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttt_teach.theory.intensity import arithmetic_intensity


@pytest.mark.parametrize(("b", "h"), [(16, 64), (2048, 384), (1, 128)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_compiler_counts_the_same(b, h, dtype):
    x, W = jax.ShapeDtypeStruct((b, h), dtype), jax.ShapeDtypeStruct((h, h), dtype)
    counted = jax.jit(jnp.matmul).lower(x, W).cost_analysis()
    want = counted["flops"] / counted["bytes accessed"]
    assert arithmetic_intensity(b, h, jnp.dtype(dtype).itemsize) == pytest.approx(want, rel=1e-6)


@given(b=st.floats(1, 1e7), h=st.floats(1, 1e5))
def test_neither_tokens_nor_width_alone_are_enough(b, h):
    r = arithmetic_intensity(b, h)
    assert r == pytest.approx(b / (1 + 2 * b / h), rel=1e-14)
    assert r < min(b, h / 2)
    assert r >= min(b, h / 2) / 2  # and the bound is within a factor of two


def test_broadcasts_and_names_what_is_wrong():
    assert arithmetic_intensity(np.ones((3, 1)), np.ones(4)).shape == (3, 4)
    with pytest.raises(ValueError, match="h is 0.0; expected a positive"):
        arithmetic_intensity(8, 0)
