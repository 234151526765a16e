"""The Mesa rule: at every token the ridge regression over all retained pairs, solved."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ttt_teach.rules import door
from ttt_teach.rules.mesa.chunk import chunkwise
from ttt_teach.rules.mesa.definition import definition
from ttt_teach.rules.mesa.recurrent import recurrent
from ttt_teach.solvers import CG

FORMS = {"definition": definition, "recurrent": recurrent, "chunk": chunkwise}


class MesaState(NamedTuple):
    """The two sufficient statistics of the regression (MesaNet Eq. 8; the paper writes G transposed)."""

    G: Array  # [B, H, K, V], sum of zeta beta k v'
    H: Array  # [B, H, K, K], sum of zeta beta k k', symmetric


def mesa(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    beta: ArrayLike,
    lam: ArrayLike,
    *,
    log_decay: ArrayLike | None = None,
    solver: CG = CG(max_steps=30),  # noqa: B008 - plain frozen data
    state: MesaState | None = None,
    form: str = "auto",
    chunk: int = 64,
) -> tuple[Array, MesaState]:
    """o_t = Phi_t q_t, where Phi_t minimises the weighted ridge loss over all pairs so far (MesaNet Eqs. 4-8).

    The loss is sum_{i<=t} zeta_ti beta_i |v_i - Phi k_i|^2 / 2 + Tr(Phi diag(lam) Phi') / 2, with zeta_ti the
    product of the forget gates after i. lam does not decay.

    The gradient is that of the exact minimiser, by a second solve with the same solver (MesaNet App. D). With too few
    steps output and gradient are approximations of the exact ones, each as good as its own solve, and the gradient is
    not that of the truncated iteration: a finite difference of the output will not confirm it.

    ``PCG`` takes the inverses of recursive least squares to begin with: exact without decay, and one step does; with
    gamma 0.99 and chunks of 64 five do, whatever the condition number. In float32 it gives NaN where H + diag(lam), of
    a condition number about 1e7, is no longer positive definite; what CG returns there is noise. Where the decay inside
    a chunk is strong, or a reset, the inverses fit less well: few steps are then not enough, a tolerance is. One
    token at a time PCG pays K^3 for each, and CG is cheaper. Its inverses take the decays of the whole chunk, so what
    few steps leave undone depends on later gates and on where a sequence is split: with PCG the output is causal, and
    the same in pieces, as far as the solve has converged and no further. With CG it is so after any number of steps.

    Args:
        q, k: ``[B, T, H, K]``. v: ``[B, T, H, V]``.
        beta: weight of a pair, >= 0, ``[B, T, H]``.
        lam: ridge, > 0, ``[H, K]``.
        log_decay: log gamma, natural logarithm, <= 0, ``[B, T, H]``.
        solver: ``CG`` or ``PCG``: how (H_t + diag(lam)) x = q_t is solved in the other forms than the definition.
        state: statistics before the first token; zeros if None.
        form: ``"definition"`` (minimises the stated loss itself, T^2 K^2 + T K^3), ``"recurrent"``
            (T K (K steps + V), a scan), ``"chunk"`` (T (K + 2 chunk) K steps, matrix products; with PCG each step
            twice that, and T K^3 / chunk beside), ``"kernel"`` (the same steps in kernels for Hopper GPUs: q, k, v in
            bfloat16 or float16, K = V in {64, 128}, chunk 64; its PCG knows the trace of the H before the chunk and
            one direction, no more, and is as causal as CG) or ``"auto"``: on such a GPU the kernel for what it covers,
            else chunk. The kernel's gradient of log_decay is a difference of two sums in 16 bits: where gates are near
            0.1 a tenth of it is rounding, where they are near 0.01 half.
        chunk: tokens solved for at once in the chunk form.

    Returns:
        o ``[B, T, H, V]`` in the dtype of v; MesaState after the last token, float32 (float64 if any input is).

    Raises:
        ValueError: a shape or dtype that disagrees, lam <= 0, beta < 0, log_decay > 0, another solver, a chunk below
            1, an unknown form; for ``form="kernel"`` the reason why it does not cover this call.
    """
    run = door.pick("mesa", FORMS, form, kernel=True)
    if not isinstance(solver, CG):
        raise ValueError(f"solver is {solver!r}; expected CG(max_steps, tol) or PCG(max_steps, tol)")
    if state is not None and not (isinstance(state, tuple) and len(state) == 2):
        raise ValueError(f"state is a {type(state).__name__}; expected MesaState(G, H)")
    G, H = state or (None, None)
    x, size = door.enter(
        q=(q, "B T H K"),
        k=(k, "B T H K"),
        v=(v, "B T H V"),
        beta=(beta, "B T H"),
        lam=(lam, "H K"),
        log_decay=(log_decay, "B T H", None),
        G=(G, "B H K V", None),
        H=(H, "B H K K", None),
    )
    door.require(
        "lam",
        x.lam,
        lambda lam: (lam > 0) & np.isfinite(lam),
        "lam > 0 and finite: the regression needs it to have one answer",
    )
    door.require(
        "beta",
        x.beta,
        lambda beta: (beta >= 0) & np.isfinite(beta),
        "beta >= 0 and finite: it weights a squared error",
    )
    chunk, decays = door.length("chunk", chunk), door.per_channel(x.log_decay, size)
    if door.tries_kernel(form):
        from ttt_teach.rules.mesa import kernel  # Pallas is loaded where a kernel may run, and nowhere else

        q, k, v = (jnp.asarray(z) for z in (q, k, v))
        if door.covers(form, kernel.refusal(q, k, v, size.dtype, chunk, solver)):
            o, G, H = kernel.kernel(q, k, v, x.beta, x.lam, x.log_decay, x.G, x.H, solver=solver)
            return o, MesaState(G, H)
    o, (G, H) = door.each_head(
        run,
        tokens=(x.q, x.k, x.v, x.beta, decays),
        heads=(x.lam,),
        states=(
            door.start(x.G, size.B, size.H, size.K, size.V, dtype=size.dtype),
            door.start(x.H, size.B, size.H, size.K, size.K, dtype=size.dtype),
        ),
        solver=solver,
        chunk=chunk,
    )
    return door.leave(o, v), MesaState(G, H)
