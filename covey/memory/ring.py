"""A bounded queue from one writer to one reader: slots in a ring, what is new is said last.

The writer alone moves `head` and the reader alone `tail`, so neither can hold up the other by
dying: what was half written was never announced, and a successor goes on at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping

from covey.memory.block import CELL, Layout, Word, check, fence
from covey.types import Array

ITEM = "item."  # before the name of a field, which may be any
AT, TOTAL = 0, 1


def layout(fields: Layout, slots: int, rings: int) -> Layout:
    """Room for `rings` rings of `slots` items each."""
    ends = {end: ((rings, CELL), "i8") for end in ("head", "tail", "dropped")}
    items = {ITEM + key: ((rings, slots, *shape), dtype) for key, (shape, dtype) in fields.items()}
    return {**ends, **items}


class Ring:
    """Ring `number` of a block. `lossy`: a full ring takes new items and loses the oldest."""

    def __init__(
        self, arrays: Mapping[str, Array], number: int, name: str, lossy: bool = False
    ) -> None:
        self.name, self.lossy = name, lossy
        self._head, self._tail = Word(arrays["head"][number]), Word(arrays["tail"][number])
        drops = arrays["dropped"][number]
        self._drops = [(Word(drops[i:]), Word(drops[i + 1 :])) for i in (0, 2)]
        self._fields = {
            key.removeprefix(ITEM): array[number]
            for key, array in arrays.items()
            if key.startswith(ITEM)
        }
        self.slots = len(next(iter(self._fields.values())))
        # of a lossy ring's slots one may be being written at any time
        self._most = self.slots - lossy
        self._forms = {key: (field.dtype, field.shape[1:]) for key, field in self._fields.items()}

    @property
    def _ahead(self) -> int:
        tail = self._tail.value  # before the head, so that nobody ever sees less than nothing
        return self._head.value - tail

    @property
    def written(self) -> int:
        """Items ever put in."""
        return self._head.value

    @property
    def taken(self) -> int:
        """Items that the reader is done with: written = taken + depth + dropped."""
        return self._tail.value - self._skipped()[TOTAL].value

    @property
    def dropped(self) -> int:
        """Items lost to newer ones."""
        return self._skipped()[TOTAL].value + max(0, self._ahead - self._most)

    @property
    def depth(self) -> int:
        """Items that can still be read."""
        return min(self._ahead, self._most)

    @property
    def full(self) -> bool:
        """Whether an item put in now would have to wait; never if it is lossy."""
        return not self.lossy and self._ahead >= self.slots

    def put(self, item: Mapping[str, Array]) -> None:
        """Copy an item in; the caller has seen that the ring is not full."""
        assert not self.full
        check(self.name, self._forms, item)
        head = self._head.value
        for key, field in self._fields.items():
            field[head % self.slots] = item[key]
        fence()
        self._head.value = head + 1

    def first(self) -> dict[str, Array] | None:
        """The oldest item, or None: views that stand until `done`, or a copy if it is lossy."""
        if self._ahead <= 0:
            return None
        fence()
        if self.lossy:
            return self._copy_of_first()
        slot = self._tail.value % self.slots
        return {key: field[slot, ...] for key, field in self._fields.items()}

    def _copy_of_first(self) -> dict[str, Array]:
        while True:
            lost = self._ahead - self._most
            if lost > 0:
                self._skip(lost)
            slot = self._tail.value % self.slots
            item = {key: field[slot, ...].copy() for key, field in self._fields.items()}
            fence()
            if self._ahead <= self._most:
                return item

    def _skipped(self) -> tuple[Word, Word]:
        """Of the two accounts of what was skipped, the one that counts: how much, and as of where.

        An account holds once the tail is there, so that the one store that moves the tail also
        moves the account: a reader that is killed has skipped all or nothing.
        """
        tail = self._tail.value
        return max(self._drops, key=lambda d: (d[AT].value <= tail, d[TOTAL].value))

    def _skip(self, num: int) -> None:
        now, tail = self._skipped(), self._tail.value + num
        new = self._drops[0] if now is self._drops[1] else self._drops[1]
        new[AT].value = tail  # it does not count from here on until the tail has moved
        fence()
        new[TOTAL].value = now[TOTAL].value + num
        fence()
        self._tail.value = tail

    def done(self) -> None:
        """Give the oldest item's slot back."""
        fence()
        self._tail.value += 1
