"""Actors alone: many that wait for their environments, and one that has a fast one.

An environment that waits models a simulator, a robot or a web service: with nothing else in the way
N actors take N / t steps a second. The fast one is CartPole, whose steps cost less than acting on
them: what an actor keeps of the bare environment's rate is what covey leaves of it.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter, process_time, sleep
from typing import Any

import gymnasium as gym
import numpy as np

from covey import steps
from covey.algos.dqn import DQN
from covey.bench.turns import clocked, in_turns, ratio, typical
from covey.envs import Envs, make_env
from covey.links.latest import fields_of
from covey.memory.pulse import STEPPED
from covey.steps import Collector
from covey.task import Task
from covey.team import Team, run
from covey.types import Array, Unroll
from covey.vector import random_actions

CROWDS = ((128, 0.010), (360, 0.0288))  # actors, seconds a step; the second is the Ape-X paper's
UNROLL = 10
NUM_ENVS, FAST_UNROLL, ROUNDS = 16, 32, 8
SETTLE_SECONDS = 1.0
SEEN = np.random.default_rng(0).uniform(-1, 1, (200, 4)).astype(np.float32)


def measure(
    seconds: float = 5.0, crowds: tuple[tuple[int, float], ...] = CROWDS
) -> dict[str, float]:
    """Steps per second over so many seconds, as a share of what is possible."""
    figures: dict[str, float] = {}
    for num, step_seconds in crowds:
        *acted, rate = run(partial(crowd, step_seconds, seconds), actor=num, learner=1)
        told = [of for of in acted if of is not None]  # who is too slow to end is not waited for
        cpu, acted_steps = map(sum, zip(*told, strict=True))
        name = f"{num}_actors_of_{1000 * step_seconds:g}_ms"
        figures |= {
            f"{name}_steps_per_second": rate,
            f"{name}_of_ideal": rate * step_seconds / num,
            f"{name}_cpu_microseconds_per_step": 1e6 * cpu / max(1, acted_steps),
        }
    found: dict[str, float] = run(partial(fast, seconds), actor=1, learner=1)[0]
    return figures | found


class Waiting(gym.Env[Array, Any]):
    """Sleeps, as if something else worked, and costs nothing; an episode has 200 steps."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds, self.t = step_seconds, 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.t = 0
        return SEEN[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Wait, then show something."""
        sleep(self.step_seconds)
        self.t += 1
        return SEEN[self.t % 200], 1.0, False, self.t >= 200, {}


def crowd(step_seconds: float, seconds: float, team: Team) -> Any:
    """An actor: its CPU seconds and steps. The learner: how many steps all took in a second."""
    if team.role == "learner":
        return watch(team, seconds)
    env = make_env(lambda: Waiting(step_seconds), 1, team.seed)
    agent, began = team.agent(DQN, env), process_time()
    with team.task() as task:
        task.use(steps.collect(env, agent, UNROLL), on="actor")
        task.run()
    return process_time() - began, int(team.pulse_N[team.rank, STEPPED])


def watch(team: Team, seconds: float) -> float:
    """Steps of all in a second, once everybody acts."""
    ranks, stepped_N = team.ranks("actor"), team.pulse_N[:, STEPPED]
    while not stepped_N[ranks].all():
        team.waits.nap(0.05)
    team.waits.nap(SETTLE_SECONDS)
    began, before = perf_counter(), stepped_N[ranks].sum()
    team.waits.nap(seconds)
    rate = float(stepped_N[ranks].sum() - before) / (perf_counter() - began)
    team.stop("measured")
    return rate


def fast(seconds: float, team: Team) -> dict[str, float] | None:
    """An actor that refreshes, acts and sends, in turns with the bare environments."""
    env = make_env("CartPole-v1", NUM_ENVS, team.seed)
    agent: Any = team.agent(DQN, env)
    weights = team.latest("weights", agent)
    collector = Collector(env, agent, FAST_UNROLL)
    stream = team.stream("unrolls", fields_of(columns(collector.unroll)), 8, when_full="drop")
    with team.task() as task:
        task.use(steps.refresh(agent, weights), on="actor")
        task.use(steps.collect(collector, agent), on="actor")
        task.use(lambda ctx: stream.put(columns(ctx.unroll)), on="actor")
        task.use(lambda ctx: stream.take(), on="learner")
        if team.role == "learner":
            task.run()
            return None
        figures = compare(task, env, seconds)
        team.stop("measured")
    return figures


def columns(unroll: Unroll) -> dict[str, Array]:
    """What a learner needs of an unroll."""
    return {
        "obs_TB": unroll.obs_TB, "action_TB": unroll.action_TB, "reward_TB": unroll.reward_TB,
        "discount_TB": unroll.discount_TB, "last_TB": unroll.last_TB,
    }  # fmt: skip


def compare(task: Task, env: Envs, seconds: float) -> dict[str, float]:
    """Steps per second of the actor, of the environments it has, and of gymnasium's own."""
    action_B = random_actions(env.spec, NUM_ENVS, np.random.default_rng(0))
    single = gym.make("CartPole-v1")
    single.reset(seed=0)
    bare = env.stepper.env  # type: ignore[union-attr]

    def act() -> None:
        task.run(rounds=task.state()["rounds"] + ROUNDS)

    def step_bare() -> None:
        for _ in range(ROUNDS * FAST_UNROLL):
            bare.step(action_B)

    def step_single() -> None:
        for _ in range(ROUNDS * FAST_UNROLL):
            *_, terminated, truncated, _ = single.step(0)
            if terminated or truncated:
                single.reset()

    actions = {"actor": act, "bare": step_bare, "single": step_single}
    found = in_turns({name: partial(clocked, action) for name, action in actions.items()}, seconds)
    num = ROUNDS * FAST_UNROLL * NUM_ENVS
    return {
        "cartpole_actor_steps_per_second": num / typical(found["actor"]),
        "cartpole_bare_steps_per_second": num / typical(found["bare"]),
        "cartpole_gymnasium_steps_per_second": num / NUM_ENVS / typical(found["single"]),
        "cartpole_actor_of_bare": ratio(found["bare"], found["actor"]),
        "cartpole_actor_of_gymnasium": ratio(found["single"], found["actor"]) * NUM_ENVS,
    }
