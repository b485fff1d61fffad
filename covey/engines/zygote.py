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
from typing import Any

from covey.engines.wire import Wire
from covey.memory.bell import die_with_parent


def main(fd: int, launcher: int) -> None:
    """Take the job, import, then give birth on request until the launcher goes."""
    die_with_parent(launcher)
    wire = Wire(socket.socket(fileno=fd))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job, main_bytes = _job(fd)
    sys.path[:] = job["path"]
    for name in job["preload"]:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # whoever needs it will say so
    gc.collect()
    gc.freeze()  # collections in the members do not touch, and so copy, what is here
    threads = len(os.listdir("/proc/self/task"))
    wire.send({"ready": os.getpid(), "threads": threads})
    Births(wire, job, main_bytes).serve()


def _job(fd: int) -> tuple[dict[str, Any], bytes]:
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

    def __init__(self, wire: Wire, job: dict[str, Any], main_bytes: bytes) -> None:
        self.wire, self.job, self.main_bytes = wire, job, main_bytes
        self.children: set[int] = set()

    def serve(self) -> None:
        """Until the launcher closes its end."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while self.wire.open:
            ready, _, _ = select.select([self.wire, woken], [], [], 1.0)
            if woken in ready:
                os.read(woken, 4096)
            if self.wire in ready:
                for seat, fds in self.wire.lines():
                    self._fork(seat, fds[0], (woken, wake))
            self._reap()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)

    def _fork(self, seat: dict[str, Any], control: int, own: tuple[int, int]) -> None:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent(zygote)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self.wire.close()
                for fd in own:
                    os.close(fd)
                from covey.engines.member import live

                status = live(seat, control, self.job, self.main_bytes)
            finally:
                os._exit(status)
        os.close(control)
        self.children.add(pid)
        pidfd = os.pidfd_open(pid)
        self.wire.send({"born": pid, "rank": seat["rank"]}, (pidfd,))
        os.close(pidfd)

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self.children.discard(pid)
            self.wire.send({"died": pid, "status": os.waitstatus_to_exitcode(status)})
