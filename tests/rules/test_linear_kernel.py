"""The kernel of linear attention, through three gates from one source.

1. JAX's interpreter of GPU kernels, on any CPU, with race detection: values and gradients against the definition.
2. Lowering for CUDA, on any CPU: layouts and the size of shared memory.
3. A Hopper GPU, where this same file compiles the kernel and compares the same numbers:

       JAX_ENABLE_X64=1 python -m pytest --noconftest -c /dev/null --rootdir . tests/rules/test_linear_kernel.py
"""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call as interpreter
from jax.experimental.pallas import mosaic_gpu as plgpu

from ttt_teach import linear
from ttt_teach.rules import tiles
from ttt_teach.rules.door import on_hopper
from ttt_teach.rules.linear.kernel import kernel

pytestmark = pytest.mark.timeout(300, method="thread")  # a kernel that waits for ever does not see signals

# A rounding of the 16-bit factors is at most 2^-9 or 2^-12, and each number goes through two or three of them (scores,
# state, output): measured 1e-3 to 2.9e-3 and 1e-4 to 3.6e-4, in the interpreter and on an H200 alike.
TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4}


@pytest.fixture(autouse=True)
def somewhere(capsys):
    """Inside the interpreter unless there is a GPU; no race may be found there.

    It prints each one (and newer versions raise); what it keeps is about the last kernel only.
    """
    with contextlib.ExitStack() as stack:
        if not on_hopper():
            stack.enter_context(plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)))
        try:
            yield
            assert "RACE DETECTED" not in capsys.readouterr().out
        finally:
            interpreter.reset_gpu_interpret_mode_state()


def draw(seed=0, *, B=1, T=70, H=1, D=64, dtype="bfloat16", decay=True, state=True):
    """Arguments of :func:`linear` and an upstream gradient of each result."""
    rng = np.random.default_rng(seed)
    args = {n: rng.normal(size=(B, T, H, D)) * (1 if n == "v" else D**-0.5) for n in "qkv"}
    args = {n: jnp.asarray(x, dtype) for n, x in args.items()}
    if decay:
        args["log_decay"] = jnp.asarray(np.log(rng.uniform(0.7, 1, (B, T, H))), jnp.float32)
    if state:
        args["state"] = jnp.asarray(rng.normal(size=(B, H, D, D)), jnp.float32)
    slopes = jnp.asarray(rng.normal(size=(B, T, H, D)), dtype), jnp.asarray(rng.normal(size=(B, H, D, D)), jnp.float32)
    return args, slopes


def pull(rule, args, slopes):
    """The results, and the gradients by name."""

    @jax.jit
    def run(args, slopes):
        results, back = jax.vjp(rule, args)
        return {"o": results[0], "S": results[1]} | {f"d{n}": x for n, x in back(slopes)[0].items()}

    return run(args, slopes)


def exact(args, slopes, **options):
    """The same from the definition in float64, on the same rounded inputs."""
    args, slopes = jax.tree.map(lambda x: x.astype(jnp.float64), (args, slopes))
    return pull(lambda args: linear(**args, form="definition", **options), args, slopes)


def near(name, got, want, tol):
    """The norm of the difference relative to that of the reference. NaN fails."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error <= tol, f"{name}: relative error {error:.1e} above {tol:.0e}"


def check(got, want, tol):
    for name, x in want.items():
        near(name, got[name], x, tol)


@pytest.mark.parametrize(
    "case",
    [
        {"T": 130, "H": 2},  # three chunks, the last of two tokens; a batch of heads
        {"T": 67, "D": 128, "dtype": "float16"},  # two tiles of state
        {"T": 5, "B": 2, "decay": False, "state": False},
    ],
    ids=str,
)
def test_values_and_gradients(case):
    args, slopes = draw(**case)
    got = pull(lambda args: linear(**args, form="kernel", scale=0.5), args, slopes)
    assert got["o"].dtype == args["v"].dtype and got["S"].dtype == jnp.float32
    check(got, exact(args, slopes, scale=0.5), TOLERANCE[case.get("dtype", "bfloat16")])


def test_a_reset_leaves_no_trace_and_no_nan():
    """log_decay of -inf: a decay of zero, also on the first token of a chunk, with gradients."""
    args, slopes = draw(1, T=72)
    args["log_decay"] = args["log_decay"].at[0, jnp.array([3, 64])].set(-jnp.inf)
    got = pull(lambda args: linear(**args, form="kernel"), args, slopes)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))
    assert not np.any(got["dlog_decay"][0, jnp.array([3, 64])])
    late = {n: x[:, 64:] for n, x in args.items() if n != "state"}
    late["log_decay"] = late["log_decay"].at[:, 0].set(0)
    want = exact(late, (slopes[0][:, 64:], slopes[1]))
    check(
        {n: x[:, 64:] if x.ndim == 4 and n not in ("S", "dstate") else x for n, x in got.items()},
        {n: want[n] for n in ("o", "S", "dq", "dk", "dv")},
        TOLERANCE["bfloat16"],
    )


def test_a_split_changes_nothing():
    """Two calls of one length, the state carried: the same to the rounding of the factors, which differs as the chunks
    do."""
    args, _ = draw(2, T=80, dtype="float16")
    call = jax.jit(lambda tokens, state: linear(**tokens, state=state, form="kernel"))
    part = lambda *ends: {n: x[:, slice(*ends)] for n, x in args.items() if n != "state"}  # noqa: E731
    o, S = call(part(None), args["state"])
    o1, middle = call(part(40), args["state"])
    o2, last = call(part(40, None), middle)
    check({"o": jnp.concatenate([o1, o2], 1), "S": last}, {"o": o, "S": S}, TOLERANCE["float16"])


def test_vmap_and_a_scale_known_only_later():
    args, _ = draw(4, T=8, state=False)
    twice = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), args)
    run = jax.vmap(lambda args, scale: linear(**args, form="kernel", scale=scale)[0], (0, None))
    want, _ = linear(**jax.tree.map(lambda x: 2 * x, args), form="kernel", scale=0.5)
    np.testing.assert_array_equal(jax.jit(run)(twice, 0.5)[1], want)  # exact in binary, so nothing is rounded


@pytest.mark.parametrize("D", tiles.WIDTHS)
@pytest.mark.parametrize("decay", [True, False])
def test_lowers_for_hopper_without_one(D, decay):
    """Layout inference, the dialect's checks and the limit of shared memory, forward and backward."""
    args, slopes = draw(T=136, D=D, decay=decay)
    none = contextlib.nullcontext() if on_hopper() else plgpu.force_gpu_interpret_mode(None)
    with none:
        run = jax.jit(partial(pull, lambda x: kernel(x["q"], x["k"], x["v"], x.get("log_decay"), x["state"])))
        text = run.trace(args, slopes).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 3  # forwards, backwards, between


def test_what_it_does_not_cover_is_named():
    args, _ = draw(T=8)

    def refuses(message, **changed):
        with pytest.raises(ValueError, match=f"form is 'kernel', which {message}"):
            linear(**args | changed, form="kernel", chunk=changed.pop("chunk", 64))

    refuses("takes bfloat16 or float16, and q is float32", q=args["q"].astype(jnp.float32))
    refuses("takes one dtype, and q is bfloat16, v is float16", v=args["v"].astype(jnp.float16))
    refuses("sums in float32, and an argument is float64", state=args["state"].astype(jnp.float64))
    refuses("takes one decay per head, and log_decay has one per", log_decay=jnp.zeros((1, 8, 1, 64)) - 0.0)
    narrow, state = {n: args[n][..., :32] for n in "qkv"}, args["state"][..., :32, :32]
    refuses(r"takes K = V in {64, 128}, and q has 32 channels", **narrow, state=state)
    refuses(r".* and v has 32 channels, q has 64", v=args["v"][..., :32], state=args["state"][..., :32])
    refuses("takes no empty array", **{n: x[:, :0] for n, x in args.items() if n != "state"})
    with pytest.raises(ValueError, match="form is 'kernel', which takes chunk = 64, and chunk is 32"):
        linear(**args, form="kernel", chunk=32)
    with plgpu.force_gpu_interpret_mode(None):
        if not on_hopper():
            refuses("needs a Hopper GPU .*, and this is cpu")


def check_auto(monkeypatch, rule, args, *others):
    """As if on Hopper, with a kernel that only says that it was called: for args it is, for args changed it is not."""

    class Called(Exception):
        pass

    def called(*args, **options):
        raise Called

    monkeypatch.setattr("ttt_teach.rules.door.on_hopper", lambda: True)
    monkeypatch.setattr("ttt_teach.rules.tiles.no_place", lambda warpgroups=1: None)
    monkeypatch.setattr(f"ttt_teach.rules.{rule.__name__}.kernel.kernel", called)
    with pytest.raises(Called):
        rule(**args)
    for other in others:
        np.testing.assert_array_equal(rule(**args | other)[0], rule(**args | other, form="chunk")[0])


def test_auto_takes_the_kernel_for_what_it_covers_and_chunk_for_the_rest(monkeypatch):
    args, _ = draw(5, T=8, state=False)
    channels = {"log_decay": jnp.repeat(args["log_decay"][..., None], 64, axis=-1)}
    check_auto(monkeypatch, linear, args, {"q": args["q"].astype(jnp.float32)}, {"chunk": 32}, channels)
