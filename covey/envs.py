"""Environments as the rest sees them: terminated and truncated become discount and last here."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from covey.errors import UserError, nearest
from covey.memory.pulse import Pulse
from covey.types import Array, Tree
from covey.vector import EnvError, SyncEnvs, VectorEnvs

EnvLike = str | Callable[[], Any]

# Environments that gymnasium knows only when something else is installed: what asks for it, what
# to import, and the extra that brings it.
EXTRAS = {
    "ALE/": ("ale_py", "atari"),
    "LunarLander": ("Box2D", "box2d"),
    "BipedalWalker": ("Box2D", "box2d"),
    "CarRacing": ("Box2D", "box2d"),
    **dict.fromkeys(
        ["Ant-v", "HalfCheetah-v", "Hopper-v", "Humanoid", "InvertedDoublePendulum-v",
         "InvertedPendulum-v", "Pusher-v", "Reacher-v", "Swimmer-v", "Walker2d-v"],
        ("mujoco", "mujoco"),
    ),
}  # fmt: skip


class Step(NamedTuple):
    """One step of B environments."""

    reward_B: Array
    discount_B: Array  # 0 where the episode terminated
    last_B: Array  # where it ended, either way
    valid_B: Array  # False where the step only reset
    finals: list[tuple[int, Array]]


class Episode(NamedTuple):
    """A finished episode."""

    undiscounted_return: float
    length: int


class Envs:
    """B environments, their episodes' returns, and the scale of their rewards."""

    def __init__(
        self, stepper: SyncEnvs | VectorEnvs, num_envs: int, seed: np.random.SeedSequence,
        scale_reward: bool = False, gamma: float = 0.99,
    ) -> None:  # fmt: skip
        self.stepper, self.num_envs, self.spec = stepper, num_envs, stepper.spec
        self.name, self.how = stepper.name, stepper.how
        self._seed = seed
        self._steps, self._begun_B = 0, np.zeros(num_envs, np.int64)  # its episode, with which step
        self._return_B = np.zeros(num_envs)
        self.episodes: list[Episode] = []
        self.scale = RewardScale(num_envs, gamma) if scale_reward else None

    @property
    def pulse(self) -> Pulse | None:
        """Where each env step is told to whoever watches this process, if anybody does."""
        return self.stepper.pulse

    @pulse.setter
    def pulse(self, pulse: Pulse | None) -> None:
        self.stepper.pulse = pulse

    def empty(self, *lead: int) -> Array:
        """Room for observations."""
        return np.zeros((*lead, *self.spec.obs_shape), self.spec.obs_dtype)

    def reseed(self, seed: np.random.SeedSequence) -> None:
        """The next reset begins from this seed."""
        self._seed = seed

    def reset(self, out_B: Array) -> None:
        """Begin an episode everywhere."""
        self._return_B[:], self._begun_B[:] = 0, self._steps
        seeds = [int(s) >> 1 for s in self._seed.generate_state(self.num_envs)]
        self.stepper.reset(seeds, out_B)
        if not finite(out_B):
            self._refuse(out_B, np.zeros(self.num_envs))

    def step(self, action_B: Array, out_B: Array) -> Step:
        """Step all; `out_B` receives what to act on next."""
        raw = self.stepper.step(action_B, out_B)
        if not (finite(out_B) and finite(raw.reward_B)):
            self._refuse(out_B, raw.reward_B)
        last_B = raw.terminated_B | raw.truncated_B
        self._return_B += raw.reward_B
        self._steps += 1
        if b"\1" in last_B.tobytes():  # this is each step, and asks less than .any()
            for b in np.flatnonzero(last_B).tolist():
                length = self._steps - int(self._begun_B[b])
                self.episodes.append(Episode(float(self._return_B[b]), length))
            self._return_B[last_B] = 0
            self._begun_B[last_B] = self._steps + self.stepper.steps_to_reset
        reward_B = raw.reward_B
        if self.scale is not None:
            reward_B = self.scale(reward_B, last_B)
        finals = []
        for final_b, obs in raw.finals:
            if not finite(obs[None]):
                self._refuse(obs[None], raw.reward_B[final_b : final_b + 1], final_b)
            if not raw.terminated_B[final_b]:
                finals.append((final_b, obs))
        return Step(reward_B, 1.0 - raw.terminated_B, last_B, raw.valid_B, finals)

    def finished(self) -> list[Episode]:
        """Episodes that ended since the last call."""
        episodes, self.episodes = self.episodes, []
        return episodes

    def _refuse(self, obs_B: Array, reward_B: Array, b: int = 0) -> None:
        """Name the first number that is none; `b` is the environment of the first row."""
        fields = {"obs": obs_B, "reward": reward_B}
        if obs_B.dtype.names is not None:
            fields = {f"obs.{name}": obs_B[name] for name in obs_B.dtype.names} | fields
            del fields["obs"]
        for field, value_B in fields.items():
            if not finite(value_B):
                b += int(np.argwhere(~np.isfinite(value_B))[0][0])
                raise EnvError(
                    f"{self.name}, environment {b}, step {self.stepper.steps}: field {field} holds "
                    "NaN or infinity. Mend the environment; nothing was learnt from this step."
                )

    def state(self) -> Tree:
        """The environments, the running episodes' returns, and the reward scale."""
        return {
            "stepper": self.stepper.state(),
            "return": self._return_B.copy(),
            "length": self._steps - self._begun_B,
            "scale": None if self.scale is None else self.scale.state(),
        }

    def restore(self, state: Tree, obs_B: Array) -> bool:
        """Take it back; False if the environments could not be brought back exactly."""
        if self.scale is not None and state["scale"] is not None:
            self.scale.restore(state["scale"])
        if not self.stepper.restore(state["stepper"], obs_B):
            return False
        self._return_B[:], self._begun_B[:] = state["return"], self._steps - state["length"]
        return True

    def close(self) -> None:
        """Close every environment."""
        self.stepper.close()


def finite(values: Array) -> bool:
    """Neither NaN nor infinity, either of which times 0 is NaN: quicker than a test of each."""
    if values.dtype.names is not None:
        return all(finite(values[name]) for name in values.dtype.names)
    if values.dtype.kind != "f":
        return True
    return math.isfinite(values.ravel().dot(np.zeros(values.size, values.dtype)))


class RewardScale:
    """Divides rewards by the running standard deviation of the discounted return."""

    def __init__(self, num_envs: int, gamma: float, limit: float = 10.0) -> None:
        self.gamma, self.limit = gamma, limit
        self.return_B = np.zeros(num_envs)
        self.count, self.mean, self.m2 = 1e-4, 0.0, 1e-4

    def __call__(self, reward_B: Array, last_B: Array) -> Array:
        """Rewards scaled by what has been seen so far, these included."""
        self.return_B = self.gamma * self.return_B + reward_B
        delta, batch = float(self.return_B.mean()) - self.mean, len(reward_B)
        total = self.count + batch  # Chan et al.: merge the moments of two samples
        self.m2 += float(self.return_B.var()) * batch + delta**2 * self.count * batch / total
        self.mean += delta * batch / total
        self.count = total
        self.return_B[last_B] = 0
        scaled: Array = reward_B / np.sqrt(self.m2 / self.count + 1e-8)
        return scaled.clip(-self.limit, self.limit)

    def state(self) -> Tree:
        """Moments and running returns."""
        moments = {"count": self.count, "mean": self.mean, "m2": self.m2}
        return {"return": self.return_B.copy(), **moments}

    def restore(self, state: Tree) -> None:
        """Take them back."""
        self.count, self.mean, self.m2 = state["count"], state["mean"], state["m2"]
        if len(state["return"]) == len(self.return_B):
            self.return_B[:] = state["return"]


def make_env(
    env: EnvLike, num_envs: int = 1, seed: int | np.random.SeedSequence = 0,
    env_kwargs: dict[str, Any] | None = None, scale_reward: bool = False, gamma: float = 0.99,
    exact: bool = True,
) -> Envs:  # fmt: skip
    """The fastest way there is to step `num_envs` of them: as one vector environment, if it can.

    Where the number is not `exact`, a function may make a vector environment of any other.
    """
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    kwargs = env_kwargs or {}
    if isinstance(env, str):
        stepper = _from_id(env, num_envs, kwargs)
    else:
        stepper = _from_factory(env_name(env), lambda: env(**kwargs), num_envs, exact)
    return Envs(stepper, stepper.num_envs, sequence, scale_reward, gamma)


def _from_id(env: str, num_envs: int, kwargs: dict[str, Any]) -> SyncEnvs | VectorEnvs:
    spec = registered(env)
    if spec.vector_entry_point is not None and not spec.additional_wrappers:

        def make(num: int) -> VectorEnv:
            return gym.make_vec(env, num, vectorization_mode="vector_entry_point", **kwargs)

        return _constructed(env, lambda: VectorEnvs(env, make, num_envs))

    def make_one() -> gym.Env[Any, Any]:
        return gym.make(spec, disable_env_checker=True, **kwargs)

    return _constructed(env, lambda: SyncEnvs(env, make_one, num_envs))


def _from_factory(
    name: str, make: Callable[[], Any], num_envs: int, exact: bool
) -> SyncEnvs | VectorEnvs:
    def build() -> SyncEnvs | VectorEnvs:
        made = [make()]
        if not isinstance(made[0], VectorEnv):
            return SyncEnvs(name, lambda: made.pop() if made else make(), num_envs)
        num = made[0].num_envs
        if exact and num != num_envs:
            made[0].close()
            raise UserError(
                f"{name} makes {num} environments, but num_envs is {num_envs}. Say num_envs={num}."
            )
        return VectorEnvs(name, lambda _: made.pop() if made else make(), num)

    return _constructed(name, build)


def _constructed(name: str, build: Callable[[], SyncEnvs | VectorEnvs]) -> SyncEnvs | VectorEnvs:
    try:
        return build()
    except UserError:
        raise
    except Exception as error:  # whatever a constructor raises, the environment is named
        if isinstance(error, gym.error.DependencyNotInstalled):
            raise UserError(f"{name} cannot be made: {error}") from error
        raise UserError(f"{name} cannot be made: {type(error).__name__}: {error}") from error


def env_name(env: EnvLike) -> str:
    """How an environment is called in messages and folders."""
    if isinstance(env, str):
        return env
    return str(getattr(env, "__name__", type(env).__name__)).replace("<lambda>", "custom")


def registered(env_id: str) -> gym.envs.registration.EnvSpec:
    """gymnasium's entry, or the nearest names, or the extra that brings it."""
    for prefix, (module, extra) in EXTRAS.items():
        if env_id.startswith(prefix) and importlib.util.find_spec(module) is None:
            raise UserError(f"{env_id} needs an extra.  pip install 'covey[{extra}]'")
    module, _, id_ = env_id.rpartition(":")
    if env_id.startswith("ALE/"):
        module = "ale_py"
    try:
        if module:  # importing it registers its environments with gymnasium
            sys.path.append(str(Path.cwd()))
            importlib.import_module(module)
            sys.path.pop()
        return gym.spec(id_)
    except gym.error.Error:
        ids = [name for name, spec in gym.registry.items() if spec.entry_point is not None]
        raise UserError(f"unknown environment '{env_id}'. {nearest(env_id, ids)}") from None
    except ModuleNotFoundError as error:
        raise UserError(f"{env_id}: {error}. Install it, or go to its folder.") from None
