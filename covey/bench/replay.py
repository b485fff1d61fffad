"""Rows in and out of a replay, beside a bare look-up of as many rows.

The loop is Ape-X's: 64 rows come in, 512 go out, 512 are revised. The look-up is numpy's, of rows
drawn alike, into arrays that are there already: less cannot be done. Stacks of four frames come
from eight environments side by side; their look-up is of as many frames.
"""

from __future__ import annotations

from functools import partial
from time import monotonic, perf_counter

import numpy as np

from covey.bench.turns import clocked, in_turns, ratio, typical
from covey.links.replay import Replay, Share, layout
from covey.memory.block import size_of
from covey.memory.frames import Stack
from covey.memory.priorities import Draw
from covey.team import Team, run
from covey.types import Array

ADDED, DRAWN = 64, 512
DRAW = Draw(alpha=0.6, beta=0.4)
LOOPS = 200  # in a turn
LANES = 8  # environments of the stacks
CAPACITY = 2**20
Rows = dict[str, Array]


def measure(
    seconds: float = 10.0, capacity: int = CAPACITY, frames: int = 50_000
) -> dict[str, float]:
    """Microseconds of a loop and its parts, rows per second of an actor, and their ratios."""
    rng = np.random.default_rng(0)
    figures = loops("small", small_rows(rng, capacity), seconds / 4)
    figures |= loops("frames", frame_rows(rng, frames), seconds / 4)
    figures |= Stacks(frames // 5).measure(seconds / 4)
    appended: dict[str, float] = run(partial(append, seconds / 4), actor=1, learner=1)[0]
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
    return {**small_rows(rng, num), "obs": frames, "next_obs": np.roll(frames, -1, axis=0)}


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
                bare(column).take(at, axis=0, out=self.out[name], mode="clip")


def bare(column: Array | Stack) -> Array:
    """Memory with as many pictures at least as a column of single pictures has rows."""
    return column.frames.pixels if isinstance(column, Stack) else column


class Stacks:
    """A full replay of stacks, of a film of noise that begins again when it is over."""

    def __init__(self, capacity: int) -> None:
        self.rng = np.random.default_rng(1)
        self.film = self.rng.integers(0, 256, (capacity // 2 + 8 * LANES, 84, 84), np.uint8)
        window = np.lib.stride_tricks.sliding_window_view(self.film, 3 * LANES + 1, axis=0)
        self.stack = window[..., ::LANES].transpose(0, 3, 1, 2)  # a view: frames LANES apart
        self.replay, self.at = Replay(capacity, self.rng), 0
        self.whole = np.zeros((2, 8 * ADDED, 4, 84, 84), np.uint8)
        self.out = np.zeros((DRAWN * 8, 1, 84, 84), np.uint8)
        while self.replay.added < 2 * capacity:
            self.add()

    def rows(self) -> Rows:
        """The next; each env step makes one."""
        obs, next_obs = (self.stack[at : at + ADDED].copy() for at in (self.at, self.at + LANES))
        return {**small_rows(self.rng, ADDED), "obs": obs, "next_obs": next_obs}

    def add(self) -> float:
        """Seconds of a row."""
        rows = self.rows()
        self.at = (self.at + ADDED) % (len(self.stack) - ADDED - LANES)
        return clocked(partial(self.replay.add, rows)) / ADDED

    def write(self) -> float:
        """Seconds of a row whose stacks are only written down."""
        rows, at = self.rows(), self.at % (7 * ADDED)

        def write() -> None:
            self.whole[0, at : at + ADDED] = rows["obs"]
            self.whole[1, at : at + ADDED] = rows["next_obs"]

        return clocked(write) / ADDED

    def sample(self) -> float:
        """Seconds of a batch."""
        return clocked(partial(self.replay.sample, DRAWN))

    def look_up(self) -> float:
        """Seconds of as many frames, into memory that is there."""
        assert self.replay.frames is not None
        pixels = self.replay.frames.pixels
        at = self.rng.integers(self.replay.frames.num, size=len(self.out))
        return clocked(partial(pixels.take, at, axis=0, out=self.out, mode="clip"))

    def measure(self, seconds: float) -> dict[str, float]:
        """Each in turns with what it is compared with."""
        kinds = {"add": self.add, "write": self.write, "sample": self.sample}
        found = in_turns({**kinds, "look_up": self.look_up}, seconds)
        replay, num = self.replay, self.replay.capacity
        assert replay.frames is not None
        return {
            **{f"stacks_{name}_microseconds": 1e6 * typical(v) for name, v in found.items()},
            "stacks_sample_of_look_up": ratio(found["look_up"], found["sample"]),
            "stacks_frames_per_row": float(replay.frames.end_S[0]) / replay.added,
            "stacks_bytes_per_row": size_of(layout(self.rows(), num, 1, 1)) / num,
        }


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
