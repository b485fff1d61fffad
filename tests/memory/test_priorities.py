"""Schaul et al. 2016 by hand: chances and weights, and rows of several shards that come and go."""

import numpy as np
import pytest

from covey.memory.priorities import LEAST, Draw, Priorities


def taken_up(errors_by_shard, size=4, draw=None):
    """Priorities of shards that hold these first errors, from row 0 on."""
    draw = draw or Draw(alpha=0.6)
    p = Priorities(draw, len(errors_by_shard), size)
    first_M = np.full(len(errors_by_shard) * size, np.nan, np.float32)
    for shard, errors in enumerate(errors_by_shard):
        for number, error in enumerate(errors):
            first_M[shard * size + number % size] = error
    heads = np.array([len(errors) for errors in errors_by_shard])
    p.take_up(heads, np.zeros_like(heads), first_M)
    return p, first_M


def test_leaves_are_powers_of_errors():
    p, _ = taken_up([[1.0, -2.0], [0.0]])
    wanted = (np.array([1.0, 2.0, 0, 0, 0.0, 0, 0, 0]) + LEAST) ** 0.6
    wanted[[2, 3, 5, 6, 7]] = 0  # there are no rows
    np.testing.assert_allclose(p.tree.leaf_N, wanted, rtol=1e-12)


def test_chances_are_the_leaves_share_of_all_shards_and_drawing_is_as_they_say():
    p, _ = taken_up([[0.1, 4.0, 1.0], [2.0], [0.0, 0.0, 3.0, 0.5]], draw=Draw(alpha=1.0))
    rng, num, batch = np.random.default_rng(0), 2000, 37
    seen = np.zeros(12)
    for _ in range(num):
        slot_N, _, _, chance_N = p.choose(batch, rng)
        np.testing.assert_array_equal(chance_N, p.tree.leaf_N[slot_N] / p.tree.total)
        seen += np.bincount(slot_N, minlength=12)
    wanted = num * batch * p.tree.leaf_N / p.tree.total
    there = wanted > 1
    # strata make it more even than drawing one by one would, so this bound is generous
    assert ((seen - wanted)[there] ** 2 / wanted[there]).sum() < 20
    assert seen[~there].sum() < 3


def test_each_stratum_is_drawn_from_once():
    p, _ = taken_up([[1.0, 1.0, 1.0, 1.0]], draw=Draw(alpha=1.0))
    for seed in range(50):
        assert p.choose(4, np.random.default_rng(seed))[0].tolist() == [0, 1, 2, 3]


def test_weights_are_those_of_one_buffer_whatever_the_shards():
    errors = np.array([0.3, 2.0, 1.0, 5.0, 0.1, 0.7])
    one, _ = taken_up([errors], size=6)
    three, _ = taken_up([errors[:1], errors[1:4], errors[4:]], size=4)
    at = np.array([0, 4, 5, 6, 8, 9])  # the same rows there
    chance_N = (errors + LEAST) ** 0.6 / ((errors + LEAST) ** 0.6).sum()
    wanted = (6 * chance_N) ** -0.4
    wanted /= wanted.max()
    for p, slot_N in ((one, np.arange(6)), (three, at)):
        found = p.importance(p.tree.leaf_N[slot_N] / p.tree.total, 6)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert found.dtype == np.float32


def test_shards_of_unlike_weight_are_corrected_between_them():
    p, _ = taken_up([[1.0], [10.0]], draw=Draw(alpha=1.0, beta=1.0))
    found = p.importance(p.tree.leaf_N[[0, 4]] / p.tree.total, 2)
    assert found == pytest.approx([1.0, 0.1], rel=1e-5)


def test_beta_rises_to_one_batch_by_batch():
    p, _ = taken_up([[1.0]], draw=Draw(alpha=1.0, beta=0.4, anneal=3))
    betas = []
    for _ in range(5):
        betas.append(p.beta)
        p.importance(np.ones(1), 1)
    assert betas == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])
    assert taken_up([[1.0]], draw=Draw(1.0, 0.4, 0))[0].beta == 0.4


def test_rows_without_an_error_are_as_likely_as_the_likeliest():
    p, first_M = taken_up([[0.5, 3.0], [np.nan]])
    assert p.tree.leaf_N[4] == p.tree.leaf_N[:4].max()
    first_M[5] = np.inf  # nobody knows
    p.take_up(np.array([2, 2]), np.zeros(2, np.int64), first_M)
    assert p.tree.leaf_N[5] == p.tree.leaf_N[1]
    p.revise(np.array([1, 4, 5]), np.array([0.1, 0.1, 0.1]))
    first_M[2] = np.nan
    p.take_up(np.array([3, 2]), np.zeros(2, np.int64), first_M)
    assert p.tree.leaf_N[2] == pytest.approx((0.5 + LEAST) ** 0.6)  # the highest falls too


def test_the_first_of_all_without_an_error_weighs_one():
    p, _ = taken_up([[np.nan, np.nan]])
    assert p.tree.leaf_N.tolist() == [1, 1, 0, 0]


def numbers(p):
    """By slot, the number that its row is drawn with."""
    drawn = p.choose(400, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn.shard_N, drawn.slot_N // p.size)
    return dict(sorted(set(zip(drawn.slot_N.tolist(), drawn.number_N.tolist(), strict=True))))


def test_a_number_is_that_of_the_newest_row_in_the_slot():
    p, first_M = taken_up([range(1, 7), [1.0]])  # 6 rows in 4 slots: 4, 5, 2, 3
    assert numbers(p) == {0: 4, 1: 5, 2: 2, 3: 3, 4: 0}
    found = p.has(np.array([0, 0, 0, 0, 1, 1]), np.array([1, 2, 5, 6, 0, 1]))
    assert found.tolist() == [False, True, True, False, True, False]
    first_M[2] = 9.0
    p.take_up(np.array([7, 1]), np.zeros(2, np.int64), first_M)
    assert numbers(p) == {0: 4, 1: 5, 2: 6, 3: 3, 4: 0}
    assert p.tree.leaf_N[2] == pytest.approx(9.0**0.6, rel=1e-5)


def test_more_new_rows_than_slots_leave_the_newest():
    p, _ = taken_up([np.arange(1.0, 12.0)])
    np.testing.assert_allclose(p.tree.leaf_N, np.array([9, 10, 11, 8.0]) ** 0.6, rtol=1e-5)


def test_what_is_below_the_floor_is_never_drawn_and_what_comes_after_is():
    p, first_M = taken_up([np.ones(6), np.ones(2)])
    p.take_up(np.array([6, 2]), np.array([6, 0]), first_M)
    assert p.tree.leaf_N[:4].tolist() == [0, 0, 0, 0]
    assert p.tree.total == pytest.approx(2, rel=1e-5)
    p.take_up(np.array([7, 2]), np.array([6, 0]), first_M)
    assert (p.tree.leaf_N > 0).nonzero()[0].tolist() == [2, 4, 5]
    p.take_up(np.array([9, 2]), np.array([8, 0]), first_M)  # written and forgotten in between
    assert (p.tree.leaf_N > 0).nonzero()[0].tolist() == [0, 4, 5]


def test_forgotten_and_revised_leaves():
    p, _ = taken_up([[1.0, 2.0, 3.0]])
    p.forget(np.array([1]))
    p.revise(np.array([2]), np.array([-7.0], np.float32))
    np.testing.assert_allclose(p.tree.leaf_N, [1, 0, 7**0.6, 0], rtol=1e-5)


def test_what_was_saved_goes_on():
    p, first_M = taken_up([[1.0, 2.0, 3.0], [4.0]])
    p.importance(np.ones(1), 1)
    slot_N = np.array([0, 1, 2, 4])
    again = Priorities(p.draw, 2, 4)
    again.restore(slot_N, p.tree.leaf_N[slot_N].copy(), p.seen_S, p.draws)
    np.testing.assert_array_equal(again.tree.leaf_N, p.tree.leaf_N)
    assert (again.draws, again.tree.total) == (1, p.tree.total)
    again.take_up(np.array([3, 1]), np.zeros(2, np.int64), first_M)  # nothing is new
    np.testing.assert_array_equal(again.tree.leaf_N, p.tree.leaf_N)


def test_nothing_can_be_drawn_from_nothing():
    with pytest.raises(AssertionError, match="empty"):
        Priorities(Draw(0.6), 1, 4).choose(1, np.random.default_rng(0))
