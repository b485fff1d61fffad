"""The state of a vector environment, where its plain attributes are all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from covey.types import Array, Tree

PLAIN = (bool, int, float, str, type(None))


def attributes(thing: Any) -> Tree:
    """Its numbers, texts, arrays and random states."""
    found: Tree = {}
    for name, value in vars(thing).items():
        if isinstance(value, np.random.Generator):
            found[name] = {"rng": value.bit_generator.state}
        elif isinstance(value, PLAIN):
            found[name] = value
        elif isinstance(value, np.ndarray) and value.dtype != object:
            found[name] = value.copy()
    return found


def set_attributes(thing: Any, saved: Tree) -> None:
    """Put them back."""
    for name, value in saved.items():
        if isinstance(value, dict) and "rng" in value:
            getattr(thing, name).bit_generator.state = value["rng"]
        else:
            setattr(thing, name, value.copy() if isinstance(value, np.ndarray) else value)


def suffice(env: VectorEnv, actions: list[Array]) -> bool:
    """Whether putting them back in the middle of episodes makes the rest happen again."""
    half = len(actions) // 2
    env.reset(seed=0)
    for action_B in actions[:half]:
        env.step(action_B)
    middle = attributes(env.unwrapped)
    first = [_seen(env.step(action_B)) for action_B in actions[half:]]
    set_attributes(env.unwrapped, middle)
    return first == [_seen(env.step(action_B)) for action_B in actions[half:]]


def _seen(step: Any) -> list[bytes]:
    obs_B, *rest = step[:4]
    parts = obs_B.values() if isinstance(obs_B, dict) else [obs_B]
    return [np.asarray(part).tobytes() for part in (*parts, *rest)]
