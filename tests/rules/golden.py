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


def check_case(case: dict[str, np.ndarray], apply, inputs: tuple[str, ...], *, outputs=1e-10, gradients=1e-8):
    """``apply(**inputs) -> {name: array}`` gives the stored outputs and states, and its gradients are the stored ones.

    The loss is sum(o * w), plus sum(state * w_state) where such weights are stored.
    """
    given = {name: jnp.asarray(case[name]) for name in inputs if name in case}

    def loss(given):
        found = apply(**given)
        terms = [jnp.sum(found["o"] * case["w"])]
        terms += [jnp.sum(x * case[f"w_{name}"]) for name, x in found.items() if f"w_{name}" in case]
        return sum(terms), found

    (_, found), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(given)
    for name, x in found.items():
        check_close(name, x, case[name], outputs)
    for name in given:
        check_close(f"d{name}", slopes[name], case[f"d{name}"], gradients)


def scale_of(case) -> float:
    """The stored scale, or the source's default K**-0.5."""
    return float(case["scale"]) if "scale" in case else case["q"].shape[-1] ** -0.5


def meta(case) -> dict:
    return json.loads(str(case["meta"]))
