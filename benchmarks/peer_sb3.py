"""stable-baselines3 on the tasks of `peers.py`; runs inside the peer's own environment.

python peer_sb3.py ppo|dqn-256|dqn-64|cold SEED        prints one line of JSON
"""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

SOLVED = 475.0
NEWEST = 20  # training episodes whose mean return says that it is solved


class StopWhenSolved(BaseCallback):  # type: ignore[misc]
    """Ends training as soon as the newest training episodes reach the threshold."""

    def _on_step(self) -> bool:
        newest = self.model.ep_info_buffer  # holds stats_window_size episodes
        return len(newest) < NEWEST or self.mean() < SOLVED

    def mean(self) -> float:
        """Mean return of the newest training episodes."""
        return float(np.mean([episode["r"] for episode in self.model.ep_info_buffer]))


def ppo(seed: int) -> PPO:
    """rl-zoo3's shape of PPO for CartPole-v1, with constant step size and clipping."""
    return PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=seed), n_steps=32, batch_size=256,
        n_epochs=20, learning_rate=1e-3, gamma=0.98, gae_lambda=0.8, seed=seed, device="cpu",
    )  # fmt: skip


def ppo_zoo(seed: int) -> PPO:
    """rl-zoo3's preset: step size and clipping fall linearly over 100,000 steps."""
    return PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=seed), n_steps=32, batch_size=256,
        n_epochs=20, learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left,
        gamma=0.98, gae_lambda=0.8, stats_window_size=NEWEST, seed=seed, device="cpu",
    )  # fmt: skip


def dqn(seed: int, width: int) -> DQN:
    """rl-zoo3's preset, but epsilon falls over 8,000 steps of 12,000 as it does for covey."""
    return DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=100_000, batch_size=64, learning_starts=1000,
        train_freq=256, gradient_steps=128, learning_rate=2.3e-3, target_update_interval=10,
        gamma=0.99, exploration_fraction=8 / 12, exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [width, width]}, seed=seed, device="cpu",
    )  # fmt: skip


def speed(model: Any, env_steps: int) -> dict[str, float]:
    """Seconds of `learn` alone: imports and construction were before."""
    began = perf_counter()
    model.learn(env_steps)
    seconds = perf_counter() - began
    return {"seconds": seconds, "env_steps": model.num_timesteps, "updates": model._n_updates}


def cold(seed: int) -> dict[str, float]:
    """Train until solved; the caller measures the whole process."""
    model, stop = ppo_zoo(seed), StopWhenSolved()
    model.learn(100_000, callback=stop)
    return {"env_steps": model.num_timesteps, "return": stop.mean()}


def main(name: str, seed: int) -> None:
    torch.set_num_threads(1)
    runs = {
        "ppo": lambda: speed(ppo(seed), 25_600),
        "dqn-256": lambda: speed(dqn(seed, 256), 12_000),
        "dqn-64": lambda: speed(dqn(seed, 64), 12_000),
        "cold": lambda: cold(seed),
    }
    print(json.dumps(runs[name]()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
