import gymnasium as gym
import numpy as np
import pytest
from badenvs import Counting, Sight
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from covey import vector
from covey.envs import make_env
from covey.errors import UserError
from covey.spaces import spec_of
from covey.types import Leaf, Spec
from covey.vector import ActionMap, EnvError, SyncEnvs, VectorEnvs, random_actions, write_obs

LEAVES = {"": Leaf((4,), np.dtype(np.float32))}


def test_random_choices_are_all_there_equally_often():
    actions = random_actions(Spec(LEAVES, 5, 0), 10_000, np.random.default_rng(0))
    assert actions.dtype == np.int64
    counts = np.bincount(actions, minlength=5)
    assert len(counts) == 5
    assert (abs(counts - 2000) < 5 * 40).all()  # a deviation is 40


def test_random_continuous_actions_fill_their_range():
    actions = random_actions(Spec(LEAVES, 0, 3), 10_000, np.random.default_rng(0))
    assert (actions.shape, actions.dtype) == ((10_000, 3), np.float32)
    assert (abs(actions) <= 1).all()
    assert (actions.min(axis=0) < -0.99).all()
    assert (actions.max(axis=0) > 0.99).all()
    assert (abs(actions.mean(axis=0)) < 0.03).all()


def stepped(envs, num, actions=None):
    """Reset and step; what is left in the row of observations."""
    obs_B = np.zeros((len(envs.envs), *envs.spec.obs_shape), envs.spec.obs_dtype)
    envs.reset(list(range(len(envs.envs))), obs_B)
    rng = np.random.default_rng(1)
    for _ in range(num):
        envs.step(random_actions(envs.spec, len(envs.envs), rng), obs_B)
    return obs_B


def pendulums(num=2):
    return SyncEnvs("Pendulum-v1", lambda: gym.make("Pendulum-v1"), num)


@pytest.mark.parametrize("num", [0, 7, 199, 200, 230])
def test_running_episodes_are_played_again(num):
    envs, again = pendulums(), pendulums()
    obs_B = stepped(envs, num)
    stepped(again, 3)
    assert again.restore(envs.state(), obs_B)
    one_B, two_B = obs_B.copy(), obs_B.copy()
    rng = np.random.default_rng(9)
    for _ in range(250):  # past the next reset
        action_B = random_actions(envs.spec, 2, rng)
        envs.step(action_B, one_B)
        again.step(action_B, two_B)
        assert one_B.tobytes() == two_B.tobytes()


def test_the_state_of_a_long_episode_is_bounded_and_then_not_exact(monkeypatch):
    monkeypatch.setattr(vector, "LONGEST_REPLAY", 10)
    envs = SyncEnvs("Counting", lambda: Counting(length=10**9), 1)
    obs_B = stepped(envs, 10)
    assert len(envs.state()["0"]["actions"]) == 10
    assert SyncEnvs("C", lambda: Counting(length=10**9), 1).restore(envs.state(), obs_B)
    envs.step(np.zeros(1, np.int64), obs_B)
    state = envs.state()["0"]
    assert (len(state["actions"]), state["num_actions"]) == (10, 11)
    assert not SyncEnvs("C", lambda: Counting(length=10**9), 1).restore(envs.state(), obs_B)


def test_another_number_of_environments_is_not_exact():
    envs = pendulums(2)
    obs_B = stepped(envs, 5)
    assert not pendulums(3).restore(envs.state(), np.zeros((3, 3), np.float32))
    assert not pendulums(1).restore(envs.state(), obs_B[:1])


class Closes(Counting):
    closed = 0

    def close(self):
        type(self).closed += 1


@pytest.mark.parametrize("many", [False, True])
def test_closing_closes_every_environment(many):
    Closes.closed = 0
    one = Closes
    envs = make_env((lambda: SyncVectorEnv([one] * 3)) if many else one, 3)
    envs.close()
    assert Closes.closed == 3


def test_a_vector_environment_that_does_not_reset_itself_is_refused():
    def make(num):
        return SyncVectorEnv([Counting] * num, autoreset_mode=AutoresetMode.DISABLED)

    with pytest.raises(UserError, match="must reset itself"):
        VectorEnvs("E", make, 2)


def test_a_vector_environment_is_restored_only_where_attributes_are_enough():
    cart = make_env("CartPole-v1", 2, 0)
    obs_B = cart.empty(2)
    cart.reset(obs_B)
    assert cart.stepper.state()["exact"]
    again = make_env("CartPole-v1", 2, 5)
    assert again.restore(cart.state(), obs_B)
    hidden = make_env(lambda: SyncVectorEnv([Counting] * 2), 2)
    obs_B = hidden.empty(2)
    hidden.reset(obs_B)
    assert not hidden.stepper.state()["exact"]
    assert not hidden.restore(hidden.state(), obs_B)
    for envs in (cart, again, hidden):
        envs.close()


def test_an_error_in_a_vector_environment_is_named():
    class Hot(Counting):
        def step(self, action):
            raise RuntimeError("too hot")

    envs = make_env(lambda: SyncVectorEnv([Hot] * 2), 2)
    obs_B = envs.empty(2)
    envs.reset(obs_B)
    with pytest.raises(EnvError, match="all environments, step 1: step raised RuntimeError: too"):
        envs.step(np.zeros(2, np.int64), obs_B)
    envs.close()


def test_dict_observations_of_both_kinds_agree():
    alone = make_env(Sight, 2, 3)
    together = make_env(lambda: SyncVectorEnv([Sight] * 2), 2, 3)
    for envs in (alone, together):
        obs_B = envs.empty(2)
        envs.reset(obs_B)
        for _ in range(3):
            envs.step(np.zeros(2, np.int64), obs_B)
        assert obs_B["camera"][:, 0, 0, 0].tolist() == [3, 3]
        assert obs_B["gear"].tolist() == [3, 3]  # 1 + 3 % 4, counted from 0
        assert obs_B["hands"].tolist() == [[1, 0], [1, 0]]
        envs.close()


# observations and actions

TWO = spaces.Discrete(2)


def written(space, obs):
    spec = spec_of("E", space, TWO)
    out = np.zeros((1, *spec.obs_shape), spec.obs_dtype)
    write_obs(space, obs, out[0, ...])
    return out[0]


@pytest.mark.parametrize(
    ("space", "obs", "wanted"),
    [
        (spaces.Discrete(5, start=2), 4, 2),
        (spaces.Discrete(5, start=2), np.int64(6), 4),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [1, 2]),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), np.array([2, 0]), [1, 1]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.Box(-9, 9, (2,), np.float64), [1.5, 2.5], [1.5, 2.5]),
        (spaces.Box(-9, 9, (2,), np.float32), np.array([1, 2], np.float32), [1, 2]),
        (spaces.Box(-9, 9, (2,), np.float32), np.array([1, 2], np.int16), [1, 2]),  # fits whole
        (spaces.Box(-9, 9, (), np.float32), np.float32(3), 3),
    ],
)
def test_an_observation_lands_in_its_place(space, obs, wanted):
    assert written(space, obs).tolist() == wanted


def test_a_dict_lands_in_its_fields():
    inner = spaces.Dict({"gear": spaces.Discrete(4, start=1)})
    space = spaces.Dict({"eye": spaces.Box(0, 255, (2,), np.uint8), "in": inner})
    row = written(space, {"eye": np.array([7, 8], np.uint8), "in": {"gear": 3}})
    assert row["eye"].tolist() == [7, 8]
    assert row["in.gear"] == 2


@pytest.mark.parametrize(
    ("obs", "sentence"),
    [
        ({"a": np.zeros(3, np.float32)}, "field obs has not the entries ['a', 'b']"),
        (np.zeros(3), "field obs has not the entries"),
        ({"a": np.zeros(2, np.float32), "b": 0}, "field obs.a has shape (2,), its space says (3,)"),
        ({"a": np.zeros(3), "b": 0}, "field obs.a is float64, its space says float32"),
        ({"a": np.zeros(3, np.float32), "b": 0.5}, "field obs.b is float64, its space says int64"),
    ],
)
def test_what_does_not_fit_is_named(obs, sentence):
    space = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(3)})
    with pytest.raises(UserError) as caught:
        written(space, obs)
    assert sentence in str(caught.value)


def test_choices_count_from_the_spaces_own_start():
    assert ActionMap(spaces.Discrete(3, start=-1))(np.array([0, 1, 2])).tolist() == [-1, 0, 1]
    same = np.array([0, 2])
    assert ActionMap(spaces.Discrete(3))(same) is same


def test_continuous_actions_are_stretched_and_clipped():
    low, high = (
        np.array([0, -5, -np.inf, 0], np.float32),
        np.array([1, 5, np.inf, np.inf], np.float32),
    )
    to_env = ActionMap(spaces.Box(low, high))
    wanted = {
        -1: [0, -5, -1, 0],
        0: [0.5, 0, 0, 0],
        1: [1, 5, 1, 1],
        3: [1, 5, 3, 3],
        -9: [0, -5, -9, 0],
    }
    for said, meant in wanted.items():
        assert to_env(np.full((1, 4), said, np.float32)).tolist() == [meant]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_ends_of_a_continuous_action_are_in_its_space(dtype):
    space = spaces.Box(
        np.array([[-0.1], [1 / 3]], dtype), np.array([[0.7], [2 / 3]], dtype), dtype=dtype
    )
    for said in (-1, -0.999999, 0.3, 1, 50):
        (action,) = ActionMap(space)(np.full((1, 2), said, np.float32))
        assert action.dtype == dtype
        assert space.contains(action), (said, action)


class Shows(gym.Env):
    """Shows one observation, whatever is done."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, value):
        self.observation_space, self.value = space, value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.value, {}

    def step(self, action):
        return self.value, 0.0, False, False, {}


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(
    ("space", "value", "wanted"),
    [
        (spaces.Discrete(4, start=1), np.int64(3), 2),
        (spaces.MultiDiscrete([2, 3], start=[1, 5]), np.array([2, 6]), [1, 1]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (spaces.MultiBinary(2), np.array([1, 0], np.int8), [1, 0]),
        (spaces.Box(0, 9, (2, 2), np.float64), np.array([[1, 2], [3, 4.5]]), [[1, 2], [3, 4.5]]),
    ],
)
def test_alone_or_as_a_vector_an_observation_is_the_same(space, value, wanted, vector):
    def one():
        return Shows(space, value)

    def many():
        return SyncVectorEnv([one, one], autoreset_mode=AutoresetMode.SAME_STEP)

    envs = make_env(many if vector else one, 2)
    obs_B = envs.empty(2)
    envs.reset(obs_B)
    assert obs_B.tolist() == [wanted, wanted]
    obs_B[:] = 0
    envs.step(np.zeros(2, np.int64), obs_B)
    assert obs_B.tolist() == [wanted, wanted]
    envs.close()
