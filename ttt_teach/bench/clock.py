"""How time and memory are measured."""

import datetime
import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp


def device() -> dict:
    """What was measured on, and when."""
    return {
        "date": datetime.date.today().isoformat(),
        "device": jax.devices()[0].device_kind,
        "cores": cores(),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def race(runs: Mapping[str, Callable], rounds: int = 7) -> dict[str, float]:
    """Milliseconds of each run: the least of so many rounds, as what disturbs only ever adds.

    One after the other, not in turn: what one has left behind in the allocator slows the first round of the next.
    """
    best = dict.fromkeys(runs, float("inf"))
    for name, run in runs.items():
        jax.block_until_ready(run())  # compiles
        for _ in range(rounds):
            start = time.perf_counter()
            jax.block_until_ready(run())
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def cores() -> int:
    return len(os.sched_getaffinity(0))


class Turn(NamedTuple):
    """Milliseconds of each of several calls in a row, and for how many of them the host was busy to start it."""

    ms: float
    host: float


def queued(run: Callable, calls: int) -> Turn:
    """So many calls of a JAX function, the last one waited for: the device computes while the next ones are started."""
    start = time.perf_counter()
    for _ in range(calls):
        last = run()
    started = time.perf_counter()
    jax.block_until_ready(last)
    return Turn(1e3 * (time.perf_counter() - start) / calls, 1e3 * (started - start) / calls)


def in_turn(timed: Mapping[str, Callable[[int], Turn]], rounds: int, ms: float, most: int) -> dict[str, list[Turn]]:
    """Every contestant once a round, forwards and then backwards, so that what drifts is in both parts of a ratio.

    A turn is of so many calls that it takes about ``ms``, at most ``most``: those that JAX starts without waiting.
    """
    calls = {name: min(max(1, round(ms / max(time(2).ms, 1e-3))), most) for name, time in timed.items()}
    turns = {name: [] for name in timed}
    for i in range(rounds):
        for name in list(timed)[:: 1 if i % 2 == 0 else -1]:
            turns[name].append(timed[name](calls[name]))
    return turns


def gradient(rule: Callable) -> Callable:
    """Of the sum of the squared outputs, in every argument."""
    return jax.jit(jax.grad(lambda args: jnp.sum(jnp.square(rule(**args)[0]))))


def memory(f: Callable, args, kept: int) -> float:
    """Arguments, results and temporaries of a jitted f without ``kept`` bytes, in sizes of the arguments."""
    needs = f.lower(args).compile().memory_analysis()
    everything = needs.argument_size_in_bytes + needs.output_size_in_bytes + needs.temp_size_in_bytes
    return (everything - kept) / nbytes(args)


def nbytes(tree) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree))
