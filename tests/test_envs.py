import gymnasium as gym
import numpy as np
import pytest
from badenvs import Broken, Coin, Counting, Sight
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from covey.envs import EXTRAS, RewardScale, make_env, registered
from covey.errors import UserError
from covey.steps import Collector
from covey.vector import EnvError, random_actions


class Still:
    """An agent that always does the same."""

    overlap, extra = 0, {}

    def act(self, obs_B, env_step=0, greedy=False):
        return np.zeros(len(obs_B), np.int64), {}


def counting(kind, ends, num_envs=2, length=5):
    """The counting environment, stepped by covey or by gymnasium in either autoreset mode."""
    makers = [lambda i=i: Counting(ends, length, number=i) for i in range(num_envs)]
    if kind == "sync":
        rest = iter(makers)
        return make_env(lambda: next(rest)(), num_envs)
    return make_env(lambda: SyncVectorEnv(makers, autoreset_mode=kind), num_envs)


KINDS = ["sync", AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
def test_no_transition_crosses_a_reset(kind, ends):
    """Every valid transition is (episode, t) -> (episode, t + 1), with its own reward."""
    envs = counting(kind, ends)
    unroll = Collector(envs, Still(), 23).collect(0)
    next_obs_TB = unroll.obs_TB[1:].copy()
    for final in unroll.finals:
        next_obs_TB[final.t, final.b] = final.obs
    count = 0
    for t, b in np.argwhere(unroll.valid_TB):
        number, episode, step = unroll.obs_TB[t, b]
        over = step + 1 == 5
        assert number == b
        assert unroll.reward_TB[t, b] == 10 * episode + step + 1
        assert unroll.last_TB[t, b] == over
        assert unroll.discount_TB[t, b] == (0 if over and ends != "truncated" else 1)
        if not over or ends == "truncated":  # after a termination nothing is bootstrapped
            assert next_obs_TB[t, b].tolist() == [number, episode, step + 1]
        count += 1
    lost = 0 if kind != AutoresetMode.NEXT_STEP else 2 * 3
    assert count == 23 * 2 - lost
    assert not unroll.last_TB[~unroll.valid_TB].any()
    assert not unroll.reward_TB[~unroll.valid_TB].any()


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_are_counted_whole(kind):
    envs = counting(kind, "truncated")
    Collector(envs, Still(), 23).collect(0)
    episodes = envs.finished()
    assert {e.length for e in episodes} == {5}
    assert [e.undiscounted_return for e in episodes[:4]] == [15, 15, 65, 65]
    assert envs.finished() == []


@pytest.mark.parametrize("kind", KINDS)
def test_unrolls_with_an_overlap_join_without_a_gap(kind):
    class Looking(Still):
        overlap = 3

    collector = Collector(counting(kind, "truncated"), Looking(), 4)
    whole = Collector(counting(kind, "truncated"), Still(), 16).collect(0)
    seen, finals, previous = [], set(), None
    for i in range(4):
        u = collector.collect(0)
        assert u.obs_TB.shape == (8, 2, 3)
        assert u.valid_TB[:3].any() == (i > 0)
        seen.append(u.obs_TB[3:7].copy())
        finals |= {(i * 4 + f.t - 3, f.b, f.obs.tobytes()) for f in u.finals}
        if i:
            assert (u.obs_TB[:4] == previous).all()
        previous = u.obs_TB[4:].copy()
    assert (np.concatenate(seen) == whole.obs_TB[:16]).all()
    assert finals == {(f.t, f.b, f.obs.tobytes()) for f in whole.finals}


def test_the_fastest_way_is_chosen():
    assert make_env("CartPole-v1", 4).how == "as one vector environment"
    assert make_env("Pendulum-v1", 4).how == "one after the other"


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Acrobot-v1"])
def test_the_same_seed_gives_the_same_and_another_does_not(env):
    def play(seed):
        envs, rng = make_env(env, 3, seed), np.random.default_rng(0)
        obs_B = envs.empty(3)
        envs.reset(obs_B)
        seen = [obs_B.tobytes()]
        for _ in range(60):
            envs.step(random_actions(envs.spec, 3, rng), obs_B)
            seen.append(obs_B.tobytes())
        return seen

    assert play(1) == play(1)
    assert play(1) != play(2)


def test_environments_side_by_side_differ():
    envs = make_env("CartPole-v1", 4, 0)
    obs_B = envs.empty(4)
    envs.reset(obs_B)
    assert len({row.tobytes() for row in obs_B}) == 4


@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1", "MountainCarContinuous-v0"],
)
def test_environments_come_back_exactly(env):
    def play(envs, obs_B, rng, steps=50):
        seen = []
        for _ in range(steps):
            step = envs.step(random_actions(envs.spec, 3, rng), obs_B)
            seen.append((obs_B.tobytes(), step.reward_B.tobytes(), step.last_B.tobytes()))
        return seen, envs.finished()

    envs = make_env(env, 3, 7)
    obs_B = envs.empty(3)
    envs.reset(obs_B)
    play(envs, obs_B, np.random.default_rng(1), 77)
    state, middle_B = envs.state(), obs_B.copy()
    wanted = play(envs, obs_B, np.random.default_rng(2))
    again = make_env(env, 3, 99)
    assert again.restore(state, middle_B)
    assert play(again, middle_B, np.random.default_rng(2)) == wanted


def test_what_cannot_be_brought_back_says_so():
    envs = make_env(Coin, 2, 0)
    obs_B = envs.empty(2)
    envs.reset(obs_B)
    envs.step(np.zeros(2, int), obs_B)
    assert not make_env(Coin, 2, 0).restore(envs.state(), obs_B)


def test_a_foreign_vector_environment_is_not_claimed_to_come_back():
    def make():
        return SyncVectorEnv([Counting, Counting])

    envs = make_env(make, 2)
    obs_B = envs.empty(2)
    envs.reset(obs_B)
    envs.step(np.zeros(2, int), obs_B)
    assert not make_env(make, 2).restore(envs.state(), obs_B)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("four", r"environment 1, step 3: step returned 4 values; gymnasium wants 5"),
        ("reset", r"environment 1, step 0: reset must return \(obs, info\)"),
        ("shape", r"environment 1, step 3: field obs has shape \(1,\), its space says \(3,\)"),
        ("dtype", r"environment 1, step 3: field obs is float64, its space says float32"),
        ("nan-obs", r"environment 1, step 3: field obs holds NaN"),
        ("nan-reward", r"environment 1, step 3: field reward holds NaN"),
        ("text-reward", r"environment 1, step 3: field reward is 'much', not a number"),
    ],
)
def test_a_broken_environment_is_named_with_index_step_and_field(how, sentence):
    rest = iter([Counting(), Broken(how)])
    envs = make_env(lambda: next(rest), 2)
    obs_B = envs.empty(2)

    def play():
        envs.reset(obs_B)
        for _ in range(5):
            envs.step(np.zeros(2, int), obs_B)

    with pytest.raises(EnvError, match=sentence):
        play()


def test_records_hold_dict_observations_and_actions_fit_the_space():
    envs = make_env(Sight, 2)
    obs_B = envs.empty(2)
    envs.reset(obs_B)
    assert obs_B.dtype.names == ("camera", "gear", "hands", "speed")
    for t in range(1, 7):
        envs.step(np.array([0, 2]), obs_B)
        assert (obs_B["camera"] == t).all()
        assert (obs_B["gear"] == t % 4).all()  # counted from 0 whatever the space's start
        assert obs_B["hands"].tolist() == [[t % 2, t % 3]] * 2
    step = envs.step(np.array([1, 1]), obs_B)
    assert step.last_B.all()
    assert not step.discount_B.any()
    assert (obs_B["camera"] == 0).all()


def test_continuous_actions_are_mapped_and_clipped():
    sent = []

    class Spy(Sight):
        def step(self, action):
            sent.append(action)
            return super().step(action)

    envs = make_env(lambda: Spy(continuous=True), 1)
    obs_B = envs.empty(1)
    envs.reset(obs_B)
    for action in ([0, 0], [1, -1], [7, -7]):
        envs.step(np.array([action], np.float32), obs_B)
    assert [a.tolist() for a in sent] == [[0.5, 0], [1, -5], [1, -5]]


def test_reward_scale_divides_by_the_deviation_of_the_return():
    scale, rng = RewardScale(4, gamma=0.9), np.random.default_rng(0)
    seen, running = [], np.zeros(4)
    for t in range(200):
        reward_B, last_B = rng.normal(3, 5, 4), rng.random(4) < 0.1
        running = 0.9 * running + reward_B
        seen.append(running.copy())
        scaled = scale(reward_B, last_B)
        if t > 50:
            wanted = np.clip(reward_B / np.std(seen), -10, 10)
            np.testing.assert_allclose(scaled, wanted, rtol=1e-3)
        running[last_B] = 0
    again = RewardScale(4, gamma=0.9)
    again.restore(scale.state())
    assert (again(reward_B, last_B) == scale(reward_B, last_B)).all()


def test_an_unknown_environment_names_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'CartPole-v1'"):
        registered("CartPoel-v1")
    with pytest.raises(UserError, match="No module named 'nowhere'"):
        registered("nowhere:Foo-v0")


def test_a_missing_extra_is_named_with_its_command(monkeypatch):
    for prefix in list(EXTRAS):
        monkeypatch.setitem(EXTRAS, prefix, ("not_installed_anywhere", EXTRAS[prefix][1]))
    with pytest.raises(UserError, match=r"pip install 'covey\[atari\]'"):
        registered("ALE/Pong-v5")
    with pytest.raises(UserError, match=r"pip install 'covey\[mujoco\]'"):
        registered("HalfCheetah-v5")


def test_spaces_that_do_not_fit_are_refused_in_a_sentence():
    with pytest.raises(UserError, match=r"Blackjack-v1 has the observation space Tuple"):
        make_env("Blackjack-v1")

    class Hands(Counting):
        def __init__(self):
            super().__init__()
            self.action_space = gym.spaces.MultiDiscrete([2, 2])

    with pytest.raises(UserError, match=r"Hands has the action space MultiDiscrete"):
        make_env(Hands)


def test_a_constructor_that_raises_is_named():
    with pytest.raises(UserError, match=r"CartPole-v1 cannot be made: TypeError.*'foo'"):
        make_env("CartPole-v1", env_kwargs={"foo": 1})
