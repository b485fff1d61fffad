"""`replay`: rows kept in a ring where they are learnt from, drawn uniformly."""

from __future__ import annotations

import numpy as np

from covey.errors import UserError
from covey.links.stream import Item, Stream
from covey.memory.block import Layout
from covey.types import Array, Metrics, Tree

CHUNK = 256  # rows that cross processes at once


class Replay:
    """The newest `capacity` rows. The first `add` makes the columns and fixes their form.

    With a stream, rows come in at its writers and are kept where they are drawn, at its reader.
    """

    def __init__(
        self, capacity: int, rng: np.random.Generator, save_rows: bool = True,
        stream: Stream | None = None, reads: bool = True,
    ) -> None:  # fmt: skip
        self.capacity, self.rng, self.save_rows = capacity, rng, save_rows
        self._stream, self._reads = stream, reads
        self.columns: dict[str, Array] = {}
        self.added = 0  # rows ever added
        self.drawn = 0  # rows ever drawn

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, rows: dict[str, Array]) -> int:
        """Take N rows in; the oldest make room. Returns N."""
        num = len(next(iter(rows.values())))
        if self._stream is None:
            self._keep(rows, num)
            return num
        if any(len(column) != num for column in rows.values()):
            lengths = ", ".join(f"'{name}' {len(column)}" for name, column in rows.items())
            raise UserError(f"replay columns must be of one length, but have: {lengths}.")
        for start in range(0, num, CHUNK):
            size = min(CHUNK, num - start)
            part = {name: _padded(column[start : start + size]) for name, column in rows.items()}
            self._stream.put({"rows": np.array(size), **part})
        return num

    def wait(self, added: int) -> None:
        """Take in what others have added, waiting until it is so many rows in all, ever."""
        if self._stream is None or not self._reads:
            return
        while self.added < added and self._keep_item(self._stream.take()):
            pass
        for _ in range(self._stream.depth):  # what is there now: more may come for ever
            self._keep_item(self._stream.take_now())
        self._stream.give_back()

    def _keep_item(self, item: Item | None) -> bool:
        if item is None:
            return False
        num = int(item.values["rows"])
        rows = {name: column[:num] for name, column in item.values.items() if name != "rows"}
        self._keep(rows, num)
        return True

    def _keep(self, rows: dict[str, Array], num: int) -> None:
        if not self.columns:
            shape = (self.capacity,)
            self.columns = {k: np.zeros(shape + v.shape[1:], v.dtype) for k, v in rows.items()}
        self._check(rows, num)
        start = max(0, num - self.capacity)
        slots = (self.added + np.arange(start, num)) % self.capacity
        for name, column in self.columns.items():
            column[slots] = rows[name][start:]
        self.added += num

    def _check(self, rows: dict[str, Array], num: int) -> None:
        for name in self.columns.keys() | rows.keys():
            column, value = self.columns.get(name), rows.get(name)
            if (
                column is None
                or value is None
                or ((value.dtype, value.shape) != (column.dtype, (num, *column.shape[1:])))
            ):
                holds = "nothing" if column is None else _form(column, num)
                given = "nothing" if value is None else _form(value, len(value))
                raise UserError(f"replay column '{name}' holds {holds} but was given {given}.")

    def sample(self, num: int) -> dict[str, Array]:
        """`num` rows, each equally likely, with replacement."""
        assert len(self) > 0, "sample from an empty replay"
        slots = self.rng.integers(len(self), size=num)
        self.drawn += num
        return {name: column[slots] for name, column in self.columns.items()}

    def gauges(self) -> Metrics:
        """Rows ever added and drawn, told where they are kept, and what is on its way."""
        moved = {} if self._stream is None else self._stream.gauges()
        if not self._reads:
            return moved
        return {"replay.added": float(self.added), "replay.drawn": float(self.drawn), **moved}

    def state(self) -> Tree:
        """The rows, the counts and the random state."""
        kept = len(self) if self.save_rows else 0
        return {
            "columns": {name: column[:kept] for name, column in self.columns.items()},
            "added": self.added,
            "drawn": self.drawn,
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: Tree) -> bool:
        """Take them back; False if the rows were not saved, so that filling begins anew."""
        self.rng.bit_generator.state = state["rng"]
        kept = min(state["added"], self.capacity)
        if any(len(column) != kept for column in state["columns"].values()):
            return False
        self.added, self.drawn, self.columns = state["added"], state["drawn"], {}
        for name, saved in state["columns"].items():
            self.columns[name] = np.zeros((self.capacity, *saved.shape[1:]), saved.dtype)
            self.columns[name][:kept] = saved
        return True


def fields_of(rows: dict[str, Array]) -> Layout:
    """How rows of this form cross processes: in chunks, with their number."""
    chunks = {name: ((CHUNK, *column.shape[1:]), column.dtype) for name, column in rows.items()}
    return {"rows": ((), "i8"), **chunks}


def _padded(column: Array) -> Array:
    if len(column) == CHUNK:
        return column
    whole = np.zeros((CHUNK, *column.shape[1:]), column.dtype)
    whole[: len(column)] = column
    return whole


def _form(column: Array, num: int) -> str:
    return f"{column.dtype}{list(column.shape[1:])} in {num} rows"
