"""Environments for tests: one that names every observation, and ones that break the contract."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Counting(gym.Env):
    """obs = (which environment, episode, step); reward = 10 episode + step; ends as told."""

    def __init__(self, ends="truncated", length=5, number=0):
        self.observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.ends, self.length, self.number, self.episode, self.t = ends, length, number, -1, 0

    def _obs(self):
        return np.array([self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        over = self.t == self.length
        reward = float(10 * self.episode + self.t)
        ends = {"terminated": (over, False), "truncated": (False, over), "both": (over, over)}
        return self._obs(), reward, *ends[self.ends], {}


class Broken(Counting):
    """Breaks the contract in one way, at one step of its life."""

    def __init__(self, how, at=3):
        super().__init__()
        self.how, self.at, self.life = how, at, 0

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return obs if self.how == "reset" else (obs, info)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.life += 1
        if self.life == self.at:
            if self.how == "four":
                return obs, reward, terminated or truncated, info
            if self.how == "raise":
                raise RuntimeError("the motor is hot")
            obs, reward = self._spoil(obs, reward)
        return obs, reward, terminated, truncated, info

    def _spoil(self, obs, reward):
        if self.how == "nan-obs":
            obs[1] = np.nan
        spoilt = {
            "shape": (obs[:1], reward),
            "dtype": (obs.astype(np.float64), reward),
            "nan-reward": (obs, float("nan")),
            "text-reward": (obs, "much"),
        }
        return spoilt.get(self.how, (obs, reward))


class Coin(gym.Env):
    """Does not obey its seed: nothing brings it back."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.random.random(2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return np.random.random(2).astype(np.float32), 1.0, False, self.t >= 20, {}


class Sight(gym.Env):
    """A Dict of an image, numbers and whole numbers; continuous or discrete actions."""

    def __init__(self, continuous=False):
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (36, 36, 3), np.uint8),
                "speed": spaces.Box(-1, 1, (2,), np.float32),
                "gear": spaces.Discrete(4, start=1),
                "hands": spaces.MultiDiscrete([2, 3]),
            }
        )
        box = spaces.Box(np.array([0.0, -5.0], np.float32), np.array([1.0, 5.0], np.float32))
        self.action_space = box if continuous else spaces.Discrete(3, start=-1)

    def _obs(self):
        return {
            "camera": np.full((36, 36, 3), self.t, np.uint8),
            "speed": self.np_random.random(2, np.float32),
            "gear": 1 + self.t % 4,
            "hands": np.array([self.t % 2, self.t % 3]),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        return self._obs(), 1.0, self.t == 7, False, {}


class Film(gym.Env):
    """The last four pictures, of noise; a reset shows one four times."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (4, 36, 36), np.uint8)
        self.action_space = spaces.Discrete(3)

    def _picture(self):
        return self.np_random.integers(0, 256, (1, 36, 36), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.stack = 0, self._picture().repeat(4, 0)
        return self.stack, {}

    def step(self, action):
        self.t += 1
        self.stack = np.concatenate([self.stack[1:], self._picture()])
        return self.stack, float(action), self.t == 23, False, {}


for how in ("four", "reset", "raise", "shape", "dtype", "nan-obs", "nan-reward", "text-reward"):
    gym.register(f"Broken-{how}-v0", entry_point="badenvs:Broken", kwargs={"how": how})
gym.register("LateNan-v0", entry_point="badenvs:Broken", kwargs={"how": "nan-obs", "at": 700})
gym.register("Counting-v0", entry_point="badenvs:Counting")
gym.register("Coin-v0", entry_point="badenvs:Coin")
gym.register("Sight-v0", entry_point="badenvs:Sight")
