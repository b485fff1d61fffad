import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from covey.envs import make_env
from covey.errors import UserError
from covey.spaces import spec_of
from covey.types import Leaf
from covey.vector import ActionMap, write_obs

F32, F64, I64, U8 = (np.dtype(k) for k in (np.float32, np.float64, np.int64, np.uint8))
TWO = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("space", "leaves"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), {"": Leaf((3,), F32)}),
        (spaces.Box(-1, 1, (3,), np.float64), {"": Leaf((3,), F32)}),  # kept in half the room
        (spaces.Box(-1, 1, (), np.float32), {"": Leaf((), F32)}),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), {"": Leaf((4, 4, 3), U8)}),
        (spaces.Box(0, 9, (2,), np.int16), {"": Leaf((2,), np.dtype(np.int16))}),
        (spaces.Discrete(5, start=2), {"": Leaf((), I64, (5,))}),
        (spaces.MultiDiscrete([2, 3]), {"": Leaf((2,), I64, (2, 3))}),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), {"": Leaf((4,), I64, (2, 3, 4, 5))}),
        (spaces.MultiBinary(4), {"": Leaf((4,), np.dtype(np.int8))}),
        (spaces.MultiBinary([2, 2]), {"": Leaf((2, 2), np.dtype(np.int8))}),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({"c": spaces.MultiBinary(1)})}),
            {"a": Leaf((), I64, (2,)), "b.c": Leaf((1,), np.dtype(np.int8))},
        ),
    ],
)
def test_observation_spaces_as_plain_data(space, leaves):
    assert spec_of("E", space, TWO).leaves == leaves


@pytest.mark.parametrize(
    ("space", "num_actions", "action_dim"),
    [
        (spaces.Discrete(6, start=-2), 6, 0),
        (spaces.Box(-1, 1, (3,), np.float32), 0, 3),
        (spaces.Box(-1, 1, (2, 2), np.float64), 0, 4),
        (spaces.Box(-1, 1, (), np.float32), 0, 1),
    ],
)
def test_action_spaces_as_plain_data(space, num_actions, action_dim):
    spec = spec_of("E", spaces.Discrete(2), space)
    assert (spec.num_actions, spec.action_dim) == (num_actions, action_dim)


@pytest.mark.parametrize(
    ("obs", "action", "sentence"),
    [
        (spaces.Tuple([TWO]), TWO, "E has the observation space Tuple"),
        (spaces.Dict({"a": spaces.Text(3)}), TWO, "E has the observation space Text"),
        (TWO, spaces.MultiDiscrete([2, 2]), "E has the action space MultiDiscrete"),
        (TWO, spaces.MultiBinary(2), "E has the action space MultiBinary"),
        (TWO, spaces.Box(0, 9, (1,), np.int64), "E has the action space Box"),
        (TWO, spaces.Dict({"a": TWO}), "E has the action space Dict"),
    ],
)
def test_other_spaces_are_refused_with_the_way_out(obs, action, sentence):
    with pytest.raises(UserError, match="Wrap the environment") as caught:
        spec_of("E", obs, action)
    assert sentence in str(caught.value)


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
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), np.array([[1, 2], [3, 4]]), [1, 2, 3, 4]),
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
    space = spaces.Dict(
        {"eye": spaces.Box(0, 255, (2,), np.uint8), "in": spaces.Dict({"gear": spaces.Discrete(4, start=1)})}
    )  # fmt: skip
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
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), np.array([[1, 2], [3, 4]]), [1, 2, 3, 4]),
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
