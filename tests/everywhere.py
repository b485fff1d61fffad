"""Programs run on every engine alike, and the nemesis that kills members of those that die."""

import os
import random
import signal
import time

import pytest

import covey
from covey.engines import processes
from covey.engines.care import Care

LIGHT = ("covey.team", "covey.task")  # for programs that need no torch: they start at once
PID, LIVES = 0, 1

# where processes take more than a few seconds
slowly = pytest.mark.parametrize(
    "everywhere", ["inline", pytest.param("processes", marks=pytest.mark.slow)], indirect=True
)


class Everywhere:
    """An engine to run programs on."""

    def __init__(self, engine):
        self.engine = engine

    def __call__(self, main, seed=1, **members):
        """What each member returned; inline there is one, which plays every role."""
        if self.engine == "inline":
            return [covey.run(main, seed=seed)]
        return covey.run(main, seed=seed, **members)

    def light(self, main, seed=1, replace=("actor", "worker"), **members):
        """The same for a program that needs no torch; who is killed is replaced at once."""
        if self.engine == "inline":
            return [covey.run(main, seed=seed)]
        care = Care(replace=replace, soon=0.0)
        return processes.run(main, seed=seed, members=members, care=care, preload=LIGHT)


class Nemesis:
    """Kills members of some roles at random times, each again only once its successor lives.

    Every member makes one and calls `live`; one of them calls `act` until it is `over`. In one
    process there is nobody to kill.
    """

    def __init__(self, team, kills, *roles, seed=1, mean_wait=0.01):
        self._line_N = team.block("nemesis", {"line": ((team.size, 8), "i8")})["line"]
        self._team, self._mean_wait = team, mean_wait
        self._ranks = [rank for role in roles for rank in team.ranks(role)]
        self._left = 0 if team.roles is None else kills
        self._rng, self._deaths, self._at = random.Random(seed), [0] * team.size, 0.0

    def live(self):
        """This member may be killed from now on."""
        self._line_N[self._team.rank] = [os.getpid(), self._team.generation + 1, *[0] * 6]

    def act(self):
        """Kill somebody, if it is time."""
        now = time.monotonic()
        if not self._left or now < self._at:
            return
        self._at = now + self._rng.expovariate(1 / self._mean_wait)
        rank = self._rng.choice(self._ranks)
        if self._lives(rank):
            self._left, self._deaths[rank] = self._left - 1, self._deaths[rank] + 1
            os.kill(int(self._line_N[rank, PID]), signal.SIGKILL)

    def _lives(self, rank):
        return self._line_N[rank, LIVES] == self._deaths[rank] + 1

    @property
    def over(self):
        """Whether all have been killed that shall be, and their successors live."""
        return not self._left and all(map(self._lives, self._ranks))
