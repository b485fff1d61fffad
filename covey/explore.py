"""How far from greedy to act, as functions of the step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from covey.errors import UserError
from covey.types import Array


def linear(step: int, start: float, end: float, over: int) -> float:
    """A straight line from `start` to `end` over `over` steps, flat afterwards."""
    done = min(1.0, step / over) if over > 0 else 1.0
    return start + (end - start) * done


def final_epsilon(
    end: float, ends: Sequence[float], chances: Sequence[float], rng: np.random.Generator
) -> float:
    """`end`, or one of `ends` drawn with these chances, as each thread of Mnih et al. 2016 does."""
    if not ends:
        return end
    check_chances(ends, chances)
    return float(rng.choice(ends, p=chances))


def check_chances(ends: Sequence[float], chances: Sequence[float]) -> None:
    """A chance for each end, if there are any."""
    if ends and (len(ends) != len(chances) or not np.isclose(sum(chances), 1)):
        raise UserError(
            f"eps_chances = {list(chances)} must have one chance for each of eps_ends = "
            f"{list(ends)}, and sum to 1."
        )


@cache
def ladder(base: float, power: float, place: tuple[int, int], num_envs: int) -> Array:
    """base^(1 + power i / (N - 1)) for the environments i of N of this actor (Horgan et al. 2018).

    `place`: the actor's index, and how many there are; each has `num_envs` environments.
    """
    return fixed(np.power(base, 1 + power * rung(place, num_envs)))


@cache
def spread(low: float, high: float, place: tuple[int, int], num_envs: int) -> Array:
    """Evenly from `low` to `high` over the environments of all actors (Li et al. 2023)."""
    return fixed(low + (high - low) * rung(place, num_envs))


def fixed(values: Array) -> Array:
    """The same, which nobody may change."""
    values.flags.writeable = False
    return values


def rung(place: tuple[int, int], num_envs: int) -> Array:
    """i / (N - 1) of this actor's environments among all N; 0 for a single one."""
    index, actors = place
    of: Array = index * num_envs + np.arange(num_envs)
    return of / max(1, actors * num_envs - 1)


def noisy(action_BA: Array, deviation_B: Array, rng: np.random.Generator) -> Array:
    """With Gaussian noise of each row's deviation, kept within [-1, 1]."""
    noise_BA = rng.standard_normal(action_BA.shape, np.float32)
    noise_BA *= deviation_B[:, None]
    noise_BA += action_BA
    return np.clip(noise_BA, -1, 1, out=noise_BA)


def epsilon_greedy(q_BA: Array, epsilon: float | Array, rng: np.random.Generator) -> Array:
    """The best action, or with probability epsilon (one, or one for each row) any action."""
    action_B: Array = q_BA.argmax(axis=1)
    if not isinstance(epsilon, float) or epsilon > 0:
        random_B = rng.random(len(q_BA)) < epsilon
        if b"\1" in random_B.tobytes():  # this is each step, and asks less than .any()
            action_B[random_B] = rng.integers(q_BA.shape[1], size=int(random_B.sum()))
    return action_B
