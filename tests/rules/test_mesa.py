"""Mesa: the stated loss has zero gradient at the answer; golden files; collinear keys, any upstream scale; PCG."""

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules import golden
from tests.rules.contract import Contract
from ttt_teach import CG, MesaState, mesa
from ttt_teach.rules.mesa import FORMS
from ttt_teach.rules.mesa.chunk import chunkwise
from ttt_teach.rules.mesa.precondition import Inverses
from ttt_teach.solvers import PCG, cg_trace, steps_to
from ttt_teach.tasks import unit

EXACT = CG(max_steps=None, tol=1e-15)
EXACT_PCG = PCG(max_steps=None, tol=1e-15)
METHODS = [*((form, EXACT) for form in FORMS), ("chunk", EXACT_PCG)]
METHOD_NAMES = [*FORMS, "chunk-PCG"]


class TestMesa(Contract):
    rule = staticmethod(partial(mesa, solver=EXACT))
    forms = tuple(FORMS)
    kernel = True
    per_channel = False

    def draw(self, seed=0, *, B=1, T=12, H=2, K=4, **rest):
        args = super().draw(seed, B=B, T=T, H=H, K=K, **rest)
        rng = np.random.default_rng(seed + 1)
        return args | {"beta": rng.uniform(0, 1, (B, T, H)), "lam": rng.uniform(0.25, 2, (H, K))}

    def draw_state(self, rng, B, H, K, V):
        A = rng.normal(size=(B, H, K, K))
        return MesaState(rng.normal(size=(B, H, K, V)), A @ A.mT)

    def meaningful(self, slopes):
        """H0 is symmetric, so only the symmetric part of its gradient means something."""
        G, H = slopes["state"]
        return slopes | {"state": MesaState(G, (H + H.mT) / 2)}

    def nudge(self, rng, x):
        d = super().nudge(rng, x)
        return (d + d.mT) / 2 if x.ndim == 4 and x.shape[-1] == x.shape[-2] == 4 else d  # H stays symmetric

    def test_the_stated_loss_is_stationary(self, form):
        """Phi_t, read off with unit queries, has zero gradient in MesaNet Eq. (4), and only there.

        The loss is stated here once more, pair by pair with its own product of forget gates. K heads hold the same
        pairs; head j asks with the unit vector e_j, so o_t of head j is column j of Phi_t.
        """
        T, K, V = 7, 4, 3
        one = self.draw(30, T=T, H=1, K=K, V=V)
        lam = one["lam"][0]
        args = {n: np.repeat(x, K, axis=2) for n, x in one.items() if n not in ("state", "lam")}
        args["q"] = np.broadcast_to(np.eye(K), (1, T, K, K))
        o, _ = self.call(args | {"lam": np.repeat(lam[None], K, axis=0)}, form)
        k, v, β, g = (one[n][0, :, 0] for n in ("k", "v", "beta", "log_decay"))

        def loss(Φ, t):
            fit = sum(np.prod(np.exp(g[i + 1 : t + 1])) * β[i] * jnp.sum((v[i] - Φ @ k[i]) ** 2) for i in range(t + 1))
            return (fit + jnp.trace(Φ @ jnp.diag(lam) @ Φ.T)) / 2

        for t in range(T):
            Φ = o[0, t].T
            assert np.abs(jax.grad(loss)(Φ, t)).max() < 1e-14
            assert np.abs(jax.grad(loss)(Φ.at[0, 0].add(1e-6), t)).max() > 1e-7

    def test_lam_does_not_decay(self, form):
        """Long after the last write lam still shrinks: the answer is the regression, not a stored inverse."""
        args = self.draw(31, T=40, decay=None) | {"state": None}
        args["log_decay"] = np.full(args["q"].shape[:3], np.log(0.5))
        args["beta"][:, 1:] = 0
        o, _ = self.call(args, form)
        left, k, v, q = 0.5**39 * args["beta"][0, 0], args["k"][0, 0], args["v"][0, 0], args["q"][0, -1]
        for h in range(2):
            A = left[h] * np.outer(k[h], k[h]) + np.diag(args["lam"][h])
            want = left[h] * v[h] * (k[h] @ np.linalg.solve(A, q[h]))
            golden.check_close("o", o[0, -1, h], want, 1e-13)

    def test_gradients_do_not_depend_on_the_upstream_scale(self):
        """The chunk form has a test of its own, and the definition does not iterate."""
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.draw(32, T=33))
        call = partial(mesa, solver=CG(max_steps=30, tol=1e-6), form="recurrent")
        slopes = jax.jit(jax.grad(lambda args, upstream: jnp.sum(jnp.sin(call(**args)[0]) * upstream)))
        want = slopes(args, jnp.float32(1))
        for scale in (1e-6, 1e6):
            got = slopes(args, jnp.float32(scale))
            jax.tree.map(lambda a, b, scale=scale: golden.check_close("slope", a / scale, b, 2e-5), got, want)

    @staticmethod
    @partial(jax.jit, static_argnames="form")
    def default_solver(args, form):
        return jax.value_and_grad(lambda args: jnp.sum(mesa(**args, form=form)[0]))(args)

    @pytest.mark.parametrize("lam", [1.0, 0.01])
    @pytest.mark.parametrize("iterated", ["recurrent", "chunk"])
    def test_the_default_solver_is_finite_where_it_has_long_converged(self, iterated, lam):
        """30 steps for 2 unknowns, in float32, output and gradients."""
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.draw(35, T=33, K=2, V=2) | {"state": None})
        args["lam"] = jnp.full((2, 2), lam, jnp.float32)
        o, slopes = self.default_solver(args, iterated)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves((o, slopes)))

    def test_collinear_keys_at_the_smallest_lam(self, form):
        """512 nearly equal keys, no forgetting, lam 0.25: condition number about 2000, and still the exact answer."""
        rng = np.random.default_rng(33)
        T, K = 512, 16
        k = np.ones(K) + 0.01 * rng.normal(size=(1, T, 1, K))
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        q, v = rng.normal(size=(2, 1, T, 1, K))
        lam = np.full((1, K), 0.25)
        o, state = mesa(q, k, v, np.ones((1, T, 1)), lam, solver=EXACT, form=form)
        A = k[0, :, 0].T @ k[0, :, 0] + 0.25 * np.eye(K)
        assert np.linalg.cond(A) > 1000
        golden.check_close("o", o[0, -1, 0], v[0, :, 0].T @ k[0, :, 0] @ np.linalg.solve(A, q[0, -1, 0]), 1e-11)

    def test_bad_input_of_its_own(self):
        args = self.draw(34)

        def refuses(message, **changed):
            with pytest.raises(ValueError, match=message):
                mesa(**(args | changed))

        refuses(r"lam holds 0; expected lam > 0", lam=np.zeros((2, 4)))
        refuses(r"lam holds inf; expected lam > 0 and finite", lam=np.full((2, 4), np.inf))
        refuses(r"lam has shape \[4\]; expected \[H, K\]", lam=np.ones(4))
        refuses(r"beta holds -1; expected beta >= 0", beta=-np.ones((1, 12, 2)))
        refuses(r"log_decay has shape \[1, 12, 2, 4\]; expected \[B, T, H\]", log_decay=np.zeros((1, 12, 2, 4)))
        refuses(r"state is a .*Array.*; expected MesaState", state=jnp.zeros((1, 2, 4, 3)))
        refuses(
            r"G has shape .*; expected \[B, H, K, V\]", state=MesaState(np.zeros((1, 2, 3, 3)), np.zeros((1, 2, 4, 4)))
        )
        refuses(r"solver is 30; expected CG\(max_steps, tol\) or PCG\(max_steps, tol\)", solver=30)


AXES = dict(q="BTHK", k="BTHK", v="BTHV", beta="BTH", g="BTH", lamb="HK", h_kk0="BHKK", h_kv0="BHKV")
INPUTS = tuple(AXES)
WEIGHTS = dict(w="BTHV", w_h_kk_t="BHKK", w_h_kv_t="BHKV")
pad = partial(golden.padded, axes=AXES | WEIGHTS, size={"T": 257, "H": 2, "K": 16, "V": 16}, lamb=1)


@cache
def golden_rule(form, solver):
    def apply(q, k, v, beta, g, lamb, h_kk0, h_kv0):
        state = MesaState(h_kv0, (h_kk0 + h_kk0.mT) / 2)
        o, (G, H) = mesa(q, k, v, beta, lamb, log_decay=g, solver=solver, state=state, form=form, chunk=16)
        return {"o": o, "h_kv_t": G, "h_kk_t": H}

    return apply


@pytest.mark.parametrize(("form", "solver"), METHODS, ids=METHOD_NAMES)
@pytest.mark.parametrize("name", golden.read("mesa_exact"))
def test_golden(name, form, solver):
    case = golden.read("mesa_exact")[name]
    if "dh_kk0" in case:  # H0 is symmetric, so only the symmetric part of its gradient means something
        case = case | {"dh_kk0": (case["dh_kk0"] + case["dh_kk0"].mT) / 2}
    as_it_is = (name, form) == ("t67_mid_init", "recurrent")  # of one form, that what fills up the others is nothing
    golden.check_case(case, golden_rule(form, solver), INPUTS, pad=None if as_it_is else pad)


@pytest.mark.parametrize(("form", "solver"), METHODS, ids=METHOD_NAMES)
@pytest.mark.parametrize("name", [c for c in golden.read("mesa_cg") if c != "decode"])
def test_golden_exact_solve(name, form, solver):
    """The exact outputs stored beside another library's iterates, whose additive guard is not reproduced here."""
    case = golden.read("mesa_cg")[name]
    found, _ = golden.run(golden_rule(form, solver), *golden.arguments(case, INPUTS, pad=pad))
    golden.check_close("o", found["o"][tuple(map(slice, case["o_exact"].shape))], case["o_exact"], 1e-10)


@pytest.mark.parametrize(("form", "solver"), METHODS, ids=METHOD_NAMES)
def test_golden_decode(form, solver):
    """One token at a time on a carried state."""
    case = golden.read("mesa_cg")["decode"]
    token = {n: case[n][:, None] for n in ("q", "k", "v", "beta", "g")}
    found = golden_rule(form, solver)(**token, lamb=case["lamb"], h_kk0=case["h_kk_prev"], h_kv0=case["h_kv_prev"])
    golden.check_close("H", found["h_kk_t"], case["h_kk"], 1e-14)
    golden.check_close("G", found["h_kv_t"], case["h_kv"], 1e-14)


# -- the chunk form and its two solvers --------------------------------------------------------------------------------

draw = TestMesa().draw
both = pytest.mark.parametrize("solver", [EXACT, EXACT_PCG], ids=["CG", "PCG"])


def cast(args, dtype):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), args)


def direct(args, t):
    """The exact output of every head at token t, in float64: no form, no solver, no G and no H."""
    q, k, v, β, g = (np.asarray(args[n][0], float).swapaxes(0, 1) for n in ("q", "k", "v", "beta", "log_decay"))
    after = np.flip(np.cumsum(np.flip(g[:, 1 : t + 1], 1), 1), 1)  # log zeta_ti for i < t
    written = np.exp(np.pad(after, [(0, 0), (0, 1)])) * β[:, : t + 1]
    k, kept = k[:, : t + 1], written[..., None] * k[:, : t + 1]
    A = kept.mT @ k + np.asarray(args["lam"], float)[:, None] * np.eye(k.shape[-1])
    return (v[:, : t + 1].mT @ (kept @ np.linalg.solve(A, q[:, t, :, None])))[..., 0]


@both
@pytest.mark.parametrize(("T", "chunk", "decay"), [(130, 64, "head"), (65, 16, None), (1, 64, "head")])
def test_chunk_against_the_definition(T, chunk, decay, solver):
    args = draw(40, B=2, T=T, decay=decay)
    want, want_state = mesa(**args, form="definition")
    got, state = mesa(**args, chunk=chunk, solver=solver)
    golden.check_close("o", got, want, 1e-12)
    jax.tree.map(lambda x, w: golden.check_close("state", x, w, 1e-13), state, want_state)


def test_pcg_in_the_recurrent_form():
    """A chunk of one, and M the inverse: one step."""
    args = draw(41)
    got, _ = mesa(**args, form="recurrent", solver=PCG(max_steps=1))
    golden.check_close("o", got, mesa(**args, form="definition")[0], 1e-13)


SHARED = {"T": 70, "K": 8}  # of three tests, which compile it once for each solver


def test_one_preconditioned_step_is_exact_without_decay():
    """Then M_t is the inverse; CG is far off after that step. Two chunks, so that there is a state to begin from."""
    args = draw(42, **SHARED, decay=None)
    want = mesa(**args, form="definition")[0]
    golden.check_close("o", mesa(**args, solver=PCG(max_steps=1))[0], want, 1e-12)
    assert np.abs(mesa(**args, solver=CG(max_steps=1))[0] - want).max() > 0.1 * np.abs(want).max()


def test_decode_after_prefill():
    """70 tokens at once, then one by one, as a model that generates does it; the default of form and chunk."""
    args = draw(43, **SHARED | {"T": 73}) | {"state": None}
    tokens = {n for n in args if n not in ("state", "lam")}
    want, _ = mesa(**args, solver=EXACT_PCG)
    _, state = mesa(**args | {n: args[n][:, :70] for n in tokens}, solver=EXACT_PCG)
    for t in range(70, 73):
        one = args | {n: args[n][:, t : t + 1] for n in tokens} | {"state": state}
        o, state = mesa(**one, solver=EXACT_PCG)
        golden.check_close("o", o[:, 0], want[:, t], 1e-13)


def test_pcg_is_causal_as_far_as_it_has_converged():
    """Its inverses know the decays of the whole chunk, so a later gate moves what few steps leave undone."""
    args = draw(45, **SHARED) | {"state": None}
    later = args | {"log_decay": args["log_decay"].copy()}
    later["log_decay"][:, -1] -= 1.0

    def moved(solver):
        o, other = (mesa(**x, solver=solver)[0][:, :-1] for x in (args, later))
        return np.abs(o - other).max() / np.abs(o).max()

    assert moved(CG(max_steps=2)) == 0
    assert moved(PCG(max_steps=1)) > 1e-3
    assert moved(EXACT_PCG) < 1e-13


@both
@pytest.mark.parametrize(("dtype", "tol"), [("float64", 1e-10), ("float32", 2e-3)])
def test_long_collinear_keys(dtype, tol, solver):
    """4096 nearly equal keys, no forgetting, lam 0.25: condition number 16000, so float32 is good for 1e-3."""
    args = draw(44, T=4096, H=1, K=16) | {"state": None}
    args["k"] = unit(1 + 0.01 * args["k"])
    args |= {"beta": np.ones((1, 4096, 1)), "lam": np.full((1, 16), 0.25), "log_decay": np.zeros((1, 4096, 1))}
    args = cast(args, dtype)
    k = np.asarray(args["k"][0, :, 0], float)
    assert np.linalg.cond(k.T @ k + 0.25 * np.eye(16)) > 1.5e4
    o, _ = mesa(**args, solver=solver if dtype == "float64" else type(solver)(max_steps=30))
    for t in (63, 64, 2000, 4095):
        golden.check_close("o", o[0, t], direct(args, t), tol)


@both
def test_long_keys_in_float16(solver):
    """Entries up to 4, so keys up to length 16, and queries alike; the truth has the same rounded input."""
    args = draw(45, T=130, K=16) | {"state": None}
    args |= {n: np.clip(2 * args[n] / np.std(args[n]), -4, 4) for n in ("q", "k")}
    args = cast(args, jnp.float16)
    o, _ = mesa(**args, solver=type(solver)(max_steps=100, tol=1e-6))
    assert o.dtype == jnp.float16
    golden.check_close("o", o[0, 129], direct(args, 129), 2e-3)


def test_gradients_in_chunks_at_any_upstream_scale():
    """float32 against the definition in float64 at the scale 1."""
    args = draw(46, T=70) | {"state": None}

    @partial(jax.jit, static_argnames=("form", "solver"))
    @jax.grad
    def slopes(args, s, form, solver=EXACT):
        return jnp.sum(s * mesa(**args, solver=solver, form=form)[0] ** 2)

    want = slopes(args, 1.0, form="definition")
    for solver in (CG(30, 1e-7), PCG(30, 1e-7)):
        for scale in (1e-6, 1e6):
            got = slopes(cast(args, jnp.float32), jnp.float32(scale), form="chunk", solver=solver)
            jax.tree.map(lambda a, b, scale=scale: golden.check_close("slope", a / scale, b, 1e-5), got, want)


@both
@pytest.mark.parametrize("spoil", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_what_is_not_finite_shows(name, spoil, solver):
    """From where it comes in; and never as a number that could be believed."""
    args = draw(47, T=12) | {"state": None}
    args[name][0, 7, 0, 1] = spoil
    o, _ = mesa(**args, solver=solver, chunk=4)
    assert not np.isfinite(o[0, 7, 0]).all()
    if name == "k":
        assert not np.isfinite(o[0, 8:, 0]).any()
    assert np.isfinite(o[0, :4]).all()
    assert np.isfinite(o[0, :, 1]).all()


def test_pcg_says_nan_where_float32_cannot_hold_the_problem():
    """One key of length 1000 in every token: H + lam is not positive definite in float32."""
    args = draw(48, T=64, K=8) | {"state": None}
    args["k"] = 1000 * np.ones_like(args["k"])
    assert np.isnan(mesa(**cast(args, jnp.float32), solver=PCG(max_steps=5))[0][0, -1]).any()


def test_too_few_steps_give_the_adjoint_of_as_few():
    """dq is what the same solver makes of the upstream gradient, not the derivative of its iterates."""
    args = draw(49, T=7, H=1, K=6, V=6) | {"state": None}
    w = np.random.default_rng(50).normal(size=(1, 7, 1, 6))
    few = CG(max_steps=2)

    def loss(q):
        o, state = mesa(**args | {"q": q}, solver=few)
        return jnp.sum(o * w), state

    dq, (G, H) = jax.jit(jax.grad(loss, has_aux=True))(jnp.asarray(args["q"]))
    u = few(lambda x: H[0, 0] @ x + args["lam"][0] * x, G[0, 0] @ w[0, -1, 0])
    golden.check_close("dq", dq[0, -1, 0], u, 1e-13)


def one_head(T=130, K=16, gamma=0.99, seed=51):
    rng = np.random.default_rng(seed)
    q, k = unit(rng.normal(size=(2, T, K)))
    return {
        "q": q,
        "k": k,
        "v": rng.normal(size=(T, K)),
        "beta": rng.uniform(0, 1, T),
        "log_decay": np.full((T, 1), np.log(gamma)),
        "lam": rng.uniform(0.25, 1, K),
        "G": np.zeros((K, K)),
        "H": np.zeros((K, K)),
    }


def test_a_step_of_cg_is_matrix_products():
    """What the solver multiplies is a whole chunk of 64: the rows of x with k, the scores with k, and x with H."""
    run = jax.jit(partial(chunkwise, chunk=64, solver=CG(max_steps=30)))
    loop = run.lower(**jax.tree.map(jnp.asarray, one_head())).as_text().split("stablehlo.while")[2]
    products = [line for line in loop.splitlines() if "dot_general" in line and "batching_dims" not in line]
    assert [re.search(r"-> tensor<(\d+x\d+)xf64>", line).group(1) for line in products[:3]] == [
        "16x64",
        "64x64",
        "64x16",
    ]


def test_the_gradient_solves_once_more_and_not_twice():
    """One loop for x and one for the adjoint: x is kept for the gradient, which recomputes the rest of the chunk."""
    slopes = jax.jit(jax.grad(lambda args: jnp.sum(chunkwise(**args, chunk=64, solver=CG(max_steps=30))[0] ** 2)))
    compiled = slopes.lower(jax.tree.map(jnp.asarray, one_head())).compile().as_text()
    assert compiled.count(" while(") == 2 + 2  # and the two scans over chunks


@jax.jit
def inverses(k, β, g, lam, H):
    """M_t as a matrix, for every t of a chunk that H is what was left to start from."""
    C, K = k.shape
    kept = jnp.append(jnp.exp(jnp.cumsum(g[:0:-1]))[::-1], 1) * β
    made = Inverses(k, kept[:, None], jnp.exp(g.sum()), lam, H)
    return jax.vmap(lambda so_far: jax.vmap(made.at(so_far))(jnp.eye(K)))(jnp.tri(C))


@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.9, 0.5])
def test_the_spectrum_the_preconditioner_leaves(gamma):
    """The eigenvalues of M_t (H_t + diag(lam)) lie between 1 and 1 / s_t (Inverses)."""
    x, C = one_head(T=32, gamma=gamma), 32
    start = np.random.default_rng(52).normal(size=(16, 16))
    H = start @ start.T
    M = inverses(x["k"], x["beta"], x["log_decay"][:, 0], x["lam"], H)
    for t in range(C):
        H = gamma * H + x["beta"][t] * np.outer(x["k"][t], x["k"][t])
        E = np.linalg.cholesky(M[t])
        μ = np.linalg.eigvalsh(E.T @ (H + np.diag(x["lam"])) @ E)
        s = gamma ** (C - 1 - t) * min(gamma ** (-C / 2), 4)
        assert min(1, 1 / s) - 1e-12 < μ[0] <= μ[-1] < max(1, 1 / s) + 1e-12


@jax.jit
def residuals(A, M, b):
    """Of every step, without M and with it."""
    methods = (None, lambda r: M @ r)
    return [cg_trace(lambda p: A @ p, b, max_steps=99, precondition=method).recurred for method in methods]


def test_steps_do_not_grow_with_the_condition_number():
    """Token 480 of 512, in the middle of its chunk: at condition 12, 1000 and 10000 CG takes 15, 45 and 66 steps."""
    taken = []
    for lam in (1.0, 1e-2, 1e-4):
        x = one_head(T=512, K=32, gamma=0.999)
        k, γ, lam = x["k"] * np.geomspace(1, 0.01, 32), 0.999, np.full(32, lam)
        before, now = (k[:n].T @ (γ ** np.arange(n - 1, -1, -1.0)[:, None] * k[:n]) for n in (448, 481))
        A, M = now + np.diag(lam), inverses(k[448:], np.ones(64), x["log_decay"][448:, 0], lam, before)[480 - 448]
        steps = (int(steps_to(recurred, 1e-6)) for recurred in residuals(A, M, x["q"][480]))
        taken.append([np.linalg.cond(A), *steps])
    condition, plain, preconditioned = zip(*taken, strict=True)
    assert condition[2] > 500 * condition[0]
    assert plain[2] > 3 * plain[0]
    assert max(preconditioned) <= 3
