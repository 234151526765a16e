"""Counts of a kernel on a Hopper GPU, against what the compilers said of real ones."""

import pytest

from ttt_teach.theory.hopper import H200, blocks, floor, walk


def test_the_larger_of_bytes_and_flops_is_the_floor():
    assert floor(4.27e9, 1.0) == pytest.approx(1.0)
    assert floor(1.0, 1.6e12) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("shared", "registers", "expected"),
    # Nsight Compute of mesa's kernels on an H200: its limits by shared memory and by registers
    [(92180, 166, 2), (109580, 120, 2), (117770, 121, 1), (115712, 255, 2), (115720, 255, 1), (1024, 168, 3)],
)
def test_blocks_an_sm_as_measured(shared, registers, expected):
    assert blocks(shared, registers) == expected


def test_nothing_fits_where_a_block_is_larger_than_an_sm():
    assert blocks(240_000, 64) == 0 and blocks(1000, 256) == 0 and blocks(1000, 255, threads=384) == 0


def test_the_walk_of_linear_attention_is_that_of_its_kernel():
    told = walk(64, 128, slots=2)
    assert told.shared == 2 * (16 + 16 + 8) * 1024 + 8 * 1024 + 16 * 1024  # as walk's docstring counts
    assert told.threads == 128 and told.sums == 64 + 64  # S, and beside it 64 x 128 numbers in 128 threads
    assert told.nbytes == 1024 and told.flops == 2 * (64 * 128 * 2 + 64 * 128 + 2 * 128 * 128)
    assert walk(128, 128, slots=2).threads == 256 and walk(128, 128, slots=2).sums == 32 + 128
    assert walk(64, 128, slots=1).shared + 1024 <= H200.shared // 3
