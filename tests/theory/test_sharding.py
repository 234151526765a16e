"""The formulas against devices that really send: a ring that adds up, and a split that is turned."""

import numpy as np
import pytest

from ttt_teach.theory import sharding


def ring(arrays):
    """Sum arrays [P, P, n] over the devices, share by share; what each has then, and the numbers that it sent."""
    P, sent = len(arrays), np.zeros(len(arrays))
    held = arrays.copy()
    for add in (True, False):  # reduce-scatter, then all-gather
        for step in range(P - 1):
            moving = [(d, (d - step + (not add)) % P) for d in range(P)]
            packets = [held[d, share].copy() for d, share in moving]
            for (d, share), packet in zip(moving, packets, strict=True):
                to = (d + 1) % P
                held[to, share] = held[to, share] + packet if add else packet
                sent[d] += packet.size
    return held, sent


@pytest.mark.parametrize("P", [1, 2, 3, 8])
def test_a_ring_sends_what_is_said(P):
    arrays = np.random.default_rng(P).normal(size=(P, P, 5))
    held, sent = ring(arrays)
    np.testing.assert_allclose(held, np.broadcast_to(arrays.sum(0), held.shape), rtol=1e-12)
    assert (4 * sent == sharding.all_reduce(P * 5, P)).all()


@pytest.mark.parametrize("P", [1, 2, 4])
def test_turning_a_split_sends_what_is_said(P):
    T = H = 2 * P
    token, head = np.indices((T, H))
    moves = (token * P // T == 0) & (head * P // H != 0)  # what device 0 has and shall not have
    assert 2 * moves.sum() == sharding.all_to_all(T * H, P)


def test_from_here_on_the_read_hides_the_sum():
    S, P, flops, bandwidth = 7e6, 8, 8e14, 4.5e11
    C = sharding.hidden_from(P, flops / bandwidth)
    assert 2 * C / P * S / flops == pytest.approx(sharding.all_reduce(S, P) / bandwidth, rel=1e-12)


def test_at_the_crossover_both_splits_send_the_same():
    S, d, P = 2304 * 3072, 3072, 8
    C = sharding.crossover(S, d, P)
    assert C == 8 * 2304
    assert sharding.all_to_all(4 * C * d, P) == pytest.approx(sharding.all_reduce(S, P), rel=1e-12)


FORMULAS = {
    sharding.all_reduce: {"numbers": 3_000_000, "devices": 4, "bytes_per_number": 4},
    sharding.all_to_all: {"numbers": 3_000_000, "devices": 65536, "bytes_per_number": 2},
    sharding.hidden_from: {"devices": 513, "flops_per_byte": 2_000_000, "bytes_per_number": 4},
    sharding.crossover: {"state": 3 * 2304 * 3072, "dim": 4, "devices": 512},
}


@pytest.mark.parametrize(("formula", "given"), FORMULAS.items())
def test_lists_and_short_integers_give_what_single_numbers_give(formula, given):
    one = formula(**given)
    for many in (lambda x: [x, x], lambda x: np.array([x, x], np.int32)):
        assert formula(**{name: many(x) for name, x in given.items()}).tolist() == [one, one]
    assert formula(**{name: np.int32(x) for name, x in given.items()}) == one


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("wrong", [0, -2, [1, 0], np.nan, None, "2", [[1], [1, 2]]])
def test_what_is_not_positive_is_named(formula, wrong):
    for name in FORMULAS[formula]:
        with pytest.raises(ValueError, match=f"^{name} is .*; expected (a positive number|at least 1)"):
            formula(**FORMULAS[formula] | {name: wrong})
