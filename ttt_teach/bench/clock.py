"""How time and memory are measured."""

import time
from collections.abc import Callable, Mapping

import jax


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


def peak_bytes(f: Callable, *args) -> int:
    """What the compiled f needs: arguments, results and all that it allocates in between."""
    needs = jax.jit(f).lower(*args).compile().memory_analysis()
    return needs.argument_size_in_bytes + needs.output_size_in_bytes + needs.temp_size_in_bytes


def nbytes(tree) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree))
