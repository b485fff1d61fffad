"""gymnasium spaces as the plain data of a `Spec`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from covey.errors import UserError
from covey.types import Leaf, Spec

spaces = gym.spaces


def spec_of(name: str, obs: gym.Space[Any], action: gym.Space[Any]) -> Spec:
    """The plain description, or one sentence about the space that does not fit."""
    leaves = dict(_leaves(name, obs))
    if isinstance(action, spaces.Discrete):
        return Spec(leaves, num_actions=int(action.n), action_dim=0)
    if isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating):
        return Spec(leaves, num_actions=0, action_dim=int(np.prod(action.shape)))
    raise UserError(
        f"{name} has the action space {action}; covey takes Discrete and continuous Box. "
        "Wrap the environment to offer one of them."
    )


def _leaves(name: str, space: gym.Space[Any], path: str = "") -> list[tuple[str, Leaf]]:
    if isinstance(space, spaces.Dict):
        inner = [(f"{path}.{key}" if path else key, s) for key, s in space.items()]
        return [leaf for key, s in inner for leaf in _leaves(name, s, key)]
    if isinstance(space, spaces.Discrete):
        return [(path, Leaf((), np.dtype(np.int64), (int(space.n),)))]
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.reshape(-1))
        return [(path, Leaf(tuple(space.shape), np.dtype(np.int64), sizes))]
    if isinstance(space, spaces.MultiBinary):
        return [(path, Leaf(tuple(space.shape), np.dtype(np.int8)))]
    if isinstance(space, spaces.Box):
        floating = np.issubdtype(space.dtype, np.floating)
        return [(path, Leaf(tuple(space.shape), np.dtype(np.float32) if floating else space.dtype))]
    raise UserError(
        f"{name} has the observation space {space}; covey takes Box, Discrete, MultiDiscrete, "
        "MultiBinary and Dict of these. Wrap the environment to offer one of them."
    )
