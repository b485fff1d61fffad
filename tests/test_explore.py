"""Epsilon is what it says at both ends and between."""

import numpy as np
import pytest

from covey.explore import epsilon_greedy, ladder, linear, noisy, spread

NUM = 60_000


@pytest.mark.parametrize(
    ("step", "wanted"), [(0, 1.0), (1, 0.991), (50, 0.55), (100, 0.1), (10**9, 0.1)]
)
def test_linear(step, wanted):
    assert linear(step, 1.0, 0.1, 100) == pytest.approx(wanted)


def test_linear_over_no_steps_is_the_end():
    assert linear(0, 1.0, 0.1, 0) == pytest.approx(0.1)


def test_greedy_at_zero_and_draws_nothing():
    q = np.random.default_rng(0).normal(size=(1000, 5))
    rng = np.random.default_rng(1)
    assert (epsilon_greedy(q, 0.0, rng) == q.argmax(axis=1)).all()
    assert rng.random() == np.random.default_rng(1).random()


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_shares_of_actions(epsilon, seed):
    q = np.tile([0.0, 2.0, 1.0, -1.0], (NUM, 1))
    action = epsilon_greedy(q, epsilon, np.random.default_rng(seed))
    share = np.full(4, epsilon / 4)
    share[1] += 1 - epsilon
    seen = np.bincount(action, minlength=4)
    assert ((seen - NUM * share) ** 2 / (NUM * share)).sum() < 16.3  # chi-square of 3


def test_rows_explore_apart():
    q = np.tile([1.0, 0.0], (NUM, 1))
    action = epsilon_greedy(q, 0.5, np.random.default_rng(2))
    together = (action[::2] & action[1::2]).mean()
    assert together == pytest.approx(1 / 16, abs=0.006)


def test_a_ladder_spans_all_actors_and_their_environments():
    rungs = np.concatenate([ladder(0.4, 7, (i, 3), 2) for i in range(3)])
    assert rungs == pytest.approx([0.4 ** (1 + 7 * i / 5) for i in range(6)])
    assert ladder(0.4, 7, (0, 1), 1) == pytest.approx([0.4])


def test_a_spread_is_even():
    found = np.concatenate([spread(0.1, 0.7, (i, 2), 2) for i in range(2)])
    assert found == pytest.approx([0.1, 0.3, 0.5, 0.7])


def test_each_row_has_an_epsilon_of_its_own():
    rng, q_BA = np.random.default_rng(0), np.tile([1.0, 0.0, 0.0], (3, 1))
    wanted = np.array([0.0, 0.3, 1.0])
    taken = np.mean([epsilon_greedy(q_BA, wanted, rng) != 0 for _ in range(20_000)], axis=0)
    assert taken == pytest.approx(wanted * 2 / 3, abs=0.01)  # a random action may be the best


def test_noise_has_the_deviation_of_its_row_and_stays_inside():
    rng, action = np.random.default_rng(0), np.tile(np.float32([0.1, -0.2]), (3, 1))
    wanted = np.array([0.0, 0.05, 0.2])
    found = np.array([noisy(action, wanted, rng) for _ in range(20_000)])
    assert found.dtype == np.float32
    assert found.std(axis=0).mean(axis=1) == pytest.approx(wanted, abs=2e-3)
    np.testing.assert_allclose(found.mean(axis=0), action, atol=5e-3)
    assert (found[:, 0] == action[0]).all()
    one, two = (found[:, 2] - action[2]).T
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03  # each entry has its own
    wild = noisy(action, np.full(3, 50.0), rng)
    assert np.abs(wild).max() == 1.0
    assert action.tolist() == np.tile(np.float32([0.1, -0.2]), (3, 1)).tolist()  # not in place
