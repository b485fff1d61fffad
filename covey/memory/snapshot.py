"""The newest of something, read whole: one writer, any readers, nobody waits.

Four copies take turns and a word says which is the newest. A copy is written again only three
versions later, so a reader that saw fewer go by has read it whole; else it reads the newest again.
A writer that is killed has announced nothing: its successor goes on with the same version.
"""

from __future__ import annotations

from collections.abc import Mapping

from covey.errors import UserError
from covey.memory.block import CELL, Layout, Word, check, fence
from covey.types import Array

COPIES = 4
COPY = "copy."  # before the name of a field, which may be any
MOST_TRIES = 100_000


def layout(fields: Layout) -> Layout:
    """Room for the version and the copies of every field."""
    copies = {COPY + name: ((COPIES, *shape), dtype) for name, (shape, dtype) in fields.items()}
    return {"version": ((CELL,), "i8"), **copies}


class Snapshot:
    """One writer's values. `seen` is the version that this reader read last."""

    def __init__(self, arrays: Mapping[str, Array], name: str = "values") -> None:
        self.name, self._version = name, Word(arrays["version"])
        copies = {
            key.removeprefix(COPY): array for key, array in arrays.items() if key.startswith(COPY)
        }
        self._forms = {key: (array.dtype, array.shape[1:]) for key, array in copies.items()}
        self._copies = [  # views made once: making one takes as long as copying 4 kB
            [(key, array[number, ...]) for key, array in copies.items()] for number in range(COPIES)
        ]
        self.seen = 0
        self.retries = 0

    @property
    def version(self) -> int:
        """How often it was written; 0 is never."""
        return self._version.value

    def write(self, values: Mapping[str, Array]) -> int:
        """Make these the newest; their version comes back."""
        check(self.name, self._forms, values)
        version = self.version + 1
        for name, view in self._copies[version % COPIES]:
            view[...] = values[name]
        fence()
        self._version.value = version
        return version

    def read(self, out: Mapping[str, Array]) -> int | None:
        """Copy the newest values into `out`; its version, or None if it was seen already."""
        for _ in range(MOST_TRIES):
            version = self._version.value
            if version == self.seen:
                return None
            fence()
            for name, view in self._copies[version % COPIES]:
                out[name][...] = view
            fence()
            if self._version.value - version < COPIES - 1:
                self.seen = version
                return version
            self.retries += 1
        raise UserError(f"{self.name}: written faster than they can be read; publish less often.")
