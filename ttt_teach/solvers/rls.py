"""Recursive least squares: the inverse is carried along, so that nothing is left to solve (MesaNet App. H)."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from ttt_teach.solvers.precision import full_precision


def rls_update(
    P: Float[Array, "K K"],
    k: Float[Array, " K"],
    beta: float | Float[Array, ""],
    gamma: float | Float[Array, ""] = 1.0,
) -> Float[Array, "K K"]:
    """(gamma R + beta k k')^-1 from P = R^-1, by Sherman and Morrison; 3 K^2 multiplications.

    P is taken for symmetric, and the result is symmetric to the bit. beta < 0 takes a pair
    out again, while gamma + beta k'Pk > 0. With gamma = 0 the result is not finite.
    """
    u = P @ k / gamma
    return P / gamma - beta / (1 + beta * (k @ u)) * jnp.outer(u, u)


@full_precision
def rls(
    k: Float[ArrayLike, "T K"],
    beta: Float[ArrayLike, " T"],
    lam: Float[ArrayLike, " K"],
    *,
    log_decay: Float[ArrayLike, " T"] | None = None,
) -> Float[Array, "T K K"]:
    """P_t = R_t^-1 for every t, where R_t = gamma_t R_{t-1} + beta_t k_t k_t' and R_0 = diag(lam) (MesaNet App. H).

    Without decay R_t is H_t + diag(lam), the matrix of :func:`ttt_teach.mesa`. With decay it is not: what is left of
    the regulariser is zeta_t0 diag(lam). A direction that no key visits then grows in P like 1 / zeta_t0, and once
    that reaches 1 / eps against the rest, P is no longer positive definite and what it reads is noise, without a
    warning; later it overflows to NaN. So it is here to be studied. Without decay it is as good as a solve.

    Args: k ``[T, K]``; beta ``[T]``, >= 0; lam ``[K]``, > 0; log_decay ``[T]``, log gamma_t, natural logarithm, <= 0,
        zeros if None. All float32 or all float64. One head: vmap for more.

    Raises ValueError: shapes that disagree, or a dtype that is not float32 or float64.
    """
    k, beta, lam = map(jnp.asarray, (k, beta, lam))
    log_decay = jnp.zeros_like(beta) if log_decay is None else jnp.asarray(log_decay)
    if k.ndim != 2 or k.dtype not in (jnp.float32, jnp.float64):
        raise ValueError(f"k is {k.dtype} of shape {list(k.shape)}; expected float32 or float64, [T, K]")
    T, K = k.shape
    for name, x, shape in (("beta", beta, (T,)), ("lam", lam, (K,)), ("log_decay", log_decay, (T,))):
        if x.shape != shape or x.dtype != k.dtype:
            raise ValueError(f"{name} is {x.dtype} of shape {list(x.shape)}; expected {k.dtype}, {list(shape)}")

    def step(P, token):
        P = rls_update(P, *token)
        return P, P

    return jax.lax.scan(step, jnp.diag(1 / lam), (k, beta, jnp.exp(log_decay)))[1]
