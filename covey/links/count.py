"""`count`: how many there were over all members; exact whenever and however one of them dies."""

from __future__ import annotations

import threading

from covey.errors import UserError
from covey.memory.block import CELL, Block, Layout, Word, fence
from covey.types import Metrics

MOST_PERIODS = 64


def layout(num_members: int) -> Layout:
    """A cell per member, where a resumed count began, and what was announced of each period."""
    return {
        "cell": ((num_members, CELL), "i8"),
        "begun": ((CELL,), "i8"),
        "period": ((MOST_PERIODS, 2), "i8"),
    }


class Count:
    """A 64-bit total: each member adds to its own cell, whoever reads sums them."""

    def __init__(self, name: str, block: Block, rank: int) -> None:
        self.name, self._block = name, block
        self._adding = threading.Lock()  # threads of this member share its cell
        self._cell_N, self._own = block["cell"][:, 0], Word(block["cell"][rank])
        self._rows: dict[int, Word] = {}  # the boundary announced last, by period

    def add(self, num: int) -> int:
        """Add; the new total comes back."""
        with self._adding:
            self._own.value += num
        return self.total

    @property
    def total(self) -> int:
        """Of all members, those that died included."""
        return int(self._cell_N.sum())

    def crossed(self, every: int) -> bool:
        """Whether the total went over a new multiple of `every`: said to one caller of all."""
        if every <= 0:
            return False
        announced = self._rows.get(every) or self._row(every)
        if self.total // every <= announced.value:
            return False
        with self._block.locked():
            reached = self.total // every
            if reached <= announced.value:
                return False
            announced.value = reached
            return True

    def _row(self, every: int) -> Word:
        period = self._block["period"]
        with self._block.locked():
            for row in range(MOST_PERIODS):
                if period[row, 0] == 0:
                    period[row, 1] = self._block["begun"][0] // every
                    fence()  # the period last: who is killed in between has said nothing
                    period[row, 0] = every
                if period[row, 0] == every:
                    self._rows[every] = Word(period[row, 1:])
                    return self._rows[every]
        raise UserError(f"a count announces at most {MOST_PERIODS} different periods.")

    def begin_at(self, total: int) -> None:
        """Go on from a saved total, whose boundaries have been announced.

        All members may ask; a total that is further already stays: what was counted has happened.
        """
        period = self._block["period"]
        with self._block.locked():
            missing = total - self.total
            if missing <= 0:
                return
            self._block["begun"][0] = total
            for row in range(MOST_PERIODS):
                if period[row, 0]:
                    period[row, 1] = max(period[row, 1], total // period[row, 0])
            with self._adding:
                self._own.value += missing

    def gauges(self) -> Metrics:
        """The total."""
        return {self.name: float(self.total)}
