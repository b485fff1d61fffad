"""Pictures kept once: rows hold the numbers of their frames, and the frames stand in a ring.

A stack comes again one step later with one frame more, and `next_obs` comes again as `obs`. So the
writer of a shard looks up by their bytes which frames it has written lately, and appends the rest.
A frame's number counts the frames of its shard and never goes back. A row refers to no frame older
than its `oldest`, which never falls from row to row: the rows whose frames are about to be
overwritten are the first ones, and the floor of the shard is raised above them before.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np

from covey.memory.block import CELL, Block, Layout, fence
from covey.types import Array

STACK = "stack."  # before the name of a column of images
MOST = 16  # frames in a stack
AT_ONCE = 64  # frames to look up: as many as stay in the cache

digest = zlib.crc32


def frames_in(shape: tuple[int, ...]) -> int:
    """How many frames an image is cut into, along its first axis; three planes are colours."""
    planes = shape[0]
    if len(shape) < 3 or planes >= min(*shape[1:3], MOST + 1):
        return 1
    return planes // 3 if planes % 3 == 0 else planes


def frame_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of each of them."""
    return (shape[0] // frames_in(shape), *shape[1:])


def images(rows: Mapping[str, Array]) -> dict[str, int]:
    """The columns that are kept as frames, all of the form of the first's, and how many each.

    Others stand whole in their rows; so do images that are entries of records.
    """
    shapes = {
        name: column.shape[1:]
        for name, column in rows.items()
        if column.dtype == np.uint8 and column.ndim > 2 and sorted(column.shape[1:])[-2] > 1
    }
    form = [frame_of(shape) for shape in shapes.values()][:1]
    return {name: frames_in(s) for name, s in shapes.items() if frame_of(s) in form}


def room(size: int, per_row: int) -> tuple[int, int]:
    """Frames of a shard of `size` rows, and how far back rows may look for theirs.

    A row needs one, a reset some more. Rows written at once bring no more frames than they may look
    back over; three times as many fit, so that the rows before them are there all the while.
    """
    return size + size // 4 + 24 * per_row, size // 8 + 8 * per_row


def layout(rows: Mapping[str, Array], size: int, shards: int) -> Layout:
    """For images among rows of this form, in shards of `size`."""
    found = images(rows)
    if not found:
        return {}
    form = frame_of(rows[next(iter(found))].shape[1:])
    num, _ = room(size, sum(found.values()))
    columns = {STACK + name: ((shards * size, k), "i8") for name, k in found.items()}
    pixels, oldest = ((shards * num, *form), "u1"), ((shards * size,), "i8")
    return {**columns, "oldest": oldest, "framed": ((shards, CELL), "i8"), "frames": pixels}


class Frames:
    """The frames of all shards, of which this process may write one; that one's rows are `own`."""

    def __init__(self, block: Block, size: int, own: int | None) -> None:
        self.size, self.own = size, own or 0  # rows of a shard; mine
        words = (block[name][:, 0] for name in ("begun", "head", "floor", "framed"))
        # `end_S` counts frames that have begun to be written: only rows say which are whole
        self.begun_S, self.head_S, self.floor_S, self.end_S = words
        self.oldest_M, self.pixels = block["oldest"], block["frames"]
        self.form = self.pixels.shape[1:]
        each = math.prod(self.form)
        # words are compared faster than bytes
        self.word = np.dtype(next(f"u{n}" for n in (8, 4, 2, 1) if each % n == 0))
        self.frame_F = self.pixels.reshape(-1, each).view(self.word)
        self.numbers = {
            name.removeprefix(STACK): a for name, a in block.arrays.items() if name[:6] == STACK
        }
        per_row = sum(a.shape[1] for a in self.numbers.values())
        self.num, self.reach = room(size, per_row)
        self.part = self.reach // per_row  # rows that may be written at once
        self._known: dict[int, int] | None = None  # digest -> number
        self._least = 0

    def columns(self) -> dict[str, Stack]:
        """What stands for the columns of images."""
        return {name: Stack(self, number_MK) for name, number_MK in self.numbers.items()}

    def slots(self, shard: int | Array, number: Array) -> Array:
        """Where frames of these numbers are, or were."""
        slot: Array = shard * self.num + number % self.num
        return slot

    def begin(self, *parts: slice) -> None:
        """Rows come into these slots, `part` at most."""
        end = int(self.end_S[self.own])
        self._least = max(0, end - self.reach)
        for where in parts:
            self.oldest_M[where] = self._least
        if self._known is None:  # a successor knows what its predecessor wrote
            number_N = np.arange(self._least, end)
            at_N = self.slots(self.own, number_N).tolist()
            frames = zip(at_N, number_N.tolist(), strict=True)
            self._known = {digest(self.frame_F[at]): number for at, number in frames}
        if len(self._known) > 2 * self.reach:
            self._known = {k: n for k, n in self._known.items() if n >= self._least}

    def write(self, frame_N: Array) -> Array:
        """The numbers of these frames of new rows; those that are not there are appended."""
        assert self._known is not None, "begin first"
        known, least, end = self._known, self._least, int(self.end_S[self.own])
        key_N = [digest(frame) for frame in frame_N]
        numbers: list[int] = []
        new: list[int] = []
        for i, key in enumerate(key_N):
            number = known.get(key, -1)
            if number < least:
                number = known[key] = end + len(new)
                new.append(i)
            numbers.append(number)
        self._append(frame_N[new])
        number_N = np.array(numbers, np.int64)
        there_N = self.frame_F.take(self.slots(self.own, number_N), axis=0, mode="clip")
        for i in (there_N != frame_N).any(axis=1).nonzero()[0].tolist():  # of the same digest
            number_N[i] = known[key_N[i]] = self._append(frame_N[i : i + 1])
        return number_N

    def _append(self, frame_N: Array) -> int:
        """The number of the first."""
        first = int(self.end_S[self.own])
        end = first + len(frame_N)
        self._retire(end - self.num)
        self.end_S[self.own] = end
        fence()  # whoever sees other bytes sees the floor, and a successor goes on behind them
        self.frame_F[self.slots(self.own, np.arange(first, end))] = frame_N
        return first

    def _retire(self, limit: int) -> None:
        """Raise the floor above rows that may refer to frames before this one."""
        start, head = self.own * self.size, int(self.head_S[self.own])
        first = max(int(self.floor_S[self.own]), int(self.begun_S[self.own]) - self.size)
        row = first
        while row < head and self.oldest_M[start + row % self.size] < limit:
            row += 1
        if row > first:
            self.floor_S[self.own] = row


class Stack:
    """A column of images, in the place of an array of them."""

    dtype = np.dtype(np.uint8)

    def __init__(self, frames: Frames, number_MK: Array) -> None:
        self.frames, self.number_MK = frames, number_MK
        num, k = number_MK.shape
        self.shape = (num, k * frames.form[0], *frames.form[1:])

    def __setitem__(self, where: slice, rows: Array) -> None:
        """Write rows, in slots that `begin` was told of."""
        num, k = self.number_MK[where].shape
        flat = np.ascontiguousarray(rows).reshape(num * k, -1).view(self.frames.word)
        parts = [self.frames.write(flat[i : i + AT_ONCE]) for i in range(0, num * k, AT_ONCE)]
        self.number_MK[where] = np.concatenate(parts).reshape(num, k)

    def take(
        self, slot_N: Array, axis: int = 0, out: Array | None = None, mode: str = "clip"
    ) -> Array:
        """The images in these slots, as an array's `take` gives them.

        Every number has a place: of rows overwritten meanwhile some pictures come, to be refused.
        """
        if out is None:
            out = np.empty((len(slot_N), *self.shape[1:]), self.dtype)
        frames, k = self.frames, self.number_MK.shape[1]
        number_NK = self.number_MK.take(slot_N, axis=0, mode="clip")
        at_NK = frames.slots((slot_N // frames.size)[:, None], number_NK)
        into = out.reshape(len(slot_N) * k, -1).view(frames.word)
        frames.frame_F.take(at_NK.ravel(), axis=0, out=into, mode="clip")
        return out
