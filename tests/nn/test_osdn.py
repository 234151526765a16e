"""OSDN's layer: what its options change and what they leave alone, its counts, and that it learns to recall."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nn import literal
from tests.nn.helpers import accuracy, off_start, trained
from tests.rules.golden import check_close
from tests.theory.test_costs import counted
from ttt_teach import nn, osdn
from ttt_teach.theory import costs

D, H, K, T = 6, 2, 4, 8
build = functools.partial(nn.OSDN, D, H, head_dim=K, step_size=0.3)
VARIANTS = {
    "osdn": {},
    "1.3B": {"retention": True, "beta_aware": False, "start": "projected"},
    "osgdn": {"forget": "head"},
    "oskda": {"forget": "channel"},
}


@functools.cache
def layer(**options):
    """A learned start reaches beyond the bounds."""
    made = off_start(build(key=jax.random.key(0), **options))
    return made if made.d0 is None else eqx.tree_at(lambda m: m.d0, made, jnp.linspace(0.1, 3.0, H * K).reshape(H, K))


@functools.cache
def inputs():
    return jax.random.normal(jax.random.key(2), (2, T, D))


run = eqx.filter_jit(lambda layer, x, state=None: layer(x, state))


@pytest.mark.parametrize("name", VARIANTS)
def test_transcription(name):
    """1e-9: NumPy's and JAX's exp differ in the last digit."""
    m = layer(**VARIANTS[name])
    y, state = run(m, inputs())
    for found, x in zip(y, inputs(), strict=True):
        check_close(name, found, literal.osdn(m, np.asarray(x)), 1e-9)
    assert np.ptp(state.memory.d) > 0.1  # the scale has learned something to tell


def test_the_variants_differ():
    outputs = [run(layer(**options), inputs())[0] for options in VARIANTS.values()]
    outputs.append(run(layer(beta_aware=False), inputs())[0])
    for i, y in enumerate(outputs):
        assert all(np.abs(y - other).max() > 1e-3 for other in outputs[:i])


def test_without_a_step_it_is_deltanet():
    """The same parameters, to the bit the same start: two layers in one."""
    m = layer(step_size=0.0)
    delta = nn.DeltaNet(D, H, head_dim=K, gated=False, key=jax.random.key(0))
    delta = jax.tree.unflatten(jax.tree.structure(delta), jax.tree.leaves(m))
    check_close("y", run(m, inputs())[0], run(delta, inputs())[0], 1e-13)


def test_the_scale_of_1_3B_does_not_see_beta():
    moved = lambda m: eqx.tree_at(lambda m: m.input_gate.bias, m, m.input_gate.bias + 1)  # noqa: E731
    for aware in (True, False):
        m = layer(beta_aware=aware)
        (_, one), (_, other) = run(m, inputs()), run(moved(m), inputs())
        assert np.array_equal(one.memory.d, other.memory.d) == (not aware)
        assert np.abs(one.memory.S - other.memory.S).max() > 1e-2  # the memory writes with it


@pytest.mark.parametrize("forget", ["head", "channel"])
def test_a_forget_gate_leaves_the_scale_alone(forget):
    m = layer(forget=forget)
    shut = eqx.tree_at(lambda m: m.forget_gate.bias, m, m.forget_gate.bias - 3)
    (_, one), (_, other) = run(m, inputs()), run(shut, inputs())
    np.testing.assert_array_equal(one.memory.d, other.memory.d)
    assert np.abs(one.memory.S - other.memory.S).max() > 1e-2


def test_forget_gates_begin_alike_per_head_and_per_channel():
    """And a gate that is the same in all channels of a head is that of OSGDN."""
    head, channel = (build(forget=forget, key=jax.random.key(0)) for forget in ("head", "channel"))
    np.testing.assert_array_equal(channel.forget_gate.bias, np.repeat(head.forget_gate.bias, K))
    repeated = jax.tree.map(lambda x: jnp.repeat(x, K, axis=-1), head.forget_gate)
    channel = eqx.tree_at(lambda m: m.forget_gate, channel, repeated)
    check_close("y", run(channel, inputs())[0], run(head, inputs())[0], 1e-13)


def test_the_start_scale():
    """Projected on the bounds, where what is outside has no slope, or not."""
    wild = jnp.array([[0.1, 0.5, 2.0, 3.0]] * H)
    for start, wanted in {"projected": np.clip(wild, 0.5, 2.0), "free": wild}.items():
        new = build(start=start, key=jax.random.key(0))
        np.testing.assert_array_equal(new.start_scale, 1)
        m = eqx.tree_at(lambda m: m.d0, new, wild)
        np.testing.assert_array_equal(m.start_scale, wanted)
        slope = jax.grad(lambda m: jnp.sum(m.start_scale))(m).d0
        np.testing.assert_array_equal(slope, wild == wanted)
    assert build(key=jax.random.key(0)).start_scale is None


def test_a_free_start_beyond_the_bounds_lasts_for_one_write():
    """Eq. 4 projects every scale that comes after it: what the paper's D_0* can do beyond D_0."""
    far = jnp.full((H, K), 5.0)
    free, projected = (
        eqx.tree_at(lambda m: m.d0, layer(start=start, step_size=0.0), far) for start in ("free", "projected")
    )
    x = inputs()[:, :1]
    np.testing.assert_array_equal(run(free, x)[1].memory.d, 2.0)
    check_close("one write", run(free, x)[1].memory.S, 2.5 * run(projected, x)[1].memory.S, 1e-13)


def test_retention_pulls_the_scale_to_its_lower_bound():
    """To 0, not to 1: with the retention at the start and the paper's step, d is at 0.5 after 800 tokens."""
    m = nn.OSDN(D, H, head_dim=K, retention=True, key=jax.random.key(0))
    np.testing.assert_allclose(jax.nn.sigmoid(m.retention_gate.bias), 0.999, rtol=1e-12)
    m = eqx.tree_at(lambda m: m.retention_gate.weight, m, jnp.zeros((D, H)))
    x = jax.random.normal(jax.random.key(4), (1, 800, D))
    assert run(m, x)[1].memory.d.min() == 0.5


def test_float32():
    """Layer and state stay in it, and where a retention rounds to 1 all gradients are finite."""
    m = nn.cast(layer(**VARIANTS["1.3B"]), jnp.float32)
    m = eqx.tree_at(lambda m: m.retention_gate.bias, m, jnp.full(H, 40.0, jnp.float32))

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def slopes(m):
        y, state = m(inputs().astype(jnp.float32))
        return jnp.sum(y**2), (y, state)

    leaves = jax.tree.leaves(slopes(m))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
    assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_what_it_trains():
    """Against the count by hand; APF takes H (dim + 1) more, as the paper says."""

    def numbers(**options):
        make = functools.partial(nn.OSDN, 96, 3, head_dim=16, conv=3, **options)
        return nn.parameters(eqx.filter_eval_shape(lambda key: make(key=key), jax.random.key(0)))

    plain = numbers()
    assert plain == 4 * 96 * 48 + 3 * 3 * 48 + (96 * 3 + 3) + 16
    assert numbers(retention=True) - plain == 3 * (96 + 1)
    assert numbers(start="free") - plain == numbers(start="projected") - plain == 3 * 16
    assert numbers(forget="head") - plain == 3 * (96 + 1)
    assert numbers(forget="channel") - plain == 48 * (96 + 1)
    for options in ({}, {"retention": True, "start": "projected"}, {"forget": "head"}, {"forget": "channel"}):
        assert numbers(**options) == costs.osdn_parameters(96, 3, 16, 3, **options)


@pytest.mark.parametrize(("layers", "heads", "without", "beside"), [(24, 8, 6.0, 6.047), (24, 16, 12.0, 12.094)])
def test_what_it_keeps(layers, heads, without, beside):
    """MiB in bfloat16 of the 340M and the 1.3B model (Tables 19-20), and 0.78 percent more, not 0.05."""

    def state(make):
        layer = eqx.filter_eval_shape(lambda key: make(64, heads, key=key), jax.random.key(0))
        memory = eqx.filter_eval_shape(lambda layer: layer(jnp.zeros((1, 0, 64)))[1].memory, layer)
        return sum(leaf.size for leaf in jax.tree.leaves(memory))

    delta, osdn = (layers * state(make) * 2 / 2**20 for make in (nn.DeltaNet, nn.OSDN))
    assert delta == without and round(osdn, 3) == beside
    assert osdn / delta - 1 == 1 / 128
    assert costs.osdn(128, 128).state * heads * layers * 2 / 2**20 == osdn


def test_its_arithmetic_is_the_delta_rules():
    """The scale costs vectors alone; beta is multiplied into the outer product here, one more for every entry."""
    K, V = 32, 16
    rule = lambda q, k, v, beta, log_decay, lam: osdn(q, k, v, beta, log_decay=log_decay, form="recurrent")  # noqa: E731
    assert counted(rule, K, V) == costs.osdn(K, V).flops + K * V == costs.delta(K, V).flops + K * V


def test_it_learns_to_recall():
    """Name and value are one token here, so a wider convolution would only have to be unlearned first."""
    make = functools.partial(nn.OSDN, head_dim=16, conv=1, retention=True, start="projected", step_size=0.03)
    assert accuracy(trained(make, steps=120)) > 0.95


def test_in_a_language_model():
    """State and logits of a model with it; shapes only."""
    mixers = [functools.partial(nn.OSDN, D, H, head_dim=K), functools.partial(nn.Hawk, D, D)]
    model = eqx.filter_eval_shape(lambda key: nn.backbone(5, D, mixers, mlp_width=8, key=key), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((2, 7), jnp.int32)
    logits, state = eqx.filter_eval_shape(lambda m, tokens: m(tokens), model, tokens)
    assert logits.shape == (2, 7, 5) and state[0].memory.d.shape == (2, H, K)
    _, after = eqx.filter_eval_shape(lambda m, tokens, state: m(tokens, state), model, tokens, state)
    assert jax.tree.map(lambda x: x.shape, after) == jax.tree.map(lambda x: x.shape, state)


def test_bad_arguments():
    key = jax.random.key(0)
    for message, options in {
        "forget is True; expected one of None, 'head', 'channel'": {"forget": True},
        "start is 'zeros'; expected one of 'ones', 'projected', 'free'": {"start": "zeros"},
        "retention is 0.999; expected True or False": {"retention": 0.999},
        "beta_aware is 1; expected True or False": {"beta_aware": 1},
        "step_size holds -1; expected step_size >= 0": {"step_size": -1.0},
        "bounds is 2; expected two numbers (lo, hi)": {"bounds": 2},
        "bounds holds 0.5; expected hi >= lo, which is 2": {"bounds": (2.0, 0.5)},
        "head_dim is 0; expected a whole number >= 1": {"head_dim": 0},
    }.items():
        with pytest.raises(ValueError) as error:
            nn.OSDN(D, H, key=key, **options)
        assert message in str(error.value)
    with pytest.raises(ValueError, match="x has dtype float32; expected float64"):
        layer()(inputs().astype(jnp.float32))
    with pytest.raises(ValueError, match="expected FastWeightsState"):
        layer()(inputs(), run(layer(), inputs())[1].memory)
