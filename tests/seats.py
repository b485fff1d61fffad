"""The members of a team in one process: real links over real memory, and no engine.

Forks of the process (see `apart`) may be these members too: they share what was laid out before.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from covey.memory.block import new_memory
from covey.team import Seat, Team


class Store:
    """The memories of one team, and what its members told."""

    def __init__(self):
        self.fds, self.told = {}, []

    def memory(self, name, size, signature):
        if name not in self.fds:
            self.fds[name] = new_memory(size)
        return os.dup(self.fds[name])

    def tell(self, kind, **what):
        self.told.append((kind, what))

    def __del__(self):
        for fd in self.fds.values():
            os.close(fd)


def seats(seed=1, **members):
    """A team for each member, by rank: seats(worker=2, learner=1)."""
    store = Store()
    who = tuple((role, index) for role, num in members.items() for index in range(num))
    return [Team(seed, seat=Seat(rank, 0, who), post=store) for rank in range(len(who))]


def successor(team):
    """Who takes the place of a member that died."""
    seat = team.seat._replace(generation=team.generation + 1)
    return Team(team.root_seed, seat=seat, post=team.post)


def together(*calls, seconds=30):
    """What each returns, all at the same time: for what waits for the others."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [found.result(seconds) for found in [pool.submit(call) for call in calls]]
