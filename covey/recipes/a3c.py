"""Workers compute gradients, one owner applies them and publishes (Mnih et al. 2016)."""

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
    """Workers push gradients to one owner, who applies the mean of k and publishes."""
    c = session.config
    assert c.gradients is not None
    env = session.make_env(acts=team.plays("worker"))
    gradients = team.gradients(every=c.gradients.every, max_lag=c.gradients.max_lag)
    agent = session.make_agent(env, gradients)
    weights = team.latest("weights", agent, publish=False)
    task = team.task()
    task.use(steps.refresh(agent, weights), on="worker")
    task.use(steps.collect(Collector(env, agent, c.unroll), agent), on="worker")
    task.use(steps.rows(agent), on="worker")
    task.use(steps.learn(agent), on="worker")
    task.use(steps.apply_pushed(agent, gradients), on="learner")
    task.use(steps.publish(agent, weights), on="learner")
    task.use(steps.refresh(agent, weights), on="evaluator")
    task.use(steps.rest(team.waits), on="evaluator")
    session.attach(task, agent, env, {"agent": agent}, links=(gradients, weights), weights=weights)
    return task


a3c = Recipe(
    build, {"worker": "workers", "learner": 1, "evaluator": 1}, pushes=True, normalizes=False
)
