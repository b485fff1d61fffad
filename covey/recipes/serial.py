"""Everything in one process: collect, learn, look, save; round after round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from covey import steps
from covey.recipes import Recipe
from covey.steps import Collector

if TYPE_CHECKING:
    from covey.session import Session
    from covey.task import Task
    from covey.team import Team


def build(team: Team, session: Session) -> Task:
    """Everything in one process; the other recipes are this list, cut over processes."""
    c = session.config
    env = session.make_env()
    agent = session.make_agent(env)
    collector = Collector(env, agent, c.unroll)
    parts: dict[str, Any] = {"agent": agent, "collector": collector}
    task = team.task()
    task.use(steps.collect(collector, agent))
    if c.replay is None:
        task.use(steps.rows(agent))
    else:
        replay = session.make_replay(agent)
        task.use(steps.store(agent, replay))
        task.use(steps.sample(replay, c.replay.batch, c.replay.reuse, c.replay.warmup))
        parts["replay"] = replay
    task.use(steps.learn(agent))
    if c.replay is not None and c.replay.alpha:
        task.use(steps.revise(replay))
    session.attach(task, agent, env, parts)
    return task


serial = Recipe(build, replays=True)
