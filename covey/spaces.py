"""gymnasium spaces as the plain data of a `Spec`, and actions as the environment wants them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from covey.errors import UserError
from covey.types import Array, Leaf, Spec

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
        return [(path, Leaf((len(sizes),), np.dtype(np.int64), sizes))]
    if isinstance(space, spaces.MultiBinary):
        return [(path, Leaf(tuple(space.shape), np.dtype(np.int8)))]
    if isinstance(space, spaces.Box):
        floating = np.issubdtype(space.dtype, np.floating)
        return [(path, Leaf(tuple(space.shape), np.dtype(np.float32) if floating else space.dtype))]
    raise UserError(
        f"{name} has the observation space {space}; covey takes Box, Discrete, MultiDiscrete, "
        "MultiBinary and Dict of these. Wrap the environment to offer one of them."
    )


def write_obs(space: gym.Space[Any], obs: Any, out: Array, field: str = "obs") -> None:
    """Copy one observation, or a batch of them, into its place; `field` names it in errors."""
    _write(space, obs, out, "", field)


def _write(space: gym.Space[Any], obs: Any, out: Array, path: str, field: str) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space):
            raise UserError(f"field {field} has not the entries {sorted(space)} of its space")
        for key, inner in space.items():
            name = f"{path}.{key}" if path else key
            _write(inner, obs[key], out, name, f"{field}.{key}")
        return
    target = out[path] if path else out
    value = np.asarray(obs)
    if value.shape != target.shape:
        raise UserError(f"field {field} has shape {value.shape}, its space says {target.shape}")
    if value.dtype != space.dtype and not np.can_cast(value.dtype, space.dtype):  # type: ignore[arg-type]
        raise UserError(f"field {field} is {value.dtype}, its space says {space.dtype}")
    if isinstance(space, spaces.Discrete):
        value = value - space.start
    elif isinstance(space, spaces.MultiDiscrete):
        value = (value - space.start).reshape(target.shape)
    target[...] = value


class ActionMap:
    """Actions as networks say them, as the environment wants them.

    Choices count from 0 here and from `start` there. A bounded continuous action is in [-1, 1] here
    and in [low, high] there; what lies outside is clipped, what has no bounds is passed on.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        if isinstance(space, spaces.Box):
            low, high = space.low.reshape(-1), space.high.reshape(-1)
            self.bounded = np.isfinite(low) & np.isfinite(high)
            self.low, self.high = low, high
            self.half = np.where(self.bounded, (high - low) / 2, 1).astype(np.float32)
            self.centre = np.where(self.bounded, (high + low) / 2, 0).astype(np.float32)

    def __call__(self, action_B: Array) -> Array:
        """(B, ...) actions for B environments."""
        if isinstance(self.space, spaces.Discrete):
            return action_B + self.space.start if self.space.start else action_B
        assert isinstance(self.space, spaces.Box)
        wanted = np.clip(self.centre + self.half * action_B, self.low, self.high)
        shaped: Array = wanted.reshape(len(action_B), *self.space.shape)
        return shaped.astype(self.space.dtype, copy=False)
