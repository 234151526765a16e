"""The matrix products of a program that JAX has traced, counted without running it."""

import math
from collections.abc import Iterator

import jax


def products(program, times: int = 1) -> Iterator[tuple[int, int, int, int]]:
    """(m, k, n, how often) of every m x k by k x n product of a ``jax.make_jaxpr(f)(...)``.

    What a loop does counts as often as it runs (a ``while``, whose end is unknown: once), all branches
    of a choice count, and inside of ``shard_map`` the products of one device. Only ``dot_general`` counts: a ragged
    dot, a convolution and a triangular solve count 0, though they multiply too.
    """
    for eqn in program.eqns:
        often = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        for inner in _programs(eqn.params):
            yield from products(inner, often)
        if eqn.primitive.name == "dot_general":
            ((summed, _), (batched, _)), (x, y) = eqn.params["dimension_numbers"], (v.aval for v in eqn.invars)
            k, many = (math.prod(x.shape[axis] for axis in axes) for axes in (summed, batched))
            rest = max(k * many, 1)  # of an empty product m or n is 0, whatever it is divided by
            yield x.size // rest, k, y.size // rest, often * many


def product_flops(program) -> int:
    """FLOPs of all of its :func:`products`: 2 for each pair multiplied and added."""
    return sum(2 * m * k * n * times for m, k, n, times in products(program))


def _programs(params: dict) -> Iterator:
    """Those that an operation carries in its parameters."""
    found = jax.tree.leaves(params, is_leaf=lambda x: hasattr(x, "eqns"))
    return (x for x in found if hasattr(x, "eqns"))
