"""What the kernels share: tiles of 64 on a Hopper GPU (Pallas, Mosaic GPU), and where such a kernel can run.

A kernel is one warpgroup (128 threads) that sees three memories:

- **global**: the arguments and results. The copy engine (TMA) brings boxes of them to shared memory and back. A box
  that reaches over the end of an array is filled with zeros on the way in and cut off on the way out, so a last chunk
  of fewer tokens needs no code: tokens that do not exist have q = k = v = 0 and write nothing.
- **shared**: the 16-bit factors of the matrix products, in the swizzled order that wgmma reads.
- **registers**: float32, every sum and every decay; a 64 x 64 tile is 32 registers in each thread. Also a first factor,
  in 16 bits: where one product is made of the last, it need not go through shared memory.

Ordinary reads and writes of shared memory and those of the engines are not ordered by themselves: ``commit_smem``
stands between, and is the barrier among the 128 threads too. JAX's interpreter takes a warpgroup for one thread: it
finds a wait for an engine that is missing, but not a missing barrier among the threads, so say at each what it is for.
"""

import os
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax._src import config as _config  # the one thing that is not public: is GPU interpret mode on?
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ttt_teach.rules.door import on_hopper
from ttt_teach.solvers.precision import full_precision

SIDE = 64  # tokens in a chunk, and the smallest tile of wgmma
WIDTHS = (64, 128)
HALVES = (jnp.bfloat16, jnp.float16)
# exp(-104) is 0 in float32, so a log-decay cut off here changes no product, and sums over a chunk stay below 6656,
# where float32 still resolves 5e-4: less than a decay is rounded by afterwards.
RESET = -104.0
THREADS = int(os.environ.get("NPROC") or os.cpu_count())  # of XLA's pool, on a CPU

WGMMA = plgpu.Layout.WGMMA
PER_ROW, PER_COLUMN = WGMMA.reduce(1), WGMMA.reduce(0)


# -- where a kernel runs -----------------------------------------------------------------------------------------------


def interpreted() -> bool:
    """Whether ``plgpu.force_gpu_interpret_mode`` or ``set_gpu_interpret_mode`` asks for a simulated GPU."""
    return isinstance(_config.pallas_tpu_interpret_mode_context_manager.value, plgpu.InterpretGPUParams)


def no_place(warpgroups: int = 1) -> str | None:
    """Why no kernel of so many warpgroups a block runs here, or None if one does.

    The interpreter keeps a thread of XLA's pool waiting for each of them and one for the kernel, and if there are no
    more than that it waits for ever. The pool has a thread for each core, or as many as NPROC said when JAX started.
    """
    if interpreted() and warpgroups > 1 and THREADS < warpgroups + 2:
        return f"needs {warpgroups + 2} threads to be interpreted, and XLA has {THREADS}: set NPROC before JAX starts"
    if interpreted() or on_hopper():
        return None
    return f"needs a Hopper GPU (or JAX's GPU interpret mode), and this is {jax.devices()[0].device_kind}"


def refusal(**arrays: Array) -> str | None:
    """Why these ``[B, T, H, D]`` arrays are nothing for a kernel, or None if they are."""
    (first, like), *_ = arrays.items()
    for name, x in arrays.items():
        if x.dtype not in HALVES:
            return f"takes bfloat16 or float16, and {name} is {x.dtype}"
        if x.dtype != like.dtype:
            return f"takes one dtype, and {first} is {like.dtype}, {name} is {x.dtype}"
        if x.shape[-1] not in WIDTHS or x.shape[-1] != like.shape[-1]:
            return f"takes K = V in {{64, 128}}, and {name} has {x.shape[-1]} channels, {first} has {like.shape[-1]}"
        if 0 in x.shape:
            return f"takes no empty array, and {name} has shape {list(x.shape)}"
    return None


# -- building one ------------------------------------------------------------------------------------------------------


# Layouts are inferred for the whole warpgroup; exp is as the special-function unit has it (2 ulp).
PARAMS = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup, approx_math=True)


def kernel(body, *, into=(), barriers=True, **options):
    """``plgpu.kernel``; ``into``: arrays that are written in place, and come back before what is new.

    The body sees its arguments, these arrays, the new results. What it does not write of the arrays stays as it was.
    barriers: whether Mosaic adds one among the threads before and after each write of shared memory and before each
    copy. Without, the body has all that are needed; ``commit_smem`` and ``wait_smem_to_gmem`` are.
    """
    if into:
        return _in_place(body, into, **options)
    return plgpu.kernel(body, compiler_params=replace(PARAMS, unsafe_no_auto_barriers=not barriers), **options)


def _in_place(body, into, *, out_type=(), scratch_types=None, **mesh):
    @custom_vmap
    def run(into, arguments):
        def scoped(*refs):
            threads = mesh.get("thread_name", ())
            pl.run_scoped(partial(body, *refs), collective_axes=threads, **(scratch_types or {}))

        refs = [jax.new_ref(x) for x in into]
        launch = pl.kernel(scoped, list(out_type), mesh=plgpu.Mesh(**mesh), compiler_params=PARAMS)
        new = launch(*arguments, *refs)
        return [jax.freeze(ref) for ref in refs] + new

    @run.def_vmap
    def _(size, has_it, into, arguments):
        """One more axis of the grid, as ``plgpu.kernel`` does it."""
        name = object()

        def own(*refs, **scratch):
            has = [*has_it[1], *[True] * (len(refs) - len(arguments))]
            return body(*(x.at[lax.axis_index(name)] if it else x for x, it in zip(refs, has, strict=True)), **scratch)

        into = [x if it else jnp.broadcast_to(x, (size, *x.shape)) for x, it in zip(into, has_it[0], strict=True)]
        out = [jax.ShapeDtypeStruct((size, *x.shape), x.dtype) for x in out_type]
        axes = mesh | {"grid": (size, *mesh["grid"]), "grid_names": (name, *mesh["grid_names"])}
        found = _in_place(own, into, out_type=out, scratch_types=scratch_types, **axes)(*arguments)
        return found, [True] * len(found)

    return lambda *arguments: run(list(into), list(arguments))


def factor(*shape: int, dtype):
    """Shared memory for factors of wgmma: 8 x 64 blocks of 16-bit numbers, each row of 128 bytes swizzled."""
    return plgpu.SMEM(shape, dtype, transforms=(plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)))


def products(*sums):
    """``[(x, y), ...] -> sum of x @ y`` for each argument, in registers; y in shared memory, x there or in registers.

    All are issued before the first is waited for, so that the tensor core does not idle between them.
    """
    if simulated(*sums):
        return tuple(sum(dot(x, y) for x, y in pairs) for pairs in sums)

    def run(*accumulators):
        issue(accumulators, sums)
        return tuple(acc[...] for acc in accumulators)

    return pl.run_scoped(run, *registers(sums))


def issue(accumulators, sums) -> None:
    for acc, pairs in zip(accumulators, sums, strict=True):
        for x, y in pairs:
            plgpu.wgmma(acc, x, y)


def registers(sums) -> list:
    return [plgpu.ACC((pairs[0][0].shape[0], pairs[0][1].shape[1]), jnp.float32) for pairs in sums]


def simulated(*sums) -> bool:
    """Whether it is for the interpreter to multiply what its wgmma does not take: a first factor in registers."""
    return interpreted() and any(isinstance(x, Array) for pairs in sums for x, _ in pairs)


def dot(x, y) -> Array:
    return jnp.dot(x if isinstance(x, Array) else x[...], y[...], preferred_element_type=jnp.float32)


def onto(*sums):
    """``(start, (x, y), ...) -> start + sum of x @ y`` for each argument, in the registers of start.

    JAX does not take a y whose place in shared memory is a constant here: ``0 * n + 1`` is none.
    """
    more = [pairs for _, *pairs in sums]
    if interpreted():  # which knows no start
        return tuple(start + y for (start, *_), y in zip(sums, products(*more), strict=True))
    return pl.run_state(lambda accumulators: issue(accumulators, more))([plgpu.ACC.init(start) for start, *_ in sums])


def products_with(more, first, *sums):
    """``products`` of sums, to which is added what ``more`` makes of the product ``first``: pairs for each of them.

    They are issued before ``more`` computes.
    """
    if simulated(first, *sums):
        (found,) = products(first)
        return tuple(x + y for x, y in zip(products(*sums), products(*more(found)), strict=True))

    def run(head, *accumulators):
        issue((head, *accumulators), (first, *sums))
        issue(accumulators, more(plgpu.wgmma_accumulator_load(head, wait_n=sum(len(pairs) for pairs in sums))))
        return tuple(acc[...] for acc in accumulators)

    return pl.run_scoped(run, *registers((first, *sums)))


def in_turn(*steps):
    """``work(*products(*sums))`` of each (sums, work), the tensor core being busy with the sums of those after it."""
    if any(simulated(*sums) for sums, _ in steps):
        return tuple(work(*(products(*sums) if sums else ())) for sums, work in steps)

    def run(*accumulators):
        issued = [sum(len(pairs) for pairs in sums) for sums, _ in steps]
        for (sums, _), some in zip(steps, accumulators, strict=True):
            issue(some, sums)
        return tuple(
            work(*(plgpu.wgmma_accumulator_load(acc, wait_n=sum(issued[i + 1 :])) for acc in some))
            for i, ((_, work), some) in enumerate(zip(steps, accumulators, strict=True))
        )

    return pl.run_scoped(run, *(registers(sums) for sums, _ in steps))


def transposed(x):
    """x' as a factor: only the description of the tile changes, nothing moves."""
    return x.transpose((1, 0))


def block(x, i: int, axis: int = 1):
    """The i-th 64 columns (or rows, with axis 0) of a tile in shared memory."""
    return x.at[:, pl.ds(i * SIDE, SIDE)] if axis else x.at[pl.ds(i * SIDE, SIDE)]


def unforeseen_zero(n):
    """0 for any whole number n, which no compiler can know: it does not know that exp is never negative.

    To be added to an index of a tile in shared memory that a loop over n does not change. wgmma is told of a tile by a
    descriptor, 64 bits for each 16 of the summed index, and LLVM computes all that do not change before the loop, where
    they are dozens of registers: ptxas spills them, and a product then waits for memory. So they are computed in it.
    """
    return (jnp.exp(n.astype(jnp.float32)) < 0).astype(jnp.int32)


def read(tile) -> Array:
    """A 16-bit tile in shared memory as float32 in registers, laid out as wgmma's results are."""
    return plgpu.load(tile, layout=WGMMA).astype(jnp.float32)


def vector(x, layout) -> Array:
    """64 numbers of global memory, straight to registers: no waiting, until they are used."""
    return plgpu.load(x, layout=layout, optimized=False)


def by_row(x: Array, columns: int = SIDE) -> Array:
    """[64] -> [64, columns], one number for each row."""
    return plgpu.layout_cast(lax.broadcast_in_dim(x, (SIDE, columns), (0,)), WGMMA)


def by_column(x: Array) -> Array:
    """[64] -> [64, 64], one number for each column."""
    return plgpu.layout_cast(lax.broadcast_in_dim(x, (SIDE, SIDE), (1,)), WGMMA)


def places() -> tuple[Array, Array]:
    """The row and the column of each number of a [64, 64] tile."""
    return tuple(plgpu.broadcasted_iota(jnp.int32, (SIDE, SIDE), axis, layout=WGMMA) for axis in (0, 1))


def causal(later: str) -> Array:
    """[64, 64] of booleans: the token of the row is at or after that of the column; or, ``later="columns"``, before."""
    row, column = places()
    return row >= column if later == "rows" else column >= row


def whole_rows(x: Array) -> Array:
    """``[B, T, ...]`` with zeros up to a T that is at least 64 and a multiple of 8: a swizzled box has 8 rows a piece.

    The only copy a kernel makes of its arguments, and only for such T; what is missing to 64 n is never stored.
    """
    T = x.shape[1]
    more = max(-T % 8, SIDE - T)
    return jnp.pad(x, [(0, 0), (0, more)] + [(0, 0)] * (x.ndim - 2)) if more else x


def vectors(x: Array) -> Array:
    """A number for each token and head, ``[B, T, H]``, as ``[B, H, N * 64]``: 1.5 MB where q has 100, XLA may do it."""
    return jnp.pad(x, [(0, 0), (0, -x.shape[1] % SIDE), (0, 0)]).swapaxes(1, 2)


@full_precision
def sums(log_decay: Array) -> Array:
    """G, ``[B, H, N * 64]``: log gamma summed from the start of each chunk (see chunks.py)."""
    g = vectors(jnp.maximum(log_decay, RESET))
    g = g.reshape(*g.shape[:2], -1, SIDE)
    return jnp.einsum("bhni,ti->bhnt", g, jnp.tri(SIDE, dtype=g.dtype)).reshape(*g.shape[:2], -1)


def chunks(T: int) -> int:
    return -(-T // SIDE)


def steps(n: int, body, start):
    """``lax.fori_loop`` whose body sees a 32-bit counter, also where JAX counts in 64."""
    return lax.fori_loop(0, n, lambda i, carry: body(lax.convert_element_type(i, jnp.int32), carry), start)
