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
FORM: Layout = snapshot_layout({"text": ((ROOM,), "u1")})


def layout(num_members: int) -> Layout:
    """A snapshot per member."""
    return {name: ((num_members, *shape), dtype) for name, (shape, dtype) in FORM.items()}


class Shared:
    """The newest wins. Without arrays, of this process alone."""

    def __init__(self, arrays: Mapping[str, Array] | None = None, rank: int = 0) -> None:
        self._values: dict[str, Any] = {}
        self._when: dict[str, int] = {}
        self._own: dict[str, tuple[Any, int]] = {}
        self._arrays, self._rank = arrays, rank
        self._snapshots: dict[int, Snapshot] = {}  # of those that have shared something
        self._text = np.zeros(ROOM, np.uint8)
        if arrays is not None:  # a successor goes on with what its predecessor shared
            self._version_N = arrays["version"][:, 0]
            self._seen_N = np.zeros_like(self._version_N)
            self._own = self._read(rank)

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
        if self._arrays is not None:
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
        self._text[:] = 0
        self._text[: len(text)] = np.frombuffer(text, np.uint8)
        version = self._snapshot(self._rank).write({"text": self._text})
        self._own, self._seen_N[self._rank] = own, version

    def refresh(self) -> None:
        """Take in what the others have shared since."""
        if self._arrays is not None:
            for rank in np.flatnonzero(self._version_N != self._seen_N).tolist():
                self._read(rank)

    def _snapshot(self, rank: int) -> Snapshot:
        if rank not in self._snapshots:
            assert self._arrays is not None
            parts = {name: self._arrays[name][rank] for name in FORM}
            self._snapshots[rank] = Snapshot(parts, "the shared values")
        return self._snapshots[rank]

    def _read(self, rank: int) -> dict[str, tuple[Any, int]]:
        version = self._snapshot(rank).read({"text": self._text})
        if version is None:
            return {}
        self._seen_N[rank] = version
        text = bytes(self._text).partition(b"\0")[0]
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
