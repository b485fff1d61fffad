"""Workers learn alone, on weights and moments that all of them share without a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey import steps
from covey.recipes import Recipe
from covey.steps import Collector

if TYPE_CHECKING:
    from covey.session import Session
    from covey.task import Task
    from covey.team import Team


def build(team: Team, session: Session) -> Task:
    """Every worker updates the same memory (Recht et al. 2011); looks at it are approximate."""
    c = session.config
    env = session.make_env(acts=team.plays("worker"))
    agent = session.make_agent(env, team.in_place())
    still = session.make_agent(env)
    task = team.task()
    task.use(steps.collect(Collector(env, agent, c.unroll), agent), on="worker")
    task.use(steps.rows(agent), on="worker")
    task.use(steps.learn(agent), on="worker")
    task.use(steps.rest(team.waits), on="evaluator")
    task.use(steps.copy_weights(agent, still), on="evaluator")
    session.attach(task, agent, env, {"agent": agent}, evaluated=still)
    return task


hogwild = Recipe(build, {"worker": "workers", "evaluator": 1}, keeper="evaluator", normalizes=False)
