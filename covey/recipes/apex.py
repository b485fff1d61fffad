"""Actors fill a sharded replay, learners draw from it by priority (Horgan et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey import steps
from covey.recipes import Recipe
from covey.steps import Collector

if TYPE_CHECKING:
    from covey.session import Session
    from covey.task import Task
    from covey.team import Team

MOST = 8  # batches in a round of the learner: so late, at most, come revisions and new weights


def build(team: Team, session: Session) -> Task:
    """Actors store rows where they are; the learner draws, revises and publishes."""
    c, r = session.config, session.config.replay
    assert r is not None
    env = session.make_env(acts=team.plays("actor"))
    together = c.learners > 1 and team.plays("learner")
    agent = session.make_agent(env, team.averaged() if together else None)
    weights = team.latest("weights", agent, publish=False)
    replay = session.make_replay(agent)
    task = team.task()
    task.use(steps.refresh(agent, weights), on="actor")
    task.use(steps.collect(Collector(env, agent, c.unroll), agent), on="actor")
    task.use(steps.store(agent, replay), on="actor")
    task.use(steps.sample(replay, r.batch, r.reuse, r.warmup, r.ahead, MOST), on="learner")
    task.use(steps.learn(agent), on="learner")
    task.use(steps.revise(replay), on="learner")
    task.use(steps.publish(agent, weights), on="learner")
    task.use(steps.refresh(agent, weights), on="evaluator")
    task.use(steps.rest(team.waits), on="evaluator")
    parts = {"agent": agent, "replay": replay}
    session.attach(task, agent, env, parts, links=(replay, weights), weights=weights)
    return task


apex = Recipe(build, {"actor": "actors", "learner": "learners", "evaluator": 1}, replays=True)
