"""The rules over all devices that there are, with shard_map, against one of them: ``python -m ttt_teach.bench.split``.

By heads, which know nothing of each other; by parts of the sequence, each of which begins with the state that the one
before it leaves; and LaCT by the tokens of every chunk, whose directions are added up (``rules/lact/sharded.py``).
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from ttt_teach import OSDNState, SwiGLU, lact
from ttt_teach.bench import clock, device
from ttt_teach.rules.lact.sharded import sharded

AXIS = "devices"
RULES = "linear", "gated delta", "gated osdn", "mesa"  # cases of the benchmark
SPLITS = {"heads": {"lam": 0, "": 2}, "sequence": {"lam": None, "": 1}}  # the axis of each argument; "": of all others


def over(mesh: Mesh, split: str, rule: Callable, args: dict[str, Array]) -> Callable:
    """The rule with its heads or its sequence split over the mesh: a function of the arguments, to o."""
    n = mesh.devices.size

    def axes(name):
        axis = SPLITS[split].get(name, SPLITS[split][""])
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)

    def run(args):
        if split == "heads":
            return rule(**args)[0]
        state = None
        for _ in range(n):  # after i rounds part i has its state; the first is always handed zeros
            o, left = rule(**args, state=state)
            state = jax.tree.map(lambda x: lax.ppermute(x, AXIS, [(i, i + 1) for i in range(n - 1)]), left)
            if isinstance(state, OSDNState):  # whose scales begin at 1
                first = lax.axis_index(AXIS) == 0
                state = state._replace(d=jnp.where(first, jnp.ones_like(state.d), state.d))
        return o

    specs = {name: axes(name) for name in args}
    out = axes("o")
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(specs,), out_specs=out, check_vma=False))


def off(got: Array, want: Array) -> float:
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def report(sizes: dict[str, int], form: str = "auto", lact_sizes=(2, 4, 2048, 2, 384)) -> Iterator[str]:
    """A line for each rule and split: how far it is from one device, and the time of both in ms."""
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    for name in RULES:
        case = device.CASES[name]
        args, _ = device.draw(case._replace(sizes=sizes))
        call = partial(case.rule, **case.ours["kernel"] | {"form": form})
        one = jax.jit(lambda args, call=call: call(**args)[0])
        for split in SPLITS:
            yield line(f"{name}, {split}", one, over(mesh, split, call, args), args)
    yield lact_line(mesh, *lact_sizes)


def line(what: str, one: Callable, all_of_them: Callable, args) -> str:
    ms = clock.race({"one": lambda: one(args), "all": lambda: all_of_them(args)})
    error = off(all_of_them(args), one(args))
    return f"{what:24} {error:.1e} from one device   one {ms['one']:8.3f} ms   all {ms['all']:8.3f} ms"


def lact_line(mesh: Mesh, B: int, N: int, C: int, H: int, D: int) -> str:
    rng = np.random.default_rng(1)
    q, k, v = (jnp.asarray(x, jnp.float32) for x in rng.normal(size=(3, B, N, C, H, D)) * D**-0.5)
    lr = jnp.asarray(rng.uniform(1e-3, 1e-2, (B, N, C, H, 3)), jnp.float32)
    weights = SwiGLU(*(jnp.asarray(x, jnp.float32) for x in rng.normal(size=(3, B, H, D, D)) * D**-0.5))

    def flat(x):
        return x.reshape(B, N * C, *x.shape[3:])

    def one(args):
        o, _ = lact(*(flat(x) for x in args), weights, chunk=C, form="chunk")
        return o.reshape(q.shape)

    split = jax.jit(lambda args: sharded(*args, weights, mesh=mesh, tokens=AXIS)[0])
    return line("lact, tokens", jax.jit(one), split, (q, k, v, lr))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ttt_teach.bench.split", description=__doc__.split("\n\n")[0])
    parser.parse_args(arguments)
    print(f"{jax.device_count()} x {jax.devices()[0].device_kind}, jax {jax.__version__}")
    for said in report({"B": 16, "T": 2048, "H": 12, "D": 128}):
        print(said, flush=True)


if __name__ == "__main__":
    main()
