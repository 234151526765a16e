"""Modules with no parameter at its start value, and one block that learns associative recall."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.nn.test_train import loose
from ttt_teach import nn
from ttt_teach.nn.parts import Linear, rms_norm
from ttt_teach.tasks import recall

DIM, HEADS, NAMES, EVENTS = 16, 2, 8, 32


def off_start(module):
    """The module with noise on every parameter, so that none is tested at 0 or 1 only."""
    leaves, tree = jax.tree.flatten(module)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noise = [0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, [leaf + x for leaf, x in zip(leaves, noise, strict=True)])


class Recaller(eqx.Module):
    """One block between embeddings and a linear map: what is recalled went through its mixer."""

    names: jax.Array
    values: jax.Array  # the last is for a value that is asked for
    block: nn.Block
    norm: eqx.nn.RMSNorm
    out: Linear

    def __init__(self, mixer, key):
        keys = jax.random.split(key, 5)
        self.names, self.values = (jax.random.normal(keys[i], (NAMES + i, DIM)) for i in (0, 1))
        self.block = nn.Block(DIM, mixer(DIM, HEADS, key=keys[2]), 2 * DIM, key=keys[3])
        self.norm, self.out = rms_norm(DIM), Linear(DIM, NAMES, key=keys[4])

    def __call__(self, names, values):
        x, _ = self.block(self.names[names] + self.values[values])
        return self.out(nn.over_last(self.norm, x))


def streams(step, batch=16):
    """Name and value in one token, the value hidden when the name returns. No two steps have the same."""
    tokens, _, asked = recall(jax.random.fold_in(jax.random.key(0), step), batch, 2 * EVENTS, NAMES, 2 * NAMES)
    names, values, asked = tokens[:, ::2], tokens[:, 1::2] - NAMES, asked[:, ::2]
    return names, jnp.where(asked, NAMES, values), values, asked


def loss(model, batch):
    names, shown, values, asked = batch
    each = jnp.take_along_axis(jax.nn.log_softmax(model(names, shown)), values[..., None], axis=-1)
    return -jnp.mean(each[..., 0], where=asked)


def trained(mixer, steps):
    model = nn.cast(Recaller(mixer, jax.random.key(1)), jnp.float32)
    return nn.fit(model, loss, streams, loose(optax.adam(1e-2)), steps, block=steps).model


@eqx.filter_jit
def _answers(model, step):
    names, shown, values, asked = streams(step)
    return model(names, shown), values, asked


def accuracy(model):
    """Of streams that training did not see: how many of the values asked for come first. By chance 1 of 8."""
    scores, values, asked = map(np.asarray, _answers(model, jnp.int32(10**6)))
    return np.mean((scores.argmax(-1) == values)[asked])
