"""Two phases of matrix products over chunks (OSDN Secs. 4.3 to 4.5): all scales, then a delta rule writing at d k."""

from jax import Array
from jaxtyping import Float

from ttt_teach.rules import delta
from ttt_teach.rules.osdn import sweep


def chunkwise(
    q: Float[Array, "T K"],
    k: Float[Array, "T K"],
    v: Float[Array, "T V"],
    beta: Float[Array, " T"],
    b: Float[Array, " T"],
    retention: Float[Array, " T"] | None,
    log_decay: Float[Array, "T C"],
    S: Float[Array, "K V"],
    d: Float[Array, " K"],
    learner: sweep.Learner,
    *,
    chunk: int,
) -> tuple[Float[Array, "T V"], tuple[Float[Array, "K V"], Float[Array, " K"]]]:
    """The scales need no value and no memory (OSDN Lemma 4.1), so they can all be known before the first write."""
    scales, d = sweep.chunkwise(k, b, retention, learner, d, chunk=chunk)
    o, S = delta.chunkwise(q, k, v, beta, scales * k, log_decay, S, chunk=chunk)
    return o, (S, d)
