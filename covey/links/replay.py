"""Rows kept in a ring, drawn uniformly."""

from __future__ import annotations

import numpy as np

from covey.errors import UserError
from covey.types import Array, Tree


class Replay:
    """The newest `capacity` rows. The first `add` makes the columns and fixes their form."""

    def __init__(self, capacity: int, rng: np.random.Generator, save_rows: bool = True) -> None:
        self.capacity, self.rng, self.save_rows = capacity, rng, save_rows
        self.columns: dict[str, Array] = {}
        self.added = 0  # rows ever added
        self.drawn = 0  # rows ever drawn

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, rows: dict[str, Array]) -> int:
        """Take N rows in; the oldest make room. Returns N."""
        num = len(next(iter(rows.values())))
        if not self.columns:
            shape = (self.capacity,)
            self.columns = {k: np.zeros(shape + v.shape[1:], v.dtype) for k, v in rows.items()}
        self._check(rows, num)
        start = max(0, num - self.capacity)
        slots = (self.added + np.arange(start, num)) % self.capacity
        for name, column in self.columns.items():
            column[slots] = rows[name][start:]
        self.added += num
        return num

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


def _form(column: Array, num: int) -> str:
    return f"{column.dtype}{list(column.shape[1:])} in {num} rows"
