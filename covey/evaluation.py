"""Greedy episodes on environments of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from covey.envs import EnvLike, Envs, make_env
from covey.errors import UserError
from covey.memory.pulse import Pulse
from covey.types import Algorithm

MOST_AT_ONCE = 32
LONGEST_EPISODE = 200_000


class Evaluation(NamedTuple):
    """Returns of greedy episodes."""

    returns: list[float]
    lengths: list[int]

    @property
    def return_mean(self) -> float:
        """Mean return; NaN of no episodes."""
        return float(np.mean(self.returns)) if self.returns else float("nan")

    @property
    def return_std(self) -> float:
        """Standard deviation of the returns; NaN of no episodes."""
        return float(np.std(self.returns)) if self.returns else float("nan")


class Evaluator:
    """Plays `episodes` greedy episodes; each is the first one after a seeded reset.

    Taking first episodes only keeps short ones from being counted more often. The random numbers
    come from the seed and the number given alone, so evaluating changes nothing else.
    """

    def __init__(
        self, agent: Algorithm, env: EnvLike, episodes: int, seed: int,
        env_kwargs: dict[str, object] | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.agent, self.episodes, self.seed, self.stopping = agent, episodes, seed, stopping
        self.env, self.env_kwargs = env, env_kwargs
        self.pulse: Pulse | None = None
        self._envs: Envs | None = None

    def evaluate(self, number: int) -> Evaluation:
        """Play them; `number` tells this evaluation from others. Empty when told to stop."""
        returns: list[float] = []
        lengths: list[int] = []
        while len(returns) < self.episodes and not self.stopping():
            part = self._first_episodes(number, len(returns))
            wanted = self.episodes - len(returns)
            returns += part.returns[:wanted]
            lengths += part.lengths[:wanted]
        if self.stopping():  # what is over by now are the short ones
            return Evaluation([], [])
        return Evaluation(returns, lengths)

    def _first_episodes(self, number: int, done: int) -> Evaluation:
        envs = self._envs = self._envs or make_env(
            self.env, min(self.episodes, MOST_AT_ONCE), env_kwargs=self.env_kwargs, exact=False
        )
        envs.pulse = self.pulse
        envs.reseed(np.random.SeedSequence([self.seed, 0xE7A1, number, done]))
        obs_B = envs.empty(envs.num_envs)
        envs.reset(obs_B)
        return_B, length_B = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        playing_B = np.ones(envs.num_envs, bool)
        while playing_B.any() and not self.stopping():
            action_B, _ = self.agent.act(obs_B, greedy=True)
            step = envs.step(action_B, obs_B)
            return_B[playing_B] += step.reward_B[playing_B]
            length_B += playing_B
            playing_B &= ~step.last_B
            if length_B.max() > LONGEST_EPISODE:
                raise UserError(
                    f"{envs.name}: an evaluation episode did not end in {LONGEST_EPISODE} steps. "
                    "Give the environment a time limit, or set eval_every=0."
                )
        envs.episodes.clear()
        return Evaluation(return_B[~playing_B].tolist(), length_B[~playing_B].tolist())

    def close(self) -> None:
        """Close the environments."""
        if self._envs is not None:
            self._envs.close()
