"""Sleeping until another member rings: a futex per member, so no descriptor and nobody to poll."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
from collections.abc import Callable
from time import monotonic, monotonic_ns

from covey.types import Array

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 202)  # the system call's number
WAIT, WAKE, EVERYBODY = 0, 1, 2**31 - 1
LONGEST_NAP = 0.05  # seconds; what a missed ring costs: a CPU may look before others see its store
SPIN = 0.0001  # seconds of looking again before sleeping: about what being woken costs both sides
LINE, WORD, ASLEEP = 16, 0, 1  # words of 32 bits


class Timespec(ctypes.Structure):
    """struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bells:
    """`word_N16`, int32: a line per member, its word and whether it sleeps."""

    def __init__(self, word_N16: Array, rank: int) -> None:
        self._words, self.rank = word_N16.data.cast("B").cast("i"), rank
        self.size, self._start = len(word_N16), word_N16.ctypes.data
        self._asleep, self._counting = 0, threading.Lock()  # threads of this member
        self._call = ctypes.CDLL(None, use_errno=True).syscall

    def ring(self, rank: int) -> None:
        """Wake a member; costs a store when it is not asleep."""
        at = rank * LINE
        # a time, not a count: what two write at once would be the same count, and one ring is lost
        self._words[at + WORD] = monotonic_ns() & 0x7FFFFFFF
        if self._words[at + ASLEEP]:
            self._futex(rank, WAKE, EVERYBODY, None)

    def ring_all(self) -> None:
        """Wake everybody."""
        for rank in range(self.size):
            self.ring(rank)

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Sleep until `ready()`, looking again after every ring; False when the time is over."""
        deadline = monotonic() + seconds
        if ready() or _comes_at_once(ready, deadline):
            return True
        self._count_sleepers(1)
        try:
            while True:
                seen = self._words[self.rank * LINE + WORD]
                if ready():
                    return True
                left = deadline - monotonic()
                if left <= 0:
                    return False
                self._futex(self.rank, WAIT, seen, min(left, LONGEST_NAP))
        finally:
            self._count_sleepers(-1)

    def _count_sleepers(self, more: int) -> None:
        with self._counting:
            self._asleep += more
            self._words[self.rank * LINE + ASLEEP] = self._asleep

    def _futex(self, rank: int, operation: int, value: int, seconds: float | None) -> None:
        address = ctypes.c_void_p(self._start + 4 * LINE * rank)
        limit = None
        if seconds is not None:
            limit = ctypes.byref(Timespec(int(seconds), int(seconds % 1 * 1e9)))
        self._call(ctypes.c_long(FUTEX), address, ctypes.c_int(operation), ctypes.c_int(value),
                   limit, None, ctypes.c_int(0))  # fmt: skip


def _comes_at_once(ready: Callable[[], bool], deadline: float) -> bool:
    """Look for a moment; whoever else wants this processor has it meanwhile."""
    ends = min(deadline, monotonic() + SPIN)
    while monotonic() < ends:
        os.sched_yield()
        if ready():
            return True
    return False


def die_with_parent(parent: int, by: int = signal.SIGKILL) -> None:
    """Be killed, or told by another signal, when the parent ends; go if it has ended already."""
    ctypes.CDLL(None).prctl(1, int(by))  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
