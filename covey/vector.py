"""Many environments behind one `step`, one after the other or as a gymnasium vector environment.

Both write observations straight into the row they are given, name what is wrong with them, and can
be brought back exactly where the environment allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from covey.attributes import attributes, set_attributes, suffice
from covey.errors import UserError
from covey.memory.pulse import RESETTING, Pulse
from covey.spaces import spec_of
from covey.types import Array, Spec, Tree

spaces = gym.spaces

LONGEST_REPLAY = 100_000  # steps of one episode that are kept so that it can be played again


class EnvError(UserError):
    """The environment broke its contract: environment index, step and field are named."""


def write_obs(
    space: gym.Space[Any], obs: Any, out: Array, field: str = "obs", path: str = ""
) -> None:
    """Copy one observation, or a batch of them, into its place; `field` names it in errors."""
    numbers = isinstance(space, spaces.Box)  # asked first: the others take longer to ask
    if not numbers and isinstance(space, spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space):
            raise UserError(f"field {field} has not the entries {sorted(space)} of its space")
        for key, inner in space.items():
            write_obs(inner, obs[key], out, f"{field}.{key}", f"{path}.{key}" if path else key)
        return
    target, value = out[path] if path else out, np.asarray(obs)
    if value.shape != target.shape:
        raise UserError(f"field {field} has shape {value.shape}, its space says {target.shape}")
    if value.dtype != space.dtype and not np.can_cast(value.dtype, space.dtype):  # type: ignore[arg-type]
        raise UserError(f"field {field} is {value.dtype}, its space says {space.dtype}")
    if not numbers and isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        value = value - space.start  # whole numbers count from 0 here
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
            bounded = np.isfinite(low) & np.isfinite(high)
            self.low, self.high = low, high
            low, high = np.where(bounded, low, -1), np.where(bounded, high, 1)
            self.half = ((high - low) / 2).astype(np.float32)
            self.centre = ((high + low) / 2).astype(np.float32)

    def __call__(self, action_B: Array) -> Array:
        """(B, ...) actions for B environments."""
        if isinstance(self.space, spaces.Discrete):
            return action_B + self.space.start if self.space.start else action_B
        assert isinstance(self.space, spaces.Box)
        wanted = np.clip(self.centre + self.half * action_B, self.low, self.high)
        shaped: Array = wanted.reshape(len(action_B), *self.space.shape)
        return shaped.astype(self.space.dtype, copy=False)


def resetting(pulse: Pulse | None) -> AbstractContextManager[None]:
    """A reset may take longer than a step: whoever watches is told."""
    return nullcontext() if pulse is None else pulse.during(RESETTING)


class Raw(NamedTuple):
    """One step of B environments as they said it."""

    reward_B: Array
    terminated_B: Array
    truncated_B: Array
    valid_B: Array
    finals: list[tuple[int, Array]]  # (environment, last observation) that a reset has replaced


class SyncEnvs:
    """B single environments in one process, stepped in order; a finished one is reset at once."""

    how = "one after the other"
    steps_to_reset = 0

    def __init__(self, name: str, make: Callable[[], gym.Env[Any, Any]], num_envs: int) -> None:
        self.name = name
        self.envs = [make() for _ in range(num_envs)]
        self.obs_space = self.envs[0].observation_space
        self.spec = spec_of(name, self.obs_space, self.envs[0].action_space)
        self.to_env = ActionMap(self.envs[0].action_space)
        self.num_envs, self.steps = num_envs, 0
        self.pulse: Pulse | None = None  # of the member that steps them, if somebody watches it
        self._all_valid = np.ones(num_envs, bool)
        self._origin: list[Tree] = [{} for _ in self.envs]  # what the running episode began from
        self._actions: list[list[Any]] = [[] for _ in self.envs]

    def reset(self, seeds: list[int], out_B: Array) -> None:
        """Begin an episode everywhere."""
        for b, seed in enumerate(seeds):
            self._begin(b, out_B, {"seed": seed})

    def step(self, action_B: Array, out_B: Array) -> Raw:
        """Step all; `out_B` holds what to act on next."""
        num = len(self.envs)
        reward_B, finals = np.zeros(num, np.float64), []
        terminated_B, truncated_B = np.zeros(num, bool), np.zeros(num, bool)
        self.steps += 1
        for b, action in enumerate(self.to_env(action_B)):
            self._actions[b].append(action)
            obs, reward_B[b], terminated, truncated = self._step_one(b, action)
            if self.pulse is not None:
                self.pulse.beat(1)
            terminated_B[b], truncated_B[b] = terminated, truncated
            self._write(b, obs, out_B)
            if terminated or truncated:
                finals.append((b, out_B[b, ...].copy()))
                self._begin(b, out_B, _random_state(self.envs[b]))
        return Raw(reward_B, terminated_B, truncated_B, self._all_valid, finals)

    def _step_one(self, b: int, action: Any) -> tuple[Any, float, bool, bool]:
        try:
            result: Any = self.envs[b].step(action)
        except Exception as error:
            raise self._broken(b, raised("step", error)) from error
        if not isinstance(result, tuple) or len(result) != 5:
            got = len(result) if isinstance(result, tuple) else type(result).__name__
            raise self._broken(
                b, f"step returned {got} values; gymnasium wants 5: obs, reward, terminated, "
                "truncated, info (the old 4-tuple merges the two ends)"
            )  # fmt: skip
        obs, reward, terminated, truncated, _ = result
        try:
            return obs, float(reward), bool(terminated), bool(truncated)
        except (TypeError, ValueError):
            raise self._broken(b, f"field reward is {reward!r}, not a number") from None

    def _begin(self, b: int, out_B: Array, origin: Tree) -> None:
        try:
            with resetting(self.pulse):
                result: Any = self.envs[b].reset(seed=origin.get("seed"))
        except Exception as error:
            raise self._broken(b, raised("reset", error)) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._broken(b, "reset must return (obs, info)")
        self._origin[b], self._actions[b] = origin, []
        self._write(b, result[0], out_B)

    def _write(self, b: int, obs: Any, out_B: Array) -> None:
        try:
            write_obs(self.obs_space, obs, out_B[b, ...])
        except UserError as error:
            raise self._broken(b, str(error)) from None

    def _broken(self, b: int, what: str) -> EnvError:
        return EnvError(f"{self.name}, environment {b}, step {self.steps}: {what}.")

    def state(self) -> Tree:
        """Where each running episode began and its actions: enough to play it again."""
        return {
            str(b): {
                "origin": self._origin[b],
                "now": _random_state(env),
                "actions": np.array(self._actions[b][:LONGEST_REPLAY]),
                "num_actions": len(self._actions[b]),
            }
            for b, env in enumerate(self.envs)
        }

    def restore(self, state: Tree, obs_B: Array) -> bool:
        """Play the running episodes again; False if they did not come out the same."""
        exact, again_B = len(state) == len(self.envs), obs_B.copy()
        for b, env in enumerate(self.envs[: len(state)]):
            saved = state[str(b)]
            if "rng" in saved["origin"]:
                env.unwrapped.np_random.bit_generator.state = saved["origin"]["rng"]
            self._begin(b, again_B, saved["origin"])
            for action in saved["actions"]:
                result = env.step(action)
                self._actions[b].append(action)
                self._write(b, result[0], again_B)
            exact &= again_B[b].tobytes() == obs_B[b].tobytes()
            exact &= len(saved["actions"]) == saved["num_actions"]
            exact &= str(_random_state(env)) == str(saved["now"])
        return exact

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()


def _random_state(env: gym.Env[Any, Any]) -> Tree:
    return {"rng": env.unwrapped.np_random.bit_generator.state}


class VectorEnvs:
    """A gymnasium vector environment, in either autoreset mode."""

    def __init__(self, name: str, make: Callable[[int], VectorEnv], num_envs: int) -> None:
        self.name, self.make, self.env = name, make, make(num_envs)
        mode = self.env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if AutoresetMode(mode) == AutoresetMode.DISABLED:
            raise UserError(f"{name} must reset itself; its autoreset mode is disabled.")
        self.how = "as one vector environment"
        self.steps_to_reset = int(AutoresetMode(mode) == AutoresetMode.NEXT_STEP)
        self.obs_space = self.env.single_observation_space
        self.spec = spec_of(name, self.env.single_observation_space, self.env.single_action_space)
        self.to_env = ActionMap(self.env.single_action_space)
        self.num_envs, self.steps = num_envs, 0
        self.pulse: Pulse | None = None  # of the member that steps them, if somebody watches it
        self._over_B = np.zeros(num_envs, bool)

    def reset(self, seeds: list[int], out_B: Array) -> None:
        """Begin an episode everywhere."""
        with resetting(self.pulse):
            obs_B, _ = self.env.reset(seed=seeds[0])
        try:
            write_obs(self.obs_space, obs_B, out_B)
        except UserError as error:
            raise self._broken(str(error)) from None
        self._over_B = np.zeros(len(out_B), bool)

    def step(self, action_B: Array, out_B: Array) -> Raw:
        """Step all; `out_B` holds what to act on next."""
        self.steps += 1
        try:
            result: Any = self.env.step(self.to_env(action_B))
        except Exception as error:
            raise self._broken(raised("step", error)) from error
        if not isinstance(result, tuple) or len(result) != 5:
            raise self._broken("step must return obs, reward, terminated, truncated, info")
        if self.pulse is not None:
            self.pulse.beat(self.num_envs)
        obs_B, reward_B, terminated_B, truncated_B, info = result
        try:
            write_obs(self.obs_space, obs_B, out_B)
        except UserError as error:
            raise self._broken(str(error)) from None
        over_B = np.logical_or(terminated_B, truncated_B)
        if np.shape(reward_B) != over_B.shape or over_B.shape != out_B.shape[:1]:
            raise self._broken(
                f"field reward has shape {np.shape(reward_B)}, not {out_B.shape[:1]}"
            )
        if self.steps_to_reset:  # the step after the last only resets: its action went nowhere
            valid_B, self._over_B = ~self._over_B, over_B
            return Raw(reward_B, terminated_B, truncated_B, valid_B, [])
        finals = [(b, self._final(info, b, out_B)) for b in np.flatnonzero(over_B).tolist()]
        return Raw(reward_B, terminated_B, truncated_B, np.ones_like(over_B), finals)

    def _final(self, info: dict[str, Any], b: int, out_B: Array) -> Array:
        row = np.empty_like(out_B[b, ...])
        final = info["final_obs"]
        obs = {k: v[b] for k, v in final.items()} if isinstance(final, dict) else final[b]
        write_obs(self.obs_space, obs, row, "final_obs")
        return row

    def _broken(self, what: str) -> EnvError:
        return EnvError(f"{self.name}, all environments, step {self.steps}: {what}.")

    def state(self) -> Tree:
        """The environment's own plain attributes and random state, if these are all it has."""
        inner = self.env.unwrapped
        return {"over": self._over_B.copy(), "exact": self._exact(), "inner": attributes(inner)}

    def restore(self, state: Tree, obs_B: Array) -> bool:
        """Set them back; False where that is not enough."""
        inner, saved = self.env.unwrapped, state["inner"]
        if not state["exact"] or len(state["over"]) != len(self._over_B):
            return False
        self.env.reset(seed=0)  # makes what only a reset makes
        set_attributes(inner, saved)
        self._over_B = state["over"].astype(bool)
        return True

    def _exact(self) -> bool:
        """Whether attributes are enough: tried on another copy, from the middle of its episodes."""
        if not hasattr(self, "_is_exact"):
            num, rng = len(self._over_B), np.random.default_rng(0)
            actions = [self.to_env(random_actions(self.spec, num, rng)) for _ in range(128)]
            copy = self.make(num)
            self._is_exact = suffice(copy, actions)
            copy.close()
        return self._is_exact

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def raised(what: str, error: Exception) -> str:
    """Said of code that is not ours."""
    return f"{what} raised {type(error).__name__}: {error} (--debug shows where)"


def random_actions(spec: Spec, num: int, rng: np.random.Generator) -> Array:
    """Uniform actions, as networks say them."""
    if spec.discrete:
        return rng.integers(spec.num_actions, size=num)
    return rng.uniform(-1, 1, (num, spec.action_dim)).astype(np.float32)
