"""Values that one role shares and all others read: `latest` for a handful of plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import monotonic_ns
from typing import Any

import numpy as np

from covey.errors import UserError
from covey.memory.block import Layout
from covey.memory.snapshot import Snapshot
from covey.memory.snapshot import layout as snapshot_layout
from covey.types import Array

ROOM = 8192  # bytes of JSON that one member shares
FORM: Layout = snapshot_layout({"size": ((), "i8"), "text": ((ROOM,), "u1")})


def layout(num_members: int) -> Layout:
    """A snapshot per member."""
    return {f"{rank}.{name}": form for rank in range(num_members) for name, form in FORM.items()}


class Shared:
    """The newest wins. Without arrays, of this process alone."""

    def __init__(self, arrays: Mapping[str, Array] | None = None, rank: int = 0) -> None:
        self._values: dict[str, Any] = {}
        self._when: dict[str, int] = {}
        self._own: dict[str, tuple[Any, int]] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._rank = rank
        self._read_into: dict[str, Array] = {
            "size": np.zeros((), np.int64),
            "text": np.zeros(ROOM, np.uint8),
        }
        for key in arrays or {}:
            member, _, name = key.partition(".")
            if arrays is not None and name == "version":
                parts = {n: arrays[f"{member}.{n}"] for n in FORM}
                self._snapshots[int(member)] = Snapshot(parts, "the shared values")
        if rank in self._snapshots:  # a successor goes on with what its predecessor shared
            self._own = self._read(self._snapshots[rank])

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_values", {}):
            return self._values[name]
        raise AttributeError(
            f"ctx.shared.{name} has not been shared yet. Declare it with task.share('{name}') and "
            "write it as a ctx value in a step."
        )

    def get(self, name: str, default: Any = None) -> Any:
        """The newest value, or a default before the first."""
        return self._values.get(name, default)

    def publish(self, **values: Any) -> None:
        """Make these values the newest."""
        now = monotonic_ns()
        if self._snapshots:
            self._tell({**self._own, **{name: (value, now) for name, value in values.items()}})
        for name, value in values.items():
            self._take(name, value, now)

    def _tell(self, own: dict[str, tuple[Any, int]]) -> None:
        try:
            text = json.dumps(own, default=_plain).encode()
        except TypeError as error:
            raise UserError(f"cannot share {sorted(own)}: {error}.") from None
        if len(text) > ROOM:
            raise UserError(
                f"the shared values take {len(text)} bytes, more than {ROOM}; use team.latest."
            )
        padded = np.zeros(ROOM, np.uint8)
        padded[: len(text)] = np.frombuffer(text, np.uint8)
        self._snapshots[self._rank].write({"size": np.array(len(text)), "text": padded})
        self._own = own

    def refresh(self) -> None:
        """Take in what the others have shared since."""
        for rank, snapshot in self._snapshots.items():
            if rank != self._rank:
                self._read(snapshot)

    def _read(self, snapshot: Snapshot) -> dict[str, tuple[Any, int]]:
        if snapshot.read(self._read_into) is None:
            return {}
        text = bytes(self._read_into["text"][: int(self._read_into["size"])])
        found: dict[str, tuple[Any, int]] = json.loads(text)
        for name, (value, when) in found.items():
            self._take(name, value, when)
        return found

    def _take(self, name: str, value: Any, when: int) -> None:
        if when >= self._when.get(name, 0):
            self._values[name], self._when[name] = value, when


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r:.60} is not a number, text, list or dict of these")
