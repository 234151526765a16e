"""Hawk's recurrence: the paper's formula in long doubles, what the root is for, and decays at both ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules import golden
from tests.rules.contract import Common
from ttt_teach.rules.rglru import FORMS, rglru


class TestRGLRU(Common):
    rule = staticmethod(rglru)
    forms = tuple(FORMS)
    values = "x"
    linear_in = ("x",)
    test_zero_keys_write_nothing = test_collinear_keys = test_long_keys_in_half_precision = None  # it has no keys

    def draw(self, seed=0, *, B=1, T=12, K=4, **_):
        rng = np.random.default_rng(seed)
        return {
            "x": rng.normal(size=(B, T, K)),
            "input_gate": rng.uniform(0.05, 0.95, (B, T, K)),
            "log_decay": np.log(rng.uniform(0.3, 0.99, (B, T, K))),
            "state": rng.normal(size=(B, K)),
        }

    def by_hand(self, x, input_gate, log_decay, state):
        """Eqs. (3) and (4) as they are printed, in long doubles."""
        x, i, log_a, h = (np.asarray(y, np.longdouble) for y in (x, input_gate, log_decay, state))
        o = []
        for t in range(x.shape[1]):
            a = np.exp(log_a[:, t])
            h = a * h + np.sqrt(1 - a**2) * (i[:, t] * x[:, t])
            o.append(h)
        return np.stack(o, 1)

    def test_the_recurrence_by_hand(self, form):
        args = self.draw(20, B=2)
        golden.check_close("o", rglru(**args, form=form)[0], self.by_hand(**args), 1e-15)

    def test_decay_near_one_keeps_its_digits(self, form):
        """1 - a^2 = 2e-6 in float32: a itself has only two digits of it."""
        args = self.draw(21) | {"state": np.zeros((1, 4))}
        args["log_decay"] = np.float32(-1e-6 * (1 + np.arange(12)))[None, :, None] * np.ones((1, 1, 4), np.float32)
        args = jax.tree.map(np.float32, args)
        golden.check_close("o", rglru(**args, form=form)[0], self.by_hand(**args), 3e-7)

    def test_the_root_keeps_the_variance(self, form):
        """The squared weights of x_1 ... x_t in h_t sum to 1 - (a_1 ... a_t)^2, so white noise stays at variance 1."""
        T = 9
        log_decay = self.draw(22, T=T, K=1)["log_decay"]
        pulses = np.eye(T)[:, :, None]  # one sequence for every x_i
        o, _ = rglru(pulses, np.ones_like(pulses), np.broadcast_to(log_decay, pulses.shape), form=form)
        golden.check_close("sum", np.sum(o[:, -1] ** 2, 0), 1 - np.exp(2 * log_decay.sum(1))[0], 1e-15)

    def test_decay_of_one_keeps_the_state_and_lets_nothing_in(self, form):
        """And no gradient is NaN or infinite there: none runs through the root."""
        args = self.draw(23)
        args["log_decay"][:, 3:6] = 0
        o, _ = rglru(**args, form=form)
        np.testing.assert_array_equal(o[:, 5], o[:, 2])
        slopes = jax.jit(jax.grad(lambda args: jnp.sum(jnp.sin(rglru(**args, form=form)[0]))))(args)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(slopes))
        assert not np.any(slopes["x"][:, 3:6])
        # What is left is the slope of a h alone: that of the same decays with nothing to enter.
        quiet = args | {"x": np.array(args["x"])}
        quiet["x"][:, 3:6] = 0
        want = jax.jit(jax.grad(lambda args: jnp.sum(jnp.sin(rglru(**args, form=form)[0]))))(quiet)
        golden.check_close("log_decay", slopes["log_decay"][:, 3:6], want["log_decay"][:, 3:6], 1e-14)

    def test_decay_of_zero_forgets_everything(self, form):
        """log_decay = -inf is a reset: h is the gated input of that token, whatever came before."""
        args = self.draw(24)
        args["log_decay"][:, 4] = -np.inf
        o, _ = rglru(**args, form=form)
        np.testing.assert_array_equal(o[:, 4], args["input_gate"][:, 4] * args["x"][:, 4])
        late = {n: x[:, 5:] for n, x in args.items() if n != "state"} | {"state": o[:, 4]}
        golden.check_close("o", o[:, 5:], rglru(**late, form=form)[0], 1e-15)
        slopes = jax.jit(jax.grad(lambda args: jnp.sum(jnp.sin(rglru(**args, form=form)[0][:, 4:]))))(args)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(slopes))
        assert not np.any(slopes["state"]) and not np.any(slopes["x"][:, :4]) and np.all(slopes["x"][:, 4:])

    @pytest.mark.parametrize("log_decay", [-60.0, -1000.0])
    def test_strong_decay_is_finite(self, form, log_decay):
        args = self.draw(25, T=70)
        args["log_decay"] = np.full_like(args["log_decay"], log_decay)
        args = jax.tree.map(np.float32, args)
        golden.check_close("o", rglru(**args, form=form)[0], self.by_hand(**args), 1e-7)

    def test_a_closed_gate_lets_nothing_in(self, form):
        args = self.draw(26)
        args["input_gate"] = np.zeros_like(args["input_gate"])
        want = np.exp(np.cumsum(args["log_decay"], 1)) * args["state"][:, None]
        golden.check_close("o", rglru(**args, form=form)[0], want, 1e-15)

    def test_bad_input_is_named(self):
        args = self.draw(27)
        for message, changed in (
            (r"x has shape \[12, 4\]; expected \[B, T, D\]", {"x": args["x"][0]}),
            (r"x has dtype int32; expected a floating", {"x": np.ones((1, 12, 4), np.int32)}),
            (r"input_gate has shape \[1, 12, 3\].* with D = 4", {"input_gate": args["input_gate"][..., :3]}),
            (r"input_gate holds 1.5; expected a gate between 0 and 1", {"input_gate": np.full((1, 12, 4), 1.5)}),
            (r"input_gate holds -0.1; expected", {"input_gate": np.full((1, 12, 4), -0.1)}),
            (r"log_decay holds 0.5; expected log_decay <= 0", {"log_decay": np.full((1, 12, 4), 0.5)}),
            (r"log_decay has shape \[1, 11, 4\].* with T = 12", {"log_decay": args["log_decay"][:, :11]}),
            (r"state has shape \[1, 3\]; expected \[B, D\] with D = 4", {"state": np.zeros((1, 3))}),
            (r"state has shape \[1, 1, 4\]; expected \[B, D\]", {"state": np.zeros((1, 1, 4))}),
        ):
            with pytest.raises(ValueError, match=message):
                rglru(**(args | changed))
