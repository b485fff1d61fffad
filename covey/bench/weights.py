"""Refreshing weights beside a plain copy of as many bytes, and whether a reader sees a mixture.

The writer has something new a thousand times a second. While refreshing is timed, every other time
it goes plainly into memory that both have, without any care for readers: copying that is the limit,
since those bytes too have just been written by another process. All numbers of a version are the
same and say which: two kinds of them, or the wrong one, are a torn read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from time import monotonic, sleep

import numpy as np

from covey.bench.turns import clocked, ratio, typical
from covey.memory.block import Word
from covey.memory.snapshot import COPIES
from covey.team import Team, run
from covey.types import Array

SIZES = {"18kB": 4_610, "356kB": 89_094, "5.8MB": 1_453_073}  # float32 of three usual networks
PERIOD = 0.001  # seconds between two versions
KINDS = 7  # of numbers; a copy's next ones differ, as 7 and the number of copies share no factor
TIMING, READING = 0, 1


def measure(seconds: float = 2.0, reads: int = 0) -> dict[str, float]:
    """For each size so many seconds of refreshing, then three times as many or so many `reads`."""
    of_writer, of_reader = run(partial(play, seconds=seconds, reads=reads), learner=1, reader=1)
    return {
        f"{name}_{size}": value
        for size in SIZES
        for name, value in {**of_reader[size], **of_writer[size]}.items()
    }


def play(team: Team, seconds: float, reads: int) -> dict[str, dict[str, float]]:
    """What the writer and the reader do, size after size."""
    return {size: Pair(team, size).measure(seconds, reads) for size in SIZES}


class Pair:
    """The weights of one size, as they are published and plainly; one end of both."""

    def __init__(self, team: Team, size: str) -> None:
        num = SIZES[size]
        self.writes = team.role == "learner"
        values = {"flat": np.zeros(num, np.float32), "updates": np.array(0)}
        self.into: dict[str, Array] = values
        self.latest = team.latest(f"weights {size}", values, publish=False)
        form = {"copy": ((COPIES, num), "f4"), "tick": ((8,), "i8"), "phase": ((8,), "i8")}
        block = team.block(f"plain {size}", form)
        self.plain, self.tick, self.phase = block["copy"], Word(block["tick"]), Word(block["phase"])

    def measure(self, seconds: float, reads: int) -> dict[str, float]:
        """The figures of this end."""
        if self.writes:
            return self.write()
        timed = self.refresh(seconds)
        self.phase.value = READING
        found = self.read(3 * seconds, reads)
        self.phase.value = READING + 1
        return {**timed, **found}

    def write(self) -> dict[str, float]:
        """Something new each period, until the reader has enough."""
        sources = [np.full(self.plain.shape[1], kind, np.float32) for kind in range(KINDS)]
        published, copied, num, began = [], [], 0, monotonic()
        due = began
        for tick in itertools.count(1):
            if (phase := self.phase.value) > READING:
                break
            if phase == TIMING and tick % 2:
                copied.append(clocked(lambda: self.copy(sources[self.tick.value % KINDS])))
            else:
                version = self.latest.version + 1
                values = {"flat": sources[version % KINDS], "updates": np.array(version)}
                published.append(clocked(partial(self.latest.publish, values)))
            if phase == TIMING:
                num, began = self.latest.version, monotonic()
            due = max(due + PERIOD, monotonic())
            sleep(max(0.0, due - monotonic()))
        rate = (self.latest.version - num) / (monotonic() - began)
        return {
            "publish_microseconds": 1e6 * typical(published),
            "publish_of_memcpy": ratio(published, copied),
            "versions_per_second": rate,
        }

    def copy(self, source: Array) -> None:
        """What publishing would be if nobody ever read meanwhile."""
        number = self.tick.value + 1
        np.copyto(self.plain[number % COPIES], source)
        self.tick.value = number

    def refresh(self, seconds: float) -> dict[str, float]:
        """Time what is new, as soon as it is there."""
        refreshed: list[float] = []
        copied: list[float] = []
        nothing: list[float] = []
        flat, ends = self.into["flat"], monotonic() + seconds
        while monotonic() < ends or not refreshed:
            seen, tick = self.latest.seen, self.tick.value
            look(lambda seen=seen: self.latest.version > seen)  # type: ignore[misc]
            refreshed.append(clocked(partial(self.latest.refresh, self.into)))
            nothing.append(clocked(partial(self.latest.refresh, self.into)))
            look(lambda tick=tick: self.tick.value > tick)  # type: ignore[misc]
            newest = self.plain[self.tick.value % COPIES]
            copied.append(clocked(partial(np.copyto, flat, newest)))
        return {
            "refresh_microseconds": 1e6 * typical(refreshed),
            "memcpy_microseconds": 1e6 * typical(copied),
            "nothing_new_microseconds": 1e6 * typical(nothing),
            "refresh_of_memcpy": ratio(refreshed, copied),
        }

    def read(self, seconds: float, reads: int) -> dict[str, float]:
        """Read on and on while it is written, and look at every number."""
        torn = num = before = 0
        flat, ends = self.into["flat"], monotonic() + seconds
        while num < reads or (not reads and monotonic() < ends):
            version = self.latest.read_again(self.into) or 0
            whole = flat.min() == flat.max() == version % KINDS
            torn += not (whole and before <= version == self.into["updates"])
            num, before = num + 1, version
        return {"reads": num, "torn": torn, "retries": self.latest.gauges()[
            f"{self.latest.name}.retries"]}  # fmt: skip


def look(ready: Callable[[], bool], patience: float = 60.0) -> None:
    """Look until it is so, without sleeping: nobody has to wake this process."""
    ends = monotonic() + patience
    while not ready():
        assert monotonic() < ends, "the writer has gone"
        os.sched_yield()
