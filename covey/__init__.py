"""covey trains reinforcement-learning agents on one core, one machine or a cluster.

The names below are loaded when they are first used, so that `import covey` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey import steps as steps
    from covey.algos.a2c import A2C as A2C
    from covey.algos.d4pg import D4PG as D4PG
    from covey.algos.ddpg import DDPG as DDPG
    from covey.algos.dqn import DQN as DQN
    from covey.algos.ppo import PPO as PPO
    from covey.algos.qrdqn import QRDQN as QRDQN
    from covey.envs import make_env as make_env
    from covey.errors import UserError as UserError
    from covey.evaluation import Evaluator as Evaluator
    from covey.steps import Collector as Collector
    from covey.task import Ctx as Ctx
    from covey.task import Task as Task
    from covey.task import declare as declare
    from covey.task import serial as serial
    from covey.team import Team as Team
    from covey.team import run as run
    from covey.training import evaluate as evaluate
    from covey.training import load as load
    from covey.training import resume as resume
    from covey.training import train as train

_HOMES = {
    "A2C": "covey.algos.a2c",
    "D4PG": "covey.algos.d4pg",
    "DDPG": "covey.algos.ddpg",
    "DQN": "covey.algos.dqn",
    "PPO": "covey.algos.ppo",
    "QRDQN": "covey.algos.qrdqn",
    "Collector": "covey.steps",
    "make_env": "covey.envs",
    "UserError": "covey.errors",
    "Evaluator": "covey.evaluation",
    "Ctx": "covey.task",
    "Task": "covey.task",
    "declare": "covey.task",
    "serial": "covey.task",
    "Team": "covey.team",
    "run": "covey.team",
    "evaluate": "covey.training",
    "load": "covey.training",
    "resume": "covey.training",
    "train": "covey.training",
}
__all__ = [*sorted(_HOMES), "steps"]


def __getattr__(name: str) -> Any:
    if name == "steps":
        return import_module("covey.steps")
    if name not in _HOMES:
        raise AttributeError(f"module 'covey' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
