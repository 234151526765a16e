"""LaCT over several devices: each takes a share of the tokens of every chunk, or of the heads (LaCT Sec. 3.4)."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike

from ttt_teach.rules import door
from ttt_teach.rules.lact import _matrices, _part, muon_steps
from ttt_teach.rules.lact.chunk import absorb, read
from ttt_teach.rules.lact.definition import SwiGLU, length
from ttt_teach.rules.lact.steps import Memory, write


def sharded(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    lr: ArrayLike,
    weights: SwiGLU,
    *,
    mesh: Mesh | AbstractMesh,
    tokens: str | None = None,
    heads: str | None = None,
    muon: bool | Sequence = True,
    momentum: ArrayLike | None = None,
) -> tuple[Array, SwiGLU]:
    """What ``lact`` computes in the order "apply-update", on the devices of a mesh.

    Every device goes through all N chunks. Of each it takes its own tokens and the direction of these alone. The
    directions are added up over the devices, once a chunk. What follows is no sum, so all do it alike: momentum, Muon,
    the step, the norm of the rows. Heads know nothing of each other and need no sum at all.

    Args:
        q, k: ``[B, N, C, H, K]``, N chunks of C tokens. v: ``[B, N, C, H, V]``. lr: ``[B, N, C, H, 3]``.
            momentum: ``[B, N, C, H]``. Arrays that already lie on the mesh in this way are not moved. N, C >= 1.
        weights: as in ``lact``; every device begins with those of its heads.
        mesh: of Auto axes (``jax.sharding.Mesh``) or Explicit ones (``jax.make_mesh``). tokens, heads: the name of the
            axis over which C, or H, is split; both, for two axes; or None.
        muon: as in ``lact``.

    Returns:
        o ``[B, N, C, H, V]``, split as q is; the fast weights that the last chunk was read with, float32 or float64.
        Each of the N - 1 chunks that are written costs an all-reduce of the fast weights' size if tokens are split.

    Raises:
        ValueError: a shape that disagrees, no token, momentum outside (0, 1), what is no mesh, an axis that the mesh
            has not or that is given twice, a size that its devices do not divide.
    """
    if weights is None:
        raise ValueError("weights is None; expected SwiGLU(gate, up, out) of three arrays")
    x, size = door.enter(
        q=(q, "B N C H K"),
        k=(k, "B N C H K"),
        v=(v, "B N C H V"),
        lr=(lr, "B N C H rates"),
        momentum=(momentum, "B N C H", None),
        **_matrices("weights", weights, "B H", "H"),
    )
    if size.rates != 3:
        raise ValueError(f"lr has shape {list(x.lr.shape)}; expected [B, N, C, H, 3]: the rates of gate, up and out")
    if not (size.N and size.C):  # XLA's processor backend dies of a split of no tokens
        raise ValueError(f"q has shape {list(x.q.shape)}; expected at least one chunk of one token")
    door.require("momentum", x.momentum, lambda m: (m > 0) & (m < 1), "momentum between 0 and 1")
    _check_split(mesh, tokens=(tokens, size.C), heads=(heads, size.H))
    W = SwiGLU(*(jnp.broadcast_to(w, (size.B, size.H, *w.shape[-2:])) for w in _part(x, "weights")))
    o, W = _over_devices((x.q, x.k, x.v, x.lr, x.momentum), W, mesh, tokens, heads, muon_steps(muon))
    return door.leave(o, v), W


def _check_split(mesh: Mesh | AbstractMesh, **splits: tuple) -> None:
    """``name=(axis, what is split over it)``: of the mesh, no axis twice, and its devices divide that."""
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise ValueError(f"mesh is {mesh!r}; expected a jax.sharding.Mesh")
    taken = {}
    for name, (axis, count) in splits.items():
        if axis is None:
            continue
        if not isinstance(axis, str) or axis not in mesh.shape:
            raise ValueError(f"{name} is {axis!r}; expected an axis of the mesh: {', '.join(map(repr, mesh.shape))}")
        if axis in taken:
            raise ValueError(f"{name} is {axis!r}; expected another axis than {taken[axis]}")
        if count % mesh.shape[axis]:
            raise ValueError(f"{name} is {axis!r} of {mesh.shape[axis]} devices; expected one that divides {count}")
        taken[axis] = name


@partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _over_devices(arrays, W, mesh, tokens, heads, muon):
    """A device sees ``[B, N, C / P, H, ...]``, or H / P, and goes on one head at a time."""
    one_head = partial(chunks, axis=tokens, devices=mesh.shape[tokens] if tokens else 1, muon=muon)
    over_heads = jax.vmap(jax.vmap(one_head, in_axes=(2, 0), out_axes=(2, 0)))
    of_tokens, of_heads = P(None, None, tokens, heads), P(None, heads)
    split = jax.shard_map(over_heads, mesh=mesh, in_specs=(of_tokens, of_heads), out_specs=(of_tokens, of_heads))
    return split(laid(arrays, mesh, of_tokens), laid(W, mesh, of_heads))


def laid(arrays, mesh: Mesh | AbstractMesh, spec: P):
    """Arrays where the spec has them. On Explicit axes that must be said; on Auto axes the compiler moves them."""
    explicit = {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    if not explicit:
        return arrays
    spec = P(*(axis if axis in explicit else None for axis in spec))
    return jax.sharding.reshard(arrays, NamedSharding(mesh, spec))


def chunks(arrays: tuple, W: SwiGLU, *, axis: str | None, devices: int, muon: tuple | None):
    """One head on one device with its tokens ``[N, C / P, ...]``: read and absorb them, add up, write."""
    q, _, _, _, momentum = arrays
    norms = jax.tree.map(length, W)
    zeros = jax.tree.map(jnp.zeros_like, W)
    memory = Memory(W, None, zeros, None)
    if momentum is not None:
        memory = Memory(W, zeros, zeros, jnp.zeros_like(W.gate[0, 0]))

    def step(memory, own):
        absorbed, o = absorb(memory._replace(W=copies(memory.W, axis)), own)
        pending = added_up((absorbed.pending, absorbed.pending_momentum), axis)
        return write(Memory(memory.W, memory.M, *pending), devices * len(o), norms, muon), o

    memory, o = jax.lax.scan(step, memory, jax.tree.map(lambda x: x[:-1], arrays))
    last = read(copies(memory.W, axis), q[-1])
    return jnp.concatenate([o, last[None]]), memory.W


def added_up(directions: tuple, axis: str | None) -> tuple:
    """The sum over the devices, on each of them. It is taken before Muon, which is no sum."""
    return directions if axis is None else jax.lax.psum(directions, axis)


def copies(W: SwiGLU, axis: str | None) -> SwiGLU:
    """The same weights as each device's own, so that their gradient is added up over the devices."""
    return W if axis is None else jax.lax.pcast(W, axis, to="varying")
