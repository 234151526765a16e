"""LaCT Eq. (3) against what the compiler counts for the product itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttt_teach.theory.intensity import arithmetic_intensity, product_intensity, roof, tokens_needed


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
    with pytest.raises(ValueError, match="h is 0; expected a positive"):
        arithmetic_intensity(8, 0)


@pytest.mark.parametrize("shape", [(5, 70, 300), (2048, 384, 768), (384, 2048, 768)])
def test_the_compiler_counts_the_same_of_any_product(shape):
    m, k, n = shape
    x, y = jax.ShapeDtypeStruct((m, k), "bfloat16"), jax.ShapeDtypeStruct((k, n), "bfloat16")
    counted = jax.jit(jnp.matmul).lower(x, y).cost_analysis()
    assert product_intensity(m, k, n) == pytest.approx(counted["flops"] / counted["bytes accessed"], rel=1e-6)


@given(b=st.floats(1, 1e7), h=st.floats(1, 1e5), size=st.sampled_from([1, 2, 4]))
def test_the_tokens_needed_reach_the_share_and_no_fewer_do(b, h, size):
    r = float(arithmetic_intensity(b, h, size))
    assert tokens_needed(0.5, 2 * r, h, size) == pytest.approx(b, rel=1e-12 * (1 + b / h))  # 1/b is a difference


def test_a_width_below_twice_the_ridge_is_never_wide_enough():
    np.testing.assert_array_equal(tokens_needed(1, 100, [199.9, 200.0, 200.1]) < np.inf, [False, False, True])
    with pytest.raises(ValueError, match="share is 1.5; expected a share of the peak"):
        tokens_needed(1.5, 100, 64)


def test_the_roof_is_flat_from_the_ridge_on():
    np.testing.assert_array_equal(roof([1, 10, 20, 40], peak=100, bandwidth=5), [5, 50, 100, 100])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: roof([1, 2], -3.0, 2.0), "peak"),
        (lambda: roof([1, 2], 3.0, 0), "bandwidth"),
        (lambda: roof([-1, 2], 3.0, 2.0), "intensity"),
        (lambda: arithmetic_intensity(8, 8, -2), "bytes_per_number"),
        (lambda: tokens_needed(0.5, 100, 400, 0), "bytes_per_number"),
        (lambda: tokens_needed(0.5, [100, 0], 400), "ridge"),
    ],
)
def test_what_is_not_positive_is_named(call, name):
    with pytest.raises(ValueError, match=f"^{name} is .*; expected a positive number"):
        call()
