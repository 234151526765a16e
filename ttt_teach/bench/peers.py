"""Other libraries with the same rules, and how each is called. None is needed by the package; all are looked for.

Every call takes this package's names and layouts, so that inputs, gradients and the float64 truth are one set for all.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ttt_teach.bench import clock

OPERATION = Path("lact_llm", "lact_model", "ttt_operation.py")  # in a checkout of the official LaCT code
LIBRARIES = {
    "fla-core": "pip install fla-core==0.6.0, with PyTorch and Triton",
    "jax-linear-attention": "pip install --no-deps jax-linear-attention==0.1.0",
    "LaCT": "clone github.com/a1600012888/LaCT and give the folder as --lact, with PyTorch",
}


LOWERING = threading.Lock()


def compiled(f: Callable, *args) -> Callable:
    """Threads take turns at lowering: it is Python, and Pallas does not say that two may at once. XLA runs beside."""
    with LOWERING:
        lowered = jax.jit(f).lower(*args)
    return lowered.compile()


class Jax(NamedTuple):
    """A function of JAX: ``call(**arguments) -> (o, state)``."""

    call: Callable

    def array(self, x):
        return x

    def forward(self, args: dict) -> Callable:
        """Compiled: a function of nothing, to the output and the last state."""
        return functools.partial(compiled(lambda args: self.call(**args), args), args)

    def both(self, args: dict, do) -> Callable:
        """Compiled: a function of the upstream gradient of o, to the same and the gradients by argument."""

        def run(args, do):
            o, back, state = jax.vjp(lambda args: self.call(**args), args, has_aux=True)
            return o, back(do)[0], state

        return functools.partial(compiled(run, args, do), args)

    def timed(self, run: Callable) -> Callable[[int], clock.Turn]:
        return functools.partial(clock.queued, run)

    def numbers(self, x) -> np.ndarray:
        return np.asarray(x).astype(np.float64)

    def wait(self, results) -> None:
        jax.block_until_ready(results)


class Torch(NamedTuple):
    """A function of PyTorch: the same arguments as tensors, which share the memory of JAX's arrays."""

    call: Callable

    def array(self, x):
        import torch

        return jax.tree.map(torch.from_dlpack, x)

    def forward(self, args: dict) -> Callable:
        import torch

        tensors = self._ready(args)
        return torch.no_grad()(lambda: self.call(**tensors))

    def both(self, args: dict, do) -> Callable:
        import torch

        tensors = self._ready(args)
        leaves, shape = jax.tree.flatten(tensors)
        for x in leaves:
            x.requires_grad_()

        def run(do):
            o, state = self.call(**tensors)
            return o, jax.tree.unflatten(shape, torch.autograd.grad(o, leaves, do)), state

        return run

    def _ready(self, args: dict) -> dict:
        """What torch.compile made for other sizes is dropped, or it would make code for any size of what is new."""
        import torch

        torch.compiler.reset()
        return self.array(args)

    def timed(self, run: Callable) -> Callable[[int], clock.Turn]:
        """By events on the card, which first sleeps while the host gets ahead: many small kernels cost what they take
        there, and not what starting them takes."""
        import torch

        begun = time.perf_counter()
        run()
        host = time.perf_counter() - begun

        def turn(calls: int) -> clock.Turn:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(int(2e9 * (1.5 * host * calls + 1e-3)))  # cycles, of which an H200 has 2e9 a second
            first.record()
            for _ in range(calls):
                run()
            last.record()
            last.synchronize()
            return clock.Turn(first.elapsed_time(last) / calls, 0.0)

        return turn

    def numbers(self, x) -> np.ndarray:
        return x.detach().double().cpu().numpy()

    def wait(self, results) -> None:
        import torch

        torch.cuda.synchronize()


def fla_linear(q, k, v, log_decay):
    from fla.ops.simple_gla import chunk_simple_gla

    return chunk_simple_gla(q, k, v, g=log_decay, scale=1.0, output_final_state=True)


def fla_delta(q, k, v, beta, log_decay=None):
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    if log_decay is None:
        return chunk_delta_rule(q, k, v, beta=beta, scale=1.0, output_final_state=True)
    return chunk_gated_delta_rule(q, k, v, g=log_decay, beta=beta, scale=1.0, output_final_state=True)


def fla_mesa(q, k, v, beta, lam, log_decay, *, steps):
    from fla.ops.mesa_net import chunk_mesa_net

    o, *state = chunk_mesa_net(
        q, k, v, g=log_decay, beta=beta, lamb=lam, output_final_state=True, max_CG_iteration=steps
    )
    return o, state


def jla(q, k, v, *, kind, **gates):
    from jla.ops import linear_attention

    names = {"log_decay": "g", "beta": "beta"}
    gates = {names[name]: x for name, x in gates.items()}
    return linear_attention(kind, q, k, v, impl="mosaic_gpu", scale=1.0, output_final_state=True, **gates)


def official_lact(q, k, v, lr, weights, *, operation, chunk, muon):
    """One head only. w0, w1, w2 are gate, out and up; so are the rates."""
    gate, up, out = (w.squeeze(1) for w in weights)
    q, k, v, lr = (x.squeeze(2) for x in (q, k, v, lr))
    rates = lr[..., 0:1], lr[..., 2:3], lr[..., 1:2]
    o = operation(gate, out, up, q, k, v, *rates, chunk_size=chunk, use_muon=muon)
    return o[:, :, None], None


FLA, JLA, LACT = LIBRARIES


def contestants(rule: str, operation: Callable | None = None, **options) -> dict[str, tuple[str, Jax | Torch]]:
    """Who else has this rule: ``{name: (library, side)}``. The operation and options are LaCT's."""
    lact = functools.partial(official_lact, operation=operation, **options)
    return {
        "linear": {FLA: (FLA, Torch(fla_linear)), JLA: (JLA, Jax(functools.partial(jla, kind="simple_gla")))},
        "delta": {FLA: (FLA, Torch(fla_delta)), JLA: (JLA, Jax(functools.partial(jla, kind="deltanet")))},
        "gated delta": {FLA: (FLA, Torch(fla_delta)), JLA: (JLA, Jax(functools.partial(jla, kind="gated_deltanet")))},
        "mesa": {f"{FLA}, {n} steps": (FLA, Torch(functools.partial(fla_mesa, steps=n))) for n in (30, 15)},
        "lact": {LACT: (LACT, Torch(lact))},
    }[rule]


def look(checkout: str | None) -> tuple[dict[str, str], dict[str, str], Callable | None]:
    """Versions of the libraries that are here, why and how to get those that are not, and LaCT's operation."""
    versions, absent, operation = {}, {}, None
    for library, how in LIBRARIES.items():
        try:
            if library == LACT:
                operation, versions[library] = load(checkout)
            else:
                importlib.import_module("jla.ops" if library == JLA else "fla.ops.mesa_net")
                versions[library] = importlib.metadata.version(library)
            if library != JLA:
                versions |= torch_versions()
        except Exception as error:  # of whatever kind: a library that cannot be loaded is as good as none
            versions.pop(library, None)
            absent[library] = f"absent ({type(error).__name__}: {error}); to have it: {how}"
    return versions, absent, operation


def torch_versions() -> dict[str, str]:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no GPU")
    return {name: importlib.metadata.version(name) for name in ("torch", "triton")}


def load(checkout: str | None) -> tuple[Callable, str]:
    """The function of the official language model, and which: by git's name for the contents of its file.

    The file by itself, since its package wants transformers and all of FLA.
    """
    if checkout is None:
        raise FileNotFoundError("no --lact")
    path = Path(checkout) / OPERATION
    text = path.read_bytes()
    spec = importlib.util.spec_from_file_location("official_lact_operation", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where torch.compile looks it up by its name
    spec.loader.exec_module(module)
    blob = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    return module.block_causal_lact_swiglu, f"{path.name}, blob {blob[:12]}"
