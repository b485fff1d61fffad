"""Done once in the process that members are forked from, so that none of them does it again.

Torch and numpy prepare themselves at first use; this uses what an actor will use. It starts no
thread: nothing here computes a gradient.
"""

from __future__ import annotations

from covey import catalog, dpg  # noqa: F401  imported for the members, as these:
from covey.algos import a2c, d4pg, ddpg, dqn, ppo, qrdqn  # noqa: F401
from covey.engines.member import seed_globals
from covey.envs import make_env
from covey.steps import Collector
from covey.team import Alone, Seat, Team


def warm() -> None:
    """Take a seat, build agents and act."""
    team = Team(0, seat=Seat(members=(("actor", 0),)), post=Alone())
    seed_globals(team, threads=1)
    env = make_env("CartPole-v1", 1, team.seed)
    for name in ("dqn", "a2c"):
        agent = team.agent(catalog.algorithm(name), env)
        agent.weights()
        Collector(env, agent, 2).collect(0)
    env.close()
    team.close()


warm()
