"""The matrix products of a program that JAX has traced, counted without running it."""

import math
from collections.abc import Iterator

import jax


def product_flops(program) -> int:
    """FLOPs of all matrix products of a ``jax.make_jaxpr(f)(...)``: 2 for each pair multiplied and added.

    What a loop does counts as often as it runs (a ``while``, whose end is unknown: once), all branches
    of a choice count, and inside of ``shard_map`` the products of one device. Only ``dot_general`` counts: a ragged
    dot, a convolution and a triangular solve count 0, though they multiply too.
    """
    total = 0
    for eqn in program.eqns:
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += times * sum(product_flops(inner) for inner in _programs(eqn.params))
        if eqn.primitive.name == "dot_general":
            (summed, _), _ = eqn.params["dimension_numbers"]
            length = math.prod(eqn.invars[0].aval.shape[axis] for axis in summed)
            total += 2 * length * eqn.outvars[0].aval.size
    return total


def _programs(params: dict) -> Iterator:
    """Those that an operation carries in its parameters."""
    found = jax.tree.leaves(params, is_leaf=lambda x: hasattr(x, "eqns"))
    return (x for x in found if hasattr(x, "eqns"))
