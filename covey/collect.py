"""T env steps of B environments as one unroll, in arrays that are used again every round."""

from __future__ import annotations

import numpy as np

from covey.envs import Envs
from covey.types import Algorithm, Final, Tree, Unroll


class Collector:
    """Acts and writes down what happened.

    An unroll begins with the last `overlap` steps of the one before, so that whoever looks n steps
    ahead finds them whole; at the very start these steps are not valid.
    """

    def __init__(self, envs: Envs, agent: Algorithm, num_steps: int) -> None:
        self.envs, self.agent, self.num_steps = envs, agent, num_steps
        self.overlap = agent.overlap
        lead = (self.overlap + num_steps, envs.num_envs)
        spec = envs.spec
        self.unroll = Unroll(
            obs_TB=envs.empty(lead[0] + 1, lead[1]),
            action_TB=np.zeros((*lead, *spec.action_shape), spec.action_dtype),
            reward_TB=np.zeros(lead, np.float32),
            discount_TB=np.ones(lead, np.float32),
            last_TB=np.zeros(lead, bool),
            valid_TB=np.zeros(lead, bool),
            extra={name: np.zeros(lead, dtype) for name, dtype in agent.extra.items()},
        )
        self._started = False

    def collect(self, env_step: int) -> Unroll:
        """The next unroll; its arrays are overwritten by the one after it."""
        u, envs = self.unroll, self.envs
        if self._started:
            self._carry_over()
        else:
            envs.reset(u.obs_TB[self.overlap])
            self._started = True
        for t in range(self.overlap, self.overlap + self.num_steps):
            u.action_TB[t], extra = self.agent.act(u.obs_TB[t], env_step)
            step = envs.step(u.action_TB[t], u.obs_TB[t + 1])
            u.reward_TB[t], u.discount_TB[t] = step.reward_B, step.discount_B
            u.last_TB[t], u.valid_TB[t] = step.last_B, step.valid_B
            for name, column_B in extra.items():
                u.extra[name][t] = column_B
            u.finals += [Final(t, b, obs) for b, obs in step.finals]
            env_step += envs.num_envs
        return u

    def _carry_over(self) -> None:
        u, n, k = self.unroll, self.num_steps, self.overlap
        u.finals = [Final(f.t - n, f.b, f.obs) for f in u.finals if f.t >= n]
        u.obs_TB[: k + 1] = u.obs_TB[n:].copy()
        for column in self._columns().values():
            column[:k] = column[n:].copy()

    def _columns(self) -> Tree:
        u = self.unroll
        return {
            "action": u.action_TB, "reward": u.reward_TB, "discount": u.discount_TB,
            "last": u.last_TB, "valid": u.valid_TB, **u.extra,
        }  # fmt: skip

    def state(self) -> Tree:
        """What the next unroll begins with, and the environments."""
        u, n = self.unroll, self.num_steps
        return {
            "obs": u.obs_TB[n:].copy(),
            "columns": {name: column[n:].copy() for name, column in self._columns().items()},
            "finals": {str(i): f._asdict() for i, f in enumerate(u.finals) if f.t >= n},
            "envs": self.envs.state(),
        }

    def restore(self, state: Tree) -> bool:
        """Go on from there; False where the environments begin new episodes instead."""
        u, n = self.unroll, self.num_steps
        if not self.envs.restore(state["envs"], state["obs"][-1]):
            return False
        u.obs_TB[n:] = state["obs"]
        for name, column in self._columns().items():
            column[n:] = state["columns"][name]
        u.finals = [Final(f["t"], f["b"], f["obs"]) for f in state["finals"].values()]
        self._started = True
        return True
