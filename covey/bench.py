"""This machine's limits and how near covey comes to them, measured in one run."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from covey import catalog
from covey.envs import make_env
from covey.links.replay import Replay
from covey.steps import Collector
from covey.team import Team
from covey.vector import random_actions

NUM_ENVS = 16
UNROLL = 32


def best(action: Callable[[], object], seconds: float = 0.6) -> float:
    """Seconds of the fastest call: on a shared machine the least disturbed one."""
    action()
    ends, shortest = perf_counter() + seconds, float("inf")
    while (began := perf_counter()) < ends:
        action()
        shortest = min(shortest, perf_counter() - began)
    return shortest


def serial() -> dict[str, float]:
    """Acting, learning and both together on CartPole-v1, beside the bare environment."""
    import torch

    torch.set_num_threads(1)
    figures = {"environment_steps_per_second": _bare_environment()}
    for algo in ("dqn", "ppo"):
        for name, value in _algorithm(algo).items():
            figures[f"{algo}_{name}"] = value
        acting = figures[f"{algo}_acting_steps_per_second"]
        figures[f"{algo}_acting_of_environment"] = acting / figures["environment_steps_per_second"]
    return figures


def _bare_environment() -> float:
    env = make_env("CartPole-v1", NUM_ENVS)
    obs_B, rng = env.empty(NUM_ENVS), np.random.default_rng(0)
    env.reset(obs_B)
    actions = random_actions(env.spec, NUM_ENVS, rng)

    def steps() -> None:
        for _ in range(UNROLL):
            env.stepper.env.step(actions)  # type: ignore[union-attr]

    return UNROLL * NUM_ENVS / best(steps)


def _algorithm(algo: str) -> dict[str, float]:
    config = catalog.configure(algo, "CartPole-v1")
    env = make_env("CartPole-v1", NUM_ENVS)
    agent: Any = Team(1).agent(catalog.algorithm(algo), env, config.algorithm)
    collector = Collector(env, agent, UNROLL)
    acting = UNROLL * NUM_ENVS / best(lambda: collector.collect(10**9))
    rows = agent.rows(collector.collect(10**9))
    if config.replay is not None:
        replay = Replay(10_000, np.random.default_rng(0))
        replay.add(rows)
        batch = config.replay.batch
        updates = 1 / best(lambda: agent.learn(replay.sample(batch)))
    else:
        before = agent.updates
        agent.learn(rows)
        updates = (agent.updates - before) / best(lambda: agent.learn(rows))
    return {"acting_steps_per_second": acting, "updates_per_second": updates}


BENCHES = {"serial": serial}
