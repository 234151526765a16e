"""Longhorn: the stated objective is at its minimum; no beta is too large; the delta rule with another step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules import golden
from tests.rules.contract import Common
from ttt_teach.rules.delta import delta
from ttt_teach.rules.longhorn import FORMS, longhorn
from ttt_teach.rules.longhorn.recurrent import implicit


class TestLonghorn(Common):
    rule = staticmethod(longhorn)
    forms = tuple(FORMS)

    def draw(self, seed=0, *, B=1, T=12, H=2, **rest):
        args = super().draw(seed, B=B, T=T, H=H, **rest)
        return args | {"beta": np.random.default_rng(seed + 1).uniform(0, 3, (B, T, H))}

    def one(self, seed, β, *, length=1.0):
        """One token of one head, as arrays without those axes, and as arguments."""
        args = self.draw(seed, T=1, H=1)
        args["k"] = length * args["k"]
        args["beta"] = np.full_like(args["beta"], β)
        return args, args["k"][0, 0, 0], args["v"][0, 0, 0], args["state"][0, 0]

    @pytest.mark.parametrize("beta", [0.0, 0.3, 20.0])
    def test_the_stated_objective_is_stationary(self, form, beta):
        """The objective is stated here again, for the whole matrix, and differentiated at the answer and beside it."""
        args, k, v, before = self.one(20, beta, length=1.5)

        def objective(S):
            return jnp.sum((S - before) ** 2) + beta * jnp.sum((v - S.T @ k) ** 2)

        S = longhorn(**args, form=form)[1][0, 0]
        assert np.abs(jax.grad(objective)(S)).max() < 2e-14
        assert np.abs(jax.grad(objective)(S.at[0, 0].add(1e-6))).max() > 1e-6

    def test_the_error_shrinks_by_its_factor(self, form):
        """1 / (1 + beta |k|^2): never over the mark, as the delta rule with the same beta is from 1 / |k|^2 on."""
        for β in (0.0, 0.5, 1.0, 2.0, 100.0):
            args, k, v, before = self.one(21, β, length=2.0)
            after = v - longhorn(**args, form=form)[1][0, 0].T @ k
            assert np.abs(after - (v - before.T @ k) / (1 + 4 * β)).max() < 1e-14

    def test_beta_of_zero_writes_nothing(self, form):
        args = self.draw(22)
        args["beta"] = np.zeros_like(args["beta"])
        np.testing.assert_array_equal(longhorn(**args, form=form)[1], args["state"])

    @pytest.mark.parametrize("beta", [1e6, 1e30, np.finfo(np.float32).max])
    @pytest.mark.parametrize("closed", ["recurrent", "chunk"])
    def test_a_huge_beta_stores_the_pair(self, closed, beta):
        """To the last bits of float32, with long keys in one head and zero keys in the other.

        The direct solve is left out: its condition number is 1 + beta |k|^2.
        """
        args = self.draw(23, T=1)
        args["k"] = args["k"] * [[[[30], [0]]]]
        args["beta"] = np.full_like(args["beta"], beta)
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), args)
        o, S = longhorn(**args | {"q": args["k"]}, form=closed)
        rounding = 2e-7 * np.abs(args["state"][0, 0].T @ args["k"][0, 0, 0]).max()
        assert np.abs(o - args["v"])[0, 0, 0].max() < rounding
        np.testing.assert_array_equal(S[0, 1], args["state"][0, 1])

    @pytest.mark.parametrize("closed", ["recurrent", "chunk"])
    def test_gradients_at_a_huge_beta(self, closed):
        """Float32 against float64 with beta 1e6, where d step / dbeta is 1e-12, a difference of numbers near 1e-6."""
        args = self.draw(24)
        args["beta"] = np.full_like(args["beta"], 1e6)
        slopes = jax.jit(jax.grad(lambda args, form: jnp.sum(longhorn(**args, form=form)[0] ** 2)), static_argnums=1)
        want = slopes(args, "recurrent")
        got = slopes(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), args), closed)
        jax.tree.map(lambda x, w: golden.check_close("slope", x, w, 1e-4), got, want)

    @pytest.mark.parametrize("closed", ["recurrent", "chunk"])
    def test_zero_keys_have_finite_gradients(self, closed):
        args = self.draw(25, T=5)
        args["k"][:, 2] = 0
        args["beta"] = np.full_like(args["beta"], 1e30)
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), args)
        slopes = jax.jit(jax.grad(lambda args: jnp.sum(jnp.sin(longhorn(**args, form=closed)[0]))))(args)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(slopes))

    @pytest.mark.parametrize("beta", [0.1, 2.5, 1e4])
    def test_the_error_never_grows(self, form, beta):
        """Values of a fixed map: the distance of S to it does not grow, whatever beta; the delta rule's does."""
        args = self.draw(26, T=40, H=1)
        true = np.random.default_rng(27).normal(size=(4, 3))
        args["v"] = args["k"] @ true
        args["beta"] = np.full_like(args["beta"], beta)

        def distances(rule):
            S = args["state"]
            for t in range(40):
                token = {n: x[:, t : t + 1] for n, x in args.items() if n != "state"}
                S = rule(**token, state=S, form=form)[1]
                yield np.linalg.norm(S[0, 0] - true)

        assert np.all(np.diff(list(distances(longhorn))) <= 1e-12)
        if beta > 2:
            assert np.all(np.diff(list(distances(delta))) > 0)

    def test_it_is_the_delta_rule_with_another_step(self, form):
        args = self.draw(28)
        step = args["beta"] / (1 + args["beta"] * np.sum(args["k"] ** 2, -1))
        for got, want in zip(longhorn(**args, form=form), delta(**args | {"beta": step}, form=form), strict=True):
            golden.check_close("delta", got, want, 1e-13)

    def test_scale_multiplies_q(self, form):
        args = self.draw(29)
        o, _ = longhorn(**args, scale=0.5, form=form)
        golden.check_close("o", o, longhorn(**args | {"q": 0.5 * args["q"]}, form=form)[0], 1e-15)

    def test_bad_input_of_its_own(self):
        args = self.draw(30)
        for message, changed in (
            (r"beta holds -1; expected beta >= 0", {"beta": -np.ones((1, 12, 2))}),
            (r"beta holds inf; expected beta >= 0 and finite", {"beta": np.full((1, 12, 2), np.inf)}),
            (r"beta has shape \[12, 2\]; expected \[B, T, H\]", {"beta": np.ones((12, 2))}),
            (r"state has shape \[1, 2, 3, 3\]; expected \[B, H, K, V\] with K = 4", {"state": np.ones((1, 2, 3, 3))}),
            (r"scale is .*; expected one real number", {"scale": np.ones(3)}),
        ):
            with pytest.raises(ValueError, match=message):
                longhorn(**(args | changed))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_step_over_all_sizes(dtype):
    """Against long double, wherever beta |k|^2 is a number at all, both value and slopes."""
    β, length = (x.ravel() for x in np.meshgrid(np.logspace(-30, 30, 31), [0, *np.logspace(-6, 6, 13)]))
    β, length = jnp.asarray(β, dtype), jnp.asarray(length, dtype)
    B, L = np.asarray(β, np.longdouble), np.asarray(length, np.longdouble)
    step, (by_β, by_length) = implicit(β, length), jax.vmap(jax.grad(implicit, argnums=(0, 1)))(β, length)
    for name, got, want in (
        ("step", step, B / (1 + B * L)),
        ("by beta", by_β, 1 / (1 + B * L) ** 2),
        ("by |k|^2", by_length, -((B / (1 + B * L)) ** 2)),
    ):
        inside = (np.abs(want) < np.finfo(dtype).max) & (np.abs(want) > np.finfo(dtype).tiny)
        error = np.abs(np.asarray(got)[inside] / want[inside] - 1)
        assert error.max() < 8 * np.finfo(dtype).eps, name
