"""Hogwild Q-learning on CartPole-v1: env steps a second of several workers against one, in turns.

All of it counts: acting, learning and the shared optimizer. With fewer cores than workers the limit
is the number of cores, not of workers.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from covey import catalog, steps
from covey.algos.dqn import DQN
from covey.bench.actors import watch
from covey.bench.turns import in_turns
from covey.envs import make_env
from covey.team import Team, run

WORKERS = (1, 2, 4)


def measure(seconds: float = 4.0, turns_seconds: float = 60.0) -> dict[str, float]:
    """The fastest of each in turns, for so many seconds each."""
    actions = {str(num): partial(rate, num, seconds) for num in WORKERS}
    found = {int(name): max(rates) for name, rates in in_turns(actions, turns_seconds).items()}
    one = found[1]
    rates = {f"{num}_workers_steps_per_second": found[num] for num in WORKERS}
    ratios = {f"{num}_workers_of_one": found[num] / one for num in WORKERS[1:]}
    return {"cores": len(os.sched_getaffinity(0)), **rates, **ratios}


def rate(num: int, seconds: float) -> float:
    """Env steps a second of so many workers."""
    *_, found = run(partial(work, seconds), actor=num, learner=1)
    return float(found)


def work(seconds: float, team: Team) -> Any:
    """A worker, by the preset; and one that only counts their steps."""
    config: Any = catalog.configure("dqn", "CartPole-v1", "hogwild")
    if team.role == "learner":
        return watch(team, seconds)
    env = make_env("CartPole-v1", config.num_envs, team.seed)
    agent: Any = team.agent(DQN, env, config.algorithm, apply=team.in_place())
    with team.task() as task:
        task.use(steps.collect(env, agent, config.unroll), on="actor")
        task.use(steps.rows(agent), on="actor")
        task.use(steps.learn(agent), on="actor")
        task.run()
    return None
