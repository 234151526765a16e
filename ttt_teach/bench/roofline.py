"""The roofline of this machine, and real products under it, as JSON: python -m ttt_teach.bench.roofline > FILE."""

import json
import sys
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from ttt_teach import SwiGLU, lact
from ttt_teach.bench.clock import device, race

WIDTHS = (128, 384, 768, 1536)
TOKENS = (1, 16, 64, 256, 1024, 2048, 4096, 16384)
NBYTES = 4_000_000_000  # what one round moves: eighty times the H200's level-2 cache
SIDE = 8192
# One LaCT layer of the 760M model: 4 sequences, one head of width 384 with a hidden layer as wide.
SEQUENCES, LENGTH, WIDTH = 4, 32_768, 384
CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


QUEUED = 8  # calls in a row for one reading, so that starting them and hearing of their end does not count


def seconds(f, *args, rounds: int) -> float:
    return race({"f": lambda: [f(*args) for _ in range(QUEUED)][-1]}, rounds)["f"] / 1e3 / QUEUED


def normal(seed: int, *shape: int, dtype) -> jax.Array:
    """Random numbers, from the cheap generator. Not zeros: a chip that multiplies zeros draws less power."""
    return jax.random.normal(jax.random.key(seed, impl="rbg"), shape, dtype)


def bandwidth(dtype, nbytes: int, rounds: int = 5) -> float:
    """Bytes a second: the better of reading an array and writing another, and of reading alone."""
    x = normal(0, nbytes // 2 // jnp.dtype(dtype).itemsize, dtype=dtype)
    copied = 2 * x.nbytes / seconds(jax.jit(lambda x: x + 1), x, rounds=rounds)
    return max(copied, x.nbytes / seconds(jax.jit(jnp.sum), x, rounds=rounds))


def product_rate(b: int, h: int, dtype, nbytes: int, rounds: int = 5) -> float:
    """FLOPs a second of b tokens of width h with an h x h matrix.

    So many of these products at once, each with its own matrix, that ``nbytes`` move and no cache holds them; at most
    65535, a limit of some batched products.
    """
    copies = min(max(1, nbytes // (jnp.dtype(dtype).itemsize * (h * h + 2 * h * b))), 65535)
    x, W = normal(0, copies, b, h, dtype=dtype), normal(1, copies, h, h, dtype=dtype)
    return 2 * copies * b * h * h / seconds(jax.jit(jnp.matmul), x, W, rounds=rounds)


def measure(widths: Sequence[int], tokens: Sequence[int], dtype, nbytes: int, side: int, rounds: int = 5) -> dict:
    """Bandwidth (bytes/s), the rate of one large square product (FLOP/s), and those of all ``tokens`` x ``widths``."""
    return device() | {
        "what": f"products of b tokens of width h with an h x h matrix, {jnp.dtype(dtype).name}",
        "bytes_per_number": jnp.dtype(dtype).itemsize,
        "bandwidth": bandwidth(dtype, nbytes, rounds),
        "peak": product_rate(side, side, dtype, 0, rounds),
        "widths": list(widths),
        "tokens": list(tokens),
        "rates": {str(h): [product_rate(b, h, dtype, nbytes, rounds) for b in tokens] for h in widths},
    }


def layer_ms(chunks: Sequence[int], length: int, width: int, dtype, rounds: int = 5) -> list[float]:
    """Milliseconds of LaCT's chunk form without Muon, forward, apply then update, for each chunk.

    bfloat16 comes in and goes out; the products are in float32, as everywhere in the package.
    """
    q, k, v = (normal(seed, SEQUENCES, length, 1, width, dtype=dtype) for seed in range(3))
    lr = jnp.full((SEQUENCES, length, 1, 3), 1e-3, jnp.float32)
    weights = SwiGLU(*(normal(3 + n, 1, width, width, dtype=jnp.float32) / width**0.5 for n in range(3)))

    @partial(jax.jit, static_argnums=0)
    def run(chunk, *args):
        return lact(*args, chunk=chunk, muon=False, form="chunk")[0]

    return [seconds(partial(run, chunk), q, k, v, lr, weights, rounds=rounds) * 1e3 for chunk in chunks]


if __name__ == "__main__":
    measured = measure(WIDTHS, TOKENS, jnp.bfloat16, NBYTES, SIDE)
    layer = {"sequences": SEQUENCES, "length": LENGTH, "width": WIDTH, "chunks": CHUNKS}
    layer["ms"] = layer_ms(CHUNKS, LENGTH, WIDTH, jnp.bfloat16)
    json.dump(measured | {"layer": layer}, sys.stdout, indent=1)
    print()
