"""`replay`: rows stay where they were written, and are drawn from everywhere.

Each writer has a shard, a ring that all see and only it writes. A row's number counts the rows of
its shard, never goes back, and so says whether a slot still holds that row: `begun` is raised
before the slots of new rows are touched, `head` once they are whole. Writers wait for nobody but
for the pace. Each reader draws from its own share of the shards.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import NamedTuple

import numpy as np

from covey.errors import UserError
from covey.links import archive
from covey.links.waits import Waits
from covey.memory import frames
from covey.memory.block import CELL, Block, Layout, fence
from covey.memory.priorities import Draw, Drawn, Priorities
from covey.types import Array, Metrics, Tree

ROW = "row."  # before the name of a column, which may be any
REUSED = 2**16  # bytes of a column of a batch, from which on its memory is used again
TURN = 500_000_000  # nanoseconds after which a writer that has not asked again loses its turn
TRIES = 1000  # to draw rows that nobody overwrites meanwhile


class Pace(NamedTuple):
    """Rows drawn for each row added after the first `warmup`; without `reuse` nobody waits."""

    batch: int = 1
    reuse: float | None = None
    warmup: int = 0
    ahead: int = 0  # rows that writers may add before they are due


class Share(NamedTuple):
    """This member's place: the ranks that write, each its shard, and those that read."""

    waits: Waits
    rank: int
    writers: Sequence[int]
    readers: Sequence[int]


def layout(rows: Mapping[str, Array], capacity: int, shards: int, readers: int) -> Layout:
    """Shards side by side, so that rows of all of them are one look-up; of images, the frames."""
    each, images = -(-capacity // shards), frames.images(rows)
    size, whole = shards * each, {n: v for n, v in rows.items() if n not in images}
    columns = {ROW + name: ((size, *v.shape[1:]), v.dtype) for name, v in whole.items()}
    words = {name: ((shards, CELL), "i8") for name in ("begun", "head", "floor", "waiting")}
    own = {"first": ((size,), "f4"), **words, "drawn": ((readers, CELL), "i8")}
    return {**columns, **own, **frames.layout(rows, each, shards)}


class Replay:
    """The newest rows, `capacity` in all. Without a block the first rows added fix their form."""

    def __init__(
        self, capacity: int, rng: np.random.Generator, save_rows: bool = True,
        draw: Draw | None = None, block: Block | None = None, share: Share | None = None,
        name: str = "replay",
    ) -> None:  # fmt: skip
        self.capacity, self.rng, self.save_rows = capacity, rng, save_rows
        self.name, self.draw, self.pace = name, draw or Draw(), Pace()
        self._of_all = 1.0  # rows that all readers draw, for each of this one
        self._waits, rank, self._writers, self._readers = share or Share(Waits(), 0, [0], [0])
        self.alone = share is None
        self._fence: Callable[[], object] = bool if share is None else fence  # or nothing
        self.shards, readers = len(self._writers), len(self._readers)
        if readers > self.shards:
            raise UserError(
                f"'{name}' has {readers} readers and {self.shards} writers; each reader needs a "
                "writer of its own."
            )
        self.size = -(-capacity // self.shards)  # of a shard
        self._own = self._writers.index(rank) if rank in self._writers else None
        self._reader = self._readers.index(rank) if rank in self._readers else None
        self.mine_S = np.arange(self.shards) % readers == (self._reader or 0)
        self._forgotten_S = np.zeros(self.shards, np.int64)
        self.block: Block | None = None
        self.columns: dict[str, Array | frames.Stack] = {}
        self.frames: frames.Frames | None = None  # where there are images
        self.priorities: Priorities | None = None
        self.refused = self.torn = 0
        self.waited = 0.0  # seconds
        self._rooms: dict[tuple[str, int], list[Array]] = {}
        if block is not None:
            self._open(block)

    def open_for(self, rows: Mapping[str, Array]) -> None:
        """Memory of this process alone, for rows of this form."""
        self._open(Block(layout(rows, self.capacity, self.shards, 1)))

    def _open(self, block: Block) -> None:
        self.block = block
        self.columns = {
            key.removeprefix(ROW): a for key, a in block.arrays.items() if key.startswith(ROW)
        }
        if "frames" in block.arrays:
            self.frames = frames.Frames(block, self.size, self._own)
            self.columns |= self.frames.columns()
        self.begun_S, self.head_S, self.floor_S, self._waiting_S, self.drawn_R = (
            block[name][:, 0] for name in ("begun", "head", "floor", "waiting", "drawn")
        )
        self.first_M = block["first"]
        if self.draw.alpha and self._reader is not None:
            self.priorities = Priorities(self.draw, self.shards, self.size)

    @property
    def added(self) -> int:
        """Rows ever added, by all writers."""
        return 0 if self.block is None else int(self.head_S.sum())

    @property
    def drawn(self) -> int:
        """Rows ever drawn, by all readers."""
        return 0 if self.block is None else int(self.drawn_R.sum())

    def __len__(self) -> int:
        return 0 if self.block is None else int(self.there()[1].sum())

    def there(self) -> tuple[Array, Array]:
        """Of each shard, the number of the first row that stands whole, and how many I may draw."""
        oldest_S = np.maximum(self.begun_S - self.size, self.floor_S)
        self._fence()
        head_S = self.head_S.copy()  # last of all: however fast a writer is, something is there
        np.maximum(oldest_S, head_S - self.size, out=oldest_S)
        np.maximum(oldest_S, self._forgotten_S, out=oldest_S)
        return oldest_S, np.maximum(head_S - oldest_S, 0) * self.mine_S

    def add(self, rows: Mapping[str, Array], priority_N: Array | None = None) -> int:
        """Take N rows in; the oldest make room. Returns N. Waits where too little was drawn.

        Rows without a priority are as likely as the likeliest that there is.
        """
        num = self._check(rows)
        if self.block is None:
            self.open_for(rows)
        if self._own is None:
            raise UserError(
                f"'{self.name}' is written by {self._waits.names(self._writers)}, not by this "
                "member."
            )
        if not self.alone:
            self._await(self._may_add, "room", self._readers)
        most = self.size if self.frames is None else min(self.size, self.frames.part)
        for start in range(0, num, most):
            part = slice(start, min(num, start + most))
            self._put(self._own, rows, part, priority_N)
        if not self.alone:
            for rank in self._readers:
                self._waits.ring(rank)
            self._ring_writers()
        return num

    def _ring_writers(self) -> None:
        """Those that wait for room."""
        # a copy: nonzero raises where others write between its two passes
        for shard in self._waiting_S.copy().nonzero()[0].tolist():
            self._waits.ring(self._writers[shard])

    def _put(
        self, shard: int, rows: Mapping[str, Array], part: slice, priority_N: Array | None
    ) -> None:
        num, head = part.stop - part.start, int(self.head_S[shard])
        # what a death left half overwritten, a successor does not call whole again
        self.begun_S[shard] = max(int(self.begun_S[shard]), head + num)
        self._fence()
        at = head % self.size
        start, fits = shard * self.size, min(num, self.size - at)
        here, rest = slice(start + at, start + at + fits), slice(start, start + num - fits)
        cut = part.start + fits
        if self.frames is not None:
            self.frames.begin(here, rest)
        for name, column in self.columns.items():
            column[here] = rows[name][part.start : cut]
            if fits < num:
                column[rest] = rows[name][cut : part.stop]
        if self.draw.alpha:
            first_N = np.full(part.stop, np.nan) if priority_N is None else priority_N
            self.first_M[here] = first_N[part.start : cut]
            self.first_M[rest] = first_N[cut : part.stop]
        self._fence()
        self.head_S[shard] = head + num

    def _check(self, rows: Mapping[str, Array]) -> int:
        num = len(next(iter(rows.values())))
        columns = self.columns or rows
        for name in columns.keys() | rows.keys():
            column, value = columns.get(name), rows.get(name)
            if (
                column is None
                or value is None
                or ((value.dtype, value.shape) != (column.dtype, (num, *column.shape[1:])))
            ):
                holds = "nothing" if column is None else _form(column, num)
                given = "nothing" if value is None else _form(value, len(value))
                raise UserError(f"{self.name} column '{name}' holds {holds} but was given {given}.")
        return num

    def clear(self) -> None:
        """Forget: a writer the rows of its shard, a reader all. Their numbers go on."""
        if self.block is not None and self._own is not None:
            self.floor_S[self._own] = self.head_S[self._own]
        if self.block is not None and self._reader is not None:
            self._forgotten_S[:] = self.head_S

    def wait(self) -> float:
        """Until a batch may be drawn, where others add; what is `due` then."""
        if self._reader is not None:
            self._await(lambda: self.due() >= self.pace.batch, "rows", self._writers)
        return self.due()

    def due(self) -> float:
        """Rows that ought to have been drawn and were not; a batch, where nobody keeps pace."""
        batch, reuse, warmup, _ = self.pace
        if self.block is None or not self.there()[1].any():
            return 0
        counted = max(0, int(self.head_S.sum()) - warmup)
        if reuse is None:
            return batch * (counted > 0)
        if self._reader is None:
            return max(0, counted * reuse - int(self.drawn_R.sum()))
        # readers get on alike: each goes by what it has drawn itself, so all see the same number
        return max(0, counted * reuse - int(self.drawn_R[self._reader]) * self._of_all)

    def keep_pace(self, pace: Pace) -> int:
        """Add and draw at this pace. How many rows of a batch this reader draws comes back.

        All readers together draw exactly a batch.
        """
        num, more = divmod(pace.batch, len(self._readers))
        share = num + ((self._reader or 0) < more)
        self.pace, self._of_all = pace, pace.batch / max(1, share)
        return share

    def _may_add(self) -> bool:
        """Says when it last asked, if the answer is no."""
        batch, reuse, _, ahead = self.pace
        if (
            reuse is None or not self.head_S[self._own]
        ):  # a reader may have no other shard than this
            return True
        if self.due() <= max(ahead * reuse, 2.0 * batch) and self._is_next():
            return True
        self._waiting_S[self._own] = monotonic_ns()
        return False

    def _is_next(self) -> bool:
        """Who has added least of those that wait; who asks no more is not waited for."""
        waits_S = self._waiting_S > monotonic_ns() - TURN
        return not (waits_S & (self.head_S < self.head_S[self._own])).any()

    def _await(self, ready: Callable[[], bool], what: str, whose: Sequence[int]) -> None:
        """As long as anybody gets on."""
        if self.alone or ready():
            return
        before = self._waits.seconds
        absent = f"{what} in '{self.name}'; absent: {self._waits.names(whose)}"
        try:
            while not ready():
                self._waits.until(self._anything_new(ready), lambda: absent)
        finally:
            self.waited += self._waits.seconds - before
            if self._own is not None:
                self._waiting_S[self._own] = 0

    def _anything_new(self, ready: Callable[[], bool]) -> Callable[[], bool]:
        seen = self.added, self.drawn
        return lambda: ready() or (self.added, self.drawn) != seen

    def sample(self, num: int) -> dict[str, Array]:
        """`num` rows. Those drawn by priority have a `weight`, and an `id` to revise them by."""
        assert self._reader is not None, f"'{self.name}' is drawn from by others"
        drawn, batch, tries = self._choose(num), {}, 0
        for name, column in self.columns.items():
            small = column.dtype.itemsize * math.prod(column.shape[1:]) * num < REUSED
            batch[name] = (
                column.take(drawn.slot_N, axis=0, mode="clip") if small
                else self._take(name, drawn.slot_N)
            )  # fmt: skip
        while not self.alone and (gone_N := self._gone(drawn.shard_N, drawn.number_N)).any():
            self._replace(batch, gone_N, drawn)
            tries += 1
            if tries == TRIES:
                raise UserError(
                    f"rows of '{self.name}' are overwritten before they are read. Raise capacity."
                )
        self.drawn_R[self._reader] += num
        if not self.alone:
            self._ring_writers()
        if self.priorities is not None:
            batch["weight"] = self.priorities.importance(drawn.chance_N, len(self))
            batch["id"] = drawn.number_N * self.shards + drawn.shard_N
        return batch

    def _choose(self, num: int) -> Drawn:
        if self.priorities is not None:
            self.take_up(self.priorities)
            return self.priorities.choose(num, self.rng)
        oldest_S, size_S = self.there()
        end_S = size_S.cumsum()
        assert end_S[-1] > 0, "sample from an empty replay"
        place_N = self.rng.integers(end_S[-1], size=num)
        shard_N = end_S.searchsorted(place_N, side="right")
        number_N = place_N - (end_S - size_S - oldest_S)[shard_N]
        slot_N = shard_N * self.size + number_N % self.size
        return Drawn(slot_N, shard_N, number_N, np.full(num, 1 / end_S[-1]))

    def take_up(self, priorities: Priorities) -> None:
        """Let the tree know what has been written since."""
        floor_S = np.maximum(self.floor_S, self._forgotten_S) * self.mine_S
        self._fence()
        head_S = self.head_S * self.mine_S  # after the floor, as in `there`
        priorities.take_up(head_S, floor_S, self.first_M)

    def _gone(self, shard_N: Array, number_N: Array) -> Array:
        """Which rows have been overwritten, or have begun to be."""
        self._fence()
        gone_N: Array = number_N < self.there()[0][shard_N]
        return gone_N

    def _replace(self, batch: dict[str, Array], gone_N: Array, drawn: Drawn) -> None:
        """Rows that were overwritten while they were read, by others."""
        gone, again = Drawn(*(of[gone_N] for of in drawn)), self._choose(int(gone_N.sum()))
        self.torn += len(gone.slot_N)
        if self.priorities is not None:  # what has come into their slots meanwhile stays
            still_N = self.priorities.has(gone.shard_N, gone.number_N)
            self.priorities.forget(gone.slot_N[still_N])
        for name, column in self.columns.items():
            batch[name][gone_N] = column.take(again.slot_N, axis=0)
        for of, new in zip(drawn, again, strict=True):
            of[gone_N] = new

    def _take(self, name: str, slot_N: Array) -> Array:
        """Rows of a column; into memory of an earlier batch that nobody holds any more."""
        column = self.columns[name]
        rooms = self._rooms.setdefault((name, len(slot_N)), [])
        # three references are the list's, the loop's and the call's
        room = next((array for array in rooms if sys.getrefcount(array) <= 3), None)
        if room is None:
            room = np.empty((len(slot_N), *column.shape[1:]), column.dtype)
            rooms.append(room)
        return column.take(slot_N, axis=0, out=room, mode="clip")

    def revise(self, id_N: Array, error_N: Array) -> None:
        """New errors of rows that were drawn; of those that have gone refused, and counted."""
        assert self.priorities is not None, f"'{self.name}' is not drawn by priority here"
        number_N, shard_N = np.divmod(id_N, self.shards)
        known_N = ~self._gone(shard_N, number_N) & np.isfinite(error_N)
        known_N &= self.priorities.has(shard_N, number_N)
        self.refused += len(id_N) - int(known_N.sum())
        slot_N = shard_N * self.size + number_N % self.size
        self.priorities.revise(slot_N[known_N], error_N[known_N])

    def gauges(self) -> Metrics:
        """Rows added, drawn, there, refused and drawn anew; seconds that this member waited."""
        found: Metrics = {"added": self.added, "drawn": self.drawn}
        if self._own is not None:
            found["actor_waited"] = self.waited
        if self._reader is not None and not self.alone:
            found["learner_waited"] = self.waited
        if self._reader is not None:
            found |= {"rows": len(self), "refused": self.refused, "torn": self.torn}
        return {f"{self.name}.{key}": float(value) for key, value in found.items()}

    def check(self) -> None:
        """Shards hold what their heads say, and every sum of the tree is one."""
        assert (self.begun_S >= self.head_S).all(), f"{self.name}: rows that were never begun"
        assert len(self) <= self.size * self.shards, f"{self.name}: {len(self)} rows"
        if self.priorities is not None:
            self.priorities.tree.check()

    def state(self) -> Tree:
        """The rows and their priorities, the counts and the random state."""
        return archive.state(self)

    def restore(self, state: Tree) -> bool:
        """Take them back, before anybody adds; False where filling begins anew."""
        return archive.restore(self, state)


def _form(column: Array | frames.Stack, num: int) -> str:
    return f"{column.dtype}{list(column.shape[1:])} in {num} rows"
