"""The kernels of the delta rule through three gates, as those of linear attention (test_linear_kernel.py says how)."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.rules.test_linear_kernel import check, check_auto, pull, somewhere  # noqa: F401 - a fixture for all tests here
from ttt_teach import delta
from ttt_teach.rules.delta.kernel import kernel
from ttt_teach.rules.door import on_hopper
from ttt_teach.tasks import unit

pytestmark = pytest.mark.timeout(300, method="thread")  # a kernel that waits for ever does not see signals

# Roundings of 2^-9 or 2^-12 once more than in linear attention (x, u, T): measured 1e-3 to 4.2e-3 and 1e-4 to 4.9e-4.
TOLERANCE = {"bfloat16": 6e-3, "float16": 7e-4}
ALIKE, ALIKE_SUMS = 3e-3, 1.6e-2  # float16, like keys: measured up to 1.9e-3, and 1.1e-2 for sums that cancel


def draw(seed=0, *, B=1, T=70, H=1, D=64, dtype="bfloat16", decay=True, state=True, write=True):
    """Arguments of :func:`delta`, keys of length 1, and an upstream gradient of each result."""
    rng = np.random.default_rng(seed)
    args = {n: rng.normal(size=(B, T, H, D)) for n in "qkv"}
    args |= {n: unit(args[n]) for n in "qk"}
    if write:
        args["write_key"] = args["k"] * rng.uniform(0.5, 2, (B, T, H, D))
    args = {n: jnp.asarray(x, dtype) for n, x in args.items()}
    args["beta"] = jnp.asarray(rng.uniform(0, 1, (B, T, H)), jnp.float32)
    if decay:
        args["log_decay"] = jnp.asarray(np.log(rng.uniform(0.7, 1, (B, T, H))), jnp.float32)
    if state:
        args["state"] = jnp.asarray(rng.normal(size=(B, H, D, D)), jnp.float32)
    slopes = jnp.asarray(rng.normal(size=(B, T, H, D)), dtype), jnp.asarray(rng.normal(size=(B, H, D, D)), jnp.float32)
    return args, slopes


def alike():
    args, slopes = draw(1, T=72, dtype="float16", write=False)
    rng = np.random.default_rng(2)
    args["k"] = args["k"][:, :1] * jnp.asarray(rng.choice([-1.0, 1.0], (1, 72, 1, 1)), "float16")
    args["k"] = args["k"].at[0, jnp.array([5, 70])].set(0)
    args["beta"] = 2 * args["beta"]
    args["log_decay"] = jnp.zeros_like(args["log_decay"]).at[0, jnp.array([3, 64])].set(-jnp.inf)
    return args, jax.tree.map(lambda x: x * 1e-3, slopes)


def exact(args, slopes, **options):
    """The results and gradients from the definition in float64, on the same rounded inputs."""
    args, slopes = jax.tree.map(lambda x: x.astype(jnp.float64), (args, slopes))
    return pull(lambda args: delta(**args, form="definition", **options), args, slopes)


@pytest.mark.parametrize(
    "case",
    [
        {"T": 67},  # two chunks, the last of three tokens
        {"T": 130, "D": 128, "dtype": "float16"},  # two warpgroups, two tiles of state; the third chunk in a used slot
        {"T": 5, "B": 2, "decay": False, "state": False, "write": False},
    ],
    ids=str,
)
def test_values_and_gradients(case):
    args, slopes = draw(**case)
    got = pull(lambda args: delta(**args, form="kernel", scale=0.5), args, slopes)
    assert got["o"].dtype == args["v"].dtype and got["S"].dtype == jnp.float32
    check(got, exact(args, slopes, scale=0.5), TOLERANCE[case.get("dtype", "bfloat16")])


def test_keys_alike_steps_up_to_two_resets_and_a_small_gradient():
    """One key but for its sign, beta up to 2: (I + A)^-1 is full of numbers that cancel, and hardly any step forgets.

    A decay of zero within a chunk and on its first token, tokens without a key, an upstream gradient of 1e-3.
    """
    args, slopes = alike()
    got, want = pull(lambda args: delta(**args, form="kernel"), args, slopes), exact(args, slopes)
    sums = {n: want.pop(n) for n in ("dbeta", "dlog_decay")}  # of what rounds and then cancels
    check(got, want, ALIKE)
    check(got, sums, ALIKE_SUMS)
    assert not np.any(got["dlog_decay"][0, jnp.array([3, 64])])


def test_a_split_changes_nothing():
    """Two calls, the state carried: the same to the rounding of the factors, which differs as the chunks do."""
    args, _ = draw(3, T=80, dtype="float16")
    call = jax.jit(lambda tokens, state: delta(**tokens, state=state, form="kernel"))
    part = lambda *ends: {n: x[:, slice(*ends)] for n, x in args.items() if n != "state"}  # noqa: E731
    o, S = call(part(None), args["state"])
    o1, middle = call(part(40), args["state"])
    o2, last = call(part(40, None), middle)
    check({"o": jnp.concatenate([o1, o2], 1), "S": last}, {"o": o, "S": S}, TOLERANCE["float16"])


@pytest.mark.parametrize(("D", "decay"), [(64, False), (128, True)])
def test_lowers_for_hopper_without_one(D, decay):
    """Layout inference, the dialect's checks and the limit of shared memory, forward and backward."""
    args, slopes = draw(T=136, D=D, decay=decay)
    none = contextlib.nullcontext() if on_hopper() else plgpu.force_gpu_interpret_mode(None)
    names = ("q", "k", "v", "beta", "write_key", "log_decay", "state")
    with none:
        run = jax.jit(partial(pull, lambda x: kernel(*(x.get(n) for n in names))))
        text = run.trace(args, slopes).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 4  # inverses, walk, back, between


def test_what_it_does_not_cover_is_named():
    args, _ = draw(T=8)

    def refuses(message, **changed):
        with pytest.raises(ValueError, match=f"form is 'kernel', which {message}"):
            delta(**args | changed, form="kernel")

    refuses("takes bfloat16 or float16, and q is float32", q=args["q"].astype(jnp.float32))
    refuses("takes one dtype, and q is bfloat16, write_key is float16", write_key=args["write_key"].astype("float16"))
    refuses("sums in float32, and an argument is float64", state=args["state"].astype(jnp.float64))
    refuses("takes one decay per head, and log_decay has one per", log_decay=jnp.zeros((1, 8, 1, 64)))
    narrow = {n: args[n][..., :32] for n in ("q", "k", "v", "write_key")}
    refuses(r"takes K = V in {64, 128}, and q has 32 channels", **narrow, state=args["state"][..., :32, :32])
    refuses("takes chunk = 64, and chunk is 32", chunk=32)
    with plgpu.force_gpu_interpret_mode(None):
        if not on_hopper():
            refuses("needs a Hopper GPU .*, and this is cpu")


def test_auto_takes_the_kernel_for_what_it_covers_and_chunk_for_the_rest(monkeypatch):
    args, _ = draw(5, T=8, state=False)
    channels = {"log_decay": jnp.repeat(args["log_decay"][..., None], 64, axis=-1)}
    check_auto(monkeypatch, delta, args, {"write_key": args["k"].astype(jnp.float32)}, {"chunk": 32}, channels)
