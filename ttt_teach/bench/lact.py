"""LaCT has no recurrence to race; what counts is how much more its gradient costs than its output."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ttt_teach import SwiGLU, lact
from ttt_teach.bench.clock import gradient, memory, nbytes, race
from ttt_teach.tasks import unit

B, T, H, CHUNK = 1, 4096, 2, 512


def arguments(D: int) -> dict:
    """Unit queries and keys, rates near the paper's 0.001 to 0.01; float32."""
    rng = np.random.default_rng(0)
    drawn = {
        "q": unit(rng.normal(size=(B, T, H, D))),
        "k": unit(rng.normal(size=(B, T, H, D))),
        "v": rng.normal(size=(B, T, H, D)),
        "lr": rng.uniform(1e-3, 1e-2, (B, T, H, 3)),
        "weights": SwiGLU(*rng.normal(size=(3, H, D, D)) / np.sqrt(D)),
    }
    return jax.tree.map(partial(jnp.asarray, dtype=jnp.float32), drawn)


def rows() -> Iterator[str]:
    """LaCT in chunks of 512, B 1, T 4096, H 2, hidden width = width, float32: ms, least of seven"""
    yield f"{'width':8}{'muon':6}{'output':>10}{'gradient':>10}{'ratio':>8}{'memory of gradient*':>22}"
    for D in (64, 128):
        for muon in (False, True):
            yield f"{D:<8}{'yes' if muon else 'no':6}{row(arguments(D), muon)}"
    yield "* arguments, results and temporaries, in sizes of the inputs, without the fast weights kept"


def row(args: dict, muon: bool) -> str:
    run = partial(lact, chunk=CHUNK, muon=muon)
    output = jax.jit(lambda args: run(**args))
    slope = gradient(run)
    took = race({"output": partial(output, args), "gradient": partial(slope, args)})
    lean = memory(slope, args, nbytes(args["weights"]) * T // CHUNK)
    return f"{took['output']:10.1f}{took['gradient']:10.1f}{took['gradient'] / took['output']:8.2f}{lean:22.1f}"
