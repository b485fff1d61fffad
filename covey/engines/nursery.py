"""The launcher's end of the zygote: start it, ask it for members, hear how they ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from covey.engines.place import MemberError
from covey.engines.wire import Wire, pair

START_SECONDS = 120.0
STATUS_SECONDS = 10.0
END_SECONDS = 3.0
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Nursery:
    """Owns the zygote, and with it every process of the team."""

    def __init__(self) -> None:
        self.ready = False
        self._statuses: dict[int, int] = {}
        self._wire: Wire | None = None
        self._zygote: subprocess.Popen[bytes] | None = None

    @property
    def wire(self) -> Wire:
        """Births and deaths come here."""
        assert self._wire is not None
        return self._wire

    def begin(self, job: dict[str, Any], program: bytes) -> None:
        """Start the zygote; back once it has imported what the members need.

        It loads the program too, so that its imports are done once; where these start threads, of
        which no copy would work, it begins again without.
        """
        if not self._start({**job, "size": len(program), "load": True}, program):
            self.end()
            if not self._start({**job, "size": len(program), "load": False}, program):
                raise MemberError(
                    f"one of {', '.join(job['preload'])} starts threads when imported."
                )
        self.ready = True

    def _start(self, job: dict[str, Any], program: bytes) -> bool:
        ours, theirs = pair()
        self._wire = Wire(ours)
        path = [folder or str(Path.cwd()) for folder in sys.path]
        words = (
            f"import sys; sys.path[:] = {path!r}; from covey.engines.zygote import main; "
            f"main({theirs.fileno()}, {os.getpid()})"
        )
        with theirs:
            self._zygote = subprocess.Popen(
                [sys.executable, "-c", words], pass_fds=[theirs.fileno()], start_new_session=True,
                stdin=subprocess.DEVNULL, env={**os.environ, **dict.fromkeys(ONE_THREAD, "1")},
            )  # fmt: skip
        try:
            ours.settimeout(START_SECONDS)
            ours.sendall(json.dumps(job).encode() + b"\n" + program)
            ready, _ = self._wire.answer(START_SECONDS)
        except ConnectionError:
            status = self._zygote.wait(END_SECONDS)
            raise MemberError(
                f"the process that starts members ended with status {status} before it was ready; "
                "what it printed says why."
            ) from None
        except TimeoutError:
            raise MemberError(
                f"the process that starts members was not ready after {START_SECONDS:g} s."
            ) from None
        clean: bool = ready["clean"]
        return clean

    def ask(self, seat: dict[str, Any], fds: tuple[int, ...]) -> None:
        """Have a member born; `lines` will say that it is."""
        self.wire.send(seat, fds)

    def lines(self) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Births; deaths are kept for `status`."""
        for message, fds in self.wire.lines():
            if "died" in message:
                self._statuses[message["died"]] = message["status"]
            else:
                yield message, fds
        if not self.wire.open:
            raise MemberError(
                "the process that starts members has ended (out of memory, or killed), and all "
                "members with it."
            )

    def status(self, pid: int) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Wait until it is known how a process ended that has; births that come in between."""
        self.wire.end.settimeout(STATUS_SECONDS)
        try:
            while pid not in self._statuses:
                yield from self.lines()
        except TimeoutError:
            raise MemberError(
                f"the process that starts members has said nothing for {STATUS_SECONDS:g} s."
            ) from None
        finally:
            self.wire.end.settimeout(None)

    def ended(self, pid: int) -> int:
        """How a process ended, once `status` knows; negative is a signal."""
        return self._statuses.pop(pid)

    def end(self) -> None:
        """It ends its children, buries them and goes; if it cannot, the kernel does."""
        if self._wire is not None:
            self._wire.close()
        if self._zygote is None:
            return
        try:
            self._zygote.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()
