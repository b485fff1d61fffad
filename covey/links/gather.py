"""`gather`: in lockstep, one item of every member a round, in rank order, whatever its form.

Every member writes into a memory of its own, which grows with its items, and says the round last.
Two places take turns, so that a fast member may write the next round while the last one is read.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from covey.errors import UserError
from covey.links.waits import PATIENCE, Waits
from covey.memory.block import CELL, LINE, Block, Layout, fence
from covey.types import Array, Metrics, dtype_of, plain_dtype

PLACES = 2
SMALLEST = 4096


def layout(num_members: int) -> Layout:
    """What every member says: its round, how much it wrote, and which round it has read."""
    return {
        "round": ((num_members, CELL), "i8"),
        "bytes": ((num_members, PLACES, CELL), "i8"),  # of the description, of all
        "read": ((num_members, CELL), "i8"),
    }


class Gather:
    """`memory(rank, place)` gives the descriptor of a member's own memory."""

    def __init__(
        self, name: str, block: Block, waits: Waits, rank: int, who: list[str],
        memory: Callable[[int, int], int], everyone: bool = True,
    ) -> None:  # fmt: skip
        self.name, self._waits, self._rank, self._who = name, waits, rank, who
        self._round_N, self._bytes = block["round"][:, 0], block["bytes"]
        self._read_N = block["read"][:, 0]
        self._readers = list(range(len(who))) if everyone else [0]
        self._places = {(r, p): Place(memory, r, p) for r in range(len(who)) for p in range(PLACES)}
        self.rounds = int(self._round_N[rank])

    def __call__(
        self, item: Mapping[str, Array], seconds: float = PATIENCE
    ) -> list[dict[str, Array]] | None:
        """Give one item; all items by rank come back, or None to those who do not read.

        The arrays are views that stand until the next call; others read them too, so none writes.
        """
        self._done_reading()
        self._wait_for_readers(seconds)
        self._give(item)
        if self._rank not in self._readers:
            return None
        self._wait_for_all(seconds)
        fence()
        return [self._read(rank) for rank in range(len(self._who))]

    def barrier(self, seconds: float = PATIENCE) -> None:
        """Wait until everybody is here: a gather of nothing."""
        self({}, seconds)
        self._wait_for_all(seconds)

    def gauges(self) -> Metrics:
        """Rounds given, and how many the last member is behind."""
        behind = self.rounds - int(self._round_N.min())
        return {f"{self.name}.rounds": float(self.rounds), f"{self.name}.lag": float(behind)}

    def _wait_for_all(self, seconds: float) -> None:
        now = self.rounds
        self._waits.until(lambda: int(self._round_N.min()) >= now, self._not_here, seconds)

    def _done_reading(self) -> None:
        if self._rank in self._readers and self._read_N[self._rank] < self.rounds:
            fence()
            self._read_N[self._rank] = self.rounds
            if len(self._readers) < len(self._who):  # where all read, who gives has read too
                self._waits.ring_all()

    def _wait_for_readers(self, seconds: float) -> None:
        """Until all have read what stands where this round goes."""
        oldest = self.rounds - PLACES + 1

        def reading() -> list[int]:
            return [r for r in self._readers if self._read_N[r] < oldest]

        self._waits.until(
            lambda: not reading(),
            lambda: (
                f"room in '{self.name}' for round {self.rounds + 1}; absent: "
                + ", ".join(self._who[r] for r in reading())
            ),
            seconds,
        )

    def _give(self, item: Mapping[str, Array]) -> None:
        # not ascontiguousarray, which makes a number a vector
        arrays = {key: np.asarray(value, order="C") for key, value in item.items()}
        about = json.dumps([_form(key, value) for key, value in arrays.items()]).encode()
        place, offset = self.rounds % PLACES, _padded(len(about))
        total = offset + sum(_padded(value.nbytes) for value in arrays.values())
        own = self._places[self._rank, place].at_least(total)
        own[: len(about)] = np.frombuffer(about, np.uint8)
        for value in arrays.values():
            own[offset : offset + value.nbytes] = value.reshape(-1).view(np.uint8)
            offset += _padded(value.nbytes)
        self._bytes[self._rank, place, :2] = len(about), total
        fence()
        self.rounds += 1
        self._round_N[self._rank] = self.rounds
        if int(self._round_N.min()) >= self.rounds:  # only the last one makes anybody ready
            self._waits.ring_all()

    def _read(self, rank: int) -> dict[str, Array]:
        place = (self.rounds - 1) % PLACES
        described, total = (int(n) for n in self._bytes[rank, place, :2])
        there = self._places[rank, place].at_least(total)
        found, offset = {}, _padded(described)
        for key, dtype, shape, size in _forms(bytes(there[:described])):
            found[key] = there[offset : offset + size].view(dtype).reshape(shape)
            found[key].flags.writeable = False
            offset += _padded(size)
        return found

    def _not_here(self) -> str:
        late = [name for name, r in zip(self._who, self._round_N, strict=True) if r < self.rounds]
        return f"round {self.rounds} of '{self.name}'; absent: {', '.join(late)}"


class Place:
    """A member's memory for every second round; whoever reads maps it again when it has grown."""

    def __init__(self, memory: Callable[[int, int], int], rank: int, place: int) -> None:
        self._memory, self._key = memory, (rank, place)
        self._bytes: Array = np.zeros(0, np.uint8)

    def at_least(self, size: int) -> Array:
        """All of it, once it holds `size` bytes. What was there may be gone."""
        if len(self._bytes) < size:
            wanted = max(SMALLEST, 1 << (size - 1).bit_length())
            fd = self._memory(*self._key)
            try:
                if os.fstat(fd).st_size < wanted:
                    os.ftruncate(fd, wanted)
                self._bytes = np.frombuffer(mmap.mmap(fd, wanted), np.uint8)
            finally:
                os.close(fd)  # the mapping keeps the memory
        return self._bytes


def _padded(size: int) -> int:
    return -(-size // LINE) * LINE


def _form(key: str, value: Array) -> list[Any]:
    """As JSON. Objects cannot cross: they would need pickle."""
    if value.dtype.hasobject:
        raise UserError(f"'{key}' holds Python objects; give numbers, records or bytes.")
    kind = plain_dtype(value.dtype)
    if dtype_of(kind) != value.dtype:
        raise UserError(f"'{key}' holds padded or nested records; give packed, flat ones.")
    return [key, kind, list(value.shape)]


@lru_cache(1024)
def _forms(described: bytes) -> list[tuple[str, np.dtype[Any], tuple[int, ...], int]]:
    found = []
    for key, kind, shape in json.loads(described):
        dtype = dtype_of(kind)
        found.append((key, dtype, tuple(shape), dtype.itemsize * int(np.prod(shape, dtype=int))))
    return found
