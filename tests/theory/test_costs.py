"""The counts against those of the package: shapes of its states, and the operations of its recurrent forms."""

import math
import re

import equinox as eqx
import jax
import numpy as np
import pytest

from ttt_teach import CG, SwiGLU, attention, delta, lact, linear, longhorn, mesa, nn
from ttt_teach.solvers.newton_schulz import CONST5
from ttt_teach.theory import costs
from ttt_teach.theory.counting import product_flops

SIZES = [(64, 64), (64, 32), (32, 128)]
each_size = pytest.mark.parametrize(("K", "V"), SIZES)


def inputs(K, V, T=1):
    q = k = jax.ShapeDtypeStruct((1, T, 1, K), "float32")
    v = jax.ShapeDtypeStruct((1, T, 1, V), "float32")
    gate = jax.ShapeDtypeStruct((1, T, 1), "float32")
    return q, k, v, gate, gate, jax.ShapeDtypeStruct((1, K), "float32")


RULES = {
    "linear": lambda q, k, v, beta, log_decay, lam: linear(q, k, v, log_decay=log_decay, form="recurrent"),
    "delta": lambda q, k, v, beta, log_decay, lam: delta(q, k, v, beta, log_decay=log_decay, form="recurrent"),
    "longhorn": lambda q, k, v, beta, log_decay, lam: longhorn(q, k, v, beta, form="recurrent"),
}


def run_mesa(steps):
    def run(q, k, v, beta, log_decay, lam):
        return mesa(q, k, v, beta, lam, log_decay=log_decay, solver=CG(max_steps=steps), form="recurrent")

    return run


def on_matrices(program, smallest, steps):
    """FLOPs of the operations of a program that touch ``smallest`` numbers or more; a loop without end runs ``steps``
    times, as CG does that is given no tolerance."""
    total = 0
    for eqn in program.eqns:
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            total += params["length"] * on_matrices(params["jaxpr"].jaxpr, smallest, steps)
        elif name == "while":
            total += steps * on_matrices(params["body_jaxpr"].jaxpr, smallest, steps)
        elif name == "custom_linear_solve":
            total += on_matrices(params["jaxprs"].solve.jaxpr, smallest, steps)
        elif "jaxpr" in params:
            total += on_matrices(params["jaxpr"].jaxpr, smallest, steps)
        elif max(x.aval.size for x in (*eqn.invars, *eqn.outvars)) >= smallest:
            total += arithmetic(name, eqn)
    return total


def arithmetic(name, eqn):
    if name == "dot_general":
        (summed, _), _ = eqn.params["dimension_numbers"]
        return 2 * eqn.outvars[0].aval.size * math.prod(eqn.invars[0].aval.shape[axis] for axis in summed)
    return eqn.outvars[0].aval.size if name in ("mul", "add", "sub", "div") else 0


def counted(rule, K, V, steps=0):
    return on_matrices(jax.make_jaxpr(rule)(*inputs(K, V)).jaxpr, min(K * V, K * K), steps)


# The package multiplies beta into the outer product and not into a vector: one more for every entry written.


@each_size
def test_flops_are_what_the_recurrences_of_the_package_do(K, V):
    assert counted(RULES["linear"], K, V) == costs.linear(K, V).flops
    assert counted(RULES["delta"], K, V) == costs.delta(K, V).flops + K * V
    assert counted(RULES["longhorn"], K, V) == costs.delta(K, V).flops  # no decay
    for steps in (0, 1, 30):
        assert counted(run_mesa(steps), K, V, steps) == costs.mesa(K, V, steps).flops + K * V + K * K


@pytest.mark.parametrize("T", [8, 64])
def test_attention_reads_its_cache(T):
    K, V = 32, 16
    q, k, v, *_ = inputs(K, V, T)
    whole = on_matrices(jax.make_jaxpr(lambda *x: attention(*x, form="definition"))(q, k, v).jaxpr, T * min(K, V), 0)
    assert T * costs.attention(T, K, V).flops <= whole <= 1.1 * T * costs.attention(T, K, V).flops  # the rest: softmax
    assert costs.attention(np.arange(3), K, V).state.tolist() == [0, 48, 96]


@each_size
@pytest.mark.parametrize("rule", RULES)
def test_the_state_is_what_the_package_carries(rule, K, V):
    wanted = costs.linear(K, V).state if rule == "linear" else costs.delta(K, V).state
    assert jax.eval_shape(RULES[rule], *inputs(K, V, T=9))[1].size == wanted


@each_size
def test_mesa_carries_two_matrices(K, V):
    G, H = jax.eval_shape(run_mesa(3), *inputs(K, V, T=9))[1]
    assert G.size + H.size == costs.mesa(K, V, steps=3).state
    assert costs.mesa(K, K, steps=3).state == 2 * K * K


@pytest.mark.parametrize("d", [16, 128])
def test_a_cache_is_larger_than_mesas_state_after_d_tokens(d):
    t = d + 1
    assert costs.attention(t, d, d).state > costs.mesa(d, d, 30).state >= costs.attention(t - 1, d, d).state


def test_table_5():
    d, t, steps = 128, 2048, 30
    assert costs.attention(t, d, d) == (2 * t * d, 4 * t * d)
    assert costs.delta(d, d).state == d**2
    assert costs.mesa(d, d, steps) == (2 * d**2, (2 * steps + 8) * d**2)


@pytest.mark.parametrize(("K", "V", "M"), [(16, 16, 16), (8, 24, 16), (8, 4, 48)])
def test_lact_counts_the_products_of_its_chunks(K, V, M):
    T, chunk = 256, 64
    tokens = (jax.ShapeDtypeStruct((1, T, 1, n), "float32") for n in (K, K, V, 3))
    W = SwiGLU(*(jax.ShapeDtypeStruct((1, *n), "float32") for n in ((M, K), (M, K), (V, M))))

    def run(*x):
        o, state = lact(*x, chunk=chunk, muon=False)
        return o, state.pending, state.weights

    given = *tokens, W
    forward = product_flops(jax.make_jaxpr(run)(*given))
    assert forward == T * costs.lact(K, V, M).flops
    assert costs.lact(K, V, M).state == sum(w.size for w in W)
    o = jax.eval_shape(run, *given)
    whole = product_flops(jax.make_jaxpr(lambda o, *x: jax.vjp(run, *x)[1](o))(o, *given))
    assert whole - forward == T * costs.lact_gradient(K, V, M)
    assert costs.lact_gradient(K, V, M, recompute=False) == 12 * costs.lact(K, V, M).state


def test_the_state_of_a_lact_layer():
    assert costs.lact_state(3072, 4) == 2304 * 3072
    assert costs.lact_state(768, 1, 2) == 6 * 768**2
    with pytest.raises(ValueError, match="heads is 5; expected a whole number that divides dim = 3072"):
        costs.lact_state(3072, 5)


@pytest.mark.parametrize(("K", "V", "M"), [(16, 16, 16), (16, 16, 48), (8, 24, 16)])
def test_muon_counts_the_products_of_a_write(K, V, M):
    chunk = 64
    tokens = (jax.ShapeDtypeStruct((1, 2 * chunk, 1, n), "float32") for n in (K, K, V, 3))
    given = *tokens, SwiGLU(*(jax.ShapeDtypeStruct((1, *n), "float32") for n in ((M, K), (M, K), (V, M))))

    def products(muon):
        return product_flops(jax.make_jaxpr(lambda *x: lact(*x, chunk=chunk, muon=muon))(*given))

    two_chunks = products(False)  # of which one is written
    for steps, muon in ((5, True), (3, CONST5[:3])):
        extra = products(muon) - two_chunks
        assert extra == costs.muon(K, V, M, steps)
        if K == V:
            assert 2 * extra / two_chunks == pytest.approx(costs.muon_share(K, M // K, chunk, steps), rel=1e-14)


def test_muon_in_the_sizes_of_the_paper():
    assert costs.muon_share(384, 1, 2048) == 0.9375  # 760M
    assert costs.muon_share(768, 1, np.array([2048, 4096])).tolist() == [1.875, 0.9375]  # 3B
    with pytest.raises(ValueError, match=r"r is 0\.5; expected at least 1"):
        costs.muon_share(64, 0.5, 64)


def trained(make, *args, **kwargs):
    """Numbers that a module trains; only shapes are computed."""
    return nn.parameters(eqx.filter_eval_shape(lambda key: make(*args, **kwargs, key=key), jax.random.key(0)))


def test_the_parameters_of_the_layers():
    size = {"dim": 96, "heads": 3, "head_dim": 16}
    assert trained(nn.Attention, **size) == costs.attention_parameters(**size)
    assert trained(nn.GLA, **size, conv=3) == costs.gla_parameters(**size, conv=3)
    assert trained(nn.DeltaNet, **size) == costs.gla_parameters(**size)
    assert trained(nn.Mesa, **size, conv=3) == costs.mesa_parameters(**size, conv=3)
    assert trained(nn.Hawk, 96, 64) == costs.hawk_parameters(96, 64)


@pytest.mark.parametrize(("name", "millions"), [("140M", 146.2), ("440M", 434.0), ("940M", 937.7)])
def test_the_parameters_of_the_three_sizes(name, millions):
    """The width of the MLP is ours, three times that of the model."""
    depth, heads, dim = nn.SIZES[name]
    mixers = [costs.mesa_parameters(dim, heads)] * depth
    wanted = costs.lm_parameters(nn.VOCAB, dim, mixers, 3 * dim)
    assert trained(nn.mesanet, nn.VOCAB, dim, heads, depth, mlp_width=3 * dim) == wanted
    assert round(wanted / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (lambda n: costs.attention(n, 64, 64), 2**24),
        (lambda n: costs.lact(16384, 16384, n), 16384),
        (lambda n: costs.lact_state(65536, 1, n), 3),
        (lambda n: costs.muon_share(4096, n, 2**30), 2),
        (lambda n: costs.muon_share(4096, 1, n), 2**30),
    ],
)
def test_lists_and_short_integers_count_as_single_numbers_do(count, sizes):
    one = count(sizes)
    for many in ([sizes, sizes], np.array([sizes, sizes], np.int32)):
        np.testing.assert_array_equal(np.stack(count(many)).T, [one, one])
    assert count(np.int32(sizes)) == one


def test_short_integers_do_not_wrap_round():
    n = np.int32(65536)
    assert costs.linear(n, n) == (2**32, 5 * 2**32)
    assert costs.muon(n, n, n) == 5 * 3 * 6 * 2**48
    assert costs.attention_parameters(n, n, n) == 4 * 2**48


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: costs.attention(-5, 64, 64), "t is -5; expected at least 0"),
        (lambda: costs.delta(4, [1, 2]), "V is [1, 2]; expected a whole number >= 1"),
        (lambda: costs.mesa(4, 4, -3), "steps is -3; expected a whole number >= 0"),
        (lambda: costs.lact(4, 4, 0), "M is 0; expected a positive number"),
        (lambda: costs.lact_state(-4, 2), "dim is -4; expected a whole number >= 1"),
        (lambda: costs.lact_state(5, 2.5), "heads is 2.5; expected a whole number >= 1"),
        (lambda: costs.muon(4, 4, 4, -1), "steps is -1; expected a whole number >= 0"),
        (lambda: costs.muon_share(4, 1, -8), "chunk is -8; expected a positive number"),
        (lambda: costs.gla_parameters(4, 0), "heads is 0; expected a whole number >= 1"),
        (
            lambda: costs.osdn_parameters(4, 2, start="foo"),
            "start is 'foo'; expected one of 'ones', 'projected', 'free'",
        ),
        (lambda: costs.osdn_parameters(4, 2, forget="foo"), "forget is 'foo'; expected one of None, 'head', 'channel'"),
        (lambda: costs.osdn_parameters(4, 2, forget=["head"]), "forget is ['head']; expected one of None"),
        (lambda: costs.lact_parameters(4, 2, rank=0), "rank is 0; expected a whole number >= 1"),
        (lambda: costs.lact_parameters(4, 2, hidden=-1), "hidden is -1; expected a whole number >= 1"),
        (lambda: costs.lm_parameters(8, 4, [100, -1], 8), "mixers is -1; expected a whole number >= 1"),
    ],
)
def test_what_cannot_be_counted_is_named(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()
