"""`gather`: in lockstep, one item of every member a round, in rank order, whatever its form.

Every member writes into a memory of its own, which grows with its items, and says the round last.
Two places take turns, so that a fast member may write the next round while the last one is read.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Mapping

import numpy as np

from covey.errors import UserError
from covey.links.waits import PATIENCE, Waits
from covey.memory.block import CELL, LINE, Block, Layout, fence
from covey.types import Array, dtype_of, plain_dtype

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
        self._places: dict[tuple[int, int], Place] = {}
        self._memory = memory
        self.rounds = int(self._round_N[rank])

    def __call__(
        self, item: Mapping[str, Array], seconds: float = PATIENCE
    ) -> list[dict[str, Array]] | None:
        """Give one item; all items by rank come back, or None to those who do not read.

        The arrays are views that stand until the next call.
        """
        self._give(item, seconds)
        if self._rank not in self._readers:
            return None
        now = self.rounds
        self._waits.until(lambda: int(self._round_N.min()) >= now, self._absent, seconds)
        fence()
        return [self._read(rank) for rank in range(len(self._who))]

    def barrier(self, seconds: float = PATIENCE) -> None:
        """Wait until everybody is here: a gather of nothing."""
        self({}, seconds)

    def _give(self, item: Mapping[str, Array], seconds: float) -> None:
        self._done_reading()
        place, oldest = self.rounds % PLACES, self.rounds - PLACES + 1
        self._waits.until(
            lambda: all(self._read_N[r] >= oldest for r in self._readers),
            lambda: f"the readers of '{self.name}' to finish round {oldest}", seconds,
        )  # fmt: skip
        _check_plain(item)
        arrays = {key: np.ascontiguousarray(value) for key, value in item.items()}
        about = json.dumps(
            [[key, plain_dtype(v.dtype), list(v.shape)] for key, v in arrays.items()]
        ).encode()
        offset = _padded(len(about))
        total = offset + sum(_padded(v.nbytes) for v in arrays.values())
        own = self._place(self._rank, place).at_least(total)
        own[: len(about)] = np.frombuffer(about, np.uint8)
        for value in arrays.values():
            own[offset : offset + value.nbytes] = value.reshape(-1).view(np.uint8)
            offset += _padded(value.nbytes)
        self._bytes[self._rank, place, :2] = len(about), total
        fence()
        self.rounds += 1
        self._round_N[self._rank] = self.rounds
        for rank in self._readers:
            self._waits.ring(rank)

    def _done_reading(self) -> None:
        if self._rank in self._readers and self._read_N[self._rank] < self.rounds:
            self._read_N[self._rank] = self.rounds
            for rank in range(len(self._who)):
                self._waits.ring(rank)

    def _read(self, rank: int) -> dict[str, Array]:
        place = (self.rounds - 1) % PLACES
        described, total = (int(n) for n in self._bytes[rank, place, :2])
        there = self._place(rank, place).at_least(total)
        found, offset = {}, _padded(described)
        for key, kind, shape in json.loads(bytes(there[:described])):
            dtype = dtype_of(kind)
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            found[key] = there[offset : offset + size].view(dtype).reshape(shape)
            offset += _padded(size)
        return found

    def _place(self, rank: int, place: int) -> Place:
        key = (rank, place)
        if key not in self._places:
            self._places[key] = Place(self._memory(rank, place))
        return self._places[key]

    def _absent(self) -> str:
        late = [name for name, r in zip(self._who, self._round_N, strict=True) if r < self.rounds]
        return f"round {self.rounds} of '{self.name}'; absent: {', '.join(late)}"

    def close(self) -> None:
        """Give the descriptors back."""
        for place in self._places.values():
            place.close()


class Place:
    """A memory that grows; whoever reads maps it again when it has."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._bytes: Array = np.zeros(0, np.uint8)

    def at_least(self, size: int) -> Array:
        """All of it, once it holds `size` bytes."""
        if len(self._bytes) < size:
            wanted = max(SMALLEST, 1 << (size - 1).bit_length())
            if os.fstat(self._fd).st_size < wanted:
                os.ftruncate(self._fd, wanted)
            self._bytes = np.frombuffer(mmap.mmap(self._fd, wanted), np.uint8)
        return self._bytes

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


def _padded(size: int) -> int:
    return -(-size // LINE) * LINE


def _check_plain(item: Mapping[str, Array]) -> None:
    """Arrays of objects cannot cross: they would need pickle."""
    for key, value in item.items():
        if value.dtype.hasobject:
            raise UserError(f"'{key}' holds Python objects; give numbers, records or bytes.")
