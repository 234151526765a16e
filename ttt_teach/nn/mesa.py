"""The Mesa layer (MesaNet App. E, G.5, I)."""

import copy

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from ttt_teach.nn.fast_weights import FastWeights
from ttt_teach.nn.parts import inverse_softplus, wide
from ttt_teach.rules.mesa import mesa
from ttt_teach.solvers import CG


class Mesa(FastWeights):
    """The layer whose rule solves the regression over all retained pairs at every token.

    lam = lam_min + softplus(.), one number per head and key channel, learned, the same for all tokens; lam_init at the
    start. gamma_t is multiplied by 1 - (1 - decay_floor) beta_t^2, so that a key repeated for ever with beta 1 adds up
    to at most 1 / (1 - decay_floor) = 400 in H, and the condition number stays bounded (App. G.5). 1 switches it off.

    ``negative_decay`` with ``lam_min=49, lam_init=50`` is the variant for parity (App. I). The sign enters G and not
    H, which takes |gamma|: what is solved is the regression of the *turned* targets,
    min sum |zeta_ti| beta_i |s_t s_i v_i - Phi k_i|^2, well posed for every lam > 0. Eq. 8 read literally gives H the
    signed gamma too: weights zeta_ti below zero, no regression any more, and an H + diag(lam) that a lam below
    the largest sum of beta_i may leave indefinite. With lam near 50 both read about G'q / lam.

    Args:
        dim: width of the residual stream. heads; head_dim: K = V of each.
        solver: CG or PCG, how each query is solved for; the paper trains with 30 steps. See :func:`with_solver`.
        conv: width of the convolution.

    ``mixer(x [B, T, dim], state=None) -> (y [B, T, dim], state)``. ValueErrors name the argument.
    """

    ridge: Float[Array, "H K"]  # what softplus is applied to
    solver: CG = eqx.field(static=True)
    lam_min: float = eqx.field(static=True)
    decay_floor: float = eqx.field(static=True)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int = 128,
        solver: CG = CG(max_steps=30),  # noqa: B008 - plain frozen data
        conv: int = 4,
        negative_decay: bool = False,
        lam_min: float = 0.25,
        lam_init: float = 1.0,
        decay_floor: float = 0.9975,
        key: PRNGKeyArray,
    ):
        super().__init__(dim, heads, head_dim=head_dim, conv=conv, negative_decay=negative_decay, key=key)
        if not 0 <= lam_min < lam_init:
            raise ValueError(f"lam_min is {lam_min!r} and lam_init {lam_init!r}; expected 0 <= lam_min < lam_init")
        if not 0 < decay_floor <= 1:
            raise ValueError(f"decay_floor is {decay_floor!r}; expected a number in (0, 1]")
        if not isinstance(solver, CG):
            raise ValueError(f"solver is {solver!r}; expected CG(max_steps, tol) or PCG(max_steps, tol)")
        self.ridge = jnp.full((heads, head_dim), inverse_softplus(lam_init - lam_min))
        self.solver, self.lam_min, self.decay_floor = solver, float(lam_min), float(decay_floor)

    @property
    def lam(self) -> Float[Array, "H K"]:
        return self.lam_min + jax.nn.softplus(wide(self.ridge))

    def gates(self, x):
        beta, log_decay, sign = super().gates(x)
        return beta, log_decay + jnp.log1p((self.decay_floor - 1) * beta**2), sign

    def rule(self, features, memory):
        q, k, v, beta, log_decay, _ = features
        return mesa(q, k, v, beta, self.lam, log_decay=log_decay, solver=self.solver, state=memory)


def with_solver(model, solver: CG):
    """The same model, its Mesa layers solving with ``solver``: trained with one budget, read with another.

    ``PCG`` is causal only as far as it has converged (see :func:`ttt_teach.mesa`).
    """
    if not isinstance(solver, CG):
        raise ValueError(f"solver is {solver!r}; expected CG(max_steps, tol) or PCG(max_steps, tol)")

    def swap(part):
        if isinstance(part, Mesa):
            part = copy.copy(part)
            object.__setattr__(part, "solver", solver)  # static fields are out of eqx.tree_at's reach
        return part

    return jax.tree.map(swap, model, is_leaf=lambda part: isinstance(part, Mesa))
