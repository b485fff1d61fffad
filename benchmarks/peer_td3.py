"""stable-baselines3's TD3 on HalfCheetah-v5; runs inside the peer's own environment.

    python peer_td3.py SEED ENV_STEPS        prints a line of JSON for each evaluation

rl-zoo3's settings (https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/td3.yml), with the two
layers of 256 that covey's preset has in place of 400 and 300, which is faster here.
"""

from __future__ import annotations

import json
import sys
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise

EVERY, EPISODES = 50_000, 5  # as covey's preset evaluates


class Tell(BaseCallback):  # type: ignore[misc]
    """Greedy episodes each EVERY env steps; their time is not counted."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.env = Monitor(gym.make("HalfCheetah-v5"))
        self.env.reset(seed=seed + 1000)
        self.began, self.paused = process_time(), 0.0

    def _on_step(self) -> bool:
        if self.num_timesteps % EVERY == 0:
            before = process_time()
            mean, deviation = evaluate_policy(self.model, self.env, EPISODES)
            row: dict[str, Any] = {"env_steps": self.num_timesteps, "return": float(mean)}
            row |= {"deviation": float(deviation), "updates": self.model._n_updates}
            row["cpu_seconds"] = round(before - self.began - self.paused, 1)
            print(json.dumps(row), flush=True)
            self.paused += process_time() - before
        return True


def main(seed: int, env_steps: int) -> None:
    torch.set_num_threads(1)
    env = gym.make("HalfCheetah-v5")
    noise = NormalActionNoise(np.zeros(6), 0.1 * np.ones(6))
    model = TD3(
        "MlpPolicy", env, learning_rate=1e-3, batch_size=256, learning_starts=10_000,
        action_noise=noise, policy_kwargs={"net_arch": [256, 256]}, seed=seed, device="cpu",
    )  # fmt: skip
    model.learn(env_steps, callback=Tell(seed))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
