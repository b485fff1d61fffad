"""Done once in the process that members are forked from, so that none of them does it again.

Torch and numpy prepare themselves at first use; this uses what an actor will use. It starts no
thread: nothing here computes a gradient.
"""

from __future__ import annotations

import numpy as np

from covey import catalog
from covey.algos import a2c, dqn, ppo  # noqa: F401  imported for the members
from covey.engines import member  # noqa: F401
from covey.envs import make_env
from covey.team import Team


def warm() -> None:
    """Build an agent and act."""
    env = make_env("CartPole-v1", 1)
    obs_B = env.empty(1)
    env.reset(obs_B)
    for name in ("dqn", "a2c"):
        agent = Team(0).agent(catalog.algorithm(name), env)
        agent.act(obs_B)
        agent.weights()
    env.step(np.zeros(1, np.int64), obs_B)
    env.close()


warm()
