"""The pictures of notebook 02 draw what the rules do, and its judges answer with counterexamples."""

import jax
import numpy as np
import pytest

from ttt_teach import CG, delta, linear, mesa
from ttt_teach.explore import correlated_keys as ck
from ttt_teach.tasks import minilm_qkv, two_keys, unit

ANGLES = [0, 10, 45, 90, 135, 180]


def pairs(sets=1, T=9, H=3, K=5, V=4):
    keys = jax.random.split(jax.random.key(0), 2)
    k = unit(np.asarray(jax.random.normal(keys[0], (sets, T, H, K))))
    return k, np.asarray(jax.random.normal(keys[1], (sets, T, H, V)))


# --- memories


def test_stored_holds_what_the_rules_hold():
    """The rules token by token: what is stored comes from their chunks."""
    k, v = pairs()
    beta = np.full(k.shape[:3], 0.7)
    stored = ck.store(k, v, 0.7)
    q, lam = np.broadcast_to(k[:, :1], k.shape), np.full(k.shape[2:], 0.3)
    o, state = mesa(q, k, v, beta, lam, solver=CG(max_steps=30), form="recurrent")
    np.testing.assert_allclose(stored.G, state.G, atol=1e-14)
    np.testing.assert_allclose(stored.H, state.H, atol=1e-14)
    np.testing.assert_allclose(stored.G, linear(k, k, 0.7 * v, form="recurrent")[1], atol=1e-14)
    np.testing.assert_allclose(stored.delta, delta(k, k, v, beta, form="recurrent")[1], atol=1e-14)
    np.testing.assert_allclose(ck.read(stored.maps(0.3)[ck.MESA], q)[:, -1], o[:, -1], atol=1e-12)


def test_a_batch_axis_may_be_left_out_and_a_head_picked():
    k, v = pairs()
    whole, one = ck.store(k[0], v[0]), ck.store(k[:, :, 1:2], v[:, :, 1:2])
    for mine, theirs in zip(whole.head(1), one, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-14)


def test_no_other_scale_is_better():
    got, wanted = pairs(V=5)
    best = ck.error(ck.best_scaled(got, wanted), wanted)
    scale = (ck.best_scaled(got, wanted) / got).ravel()[0]
    assert all(best < ck.error(a * scale * got, wanted) for a in (0, 0.99, 1.01, -1))


# --- what is drawn


@pytest.mark.parametrize("lam", [0.01, 0.25, 50])
def test_the_maps_of_two_keys_are_those_of_the_rules(lam):
    for angle in ANGLES:
        pair = two_keys(angle)
        stored = ck.store(pair.k, pair.v)
        reads = ck.two_key_reads(angle, lam)
        for rule, S in stored.maps(lam).items():
            np.testing.assert_allclose(ck.two_key_maps(angle, lam)[rule], S[0, 0, :, 0], atol=1e-12)
            np.testing.assert_allclose(reads[rule], ck.read(S, pair.k)[0, :, 0, 0], atol=1e-12)


def test_the_words_of_the_start_picture_answer_the_question():
    words = ck.two_keys_picture(45, 1e-9).words
    assert "linear attention reads 1 and 0.707, the delta rule reads 0.5 and 0, Mesa reads 1 and 0." in words
    assert "cross at (1, -1)" in words
    assert "parallel" in ck.two_keys_picture(180, 1).words


def test_read_matrices_are_those_of_shorter_memories():
    """A key of zero writes nothing, so a memory without the last keys is a shorter one."""
    k, _ = pairs(sets=2, T=6, H=1)
    R = ck._read_matrices(k)
    v = np.broadcast_to(np.eye(6)[None, :, None], (2, 6, 1, 6))
    for T in (1, 4, 6):
        stored = ck.store(np.where(np.arange(6)[:, None, None] < T, k, 0), v)
        np.testing.assert_allclose(R[:, T - 1, :T], ck.read(stored.delta, k[:, :T])[:, :, 0], atol=1e-14)


def test_the_capacity_picture_shows_mesa_on_the_floor_and_the_others_above():
    words = ck.capacity_picture(0.5, 1e-6).words
    assert "Mesa by 0.707; no linear memory can miss by less than 0.707." in words
    known, floor = ck._capacity(0.5), 1 - ck.WIDTH / np.arange(1, ck.MOST + 1)
    assert all((squares >= floor - 1e-12).all() for squares in (known.additive, known.scaled, known.corrected))


@pytest.mark.parametrize("step", [0.5, 1.0])
def test_ages_follow_the_law(step):
    measured, law = ck.ages(step)[:32], ck.age_law(step, np.arange(32))
    old_read = step / (2 - step)  # mean square of what stands there before the last write, which leaves (1 - step)
    assert abs(measured[0] - (1 - step) ** 2 * (1 + old_read)) < 0.01
    assert abs((measured - law).mean()) < 0.01


@pytest.mark.parametrize(
    ("T", "firsts"), [(1, [0]), (2, [0]), (3, [0, 1]), (7, [0, 1, 3]), (512, [2**n - 1 for n in range(9)])]
)
def test_bins_of_age_double_and_none_is_part_full(T, firsts):
    found, bins = ck._age_bins(T)
    assert found.tolist() == firsts
    sizes = np.bincount(bins)
    assert sizes.sum() == T and (sizes >= 2 ** np.arange(len(sizes))).all()
    assert (np.diff(bins) <= 0).all() and bins[-1] == 0


@pytest.mark.parametrize("T", [1, 9])
def test_the_picture_of_real_keys_takes_any_file(T):
    k, v = pairs(T=T)
    words = ck.real_keys_picture(ck.store(k, v), 2, 0.25).words
    assert words.startswith(f"Head 2, lambda 0.25: the reads of {T} stored pairs miss")


def test_the_copies_of_the_text_are_aligned():
    stored, moved = ck.first_copy(1)
    keys = unit(minilm_qkv("twice", 1).k.astype(float))
    late = keys[257:512, 1]  # one token off
    cosine = (stored.k[0, :, 1] * moved[0, :, 1]).sum(-1)
    assert np.median(cosine) > 0.8 > 0.3 > np.median((stored.k[0, :, 1] * late).sum(-1))


@pytest.mark.parametrize(
    ("draw", "figure"),
    [
        (lambda: ck.two_keys_picture(160, 0.001), "F02a"),
        (lambda: ck.passes_picture(45), "F02b"),
        (lambda: ck.capacity_picture(0.3, 0.25), "F02c"),
        (lambda: ck.age_picture(0.2), "F02d"),
        (lambda: ck.second_copy_picture(4, 2), "F02f"),
    ],
)
def test_pictures_know_their_id_and_are_the_same_twice(draw, figure):
    picture = draw()
    assert picture.figure == figure
    assert (picture.svg, picture.words, picture.csv) == (draw().svg, draw().words, draw().csv)


# --- judges


def test_right_answers_pass():
    assert ck.judge_swapped(lambda angle: (1, np.cos(np.deg2rad(angle)))) is None
    assert ck.judge_step(lambda angle, most: max(0, 1 - most / np.cos(np.deg2rad(angle)))) is None
    assert ck.judge_mesa(lambda k, v, lam: np.linalg.solve(k.T @ k + lam * np.eye(k.shape[1]), v @ k)) is None


@pytest.mark.parametrize(
    ("judge", "attempt", "answer"),
    [
        (ck.judge_swapped, lambda angle: (0.75, 0), "at 60 degrees you read (0.75, 0); the rule, run, reads (1, 0.5)"),
        (ck.judge_swapped, lambda angle: 1, "has shape []; expected two numbers"),
        (ck.judge_step, lambda angle, most: 2, "your step 2 is not between 0 and 1"),
        (ck.judge_step, lambda angle, most: 0.5, "your step 0.5 leaves the new pair wrong by 0.354"),
        (
            ck.judge_step,
            lambda angle, most: 1,
            "your step 1 damages the old pair by 0.5, though a smaller one would do",
        ),
        (ck.judge_step, lambda angle, most: np.nan, "your step nan is not between 0 and 1"),
        (
            ck.judge_mesa,
            lambda k, v, lam: v @ k,
            "your map (1, 0) is no minimum: the slope of the loss there is (0.75, 0.5)",
        ),
        (ck.judge_mesa, lambda k, v, lam: k.T @ k, "your map has shape [2, 2]; expected [2]"),
        (ck.judge_mesa, lambda k, v, lam: np.full(k.shape[1], np.nan), "is no minimum"),
    ],
)
def test_wrong_answers_get_a_counterexample(judge, attempt, answer):
    assert answer in judge(attempt)
