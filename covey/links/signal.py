"""`signal`: said once, seen by all, for ever: why everybody stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns

import numpy as np

from covey.memory.block import CELL, Layout, Word, fence
from covey.types import Array

LONGEST = 512  # bytes of a reason


def layout(num_members: int) -> Layout:
    """A flag that anybody raises and never lowers; a reason per member, the last the launcher's."""
    return {
        "raised": ((CELL,), "i8"),
        "when": ((num_members + 1, CELL), "i8"),
        "text": ((num_members + 1, LONGEST), "u1"),
    }


class Flag:
    """The signal of a process that is alone."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def stop(self, reason: str) -> None:
        """Say why it stops; the first reason stays."""
        if self.reason is None:
            self.reason = reason


class Signal:
    """Sticky: the first reason stays."""

    def __init__(
        self, arrays: Mapping[str, Array], rank: int = 0, wake: Callable[[], None] = lambda: None
    ) -> None:
        self._raised, self._when_N = Word(arrays["raised"]), arrays["when"][:, 0]
        self._text, self._rank, self._wake = arrays["text"], rank, wake
        self._heard: str | None = None

    def stop(self, reason: str) -> None:
        """Ask everybody to stop, and wake those who wait."""
        if not self._when_N[self._rank]:
            text = np.frombuffer(reason.encode()[: LONGEST - 1], np.uint8)
            self._text[self._rank, : len(text)] = text
            fence()
            self._when_N[self._rank] = monotonic_ns()
        fence()
        self._raised.value = 1
        self._wake()

    @property
    def reason(self) -> str | None:
        """The first reason that was given, or None; once heard it stays."""
        if self._heard is None and self._raised.value:
            self._heard = self._first()
        return self._heard

    def _first(self) -> str:
        fence()
        when_N = self._when_N.copy()  # others may write meanwhile, which numpy refuses to count
        said = np.flatnonzero(when_N)
        first = said[when_N[said].argmin()]
        return bytes(self._text[first]).split(b"\0", 1)[0].decode(errors="replace")
