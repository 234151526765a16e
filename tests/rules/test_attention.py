"""Softmax attention: the sum by hand, what a window reaches, scores of any size; golden files."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules import golden
from tests.rules.contract import Common
from ttt_teach.rules.attention import FORMS, attention


class TestAttention(Common):
    rule = staticmethod(attention)
    forms = tuple(FORMS)
    linear_in = ("v",)
    test_a_split_changes_nothing = None  # it carries no state

    def draw(self, seed=0, **sizes):
        return {n: x for n, x in super().draw(seed, **sizes).items() if n != "state"}

    def call(self, args, form, **options):
        return attention(*(args[n] for n in "qkv"), form=form, **options), ()

    @pytest.mark.parametrize("window", [1, 3, None])
    def test_the_sum_by_hand(self, form, window):
        """Four query heads on two key heads, in plain Python."""
        rng = np.random.default_rng(20)
        q, k, v = rng.normal(size=(7, 4, 5)), rng.normal(size=(7, 2, 5)), rng.normal(size=(7, 2, 3))
        want = np.zeros((7, 4, 3))
        for i in range(7):
            for h in range(4):
                seen = range(max(0, i + 1 - (window or 7)), i + 1)
                weights = np.array([np.exp(0.7 * q[i, h] @ k[j, h // 2]) for j in seen])
                want[i, h] = sum(w * v[j, h // 2] for w, j in zip(weights / weights.sum(), seen, strict=True))
        o = attention(q[None], k[None], v[None], window=window, scale=0.7, form=form, chunk=2)
        golden.check_close("o", o[0], want, 1e-15)

    @pytest.mark.parametrize(
        ("T", "window", "chunk"),
        [
            (65, None, 16),
            (65, 1, 16),
            (65, 2, 16),
            (65, 16, 16),
            (65, 17, 16),
            (65, 18, 16),
            (65, 64, 16),
            (130, 70, 64),
        ],
    )
    def test_windows_and_chunks(self, T, window, chunk):
        """The window ends within, at, and just beyond the edge of a chunk: outputs and gradients."""
        args = {n: 3 * x for n, x in self.draw(21, T=T, H=1).items()}
        weigh = np.random.default_rng(22).normal(size=args["v"].shape)

        def loss(args, form):
            o = attention(**args, window=window, form=form, chunk=chunk)
            return jnp.sum(o * weigh), o

        run = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
        (slopes, o), (want, want_o) = run(args, "chunk"), run(args, "definition")
        golden.check_close("o", o, want_o, 2e-15)
        jax.tree.map(partial(golden.check_close, "slope", tol=3e-14), slopes, want)

    def test_what_a_token_sees(self, form):
        """Token 20 with a window of 6 sees 15 ... 20: v at 15 counts, v at 14 and at 21 does not."""
        args = self.draw(23, T=40, H=1)

        def read(at):
            v = args["v"].copy()
            v[0, at] += 1
            return attention(args["q"], args["k"], v, window=6, form=form, chunk=8)[0, 20]

        still = attention(**args, window=6, form=form, chunk=8)[0, 20]
        for at in (0, 14, 21, 39):
            np.testing.assert_array_equal(read(at), still)
        for at in (15, 20):
            assert np.abs(read(at) - still).max() > 0.01

    def test_chunks_beyond_the_window_are_not_touched(self):
        """Values of NaN before token 16 spoil the chunks that reach them, and nothing after."""
        args = self.draw(24, T=64, H=1)
        args["v"][:, :16] = np.nan

        def read(v):
            return attention(args["q"], args["k"], v, window=9, chunk=8)[:, 24:]

        assert np.isfinite(read(args["v"])).all()
        assert np.isfinite(jax.grad(lambda v: jnp.sum(jnp.sin(read(v))))(args["v"])[:, 24:]).all()

    def test_a_window_of_all_is_no_window(self, form):
        args = self.draw(25)
        for window in (12, 13, 10**12):
            np.testing.assert_array_equal(attention(**args, window=window, form=form), attention(**args, form=form))

    def test_zero_keys_write_nothing(self, form):
        """All scores equal: the mean of what is seen."""
        args = self.draw(26)
        args["k"] = np.zeros_like(args["k"])
        want = np.cumsum(args["v"], 1) / np.arange(1, 13)[:, None, None]
        golden.check_close("o", attention(**args, form=form, chunk=5), want, 1e-15)

    def test_scores_of_any_size(self, form):
        """q and k times 1e4, float32: the largest score takes all, equal ones share, and every gradient is finite."""
        args = jax.tree.map(np.float32, self.draw(27, T=20))
        args["k"][:, 13] = args["k"][:, 2] = 2 * args["k"][:, 2]
        big = args | {n: 1e4 * args[n] for n in "qk"}

        @jax.jit
        @partial(jax.grad, has_aux=True)
        def read(args):
            o = attention(**args, form=form, chunk=8)
            return jnp.sum(o**2), o

        slopes, o = read(big)
        assert all(np.isfinite(x).all() for x in slopes.values())
        scores = np.einsum("bihk,bjhk->bhij", args["q"], args["k"])
        shared = 0
        for h in range(2):
            for i in range(20):
                top = int(scores[0, h, i, : i + 1].argmax())
                both = [j for j in (2, 13) if j <= i] if top in (2, 13) else [top]
                golden.check_close("o", o[0, i, h], args["v"][0, both, h].mean(0), 2e-7)
                shared += len(both) == 2
        assert shared > 2  # the equal scores did win somewhere

    def test_gradients_of_equal_large_scores(self):
        """All keys the same, scores of 1e8 in float32: log(sum) would be lost if it were added to them."""
        q = np.full((1, 20, 1, 4), 1e4, np.float32)
        v = np.float32(np.random.default_rng(28).normal(size=(1, 20, 1, 3)))
        dv = jax.grad(lambda v: jnp.sum(attention(q, q, v, chunk=8)[:, -1]))(v)
        golden.check_close("dv", dv, np.full(v.shape, 1 / 20), 2e-7)

    def test_second_derivatives(self):
        args = self.draw(29, T=9, H=1)

        def twice(form):
            f = partial(attention, form=form, chunk=4)
            inner = jax.grad(lambda args: jnp.sum(jnp.sin(f(**args))))
            return jax.jit(jax.grad(lambda args: sum(jnp.sum(x**2) for x in inner(args).values())))(args)

        jax.tree.map(partial(golden.check_close, "second", tol=1e-13), twice("chunk"), twice("definition"))

    def test_memory_of_the_gradient(self):
        """At most three times the inputs, where all pairs are 64 times."""
        x = jax.ShapeDtypeStruct((1, 2048, 1, 32), jnp.float32)
        slopes = jax.jit(jax.grad(lambda q, k, v: jnp.sum(attention(q, k, v) ** 2), argnums=(0, 1, 2)))
        used = slopes.lower(x, x, x).compile().memory_analysis().temp_size_in_bytes
        assert used < 3 * 3 * 2048 * 32 * 4

    def test_bad_input_is_named(self):
        args = self.draw(30, H=3)
        for message, changed in (
            (r"q has 4 heads; expected a multiple of the 3 heads of k and v", {"q": np.ones((1, 12, 4, 4))}),
            (r"q has 2 heads; expected a multiple of the 3", {"q": np.ones((1, 12, 2, 4))}),
            (r"k has shape \[1, 12, 3, 5\]; expected \[B, T, H, K\] with K = 4", {"k": np.ones((1, 12, 3, 5))}),
            (r"v has shape \[1, 12, 2, 3\]; expected \[B, T, H, V\] with H = 3", {"v": np.ones((1, 12, 2, 3))}),
            (r"k has shape \[1, 11, 3, 4\].* with T = 12", {"k": np.ones((1, 11, 3, 4))}),
            (r"q has shape \[12, 3, 4\]; expected \[B, T, HQ, K\]", {"q": np.ones((12, 3, 4))}),
            (r"v has dtype int32; expected a floating", {"v": np.ones((1, 12, 3, 3), np.int32)}),
            (r"scale is .*; expected one real number", {"scale": np.ones(3)}),
            *(
                (rf"window is {wrong}; expected a whole number of tokens >= 1", {"window": wrong})
                for wrong in (0, -1, 2.5, True)
            ),
        ):
            with pytest.raises(ValueError, match=message):
                attention(**(args | changed))


AXES = {"q": "BTHK", "k": "BTHK", "v": "BTHV", "w": "BTHV"}
pad = partial(golden.padded, axes=AXES, size={"T": 130, "H": 2, "K": 8, "V": 8})  # no token sees those after it


@cache
def golden_rule(form, window):
    def apply(q, k, v, scale=None):
        return {"o": attention(q, k, v, window=window, scale=scale, form=form)}

    return apply


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("file", "name"), [(f, c) for f in ("softmax_attn", "swa") for c in golden.read(f)])
def test_golden(file, name, form):
    """Padded, but for what is compiled on its own anyhow: windows, and grouped heads, whose scale is the default."""
    case = golden.read(file)[name]
    rule = golden_rule(form, int(case["window"]) if "window" in case else None)
    numbers = None if name == "tiny_gqa" else {"scale": golden.scale_of(case)}
    as_it_is = file == "swa" or name == "tiny_gqa"
    golden.check_case(case, rule, ("q", "k", "v"), numbers=numbers, pad=None if as_it_is else pad)
