"""Rows in and out of a replay, beside a bare look-up of as many rows.

The loop is Ape-X's: 64 rows come in, 512 go out, 512 are revised. The look-up is numpy's, of rows
drawn alike, into arrays that are there already: less cannot be done.
"""

from __future__ import annotations

from functools import partial
from time import monotonic, perf_counter

import numpy as np

from covey.bench.turns import clocked, in_turns, ratio, typical
from covey.links.replay import Replay, Share, layout
from covey.memory.priorities import Draw
from covey.team import Team, run
from covey.types import Array

ADDED, DRAWN = 64, 512
DRAW = Draw(alpha=0.6, beta=0.4)
LOOPS = 200  # in a turn
CAPACITY = 2**20
Rows = dict[str, Array]


def measure(
    seconds: float = 10.0, capacity: int = CAPACITY, frames: int = 50_000
) -> dict[str, float]:
    """Microseconds of a loop and its parts, rows per second of an actor, and their ratios."""
    rng = np.random.default_rng(0)
    figures = loops("small", small_rows(rng, capacity), seconds / 3)
    figures |= loops("frames", frame_rows(rng, frames), seconds / 3)
    appended: dict[str, float] = run(partial(append, seconds / 3), actor=1, learner=1)[0]
    return figures | appended


def small_rows(rng: np.random.Generator, num: int) -> Rows:
    """What CartPole gives."""
    return {
        "obs": rng.random((num, 4), np.float32),
        "action": rng.integers(0, 2, num),
        "return": rng.random(num, np.float32),
        "discount": rng.random(num, np.float32),
        "next_obs": rng.random((num, 4), np.float32),
    }


def frame_rows(rng: np.random.Generator, num: int) -> Rows:
    """The same with a picture each."""
    frames = rng.integers(0, 256, (num, 84, 84), np.uint8)
    return {**small_rows(rng, num), "obs": frames, "next_obs": frames[::-1]}


class Loop:
    """A full replay and its columns once more, bare."""

    def __init__(self, rows: Rows, draw: Draw) -> None:
        self.rng = np.random.default_rng(1)
        num = len(rows["action"])
        self.replay = Replay(num, self.rng, draw=draw)
        self.replay.add(rows, self.rng.random(num))
        self.new = {name: column[:ADDED].copy() for name, column in rows.items()}
        self.first_N, self.error_N = self.rng.random(ADDED), self.rng.random(DRAWN)
        self.out = {n: np.empty((DRAWN, *v.shape[1:]), v.dtype) for n, v in rows.items()}

    def turn(self) -> float:
        """Seconds of a loop."""
        return clocked(self._loops) / LOOPS

    def _loops(self) -> None:
        for _ in range(LOOPS):
            self.replay.add(self.new, self.first_N)
            batch = self.replay.sample(DRAWN)
            if "id" in batch:
                self.replay.revise(batch["id"], self.error_N)

    def look_up(self) -> float:
        """Seconds of as many rows, drawn alike, out of the bare columns."""
        return clocked(self._look_ups) / LOOPS

    def _look_ups(self) -> None:
        for _ in range(LOOPS):
            at = self.rng.integers(self.replay.size, size=DRAWN)
            for name, column in self.replay.columns.items():
                column.take(at, axis=0, out=self.out[name], mode="clip")


def loops(name: str, rows: Rows, seconds: float) -> dict[str, float]:
    """By priority and alike, beside the bare look-up, in turns."""
    by_priority, alike = Loop(rows, DRAW), Loop(rows, Draw())
    found = in_turns(
        {"loop": by_priority.turn, "alike": alike.turn, "look_up": alike.look_up}, seconds
    )
    return {
        f"{name}_loop_microseconds": 1e6 * typical(found["loop"]),
        f"{name}_uniform_loop_microseconds": 1e6 * typical(found["alike"]),
        f"{name}_look_up_microseconds": 1e6 * typical(found["look_up"]),
        f"{name}_loop_of_look_up": ratio(found["look_up"], found["loop"]),
        f"{name}_uniform_loop_of_look_up": ratio(found["look_up"], found["alike"]),
    }


def append(seconds: float, team: Team) -> dict[str, float] | None:
    """An actor that only adds, and a learner that only draws and revises."""
    rows = small_rows(np.random.default_rng(0), ADDED)
    form = layout(rows, CAPACITY, 1, 1)
    share = Share(team.waits, team.rank, team.ranks("actor"), team.ranks("learner"))
    replay = Replay(CAPACITY, team.rng("replay"), True, DRAW, team.block("replay", form), share)
    if team.role == "learner":
        draw_until_stopped(team, replay)
        return None
    first_N, ends = np.random.default_rng(1).random(ADDED), monotonic() + seconds
    began = perf_counter()
    while monotonic() < ends:
        replay.add(rows, first_N)
        team.pulse.beat()
    rate = replay.added / (perf_counter() - began)
    drawn = replay.drawn / (perf_counter() - began)
    team.stop("measured")
    return {
        "actor_rows_per_second": rate, "actor_waited_seconds": replay.waited,
        "learner_rows_per_second_meanwhile": drawn,
    }  # fmt: skip


def draw_until_stopped(team: Team, replay: Replay) -> None:
    """A learner that learns nothing."""
    error_N = np.random.default_rng(2).random(DRAWN)
    while team.stopped is None:
        team.pulse.beat()
        if len(replay):
            replay.revise(replay.sample(DRAWN)["id"], error_N)
