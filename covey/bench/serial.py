"""One process: acting, learning and both together on CartPole-v1, beside the bare environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from covey import catalog
from covey.bench.turns import best
from covey.envs import make_env
from covey.links.replay import Replay
from covey.steps import Collector
from covey.team import Team
from covey.vector import random_actions

NUM_ENVS = 16
UNROLL = 32


def measure(seconds: float = 0.6) -> dict[str, float]:
    """Each figure from its fastest call in so many seconds."""
    import torch

    torch.set_num_threads(1)
    figures = {"environment_steps_per_second": _bare_environment(seconds)}
    for algo in ("dqn", "ppo"):
        for name, value in _algorithm(algo, seconds).items():
            figures[f"{algo}_{name}"] = value
        acting = figures[f"{algo}_acting_steps_per_second"]
        figures[f"{algo}_acting_of_environment"] = acting / figures["environment_steps_per_second"]
    return figures


def _bare_environment(seconds: float) -> float:
    env = make_env("CartPole-v1", NUM_ENVS)
    obs_B, rng = env.empty(NUM_ENVS), np.random.default_rng(0)
    env.reset(obs_B)
    actions = random_actions(env.spec, NUM_ENVS, rng)

    def steps() -> None:
        for _ in range(UNROLL):
            env.stepper.env.step(actions)  # type: ignore[union-attr]

    return UNROLL * NUM_ENVS / best(steps, seconds)


def _algorithm(algo: str, seconds: float) -> dict[str, float]:
    config = catalog.configure(algo, "CartPole-v1")
    env = make_env("CartPole-v1", NUM_ENVS)
    agent: Any = Team(1).agent(catalog.algorithm(algo), env, config.algorithm)
    collector = Collector(env, agent, UNROLL)
    acting = UNROLL * NUM_ENVS / best(lambda: collector.collect(10**9), seconds)
    rows = agent.rows(collector.collect(10**9))
    if config.replay is not None:
        replay = Replay(10_000, np.random.default_rng(0))
        replay.add(rows)
        batch = config.replay.batch
        updates = 1 / best(lambda: agent.learn(replay.sample(batch)), seconds)
    else:
        before = agent.updates
        agent.learn(rows)
        updates = (agent.updates - before) / best(lambda: agent.learn(rows), seconds)
    return {"acting_steps_per_second": acting, "updates_per_second": updates}
