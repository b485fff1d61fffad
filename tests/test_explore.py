"""Epsilon is what it says at both ends and between."""

import numpy as np
import pytest

from covey.explore import epsilon_greedy, linear

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
