"""Training: one compiled program, a file to go on from, and the same bits whether or not it was stopped."""

import json
import signal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ttt_teach.nn import Fit, fit

KEY = jax.random.key(0)


def loose(optimiser):
    """Optax promotes its integer step counts; only its own lines may."""

    def update(*arguments):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return optimiser.update(*arguments)

    return optax.GradientTransformation(optimiser.init, update)


def adam(rate):
    return loose(optax.adam(rate))


def remembers(rate):
    """A rate that stands in the optimiser's state and not in its program."""
    return loose(optax.inject_hyperparams(optax.sgd)(learning_rate=rate))


REMEMBERS = remembers(0.1)


class Line(eqx.Module):
    slope: jax.Array
    start: jax.Array
    counts: jax.Array  # no float: not trained
    name: str = eqx.field(static=True, default="line")

    def __init__(self, slope=0.0):
        self.slope, self.start, self.counts = jnp.array([slope]), jnp.array([0.0]), jnp.arange(3)


def squared(model, batch):
    x, y = batch
    return jnp.mean((model.slope * x + model.start - y) ** 2)


def points(step, key=KEY, many=8):
    x = jax.random.normal(jax.random.fold_in(key, step), (many,))
    return x, 3 * x - 1


def train(steps=40, model=None, *, batches=points, optimiser=None, **options):
    return fit(model or Line(), squared, batches, optimiser or adam(0.1), steps, **options)


def stop_at(step, by=None):
    """A watch that is interrupted after a step, as by Ctrl-C."""

    def watch(done, _model):
        if done == step:
            if by is not None:
                signal.raise_signal(by)
            raise KeyboardInterrupt

    return watch


def steps_in(path):
    with path.open("rb") as file:
        return json.loads(file.readline())["steps"]


def same(a: Fit, b: Fit):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


# --- what it does


def test_it_takes_the_steps_of_optax_one_by_one():
    optimiser, model, losses = adam(0.1), Line(), []
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    memory = optimiser.init(params)
    for step in range(7):
        value, slope = jax.value_and_grad(lambda p: squared(eqx.combine(p, rest), points(step)))(params)  # noqa: B023
        change, memory = optimiser.update(slope, memory, params)
        params = optax.apply_updates(params, change)
        losses.append(value)
    mine = train(7, block=3)
    assert mine.losses == pytest.approx(np.array(losses), rel=1e-12)
    assert np.asarray(mine.model.slope) == pytest.approx(np.asarray(params.slope), rel=1e-12)
    assert np.asarray(mine.model.start) == pytest.approx(np.asarray(params.start), rel=1e-12)
    assert (mine.model.counts == jnp.arange(3)).all() and mine.model.name == "line"


def test_it_learns():
    model, losses = train(400, optimiser=adam(0.05))
    assert losses[-1] < 1e-5 and [model.slope[0], model.start[0]] == pytest.approx([3, -1], abs=1e-2)


def test_it_prints_step_and_mean_loss_of_a_block(capsys):
    losses = train(25, block=10).losses
    assert capsys.readouterr().out.splitlines() == [
        f"step 10 of 25  loss {losses[:10].mean():.4f}",
        f"step 20 of 25  loss {losses[10:20].mean():.4f}",
        f"step 25 of 25  loss {losses[20:].mean():.4f}",
    ]


def test_it_shows_the_model_after_every_block():
    seen = {}
    model, _ = train(25, block=10, watch=seen.__setitem__)
    assert list(seen) == [10, 20, 25]
    assert seen[25].slope == model.slope and seen[10].slope == train(10, block=10).model.slope


def test_a_block_that_is_cut_short_compiles_nothing_new():
    traced = []

    def batches(step):
        traced.append(step)
        return points(step)

    train(25, block=10, batches=batches)
    assert len(traced) == 2  # for the kind of the loss, and for the program


# --- stopped and gone on


@pytest.mark.parametrize("stop", [10, 30])
def test_a_run_that_was_stopped_gives_the_same_bits(tmp_path, stop, capsys):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(43, block=10, checkpoint=path, watch=stop_at(stop))
    assert steps_in(path) == stop
    capsys.readouterr()
    resumed = train(43, block=10, checkpoint=path)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"going on after step {stop} of 43" and said[1].startswith(f"step {stop + 10} of 43")
    same(resumed, train(43, block=10))


def test_ctrl_c_leaves_a_file_to_go_on_from(tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            train(30, block=10, checkpoint=tmp_path / "run", watch=stop_at(20, signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    same(train(30, block=10, checkpoint=tmp_path / "run"), train(30, block=10))


def test_going_on_compiles_nothing(tmp_path, monkeypatch):
    train(10, block=10, checkpoint=tmp_path / "run")
    monkeypatch.setattr(jax.stages.Lowered, "compile", None)
    train(20, block=10, checkpoint=tmp_path / "run")


def test_a_finished_run_is_read_and_a_longer_one_goes_on(tmp_path):
    path = tmp_path / "run"
    first = train(20, block=10, checkpoint=path)
    same(train(20, block=10, checkpoint=path), first)
    same(train(35, block=10, checkpoint=path), train(35, block=10))
    with pytest.raises(ValueError, match="steps is 20; expected at least the 35 of the checkpoint"):
        train(20, block=10, checkpoint=path)


def test_a_write_that_is_cut_short_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "run"
    train(10, block=10, checkpoint=path)
    before = path.read_bytes()

    def half(file, tree):
        file.write(b"half a f")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(eqx, "tree_serialise_leaves", half)
        with pytest.raises(KeyboardInterrupt):
            train(20, block=10, checkpoint=path)
    assert path.read_bytes() == before
    same(train(20, block=10, checkpoint=path), train(20, block=10))


# --- a file of another run


@pytest.mark.parametrize(
    "other, differs",
    [
        (
            dict(model=eqx.tree_at(lambda m: m.slope, Line(), jnp.zeros(2)), batches=lambda s: points(s, many=2)),
            "arrays",
        ),
        (dict(optimiser=optax.sgd(0.1)), "arrays"),
        (dict(model=Line(1.0)), "started from other values"),
        (dict(optimiser=REMEMBERS), "started from other values"),
        (dict(block=5), "loss, batches, optimiser or block differ"),
        (dict(optimiser=adam(0.2)), "loss, batches, optimiser or block differ"),
        (dict(batches=lambda s: points(s, jax.random.key(1))), "loss, batches, optimiser or block differ"),
        (dict(batches=lambda s: points(s, many=9)), "loss, batches, optimiser or block differ"),
    ],
)
def test_a_file_of_another_run_is_refused_and_kept(tmp_path, other, differs):
    path = tmp_path / "run"
    train(10, checkpoint=path, optimiser=remembers(0.2) if other.get("optimiser") is REMEMBERS else None)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"checkpoint .*run is of another run: .*{differs}.*; name another file"):
        train(10, checkpoint=path, **other)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n", b"\x93NUMPY", b'{"marks": 3, "steps": 2}\n'])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(ValueError, match="checkpoint is .*run; expected a file written by fit"):
        train(10, checkpoint=tmp_path / "run")


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    path = tmp_path / "run"
    train(10, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match="checkpoint .* is damaged"):
        train(10, checkpoint=path)


# --- bad input


@pytest.mark.parametrize("name, value", [("steps", 0), ("steps", 2.0), ("block", -1), ("block", True)])
def test_steps_and_block_are_whole(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}; expected a whole number >= 1"):
        train(**{"steps": 10, name: value})


def test_a_loss_is_one_real_number():
    with pytest.raises(ValueError, match=r"loss gives float64 of shape \[8\]; expected one real number"):
        fit(Line(), lambda model, batch: batch[0], points, adam(0.1), 10)


def test_there_must_be_something_to_train():
    with pytest.raises(ValueError, match="model holds no float arrays"):
        fit(jnp.arange(3), lambda model, batch: jnp.float32(0), points, adam(0.1), 10)


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_block_before(tmp_path):
    def batches(step):
        x, y = points(step)
        return jnp.where(step == 13, jnp.nan, x), y

    path = tmp_path / "run"
    with pytest.raises(FloatingPointError, match="the loss is nan at step 13"):
        train(20, block=10, batches=batches, checkpoint=path)
    assert steps_in(path) == 10


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    path = tmp_path / "run"
    blowing_up = loose(optax.chain(optax.scale_by_schedule(lambda step: jnp.where(step == 19, jnp.inf, 0.0))))
    with pytest.raises(FloatingPointError, match="a weight is not finite after step 19"):
        train(20, block=10, optimiser=blowing_up, checkpoint=path)
    assert steps_in(path) == 10


def test_a_loss_with_something_beside_it_is_refused():
    with pytest.raises(ValueError, match="loss gives a tuple; expected one real number"):
        fit(Line(), lambda model, batch: (jnp.float32(0), 1), points, adam(0.1), 10)


def test_a_low_precision_run_goes_on(tmp_path):
    def half(model, batch):
        return squared(model, batch).astype(jnp.bfloat16)

    runs = [fit(Line(), half, points, adam(0.1), 20, block=10, checkpoint=tmp_path / "run") for _ in range(2)]
    assert runs[0].losses.dtype == np.float32
    same(*runs)


@pytest.mark.parametrize("place", ["missing/run", "."])
def test_a_place_that_cannot_be_written_is_found_before_the_first_step(tmp_path, place):
    def never(done, model):
        raise AssertionError

    with pytest.raises(ValueError, match="checkpoint is .*; expected"):
        train(10, checkpoint=tmp_path / place, watch=never)


def test_a_program_that_calls_back_calls_its_own_function():
    heard = []

    def told(name):
        def heeded(model, batch):
            jax.debug.callback(lambda: heard.append(name))
            return squared(model, batch)

        fit(Line(), heeded, points, adam(0.1), 1)
        jax.effects_barrier()

    told("first")
    told("second")
    assert heard == ["first", "second"]


def test_a_class_that_is_defined_again_is_trained_again():
    """As in a cell that is run twice: the program is the same, the kind of model is another."""
    for _ in range(2):

        class Again(eqx.Module):
            w: jax.Array

        model, _ = fit(
            Again(jnp.zeros(2)), lambda m, b: jnp.sum((m.w - b) ** 2), lambda n: n.astype(float), optax.sgd(0.1), 2
        )
        assert type(model) is Again


def test_numpy_weights_and_an_optimiser_with_a_key(tmp_path):
    def run(checkpoint=None):
        optimiser = loose(optax.noisy_sgd(0.1, key=jax.random.key(0)))
        return fit(
            {"w": np.zeros(3)},
            lambda m, b: jnp.sum((m["w"] - b) ** 2),
            float_step,
            optimiser,
            4,
            block=2,
            checkpoint=checkpoint,
        )

    def float_step(n):
        return n.astype(float)

    same(run(), run(tmp_path / "run"))
    same(run(), run(tmp_path / "run"))
