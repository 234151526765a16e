"""Times of Mesa's chunk form against the chunk, as JSON: python -m ttt_teach.bench.chunks > FILE."""

import json
import sys
from functools import partial

import jax
import numpy as np

from ttt_teach import CG, mesa
from ttt_teach.bench.clock import device, race

TOKENS, WIDTH, ROUNDS = 2048, 128, 30
HEADS = (1, 192)
SIZES = (8, 16, 32, 64, 128, 256, 512)


def inputs(heads: int) -> tuple:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, TOKENS, heads, WIDTH)).astype(np.float32) for _ in range(3))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    beta = np.ones((1, TOKENS, heads), np.float32)
    return q, k, v, beta, np.ones((heads, WIDTH), np.float32), np.log(np.float32(0.99)) * beta


def times(heads: int) -> dict[int, float]:
    """Milliseconds of a forward pass for each chunk, the same number of rounds for every token."""

    @partial(jax.jit, static_argnums=0)
    def run(chunk, q, k, v, beta, lam, log_decay):
        solver = CG(max_steps=ROUNDS)
        return mesa(q, k, v, beta, lam, log_decay=log_decay, solver=solver, form="chunk", chunk=chunk)[0]

    arrays = jax.device_put(inputs(heads))
    return race({C: partial(run, C, *arrays) for C in SIZES}, rounds=5)


if __name__ == "__main__":
    measured = device() | {
        "what": "mesa, form chunk, forward, float32, ms",
        "tokens": TOKENS,
        "width": WIDTH,
        "rounds": ROUNDS,
        "chunks": SIZES,
        "ms": {str(heads): [round(ms, 3) for ms in times(heads).values()] for heads in HEADS},
    }
    json.dump(measured, sys.stdout, indent=1)
    print()
