import numpy as np
import pytest
from badenvs import Coin, Counting

from covey.collect import Collector
from covey.envs import make_env


class Clock:
    """Acts by the env step that it is told and writes it down; keeps what it saw."""

    extra = {"at": np.dtype(np.int64), "half": np.dtype(np.float32)}

    def __init__(self, overlap=0):
        self.overlap, self.told, self.saw = overlap, [], []

    def act(self, obs_B, env_step=0, greedy=False):
        assert not greedy
        self.told.append(env_step)
        self.saw.append(obs_B.copy())
        columns = {"at": np.full(len(obs_B), env_step), "half": obs_B[:, 2] / 2}
        return np.arange(len(obs_B)) % 2, columns


def collector(agent, num_envs=3, num_steps=4, length=5):
    return Collector(make_env(lambda: Counting(length=length), num_envs), agent, num_steps)


def test_act_is_told_the_env_step_of_each_step():
    agent = Clock()
    made = collector(agent)
    made.collect(0)
    made.collect(12)
    assert agent.told == [0, 3, 6, 9, 12, 15, 18, 21]


def test_act_sees_what_the_unroll_says_it_saw():
    agent = Clock()
    unroll = collector(agent).collect(0)
    assert (np.array(agent.saw) == unroll.obs_TB[:-1]).all()


def test_what_act_says_besides_is_recorded_in_its_own_type():
    unroll = collector(Clock()).collect(30)
    assert unroll.extra["at"].tolist() == [[30] * 3, [33] * 3, [36] * 3, [39] * 3]
    assert (unroll.extra["half"] == unroll.obs_TB[:-1, :, 2] / 2).all()
    assert (unroll.extra["at"].dtype, unroll.extra["half"].dtype) == (np.int64, np.float32)
    assert unroll.action_TB.tolist() == [[0, 1, 0]] * 4


def test_columns_have_their_types_and_shapes():
    u = Collector(make_env("Pendulum-v1", 2), Pushes(), 6).collect(0)
    assert (u.obs_TB.shape, u.action_TB.shape, u.reward_TB.shape) == ((7, 2, 3), (6, 2, 1), (6, 2))
    kinds = [x.dtype for x in (u.obs_TB, u.action_TB, u.reward_TB, u.discount_TB)]
    assert kinds == [np.float32] * 4
    assert u.last_TB.dtype == u.valid_TB.dtype == bool


class Pushes:
    overlap, extra = 0, {}

    def act(self, obs_B, env_step=0, greedy=False):
        return np.full((len(obs_B), 1), 0.5, np.float32), {}


def snapshot(unroll):
    columns = [unroll.obs_TB, unroll.action_TB, unroll.reward_TB, unroll.discount_TB,
               unroll.last_TB, unroll.valid_TB, *unroll.extra.values()]  # fmt: skip
    finals = [(f.t, f.b, f.obs.tobytes()) for f in unroll.finals]
    return [c.tobytes() for c in columns], finals


@pytest.mark.parametrize("overlap", [0, 2, 9])  # 9: more than a whole unroll
def test_a_restored_collector_goes_on_bit_for_bit(overlap):
    first = collector(Clock(overlap), num_steps=7)
    for i in range(3):
        first.collect(21 * i)
    state = first.state()
    frozen = snapshot(first.collect(63)), snapshot(first.collect(84))  # does not touch the state
    second = collector(Clock(overlap), num_steps=7)
    assert second.restore(state)
    assert (snapshot(second.collect(63)), snapshot(second.collect(84))) == frozen


def test_a_restored_collector_does_not_reset():
    first = collector(Clock(), length=50)
    first.collect(0)
    second = collector(Clock(), length=50)
    assert second.restore(first.state())
    assert second.collect(12).obs_TB[0, :, 2].tolist() == [4, 4, 4]


def test_where_environments_cannot_come_back_new_episodes_begin():
    first = Collector(make_env(Coin, 2), Clock2(), 5)
    first.collect(0)
    second = Collector(make_env(Coin, 2), Clock2(), 5)
    assert second.restore(first.state()) is False
    unroll = second.collect(10)
    assert unroll.valid_TB.all()
    assert not unroll.finals
    assert not unroll.last_TB.any()  # 20 steps an episode: it began anew


class Clock2:
    overlap, extra = 0, {}

    def act(self, obs_B, env_step=0, greedy=False):
        return np.zeros(len(obs_B), np.int64), {}


def test_an_unroll_uses_the_same_arrays_every_round():
    made = collector(Clock())
    one, two = made.collect(0).obs_TB, made.collect(12).obs_TB
    assert one is two
