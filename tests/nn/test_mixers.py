"""Every mixer against its transcription in NumPy, in pieces against as a whole, and where numbers are hard."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nn import literal
from tests.nn.helpers import off_start
from tests.rules.golden import check_close
from ttt_teach import nn
from ttt_teach.solvers import CG

D, H, K, T = 6, 2, 4, 8
EXACT = CG(3 * K)
MIXERS = {
    "mesa": functools.partial(nn.Mesa, D, H, head_dim=K, solver=EXACT),
    "signed mesa": functools.partial(nn.Mesa, D, H, head_dim=K, solver=EXACT, negative_decay=True),
    "gla": functools.partial(nn.GLA, D, H, head_dim=K),
    "deltanet": functools.partial(nn.DeltaNet, D, H, head_dim=K, gated=False),
    "signed deltanet": functools.partial(nn.DeltaNet, D, H, head_dim=K, negative_decay=True),
    "osdn": functools.partial(
        nn.OSDN, D, H, head_dim=K, retention=True, start="free", beta_aware=False, forget="channel", step_size=0.3
    ),
    "lact": functools.partial(nn.LaCT, D, H, head_dim=K, hidden=3, chunk=3, rank=2),
    "hawk": functools.partial(nn.Hawk, D, 5),
    "attention": functools.partial(nn.Attention, D, H, head_dim=K),
    "window": functools.partial(nn.Attention, D, H, head_dim=K, window=3),
}
LITERAL = {
    "mesa": lambda m, x: literal.fast_weights(m, x, literal.mesa(np.asarray(m.lam)), decay_floor=0.9975),
    "signed mesa": lambda m, x: literal.fast_weights(m, x, literal.mesa(np.asarray(m.lam)), decay_floor=0.9975),
    "gla": lambda m, x: literal.fast_weights(m, x, literal.gla),
    "deltanet": lambda m, x: literal.fast_weights(m, x, literal.delta),
    "signed deltanet": lambda m, x: literal.fast_weights(m, x, literal.delta),
    "osdn": literal.osdn,
    "lact": literal.lact,
    "hawk": literal.hawk,
    "attention": literal.attention,
    "window": literal.attention,
}
FAST_WEIGHTS = [name for name in MIXERS if name not in ("lact", "hawk", "attention", "window")]
each_mixer = pytest.mark.parametrize("name", MIXERS)


@functools.cache
def mixer(name):
    return off_start(MIXERS[name](key=jax.random.key(0)))


@functools.cache
def inputs():
    return jax.random.normal(jax.random.key(2), (2, T, D))


step = eqx.filter_jit(lambda mixer, x, state: mixer(x, state))


def floats(state):
    return [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]


@eqx.filter_jit
def whole(mixer, x):
    """Output, state, and the gradients of a sum that weighs all of both."""

    def loss(mixer, x):
        y, state = mixer(x)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in [y, *floats(state)]), (y, state)

    (_, found), slopes = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(mixer, x)
    return *found, slopes


@each_mixer
def test_transcription(name):
    """1e-9: NumPy's and JAX's exp differ in the last digit, and Mesa's CG ends at rounding level."""
    y, *_ = whole(mixer(name), inputs())
    for found, x in zip(y, inputs(), strict=True):
        check_close(name, found, LITERAL[name](mixer(name), np.asarray(x)), 1e-9)


@pytest.mark.parametrize(
    "name", ["mesa", "gla", "signed deltanet", "osdn", "lact", "hawk", "attention", "window"]
)  # every class, signs
def test_in_pieces_as_a_whole(name):
    """No token at all, single tokens, and five at once: outputs and the last state are those of one call."""
    m, x = mixer(name), inputs()
    y, state, _ = whole(m, x)
    carried, pieces = None, []
    for first, last in [(0, 0), (0, 1), (1, 2), (2, 7), (7, 8)]:
        piece, carried = step(m, x[:, first:last], carried)
        pieces.append(piece)
    check_close(name, jnp.concatenate(pieces, axis=1), y, 1e-12)
    assert jax.tree.structure(carried) == jax.tree.structure(state)
    for found, wanted in zip(jax.tree.leaves(carried), jax.tree.leaves(state), strict=True):
        check_close("state", found, wanted, 1e-12)


@each_mixer
def test_state_does_not_grow(name):
    """Only attention without a window keeps more the more it reads."""

    def sizes(T):
        x = jax.ShapeDtypeStruct((2, T, D), jnp.float64)
        return [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(mixer(name), x)[1])]

    assert (sizes(0) == sizes(5) == sizes(50)) == (name != "attention")


@each_mixer
def test_nothing_leaks_from_the_future(name):
    """What changes at token 4 changes no output before it, to the bit, and does change its own."""
    m, x = mixer(name), inputs()
    y, *_ = whole(m, x)
    moved, *_ = whole(m, x.at[:, 4].add(1.0))
    np.testing.assert_array_equal(moved[:, :4], y[:, :4])
    assert (np.abs(moved - y)[:, 4].max(-1) > 1e-3).all()


@each_mixer
def test_gradients_are_slopes(name):
    """Along one direction in all parameters and inputs, by central differences.

    1e-6: rounding takes 1e-10 of them, and near a signed gate of 0 the third derivative is large.
    """
    m, x = mixer(name), inputs()
    arrays, tree = jax.tree.flatten((m, x))
    rng = np.random.default_rng(5)
    way = [rng.normal(size=y.shape) for y in arrays]

    def loss(size):
        moved = [np.asarray(y) + size * d for y, d in zip(arrays, way, strict=True)]
        y, state, _ = whole(*jax.tree.unflatten(tree, moved))
        return sum(np.sum(np.sin(leaf)) for leaf in [y, *floats(state)])

    slope = sum(np.sum(g * d) for g, d in zip(jax.tree.leaves(whole(m, x)[2]), way, strict=True))
    np.testing.assert_allclose((loss(1e-6) - loss(-1e-6)) / 2e-6, slope, rtol=1e-6)


@each_mixer
@pytest.mark.parametrize("case", ["zeros", "repeated", "tiny", "huge"])
def test_gradients_are_finite(name, case):
    x = {
        "zeros": jnp.zeros((2, T, D)),
        "repeated": jnp.repeat(inputs()[:, :1], T, axis=1),
        "tiny": 1e-200 * inputs(),
        "huge": 1e30 * inputs(),
    }[case]
    for leaf in jax.tree.leaves(whole(mixer(name), x)):
        assert np.isfinite(leaf).all()


@each_mixer
def test_deterministic_by_key(name):
    first, again, other = (MIXERS[name](key=jax.random.key(seed)) for seed in (3, 3, 4))
    assert eqx.tree_equal(first, again)
    assert not eqx.tree_equal(first, other)


def test_vmap_over_batches():
    m, x = mixer("gla"), inputs()
    y, _ = eqx.filter_jit(jax.vmap(m))(jnp.stack([x, 2 * x]))
    check_close("first", y[0], whole(m, x)[0], 1e-12)
    check_close("second", y[1], whole(m, 2 * x)[0], 1e-12)


@pytest.mark.parametrize("name", FAST_WEIGHTS)
def test_features(name):
    """q and k have length 1, also of a tiny input; a zero input has no direction and stays zero."""
    m, x = mixer(name), inputs()
    for scale in (1, 1e-30):
        features, _ = m.features(scale * x)
        for y in features[:2]:
            np.testing.assert_allclose(np.linalg.norm(y, axis=-1), 1, rtol=1e-12)
        assert ((features.beta > 0) & (features.beta < 1)).all()
        assert features.log_decay is None or (features.log_decay <= 0).all()
    assert not np.any(m.features(0 * x)[0].k)


def test_forget_gate_correction():
    """gamma *= 1 - (1 - 0.9975) beta^2 (App. G.5): at a gate of 1 a repeated key adds up to at most 400 in H."""
    m, plain = mixer("mesa"), MIXERS["mesa"](decay_floor=1.0, key=jax.random.key(0))
    for one, lost in ((m, 0.0025), (plain, 0)):
        beta, log_decay, _ = one.gates(inputs())
        z = inputs() @ one.forget_gate.weight + one.forget_gate.bias[None, None]
        check_close("gamma", jnp.exp(log_decay), jax.nn.sigmoid(z) * (1 - lost * beta**2), 1e-14)
    biases = lambda m: (m.forget_gate.bias, m.input_gate.bias)  # noqa: E731
    beta, log_decay, _ = eqx.tree_at(biases, m, (jnp.full(H, 1e3),) * 2).gates(inputs())
    np.testing.assert_allclose(beta / -jnp.expm1(log_decay), 400, rtol=1e-9)


def test_ridge():
    """0.25 + softplus(.), 1 at the start; it cannot fall below its floor."""
    new = MIXERS["mesa"](key=jax.random.key(0))
    np.testing.assert_allclose(new.lam, np.ones((H, K)), rtol=1e-14)
    parity = MIXERS["signed mesa"](lam_min=49, lam_init=50, key=jax.random.key(0))
    np.testing.assert_allclose(parity.lam, np.full((H, K), 50), rtol=1e-14)
    for floor, m in ((0.25, new), (49, parity)):
        m = eqx.tree_at(lambda m: m.ridge, m, jnp.full((H, K), -1e3))
        np.testing.assert_array_equal(m.lam, floor)


def test_signed_gates():
    """tanh(z / 2), whose logarithm is taken without cancellation, and which may be 0 but for its last 6 digits."""
    m = mixer("signed deltanet")
    z = inputs() @ m.forget_gate.weight + m.forget_gate.bias[None, None]
    _, log_size, sign = m.gates(inputs())
    check_close("gamma", sign * jnp.exp(log_size), jnp.tanh(z / 2), 1e-14)
    assert (sign < 0).any() and (sign > 0).any()
    shut = eqx.tree_at(lambda m: m.forget_gate, m, jax.tree.map(jnp.zeros_like, m.forget_gate))
    assert jnp.exp(shut.gates(inputs())[1]).max() < 1e-6


@pytest.mark.parametrize("name", ["signed deltanet", "lact", "window"])
def test_decoding_in_a_scan_from_before_the_first_token(name):
    """The state of no token has all that the state of many has, in the same shapes."""
    m, x = mixer(name), inputs()
    start = step(m, x[:, :0], None)[1]

    def read(state, token):
        y, state = m(token[:, None], state)
        return state, y[:, 0]

    end, y = jax.jit(functools.partial(jax.lax.scan, read))(start, x.swapaxes(0, 1))
    want, last, _ = whole(m, x)
    check_close("y", y.swapaxes(0, 1), want, 1e-12)
    for found, wanted in zip(jax.tree.leaves(end), jax.tree.leaves(last), strict=True):
        check_close("state", found, wanted, 1e-12)


def test_the_cache_of_another_window_is_refused():
    for window in (2, 4):
        other = nn.Attention(D, H, head_dim=K, window=window, key=jax.random.key(0))
        with pytest.raises(ValueError, match=rf"state has keys of shape .*; expected \[2, {window - 1}, {H}, {K}\]"):
            other(inputs(), whole(mixer("window"), inputs())[1])


def test_the_sign_that_the_curvature_does_not_take():
    """At lam 50 it matters little; at lam 0.25 the literal H + diag(lam) has a negative eigenvalue."""
    m = mixer("signed mesa")
    x = np.asarray(inputs()[0])
    near = {}
    for lam in (50.0, 500.0):
        ours, theirs = (
            literal.fast_weights(m, x, literal.mesa(np.full((H, K), lam), signed_curvature=signed))
            for signed in (False, True)
        )
        near[lam] = np.abs(ours - theirs).max() / np.abs(ours).max()
    assert near[50.0] < 0.05 and near[500.0] < near[50.0] / 5
    k = np.eye(K)[[0] * 8]
    gamma = np.array([1.0] * 7 + [-1.0])
    A = np.zeros((K, K))
    for key, decay in zip(k, gamma, strict=True):
        A = decay * A + np.outer(key, key)
    assert np.linalg.eigvalsh(A + 0.25 * np.eye(K)).min() < -5


def test_with_solver():
    """Only the budget changes, in every Mesa layer; no step at all reads nothing."""
    build = functools.partial(nn.hawk_mesa, 5, D, H, 4, head_dim=K, mlp_width=4)
    model = eqx.filter_eval_shape(lambda key: build(key=key), jax.random.key(0))
    other = nn.with_solver(model, CG(0))
    assert [block.mixer.solver.max_steps for block in other.blocks[1::2]] == [0, 0]
    assert [block.mixer.solver.max_steps for block in model.blocks[1::2]] == [30, 30]
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, jax.tree.leaves(model), jax.tree.leaves(other)))
    assert not np.any(step(nn.with_solver(mixer("mesa"), CG(0)), inputs()[:, :1], None)[0])


@pytest.mark.parametrize("name", ["mesa", "osdn", "lact", "hawk", "attention"])
def test_bfloat16(name):
    """The output as the parameters, memories in float32. 3e-2: eight bits, and sums of a few of them."""
    m, x = nn.cast(mixer(name), jnp.bfloat16), inputs().astype(jnp.bfloat16)
    y, state = step(m, x, None)
    assert y.dtype == jnp.bfloat16
    dtypes = {
        type(state)._fields[i]: jax.tree.leaves(part)[0].dtype for i, part in enumerate(state) if part is not None
    }
    memories = {"mesa": "memory", "osdn": "memory", "lact": "memory", "hawk": "h", "attention": "position"}
    assert dtypes[memories[name]] == (jnp.int32 if name == "attention" else jnp.float32)
    check_close(name, y, whole(nn.cast(m, jnp.float64), x.astype(jnp.float64))[0], 3e-2)


def test_bad_arguments():
    key = jax.random.key(0)
    m = mixer("mesa")
    for message, call in {
        "x has shape [2, 6]; expected [B, T, 6]": lambda: m(jnp.zeros((2, D))),
        "x has shape [1, 2, 5]; expected [B, T, 6]": lambda: m(jnp.zeros((1, 2, 5))),
        "x has dtype float32; expected float64": lambda: m(jnp.zeros((1, 2, D), jnp.float32)),
        "state has a tail of shape [2, 3, 24]; expected [1, 3, 24]": lambda: m(inputs()[:1], whole(m, inputs())[1]),
        "state is a tuple; expected FastWeightsState, as this layer returns": lambda: m(inputs(), (None, None, None)),
        "state is a FastWeightsState; expected HawkState": lambda: mixer("hawk")(inputs(), whole(m, inputs())[1]),
        "state is a HawkState; expected AttentionState": lambda: mixer("attention")(
            inputs(), whole(mixer("hawk"), inputs())[1]
        ),
        "state.position holds 8; expected 2: without a window all tokens are kept": lambda: mixer("attention")(
            inputs(), whole(mixer("window"), inputs())[1]
        ),
        "state has no sign; expected one, since negative_decay is True": lambda: mixer("signed mesa")(
            inputs(), whole(m, inputs())[1]
        ),
        "width is 0; expected a whole number >= 1": lambda: nn.hawk(5, 4, 1, mlp_width=4, width=0, key=key),
        "dim is 0; expected a whole number >= 1": lambda: nn.Mesa(0, 1, key=key),
        "heads is 1.5; expected a whole number >= 1": lambda: nn.GLA(4, 1.5, key=key),
        "head_dim is True; expected a whole number >= 1": lambda: nn.GLA(4, 1, head_dim=True, key=key),
        "conv is 0; expected a whole number >= 1": lambda: nn.Hawk(4, 4, conv=0, key=key),
        "width is -1; expected a whole number >= 1": lambda: nn.Hawk(4, -1, key=key),
        "head_dim is 3; expected an even number": lambda: nn.Attention(4, 1, head_dim=3, key=key),
        "window is 0; expected a whole number >= 1": lambda: nn.Attention(4, 1, window=0, key=key),
        "lam_min is 1.0 and lam_init 1.0; expected 0 <= lam_min < lam_init": lambda: nn.Mesa(
            4, 1, lam_min=1.0, key=key
        ),
        "decay_floor is 1.5; expected a number in (0, 1]": lambda: nn.Mesa(4, 1, decay_floor=1.5, key=key),
        "solver is 30; expected CG(max_steps, tol)": lambda: nn.Mesa(4, 1, solver=30, key=key),
        "solver is 'cg'; expected CG(max_steps, tol)": lambda: nn.with_solver(m, "cg"),
        "negative_decay is True; expected False": lambda: nn.GLA(4, 1, gated=False, negative_decay=True, key=key),
    }.items():
        with pytest.raises(ValueError) as error:
            call()
        assert message in str(error.value)
