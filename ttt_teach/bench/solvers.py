"""Conjugate gradients with and without the preconditioner, on keys of four kinds."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ttt_teach import MesaState, mesa
from ttt_teach.bench.clock import race
from ttt_teach.solvers import CG, PCG, cg_trace
from ttt_teach.tasks import minilm_qkv, unit

T, H, D = 4096, 4, 64
LAM = 0.25  # the least that MesaNet allows
GAMMAS = (1.0, 0.99)
TOL = 1e-4
CAP = 100
BUDGETS = (5, 10, 30)


def silu(x):
    return x / (1 + np.exp(-x))


def key_sets() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """q, k ``[T, H, D]`` of unit length and v, by name."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, T, H, D))
    yield "isotropic", {"q": unit(q), "k": unit(k), "v": v}
    yield "SiLU", {"q": unit(silu(q)), "k": unit(silu(k)), "v": v}  # all positive on average: they share a direction
    words = 1 / np.arange(1, 2 * D + 1)
    text = rng.choice(2 * D, T, p=words / words.sum())
    yield "repeated", {"q": unit(q), "k": unit(k[: 2 * D])[text], "v": v}  # 128 keys, as often as words are (Zipf)
    x = minilm_qkv("plain", 4)
    yield "real", {"q": unit(x.q), "k": unit(x.k), "v": x.v}


def arguments(x: dict[str, np.ndarray], gamma: float) -> dict[str, jax.Array]:
    """For mesa, in float32."""
    T, H, D = x["q"].shape
    gates = {"beta": np.ones((1, T, H)), "log_decay": np.full((1, T, H), np.log(gamma)), "lam": np.full((H, D), LAM)}
    return {name: jnp.asarray(y, jnp.float32) for name, y in ({n: y[None] for n, y in x.items()} | gates).items()}


@partial(jax.jit, static_argnames="solver")
def output(args: dict[str, jax.Array], solver: CG) -> jax.Array:
    return mesa(**args, solver=solver)[0]


def exact(args: dict[str, jax.Array], every: int) -> np.ndarray:
    """The output at every so many tokens, by direct solves in float64: ``[tokens, H, D]``."""
    q, k, v, g, lam = (np.asarray(args[name], float) for name in ("q", "k", "v", "log_decay", "lam"))
    G, A, found = np.zeros((len(lam), *q.shape[-1:] * 2)), np.zeros((len(lam), *q.shape[-1:] * 2)), []
    for t in range(q.shape[1]):
        γ = np.exp(g[0, t])[:, None, None]
        G, A = γ * G + k[0, t, :, :, None] * v[0, t, :, None], γ * A + k[0, t, :, :, None] * k[0, t, :, None]
        if t % every == every - 1:
            x = np.linalg.solve(A + lam[:, None] * np.eye(lam.shape[-1]), q[0, t, :, :, None])
            found.append((G.mT @ x)[..., 0])
    return np.stack(found)


class _Counting:
    """In the place of a solver: the number of steps, in every entry, where the answer should be."""

    def __call__(self, matvec, b, precondition=None):
        run = cg_trace(matvec, b, max_steps=self.max_steps, tol=self.tol, precondition=precondition)
        return jnp.full_like(b, run.steps)


class CountCG(_Counting, CG):
    pass


class CountPCG(_Counting, PCG):
    pass


def steps(args: dict[str, jax.Array], solver: CG, chunk: int = 64) -> np.ndarray:
    """The steps of every token, ``[T, H]``: o = G'x with G' = (1 / D, ..., 1 / D) and nothing written to it.

    What is left of that G at token t is zeta_t0 times as much. A chunk a call, each with a new G, or strong forgetting
    leaves nothing to count with.
    """
    _, T, H, D = args["q"].shape
    dtype, counts = args["q"].dtype, []
    G, sums = jnp.full((1, H, D, 1), 1 / D, dtype), jnp.zeros((1, H, D, D), dtype)
    for start in range(0, T, chunk):
        part = {n: args[n][:, start : start + chunk] for n in ("q", "k", "beta", "log_decay")} | {"lam": args["lam"]}
        o, (_, sums) = counted(part | {"state": MesaState(G, sums)}, solver)
        counts.append(o[0, ..., 0] / np.exp(np.cumsum(part["log_decay"][0], axis=0)))
    return np.rint(np.concatenate(counts)).astype(int)


@partial(jax.jit, static_argnames="solver")
def counted(args, solver: CG):
    B, T, H, _ = args["q"].shape
    return mesa(**args, v=jnp.zeros((B, T, H, 1), args["q"].dtype), solver=solver)


class Result(NamedTuple):
    steps: tuple[float, int]  # to TOL: mean and most
    errors: tuple[float, ...]  # after BUDGETS
    ms: float  # to TOL


def compare(args: dict[str, jax.Array], rounds: int = 5) -> dict[str, Result]:
    """CG and PCG on the same tokens."""
    every = args["q"].shape[1] // 64 - 3  # not all at the same place in a chunk
    truth = exact(args, every)
    took = race({s.__name__: partial(output, args, s(CAP, TOL)) for s in (CG, PCG)}, rounds)
    results = {}
    for solver, count in ((CG, CountCG), (PCG, CountPCG)):
        n = steps(args, count(CAP, TOL))
        found = [np.asarray(output(args, solver(j)))[0, every - 1 :: every] for j in BUDGETS]
        errors = tuple(float(np.linalg.norm(o - truth) / np.linalg.norm(truth)) for o in found)
        results[solver.__name__] = Result((float(n.mean()), int(n.max())), errors, took[solver.__name__])
    return results


def rows() -> Iterator[str]:
    """Steps, error and time of CG and PCG in mesa's chunk form, float32, lam 0.25, beta 1, chunks of 64"""
    after = "".join(f"{f'error {j}':>10}" for j in BUDGETS)
    yield f"{'keys':11}{'decay':>6}  {'solver':6}{'mean':>7}{'most':>6}{after}{'ms':>9}{'ratio':>7}"
    for name, x in key_sets():
        for gamma in GAMMAS:
            results = compare(arguments(x, gamma))
            for solver, r in results.items():
                errors = "".join(f"{e:10.0e}" for e in r.errors)
                ratio = f"{results['CG'].ms / r.ms:7.1f}"
                yield f"{name:11}{gamma:6}  {solver:6}{r.steps[0]:7.1f}{r.steps[1]:6}{errors}{r.ms:9.1f}{ratio}"
    yield f"mean, most: steps a token needs to {TOL:g}; error: of o after so many steps; ms: for all, to {TOL:g}"
