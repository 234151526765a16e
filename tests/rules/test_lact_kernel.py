"""The kernel of LaCT, through three gates from one source.

1. JAX's interpreter of GPU kernels, on any CPU, with race detection: values and gradients against the definition.
2. Lowering for CUDA, on any CPU: layouts and the size of shared memory.
3. A Hopper GPU, where this same file compiles the kernel and compares the same numbers:

       JAX_ENABLE_X64=1 python -m pytest --noconftest -c /dev/null --rootdir . tests/rules/test_lact_kernel.py
"""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.rules.test_linear_kernel import check_auto, near, somewhere  # noqa: F401 - a fixture for all tests here
from ttt_teach import SwiGLU, lact
from ttt_teach.rules.door import on_hopper
from ttt_teach.rules.lact import kernel as kernels
from ttt_teach.rules.lact.definition import length
from ttt_teach.rules.lact.steps import restored
from ttt_teach.solvers.newton_schulz import SCHED5, newton_schulz

pytestmark = pytest.mark.timeout(300, method="thread")  # a kernel that waits for ever does not see signals

C = D = 128  # the smallest that the kernel takes: one block of tokens, two strips of the hidden layer


def draw(seed=0, *, B=1, T=C + 70, H=1, widths=(D, D, D), dtype="bfloat16", momentum=False):
    """Arguments of :func:`lact`: keys of length about 1, and steps as long as the weights' rows or a third of it."""
    rng = np.random.default_rng(seed)
    K, V, M = widths
    args = {n: jnp.asarray(rng.normal(size=(B, T, H, K)) * K**-0.5, dtype) for n in "qk"}
    args["v"] = jnp.asarray(rng.normal(size=(B, T, H, V)), dtype)
    args["lr"] = jnp.asarray(rng.uniform(0.01, 0.1, (B, T, H, 3)), jnp.float32)
    shapes = (M, K), (M, K), (V, M)
    args["weights"] = SwiGLU(*(jnp.asarray(2 * rng.normal(size=(H, *x)) * x[1] ** -0.5, jnp.float32) for x in shapes))
    if momentum:
        args["momentum"] = jnp.asarray(rng.uniform(0.3, 0.9, (B, T, H)), jnp.float32)
    return args


def results(form, args, **options):
    o, state = lact(**args, form=form, chunk=C, **options)
    return {"o": o, "W": state.weights, "M": state.momentum, "pending": state.pending}


def drawn_like(shapes, seed=100):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), shapes)


@partial(jax.jit, static_argnums=(0,))
def pull(rule, args, slopes):
    """The results, and the gradients in all arguments."""
    found, back = jax.vjp(rule, args)
    return found, back(slopes)[0]


def exact(x):
    return jax.tree.map(lambda x: x.astype(jnp.float64), x)


def check(got, want, tol):
    """Leaf by leaf."""
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(got), strict=True):
        near(jax.tree_util.keystr(path), y, x, tol)


def test_values_and_gradients():
    """Three chunks, the last of 40 tokens; then slopes 2^-20 as large, and keys and rates of zero.

    A rounding of the 16-bit factors is at most 2^-8, and each number goes through three or four of them.
    """
    args = draw(T=2 * C + 40, momentum=True)
    rule = partial(results, "kernel", muon=False)
    slopes = drawn_like(jax.eval_shape(rule, args))
    got = pull(rule, args, slopes)
    assert got[0]["o"].dtype == jnp.bfloat16 and got[0]["W"].gate.dtype == jnp.float32
    check(got, pull(partial(results, "definition", muon=False), exact(args), exact(slopes)), TOLERANCE["plain"])

    small = jax.tree.map(lambda x: x * jnp.asarray(2.0**-20, x.dtype), slopes)
    for x, y in zip(jax.tree.leaves(got[1]), jax.tree.leaves(pull(rule, args, small)[1]), strict=True):
        np.testing.assert_array_equal(x, y * jnp.asarray(2.0**20, y.dtype))  # powers of two round nothing

    blank = args | {"k": jnp.zeros_like(args["k"]), "lr": jnp.zeros_like(args["lr"])}
    found, back = pull(rule, blank, slopes)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((found, back)))
    assert not any(np.any(x) for x in found["pending"])


def test_muon_and_momentum_in_float16():
    """Newton-Schulz brings up what is small in a direction, its roundings too."""
    args = draw(1, dtype="float16", momentum=True)
    check(results("kernel", args), results("definition", exact(args)), TOLERANCE["muon"])


@pytest.mark.parametrize("width", [D, 2 * D])
def test_a_write_and_its_slopes(width):
    """As autodiff of ``restored``; one row begins at 0, one becomes 0. What the chunk finds is not rounded here."""
    rng = np.random.default_rng(6)
    W, s, *slopes = jnp.asarray(rng.normal(size=(5, 1, 2, D, width)), jnp.float32)
    W, s = W.at[0, 0, 3].set(0), s.at[0, 1, 5].set(-W[0, 1, 5])
    norms, blank = length(W)[..., 0], jnp.zeros((2, 2, D, width), jnp.float32)
    (new,), (found,), (sizes,) = jax.jit(kernels.written)(
        jnp.int32(1), *([x] for x in (W, s, norms, blank, blank[..., 0]))
    )
    want, back = jax.vjp(restored, *exact((W + s, norms[..., None])))
    check(new, want, 1e-6)
    np.testing.assert_array_equal(found, jnp.concatenate([blank[:1], new]))

    read = jnp.stack([blank[0], slopes[0][0]])
    given = *slopes[1:], read, found, sizes, norms, jnp.ones_like(norms)
    (dW,), (dnorms,) = jax.jit(kernels._written_back)(jnp.int32(0), *([x] for x in given))
    dZ, dn = back(sum(exact(slopes)))
    check((dW[0, 1, 5], dnorms - 1), (dZ[0, 1, 5], dn[..., 0].at[0, 0, 3].set(0)), 1e-6)
    check(dW.at[0, 1, 5].set(0), dZ.at[0, 1, 5].set(0), 1e-6)  # that row's are 10^5 times as long


def two_steps(G):
    return kernels.orthogonal(G, SCHED5[:2])


def two_exact_steps(G):
    return newton_schulz(G, SCHED5[:2])


@pytest.mark.parametrize("scale", [1.0, 1e-12])
def test_muons_slope_whatever_its_size(scale):
    """Two steps, of a matrix with more rows than columns."""
    rng = np.random.default_rng(4)
    G, slope = (jnp.asarray(rng.normal(size=(1, 2 * D, D)), jnp.float32) for _ in "Gs")
    got = pull(two_steps, G, scale * slope)
    check(got, pull(two_exact_steps, exact(G), scale * exact(slope)), TOLERANCE["muon"])


def test_a_split_changes_nothing():
    """Two calls, the second from within a chunk and over its end: the same to the rounding of the factors.

    Of one length and both with a state, so that one compilation does for both.
    """
    args = draw(2, dtype="float16", T=C + 20)
    tokens = {n: x for n, x in args.items() if n != "weights"}
    call = partial(lact, chunk=C, muon=False, form="kernel")
    o, state = call(**args)
    _, first = lact(**jax.tree.map(lambda x: x[:, :0], tokens), weights=args["weights"], chunk=C, form="chunk")
    o1, middle = call(**jax.tree.map(lambda x: x[:, :74], tokens), weights=None, state=first)
    o2, last = call(**jax.tree.map(lambda x: x[:, 74:], tokens), weights=None, state=middle)
    assert last.count == state.count
    check(
        {"o": jnp.concatenate([o1, o2], 1), "W": last.weights, "pending": last.pending},
        {"o": o, "W": state.weights, "pending": state.pending},
        TOLERANCE["split"],
    )


def test_other_orders():
    """A schedule whose entries are no whole blocks: written; written, then read; read. Two heads."""
    args = draw(3, T=150, H=2)
    order = [(0, 30, True, False), (30, 150, True, True), (0, 7, False, True)]
    got = results("kernel", args, muon=False, order=order)
    check(got["o"], results("definition", exact(args), muon=False, order=order)["o"], TOLERANCE["plain"])


def chunk_and_slopes(W, q, k, v, lr):
    """A read and a direction, and their gradients for slopes that are at hand."""
    o, back = jax.vjp(kernels.read, W, q)
    d, direction_back = jax.vjp(kernels.direction, W, k, v, lr)
    return o, d, back(v), direction_back(jax.tree.map(lambda w: 1e-3 * w, W))


def one_chunk(tokens, width):
    """The shapes of W, q, k, v and lr."""
    half, single = (partial(jax.ShapeDtypeStruct, dtype=dtype) for dtype in (jnp.bfloat16, jnp.float32))
    W = SwiGLU(*[single((width, width))] * 3)
    return W, *[half((tokens, width))] * 3, single((tokens, 3))


def written_then_read(form, args):
    o, state = lact(**args, form=form, chunk=C, muon=False, order="update-apply")
    return o, state.weights


def test_strips_of_a_wide_layer():
    """Blocks of three strips, an odd number of results in each; K and V differ."""
    args = draw(6, T=100, widths=(2 * D, 3 * D, 3 * D))
    kernel, definition = (partial(written_then_read, form) for form in ("kernel", "definition"))
    slopes = drawn_like(jax.eval_shape(kernel, args))
    check(pull(kernel, args, slopes), pull(definition, exact(args), exact(slopes)), TOLERANCE["plain"])


@pytest.mark.parametrize("width", [384, 768])
def test_lowers_for_hopper_without_one(width):
    """The models' widths: layout inference, the dialect's checks and the limit of shared memory."""
    with contextlib.nullcontext() if on_hopper() else plgpu.force_gpu_interpret_mode(None):
        traced = jax.jit(lambda *args: chunk_and_slopes(*args)).trace(*one_chunk(2048, width))
        lowered = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count("mosaic_gpu_v2") == 10


@pytest.mark.parametrize("width", [384, 768])
def test_a_write_lowers_for_hopper_without_one(width):
    single = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    W, rows, found = single((1, 3, width, width)), single((1, 3, width)), single((16, 3, width, width))
    given = W, W, rows, found.update(dtype=jnp.bfloat16), single((16, 3, width)), found

    def there_and_back(W, s, norms, found, sizes, read):
        made = kernels.written(jnp.int32(1), [W], [s], [norms], [found], [sizes])
        return made, kernels._written_back(jnp.int32(0), [W], [s], [read], [found], [sizes], [norms], [norms])

    with contextlib.nullcontext() if on_hopper() else plgpu.force_gpu_interpret_mode(None):
        lowered = jax.jit(there_and_back).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count("mosaic_gpu_v2") == 2


def test_what_it_does_not_cover_is_named():
    args = draw(T=8)

    def refuses(message, **changed):
        with pytest.raises(ValueError, match=f"form is 'kernel', which {message}"):
            lact(**args | changed, form="kernel", chunk=C)

    refuses("takes bfloat16 or float16, and q is float32", q=args["q"].astype(jnp.float32))
    refuses("takes one dtype, and q is bfloat16, v is float16", v=args["v"].astype(jnp.float16))
    refuses("sums in float32, and an argument is float64", lr=args["lr"].astype(jnp.float64))
    narrow = SwiGLU(args["weights"].gate[:, :64], args["weights"].up[:, :64], args["weights"].out[..., :64])
    refuses("takes widths that are multiples of 128, and M is 64", weights=narrow)
    refuses("takes no empty array", **{n: args[n][:, :0] for n in ("q", "k", "v", "lr")})
    with plgpu.force_gpu_interpret_mode(None):
        if not on_hopper():
            refuses("needs a Hopper GPU .*, and this is cpu")


def test_auto_takes_the_kernel_for_what_it_covers_and_chunk_for_the_rest(monkeypatch):
    args = draw(5, T=8)
    other = {"q": args["q"].astype(jnp.float32)}, {n: args[n].astype(jnp.float16) for n in "kv"}
    check_auto(monkeypatch, lact, args | {"chunk": C}, *other)


# A bfloat16 factor is rounded by at most 2^-8, a float16 one by 2^-11. Measured in the interpreter: 3.8e-3 (plain),
# and at width 64 1.9e-3 (muon).
TOLERANCE = {"plain": 6e-3, "muon": 3e-3, "split": 1e-3}
