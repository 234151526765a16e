"""Run by test_lact_sharded.py in a Python of its own, whose processor passes for eight devices; prints JSON."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from ttt_teach.rules.lact import SwiGLU, lact
from ttt_teach.rules.lact.sharded import sharded

jax.config.update("jax_enable_x64", True)
B, N, C, H, K, V, M = 2, 3, 8, 4, 4, 3, 5
SPLITS = {
    "tokens": ((8,), {"tokens": "tokens"}),
    "heads": ((1, 4), {"heads": "heads"}),
    "both": ((2, 4), {"tokens": "tokens", "heads": "heads"}),
    "both, explicit": ((2, 4), {"tokens": "tokens", "heads": "heads"}),
}


def arguments():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, B, N, C, H, K))
    v = rng.normal(size=(B, N, C, H, V))
    rates, momentum = rng.uniform(0.1, 1, (B, N, C, H, 3)), rng.uniform(0.1, 0.9, (B, N, C, H))
    return q, k, v, rates, SwiGLU(*(rng.normal(size=(H, *size)) for size in ((M, K), (M, K), (V, M)))), momentum


def off(x, y):
    return max(
        float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max())
        for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    )


def whole(q, k, v, lr, W, momentum):
    """On one device, by the definition."""
    flat = (x.reshape(B, N * C, *x.shape[3:]) for x in (q, k, v, lr))
    o, state = lact(*flat, W, momentum=momentum.reshape(B, N * C, H), chunk=C, form="definition")
    return o.reshape(v.shape), state.weights


def slopes(f, given):
    """The gradients, and what they are those of."""

    def total(given):
        o, W = f(*given)
        return jnp.sum(jnp.sin(o)) + sum(jnp.sum(jnp.cos(w)) for w in W), (o, W)

    return jax.jit(jax.grad(total, has_aux=True))(given)


given = arguments()
right_slopes, right = slopes(whole, given)
found = {}
for name, (sizes, split) in SPLITS.items():
    axes = ("tokens", "heads")[: len(sizes)]
    mesh = Mesh(np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes), axes)
    if "explicit" in name:  # what jax.make_mesh gives unasked; JAX then wants to be told where each array lies
        mesh = jax.make_mesh(sizes, axes)
        assert AxisType.Explicit in mesh.axis_types

    def run(q, k, v, lr, W, momentum, mesh=mesh, split=split):
        return sharded(q, k, v, lr, W, momentum=momentum, mesh=mesh, **split)

    found[name] = off(run(*given), right)
found["gradients of both"] = off(slopes(run, given)[0], right_slopes)  # the last mesh has both kinds of axes
print(json.dumps(found))
