"""The count against products that are counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ttt_teach.theory.counting import product_flops

x, y = jax.ShapeDtypeStruct((7, 5), "float32"), jax.ShapeDtypeStruct((5, 3), "float32")
ONE = 2 * 7 * 5 * 3

PROGRAMS = {
    "a product": (lambda x, y: x @ y, ONE),
    "no product": (lambda x, y: x.sum() + y.sum(), 0),
    "under jit": (lambda x, y: jax.jit(jnp.matmul)(x, y), ONE),
    "in a loop": (lambda x, y: jax.lax.scan(lambda c, _: (c, x @ y), 0, length=4), 4 * ONE),
    "both branches": (lambda x, y: jax.lax.cond(x[0, 0] > 0, lambda: x @ y, lambda: 2 * (x @ y)), 2 * ONE),
    "over a batch": (lambda x, y: jax.vmap(lambda x: x @ y)(jnp.stack([x, x])), 2 * ONE),
    "a ragged dot, left out": (lambda x, y: jax.lax.ragged_dot(x, y[None], jnp.array([7])), 0),
    "a solve, left out": (lambda x, y: jax.scipy.linalg.solve_triangular(x[:5], y, lower=True), 0),
    "a convolution, left out": (lambda x, y: jnp.convolve(x[0], y[:, 0]), 0),
    "of a gradient": (lambda x, y: jax.grad(lambda x, y: (x @ y).sum(), argnums=(0, 1))(x, y), 3 * ONE),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_every_product(name):
    f, flops = PROGRAMS[name]
    assert product_flops(jax.make_jaxpr(f)(x, y)) == flops


def test_counts_what_one_device_does():
    mesh = Mesh(np.array(jax.devices()[:1]), ("devices",))
    split = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(P("devices"), P()), out_specs=P("devices"))
    assert product_flops(jax.make_jaxpr(split)(x, y)) == ONE
