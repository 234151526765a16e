"""LaCT's layer: the authors' layer by their numbers, what sees what, its counts, and that it learns to recall."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nn import literal
from tests.nn.helpers import accuracy, off_start, trained
from tests.rules import golden
from tests.rules.golden import check_close
from tests.rules.test_lact import CASES, SETTINGS
from ttt_teach import SwiGLU, nn
from ttt_teach.nn.lact import LowRank
from ttt_teach.nn.parts import inverse_softplus
from ttt_teach.solvers.newton_schulz import CONST5
from ttt_teach.theory import costs

D, H, K, T = 6, 2, 4, 10
build = functools.partial(nn.LaCT, D, H, head_dim=K)
VARIANTS = {
    "muon": {"chunk": 4, "rank": 2},
    "plain": {"chunk": 3, "rank": None, "muon": False, "momentum": False, "rate": 0.1, "hidden": 5},
    "other steps": {"chunk": 4, "window": 2, "muon": CONST5, "momentum": False, "hidden": 3, "rank": 1},
}


@functools.cache
def layer(name):
    return off_start(build(key=jax.random.key(0), **VARIANTS[name]))


@functools.cache
def inputs():
    return jax.random.normal(jax.random.key(2), (2, T, D))


run = eqx.filter_jit(lambda layer, x, state=None: layer(x, state))


@pytest.mark.parametrize("name", VARIANTS)
def test_transcription(name):
    """1e-9: NumPy's and JAX's exp differ in the last digit, and Muon makes more of it."""
    m = layer(name)
    for found, x in zip(run(m, inputs())[0], inputs(), strict=True):
        check_close(name, found, literal.lact(m, np.asarray(x)), 1e-9)


# --- the authors' layer of the language models


def from_the_authors(params, name):
    """Their parameters, linear maps as [out, in], rates in the order gate, out, up."""
    s = SETTINGS[name]
    p = lambda name: params[f"param.{name}"]  # noqa: E731
    heads, head_dim = s["dim"] // s["ttt_head_dim"], s["ttt_head_dim"]
    m = nn.LaCT(
        s["dim"],
        heads,
        head_dim=head_dim,
        hidden=s["inter_multi"] * head_dim,
        attention_heads=s["dim"] // s["attn_head_dim"],
        chunk=s["chunk"],
        window=s["window"],
        rank=s["w0_w2_low_rank"],
        key=jax.random.key(0),
    )

    def linear(name, rows=slice(None), shift=0.0):
        bias = p(f"{name}.bias")[rows] + shift if f"param.{name}.bias" in params else None
        made = nn.parts.Linear(1, 1, bias=bias is not None, key=jax.random.key(0))
        made = eqx.tree_at(lambda m: m.weight, made, p(f"{name}.weight")[rows].T)
        return made if bias is None else eqx.tree_at(lambda m: m.bias, made, bias)

    def low_rank(name):
        made = LowRank(1, 1, 1, 1, key=jax.random.key(0))
        return eqx.tree_at(lambda m: (m.left, m.right), made, (p(f"{name}.w_left"), p(f"{name}.w_right")))

    norm = eqx.nn.RMSNorm(head_dim, eps=1e-5, use_bias=False)
    rates = np.array([[3 * h, 3 * h + 2, 3 * h + 1] for h in range(heads)]).ravel()
    parts = {
        "project": linear("qkv"),
        "scale": p("qk_scale").T,
        "shift": p("qk_offset").T,
        "rates": linear("lr_proj", rates, inverse_softplus(s["base_lr"])),
        "momentum_gate": linear("momentum_proj.0"),
        "weights": SwiGLU(low_rank("w0"), low_rank("w2"), p("w1")),
        "norm": eqx.tree_at(lambda norm: norm.weight, norm, p("ttt_norm.weight")),
        "gate": linear("ttt_scale_proj"),
        "out": linear("o_proj"),
    }
    assert len(jax.tree.leaves(parts)) == len(params)  # every one is used
    return eqx.tree_at(lambda m: tuple(getattr(m, part) for part in parts), m, tuple(parts.values()))


@pytest.mark.parametrize("name", ["layer_llm_rope_lowrank", "layer_llm_rope_lowrank_b2"])
def test_it_is_the_authors_layer(name, monkeypatch):
    """Output, and the gradient in the input and in all parameters, with their guards, 1e-5 at lengths and in norms."""
    guarded = lambda x: x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-5)  # noqa: E731
    monkeypatch.setattr("ttt_teach.nn.lact.unit", guarded)
    case = CASES[name]
    params = {n: jnp.asarray(x) for n, x in case.items() if n.startswith("param.")}

    def loss(params, x):
        y, _ = from_the_authors(params, name)(x)
        return jnp.sum(y * case["ct"]), y

    (slopes, dx), y = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, jnp.asarray(case["x"]))
    golden.check_close("y", y, case["y"], 1e-10)
    golden.check_close("dx", dx, case["grad_x"], 1e-8)
    for n, slope in slopes.items():
        golden.check_close(n, slope, case[f"grad{n}"], 1e-8)


# --- what sees what


def seen(m):
    """[t, s]: whether the output at t changes, in any bit, with the input at s."""
    moved = np.asarray(inputs()[0]) + np.eye(T)[:, :, None]
    y = np.asarray(run(m, inputs())[0][0])
    pairs = moved.reshape(T // 2, *inputs().shape)  # of the shape that other tests have compiled
    return (np.concatenate([run(m, pair)[0] for pair in pairs]) != y).any(-1).T


@pytest.mark.parametrize("name", ["muon", "plain"])
def test_the_memory_sees_the_chunks_before_and_the_window_the_rest(name):
    """Without a window longer than the token itself, nothing of the chunk a token is in."""
    options = VARIANTS[name]
    t, s = np.arange(T)[:, None], np.arange(T)[None]
    C = options["chunk"]
    alone = jax.tree.unflatten(
        jax.tree.structure(build(key=jax.random.key(0), **options | {"window": 1})), jax.tree.leaves(layer(name))
    )
    np.testing.assert_array_equal(seen(alone), (s == t) | (s // C < t // C))
    np.testing.assert_array_equal(seen(layer(name)), s <= t)


def test_without_its_gate_it_is_window_attention():
    m = layer("muon")
    m = eqx.tree_at(lambda m: m.gate, m, jax.tree.map(jnp.zeros_like, m.gate))
    window = nn.Attention(D, H, head_dim=K, window=4, key=jax.random.key(0))
    window = eqx.tree_at(lambda m: (m.project, m.out), window, (m.project, m.out))
    check_close("y", run(m, inputs())[0], run(window, inputs())[0], 1e-13)


def test_decoding_in_a_compiled_loop_is_prefill():
    """From a state whose window is full its size is constant. The loop begins and ends within a chunk."""
    m, x = layer("muon"), inputs()
    wanted, end = run(m, x)
    first, state = run(m, x[:, :5])

    @eqx.filter_jit
    def decode(m, state, rest):
        def read(state, token):
            y, state = m(token[:, None], state)
            return state, y[:, 0]

        return jax.lax.scan(read, state, rest.swapaxes(0, 1))

    state, y = decode(m, state, x[:, 5:])
    check_close("y", jnp.concatenate([first, y.swapaxes(0, 1)], axis=1), wanted, 1e-12)
    for found, last in zip(jax.tree.leaves(state), jax.tree.leaves(end), strict=True):
        check_close("state", found, last, 1e-12)


# --- start and sizes


def test_the_start():
    """Low rank but for the half of the identity; rates as asked; scale and shift do nothing yet."""
    m = build(hidden=7, rank=2, rate=0.02, key=jax.random.key(0))
    for w in (m.start.gate, m.start.up):
        assert w.shape == (H, 7, K)
        assert (np.linalg.matrix_rank(np.asarray(w) - 0.5 * np.eye(7, K)) == 2).all()
    assert m.start.out.shape == (H, K, 7)
    np.testing.assert_allclose(np.log1p(np.exp(m.rates.bias)), 0.02, rtol=1e-12)
    assert (m.scale == 1).all() and not m.shift.any()
    big = LowRank(1, 64, 64, 16, key=jax.random.key(0))
    np.testing.assert_allclose(np.std(np.asarray(big.left) @ np.asarray(big.right)) * 8, 1, atol=0.1)


def test_what_the_memory_gets():
    """Unit keys, positive rates, and a momentum that stays within (0, 1): in float32 sigmoid(17) is 1."""
    pieces = eqx.filter_jit(lambda m, x: m.pieces(x, *jnp.split(m.project(x), 3, axis=-1), jnp.int32(3)))
    m, x = nn.cast(layer("muon"), jnp.float32), inputs().astype(jnp.float32)
    for z in (-100, 0, 100):
        q, k, _, lr, momentum = pieces(eqx.tree_at(lambda m: m.momentum_gate.bias, m, jnp.full(H, z, jnp.float32)), x)
        for y in (q, k):
            np.testing.assert_allclose(np.linalg.norm(y, axis=-1), 1, rtol=1e-6)
        assert lr.shape == (2, T, H, 3) and (lr > 0).all()
        assert momentum.dtype == jnp.float32 and ((momentum > 0) & (momentum < 1)).all()


def test_float32():
    """Layer and memory stay in it, and all gradients are finite, also where all tokens are zero."""
    m = nn.cast(layer("muon"), jnp.float32)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def slopes(m, x):
        y, state = m(x)
        return jnp.sum(y**2), (y, state.memory.weights)

    for x in (inputs(), 0 * inputs()):
        leaves = jax.tree.leaves(slopes(m, x.astype(jnp.float32)))
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
        assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_what_it_trains_and_keeps():
    """Against the count by hand, and the paper's 3 r d^2 / n_h fast weights."""

    def shape(**options):
        make = functools.partial(nn.LaCT, 96, 3, head_dim=32, chunk=8, **options)
        return eqx.filter_eval_shape(lambda key: make(key=key), jax.random.key(0))

    maps, per_head = 4 * 96 * 96 + 4 * 96 + 32, 96 * 3 + 3
    assert nn.parameters(shape(rank=5)) == maps + 5 * per_head + 3 * (4 * 5 * 32 + 32 * 32)
    for options in ({}, {"rank": None}, {"hidden": 64, "rank": 7}, {"momentum": False, "rank": 4}):
        assert nn.parameters(shape(**options)) == costs.lact_parameters(96, 3, 32, **options)
    m = shape(hidden=64)
    _, state = eqx.filter_eval_shape(lambda m: m(jnp.zeros((1, 20, 96))), m)
    assert sum(w.size for w in state.memory.weights) == costs.lact_state(96, 3, 2) == 3 * 2 * 96**2 // 3
    assert state.window.k.shape == (1, 7, 3, 32)


def test_low_rank_saves_parameters_and_no_state():
    """At the 3B model's d and the 2304 d numbers of Table 3, rank 32 trains 39 percent as many as are written into."""
    d, heads = 3072, 4
    assert costs.lact_state(d, heads) == 2304 * d
    low, whole = (costs.lact_parameters(d, heads, 768, rank=rank) for rank in (32, None))
    trained = costs.lact_state(d, heads) - (whole - low)
    assert round(trained / costs.lact_state(d, heads), 2) == 0.39


def test_it_learns_to_recall():
    """Chunks and a window of 4 in streams of 32: most of what is asked for has left the window. Without the memory's
    part of the output a trained layer finds little more than chance, 1 of 8."""
    make = functools.partial(nn.LaCT, head_dim=16, chunk=4, rank=4, muon=False, momentum=False, rate=0.3)
    model = trained(make, steps=160)
    assert accuracy(model) > 0.95
    gate = lambda model: model.block.mixer.gate  # noqa: E731
    assert accuracy(eqx.tree_at(gate, model, jax.tree.map(jnp.zeros_like, gate(model)))) < 0.35


def test_in_a_language_model():
    """State and logits of a model with it; shapes only."""
    model = eqx.filter_eval_shape(
        lambda key: nn.backbone(5, D, [functools.partial(build, **VARIANTS["muon"])] * 2, mlp_width=8, key=key),
        jax.random.key(0),
    )
    tokens = jax.ShapeDtypeStruct((2, 7), jnp.int32)
    logits, state = eqx.filter_eval_shape(lambda m, tokens: m(tokens), model, tokens)
    assert logits.shape == (2, 7, 5) and state[1].window.k.shape == (2, 3, H, K)
    _, after = eqx.filter_eval_shape(lambda m, tokens, state: m(tokens, state), model, tokens, state)
    assert jax.tree.map(lambda x: x.shape, after) == jax.tree.map(lambda x: x.shape, state)


def test_bad_arguments():
    key = jax.random.key(0)
    for message, options in {
        "attention_heads is 3; expected a multiple of 2, the heads": {"attention_heads": 3},
        "attention_heads is 8; expected a multiple of 2, the heads, that splits 8 channels": {"attention_heads": 8},
        "hidden is 0; expected a whole number >= 1": {"hidden": 0},
        "rank is 0; expected a whole number >= 1": {"rank": 0},
        "chunk is 2.5; expected a whole number >= 1": {"chunk": 2.5},
        "window is 0; expected a whole number >= 1": {"window": 0},
        "rate is 0; expected a positive number": {"rate": 0},
        "momentum is 0.9; expected True or False": {"momentum": 0.9},
        "muon is 'on'; expected True, False or a sequence": {"muon": "on"},
    }.items():
        with pytest.raises(ValueError) as error:
            build(key=key, **options)
        assert message in str(error.value)
    shapes = lambda name, *args: eqx.filter_eval_shape(lambda m, *args: m(*args), layer(name), *args)  # noqa: E731
    _, state = shapes("muon", inputs())
    mixed = state._replace(window=shapes("plain", inputs())[1].window)
    for message, call in {
        "x has shape [2, 10, 5]; expected [B, T, 6]": lambda: shapes("muon", inputs()[..., :5]),
        "expected WindowedState": lambda: shapes("muon", inputs(), state.memory),
        "state has keys of shape [2, 3, 2, 4]; expected [1, 3, 2, 4]": lambda: shapes("muon", inputs()[:1], state),
        "momentum is None": lambda: shapes("plain", inputs(), mixed),
    }.items():
        with pytest.raises(ValueError) as error:
            call()
        assert message in str(error.value)
