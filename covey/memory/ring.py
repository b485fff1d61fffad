"""A bounded queue from one writer to one reader: slots in a ring, what is new is said last.

The writer alone moves `head` and the reader alone `tail`, so neither can hold up the other by
dying: what was half written was never announced, and a successor goes on at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping

from covey.errors import UserError
from covey.memory.block import CELL, Layout, Word, fence
from covey.types import Array


def layout(fields: Layout, slots: int, rings: int) -> Layout:
    """Room for `rings` rings of `slots` items each."""
    items = {name: ((rings, slots, *shape), dtype) for name, (shape, dtype) in fields.items()}
    ends = {end: ((rings, CELL), "i8") for end in ("head", "tail", "dropped")}
    return {**ends, **items}


class Ring:
    """Ring `number` of a block. `lossy`: a full ring takes new items and loses the oldest."""

    def __init__(
        self, arrays: Mapping[str, Array], number: int, name: str, lossy: bool = False
    ) -> None:
        self.name, self.lossy = name, lossy
        self._head, self._tail, self._dropped = (
            Word(arrays[end][number]) for end in ("head", "tail", "dropped")
        )
        self._fields = {
            key: array[number]
            for key, array in arrays.items()
            if key not in ("head", "tail", "dropped")
        }
        self.slots = len(next(iter(self._fields.values())))
        self._forms = {key: (field.dtype, field.shape[1:]) for key, field in self._fields.items()}

    @property
    def written(self) -> int:
        """Items ever put in."""
        return self._head.value

    @property
    def taken(self) -> int:
        """Items that the reader is done with; those dropped are not among them."""
        return self._tail.value - self._dropped.value

    @property
    def dropped(self) -> int:
        """Items lost to newer ones, as far as the reader has seen."""
        return self._dropped.value

    @property
    def depth(self) -> int:
        """Items between the two ends."""
        return self._head.value - self._tail.value

    @property
    def full(self) -> bool:
        """Whether an item put in now would have to wait; never if it is lossy."""
        return not self.lossy and self.depth >= self.slots

    def put(self, item: Mapping[str, Array]) -> None:
        """Copy an item in; the caller has seen that the ring is not full."""
        assert not self.full
        self._check(item)
        head = self._head.value
        for key, field in self._fields.items():
            field[head % self.slots] = item[key]
        fence()
        self._head.value = head + 1

    def _check(self, item: Mapping[str, Array]) -> None:
        for key in self._forms.keys() | item.keys():
            form, value = self._forms.get(key), item.get(key)
            if form is None or value is None or (value.dtype, value.shape) != form:
                holds = "nothing" if form is None else f"{form[0]}{list(form[1])}"
                given = "nothing" if value is None else f"{value.dtype}{list(value.shape)}"
                raise UserError(f"{self.name}: field '{key}' holds {holds} but was given {given}.")

    def first(self) -> dict[str, Array] | None:
        """The oldest item, or None: views that stand until `done`, or a copy if it is lossy."""
        if self.depth <= 0:
            return None
        fence()
        if self.lossy:
            return self._copy_of_first()
        slot = self._tail.value % self.slots
        return {key: field[slot] for key, field in self._fields.items()}

    def _copy_of_first(self) -> dict[str, Array]:
        while True:
            # of the slots, one may be being written: what it held is lost already
            lost = self.depth - (self.slots - 1)
            if lost > 0:
                self._dropped.value += lost
                self._tail.value += lost
            slot = self._tail.value % self.slots
            item = {key: field[slot].copy() for key, field in self._fields.items()}
            fence()
            if self.depth <= self.slots - 1:
                return item

    def done(self) -> None:
        """Give the oldest item's slot back."""
        fence()
        self._tail.value += 1
