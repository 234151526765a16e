"""Reference inputs, outputs, states and gradients from independent sources (tests/golden, see its README)."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

FOLDER = pathlib.Path(__file__).parent.parent / "golden"


@functools.cache
def read(file: str) -> dict[str, dict[str, np.ndarray]]:
    """{case: {tensor: array}}; inputs are stored in float32 and meant as stored, so everything is float64 here."""
    cases: dict[str, dict] = {}
    with np.load(FOLDER / f"{file}.npz") as archive:
        for key in archive.files:
            case, _, name = key.rpartition("/")
            x = archive[key]
            if case:
                cases.setdefault(case, {})[name] = x.astype(np.float64) if x.dtype.kind == "f" else x
    return cases


def check_close(name: str, got, want, tol: float):
    """Largest difference relative to the largest reference entry."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
    size = np.abs(want).max(initial=0)
    error = np.abs(got - want).max(initial=0) / (size if size > 0 else 1)
    assert error <= tol, f"{name}: relative error {error:.1e} above {tol:.0e}"  # NaN fails too


def padded(case: dict[str, np.ndarray], axes: dict[str, str], size: dict[str, int], **fill: float):
    """The tensors that ``axes`` names, each axis filled up to its size; a tensor the case lacks is filling alone.

    More tokens, heads and channels that hold nothing, so that cases of all shapes share a compilation.
    """

    def pad(name, axes):
        x = case[name] if name in case else np.zeros([len(case["w"]) if a == "B" else 0 for a in axes])
        more = [(0, size.get(a, n) - n) for a, n in zip(axes, x.shape, strict=True)]
        return np.pad(x, more, constant_values=fill.get(name, 0))

    return {name: pad(name, letters) for name, letters in axes.items()}


def arguments(case, inputs, numbers=None, pad=None):
    """What :func:`run` takes after ``apply``."""
    tensors = pad(case) if pad else case
    given = {name: jnp.asarray(tensors[name]) for name in inputs if name in tensors}
    weights = {"o": tensors["w"]} | {n.removeprefix("w_"): x for n, x in tensors.items() if n.startswith("w_")}
    return given, numbers or {}, weights


@functools.partial(jax.jit, static_argnames="apply")
def run(apply, given, numbers, weights):
    """What ``apply`` finds, and the gradient of the sum of that by the weights."""

    def loss(given):
        found = apply(**given, **numbers)
        return sum(jnp.sum(found[name] * w) for name, w in weights.items()), found

    (_, found), slopes = jax.value_and_grad(loss, has_aux=True)(given)
    return found, slopes


def check_case(
    case, apply, inputs: tuple[str, ...], *, numbers=None, pad=None, slope="d", outputs=1e-10, gradients=1e-8
):
    """``apply(**inputs, **numbers) -> {name: array}`` gives the stored outputs and states, and the stored gradients.

    The loss is sum(o * w), plus sum(state * w_state) where such weights are stored. Cases share a compilation if
    ``apply`` is the same object and all shapes are the same: ``pad`` sees to that (:func:`padded`), and what it filled
    up is cut off before anything is compared.
    """
    compare(case, *run(apply, *arguments(case, inputs, numbers, pad)), bool(pad), slope, outputs, gradients)


def compare(case, found, slopes, padded, slope="d", outputs=1e-10, gradients=1e-8):
    """What :func:`run` gives against what is stored."""

    def check(name, x, want, tol):
        check_close(name, x[tuple(map(slice, want.shape))] if padded else x, want, tol)

    for name, x in found.items():
        check(name, x, case[name], outputs)
    for name, x in slopes.items():
        if name in case:
            check(slope + name, x, case[slope + name], gradients)


def scale_of(case) -> float:
    """The stored scale, or the source's default K**-0.5."""
    return float(case["scale"]) if "scale" in case else case["q"].shape[-1] ** -0.5


def meta(case) -> dict:
    return json.loads(str(case["meta"]))
