"""Associative recall: pairs are written into the context, and a pair is asked for whenever its key returns."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from ttt_teach.rules import door


def recall(
    key: Array, batch: int, length: int, pairs: int, vocab: int, *, overwrite: float = 0.0, skew: float = 0.0
) -> tuple[Int[Array, "batch length"], Int[Array, "batch length"], Bool[Array, "batch length"]]:
    """Streams ``k v k v ...``: a key that was seen before asks for its latest value, which is the token after it.

    After the setting of multi-query associative recall (Arora et al. 2023, arXiv 2312.04927), with every
    return of a key as a question, so that there are questions at all positions. Keys are tokens below ``vocab // 2``,
    values the others. The same ``key`` gives the same streams, with and without ``jax_enable_x64``.

    Args:
        pairs: different keys in a stream; each stream has its own.
        overwrite: the probability that a key that returns has a new value instead. It cannot be known, so it is not
            asked for; the latest value counts from then on.
        skew: how unequally often the keys come: the n-th as often as 1 / n^skew, 1 being like the words of a text. Keys
            that repeat are what makes the regression of a Mesa layer hard to solve.

    Returns:
        tokens; targets, the token after each key (0 at the values); mask, True where the target can be known.

    Raises:
        ValueError: length not even or below 2, vocab odd or below 4, pairs not between 1 and vocab / 2, overwrite
            outside [0, 1], skew < 0.
    """
    _check(batch, length, pairs, vocab, overwrite, skew)
    stream = partial(_stream, events=length // 2, pairs=pairs, keys=vocab // 2, overwrite=overwrite, skew=skew)
    return jax.vmap(stream)(jax.random.split(key, batch))


def _stream(key, events, pairs, keys, overwrite, skew):
    for_names, for_order, for_values, for_overwriting = jax.random.split(key, 4)
    _, names = jax.lax.top_k(jax.random.uniform(for_names, keys, jnp.float32), pairs)  # any, in any order
    often = -skew * jnp.log(jnp.arange(1, pairs + 1, dtype=jnp.float32))
    which = jax.random.categorical(for_order, often, shape=(events,))

    same = which[:, None] == which[None, :]  # [event, event]
    first = ~jnp.any(same & jnp.tri(events, k=-1, dtype=bool), axis=1)
    written = first | jax.random.bernoulli(for_overwriting, jnp.float32(overwrite), (events,))
    latest = jnp.where(same & jnp.tri(events, dtype=bool) & written[None, :], jnp.arange(events)[None, :], -1).max(
        axis=1
    )

    values = jax.random.randint(for_values, (events,), keys, 2 * keys, jnp.int32)[latest]
    nothing = jnp.zeros_like(values)
    return (
        _after_each_other(names[which], values),
        _after_each_other(values, nothing),
        _after_each_other(~written, nothing > 0),
    )


def _after_each_other(at_keys, at_values):
    return jnp.stack([at_keys, at_values], axis=1).ravel()


def _check(batch, length, pairs, vocab, overwrite, skew) -> None:
    for name, value, least in (("batch", batch, 1), ("length", length, 2), ("vocab", vocab, 4)):
        door.count(name, value, least)
    for name, value in (("length", length), ("vocab", vocab)):
        if value % 2:
            raise ValueError(f"{name} is {value}; expected an even number, as many keys as values")
    if isinstance(pairs, bool) or not isinstance(pairs, int) or not 1 <= pairs <= vocab // 2:
        raise ValueError(f"pairs is {pairs!r}; expected a whole number from 1 to {vocab // 2}, half of vocab")
    if not 0 <= overwrite <= 1:
        raise ValueError(f"overwrite is {overwrite!r}; expected a probability")
    if not 0 <= skew < float("inf"):
        raise ValueError(f"skew is {skew!r}; expected a number >= 0")
