import numpy as np
import pytest
from gymnasium import spaces

from covey.errors import UserError
from covey.spaces import spec_of
from covey.types import Leaf

F32, I64, U8 = (np.dtype(k) for k in (np.float32, np.int64, np.uint8))
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
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), {"": Leaf((2, 2), I64, (2, 3, 4, 5))}),
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
