"""The process that all members are born from: it has imported what they need and started nothing.

Forking it takes milliseconds and shares its memory. It runs as a program of its own, so nothing of
the launcher's (threads, locks, `__main__`) is inherited.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from covey.engines.wire import Wire
from covey.memory.bell import die_with_parent


def main(fd: int, launcher: int) -> None:
    """Take the job, import, then give birth on request until the launcher goes."""
    die_with_parent(launcher)
    wire = Wire(socket.socket(fileno=fd))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)  # the launcher decides what they mean, for all
    job, program = read_job(fd)
    for name in job["preload"]:
        with suppress(ImportError):  # whoever needs it will say so
            importlib.import_module(name)
    if job["load"]:
        load(program)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or every member would have a copy of what imports printed
    gc.collect()
    gc.freeze()  # collections in the members do not touch, and so copy, what is here
    wire.send({"ready": os.getpid(), "clean": clean()})
    Births(wire, job, program).serve(launcher)


def load(program: bytes) -> None:
    """Import what the program needs, once for all members; what is wrong with it, they say."""
    import cloudpickle

    with suppress(Exception):
        cloudpickle.loads(program)


def clean() -> bool:
    """Whether a copy of this process works: no other thread, no graphics card in use."""
    torch = sys.modules.get("torch")
    cuda = torch is not None and torch.cuda.is_initialized()
    return not cuda and len(list(Path("/proc/self/task").iterdir())) == 1


def read_job(fd: int) -> tuple[dict[str, Any], bytes]:
    """A line of JSON, then as many bytes of the program as it says."""
    with os.fdopen(os.dup(fd), "rb", buffering=0) as stream:
        line = bytearray()
        while not line.endswith(b"\n"):
            line += stream.read(1) or sys.exit(1)
        job = json.loads(line)
        program = bytearray()
        while len(program) < job["size"]:
            program += stream.read(job["size"] - len(program)) or sys.exit(1)
    return job, bytes(program)


class Births:
    """Forks members and says how they ended."""

    def __init__(self, wire: Wire, job: dict[str, Any], program: bytes) -> None:
        self.wire, self.job, self.program = wire, job, program
        self.children: set[int] = set()
        self.orphaned = False

    def serve(self, launcher: int) -> None:
        """Until the launcher closes its end, or dies; then nobody is left."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, self._orphan)
        die_with_parent(launcher, by=signal.SIGHUP)
        while self.wire.open and not self.orphaned:
            sources: list[Any] = [self.wire, woken]
            ready, _, _ = select.select(sources, [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._reap(os.WNOHANG)
            if self.wire in ready:
                for seat, fds in self.wire.lines():
                    self._bear(seat, fds, (woken, wake))
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        self._reap(0)

    def _orphan(self, *_: object) -> None:
        self.orphaned = True

    def _bear(self, seat: dict[str, Any], fds: list[int], own: tuple[int, int]) -> None:
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or no memory
            self.wire.send({"unborn": seat["rank"], "error": str(error)})
            pid = -1
        if pid == 0:
            self._live(zygote, seat, fds, own)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self.children.add(pid)
            pidfd = os.pidfd_open(pid)  # only `_reap` could free its number for another
            self.wire.send({"born": pid, "rank": seat["rank"]}, (pidfd,))
            os.close(pidfd)

    def _live(
        self, zygote: int, seat: dict[str, Any], fds: list[int], own: tuple[int, int]
    ) -> None:
        status = 1
        try:
            die_with_parent(zygote)
            os.setpgid(0, 0)  # what it starts ends with it
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            self.wire.close()
            for fd in own:
                os.close(fd)
            from covey.engines.member import live

            status = live(seat, fds[0], fds[1], self.job, self.program)
        except BaseException:  # before it could speak
            os.write(fds[1], traceback.format_exc().encode())
        finally:
            os._exit(status)

    def _reap(self, options: int) -> None:
        while self.children:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | options)
            if dead is None:
                return
            with suppress(OSError):  # before its number is free for another
                os.killpg(dead.si_pid, signal.SIGKILL)
            _, status = os.waitpid(dead.si_pid, 0)
            self.children.discard(dead.si_pid)
            self.wire.send({"died": dead.si_pid, "status": os.waitstatus_to_exitcode(status)})
