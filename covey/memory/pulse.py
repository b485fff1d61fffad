"""What a member is doing and that it gets on: words that the supervisor reads, never a ping.

A thread that answers pings would go on answering while the environment hangs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from covey.memory.block import CELL, Layout, Word
from covey.types import Array

STARTING, RUNNING, RESETTING, WAITING, SAVING, ENDED = range(6)
PHASES = ("starting", "running", "resetting", "waiting", "saving", "ended")
BEAT, PHASE, STEPPED, GENERATION = range(4)


def layout(num_members: int) -> Layout:
    """A line per member."""
    return {"pulse": ((num_members, CELL), "i8")}


class Pulse:
    """One member's line; without one, a line of this process alone."""

    def __init__(self, line: Array | None = None) -> None:
        self.line = np.zeros(CELL, np.int64) if line is None else line
        self._outside = STARTING  # its phase when nobody is `during` another
        self._inside: list[int] = []  # what its threads are `during`
        self._beat, self._phase, self._stepped = (
            Word(self.line[i : i + 1]) for i in (BEAT, PHASE, STEPPED)
        )

    def beat(self, env_steps: int = 0) -> None:
        """Something was done; of it so many steps of environments."""
        self._beat.value += 1
        if env_steps:  # one thread steps: another's beat must not undo its sum
            self._stepped.value += env_steps

    @property
    def stepped(self) -> int:
        """Steps of environments ever taken by this member and its predecessors."""
        return self._stepped.value

    @property
    def phase(self) -> int:
        """What it is doing."""
        return self._phase.value

    @contextmanager
    def during(self, phase: int) -> Iterator[None]:
        """Doing this, which has its own patience; then what it was doing before."""
        if not self._inside:
            self._outside = self.phase
        self._inside.append(phase)
        self._phase.value = phase
        try:
            yield
        finally:
            self._inside.remove(phase)
            self._phase.value = self._inside[-1] if self._inside else self._outside
            self.beat()

    def enter(self, phase: int) -> None:
        """Doing this from now on."""
        self._outside = self._phase.value = phase
        self.beat()
