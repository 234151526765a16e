"""LaCT: the stated step, when a chunk is written and read, what the rows and Muon lose; golden files."""

import json
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from tests.rules import golden
from tests.rules.contract import LENGTHS, Common, measured_slope, pulled
from ttt_teach.rules.lact import FORMS, LaCTState, SwiGLU, lact
from ttt_teach.rules.lact.chunk import silu
from ttt_teach.rules.lact.steps import restored
from ttt_teach.solvers.newton_schulz import CONST5
from ttt_teach.tasks import unit

M = 5  # hidden width
TOKENS = ("q", "k", "v", "lr", "momentum")


def before(args):
    """The state that the weights of a call's arguments make, before its first token."""
    none = {n: x[:, :0] for n, x in args.items() if n in TOKENS and x is not None}
    return lact(**none, weights=args["weights"], chunk=1)[1]


@jax.jit
def slopes_from_the_start(args, slope):
    """The gradients of the outputs times ``slope``, of the chunk form without a state; one compilation for a shape."""
    return jax.grad(lambda args: jnp.sum(lact(**args, chunk=5, form="chunk")[0] * slope))(args)


@jax.jit
def stated_step(W, k, v, lr):
    """One plain write of one head, stated here again."""

    def loss(W, rate):
        hidden = jax.nn.silu(k @ W.gate.T) * (k @ W.up.T)
        return -jnp.sum(rate * jnp.sum((hidden @ W.out.T) * v, axis=1))

    moved = [w - jax.grad(loss)(W, lr[:, i])[i] for i, w in enumerate(W)]
    n = partial(jnp.linalg.norm, axis=1, keepdims=True)
    return [w / (n(w) + 1e-5) * n(w0) for w, w0 in zip(moved, W, strict=True)]


class TestLaCT(Common):
    """``decay`` is None or "momentum": the share of the buffer that a chunk keeps.

    The state goes in and comes out without its count, an integer that no gradient is taken for; it is 1 on the way in.
    """

    rule = staticmethod(lact)
    forms = tuple(FORMS)
    kernel = True
    linear_in = ()
    length = 33  # rounding grows from chunk to chunk
    test_scales = None  # linear in nothing: test_with_muon_only_ratios_of_rates_matter

    def decays(self):
        return (None, "momentum")

    def draw(self, seed=0, *, B=1, T=12, H=2, K=4, V=3, decay="momentum"):
        args = super().draw(seed, B=B, T=T, H=H, K=K, V=V, decay=None)
        rng = np.random.default_rng(seed + 1)
        args["lr"] = rng.uniform(0.1, 1, (B, T, H, 3))
        args["weights"] = self.matrices(rng, H, K, V)
        if decay:
            args["momentum"] = rng.uniform(0.1, 0.9, (B, T, H))
        else:
            args["state"] = args["state"]._replace(momentum=None, pending_momentum=None)
        return args

    def matrices(self, rng, *heads_K_V):
        *heads, K, V = heads_K_V
        return SwiGLU(*(rng.normal(size=(*heads, *s)) for s in ((M, K), (M, K), (V, M))))

    def draw_state(self, rng, B, H, K, V):
        W, buffer, pending = (self.matrices(rng, B, H, K, V) for _ in range(3))
        norms = SwiGLU(*(rng.uniform(0.5, 2, (B, H, n)) for n in (M, M, V)))
        return LaCTState(W, buffer, norms, pending, rng.uniform(0.1, 0.9, (B, H)), None)

    def call(self, args, form, **options):
        o, state = self.whole(
            args | {"state": args["state"] and args["state"]._replace(count=jnp.int32(1))}, form, **options
        )
        return o, state._replace(count=None)

    def whole(self, args, form, **options):
        """With the count."""
        return lact(**args, form=form, **{"chunk": 5} | options)

    def part(self, args, begin, end, **changed):
        return args | {n: args[n][:, begin:end] for n in TOKENS if n in args} | changed

    def in_calls(self, args, lengths, form, **options):
        """The same from one call after the other, the first of no token; a call has a length, and needs no weights."""
        state, outputs, begin = before(args), [], 0
        for n in lengths:
            o, state = self.whole(self.part(args, begin, begin + n, weights=None, state=state), form, **options)
            outputs.append(o)
            begin += n
        return jnp.concatenate(outputs, 1), state

    # -- forms -----------------------------------------------------------------------------------------------------

    def test_forms_agree(self):
        """Plainly at any length; with Muon where it is well posed.

        The direction of fewer tokens than a matrix has rows or columns has singular values of rounding size, and Muon
        makes 490 times as much of them, write after write: there no two programs agree. Rounding grows over up to 130
        writes elsewhere too, to 1e-11 at the worst of two hundred draws.
        """

        @settings(max_examples=3, deadline=None, phases=[Phase.generate])
        @given(
            seed=st.integers(0, 1000),
            B=st.integers(1, 2),
            T=st.sampled_from(LENGTHS),
            H=st.integers(1, 3),
            K=st.integers(1, 5),
            V=st.integers(1, 5),
            decay=st.sampled_from(self.decays()),
            with_state=st.booleans(),
            chunk_and_muon=st.sampled_from([(1, False), (5, False), (16, True), (64, True)]),
        )
        def agree(seed, B, T, H, K, V, decay, with_state, chunk_and_muon):
            args = self.draw(seed, B=B, T=T, H=H, K=K, V=V, decay=decay)
            args["state"] = args["state"] if with_state else None
            chunk, muon = chunk_and_muon
            want_o, want_state = self.call(args, "definition", chunk=chunk, muon=muon)
            assert want_o.shape == (B, T, H, V)
            for form in self.forms[1:]:
                o, state = self.call(args, form, chunk=chunk, muon=muon)
                golden.check_close(form, o, want_o, 1e-9)
                jax.tree.map(partial(golden.check_close, form, tol=1e-9), state, want_state)

        agree()

    def test_gradients_agree(self):
        args = self.draw(3)
        slopes = self.slopes(args)
        want = pulled(type(self), "definition", args, slopes)[1]
        for form in self.forms[1:]:
            got = pulled(type(self), form, args, slopes)[1]
            jax.tree.map(partial(golden.check_close, form, tol=1e-11), got, want)

    # -- when ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("lengths", [(12,), (7, 5), (5, 7)])
    def test_a_split_changes_nothing(self, form, lengths):
        """The call before has no token, ends within a chunk, or at its end. Halves of two lengths, for two programs."""
        args = self.draw(7) | {"state": None}
        want_o, want = self.whole(args, form)
        o, state = self.in_calls(args, lengths, form)
        golden.check_close("o", o, want_o, 1e-13)
        jax.tree.map(lambda x, want: golden.check_close("state", x, want, 1e-12), state, want)
        assert state.count == 2

    def test_any_split_changes_nothing(self):
        """Calls of 1, 2, 4 and 5 tokens at every place a chunk can be in; one without a state at the start."""
        args = self.draw(7, T=24) | {"state": None}
        want_o, want = self.whole(args, "chunk")
        for lengths in ([1, 1, 4, 5, 5, 4, 2, 2], [2, 5, 4, 5, 4, 4], [4, 2, 5, 5, 2, 1, 5]):
            o, state = self.in_calls(args, lengths, "chunk")
            golden.check_close("o", o, want_o, 1e-12)
            jax.tree.map(lambda x, want: golden.check_close("state", x, want, 1e-12), state, want)
        o, state = self.whole(self.part(args, 0, 2), "chunk")
        _, other = self.whole(self.part(args, 0, 2, weights=None, state=before(args)), "chunk")
        golden.check_close("o", o, want_o[:, :2], 1e-12)
        jax.tree.map(lambda x, y: golden.check_close("state", x, y, 1e-12), state, other)

    def test_prefill_then_one_compiled_step_for_every_token(self, form):
        """The count is only known at run time, and a write is a branch that most tokens do not take."""
        args = self.draw(18) | {"state": None}
        want_o, want = self.whole(args, form)
        o1, state = self.in_calls(args, (7,), form)

        def step(state, token):
            o, state = self.whole({n: x[:, None] for n, x in token.items()} | {"weights": None, "state": state}, form)
            return state, o[:, 0]

        tokens = {n: jnp.moveaxis(args[n][:, 7:], 1, 0) for n in TOKENS}
        state, o2 = jax.jit(partial(jax.lax.scan, step))(state, tokens)
        golden.check_close("o", jnp.concatenate([o1, jnp.moveaxis(o2, 0, 1)], 1), want_o, 1e-13)
        jax.tree.map(lambda x, want: golden.check_close("state", x, want, 1e-12), state, want)
        assert state.count == want.count == 2

    def test_the_write_stays_a_branch_under_the_batch(self):
        args = self.part(self.draw(19), 0, 1)
        jaxpr = str(jax.make_jaxpr(lambda args: self.call(args, "chunk"))(args))
        assert "cond[" in jaxpr

    def test_split_has_the_gradient_of_one_call(self):
        args = self.draw(20) | {"state": None}
        weigh = np.random.default_rng(21).normal(size=args["v"].shape)

        @jax.jit
        @jax.grad
        def slopes(args):
            o1, state = self.whole(self.part(args, 0, 3), "chunk")
            o2, _ = self.whole(self.part(args, 3, None, state=state), "chunk")
            return jnp.sum(jnp.concatenate([o1, o2], 1) * weigh)

        want = slopes_from_the_start(args, weigh)
        jax.tree.map(partial(golden.check_close, "slope", tol=1e-11), slopes(args), want)

    def test_apply_update_is_causal_by_chunks(self, form):
        """The output of a chunk changes with no token of it or after it, and with every key before."""
        args = self.draw(22) | {"state": None}
        o, _ = self.whole(args, form)
        k = args["k"].copy()
        k[:, 5:] *= -2
        np.testing.assert_array_equal(self.whole(args | {"k": k}, form)[0][:, :10], o[:, :10])
        k = args["k"].copy()
        k[:, 4] *= -2
        assert np.all(self.whole(args | {"k": k}, form)[0][:, 5:] != o[:, 5:])

    def test_the_last_chunk_is_never_written(self):
        """ceil(T / C) - 1 writes: the gradients of what it would write are zero, whether or not it is full."""
        for T in (10, 12):
            args = self.draw(23, T=T) | {"state": None}
            slopes = slopes_from_the_start(args, np.ones_like(args["v"]))
            last = -(-T // 5) * 5 - 5
            for name in ("k", "v", "lr", "momentum"):
                assert not np.any(slopes[name][:, last:])
                assert np.any(slopes[name][:, :last]) == (name != "momentum" or last > 5)  # M is 0 before the first

    def test_orders_agree(self):
        args = self.draw(24)
        want_o, want = self.call(args, "definition", order="update-apply")
        assert want_o.shape[1] == 12
        for form in self.forms[1:]:
            o, state = self.call(args, form, order="update-apply")
            self.check_order(form, (o, state), (want_o, want), args)

    def test_schedules_agree(self):
        """With their gradients. Muon in schedules has golden files, of view synthesis and of video."""
        args = self.draw(24)
        order = ((0, 4, True, False), (2, 7, False, True), (1, 6, True, True))

        def loss(args, form):
            o, state = self.call(args, form, order=order, muon=False)
            return jnp.sum(jnp.sin(o)) + sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(state)), (o, state)

        slopes = jax.jit(jax.grad(loss, has_aux=True), static_argnames="form")
        want, results = slopes(args, form="definition")
        assert results[0].shape[1] == 10
        for form in self.forms[1:]:
            got, found = slopes(args, form=form)
            self.check_order(form, found, results, args)
            jax.tree.map(partial(golden.check_close, form, tol=1e-12), got, want)

    def check_order(self, form, found, want, args):
        """Where something is pending, too: such orders leave that alone."""
        golden.check_close(f"{form} o", found[0], want[0], 1e-13)
        jax.tree.map(partial(golden.check_close, form, tol=1e-12), found[1], want[1])
        jax.tree.map(np.testing.assert_array_equal, found[1][3:], args["state"][3:])

    def test_update_apply_splits_at_the_end_of_a_chunk_only(self):
        args = self.draw(25) | {"state": None}
        want_o, _ = self.whole(args, "chunk", order="update-apply")
        for cut, same in ((5, True), (10, True), (7, False)):
            o, state = self.in_calls(args, (cut, 12 - cut), "chunk", order="update-apply")
            error = np.abs(o - want_o).max()
            assert (error < 1e-13) == same
            assert state.count == 0

    def test_a_schedule_says_what_is_written_and_read(self):
        """Update-apply, and apply-update with its last chunk written too, as schedules; reading twice; nothing."""
        args = self.draw(26, T=12) | {"state": None}
        chunks = ((0, 5), (5, 10), (10, 12))
        o, state = self.whole(args, "chunk", order=[(*c, True, True) for c in chunks])
        want_o, want = self.whole(args, "chunk", order="update-apply")
        golden.check_close("o", o, want_o, 1e-14)
        jax.tree.map(partial(golden.check_close, "state", tol=1e-14), state, want)
        delayed = [(*c, *flags) for c in chunks for flags in ((False, True), (True, False))]
        o, _ = self.whole(args, "chunk", order=delayed)
        golden.check_close("o", o, self.whole(args, "chunk")[0], 1e-14)
        o, same = self.whole(args, "chunk", order=[(3, 6, False, True), (3, 6, False, True)])
        np.testing.assert_array_equal(o[:, :3], o[:, 3:])
        for order in ((), [(0, 12, False, False)]):
            o, same = self.whole(args, "chunk", order=order)
            assert o.shape == (1, 0, 2, 3)
        jax.tree.map(lambda x, w: np.testing.assert_array_equal(x[0], w), same.weights, args["weights"])

    def test_collinear_keys(self, form):
        """130 tokens whose keys differ by one percent, in float32. The plain step: their directions are of rank one.

        0.9e-5 to 1.2e-5, as the processor sums.
        """
        args = self.draw(18, T=130, K=8)
        args["k"] = unit(1 + 0.01 * args["k"])
        o, _ = self.call(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), args), form, muon=False)
        golden.check_close("o", o, self.call(args, "definition", muon=False)[0], 1.5e-5)

    # -- the write -------------------------------------------------------------------------------------------------

    def test_the_step_is_up_the_stated_gradient(self, form):
        """One write, plain. A nudged rate gives other weights."""
        args = self.draw(27, T=3, H=1, decay=None) | {"state": None}
        W = SwiGLU(*(w[0] for w in args["weights"]))
        k, v, lr = (args[n][0, :, 0] for n in ("k", "v", "lr"))
        _, state = self.whole(args, form, order="update-apply", muon=False)
        expected, others = stated_step(W, k, v, lr), stated_step(W, k, v, lr + 1e-6)
        for got, want, other in zip(state.weights, expected, others, strict=True):
            golden.check_close("W", got[0, 0], want, 1e-14)
            assert np.abs(got[0, 0] - other).max() > 1e-9

    def test_zero_rates_write_nothing(self, form):
        """But for the guard of the row norm, which takes 1e-5 off a row's length, once: 1e-5 is where it stays."""
        args = self.draw(28) | {"state": None}
        args["lr"] = np.zeros_like(args["lr"])
        _, state = self.whole(args, form)
        for got, w in zip(state.weights, args["weights"], strict=True):
            n0 = np.linalg.norm(w, axis=-1, keepdims=True)
            golden.check_close("W", got[0], w / n0 * (n0 - 1e-5), 1e-9)
        assert not any(np.any(x) for x in jax.tree.leaves(state.pending))

    def test_zero_keys_write_nothing(self, form):
        args = self.draw(14) | {"state": None}
        args["k"] = np.zeros_like(args["k"])
        _, state = self.whole(args, form)
        for got, w in zip(state.weights, args["weights"], strict=True):
            golden.check_close("W", got[0], w, 2e-5)
        assert not any(np.any(x) for x in jax.tree.leaves((state.pending, state.momentum)))
        assert np.any(state.pending_momentum)

    def test_rows_keep_their_initial_length(self, form):
        """Not that of the weights the call was given: a state remembers it from the first."""
        args = self.draw(29) | {"state": None}
        _, state = self.whole(args, form)
        for got, n0, w in zip(state.weights, state.norms, args["weights"], strict=True):
            golden.check_close("n0", n0[0], np.linalg.norm(w, axis=-1), 1e-15)
            golden.check_close("length", np.linalg.norm(got, axis=-1), n0, 1e-4)
            assert np.abs(got[0] - w).max() > 0.1

    @pytest.mark.parametrize("scale", [1e-2, 1e4])
    def test_with_muon_only_ratios_of_rates_matter(self, form, scale):
        """Of the plain step the size counts; a common factor on every rate of a matrix does nothing to Muon's."""
        args = self.draw(30) | {"state": None}
        changed = args | {"lr": args["lr"] * scale * np.array([1, 2, 3])}
        o, _ = self.whole(args, form)
        golden.check_close("muon", self.whole(changed, form)[0], o, 1e-4)  # the 1e-7 of the Frobenius norm has a scale
        plain = partial(self.whole, form=form, muon=False)
        assert np.abs(plain(changed)[0] - plain(args)[0]).max() > 0.01

    def test_the_momentum_of_a_chunk_is_its_mean(self):
        """Which tokens hold it does not matter, and the first write does not depend on it: no factor 1 - beta."""
        args = self.draw(31) | {"state": None}
        mean = args["momentum"].copy()
        for part in (slice(0, 5), slice(5, 10)):
            mean[:, part] = mean[:, part].mean(1, keepdims=True)
        want, state = self.whole(args, "chunk")
        golden.check_close("o", self.whole(args | {"momentum": mean}, "chunk")[0], want, 1e-13)
        first = self.part(args, 0, 6)
        _, one = self.whole(first, "chunk")
        _, none = self.whole({n: x for n, x in first.items() if n != "momentum"}, "chunk")
        jax.tree.map(partial(golden.check_close, "first write", tol=1e-14), one.weights, none.weights)

    def test_a_missing_row_and_a_missing_direction_have_gradients(self):
        """Zero rows and zero matrices: finite everywhere, as the slope of a norm at 0 is taken as 0."""
        args = self.draw(32) | {"state": None}
        args["weights"].gate[:, 1] = 0
        args["weights"].out[:] = 0
        args["v"][:, :5] = 0
        slopes = slopes_from_the_start(args, np.random.default_rng(33).normal(size=args["v"].shape))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(slopes))

    @pytest.mark.parametrize("muon", [True, False])
    def test_long_float16_keys_stay_finite(self, form, muon):
        """Of the shapes of the contract's tests of low precision, for the compilations of those."""
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float16), self.draw(33, T=33))
        args["k"] = args["k"] * jnp.float16(300)
        o, _ = self.call(args, form, muon=muon)
        assert o.dtype == jnp.float16
        want, _ = self.call(jax.tree.map(lambda x: x.astype(jnp.float64), args), "definition", muon=muon)
        golden.check_close("o", o, want, 2e-3)

    # -- cost ------------------------------------------------------------------------------------------------------

    def test_the_gradient_keeps_tokens_and_the_weights_of_each_chunk(self):
        """What goes from forward to backward: tokens in and out, and for a chunk no more than four sets of weights."""
        T, H, D = 256, 1, 8
        rng = np.random.default_rng(34)
        q, k, v = rng.normal(size=(3, 1, T, H, D))
        W = SwiGLU(*rng.normal(size=(3, H, D, D)))
        lr, momentum = rng.uniform(size=(1, T, H, 3)), rng.uniform(0.1, 0.9, (1, T, H))
        run = jax.jit(lambda *args: lact(*args[:5], chunk=32, momentum=args[5])[0])
        _, back = jax.vjp(run, q, k, v, lr, W, momentum)
        kept = sum(x.size for x in jax.tree.leaves(back))
        tokens = sum(x.size for x in (q, k, v, lr, momentum))
        assert kept < 1.1 * tokens + 4 * (T // 32) * 3 * D * D

    def test_second_derivatives(self):
        """Of the chunk form's rules inside its scan: along a direction they are the slope of the first, as measured."""
        drawn = self.draw(36, T=7, H=1, K=3, V=3)
        args = {name: drawn[name] for name in ("q", "k", "v", "lr", "weights", "momentum")}
        point, args_at = ravel_pytree(args)
        toward = np.random.default_rng(37).normal(size=point.shape)

        def along(point):
            slopes = jax.grad(lambda x: jnp.sum(jnp.sin(lact(**args_at(x), chunk=3, form="chunk")[0])))(point)
            return slopes @ toward, slopes

        both = jax.jit(jax.grad(along, has_aux=True))
        got, want = both(point)[0], measured_slope(lambda step: both(point + step * toward)[1], 1e-5)
        jax.tree.map(partial(golden.check_close, "second derivative", tol=1e-8), args_at(got), args_at(want))

    def test_float32_stays_float32_on_any_device(self):
        """Every product of output and gradient asks for full precision; a gradient is traced outside the door."""
        args = self.draw(35)
        run = partial(self.call, form="chunk")
        for f in (lambda args: run(args)[0], jax.grad(lambda args: jnp.sum(run(args)[0]))):
            products = re.findall(r"dot_general\[.*?\]\s*[a-z]", str(jax.make_jaxpr(f)(args)), re.DOTALL)
            assert len(products) > 10
            assert all("precision=(Precision.HIGHEST, Precision.HIGHEST)" in product for product in products)

    # -- bad input -------------------------------------------------------------------------------------------------

    def test_bad_input_is_named(self):
        args = self.draw(16, B=2, T=5, H=3, K=4, V=2) | {"state": None}
        W = args["weights"]
        _, state = self.whole(args, "chunk")

        def refuses(message, *, chunk=5, **changed):
            with pytest.raises(ValueError, match=message):
                lact(**args | changed, chunk=chunk)

        refuses(r"k has shape \[2, 5, 3, 3\]; expected \[B, T, H, K\] with K = 4", k=args["k"][..., :3])
        refuses(r"v has shape \[5, 3, 2\]; expected \[B, T, H, V\]", v=args["v"][0])
        refuses(r"q has dtype int32; expected a floating", q=np.ones((2, 5, 3, 4), np.int32))
        refuses(r"lr has shape \[2, 5, 3, 2\]; expected \[B, T, H, 3\]", lr=args["lr"][..., :2])
        refuses(r"lr has shape \[2, 5, 3\]", lr=args["lr"][..., 0])
        refuses(r"momentum has shape \[2, 4, 3\]", momentum=args["momentum"][:, :4])
        for wrong in (0.0, 1.0, -0.5, np.nan):
            refuses(f"momentum holds {wrong:g}; expected momentum between 0 and 1", momentum=np.full((2, 5, 3), wrong))
        refuses(r"weights is a tuple; expected SwiGLU\(gate, up, out\)", weights=tuple(W))
        refuses(r"weights is a SwiGLU; expected SwiGLU\(gate, up, out\) of three arrays", weights=W._replace(up=None))
        refuses(r"weights is None; expected SwiGLU\(gate, up, out\), or a state", weights=None)
        refuses(r"weights.gate has shape \[3, 5, 2\]; .* with K = 4", weights=W._replace(gate=W.gate[..., :2]))
        refuses(r"weights.up has shape \[3, 4, 4\]; .* with M = 5", weights=W._replace(up=W.up[:, :4]))
        refuses(r"weights.out has shape \[3, 5, 2\]; .* with V = 2", weights=W._replace(out=W.out.mT))
        refuses(r"weights.gate has shape \[1, 5, 4\]; .* with H = 3", weights=SwiGLU(*(w[:1] for w in W)))
        for wrong in (0, -64, 2.5, True, None):
            refuses(f"chunk is {wrong}; expected a whole number of tokens >= 1", chunk=wrong)
        for wrong in ("apply", 3, None):
            refuses(f"order is {wrong!r}; expected 'apply-update', 'update-apply' or a sequence", order=wrong)
        for wrong in (
            (0, 6, True, True),
            (-1, 2, True, True),
            (2, 2, True, True),
            (0, 2, 2, True),
            (0, 2),
            5,
            (0.0, 2, 1, 1),
        ):
            with pytest.raises(ValueError) as refusal:
                lact(**args, chunk=5, order=[(0, 5, True, True), wrong])
            assert f"order holds {wrong!r}; expected (start, end, update, apply), 0 <= start < end <= T = 5" in str(
                refusal
            )
        for wrong in (5, None, [(1.0, 2.0)], [1.0, 2.0, 3.0], [(1.0, 2.0, np.nan)], "sched5"):
            with pytest.raises(ValueError) as refusal:
                lact(**args, chunk=5, muon=wrong)
            assert f"muon is {wrong!r}; expected True, False or a sequence of (a, b, c)" in str(refusal)
        refuses(r"state is a tuple; expected LaCTState", state=tuple(state))
        refuses(r"state.weights is a tuple; expected SwiGLU", state=state._replace(weights=tuple(state.weights)))
        refuses(r"state.norms is None; expected SwiGLU", state=state._replace(norms=None))
        refuses(r"momentum is None, state.momentum a SwiGLU; expected both or neither", state=state, momentum=None)
        refuses(r"momentum is a .*, state.momentum None; expected both", state=state._replace(momentum=None))
        short = jax.tree.map(lambda x: x[:1] if x.ndim else x, state)
        refuses(r"state.* has shape \[1, 3.*\]; expected .* with B = 2", state=short)
        pending = state.pending._replace(out=state.pending.out.mT)
        refuses(r"state.pending.out has shape \[2, 3, 5, 2\]", state=state._replace(pending=pending))
        refuses(r"state.count holds 5; expected 0 to chunk = 4 tokens", state=state, chunk=4)
        refuses(r"state.count holds -1; expected 0", state=state._replace(count=jnp.int32(-1)))
        refuses(r"state.count is float64 of shape \[\]; expected one whole", state=state._replace(count=jnp.zeros(())))
        refuses(r"state.count is int64 of shape \[2\]", state=state._replace(count=jnp.zeros(2, jnp.int64)))
        with pytest.raises(
            ValueError, match="form is 'fast'; .* has 'definition', 'recurrent', 'chunk', 'kernel' and "
        ):
            self.call(args, "fast")


# -- golden files ------------------------------------------------------------------------------------------------------

CASES = golden.read("lact")
SETTINGS = json.loads(str(np.load(golden.FOLDER / "lact.npz")["meta_json"]))
VARIANTS = ("causal_prenorm", "fused", "bidir_muon_aspublished")


def cases(*kinds):
    return [n for n in CASES if SETTINGS[n]["kind"] in kinds and not n.startswith(VARIANTS)]


def order_of(s, T):
    """Item 7: stored; item 8: the noise of a group is read after the clean chunk that opens it is written."""
    if s["kind"] == "video":
        clean, group = s["mini_batch"], s["update_every"]
        order = [(0, group - clean, False, True)]
        for start in range(group - clean, T, group):
            order += [(start, start + clean, True, False), (start, start + group, False, True)]
        return order
    if "ops" in s:
        return [(start, end, bool(update), bool(apply)) for start, end, update, apply in s["ops"]]
    return "update-apply" if s["kind"] == "bidir" or s.get("module") == "minimal bidirectional" else "apply-update"


def options_of(name, T):
    s = SETTINGS[name]
    muon = s.get("use_muon", False)
    if "muon_steps" in s:
        muon = CONST5[: s["muon_steps"]]
    elif s["kind"] == "video" and muon:
        muon = CONST5
    whole = s["kind"] in ("bidir", "apply", "fwgrad") or s.get("module") == "minimal bidirectional"
    return {"chunk": T if whole else s.get("chunk", T), "order": order_of(s, T), "muon": muon}


def arguments(given, transposed=False):
    """The arguments of one head to each batch entry: w0 is the gate, w2 up, w1 out."""
    gate, out, up = (given[n].mT if transposed else given[n] for n in ("w0", "w1", "w2"))
    lr = jnp.concatenate([given["lr0"], given["lr2"], given["lr1"]], -1)[:, :, None]
    tokens = {n: given[n][:, :, None] for n in ("q", "k", "v")}
    momentum = given["momentum"] if "momentum" in given else None
    return tokens | {"lr": lr, "weights": SwiGLU(gate[:, None], up[:, None], out[:, None]), "momentum": momentum}


def run(name, given, form, **changed):
    """o and the state, under the names of the file."""
    nvs = "nvs" in name
    args, options = arguments(given, nvs), options_of(name, given["q"].shape[1])
    if nvs:  # the source takes no gradient of the initial norms
        state = before(args)
        args["state"] = state._replace(norms=jax.lax.stop_gradient(state.norms))
    o, state = lact(**args, form=form, **options | changed)
    W, buffer, pending = (
        None if part is None else [x[:, 0].mT if nvs else x[:, 0] for x in part]
        for part in (state.weights, state.momentum, state.pending)
    )
    return {"o": o[:, :, 0], "W": W, "M": buffer, "pending": pending}, state


def given_of(case):
    """The inputs under their names in the cases of functions; what a case lacks is read or written nowhere."""
    names = ("w0", "w1", "w2", "q", "k", "v", "lr0", "lr1", "lr2", "momentum")
    given = {n: case.get(n, case.get(f"op_{n}")) for n in names}
    tokens = next(given[n] for n in ("q", "k") if given[n] is not None)
    missing = {n: np.zeros((*tokens.shape[:2], 1)) if n.startswith("lr") else tokens for n in names[3:-1]}
    return {n: missing[n] if x is None else x for n, x in given.items() if x is not None or n in missing}


def check_state(name, found, case, last):
    for field, slot in (("w0", 0), ("w2", 1), ("w1", 2)):
        golden.check_close(f"{name} {field}", found["W"][slot], case[f"{field}_{last}"], 1e-10)
        if f"m{field[1]}_{last}" in case:
            golden.check_close(f"{name} m", found["M"][slot], case[f"m{field[1]}_{last}"], 1e-10)


@pytest.mark.parametrize("name", cases("causal", "nvs", "bidir", "video"))
def test_golden(name):
    """Outputs, the last state and all gradients of the chunk form; outputs of the others."""
    case = CASES[name]
    given = given_of(case)

    def loss(given):
        found, _ = run(name, given, "chunk")
        return jnp.sum(found["o"] * case["ct"]), found

    slopes, found = jax.jit(jax.grad(loss, has_aux=True))(given)
    golden.check_close("o", found["o"], case["o"], 1e-10)
    for n in slopes:
        if f"grad_{n}" in case:
            golden.check_close(f"d{n}", slopes[n], case[f"grad_{n}"], 1e-8)
    writes = SETTINGS[name].get("n_updates", 0)
    last = "final" if "w0_final" in case else f"after{writes}"
    if f"w0_{last}" in case:
        check_state(name, found, case, last)
    others = jax.jit(lambda given: {form: run(name, given, form)[0]["o"] for form in ("definition", "recurrent")})
    for form, o in others(given).items():
        golden.check_close(form, o, case["o"], 1e-10)


AXES = {"q": "BTK", "k": "BTK", "v": "BTV", "w0": "BMK", "w1": "BVM", "w2": "BMK"}
AXES |= {"lr0": "BT1", "lr1": "BT1", "lr2": "BT1"}
UPSTREAM = {"ct": "BTV", "ct_dw0": "BMK", "ct_dw1": "BVM", "ct_dw2": "BMK"}


@partial(jax.jit, static_argnames="form")
def one_chunk(given, upstream, form):
    """What is read and what stays pending, which is the chunk's direction; and the gradient of both by ``upstream``."""

    def loss(given):
        o, state = lact(**arguments(given), chunk=16, muon=False, form=form)
        dw0, dw2, dw1 = (d[:, 0] for d in state.pending)
        found = {"o": o[:, :, 0], "dw0": dw0, "dw1": dw1, "dw2": dw2}
        return sum(jnp.sum(x * ct) for x, ct in zip(found.values(), upstream.values(), strict=True)), found

    slopes, found = jax.grad(loss, has_aux=True)(given)
    return found, {f"grad_{n}": x for n, x in slopes.items()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", cases("apply", "fwgrad"))
def test_golden_chunk(name, form):
    """Filled up with tokens of rate 0 and units without weights, so that all share a compilation for a form."""
    case, size = CASES[name], {"T": 16, "K": 8, "V": 8, "M": 16}
    given = given_of(case)
    upstream = golden.padded(case | {"w": given["q"]}, UPSTREAM, size)
    for results, tol in zip(one_chunk(golden.padded(given, AXES, size), upstream, form), (1e-12, 1e-10), strict=True):
        stored = case.keys() & results.keys()
        assert stored
        for n in stored:
            golden.check_close(n, results[n][tuple(map(slice, case[n].shape))], case[n], tol)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", cases("update"))
def test_golden_writes(name, form):
    """One write after the other, with the momentum between them in the state."""
    case, chunk, state = CASES[name], SETTINGS[name]["chunk"], None
    given = given_of(case)
    for i in range(SETTINGS[name]["n_updates"]):
        tokens = {n: x if n[0] == "w" else x[:, i * chunk : (i + 1) * chunk] for n, x in given.items()}
        args = arguments(tokens)
        args["state"] = before(args) if state is None else state
        _, state = lact(**args, chunk=chunk, order="update-apply", muon=SETTINGS[name]["use_muon"], form=form)
        found = {"W": [x[:, 0] for x in state.weights], "M": state.momentum and [x[:, 0] for x in state.momentum]}
        check_state(name, found, case, f"after{i + 1}")


def test_golden_carried_state():
    """View synthesis: prefill, then views that only read."""
    case = CASES["nvs_carry_T16"]
    _, state = run("nvs_carry_T16", given_of(case), "chunk")
    q = case["q_second"][:, :, None]
    o, _ = lact(q, q, q, jnp.zeros((*q.shape[:3], 3)), None, chunk=1, order=[(0, 6, False, True)], state=state)
    golden.check_close("o", o[:, :, 0], case["o_second"], 1e-10)


PRENORM = [n for n in CASES if n.startswith(("causal_prenorm", "fused_prenorm", "layer_llm_nope_full_prenorm"))]


@pytest.mark.parametrize("name", [n for n in cases("layer") if n not in PRENORM])
def test_golden_inside_the_layers(name):
    """What entered and left the operation in whole layers, of language, view synthesis and both minimal files."""
    case = CASES[name]
    found, _ = run(name, given_of(case), "chunk")
    golden.check_close("o", found["o"], case["op_o"], 1e-10)
    for slot, n in enumerate(("w0", "w2", "w1")):
        if f"final_{n}" in case:
            golden.check_close(n, found["W"][slot], case[f"final_{n}"], 1e-10)


@pytest.mark.parametrize("name", PRENORM)
def test_the_prenorm_variant_is_another_rule_from_the_second_write_on(name):
    """There the sum of all steps is kept unnormalised, and a normalised copy is read. LaCT Alg. 1 and all published
    settings but one flag normalise what is kept, and so does ``lact``, which does not offer the variant: up to the
    second write they are the same, and then they are not.
    """
    case, chunk = CASES[name], SETTINGS[name]["chunk"]
    o, want = run(name, given_of(case), "chunk")[0]["o"], case["o" if "o" in case else "op_o"]
    golden.check_close("two chunks", o[:, : 2 * chunk], want[:, : 2 * chunk], 1e-10)
    assert np.abs(o - want)[:, 2 * chunk :].max() > 1e-4 * np.abs(want).max()


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("fused_mom_T20_c8", 5e-6, 5e-5),  # the guard inside the root of the row norm
        ("fused_muonmom_T20_c8", 0.2, 0.4),  # gate and up orthogonalised as one matrix
        ("bidir_muon_aspublished_T20", 0.2, 2.0),  # the initial weights dropped from the sum
    ],
)
def test_where_published_code_computes_something_else(name, low, high):
    case = CASES[name]
    o = run(name, given_of(case), "chunk")[0]["o"]
    assert low < np.linalg.norm(o - case["o"]) / np.linalg.norm(case["o"]) < high


@pytest.mark.parametrize("name", cases("wnorm"))
def test_golden_row_norm(name):
    """With a row of zeros and a tiny one; the guard inside the root, as the fused kernel has it, is something else."""
    case = CASES[name]
    out, back = jax.vjp(lambda Z: jax.vmap(restored)(Z, case["norm0"]), case["w"] + case["dw"])
    golden.check_close("out", out, case["out"], 1e-13)
    golden.check_close("dw", back(case["ct"])[0], case["grad_w"], 1e-10)
    assert np.abs(out - case["out_eps_in_sqrt"]).max() > 1e-6


def test_row_norm_has_the_slope_of_its_formula():
    Z, weigh = jnp.asarray(np.random.default_rng(40).normal(size=(2, 6, 4)))
    n0 = jnp.asarray(np.random.default_rng(41).uniform(0.5, 2, (6, 1)))
    formula = lambda Z, n0: jnp.sum(weigh * Z / (jnp.linalg.norm(Z, axis=1, keepdims=True) + 1e-5) * n0)  # noqa: E731
    want = jax.jit(jax.grad(formula, (0, 1)))(Z, n0)
    got = jax.jit(jax.grad(lambda Z, n0: jnp.sum(weigh * restored(Z, n0)), (0, 1)))(Z, n0)
    jax.tree.map(partial(golden.check_close, "slope", tol=1e-13), got, want)


@pytest.mark.parametrize("name", cases("pieces"))
def test_golden_silu(name):
    """The rest of these cases belongs to the layer."""
    a = CASES[name]["z"]
    s, s1, s2 = silu(a)
    golden.check_close("silu", s, CASES[name]["silu"], 1e-14)
    golden.check_close("silu'", s1, CASES[name]["silu_bp_dy1"], 1e-14)
    golden.check_close("silu''", s2, jax.vmap(jax.grad(lambda a: silu(a)[1]))(a), 1e-13)
