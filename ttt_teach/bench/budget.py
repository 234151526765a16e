"""More time for the same layer: more steps of the solver, a larger state, or a window of attention in front?

The question is left open by MesaNet. Nothing is trained here: the pairs are drawn, so it is known what should be read.
"""

import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from ttt_teach import CG, PCG, attention, mesa
from ttt_teach.bench.clock import device, race
from ttt_teach.tasks import unit

RESULTS = Path(__file__).parent / "results" / "budget.json"
B, T, H, V = 1, 1024, 4, 32
ITEMS = 32  # different pairs that come again and again
COHERENCE = 0.3  # about the cosine of two keys
SKEW = 1.5  # the n-th of them as often as 1 / n^1.5: the rare ones return after hundreds of tokens
ONCE = 1 / 8  # share of the tokens that write a pair never seen again
NEAR = 32  # a pair written once is asked for less than so many tokens later
GAMMA, LAM = 1 - 1 / 512, 0.25
SHARPNESS, ALIKE = 32.0, 0.9  # of the window: scale of its scores, and the cosine from which on it is believed
WIDTHS = (16, 32, 64, 128)
STEPS = (2, 4, 8, 16, 30)
PRECONDITIONED = (1, 2, 4)
WINDOWS = (16, 64, 256)


class Layer(NamedTuple):
    """What time is spent on. No steps: no memory, the window alone."""

    width: int
    steps: int
    window: int = 0
    solver: str = "CG"


LAYERS = [
    *(Layer(width, steps) for width, steps in itertools.product(WIDTHS, STEPS)),
    *(Layer(width, steps, solver="PCG") for width, steps in itertools.product(WIDTHS, PRECONDITIONED)),
    *(Layer(width, steps, window) for width, steps, window in itertools.product(WIDTHS, (0, 8), WINDOWS)),
]


class Stream(NamedTuple):
    """Pairs to write and questions to ask, one of each per token, and the answers."""

    features: Float[np.ndarray, "T H 128"]  # of the keys; a layer of width K sees the first K
    asked: Float[np.ndarray, "T H 128"]
    values: Float[np.ndarray, "T H 32"]
    answers: Float[np.ndarray, "T H 32"]
    far: Bool[np.ndarray, "T H"]  # asked for: a pair that comes again and again (else one that was written once)


def stream(seed: int = 0) -> Stream:
    """Most tokens write one of ITEMS pairs, some frequent and some rare; the others write a pair never seen again.

    Half of the questions are for one of the ITEMS, all that were written so far being equally likely; the others for a
    pair that was written once, less than NEAR tokens ago.
    """
    rng = np.random.default_rng(seed)

    def keys(n):
        return np.sqrt(1 - COHERENCE) * rng.normal(size=(n, max(WIDTHS))) + np.sqrt(COHERENCE)

    heads = []
    for _ in range(H):
        k = np.concatenate([keys(ITEMS), keys(T)])
        v = unit(rng.normal(size=(ITEMS + T, V)))
        often = np.arange(1.0, ITEMS + 1) ** -SKEW
        wrote = np.where(rng.random(T) < ONCE, ITEMS + np.arange(T), rng.choice(ITEMS, T, p=often / often.sum()))
        wrote[:2] = 0, ITEMS + 1  # one of each kind, so that both can be asked for from then on
        far, asked = rng.random(T) < 0.5, np.zeros(T, int)
        for t in range(T):
            lately = wrote[max(0, t + 1 - NEAR) : t + 1]
            once = lately[lately >= ITEMS]
            far[t] |= len(once) == 0
            asked[t] = rng.choice(np.unique(wrote[: t + 1][wrote[: t + 1] < ITEMS]) if far[t] else once)
        heads.append((k[wrote], k[asked], v[wrote], v[asked], far))
    return Stream(*(np.stack(x, axis=1) for x in zip(*heads, strict=True)))


def arguments(x: Stream, width: int) -> dict[str, Array]:
    """For :func:`read`, float32."""
    drawn = {
        "q": unit(x.asked[..., :width]),
        "k": unit(x.features[..., :width]),
        "v": x.values,
        "beta": np.ones((T, H)),
        "log_decay": np.full((T, H), np.log(GAMMA)),
    }
    batch = {name: jnp.asarray(y[None], jnp.float32) for name, y in drawn.items()}
    return batch | {"lam": jnp.full((H, width), LAM, jnp.float32)}


@partial(jax.jit, static_argnames="layer")
def read(args: dict[str, Array], layer: Layer) -> Float[Array, "B T H V"]:
    """The memory, the window, or the window where what it finds is like the query, else the memory."""
    q, k, v = (args[name] for name in "qkv")
    if layer.steps:
        memory, _ = mesa(**args, solver={"CG": CG, "PCG": PCG}[layer.solver](layer.steps))
    else:
        memory = jnp.zeros_like(v)
    if not layer.window:
        return memory
    found = attention(q, k, jnp.concatenate([v, k], axis=-1), window=layer.window, scale=SHARPNESS)
    alike = jnp.sum(q * found[..., V:], axis=-1, keepdims=True)
    believed = jax.nn.sigmoid(SHARPNESS * (alike - ALIKE))
    return believed * found[..., :V] + (1 - believed) * memory


def errors(o: Array, x: Stream) -> tuple[float, float]:
    """Relative errors of the answers (root mean square) to questions of the two kinds, far and near."""
    missed = np.sum((np.asarray(o[0], float) - x.answers) ** 2, axis=-1)  # the answers have length 1
    return tuple(float(np.sqrt(missed[kind].mean())) for kind in (x.far, ~x.far))


def measure(layers=LAYERS, rounds: int = 5) -> list[dict]:
    """Milliseconds and errors of every layer."""
    x = stream()
    args = {width: arguments(x, width) for width in {layer.width for layer in layers}}
    took = race({layer: partial(read, args[layer.width], layer) for layer in layers}, rounds)
    found = []
    for layer in layers:
        far, near = errors(read(args[layer.width], layer), x)
        found.append(layer._asdict() | {"ms": took[layer], "far": far, "near": near})
    return found


def both(run: dict) -> float:
    """The error over all questions, half of them far and half near."""
    return float(np.sqrt((run["far"] ** 2 + run["near"] ** 2) / 2))


def within(runs: list[dict], ms: float) -> dict[str, dict]:
    """What each way to spend the time makes of it: the least error among its layers that take no longer."""
    ways = {
        "steps": lambda run: run["width"] == 32 and not run["window"] and run["solver"] == "CG",
        "width": lambda run: run["steps"] == 8 and not run["window"] and run["solver"] == "CG",
        "width, PCG": lambda run: run["solver"] == "PCG",
        "window": lambda run: run["width"] == 32 and run["steps"] == 8 and run["solver"] == "CG",
        "window alone": lambda run: run["steps"] == 0,
        "anything": lambda run: True,
    }
    able = {way: [run for run in runs if fits(run) and run["ms"] <= ms] for way, fits in ways.items()}
    return {way: min(some, key=both) for way, some in able.items() if some}


def rows() -> Iterator[str]:
    """Steps, state or window, B 1, T 1024, H 4, V 32, float32: time over that of width 32 and 8 steps, least of five"""
    runs = measure()
    base = next(run for run in runs if Layer(*(run[name] for name in Layer._fields)) == Layer(32, 8))
    yield f"{'width':6}{'solver':8}{'steps':>6}{'window':>8}{'ratio':>8}{'error far':>11}{'near':>7}{'both':>7}"
    for run in runs:
        yield (
            f"{run['width']:<6}{run['solver'] if run['steps'] else '-':8}{run['steps']:6}{run['window']:8}"
            f"{run['ms'] / base['ms']:8.2f}{run['far']:11.3f}{run['near']:7.3f}{both(run):7.3f}"
        )
    for times in (1, 2, 4, 8):
        best = within(runs, times * base["ms"])
        yield f"within {times} times that: " + ", ".join(f"{way} {both(run):.3f}" for way, run in best.items())
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(device() | {"runs": runs}, indent=1) + "\n", encoding="utf-8")
    yield f"ratio 1 is {base['ms']:.1f} ms; errors are relative, of answers that are known; written to {RESULTS.name}"
