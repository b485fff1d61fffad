"""Unrolls through a stream, beside a plain copy of as many bytes and `multiprocessing.Queue`.

A writer and a reader, two processes of a team. The reader reads an item where it lies, so that one
copy is the least there can be: the limit is that copy, made by the writer alone into as many slots.
"Copied out" is the same with a reader that copies each item into a batch of its own. The queue is
bounded by as many items as the stream.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from covey.bench.turns import in_turns, ratio, typical
from covey.links.stream import Stream
from covey.memory.bell import die_with_parent
from covey.memory.block import Layout
from covey.team import Team, run
from covey.types import Array

SLOTS = 4
UNROLL: Layout = {
    "obs_TF": ((50, 4 * 84 * 84), "u1"), "action_T": ((50,), "i8"), "reward_T": ((50,), "f4"),
    "discount_T": ((50,), "f4"), "number": ((), "i8"),
}  # fmt: skip
SMALL: Layout = {"number": ((), "i8")}
ORDER: Layout = {"kind": ((), "i8"), "num": ((), "i8")}
END, LOOK, COPY, COUNT, ECHO = range(5)  # what the reader does with the items that come


def measure(seconds: float = 10.0) -> dict[str, float]:
    """Both ends in processes of their own; figures are typical of many turns."""
    found: dict[str, float] = run(partial(play, seconds=seconds), writer=1, reader=1)[0]
    return found


def play(team: Team, seconds: float) -> dict[str, float] | None:
    """What the writer and the reader do."""
    there = partial(team.stream, writers="writer", readers="reader")
    orders, unrolls = there("orders", ORDER), there("unrolls", UNROLL, SLOTS)
    small = there("small", SMALL, 1024)
    back = team.stream("back", SMALL, 2, writers="reader", readers="writer")
    if team.role == "writer":
        return Writer(orders, unrolls, small, back).measure(seconds)
    read(orders, unrolls, small, back)
    return None


def read(orders: Stream, unrolls: Stream, small: Stream, back: Stream) -> None:
    """Take as many items as ordered, then say so."""
    batch = {name: np.zeros(shape, dtype) for name, (shape, dtype) in UNROLL.items()}
    while (order := orders.take().values)["kind"] != END:  # type: ignore[union-attr]
        kind, num = int(order["kind"]), int(order["num"])
        source = unrolls if kind in (LOOK, COPY) else small
        for expected in range(num):
            item = source.take().values  # type: ignore[union-attr]
            assert item["number"] == expected
            if kind == ECHO:
                back.put(item)
            if kind == COPY:
                copy_out(item, batch)
        source.give_back()
        back.put({"number": np.array(num)})


def copy_out(item: dict[str, Array], batch: dict[str, Array]) -> None:
    """What a reader does that keeps what it reads."""
    for name, column in item.items():
        batch[name][...] = column


class Writer:
    """Puts, and times it until the reader has them all."""

    def __init__(
        self, orders: Stream, unrolls: Stream, small: Stream, back: Stream
    ) -> None:  # fmt: skip
        self.orders, self.unrolls, self.small, self.back = orders, unrolls, small, back
        self.item = {name: np.ones(shape, dtype) for name, (shape, dtype) in UNROLL.items()}
        self.size = sum(column.nbytes for column in self.item.values())
        self.flat = np.ones(self.size, np.uint8)
        self.slots_SN = np.ones((SLOTS, self.size), np.uint8)

    def measure(self, seconds: float) -> dict[str, float]:
        """Seconds of every item, in turns, as figures."""
        actions: dict[str, Callable[[], float]] = {
            "stream": partial(self.put, LOOK, 200), "memcpy": partial(self.copy, 200),
            "copied": partial(self.put, COPY, 200), "queue": partial(self.queue, 20),
            "small": partial(self.put, COUNT, 2000), "queue_small": partial(self.queue_small, 2000),
            "echo": partial(self.echo, 200), "pipe_echo": partial(self.pipe_echo, 200),
        }  # fmt: skip
        in_turns(actions, 0)
        found = in_turns(actions, seconds)
        self.orders.put({"kind": np.array(END), "num": np.array(0)})
        gigabytes = {name: self.size / 1e9 / typical(found[name]) for name in found}
        return {
            "unroll_megabytes": self.size / 1e6,
            "memcpy_gigabytes_per_second": gigabytes["memcpy"],
            "stream_gigabytes_per_second": gigabytes["stream"],
            "stream_copied_out_gigabytes_per_second": gigabytes["copied"],
            "queue_gigabytes_per_second": gigabytes["queue"],
            "stream_of_memcpy": ratio(found["memcpy"], found["stream"]),
            "stream_copied_out_of_memcpy": ratio(found["memcpy"], found["copied"]),
            "stream_of_queue": ratio(found["queue"], found["stream"]),
            "small_items_per_second": 1 / typical(found["small"]),
            "small_items_of_queue": ratio(found["queue_small"], found["small"]),
            "round_trip_microseconds": 1e6 * typical(found["echo"]),
            "pipe_round_trip_microseconds": 1e6 * typical(found["pipe_echo"]),
            "round_trip_of_pipe": ratio(found["echo"], found["pipe_echo"]),
        }

    def put(self, kind: int, num: int) -> float:
        """Through the stream."""
        stream = self.small if kind == COUNT else self.unrolls
        item = {"number": np.array(0)} if kind == COUNT else {**self.item, "number": np.array(0)}
        began = perf_counter()
        self.orders.put({"kind": np.array(kind), "num": np.array(num)})
        for number in range(num):
            item["number"][...] = number
            stream.put(item)
        self.back.take()
        return (perf_counter() - began) / num

    def copy(self, num: int) -> float:
        """The least that has to be done."""
        began = perf_counter()
        for number in range(num):
            np.copyto(self.slots_SN[number % SLOTS], self.flat)
        return (perf_counter() - began) / num

    def queue(self, num: int) -> float:
        """Through a bounded `multiprocessing.Queue`."""
        return through_queue(self.item, num, SLOTS)

    def queue_small(self, num: int) -> float:
        """The same with numbers."""
        return through_queue(1, num, 1024)

    def echo(self, num: int) -> float:
        """There and back, one at a time."""
        self.orders.put({"kind": np.array(ECHO), "num": np.array(num)})
        began = perf_counter()
        for number in range(num):
            self.small.put({"number": np.array(number)})
            self.back.take()
        seconds = (perf_counter() - began) / num
        self.back.take()
        return seconds

    def pipe_echo(self, num: int) -> float:
        """The same through two bare pipes: two processes that wake each other."""
        there, back = os.pipe(), os.pipe()

        def answer() -> None:
            for _ in range(num + 1):
                os.write(back[1], os.read(there[0], 8))

        with beside(answer):
            os.write(there[1], b"12345678")
            os.read(back[0], 8)
            began = perf_counter()
            for _ in range(num):
                os.write(there[1], b"12345678")
                os.read(back[0], 8)
            seconds = (perf_counter() - began) / num
        for fd in (*there, *back):
            os.close(fd)
        return seconds


def through_queue(item: Any, num: int, most: int) -> float:
    """Seconds an item takes from this process to another."""
    queue = multiprocessing.get_context("fork").Queue(most)
    done = os.pipe()

    def drain() -> None:
        queue.get()
        os.write(done[1], b"!")
        for _ in range(num):
            queue.get()
        os.write(done[1], b"!")

    with beside(drain):
        queue.put(item)  # starts its thread
        os.read(done[0], 1)
        began = perf_counter()
        for _ in range(num):
            queue.put(item)
        os.read(done[0], 1)
        seconds = (perf_counter() - began) / num
        queue.close()
        queue.join_thread()
    for fd in done:
        os.close(fd)
    return seconds


@contextmanager
def beside(action: Callable[[], None]) -> Iterator[None]:
    """A process that does it, as long as this lasts."""
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)
            action()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
