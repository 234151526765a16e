"""Mesa: the stated loss has zero gradient at the answer; golden files; collinear keys, and any upstream scale."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rules import golden
from tests.rules.contract import Contract
from ttt_teach import CG, MesaState, mesa
from ttt_teach.rules.mesa import FORMS

EXACT = CG(max_steps=None, tol=1e-15)


class TestMesa(Contract):
    rule = staticmethod(partial(mesa, solver=EXACT))
    forms = tuple(FORMS)
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

    @pytest.mark.parametrize("scale", [1e-6, 1e6])
    def test_gradients_do_not_depend_on_the_upstream_scale(self, form, scale):
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.draw(32, T=33))
        call = partial(mesa, solver=CG(max_steps=30, tol=1e-6), form=form)
        slopes = jax.jit(jax.grad(lambda args, upstream: jnp.sum(jnp.sin(call(**args)[0]) * upstream)))
        got, want = slopes(args, jnp.float32(scale)), slopes(args, jnp.float32(1))
        jax.tree.map(lambda a, b: golden.check_close("slope", a / scale, b, 2e-5), got, want)

    @pytest.mark.parametrize("lam", [1.0, 0.01])
    @pytest.mark.parametrize("K", [2, 8])
    def test_the_default_solver_is_finite_where_it_has_long_converged(self, form, lam, K):
        """30 steps for K unknowns, in float32, output and gradients."""
        args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.draw(35, T=33, K=K, V=K) | {"state": None})
        args["lam"] = jnp.full((2, K), lam, jnp.float32)
        o, slopes = jax.jit(jax.value_and_grad(lambda args: jnp.sum(mesa(**args, form=form)[0])))(args)
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
        refuses(r"solver is 30; expected CG", solver=30)


def run(form):
    def apply(q, k, v, beta, g, lamb, h_kk0=None, h_kv0=None):
        state = None if h_kk0 is None else MesaState(h_kv0, h_kk0)
        o, (G, H) = mesa(q, k, v, beta, lamb, log_decay=g, solver=EXACT, state=state, form=form)
        return {"o": o, "h_kv_t": G, "h_kk_t": H}

    return apply


INPUTS = ("q", "k", "v", "beta", "g", "lamb", "h_kk0", "h_kv0")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", golden.read("mesa_exact"))
def test_golden(name, form):
    case = golden.read("mesa_exact")[name]
    if "dh_kk0" in case:  # H0 is symmetric, so only the symmetric part of its gradient means something
        case = case | {"dh_kk0": (case["dh_kk0"] + case["dh_kk0"].mT) / 2}

    def symmetric(h_kk0=None, **rest):
        return run(form)(h_kk0=None if h_kk0 is None else (h_kk0 + h_kk0.mT) / 2, **rest)

    golden.check_case(case, symmetric, INPUTS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [c for c in golden.read("mesa_cg") if c != "decode"])
def test_golden_exact_solve(name, form):
    """The exact outputs stored beside another library's iterates, whose additive guard is not reproduced here."""
    case = golden.read("mesa_cg")[name]
    o = run(form)(**{n: case[n] for n in INPUTS if n in case})["o"]
    golden.check_close("o", o, case["o_exact"], 1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_golden_decode(form):
    """One token at a time on a carried state."""
    case = golden.read("mesa_cg")["decode"]
    token = {n: case[n][:, None] for n in ("q", "k", "v", "beta", "g")}
    found = run(form)(**token, lamb=case["lamb"], h_kk0=case["h_kk_prev"], h_kv0=case["h_kv_prev"])
    golden.check_close("H", found["h_kk_t"], case["h_kk"], 1e-14)
    golden.check_close("G", found["h_kv_t"], case["h_kv"], 1e-14)
