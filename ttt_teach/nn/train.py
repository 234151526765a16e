"""Training: batches that are a function of the step, many steps a dispatch, and a file to go on from."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree, Scalar

from ttt_teach.rules.door import count


class Fit(NamedTuple):
    """A trained model, and the loss of every step, measured before its update."""

    model: PyTree
    losses: Float[np.ndarray, " steps"]


def fit(
    model: PyTree,
    loss: Callable[[PyTree, PyTree], Scalar],
    batches: Callable[[Int[Array, ""]], PyTree],
    optimiser: optax.GradientTransformation,
    steps: int,
    *,
    block: int = 50,
    checkpoint: str | os.PathLike | None = None,
    watch: Callable[[int, PyTree], None] | None = None,
) -> Fit:
    """Minimise ``loss(model, batches(step))`` for step = 0, 1, ..., steps - 1, on the float arrays of ``model``.

    A block of steps is one call of one compiled program, so nothing in ``loss`` or ``batches`` may depend on anything
    but their arguments and what they close over: fold the step into a key. After every block a line with the step and
    the block's mean loss is printed.

    With a ``checkpoint`` the file is renewed after every block, as a whole or not at all. Whatever stops the run, even
    a power cut, costs the unfinished block; the same call goes on from the file and gives, to the bit, the numbers of
    a run that was never stopped. More ``steps`` go on from it too. The file knows its run: the shapes and start values
    of model and optimiser, and the compiled program with loss, batches, optimiser and block.

    Args:
        model: a pytree, such as an ``eqx.Module``. Its other leaves stay as they are.
        loss: a real number from model and batch. batches: a batch from a step number, int32; both are traced.
        steps: in all, those of the file included. block: steps a dispatch.
        checkpoint: a path to write to, and to go on from if it exists.
        watch: gets the number of steps done and the model, after every block that is run.

    Returns:
        Fit(model, losses); losses in at least float32.

    Raises:
        ValueError: steps or block not whole or below 1, a loss that is no real number, a model without floats, a
            checkpoint that cannot be read or written, of another run, or further than ``steps``.
        FloatingPointError: a loss, or a weight after a block, that is not finite; the file keeps the block before.
    """
    steps, block = count("steps", steps), count("block", block)
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    params = jax.tree.map(jnp.asarray, params)
    if not jax.tree.leaves(params):
        raise ValueError("model holds no float arrays; expected some to train")

    def objective(params, step):
        return loss(eqx.combine(params, rest), batches(step))

    kind = jax.eval_shape(objective, params, jnp.int32(0))
    if not isinstance(kind, jax.ShapeDtypeStruct):
        raise ValueError(f"loss gives a {type(kind).__name__}; expected one real number")
    if kind.shape != () or not jnp.issubdtype(kind.dtype, jnp.floating):
        raise ValueError(f"loss gives {kind.dtype} of shape {list(kind.shape)}; expected one real number")
    kept = kind.dtype if kind.dtype.itemsize >= 4 else jnp.float32  # losses; a file of NumPy holds no bfloat16

    def one(n, first, carry):
        params, memory, losses = carry
        value, slope = jax.value_and_grad(objective)(params, first + n)
        change, memory = optimiser.update(slope, memory, params)
        return optax.apply_updates(params, change), memory, losses.at[n].set(value.astype(kept))

    @jax.jit
    def advance(params, memory, first, todo):
        start = params, memory, jnp.zeros(block, kept)
        return jax.lax.fori_loop(0, todo, lambda n, carry: one(n, first, carry), start)

    memory = optimiser.init(params)
    program = advance.lower(params, memory, jnp.int32(0), jnp.int32(block))
    text = program.as_text()
    start = params, memory
    run = _Run(checkpoint, {"model": _shapes(start), "start": _values(start), "program": _digest(text)})
    (params, memory), losses = run.load(start, kept)
    if len(losses) > steps:
        raise ValueError(f"steps is {steps}; expected at least the {len(losses)} of the checkpoint {checkpoint}")
    if len(losses):
        print(f"going on after step {len(losses)} of {steps}")
    compiled = _compiled(program, text, params)
    while len(losses) < steps:
        done = len(losses)
        todo = min(block, steps - done)
        params, memory, new = compiled(params, memory, jnp.int32(done), jnp.int32(todo))
        new = np.asarray(new)[:todo]
        if not np.isfinite(new).all():
            first = int(np.argmin(np.isfinite(new)))
            raise FloatingPointError(f"the loss is {new[first]} at step {done + first}; expected finite numbers")
        if not all(jnp.isfinite(x).all() for x in jax.tree.leaves(params)):
            raise FloatingPointError(f"a weight is not finite after step {done + todo - 1}; expected finite numbers")
        losses = np.concatenate([losses, new])
        run.save((params, memory), losses)
        print(f"step {len(losses):{len(str(steps))}} of {steps}  loss {new.mean():.4f}")
        if watch is not None:
            watch(len(losses), eqx.combine(params, rest))
    return Fit(eqx.combine(params, rest), losses)


_COMPILED: dict[tuple, jax.stages.Compiled] = {}


def _compiled(program: jax.stages.Lowered, text: str, params: PyTree) -> jax.stages.Compiled:
    """The program, compiled once for each text, kind of model and device: a run that goes on compiles nothing.

    Not one that calls back into Python: its text does not say whom it calls.
    """
    if "callback" in text:
        return program.compile()
    key = _digest(text), program.in_tree, frozenset().union(*(x.devices() for x in jax.tree.leaves(params)))
    if key not in _COMPILED:
        _COMPILED[key] = program.compile()
    return _COMPILED[key]


class _Run:
    """The file of one run: a line of JSON that says which run it is of, then its arrays."""

    def __init__(self, path: str | os.PathLike | None, marks: dict[str, str]):
        self.path, self.marks = path if path is None else Path(path), marks

    def load(self, arrays: PyTree, dtype) -> tuple[PyTree, np.ndarray]:
        """Arrays and losses of the file; those given and none if there is no file."""
        if self.path is None or not self.path.exists():
            nothing = np.zeros(0, dtype)
            self.save(arrays, nothing)  # a place that cannot be written to is found before the work, not after
            return arrays, nothing
        if not self.path.is_file():
            raise ValueError(f"checkpoint is {self.path}; expected a file")
        with self.path.open("rb") as file:
            try:
                head = json.loads(file.readline())
                found, done = dict(head["marks"]), head["steps"]
            except (ValueError, TypeError, KeyError):
                raise ValueError(f"checkpoint is {self.path}; expected a file written by fit") from None
            if other := [mark for mark in self.marks if found.get(mark) != self.marks[mark]]:
                raise ValueError(f"checkpoint {self.path} is of another run: {_DIFFERS[other[0]]}; name another file")
            try:
                found, losses = eqx.tree_deserialise_leaves(file, (_numbers(arrays), np.zeros(done, dtype)))
                return _keys(found, arrays), losses
            except Exception as problem:  # whatever a damaged file makes numpy raise
                raise ValueError(f"checkpoint {self.path} is damaged; expected a file of fit ({problem})") from None

    def save(self, arrays: PyTree, losses: np.ndarray) -> None:
        """Beside the file first, then in its place: whoever stops this finds the old file or the new one."""
        if self.path is None:
            return
        beside = self.path.with_name(self.path.name + ".new")
        try:
            file = beside.open("wb")
        except OSError as problem:
            raise ValueError(f"checkpoint is {self.path}; expected a path that can be written ({problem})") from None
        with file:
            file.write(json.dumps({"marks": self.marks, "steps": len(losses)}).encode() + b"\n")
            eqx.tree_serialise_leaves(file, (_numbers(arrays), losses))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)


_DIFFERS = {
    "model": "its model or optimiser has other arrays",
    "start": "its model or optimiser started from other values",
    "program": "its loss, batches, optimiser or block differ, or the versions that compiled them",
}


def _shapes(arrays: PyTree) -> str:
    leaves, _ = jax.tree_util.tree_flatten_with_path(arrays)
    return _digest("\n".join(f"{jax.tree_util.keystr(path)} {x.dtype} {x.shape}" for path, x in leaves))


def _values(arrays: PyTree) -> str:
    return _digest(*(np.asarray(x).tobytes() for x in jax.tree.leaves(_numbers(arrays))))


def _numbers(arrays: PyTree) -> PyTree:
    """Random keys, which an optimiser that adds noise keeps, as the numbers that a file can hold."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, arrays)


def _keys(numbers: PyTree, like: PyTree) -> PyTree:
    """Back again, where ``like`` has a key."""

    def key(x, old):
        return jax.random.wrap_key_data(x, impl=jax.random.key_impl(old)) if _is_key(old) else x

    return jax.tree.map(key, numbers, like)


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _digest(*parts: str | bytes) -> str:
    return hashlib.sha256(b"".join(x.encode() if isinstance(x, str) else x for x in parts)).hexdigest()[:16]
