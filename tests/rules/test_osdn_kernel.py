"""OSDN's kernels through three gates, as those of linear attention (test_linear_kernel.py says how).

The delta rule's kernels, which OSDN shares, have their own file; here it is about the scales.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.rules.test_delta_kernel import TOLERANCE, draw
from tests.rules.test_linear_kernel import check, check_auto, somewhere  # noqa: F401 - a fixture for all tests here
from ttt_teach.rules.door import on_hopper
from ttt_teach.rules.osdn import OSDNState, osdn
from ttt_teach.rules.osdn.kernel import scaled, unlearn, walk

pytestmark = pytest.mark.timeout(300, method="thread")  # a kernel that waits for ever does not see signals

NUMBERS = {"step_size": 0.05, "lo": 0.5, "hi": 2.0, "eps": 1e-6}


def arguments(seed=0, numbers=NUMBERS, **case):
    """Arguments of :func:`osdn`, all floats with a gradient, and an upstream gradient of each result."""
    args, (do, dS) = draw(seed, write=False, **case)
    rng = np.random.default_rng(seed + 1)
    d, dd = rng.uniform(0.9, 1.1, dS.shape[:3]), rng.normal(size=dS.shape[:3])
    args["d"] = jnp.asarray(d, jnp.float32)
    args |= {n: jnp.float32(x) for n, x in numbers.items()}
    return args, (do, OSDNState(dS, jnp.asarray(dd, jnp.float32)))


def rule(form, **options):
    def run(state, d, lo, hi, **args):
        return osdn(**args, bounds=(lo, hi), state=OSDNState(state, d), form=form, **options)

    return lambda args: run(**args)


def pull(rule, args, slopes):
    """The results, and the gradients by name."""

    @jax.jit
    def run(args, slopes):
        (o, (S, d)), back = jax.vjp(rule, args)
        return {"o": o, "S": S, "d": d} | {f"d{n}": x for n, x in back(slopes)[0].items()}

    return run(args, slopes)


def exact(args, slopes, **options):
    """The same from the definition in float64, on the same rounded inputs."""
    args, slopes = jax.tree.map(lambda x: x.astype(jnp.float64), (args, slopes))
    return pull(rule("definition", **options), args, slopes)


def compare(args, slopes, tol, **options):
    """Each that is not zero to tol, relative (six times that for one number, a sum that cancels); zeros exactly."""
    got, want = pull(rule("kernel", **options), args, slopes), exact(args, slopes, **options)
    nothing = {n for n, x in want.items() if not np.any(x)}
    for name, x in want.items():
        if name not in nothing:
            check(got, {name: x}, tol if x.ndim else 6 * tol)
    assert not any(np.any(got[n]) for n in nothing)
    return got, want


def test_values_and_gradients_without_clipping():
    """float16, two tiles of state, and the update that is not beta-aware."""
    args, slopes = arguments(T=200, D=128, dtype="float16", decay=False)
    got, want = compare(args, slopes, TOLERANCE["float16"], scale=0.5, beta_aware=False)
    moved = [{"moved": np.asarray(x["d"], np.float64) - np.asarray(args["d"])} for x in (got, want)]
    check(*moved, 1.3e-3)


def test_values_and_gradients_where_tokens_clip():
    """Two chunks: in the first nothing clips, in the second some channels do at the one bound and some at the other.

    One of its keys is zero and one shorter than eps.
    """
    args, slopes = arguments(1, NUMBERS | {"step_size": 0.5, "lo": 0.95, "hi": 1.05, "eps": 1e-3}, T=70)
    args["beta"] = args["beta"].at[:, :64].multiply(0.1).at[:, 64:66].set(2)  # which goes too far, and d down
    args["d"] = jnp.clip(args["d"], 0.96, 1.04)
    args["k"] = args["k"].at[:, 66].set(0).at[:, 67].multiply(0.01)
    _, want = compare(args, slopes, TOLERANCE["bfloat16"])
    assert all(np.any(want[n]) for n in ("dlo", "dhi", "deps"))


def test_a_split_changes_nothing():
    """Two calls, memory and scale carried: the same to the rounding of the factors, which differs as the chunks do."""
    args, _ = arguments(2, T=80, dtype="float16")
    call = jax.jit(lambda tokens, state: osdn(**tokens, state=state, form="kernel", step_size=0.05))
    tokens = ("q", "k", "v", "beta", "log_decay")
    part = lambda *ends: {n: args[n][:, slice(*ends)] for n in tokens}  # noqa: E731
    o, end = call(part(None), OSDNState(args["state"], args["d"]))
    o1, middle = call(part(40), OSDNState(args["state"], args["d"]))
    o2, last = call(part(40, None), middle)
    got = {"o": jnp.concatenate([o1, o2], 1), "S": last.S, "d": last.d}
    check(got, {"o": o, "S": end.S, "d": end.d}, TOLERANCE["float16"])


@pytest.mark.parametrize("D", [64, 128])
def test_lowers_for_hopper_without_one(D):
    """The four kernels of the scales: layout inference, the dialect's checks and the limit of shared memory."""
    k, b = jax.ShapeDtypeStruct((1, 136, 2, D), jnp.bfloat16), jax.ShapeDtypeStruct((1, 2, 192), jnp.float32)
    d, numbers = jax.ShapeDtypeStruct((1, 2, D), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.float32)

    def both(k, b, d, numbers):
        last, *learned = walk(k, b, d, numbers)
        w = scaled(k, b, learned, numbers)
        return unlearn(k, k, w, b, learned, last, numbers)

    none = contextlib.nullcontext() if on_hopper() else plgpu.force_gpu_interpret_mode(None)
    with none:
        text = jax.jit(both).trace(k, b, d, numbers).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 4


def test_what_it_does_not_cover_is_named():
    args, _ = draw(T=8, write=False)
    args.pop("state")

    def refuses(message, **changed):
        with pytest.raises(ValueError, match=f"form is 'kernel', which {message}"):
            osdn(**args | changed, form="kernel")

    refuses("takes no retention", retention=jnp.ones((1, 8, 1)))
    refuses("takes bfloat16 or float16, and q is float32", q=args["q"].astype(jnp.float32))
    refuses("sums in float32, and an argument is float64", beta=args["beta"].astype(jnp.float64))
    refuses("takes one decay per head, and log_decay has one per", log_decay=jnp.zeros((1, 8, 1, 64)))
    refuses("takes chunk = 64, and chunk is 32", chunk=32)


def test_auto_takes_the_kernel_for_what_it_covers_and_chunk_for_the_rest(monkeypatch):
    args, _ = draw(5, T=8, write=False, state=False)
    retention = {"retention": jnp.ones((1, 8, 1))}
    check_auto(monkeypatch, osdn, args, {"q": args["q"].astype(jnp.float32)}, {"chunk": 32}, retention)
