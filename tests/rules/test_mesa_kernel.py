"""The kernels of mesa, through three gates from one source (see test_linear_kernel.py):

    JAX_ENABLE_X64=1 python -m pytest --noconftest -c /dev/null --rootdir . tests/rules/test_mesa_kernel.py
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call as interpreter
from jax.experimental.pallas import mosaic_gpu as plgpu

from ttt_teach import CG, PCG, MesaState, mesa
from ttt_teach.rules.door import on_hopper
from ttt_teach.rules.mesa.kernel import kernel
from ttt_teach.tasks import unit

pytestmark = pytest.mark.timeout(120, method="thread")  # a kernel that waits for ever does not see signals


@pytest.fixture(autouse=True)
def somewhere(capsys):
    """Inside the interpreter unless there is a GPU; no race may be found there. It prints each one."""
    with contextlib.ExitStack() as stack:
        if not on_hopper():
            stack.enter_context(plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)))
        try:
            yield
            assert "RACE DETECTED" not in capsys.readouterr().out
        finally:
            interpreter.reset_gpu_interpret_mode_state()


def draw(seed=0, *, T=70, H=1, D=64, dtype="bfloat16", decay=0.9, state=True, scale=1.0):
    """Arguments of :func:`mesa` and an upstream gradient of each result, times ``scale``."""
    rng = np.random.default_rng(seed)
    args = {n: rng.normal(size=(1, T, H, D)) for n in "qkv"}
    args = {n: jnp.asarray(x if n == "v" else unit(x), dtype) for n, x in args.items()}
    args["beta"] = jnp.asarray(rng.uniform(0, 1, (1, T, H)), jnp.float32)
    args["lam"] = jnp.asarray(rng.uniform(0.25, 1.25, (H, D)), jnp.float32)
    if decay:
        args["log_decay"] = jnp.asarray(np.log(rng.uniform(decay, 1, (1, T, H))), jnp.float32)
    G, A = (jnp.asarray(x, jnp.float32) for x in rng.normal(size=(2, 1, H, D, D)))
    if state:
        args["state"] = MesaState(G, A @ A.mT / D)
    slopes = rng.normal(size=(1, T, H, D)), MesaState(*rng.normal(size=(2, 1, H, D, D)))
    return args, jax.tree.map(lambda x: jnp.asarray(scale * x, dtype if x.shape[1] == T else jnp.float32), slopes)
