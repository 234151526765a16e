"""The chunk form of a rule against its recurrence."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ttt_teach import CG, PCG, delta, linear, mesa, osdn
from ttt_teach.bench.clock import gradient, memory, nbytes, race
from ttt_teach.tasks import unit

B, T, H, D = 1, 4096, 4, 64
LONG = 65536
CHUNK = 64


class Contest(NamedTuple):
    """The same rule twice, called with q, k, v and the arguments named."""

    arguments: tuple[str, ...]
    recurrent: Callable
    chunk: Callable


CONTESTS = {
    "linear": Contest(("log_decay",), partial(linear, form="recurrent"), partial(linear, form="chunk")),
    "delta": Contest(("beta", "log_decay"), partial(delta, form="recurrent"), partial(delta, form="chunk")),
    "osdn": Contest(("beta", "log_decay"), partial(osdn, form="recurrent"), partial(osdn, form="chunk")),
    "mesa": Contest(
        ("beta", "lam", "log_decay"),
        partial(mesa, solver=CG(max_steps=100, tol=1e-4), form="recurrent"),
        partial(mesa, solver=PCG(max_steps=100, tol=1e-4), form="chunk"),
    ),
}


def arguments(T: int, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """Unit queries and keys, gates near those of a trained layer; float32."""
    rng = np.random.default_rng(0)
    drawn = {
        "q": unit(rng.normal(size=(B, T, H, D))),
        "k": unit(rng.normal(size=(B, T, H, D))),
        "v": rng.normal(size=(B, T, H, D)),
        "beta": rng.uniform(0, 1, (B, T, H)),
        "log_decay": np.log(rng.uniform(0.9, 1, (B, T, H))),
        "lam": rng.uniform(0.25, 1.25, (H, D)),
    }
    return {name: jnp.asarray(drawn[name], jnp.float32) for name in ("q", "k", "v", *names)}


def output(rule: Callable) -> Callable:
    return jax.jit(lambda args: rule(**args)[0])


def rows() -> Iterator[str]:
    """Chunk form against recurrence, B 1, T 4096, H 4, K = V = 64, float32: ms, least of seven"""
    head = "".join(f"{x:>11}" for x in ("recurrent", "chunk", "ratio"))
    yield f"{'':8}{'output':^33}{'gradient':^33}{'memory of':>11}{'16 times':>10}"
    yield f"{'rule':8}{head}{head}{'gradient*':>11}{'T costs':>10}"
    for name, contest in CONTESTS.items():
        yield f"{name:8}{row(contest)}"
    yield "* arguments, results and temporaries of the chunk form, in sizes of its inputs, without the states kept"


def row(contest: Contest) -> str:
    args, long = (arguments(length, contest.arguments) for length in (T, LONG))
    cells = ""
    for task in (output, gradient):
        took = race({"recurrent": partial(task(contest.recurrent), args), "chunk": partial(task(contest.chunk), args)})
        cells += f"{took['recurrent']:11.1f}{took['chunk']:11.1f}{took['recurrent'] / took['chunk']:11.1f}"
    f = output(contest.chunk)
    took = race({"short": partial(f, args), "long": partial(f, long)}, rounds=3)
    boundaries = nbytes(contest.chunk(**args)[1]) * T // CHUNK
    lean = memory(gradient(contest.chunk), args, boundaries)
    return f"{cells}{lean:11.1f}{took['long'] / took['short']:10.1f}"
