"""A piece of memory laid out as named arrays: an anonymous file, with no name to leave behind.

Every byte has exactly one writer, so nothing here is locked; `locked` is for the rare cell that any
member may move. The kernel frees that lock with the process that holds it, however it dies.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import numpy as np

from covey.errors import UserError
from covey.types import Array, dtype_of, plain_dtype

Layout = Mapping[str, tuple[tuple[int, ...], Any]]  # name -> shape, dtype
Form = tuple[np.dtype[Any], tuple[int, ...]]
LINE = 64  # bytes of a cache line: what two processes write never shares one
CELL = 8  # 64-bit words in a line; member r's own word is cell[r, 0]
LOCK_SECONDS = 60.0


def signature(layout: Layout) -> list[Any]:
    """The layout as plain data: what two members must agree on."""
    return [
        [name, list(shape), plain_dtype(np.dtype(dtype))] for name, (shape, dtype) in layout.items()
    ]


def layout_of(signature: list[Any]) -> Layout:
    """The layout that `signature` wrote down."""
    return {name: (tuple(shape), dtype_of(kind)) for name, shape, kind in signature}


def size_of(layout: Layout) -> int:
    """Bytes that a layout takes."""
    return max(LINE, sum(_padded(shape, dtype) for shape, dtype in layout.values()))


def _padded(shape: tuple[int, ...], dtype: Any) -> int:
    num: int = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-num // LINE) * LINE


def new_memory(size: int) -> int:
    """A descriptor of `size` zeroed bytes; they cost nothing until they are written."""
    fd: int = os.memfd_create("covey", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


class Block:
    """Named arrays over one memory; without a descriptor, over a new one of this process."""

    fd = -1

    def __init__(self, layout: Layout, fd: int | None = None) -> None:
        self.layout, self.size = dict(layout), size_of(layout)
        fd = new_memory(self.size) if fd is None else fd
        memory = mmap.mmap(fd, self.size)
        self.fd = fd  # ours from here on
        self.arrays: dict[str, Array] = {}
        offset = 0
        for name, (shape, dtype) in layout.items():
            flat = np.frombuffer(memory, dtype, math.prod(shape), offset)
            self.arrays[name] = flat.reshape(shape)
            offset += _padded(shape, dtype)
        self._thread = threading.Lock()

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one thread of all members at a time; short, as the others look again and again."""
        deadline = monotonic() + LOCK_SECONDS
        with self._thread:
            while not _try_lock(self.fd):
                if monotonic() > deadline:
                    raise UserError(f"a lock was not given back in {LOCK_SECONDS:g} s.")
                sleep(0.0001)
            try:
                yield
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the descriptor back; the memory goes with its last array."""
        self.arrays = {}
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


def _try_lock(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def check(name: str, forms: Mapping[str, Form], item: Mapping[str, Array]) -> None:
    """Refuse, at whoever gives it, an item that has not the form of its place."""
    if forms.keys() == item.keys() and all(
        (item[key].dtype, item[key].shape) == form for key, form in forms.items()
    ):
        return
    for key in sorted(forms.keys() | item.keys()):
        form, value = forms.get(key), item.get(key)
        if form is None or value is None or (value.dtype, value.shape) != form:
            holds = "nothing" if form is None else f"{form[0]}{list(form[1])}"
            given = "nothing" if value is None else f"{value.dtype}{list(value.shape)}"
            raise UserError(f"{name}: '{key}' holds {holds} but was given {given}.")


class Word:
    """One 64-bit number in shared memory: a store or a load of it is never torn."""

    __slots__ = ("_word",)

    def __init__(self, cell: Array) -> None:
        # a memoryview's item is ten times as fast to reach as a numpy array's
        self._word = cell.data.cast("B").cast("q")

    @property
    def value(self) -> int:
        """Its value now."""
        return self._word[0]

    @value.setter
    def value(self, value: int) -> None:
        self._word[0] = value


_ORDERED = platform.machine() in ("x86_64", "AMD64")
_order = threading.Lock()


def fence() -> None:
    """What was written before becomes visible before what is written after.

    x86 keeps that order by itself; elsewhere a lock taken twice does: no store crosses both.
    """
    if not _ORDERED:
        with _order:
            pass
        with _order:
            pass
