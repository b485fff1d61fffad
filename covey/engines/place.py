"""A place in the team as the launcher sees it: the process that sits there now, and its ends."""

from __future__ import annotations

import os
import selectors
import signal
from contextlib import suppress
from dataclasses import dataclass
from time import sleep
from typing import Any

from covey.engines.care import Health
from covey.engines.member import SHOW_STACKS
from covey.engines.wire import Wire
from covey.errors import UserError
from covey.memory import pulse

LAST_WORDS = 4096  # bytes of what Python said of a crash


@dataclass(slots=True)
class Place:
    """Rank, role and index stay; the rest is of the newest generation."""

    rank: int
    role: str
    index: int
    replaceable: bool
    keeps: bool
    health: Health
    generation: int = -1
    due: float | None = 0.0  # when to ask for the next generation
    asked_at: float | None = None  # when it was, until it is born
    pid: int = 0
    pidfd: int = -1
    words: int = -1  # where Python says why it crashed
    wire: Wire | None = None
    mute_at: float = 0.0  # when the wire was closed
    returned: bool = False
    value: Any = None
    failure: dict[str, Any] | None = None  # what it told before it ended
    killed: str | None = None  # why we did

    @property
    def name(self) -> str:
        """Role and index, as people read it."""
        return f"{self.role} {self.index}"

    @property
    def alive(self) -> bool:
        """Whether there is a process, or will be as soon as it is born."""
        return self.pidfd >= 0 or self.asked_at is not None

    @property
    def busy(self) -> bool:
        """Whether there is something to wait for here."""
        return self.alive or self.due is not None

    def kill(self, why: str | None = None) -> None:
        """End its process, if there is one; a reason is told as the cause of its death."""
        if self.pidfd >= 0:
            self.killed = why or self.killed
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def show_stacks(self, seconds: float = 0.05) -> None:
        """Have it write down where it hangs, which a stopped process does not."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, SHOW_STACKS)
        sleep(seconds)

    def stopped(self) -> bool:
        """Whether somebody stopped its process (SIGSTOP)."""
        with suppress(OSError), open(f"/proc/{self.pid}/stat") as stat:  # noqa: PTH123  each 20 ms
            return stat.read().rpartition(")")[2].split()[0] in "Tt"
        return False

    def last_words(self) -> str:
        """What Python said of a crash or a hang."""
        said = os.pread(self.words, LAST_WORDS, 0).decode(errors="replace")
        return said.partition("\nExtension modules")[0].strip()

    def cause(self, status: int) -> str:
        """Why it died, in a line."""
        if self.killed is not None:
            return self.killed
        if self.failure is not None:
            return f"{self.failure['type']}: {self.failure['error']}"
        if status == -signal.SIGKILL:
            return "killed by signal 9 (out of memory, if nobody else did it)"
        if status < 0:
            return f"killed by signal {-status} ({signal.strsignal(-status)})"
        return f"exited with status {status}"

    @property
    def hopeless(self) -> bool:
        """Whether the next generation would fail alike: in its set-up, or in what it returned."""
        phase = None if self.failure is None else self.failure["phase"]
        return phase == pulse.ENDED or (phase == pulse.STARTING and self.generation == 0)

    def error(self, cause: str, trace: str) -> Exception:
        """The one error that the run ends with."""
        if self.failure is not None and self.failure["user"]:
            return UserError(f"{self.name}: {self.failure['error']}")
        again = f" after {self.health.deaths} deaths" if self.health.deaths > 1 else ""
        return MemberError(f"{self.name} failed{again}: {cause}\n{trace}".rstrip())

    def clear(self, selector: selectors.BaseSelector) -> None:
        """Give back the descriptors of this generation."""
        if self.wire is not None:
            with suppress(KeyError):
                selector.unregister(self.wire)
            self.wire.close()
            self.wire = None
        if self.pidfd >= 0:
            with suppress(KeyError):
                selector.unregister(self.pidfd)
            os.close(self.pidfd)
        if self.words >= 0:
            os.close(self.words)
        self.pidfd = self.words = -1
        self.asked_at = None


class MemberError(RuntimeError):
    """A member failed and nobody can take its place: its name and its own traceback."""
