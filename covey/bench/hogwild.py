"""Hogwild Q-learning on CartPole-v1: env steps a second of several workers against one, in turns.

All of it counts: acting, learning and the shared optimizer. With fewer cores than workers the limit
is the number of cores, not of workers.
"""

from __future__ import annotations

import os
from functools import partial
from time import process_time
from typing import Any, NamedTuple

from covey import catalog, steps
from covey.algos.dqn import DQN
from covey.bench.actors import watch
from covey.bench.turns import in_turns
from covey.envs import make_env
from covey.memory.pulse import STEPPED
from covey.team import Team, run

WORKERS = (1, 2, 4)


def measure(seconds: float = 4.0, turns_seconds: float = 60.0) -> dict[str, float]:
    """Of each number of workers the fastest turn, of so many seconds each.

    Where others want the processors too, CPU seconds tell what workers cost each other.
    """
    turns: dict[int, list[Rate]] = {num: [] for num in WORKERS}

    def turn(num: int) -> float:
        turns[num].append(rate(num, seconds))
        return turns[num][-1].steps_per_second

    in_turns({str(num): partial(turn, num) for num in WORKERS}, turns_seconds)
    best = {num: max(turns[num]) for num in WORKERS}
    figures: dict[str, float] = {"cores": len(os.sched_getaffinity(0))}
    for num, found in best.items():
        name = f"{num}_workers"
        figures |= {f"{name}_{field}": value for field, value in found._asdict().items()}
        figures[f"{name}_of_one"] = found.steps_per_second / best[1].steps_per_second
    return figures


class Rate(NamedTuple):
    """Of all workers together."""

    steps_per_second: float
    cpu_microseconds_per_step: float


def rate(num: int, seconds: float) -> Rate:
    """Env steps of so many workers."""
    *spent, found = run(partial(work, seconds), actor=num, learner=1)
    cpu, taken = map(sum, zip(*(of for of in spent if of is not None), strict=True))
    return Rate(float(found), 1e6 * cpu / max(1, taken))


def work(seconds: float, team: Team) -> Any:
    """A worker, by the preset: its CPU seconds and env steps. The learner only counts them."""
    config: Any = catalog.configure("dqn", "CartPole-v1", "hogwild")
    if team.role == "learner":
        return watch(team, seconds)
    env = make_env("CartPole-v1", config.num_envs, team.seed)
    agent: Any = team.agent(DQN, env, config.algorithm, apply=team.in_place())
    began = process_time()
    with team.task() as task:
        task.use(steps.collect(env, agent, config.unroll), on="actor")
        task.use(steps.rows(agent), on="actor")
        task.use(steps.learn(agent), on="actor")
        task.run()
    return process_time() - began, int(team.pulse_N[team.rank, STEPPED])
