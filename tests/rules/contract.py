"""What every rule owes in every form. A rule inherits a class of this file, names itself, and gets all of it.

:class:`Common` holds for every rule, :class:`Contract` adds what a rule with ``log_decay`` owes.
"""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rules.golden import check_close
from ttt_teach.tasks import unit

LENGTHS = (0, 1, 2, 7, 63, 64, 65, 130)
CHUNKS = (1, 5, 16, 64)


def measured_slope(f, h: float):
    """f'(0) by central differences of fourth order (error ~ h^4)."""
    (near, back), (far, far_back) = ((f(x), f(-x)) for x in (h, 2 * h))
    return (8 * (near - back) - (far - far_back)) / (12 * h)


def slope_and_measured(f, h: float):
    """f'(0) by autodiff, and as it is measured; one compilation for both."""
    both = jax.jit(jax.value_and_grad(f))
    return both(0.0)[1], measured_slope(lambda x: both(x)[0], h)


@partial(jax.jit, static_argnames=("rule", "form"))
def pulled(rule, form, args, slopes):
    """(o, state), and the gradients of their product with ``slopes``, in chunks of 5.

    rule: a subclass of :class:`Common`. Compiled once for all the tests that have arguments of the same shapes.
    """
    results, back = jax.vjp(lambda args: rule().call(args, form, chunk=5), args)
    return results, back(slopes)[0]


class Common:
    """Subclasses set ``rule`` (the public function), ``forms``, and may change :meth:`draw` and :meth:`call`.

    A rule that takes other arguments says which of them are the values (the output has their shape and dtype) and
    in which it is linear. ``call`` gives ``(o, ())`` for a rule without a state.
    """

    rule = None
    forms: tuple[str, ...] = ()
    kernel = False  # whether it has one, which its own file tests
    values = "v"
    linear_in: tuple[str, ...] = ("q", "v")
    length = 130  # of all that is in float32, so that it compiles once: chunks of 64, 64 and 2

    def draw(self, seed=0, *, B=1, T=12, H=2, K=4, V=3, decay="head"):
        """Arguments by name; ``decay`` is None, "head" or "channel". Keys are unit length."""
        rng = np.random.default_rng(seed)
        args = {
            "q": unit(rng.normal(size=(B, T, H, K))),
            "k": unit(rng.normal(size=(B, T, H, K))),
            "v": rng.normal(size=(B, T, H, V)),
            "state": self.draw_state(rng, B, H, K, V),
        }
        if decay and decay in self.decays():
            shape = (B, T, H) if decay == "head" else (B, T, H, K)
            args["log_decay"] = np.log(rng.uniform(0.5, 1, shape))
        return args

    def draw_state(self, rng, B, H, K, V):
        return rng.normal(size=(B, H, K, V))

    def keys(self, k):
        """The arguments that are keys, when k takes the place of those drawn."""
        return {"k": k}

    def call(self, args, form, **options):
        return type(self).rule(**args, form=form, **options)

    def decays(self):
        return (None,)

    # -- forms -----------------------------------------------------------------------------------------------------

    def test_forms_agree(self):
        @settings(max_examples=3, deadline=None)
        @given(
            seed=st.integers(0, 1000),
            B=st.integers(1, 2),
            T=st.sampled_from(LENGTHS),
            H=st.integers(1, 3),
            K=st.integers(1, 5),
            V=st.integers(1, 5),
            decay=st.sampled_from(self.decays()),
            with_state=st.booleans(),
            chunk=st.sampled_from(CHUNKS),
        )
        def agree(seed, B, T, H, K, V, decay, with_state, chunk):
            args = self.draw(seed, B=B, T=T, H=H, K=K, V=V, decay=decay)
            if not with_state:
                args["state"] = None
            run = jax.jit(lambda args, form: self.call(args, form, chunk=chunk), static_argnums=1)
            want_o, want_state = run(args, "definition")
            assert want_o.shape == args[self.values].shape
            for form in self.forms[1:]:
                o, state = run(args, form)
                check_close(form, o, want_o, 1e-11)
                jax.tree.map(partial(check_close, form, tol=1e-11), state, want_state)

        agree()

    def test_auto_is_the_last_form(self):
        args = self.draw()
        o, _ = self.call(args, "auto")
        np.testing.assert_array_equal(o, self.call(args, self.forms[-1])[0])

    def test_gradients_agree(self):
        """And so do the results of what the gradient is taken of, which a custom gradient computes in its own way."""
        for decay in self.decays()[-2:]:
            args = self.draw(3, decay=decay)
            slopes = self.slopes(args)
            results, back = pulled(type(self), "definition", args, slopes)
            want = results, self.meaningful(back)
            for form in self.forms[1:]:
                results, back = pulled(type(self), form, args, slopes)
                got = results, self.meaningful(back)
                jax.tree.map(partial(check_close, f"{form} {decay}", tol=1e-9), got, want)

    def slopes(self, args, seed=4):
        """An upstream gradient of every result."""
        rng = np.random.default_rng(seed)
        shapes = jax.eval_shape(lambda args: self.call(args, "definition"), args)
        return jax.tree.map(lambda x: rng.normal(size=x.shape), shapes)

    def meaningful(self, slopes):
        """The part of a gradient that two forms must agree on."""
        return slopes

    def test_gradient_is_the_slope(self, form):
        """Central differences of the output that is differentiated, along a random direction."""
        args = self.draw(5)
        rng = np.random.default_rng(6)
        toward = jax.tree.map(lambda x: self.nudge(rng, x), args)
        o, state = pulled(type(self), form, args, self.slopes(args))[0]
        upstream = -np.sin(o), jax.tree.map(lambda x: 2 * x, state)  # of what f sums

        def f(step):
            moved = jax.tree.map(lambda x, d: x + step * d, args, toward)
            o, state = pulled(type(self), form, moved, upstream)[0]
            return np.sum(np.cos(o)) + sum(np.sum(x**2) for x in jax.tree.leaves(state))

        _, slopes = pulled(type(self), form, args, upstream)
        slope = sum(np.sum(x * d) for x, d in zip(jax.tree.leaves(slopes), jax.tree.leaves(toward), strict=True))
        check_close(form, slope, measured_slope(f, 1e-4), 1e-9)

    def nudge(self, rng, x):
        return 0.1 * rng.normal(size=x.shape)

    @pytest.mark.parametrize("cut", [0, 6])
    def test_a_split_changes_nothing(self, form, cut):
        """Nothing and all, and two halves, which share a compilation."""
        args = self.draw(7)
        tokens = {n for n, x in args.items() if n not in ("state", "lam")}
        head = args | {n: args[n][:, :cut] for n in tokens}
        tail = args | {n: args[n][:, cut:] for n in tokens}
        want_o, want_state = self.call(args, form)
        o1, middle = self.call(head, form)
        o2, state = self.call(tail | {"state": middle}, form)
        check_close("o", jnp.concatenate([o1, o2], 1), want_o, 1e-13)
        jax.tree.map(lambda x, want: check_close("state", x, want, 1e-13), state, want_state)

    def test_jit_and_vmap(self, form):
        args = self.draw(8)
        want, _ = self.call(args, form)
        twice = jax.tree.map(lambda x: jnp.stack([x, x]), args)
        got, _ = jax.jit(jax.vmap(lambda args: self.call(args, form)))(twice)
        check_close("jit vmap", got[1], want, 1e-13)

    def test_arguments_from_outside_a_jit(self):
        """Arrays that a jitted function closes over have values, and are checked as such."""
        args = jax.tree.map(jnp.asarray, self.draw(8))
        got, _ = jax.jit(lambda x: self.call(args | {self.values: x}, "auto"))(args[self.values])
        check_close("jit", got, self.call(args, "auto")[0], 1e-13)

    # -- precision -------------------------------------------------------------------------------------------------

    def test_float32_products_are_float32_on_any_device(self, form):
        """A GPU would round to 11 bits where nobody asks for more; a gradient rule is traced outside the door."""
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.draw(20))
        slopes = jax.jit(jax.grad(lambda args: jnp.sum(self.call(args, form)[0])))
        products = [line for line in slopes.lower(args).as_text().splitlines() if "dot_general" in line]
        assert not [line for line in products if "HIGHEST" not in line]

    @pytest.mark.parametrize(("dtype", "tol"), [("float32", 1e-5), ("bfloat16", 1e-2), ("float16", 2e-3)])
    def test_low_precision_inputs(self, form, dtype, tol):
        """Against float64 on the same rounded inputs; the state stays float32, the output has the dtype of v."""
        args = jax.tree.map(lambda x: jnp.asarray(x, dtype), self.draw(9, T=self.length, K=8))
        o, state = self.call(args, form)
        assert o.dtype == dtype
        assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(state))
        want, want_state = self.call(jax.tree.map(lambda x: x.astype(jnp.float64), args), "definition")
        check_close("o", o, want, tol)
        jax.tree.map(lambda x, w: check_close("state", x, w, 1e-5), state, want_state)

    @pytest.mark.parametrize("scale", [1e-4, 1e4])
    def test_scales(self, form, scale):
        """Every rule is linear in q where it has one, and in (v, state) together: the same to rounding at any size."""
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.draw(10, T=self.length, K=8) | {"state": None})
        want, _ = self.call(args, form)
        for name in self.linear_in:
            got, _ = self.call(args | {name: args[name] * scale}, form)
            check_close(name, got / scale, want, 3e-6)

    # -- extremes --------------------------------------------------------------------------------------------------

    def test_zero_keys_write_nothing(self, form):
        args = self.draw(14) | {"state": None}
        args |= self.keys(np.zeros_like(args["k"]))
        o, state = self.call(args, form)
        assert not np.any(o) and not any(np.any(x) for x in jax.tree.leaves(state))

    def test_collinear_keys(self, form):
        """Tokens whose keys differ by one percent, in float32."""
        args = self.draw(18, T=self.length, K=8)
        args |= self.keys(unit(1 + 0.01 * args["k"]))
        o, _ = self.call(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), args), form)
        check_close("o", o, self.call(args, "definition")[0], 1e-5)

    def test_long_keys_in_half_precision(self, form):
        """Keys of length 4 in float16, with a write strength that suits them."""
        args = self.draw(19, T=self.length, K=8)
        args |= self.keys(4 * args["k"])
        if "beta" in args:
            args["beta"] = args["beta"] / 16
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float16), args)
        want, _ = self.call(jax.tree.map(lambda x: x.astype(jnp.float64), args), "definition")
        check_close("o", self.call(args, form)[0], want, 2e-3)

    def test_all_zero_upstream(self, form):
        args = self.draw(15)
        _, slopes = pulled(type(self), form, args, jax.tree.map(np.zeros_like, self.slopes(args)))
        assert not any(np.any(x) for x in jax.tree.leaves(slopes))

    # -- bad input -------------------------------------------------------------------------------------------------

    def test_bad_input_is_named(self):
        args = self.draw(16, B=2, T=5, H=3, K=4, V=2)

        def refuses(message, **changed):
            with pytest.raises(ValueError, match=message):
                self.call(args | changed, "auto")

        refuses(r"k has shape \[2, 5, 3, 3\]; expected \[B, T, H, K\] with K = 4", k=args["k"][..., :3])
        refuses(r"k has shape \[2, 4, 3, 4\].* with T = 5", k=args["k"][:, :4])
        refuses(r"v has shape \[5, 3, 2\]; expected \[B, T, H, V\]", v=args["v"][0])
        refuses(r"q has dtype int32; expected a floating", q=np.ones((2, 5, 3, 4), np.int32))

    def test_no_array_of_another_shape_or_kind_gets_through(self):
        """Each array with an axis too few or too many, an entry short on each axis, or not of floats; under jit."""
        args = self.draw(16, B=2, T=5, H=3, K=4, V=6)
        leaves, tree = jax.tree.flatten(args)
        call = jax.jit(lambda args: self.call(args, "auto"))
        for i, x in enumerate(leaves):
            if np.issubdtype(x.dtype, np.floating):
                free = x is args[self.values] and "state" not in args  # then nothing else has the width of the values
                short = [np.delete(x, 0, axis) for axis in range(x.ndim - free)]
                for wrong in (x[0], x[None, None, None], *short, x.astype(int), x.astype(complex), x > 0):
                    with pytest.raises(ValueError, match=r"\w.* (is|has|holds) .*; expected "):
                        call(tree.unflatten([*leaves[:i], wrong, *leaves[i + 1 :]]))

    def test_what_is_missing_is_named(self):
        args = self.draw(16)
        for name, x in args.items():
            if name not in ("write_key", "log_decay", "state", "momentum", "retention", "weights"):
                for wrong, kind in ((None, "None"), ("text", "a str"), ([[1.0], [1.0, 2.0]], "a list")):
                    with pytest.raises(ValueError, match=f"{name} is {kind}; expected "):
                        self.call(args | {name: wrong}, "auto")
            assert x is not None

    def test_scale_may_be_any_real_number(self, form):
        """A float64 of NumPy among float32 arrays, as in ``scale=1 / np.sqrt(K)``, promotes nothing."""
        if "scale" in inspect.signature(type(self).rule).parameters:
            args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.draw(21, T=self.length, K=8))
            want, _ = self.call(args, form, scale=0.5)
            for scale in (np.float64(0.5), np.float32(0.5), jnp.float32(0.5), np.array(0.5)):
                o, state = self.call(args, form, scale=scale)
                np.testing.assert_array_equal(o, want)
                assert {x.dtype for x in jax.tree.leaves((o, state))} == {jnp.dtype("float32")}

    def test_a_bad_form_or_chunk_is_named(self):
        args, names = self.draw(16), ", ".join(map(repr, (*self.forms, *["kernel"] * self.kernel)))
        with pytest.raises(ValueError, match=f"form is 'fast'; .* has {names} and 'auto'"):
            self.call(args, "fast")
        for wrong in (0, -64, 2.5, True, None):
            with pytest.raises(ValueError, match=f"chunk is {wrong}; expected a whole number of tokens >= 1"):
                self.call(args, "auto", chunk=wrong)

    def test_nan_is_named_while_debugging(self):
        args = self.draw(17)
        args[self.values][0, 3] = np.nan
        with jax.debug_nans(True), pytest.raises(ValueError, match=f"{self.values} holds NaN"):
            self.call(args, "auto")


class Contract(Common):
    """A rule that forgets: ``log_decay`` per head, and unless ``per_channel`` is False per key channel too."""

    per_channel = True

    def decays(self):
        return (None, "head", "channel") if self.per_channel else (None, "head")

    def test_decay_of_zero_forgets_everything(self, form):
        """log_decay = -inf is a reset: what follows is as if nothing had come before, and nothing is NaN."""
        args = self.draw(11)
        upstream = self.slopes(args)
        new = args | {n: args[n].copy() for n in ("k", "v", "log_decay")}
        new |= {"state": jax.tree.map(np.zeros_like, args["state"])}
        new["k"][:, :4] = new["v"][:, :4] = new["log_decay"][:, 4] = 0
        args["log_decay"][:, 4] = -np.inf
        ((o, _), slopes), ((want, _), _) = (pulled(type(self), form, x, upstream) for x in (args, new))
        check_close("o", o[:, 4:], want[:, 4:], 1e-12)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(slopes))

    def test_decay_of_one_is_no_decay(self, form):
        args = self.draw(12, decay=None)
        still = args | {"log_decay": np.zeros(args["q"].shape[:3])}
        np.testing.assert_array_equal(self.call(still, form)[0], self.call(args, form)[0])

    @pytest.mark.parametrize("log_decay", [-60.0, -1000.0])
    def test_strong_decay_is_finite(self, form, log_decay):
        args = self.draw(13, T=self.length, K=8)
        args["log_decay"] = np.full_like(args["log_decay"], log_decay)
        o, _ = self.call(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), args), form)
        check_close("o", o, self.call(args, "definition")[0], 1e-5)

    def test_a_bad_decay_is_named(self):
        args = self.draw(16)
        for wrong, message in (
            (np.full((1, 12, 2), 0.5), "log_decay holds 0.5; expected log_decay <= 0"),
            (np.zeros((1, 12)), r"log_decay has shape \[1, 12\]"),
        ):
            with pytest.raises(ValueError, match=message):
                self.call(args | {"log_decay": wrong}, "auto")
