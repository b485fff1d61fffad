"""`stream`: each item to one reader, nothing lost or doubled, bounded.

A ring from every writer; reader r of R drains the rings r, r + R, ... in turns. When a writer's
ring is full it waits, or, `when_full="drop"`, the oldest item makes room and is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from covey.errors import UserError
from covey.links.waits import PATIENCE, Waits
from covey.memory.block import Block
from covey.memory.ring import Ring
from covey.types import Array, Metrics


class Item(NamedTuple):
    """What was taken, and which writer put it in."""

    values: dict[str, Array]
    writer: int


class Stream:
    """`writers` and `readers` are ranks; a member may be both."""

    def __init__(
        self, name: str, block: Block, waits: Waits, rank: int,
        writers: Sequence[int], readers: Sequence[int], when_full: str = "wait",
    ) -> None:  # fmt: skip
        self.name, self._waits = name, waits
        self._rings = [
            Ring(block.arrays, i, name, when_full == "drop") for i in range(len(writers))
        ]
        self._readers = list(readers)
        self._own = writers.index(rank) if rank in writers else None
        if len(readers) > len(writers):
            raise UserError(
                f"'{name}' has {len(readers)} readers and {len(writers)} writers; "
                "each reader needs a writer of its own."
            )
        first = self._readers.index(rank) if rank in readers else len(self._rings)
        self._mine = list(range(first, len(self._rings), len(self._readers)))
        self._writers = list(writers)
        self._next = 0
        self._holding: int | None = None

    def put(self, item: Mapping[str, Array], seconds: float = PATIENCE) -> None:
        """Copy an item in, waiting for room."""
        if self._own is None:
            raise UserError(
                f"'{self.name}' is written by {self._waits.names(self._writers)}, not by this "
                "member."
            )
        ring, reader = self._rings[self._own], self._readers[self._own % len(self._readers)]
        if ring.full:
            if reader == self._writers[self._own]:
                raise UserError(
                    f"'{self.name}' is full ({ring.slots} items) and this very member takes from "
                    "it: take before putting more, or give it more slots."
                )
            self._waits.until(lambda: not ring.full, lambda: self._no_room(reader), seconds)
        ring.put(item)
        self._waits.ring(reader)

    def take(self, seconds: float = PATIENCE) -> Item | None:
        """The next item, waiting for it; None only where there is nobody to wait for.

        Its arrays stand until the next `take`: the slot is given back only then.
        """
        self.give_back()
        if not self._mine:
            raise UserError(
                f"'{self.name}' is read by {self._waits.names(self._readers)}, not by this member."
            )
        self._waits.until(
            lambda: any(self._rings[i].depth > 0 for i in self._mine), self._no_item, seconds
        )
        return self.take_now()

    def _no_room(self, reader: int) -> str:
        return f"room in '{self.name}'; absent: {self._waits.names([reader])}, who takes from it"

    def _no_item(self) -> str:
        return f"an item of '{self.name}'; absent: " + self._waits.names(
            self._writers[i] for i in self._mine
        )

    def take_now(self) -> Item | None:
        """The next item if there is one."""
        self.give_back()
        for turn in range(len(self._mine)):
            number = self._mine[(self._next + turn) % len(self._mine)]
            values = self._rings[number].first()
            if values is not None:
                self._next = (self._next + turn + 1) % len(self._mine)
                self._holding = number
                return Item(values, self._writers[number])
        return None

    def give_back(self) -> None:
        """Done with the item taken last: its slot is free."""
        if self._holding is not None:
            self._rings[self._holding].done()
            self._waits.ring(self._writers[self._holding])
            self._holding = None

    @property
    def written(self) -> int:
        """Items ever put in, by all writers."""
        return sum(ring.written for ring in self._rings)

    @property
    def depth(self) -> int:
        """Items that wait for their reader."""
        return sum(ring.depth for ring in self._rings)

    @property
    def dropped(self) -> int:
        """Items that newer ones replaced."""
        return sum(ring.dropped for ring in self._rings)

    @property
    def taken(self) -> int:
        """Items that their reader is done with: written = taken + depth + dropped."""
        return sum(ring.taken for ring in self._rings)

    def taken_by_writer(self) -> Array:
        """The same for each writer."""
        return np.array([ring.taken for ring in self._rings])

    def gauges(self) -> Metrics:
        """Depth and account."""
        found = {"written": self.written, "taken": self.taken, "depth": self.depth,
                 "dropped": self.dropped}  # fmt: skip
        return {f"{self.name}.{key}": float(value) for key, value in found.items()}
