"""The kernels of mesa, through three gates from one source (see test_linear_kernel.py):

JAX_ENABLE_X64=1 python -m pytest --noconftest -c /dev/null --rootdir . tests/rules/test_mesa_kernel.py
"""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.rules.test_linear_kernel import check, check_auto, somewhere  # noqa: F401 - a fixture for all tests here
from ttt_teach import CG, PCG, MesaState, mesa
from ttt_teach.rules.door import on_hopper
from ttt_teach.rules.mesa.kernel import FLOOR, kernel, split
from ttt_teach.tasks import unit

pytestmark = pytest.mark.timeout(300, method="thread")  # a kernel that waits for ever does not see signals


def draw(seed=0, *, T=70, H=1, D=64, dtype="bfloat16", decay=0.9, state=True, scale=1.0):
    """Arguments of :func:`mesa` and an upstream gradient of each result, times ``scale``."""
    rng = np.random.default_rng(seed)
    args = {n: rng.normal(size=(1, T, H, D)) for n in "qkv"}
    args = {n: jnp.asarray(x if n == "v" else unit(x), dtype) for n, x in args.items()}
    args["beta"] = jnp.asarray(rng.uniform(0, 1, (1, T, H)), jnp.float32)
    args["lam"] = jnp.asarray(rng.uniform(0.25, 1.25, (H, D)), jnp.float32)
    if decay:
        args["log_decay"] = jnp.asarray(np.log(rng.uniform(decay, 1, (1, T, H))), jnp.float32)
    G, A = (jnp.asarray(x, jnp.float32) for x in rng.normal(size=(2, 1, H, D, D)))
    if state:
        args["state"] = MesaState(G, A @ A.mT / D)
    do, dstate = rng.normal(size=(1, T, H, D)), rng.normal(size=(2, 1, H, D, D))
    return args, (jnp.asarray(scale * do, dtype), MesaState(*jnp.asarray(scale * dstate, jnp.float32)))


def pull(rule, args, slopes):
    """The results, and the gradients by name; that of H by its symmetric part, which alone means something."""

    @jax.jit
    def run(args, slopes):
        (o, (G, H)), back = jax.vjp(rule, args)
        found = back(slopes)[0]
        dG, dH = found.pop("state", (None, None))
        states = {} if dG is None else {"dG": dG, "dH": (dH + dH.mT) / 2}
        return {"o": o, "G": G, "H": H} | {f"d{n}": x for n, x in found.items()} | states

    return run(args, slopes)


def exact(args, slopes=None):
    """The same from the definition in float64, on the same rounded inputs."""
    args, slopes = jax.tree.map(lambda x: x.astype(jnp.float64), (args, slopes))
    rule = lambda args: mesa(**args, form="definition")  # noqa: E731
    return {"o": jax.jit(rule)(args)[0]} if slopes is None else pull(rule, args, slopes)


@pytest.mark.parametrize(
    ("case", "tol"),
    [
        ({"T": 67, "scale": 1e-6}, 4e-3),  # two chunks, the last of three tokens; a small upstream gradient
        ({"T": 5, "D": 128}, 4e-3),  # two blocks of columns, and a state that decays
        ({"T": 9, "dtype": "float16", "decay": None}, 5e-4),
    ],
    ids=str,
)
def test_values_and_gradients(case, tol):
    args, slopes = draw(**case)
    got = pull(lambda args: mesa(**args, form="kernel", solver=CG(20, 1e-4)), args, slopes)
    assert got["o"].dtype == args["v"].dtype and got["H"].dtype == jnp.float32
    check(got, exact(args, slopes), tol)


@partial(jax.jit, static_argnames="solver")
def read(args, solver):
    """What the kernel finds, as one program."""
    o, (G, H) = mesa(**args, form="kernel", solver=solver)
    return {"o": o, "G": G, "H": H}


def with_a_mean(seed, T, D):
    """Keys with a mean, 300 of them before: H has one large eigenvalue."""
    args, _ = draw(seed, T=T, D=D, decay=None)
    keys = unit(0.5 + np.random.default_rng(seed).normal(size=(300, D)))
    return args | {"state": MesaState(args["state"].G, jnp.asarray(keys.T @ keys, jnp.float32)[None, None])}


def test_the_preconditioner_saves_steps():
    args = with_a_mean(6, 8, 64) | {"lam": jnp.asarray(np.geomspace(0.03, 30, 64)[None], jnp.float32)}
    want = exact(args)
    check(read(args, PCG(6)), want, 5e-3)
    with pytest.raises(AssertionError, match="relative error"):
        check(read(args, CG(6)), want, 5e-2)


def test_the_preconditioner_fits_what_a_reset_leaves():
    """From token 10 on nothing of H is left; with the M of before, 16 steps leave 9 percent there."""
    args = with_a_mean(15, 40, 64) | {"lam": jnp.full((1, 64), 0.05, jnp.float32)}
    args["log_decay"] = jnp.zeros((1, 40, 1), jnp.float32).at[0, 10].set(-jnp.inf)
    check({"o": read(args, PCG(16))["o"][:, 10:]}, {"o": exact(args)["o"][:, 10:]}, 4e-3)


def test_the_preconditioner_has_no_scale():
    args, _ = draw(16, T=3)
    H = 1e30 * jnp.diag(jnp.linspace(1, 2, 64, dtype=jnp.float32))[None, None]
    args["state"] = MesaState(args["state"].G, H)
    check({"o": read(args, PCG(40, 1e-5))["o"]}, exact(args), 5e-3)


def one_step(q, k, v, beta, lam, G, H):
    """o of one token of one head after one step of PCG, in float64: x = (q.z / z.A z) z with z = M q."""
    trace, D = np.trace(H), len(H)
    v1 = H @ (np.diag(H) / trace)
    u = H @ v1
    most = (v1 @ u) / (v1 @ v1)
    rest = (trace - most) / (D - 1)
    u = u / np.linalg.norm(u)
    M = np.linalg.inv(np.diag(lam + rest) + (most - rest) * np.outer(u, u))
    e = np.diag(1 / (lam + rest))
    z = (e - (1 - FLOOR) * (e - M)) @ q
    A = H + beta * np.outer(k, k) + np.diag(lam)
    return (G + beta * np.outer(k, v)).T @ z * (q @ z) / (z @ A @ z)


@pytest.mark.parametrize("D", [64, 128])
def test_the_preconditioner_is_that_of_the_formula(D):
    args = with_a_mean(11, 1, D)
    token = (np.asarray(args[n], float)[0, 0, 0] for n in ("q", "k", "v", "beta"))
    want = one_step(*token, np.asarray(args["lam"], float)[0], *(np.asarray(x, float)[0, 0] for x in args["state"]))
    check({"o": read(args, PCG(1))["o"][0, 0, 0]}, {"o": want}, 5e-3)


@pytest.mark.parametrize("solver", [CG(15, 1e-4), PCG(4, 1e-4)], ids=str)
def test_long_collinear_keys(solver):
    """The last 8 of 4096 nearly equal keys, no forgetting, lam 0.25: condition number 16000."""
    args, _ = draw(8, T=8, decay=None, state=False)
    rng = np.random.default_rng(9)
    k = np.asarray(jnp.asarray(unit(1 + 0.01 * rng.normal(size=(4096, 64))), args["k"].dtype), float)
    v = rng.normal(size=(4096, 64))
    args["k"] = jnp.asarray(k[None, -8:, None], args["k"].dtype)
    state = (jnp.asarray(k[:-8].T @ x[:-8], jnp.float32)[None, None] for x in (v, k))
    args |= {"lam": jnp.full((1, 64), 0.25, jnp.float32), "beta": jnp.ones((1, 8, 1), jnp.float32)}
    args["state"] = MesaState(*state)
    check(read(args, solver), exact(args), 5e-3)


def test_small_weights_keep_their_digits():
    args, _ = draw(10, T=9, state=False)
    args |= {n: 1e-6 * args[n] for n in ("beta", "lam")}
    check(read(args, CG(20, 1e-4)), exact(args), 5e-3)


def test_a_large_weight_takes_no_digits_from_those_before_it():
    """beta about 1e-7 and then about 1, with lam 1e-7: less than the exponents of float16 are apart."""
    args, _ = draw(12, T=40, decay=0.99, state=False)
    args |= {n: 1e-7 * args[n] for n in ("beta", "lam")}
    args["beta"] = args["beta"].at[:, 20:].multiply(1e7)
    check({"o": read(args, CG(40, 1e-5))["o"][:, :20]}, {"o": exact(args)["o"][:, :20]}, 5e-3)


def test_a_reset_leaves_no_trace_and_no_nan():
    """log_decay of -inf: a decay of zero, also on the first token of a chunk, with gradients."""
    args, slopes = draw(1, T=72)
    args["log_decay"] = args["log_decay"].at[0, jnp.array([3, 64])].set(-jnp.inf)
    got = pull(lambda args: mesa(**args, form="kernel", solver=CG(12, 1e-3)), args, slopes)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))
    assert not np.any(got["dlog_decay"][0, jnp.array([3, 64])])
    late = {n: x if n == "lam" else x[:, 64:] for n, x in args.items() if n != "state"}
    late["log_decay"] = late["log_decay"].at[:, 0].set(0)
    want = exact(late, (slopes[0][:, 64:], slopes[1]))
    got = {n: x[:, 64:] if n in ("o", "dq", "dk", "dv") else x for n, x in got.items()}
    check(got, {n: want[n] for n in ("o", "G", "H", "dq", "dk", "dv")}, 5e-3)


def test_a_nan_shows():
    """One with all its bits set, as the GPU computes them."""
    args, slopes = draw(1, T=3)
    args["lam"] = args["lam"].at[0, 3].set(np.uint32(0x7FFFFFFF).view(np.float32))
    got = pull(lambda args: mesa(**args, form="kernel", solver=CG(2)), args, slopes)
    assert all(np.isnan(x).all() for n, x in got.items() if n not in ("G", "H"))


@pytest.mark.parametrize("solver", [CG(3), PCG(3)], ids=str)
def test_no_token_knows_a_later_one(solver):
    """Not after few steps either, and to the last bit: all of the tokens from 40 on is changed, beta by much."""
    args, _ = draw(13, T=70)
    other, _ = draw(14, T=70)
    other["beta"] *= 100
    changed = {n: x if n in ("lam", "state") else x.at[:, 40:].set(other[n][:, 40:]) for n, x in args.items()}
    o, changed = (np.asarray(read(x, solver)["o"], float) for x in (args, changed))
    assert np.array_equal(o[:, :40], changed[:, :40]) and not np.array_equal(o[:, 40], changed[:, 40])


def test_a_split_changes_nothing():
    """Two calls of one length, which compile once, the state carried: the same to the rounding and the tolerance."""
    args, _ = draw(2, T=80)

    @jax.jit
    def call(tokens, state):
        return mesa(**tokens, lam=args["lam"], state=state, form="kernel", solver=CG(12, 1e-3))

    part = lambda *ends: {n: x[:, slice(*ends)] for n, x in args.items() if n not in ("state", "lam")}  # noqa: E731
    o, (G, H) = call(part(None), args["state"])
    o1, middle = call(part(40), args["state"])
    o2, last = call(part(40, None), middle)
    check({"o": jnp.concatenate([o1, o2], 1), "G": last.G, "H": last.H}, {"o": o, "G": G, "H": H}, 5e-3)


def test_nothing_asked_and_nothing_written():
    """Zero queries and keys, one token: zeros, and no NaN."""
    args, _ = draw(3, T=1, state=False)
    args |= {n: jnp.zeros_like(args[n]) for n in "qk"}
    assert not any(np.any(x) for x in read(args, PCG(2)).values())


def test_two_16_bit_numbers_have_16_bits():
    x = np.random.default_rng(4).normal(size=1000)
    high, low = (np.asarray(part, float) for part in split(jnp.asarray(x, jnp.float32)))
    x = np.float32(x).astype(float)
    assert np.all(abs(x - high) <= abs(x) / 2**8) and np.all(abs(x - high - low) <= abs(x) / 2**17)


@pytest.mark.parametrize(("D", "decay", "solver"), [(64, None, CG(30)), (128, 0.9, PCG(30, 1e-3))], ids=str)
def test_lowers_for_hopper_without_one(D, decay, solver):
    """Layout inference, the dialect's checks and the limit of shared memory, forward and backward."""
    args, slopes = draw(T=136, D=D, decay=decay, state=False)
    none = contextlib.nullcontext() if on_hopper() else plgpu.force_gpu_interpret_mode(None)

    def rule(x):
        o, G, H = kernel(*(x[n] for n in ("q", "k", "v", "beta", "lam")), x.get("log_decay"), solver=solver)
        return o, MesaState(G, H)

    with none:
        text = jax.jit(lambda *x: pull(rule, *x)).trace(args, slopes).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 7  # walk, solve, read; read, solve, walk, between


def test_what_it_does_not_cover_is_named():
    args, _ = draw(T=8)

    def refuses(message, **changed):
        with pytest.raises(ValueError, match=f"form is 'kernel', which {message}"):
            mesa(**args | changed, form="kernel", chunk=changed.pop("chunk", 64))

    refuses("takes bfloat16 or float16, and q is float32", q=args["q"].astype(jnp.float32))
    refuses("takes one dtype, and q is bfloat16, v is float16", v=args["v"].astype(jnp.float16))
    refuses("sums in float32, and an argument is float64", beta=args["beta"].astype(jnp.float64))
    with pytest.raises(ValueError, match="form is 'kernel', which takes chunk = 64, and chunk is 32"):
        mesa(**args, form="kernel", chunk=32)
    with plgpu.force_gpu_interpret_mode(None):
        if not on_hopper():
            refuses("needs a Hopper GPU .*, and this is cpu")


def test_auto_takes_the_kernel_for_what_it_covers_and_chunk_for_the_rest(monkeypatch):
    args, _ = draw(5, T=8, state=False)
    check_auto(monkeypatch, mesa, args, {"q": args["q"].astype(jnp.float32)}, {"chunk": 32})
