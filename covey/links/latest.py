"""`latest`: versioned values, the newest wins, read whole; free when nothing is new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from covey.errors import UserError
from covey.links.waits import PATIENCE, Waits
from covey.memory.block import Block, Layout
from covey.memory.snapshot import Snapshot
from covey.types import Array, Metrics


class Latest:
    """Named arrays from one member to all others; of the `writers`, ranks, the first is the one."""

    def __init__(
        self, name: str, block: Block, waits: Waits, rank: int, writers: Sequence[int]
    ) -> None:
        self.name, self._waits, self._rank, self._writers = name, waits, rank, list(writers)
        self._snapshot = Snapshot(block.arrays, name)

    @property
    def version(self) -> int:
        """Of the newest values; 0 before the first."""
        return self._snapshot.version

    @property
    def seen(self) -> int:
        """Of the values that this member has."""
        return self._snapshot.seen

    def publish(self, values: Mapping[str, Array]) -> int:
        """Make these the newest; the newest version comes back.

        Only the first writer's count: two at once would mix. Others of its role leave it to it.
        """
        if self._rank not in self._writers:
            writer = self._waits.names(self._writers[:1])
            raise UserError(f"'{self.name}' is published by {writer}; this member only reads it.")
        if self._rank == self._writers[0]:
            self._snapshot.write(values)
            self._waits.ring_all()
        return self.version

    def refresh(self, into: Mapping[str, Array]) -> int | None:
        """Copy the newest values into these arrays; None, at no cost, if they are there already."""
        return self._snapshot.read(into)

    def read_again(self, into: Mapping[str, Array]) -> int | None:
        """Copy the newest values, also if this member has seen or written them."""
        self._snapshot.seen = 0
        return self.refresh(into)

    def wait(self, newer_than: int = 0, seconds: float = PATIENCE) -> None:
        """Until there is a version above this one."""
        self._waits.until(
            lambda: self.version > newer_than,
            lambda: (
                f"version {newer_than + 1} of '{self.name}'; absent: "
                f"{self._waits.names(self._writers[:1])}, who publishes it"
            ),
            seconds,
        )

    def check(self) -> None:
        """Nobody has seen what was not published."""
        assert self.seen <= self.version, f"{self.name}: {self.seen} of {self.version}"

    def gauges(self) -> Metrics:
        """How far behind this member is, unless it is one that publishes."""
        told = {f"{self.name}.version": float(self.version)}
        if self._rank in self._writers:
            return told
        behind, retries = float(self.version - self.seen), float(self._snapshot.retries)
        return {**told, f"{self.name}.lag": behind, f"{self.name}.retries": retries}


def fields_of(values: Mapping[str, Array]) -> Layout:
    """The form of some arrays."""
    if not values:
        raise UserError("nothing to publish: give at least one array.")
    return {name: (value.shape, value.dtype) for name, value in values.items()}
