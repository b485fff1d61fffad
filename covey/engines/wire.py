"""Lines of JSON over a pair of sockets that only the launcher and one of its processes hold.

A line that was cut off by a death is dropped with its connection; nobody else shares it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from array import array
from collections.abc import Iterator
from typing import Any

from covey.errors import UserError

LONGEST_LINE = 64 * 2**20
MOST_FDS = 4
AT_ONCE = 2**18  # bytes


class Wire:
    """One end. `send` may be called from several threads; `lines` belongs to one."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.open = True
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._sending = threading.RLock()  # what the collector throws away may say something too

    def fileno(self) -> int:
        """For a selector."""
        return self.end.fileno()

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> bool:
        """False if the other end has gone. A line says how many descriptors come with it."""
        told = {**message, "fds": len(fds)} if fds else message
        data = memoryview(json.dumps(told).encode() + b"\n")
        if len(data) > LONGEST_LINE:
            raise UserError(
                f"{len(data)} bytes are more than the {LONGEST_LINE} that a message may have. "
                "Give less, or write it to a file."
            )
        try:
            with self._sending:
                sent = socket.send_fds(self.end, [data], fds) if fds else 0
                self.end.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def lines(self, flags: int = 0) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """What has come, after waiting for something; `open` is False once the other end is gone.

        With MSG_DONTWAIT, BlockingIOError says that nothing has come.
        """
        # not socket.recv_fds, which leaves out the flags (CPython 3.11)
        room, flags = socket.CMSG_LEN(4 * MOST_FDS), flags | socket.MSG_CMSG_CLOEXEC
        try:
            data, came_along, _, _ = self.end.recvmsg(AT_ONCE, room, flags)
        except ConnectionResetError:
            data, came_along = b"", []
        for _, _, numbers in came_along:
            self._fds += array("i", numbers)
        self.open = bool(data)
        self._buffer += data
        if len(self._buffer) > LONGEST_LINE:
            raise ValueError(f"a line of more than {LONGEST_LINE} bytes")
        if b"\n" not in data:
            return
        *whole, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in whole:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError(f"{line[:40]!r} is not a message")
            num = message.pop("fds", 0)
            came, self._fds = self._fds[:num], self._fds[num:]
            yield message, came

    def answer(self, seconds: float) -> tuple[dict[str, Any], list[int]]:
        """The next line, waiting for it; nothing else may be on its way."""
        self.end.settimeout(seconds)
        try:
            while self.open:
                for found in self.lines():
                    return found
        finally:
            self.end.settimeout(None)
        raise ConnectionError("the other end has gone")

    def close(self) -> None:
        """Close this end."""
        self.open = False
        self.end.close()
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, without a name or a port."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
