import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from covey import evaluation
from covey.errors import UserError
from covey.evaluation import MOST_AT_ONCE, Evaluation, Evaluator


class Agent:
    """Says the same action to all and is asked to be greedy."""

    def __init__(self, action=0):
        self.action, self.asked = action, 0

    def act(self, obs_B, env_step=0, greedy=False):
        assert greedy
        self.asked += 1
        return np.full(len(obs_B), self.action), {}


class Uneven(gym.Env):
    """The seed chooses how long the first episode is, 2 or 40 steps; all later ones are short."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, 2
        if seed is not None:
            self.length = 40 if self.np_random.random() < 0.5 else 2
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t >= self.length, False, {}


class Lengths(gym.Env):
    """The first made has episodes of the first length, the second of the second, and so on."""

    observation_space, action_space = Uneven.observation_space, Uneven.action_space

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 1.0, False, self.t >= self.length, {}


def made(*lengths):
    rest = iter(lengths)
    return lambda: Lengths(next(rest))


def played(evaluator, number=0):
    found = evaluator.evaluate(number)
    evaluator.close()
    return found


def test_only_first_episodes_count_so_short_ones_are_not_preferred():
    found = played(Evaluator(Agent(), Uneven, 200, seed=1))
    assert found.lengths == found.returns
    assert set(found.lengths) == {2, 40}
    assert abs(found.lengths.count(40) - 100) < 5 * np.sqrt(50)
    # counting whatever ends first would have found mostly 2


def test_every_episode_is_played_once_from_its_environment():
    found = played(Evaluator(Agent(), made(3, 9, 5), 3, seed=1))
    assert sorted(found.lengths) == [3, 5, 9]
    assert found.return_mean == 17 / 3
    assert found.return_std == pytest.approx(np.std([3, 9, 5]))


@pytest.mark.parametrize("episodes", [1, MOST_AT_ONCE, MOST_AT_ONCE + 1, 2 * MOST_AT_ONCE + 3])
def test_as_many_episodes_as_wanted(episodes):
    count = []

    def make():
        count.append(1)
        return Uneven()

    found = played(Evaluator(Agent(), make, episodes, seed=1))
    assert len(found.returns) == len(found.lengths) == episodes
    assert len(count) == min(episodes, MOST_AT_ONCE)


def test_the_same_number_plays_the_same_and_another_another():
    def returns(seed, number):
        return played(Evaluator(Agent(), "CartPole-v1", 10, seed), number).returns

    assert returns(1, 5) == returns(1, 5)
    assert returns(1, 5) != returns(1, 6)
    assert returns(1, 5) != returns(2, 5)


def test_an_evaluation_does_not_depend_on_those_before():
    evaluator = Evaluator(Agent(), "CartPole-v1", 40, 1)
    first = evaluator.evaluate(3)
    evaluator.evaluate(4)
    assert evaluator.evaluate(3) == first
    assert len(set(first.returns[:8])) + len(set(first.returns[32:])) > 4  # not the same again
    assert first.returns[:8] != first.returns[32:]
    evaluator.close()


def test_told_to_stop_before_it_plays_nothing():
    agent = Agent()
    found = played(Evaluator(agent, Uneven, 5, 1, stopping=lambda: True))
    assert (found, agent.asked) == (Evaluation([], []), 0)


def test_told_to_stop_in_the_middle_it_says_nothing():
    """The episodes that are over by then are the short ones: their mean would be wrong."""
    agent = Agent()
    found = played(Evaluator(agent, made(2, 50, 50), 3, 1, stopping=lambda: agent.asked >= 10))
    assert agent.asked == 10
    assert found == Evaluation([], [])


@pytest.mark.parametrize("lengths", [(10**9, 10**9), (10**9, 3), (3, 10**9)])
def test_an_episode_without_an_end_is_refused(lengths, monkeypatch):
    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 50)
    agent = Agent()
    evaluator = Evaluator(agent, made(*lengths), 2, 1, stopping=lambda: agent.asked > 500)
    with pytest.raises(UserError, match=r"did not end in 50 steps. Give the environment a time"):
        evaluator.evaluate(0)
    assert agent.asked <= 52
    evaluator.close()


def test_an_episode_of_the_longest_length_is_not_refused(monkeypatch):
    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 50)
    assert played(Evaluator(Agent(), made(50), 1, 1)).lengths == [50]


def test_arguments_reach_the_environment():
    found = played(Evaluator(Agent(), Lengths, 2, 1, {"length": 4}))
    assert found.lengths == [4, 4]


def test_closing_before_anything_was_played():
    Evaluator(Agent(), Uneven, 1, 1).close()
