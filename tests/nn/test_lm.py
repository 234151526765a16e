"""Blocks and language models: wiring against NumPy, tied embeddings, decoding, counts."""

import functools
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nn import literal
from tests.rules.golden import check_close
from ttt_teach import nn
from ttt_teach.solvers import CG

VOCAB, D, H, K = 7, 6, 2, 4


@functools.cache
def model():
    return nn.hawk_mesa(VOCAB, D, H, 2, head_dim=K, width=5, solver=CG(3 * K), mlp_width=8, key=jax.random.key(0))


@functools.cache
def tokens():
    return jax.random.randint(jax.random.key(1), (2, 8), 0, VOCAB)


call = eqx.filter_jit(lambda model, tokens, state: model(tokens, state))


def test_transcription():
    m = model()
    rules = [
        literal.hawk,
        lambda layer, x: literal.fast_weights(layer, x, literal.mesa(np.asarray(layer.lam)), decay_floor=0.9975),
    ]
    logits, _ = call(m, tokens(), None)
    for found, row in zip(logits, np.asarray(tokens()), strict=True):
        x = np.asarray(m.embedding)[row]
        for block, rule in zip(m.blocks, rules, strict=True):
            x = x + rule(block.mixer, literal.rms_norm(block.mixer_norm, x))
            y = literal.rms_norm(block.mlp_norm, x)
            up = literal.silu(literal.affine(block.mlp.gate, y)) * literal.affine(block.mlp.up, y)
            x = x + literal.affine(block.mlp.down, up)
        check_close("logits", found, literal.rms_norm(m.norm, x) @ np.asarray(m.embedding).T, 1e-9)


def test_decoding_is_prefill():
    """No token, a prefill of 3, and the rest token by token in one compiled loop, round which only a state of constant
    size can go."""
    m = model()
    wanted, end = call(m, tokens(), None)

    @eqx.filter_jit
    def decode(m, start, rest):
        def read(state, token):
            logits, state = m(token[:, None], state)
            return state, logits[:, 0]

        return jax.lax.scan(read, start, rest.T)

    _, state = call(m, tokens()[:, :0], None)
    first, state = call(m, tokens()[:, :3], state)
    check_close("prefill", first, wanted[:, :3], 1e-12)
    state, logits = decode(m, state, tokens()[:, 3:])
    check_close("decoded", logits.swapaxes(0, 1), wanted[:, 3:], 1e-12)
    for found, last in zip(jax.tree.leaves(state), jax.tree.leaves(end), strict=True):
        check_close("state", found, last, 1e-12)


def test_embedding_is_tied():
    """One array: it is used twice, and it gets the sum of both gradients."""
    m = nn.hawk(VOCAB, D, 1, width=5, mlp_width=8, key=jax.random.key(0))
    assert nn.parameters(m) == nn.parameters(m.blocks) + VOCAB * D + D

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def two_arrays(enter, leave):
        x, _ = m.blocks[0](enter[tokens()])
        return jnp.sum(jnp.sin(nn.over_last(m.norm, x) @ leave.T))

    @jax.jit
    @jax.grad
    def one_array(embedding):
        return jnp.sum(jnp.sin(eqx.tree_at(lambda m: m.embedding, m, embedding)(tokens())[0]))

    split = two_arrays(m.embedding, m.embedding)
    check_close("d embedding", one_array(m.embedding), sum(split), 1e-12)
    assert all(np.abs(part).max() > 1e-3 for part in split)


def test_repeated_tokens_have_finite_gradients():
    """Also in float32, where the embedding is zero, and a signed gate with it."""
    mixer = functools.partial(nn.GLA, D, H, head_dim=K, negative_decay=True)
    m = nn.cast(nn.backbone(VOCAB, D, [mixer], mlp_width=8, key=jax.random.key(0)), jnp.float32)
    m = eqx.tree_at(lambda m: m.embedding, m, m.embedding.at[0].set(0))
    loss = jax.jit(jax.grad(lambda m, tokens: jnp.sum(m(tokens)[0] ** 2)))
    for token in (0, 3):
        for leaf in jax.tree.leaves(loss(m, jnp.full((1, 8), token))):
            assert leaf.dtype == jnp.float32 and np.isfinite(leaf).all()


@pytest.mark.parametrize(("size", "millions"), [("140M", 146.2), ("440M", 434.0), ("940M", 937.7)])
def test_sizes_of_the_paper(size, millions):
    """With an MLP of three times the embedding size the counts are those of the three names; no number is allocated."""
    depth, heads, dim = nn.SIZES[size]
    shape = eqx.filter_eval_shape(
        lambda key: nn.mesanet(nn.VOCAB, dim, heads, depth, mlp_width=3 * dim, key=key), jax.random.key(0)
    )
    width = heads * 128
    mixer = 4 * dim * width + 4 * 3 * width + 2 * (dim * heads + heads) + heads * 128 + 128
    by_hand = nn.VOCAB * dim + depth * (mixer + 3 * dim * 3 * dim + 2 * dim) + dim
    assert nn.parameters(shape) == by_hand
    assert round(by_hand / 1e6, 1) == millions
    assert abs(by_hand / 1e6 / int(size[:-1]) - 1) < 0.05


def test_builders():
    def shape(build, *args, **options):
        options = {"mlp_width": 8} | options
        return eqx.filter_eval_shape(lambda key: build(VOCAB, D, *args, key=key, **options), jax.random.key(0))

    both = shape(nn.hawk_mesa, H, 3, head_dim=K, solver=CG(5))
    assert [type(block.mixer) for block in both.blocks] == [nn.Hawk, nn.Mesa, nn.Hawk]
    assert both.blocks[1].mixer.solver == CG(5)
    assert both.blocks[0].mixer.retention.shape == (D,)
    assert [block.mixer.retention.shape for block in shape(nn.hawk, 2, width=9).blocks] == [(9,), (9,)]
    assert [block.mixer.lam_min for block in shape(nn.mesanet, H, 2, lam_min=0.5).blocks] == [0.5, 0.5]


def test_start():
    """Deterministic, no two layers alike, and every product keeps the variance of what comes in."""
    one, again = (nn.hawk(VOCAB, D, 2, width=5, mlp_width=8, key=jax.random.key(7)) for _ in range(2))
    assert eqx.tree_equal(one, again)
    assert not np.array_equal(*(block.mixer.out.weight for block in one.blocks))
    mlp = nn.MLP(200, 500, key=jax.random.key(0))
    for linear, inputs in ((mlp.gate, 200), (mlp.up, 200), (mlp.down, 500)):
        np.testing.assert_allclose(np.std(linear.weight) * inputs**0.5, 1, atol=0.01)


def test_bad_arguments():
    m = model()
    for message, call in {
        "tokens is int64 of shape [3]; expected integers [B, T]": lambda: m(jnp.arange(3)),
        "tokens is float64 of shape [1, 2]; expected integers [B, T]": lambda: m(jnp.zeros((1, 2))),
        "tokens holds 7; expected 0 <= token < 7, the vocabulary": lambda: m(jnp.array([[0, VOCAB]])),
        "tokens holds -1": lambda: m(np.array([[-1]])),
        "state has 1 entries; expected one for each of the 2 blocks": lambda: m(tokens(), (None,)),
        "depth is 0; expected a whole number >= 1": lambda: nn.hawk(5, 4, 0, mlp_width=4, key=jax.random.key(0)),
        "vocab is 0; expected a whole number >= 1": lambda: nn.hawk(0, 4, 1, mlp_width=4, key=jax.random.key(0)),
    }.items():
        with pytest.raises(ValueError) as error:
            call()
        assert message in str(error.value)


def test_the_package_does_not_import_it():
    """Rules alone need neither Equinox nor Optax, which take a second to import."""
    code = "import sys, ttt_teach; sys.exit(any(m in sys.modules for m in ('ttt_teach.nn', 'equinox', 'optax')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
