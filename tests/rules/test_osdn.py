"""OSDN: what the scale learns, from the stated ratio by differences; the bounds, hit rarely or always; golden files."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules import golden
from tests.rules.contract import Contract, pulled, slope_and_measured
from ttt_teach import delta
from ttt_teach.rules.osdn import FORMS, OSDNState, osdn
from ttt_teach.rules.osdn.definition import direction, progress
from ttt_teach.tasks import unit

FREE = (-np.inf, np.inf)


class TestOSDN(Contract):
    """With a step and bounds under which, in these sequences, some scales clip and some do not."""

    rule = staticmethod(partial(osdn, step_size=0.2, bounds=(0.8, 1.2)))
    forms = tuple(FORMS)
    kernel = True

    def draw(self, seed=0, *, B=1, T=12, H=2, decay="head", **rest):
        args = super().draw(seed, B=B, T=T, H=H, decay=decay, **rest)
        rng = np.random.default_rng(seed + 1)
        args["beta"] = rng.uniform(0, 1, (B, T, H))
        return args | ({"retention": rng.uniform(0.95, 1, (B, T, H))} if decay else {})

    def draw_state(self, rng, B, H, K, V):
        return OSDNState(rng.normal(size=(B, H, K, V)), rng.uniform(0.85, 1.15, (B, H, K)))

    def test_zero_keys_write_nothing(self, form):
        """Neither into the memory nor into the scale."""
        args = self.draw(14) | {"state": None, "retention": None}
        args["k"] = np.zeros_like(args["k"])
        o, (S, d) = self.call(args, form)
        assert not np.any(o) and not np.any(S) and np.all(d == 1)

    def test_decay_of_zero_forgets_everything(self, form):
        """log_decay = -inf resets the memory; the scale, which the keys alone have taught, is not forgotten by it."""
        args = self.draw(11)
        upstream = self.slopes(args)
        new = args | {n: args[n].copy() for n in ("v", "log_decay")}
        new |= {"state": args["state"]._replace(S=np.zeros_like(args["state"].S))}
        new["v"][:, :4] = new["log_decay"][:, 4] = 0
        args["log_decay"][:, 4] = -np.inf
        ((o, _), slopes), ((want, _), _) = (pulled(type(self), form, x, upstream) for x in (args, new))
        golden.check_close("o", o[:, 4:], want[:, 4:], 1e-12)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(slopes))

    # -- what the scale learns -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("beta_aware", [True, False])
    def test_the_scale_descends_the_stated_ratio(self, form, beta_aware):
        """(d - d') / eta is the slope of h(d) = (f(S_t) - f(S')) / |grad f(S')|^2, by differences of the memory itself.

        One token; S_t is what the rule wrote from d. If not beta-aware, h is that of a write with beta = 1.
        """
        one = self.draw(20, T=1, H=1) | {"retention": None}
        k, v = one["k"][0, 0, 0], one["v"][0, 0, 0]
        S0, d0 = (x[0, 0] for x in one["state"])
        S0 = np.exp(one["log_decay"][0, 0, 0]) * S0

        @jax.jit
        def run(d, beta):
            options = dict(bounds=FREE, beta_aware=beta_aware, form=form)
            _, state = osdn(**one | {"state": one["state"]._replace(d=d[None, None]), "beta": beta}, **options)
            return state.S[0, 0], state.d[0, 0]

        def f(S):
            return np.sum((v - S.T @ k) ** 2) / 2

        def h(d):
            S, _ = run(d, one["beta"] if beta_aware else np.ones_like(one["beta"]))
            return (f(S) - f(S0)) / np.sum(np.outer(k, v - S0.T @ k) ** 2)

        ε = 1e-3  # h is quadratic in d: central differences are exact but for rounding
        slope = np.array([(h(d0 + ε * e) - h(d0 - ε * e)) / (2 * ε) for e in np.eye(4)])
        golden.check_close("slope", (d0 - run(d0, one["beta"])[1]) / 3e-3, slope, 1e-10)

    def test_the_slope_is_zero_at_the_best_scale(self, form):
        """Where beta <d, k^2> = 1 the write was exact: h = -1 / (2 |k|^2), its minimum, and the scale stays."""
        rng = np.random.default_rng(21)
        k, u, β = jnp.asarray(2 * rng.normal(size=4)), jnp.asarray(rng.normal(size=3)), jnp.asarray(0.7)
        d = rng.uniform(0.5, 2, 4)
        d /= β * d @ k**2
        h = jax.jit(jax.value_and_grad(partial(progress, k=k, u=u, b=β, eps=jnp.asarray(1e-6))))
        value, slope = h(d)
        golden.check_close("h", value, -0.5 / (k @ k), 1e-15)
        assert np.abs(slope).max() < 1e-15
        assert np.abs(h(d + 1e-6)[1]).max() > 1e-7
        args = self.draw(21, T=1, H=1) | {"retention": None, "beta": np.full((1, 1, 1), 0.7), "k": k[None, None, None]}
        args["state"] = args["state"]._replace(d=d[None, None])
        golden.check_close("d", osdn(**args, step_size=0.5, bounds=FREE, form=form)[1].d[0, 0], d, 1e-15)

    def test_the_error_does_not_matter_to_the_scale(self, form):
        """Not its size, its direction, or whether there is one: neither values nor memory reach d."""
        args = self.draw(22)
        o, state = self.slopes(args)
        of_d = np.zeros_like(o), state._replace(S=np.zeros_like(state.S))
        (_, (_, want)), _ = pulled(type(self), form, args, of_d)
        for v in (0.0, 1e-160, 1e160):
            scaled = args | {"v": v * args["v"], "state": args["state"]._replace(S=v * args["state"].S)}
            (_, (_, got)), slopes = pulled(type(self), form, scaled, of_d)
            golden.check_close(f"d, v times {v}", got, want, 1e-14)
            assert not np.any(slopes["v"]) and not np.any(slopes["state"].S) and np.any(slopes["k"])

    def test_no_error_has_a_direction(self):
        assert np.all(direction(jnp.zeros(3)) == 1)
        golden.check_close("direction", direction(jnp.array([1e-300, -2e-300])), [0.5, -1], 1e-15)

    def test_a_step_of_zero_is_the_delta_rule(self, form):
        args = self.draw(23) | {"retention": None}
        S = args["state"].S
        o, state = osdn(**args | {"state": OSDNState(S, np.ones(S.shape[:3]))}, step_size=0, form=form)
        want, want_S = delta(**{n: x for n, x in args.items() if n != "retention"} | {"state": S}, form=form)
        golden.check_close("o", o, want, 1e-15)
        golden.check_close("S", state.S, want_S, 1e-15)
        assert np.all(state.d == 1)

    def test_a_key_shorter_than_eps(self, form):
        """|k|^2 = 1e-8 divides as eps = 1e-6 does: d + eta b (1 - b <d, s>) s / eps."""
        args = self.draw(24, T=1, H=1) | {"retention": None}
        args["k"] *= 1e-4
        s, β, d = args["k"][0, 0] ** 2, args["beta"][0, 0], args["state"].d[0]
        got = osdn(**args, bounds=FREE, step_size=0.5, form=form)[1].d[0]
        golden.check_close("d", got - d, 0.5 * β * (1 - β * np.sum(d * s)) * s / 1e-6, 1e-13)

    # -- bounds, retention, extremes -------------------------------------------------------------------------------

    def test_the_chunk_is_the_recurrence_however_much_clips(self):
        """Output, state and every gradient, those of the step and the bounds too; T is not a multiple of the chunk."""
        rng = np.random.default_rng(30)
        B, T, H, K, V = 2, 23, 2, 6, 3
        shape = (B, T, H)
        weigh = rng.normal(size=(*shape, V))

        @partial(jax.jit, static_argnames="form")
        def run(args, numbers, form):
            def loss(args, numbers):
                η, lo, hi = numbers
                o, state = osdn(**args, step_size=η, bounds=(lo, hi), form=form, chunk=8)
                return jnp.sum(o * weigh) + jnp.sum(jnp.cos(3 * state.d)) + jnp.sum(jnp.sin(state.S)), (o, state)

            (_, found), slopes = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(args, numbers)
            return found, slopes

        def check(name, *, η=0.2, lo=0.5, hi=2.0, beta=None, retention=None, d=None, keys=None):
            args = {
                "q": rng.normal(size=(*shape, K)),
                "k": unit(rng.normal(size=(*shape, K))) if keys is None else keys,
                "v": rng.normal(size=(*shape, V)),
                "beta": rng.uniform(0, 1, shape) if beta is None else beta,
                "retention": np.ones(shape) if retention is None else retention,
                "state": OSDNState(rng.normal(size=(B, H, K, V)), rng.uniform(0.9, 1.1, (B, H, K)) if d is None else d),
            }
            numbers = tuple(np.float64(x) for x in (η, lo, hi))
            want, got = (run(args, numbers, form) for form in ("recurrent", "chunk"))
            for a, b, tol in ((got[0], want[0], 1e-13), (got[1], want[1], 2e-12)):
                jax.tree.map(lambda x, y, tol=tol: golden.check_close(name, x, y, tol), a, b)
            d = want[0][1].d
            return np.mean((d == lo) | (d == hi))

        sparse = unit(rng.normal(size=(*shape, K)))
        sparse[:, ::3] = 0
        alike = unit(0.3 * rng.normal(size=(*shape, K)) + np.arange(K))
        on_a_bound = rng.choice([0.5, 2.0], (B, H, K))
        assert check("never") == 0
        assert 0 < check("rarely", hi=1.1) < 0.7
        assert check("often", η=1.5, lo=0.9, hi=1.2, keys=alike) > 0.5
        assert check("always", lo=1.05, hi=1.05) == 1
        assert check("no bounds", lo=-np.inf, hi=np.inf) == 0
        check("scale starts on a bound", d=on_a_bound)
        check(
            "scale starts on a bound, and some tokens tie", d=on_a_bound, keys=sparse, beta=rng.choice([0.0, 1], shape)
        )
        check("scale starts outside", d=rng.choice([0.1, 3.0, 1.0], (B, H, K)))
        check("no write", beta=np.zeros(shape), d=rng.choice([0.1, 0.5, 2.0, 3.0], (B, H, K)))
        check("beta 0, 1 and 2", η=1.0, beta=rng.choice([0.0, 1.0, 2.0], shape))
        check("retention 0, 0.9 and 1", lo=-1.0, hi=3.0, retention=rng.choice([0.0, 0.9, 1.0], shape))
        check("retention 0, clipped", retention=np.zeros(shape))
        check("long keys", lo=0.01, keys=1.5 * unit(rng.normal(size=(*shape, K))), η=2.0, beta=np.full(shape, 0.5))
        check("short keys", keys=1e-4 * alike)

    def test_an_overshooting_step_does_not_overflow(self):
        """eta |s|^2 / n of 1e4 a token: unbounded, d would pass 1e40 within the chunk. Also where a vmap runs both."""
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.draw(31, T=33) | {"retention": None})
        args["k"], args["beta"] = 1e2 * args["k"], jnp.zeros_like(args["beta"])

        def d(k, form):
            o, state = osdn(**args | {"k": k}, step_size=1.0, beta_aware=False, form=form)
            return jnp.sum(jnp.cos(state.d)) + jnp.sum(jnp.sin(o)), state.d

        def run(form):
            return jax.value_and_grad(partial(d, form=form), has_aux=True)

        (_, want), slope = jax.jit(run("recurrent"))(args["k"])
        (_, got), got_slope = jax.jit(run("chunk"))(args["k"])
        twice = jax.jit(jax.vmap(run("chunk")))(jnp.stack([args["k"], args["k"]]))
        for x in (got, twice[0][1][0]):
            golden.check_close("d", x, want, 1e-6)
        for x in (got_slope, twice[1][0]):
            assert np.isfinite(x).all()
            golden.check_close("slope", x, slope, 1e-5)

    def test_a_retention_lowers_what_a_step_may_overshoot(self):
        """Along s a token multiplies by r - eta b^2 |s|^2 / n: with r = 0 a step of 2 doubles, 140 times past 1e38."""
        k = jnp.zeros((1, 140, 1, 2), jnp.float32).at[..., 0].set(1)
        beta = jnp.ones(k.shape[:3], k.dtype)

        def slope(form):
            options = {"retention": 0 * beta, "step_size": 2.0, "form": form, "chunk": 140}
            return jax.jit(jax.grad(lambda k: jnp.sum(jnp.cos(osdn(k, k, k, beta, **options)[0]))))(k)

        golden.check_close("slope", slope("chunk"), slope("recurrent"), 1e-4)

    def test_only_one_side_of_the_choice_runs(self):
        """Under the vmaps over batch and heads the redoing of a clipped chunk is still a branch, not a select."""
        args = self.draw(32, B=2, T=33)
        forward = jax.jit(lambda args: self.call(args, "chunk")[0])
        backward = jax.jit(jax.grad(lambda args: jnp.sum(forward(args))))
        assert forward.lower(args).as_text().count("stablehlo.case") == 1
        assert backward.lower(args).as_text().count("stablehlo.case") >= 2

    def test_the_slope_on_a_bound_is_one(self, form):
        """A token that moves nothing hands on a scale, with its gradient, if it is within the bounds or on one."""
        args = self.draw(33, T=3, K=5) | {"retention": None}
        args["k"] = np.zeros_like(args["k"])
        d = np.broadcast_to([0.4, 0.5, 1.0, 2.0, 2.1], (1, 2, 5))

        @jax.jit
        @partial(jax.grad, has_aux=True)
        def slope_and_last(d):
            last = osdn(**args | {"state": args["state"]._replace(d=d)}, bounds=(0.5, 2.0), form=form)[1].d
            return jnp.sum(last), last

        slope, last = slope_and_last(d)
        np.testing.assert_array_equal(last[0, 0], [0.5, 0.5, 1.0, 2.0, 2.0])
        np.testing.assert_array_equal(slope[0, 0], [0, 1, 1, 1, 0])

    @pytest.mark.parametrize("other", ["definition", "recurrent"])
    def test_the_slope_of_step_and_bounds(self, other):
        """The chunk form has the slopes of the recurrence, as another test says."""
        args = self.draw(34)
        toward = np.array([0.3, -0.1, 0.05])

        def f(x):
            η, lo, hi = jnp.array([0.2, 0.8, 1.2]) + x * toward
            o, state = osdn(**args, step_size=η, bounds=(lo, hi), form=other)
            return jnp.sum(jnp.cos(o)) + jnp.sum(jnp.sin(3 * state.d))

        golden.check_close("slope", *slope_and_measured(f, 1e-3), 1e-9)

    @pytest.mark.parametrize("cut", [3, 6])
    def test_a_split_inside_a_chunk(self, cut):
        args = self.draw(35, T=9)
        head, tail = ({n: x[:, part] for n, x in args.items() if n != "state"} for part in np.s_[:cut, cut:])
        want, want_state = self.call(args, "chunk", chunk=4)
        o1, middle = self.call(head | {"state": args["state"]}, "chunk", chunk=4)
        o2, state = self.call(tail | {"state": middle}, "chunk", chunk=4)
        golden.check_close("o", jnp.concatenate([o1, o2], 1), want, 1e-14)
        jax.tree.map(lambda x, want: golden.check_close("state", x, want, 1e-14), state, want_state)

    # -- bad input -------------------------------------------------------------------------------------------------

    def test_bad_input_of_its_own(self):
        args = self.draw(36)
        S, d = args["state"]

        def refuses(message, **changed):
            with pytest.raises(ValueError, match=message):
                osdn(**(args | changed))

        refuses(r"retention holds 1.5; expected a share between 0 and 1", retention=np.full((1, 12, 2), 1.5))
        refuses(r"retention holds -0.1; expected a share", retention=np.full((1, 12, 2), -0.1))
        refuses(r"retention has shape \[1, 12\]; expected \[B, T, H\]", retention=np.ones((1, 12)))
        refuses(r"retention has shape \[1, 12, 3\]; .* with H = 2", retention=np.ones((1, 12, 3)))
        refuses(r"beta has shape \[1, 12\]; expected \[B, T, H\]", beta=np.ones((1, 12)))
        refuses(r"step_size holds -0.1; expected step_size >= 0", step_size=-0.1)
        refuses(r"step_size holds inf; expected .* finite", step_size=np.inf)
        refuses(r"step_size is None; expected one real number", step_size=None)
        refuses(r"step_size is .*; expected one real number", step_size=np.ones(2))
        refuses(r"bounds holds 0.5; expected hi >= lo, which is 2", bounds=(2.0, 0.5))
        refuses(r"bounds holds nan", bounds=(np.nan, 1.0))
        refuses(r"bounds holds nan; expected hi >= lo", bounds=(1.0, np.nan))
        refuses(r"bounds is 0.5; expected two numbers \(lo, hi\)", bounds=0.5)
        refuses(r"bounds is \(1, 2, 3\); expected two numbers", bounds=(1, 2, 3))
        refuses(r"bounds is None; expected two numbers", bounds=None)
        refuses(r"bounds is 'a'; expected one real number", bounds=("a", "b"))
        refuses(r"eps holds 0; expected eps > 0", eps=0)
        refuses(r"eps holds nan; expected eps > 0", eps=np.nan)
        refuses(r"eps is '1'; expected one real number", eps="1")
        refuses(r"beta_aware is 1; expected True or False", beta_aware=1)
        refuses(r"state is a .*Array.*; expected OSDNState", state=jnp.asarray(S))
        refuses(r"d has shape \[1, 2, 3\]; expected \[B, H, K\] with K = 4", state=OSDNState(S, d[..., :3]))
        refuses(r"d has shape \[2, 4\]; expected \[B, H, K\]", state=OSDNState(S, d[0]))
        refuses(r"S has shape \[1, 2, 4\]; expected \[B, H, K, V\]", state=OSDNState(d, S))
        with pytest.raises(ValueError, match="d has shape"):
            jax.jit(lambda d: osdn(**args | {"state": OSDNState(S, d)}))(d[..., :3])
        half = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), args)
        with pytest.raises(ValueError, match="eps holds 0; expected eps > 0 and finite, also in the compute dtype"):
            osdn(**half, eps=1e-300)


def by_channel(case):
    """A gate per head goes by another name than one per channel."""
    named = {"log_decay": "g", "d_log_decay": "d_g"} if "log_decay" in case and case["log_decay"].ndim == 3 else {}
    return {named.get(name, name): x for name, x in case.items()}


CASES = {name: by_channel(case) for name, case in golden.read("osdn").items()}
TOKENS = dict(q="BTHK", k="BTHK", v="BTHV", beta="BTH", g="BTH", log_decay="BTHK", retention="BTH")
AXES = TOKENS | dict(S0="BHKV", d0="BHK")
SIZE = {"T": 130, "H": 2, "K": 16, "V": 16}
pad = partial(golden.padded, axes=AXES | {"w": "BTHV"}, size=SIZE, retention=1, d0=1)


def numbers_of(case):
    m = golden.meta(case)
    return {n: np.float64(m[n]) for n in ("eta", "lo", "hi", "eps", "scale")}


@cache
def golden_rule(form, beta_aware):
    def apply(q, k, v, beta, S0, d0, eta, lo, hi, eps, scale, g=None, log_decay=None, retention=None):
        log_decay = None if g is None else g[..., None] + log_decay  # filled up, a case has both
        options = dict(step_size=eta, bounds=(lo, hi), eps=eps, scale=scale, beta_aware=beta_aware, form=form)
        o, (S, d) = osdn(q, k, v, beta, log_decay=log_decay, retention=retention, state=OSDNState(S0, d0), **options)
        return {"o": o, "St": S, "dt": d}

    return apply


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_golden(name, form):
    """Padded, but for the one case that is compiled on its own anyhow: that one has no gate to sum."""
    case = CASES[name]
    rule = golden_rule(form, golden.meta(case)["beta_aware"])
    own = name == "osdn_not_beta_aware_apf"
    golden.check_case(case, rule, tuple(AXES), numbers=numbers_of(case), pad=None if own else pad, slope="d_")


@jax.jit
@partial(jax.vmap, in_axes=(None, None, 0), out_axes=1)
def scale_before(given, numbers, t):
    """d before token t: the last d of a sequence whose keys are 0, and whose retention is 1, from t on."""
    past = (jnp.arange(SIZE["T"]) < t)[None, :, None]
    cut = {"k": jnp.where(past[..., None], given["k"], 0), "retention": jnp.where(past, given["retention"], 1)}
    return golden_rule("chunk", True)(**given | cut, **numbers)["dt"]


@pytest.mark.parametrize("name", ["osdn_clip", "osdn_apf", "oskda_apf"])
def test_golden_write_keys(name):
    case = CASES[name]
    _, T, H, K = case["k"].shape
    given, numbers, _ = golden.arguments(case, tuple(AXES), numbers_of(case), pad)
    d = scale_before(given, numbers, jnp.arange(SIZE["T"]))
    golden.check_close("w", d[:, :T, :H, :K] * case["k"], case["write_key"], 1e-14)
