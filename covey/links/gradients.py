"""`gradients`: many push, one owner applies the mean of k; none is lost without being counted.

pushed = applied + refused + pending, at any time that nobody is in the middle of a push.
"""

from __future__ import annotations

import numpy as np

from covey.links.stream import Stream
from covey.memory.block import CELL, Block, Layout, Word
from covey.memory.ring import ITEM
from covey.memory.ring import layout as ring_layout
from covey.types import Array, Metrics

NO_LIMIT = 2**62


def layout(size: int, slots: int, num_writers: int) -> Layout:
    """Room for flat gradients, and the account."""
    gradient: Layout = {"gradient": ((size,), "f4"), "version": ((), "i8")}
    account: Layout = {name: ((num_writers, CELL), "i8") for name in ("applied", "refused")}
    return {**ring_layout(gradient, slots, num_writers), **account, "held": ((CELL,), "i8")}


class Gradients:
    """Each gradient carries the version of the weights that it was computed on."""

    def __init__(
        self, block: Block, stream: Stream, writers: list[int],
        every: int = 1, max_lag: int | None = None,
    ) -> None:  # fmt: skip
        self.every, self.max_lag = every, NO_LIMIT if max_lag is None else max_lag
        self.name, self._stream = stream.name, stream
        self._applied_N, self._refused_N = (block[name][:, 0] for name in ("applied", "refused"))
        self._writers = writers
        self._sum = np.zeros(block[f"{ITEM}gradient"].shape[2:], np.float32)
        self._held: list[int] = []  # the writers of what is in the sum
        self._num_held = Word(block["held"])
        self._lags = 0  # of what is in the sum
        self.lag: float | None = None  # mean over the newest update; only its owner knows

    def push(self, gradient: Array, version: int) -> None:
        """Hand a gradient to the owner, waiting while it is far behind."""
        self._stream.put({"gradient": gradient, "version": np.array(version)})

    def collect(self, version: int) -> Array | None:
        """The mean of the next `every` that are neither too old nor too new for these weights.

        Waits for them; None where nobody else is there and there are not enough yet.
        """
        while len(self._held) < self.every:
            item = self._stream.take()
            if item is None:
                return None
            writer, lag = self._writers.index(item.writer), version - int(item.values["version"])
            if not 0 <= lag <= self.max_lag:  # below 0: of weights that a restart has undone
                self._refused_N[writer] += 1
                continue
            if self._held:
                self._sum += item.values["gradient"]
            else:
                self._sum[:], self._lags = item.values["gradient"], 0
            self._hold(writer)
            self._lags += lag
        self._stream.give_back()
        self.lag = self._lags / self.every
        if self.every > 1:
            self._sum /= self.every
        return self._sum

    def _hold(self, writer: int) -> None:
        self._held.append(writer)
        self._num_held.value = len(self._held)

    def applied(self) -> None:
        """What `collect` gave has been applied."""
        for writer in self._held:
            self._applied_N[writer] += 1
        self._held = []
        self._num_held.value = 0

    def settle(self) -> None:
        """After an owner died: what it held and had not applied counts as refused."""
        self._refused_N[:] = self._stream.taken_by_writer() - self._applied_N
        self._num_held.value = 0

    def account(self) -> dict[str, int]:
        """Where all gradients are."""
        return {
            "pushed": self._stream.written,
            "applied": int(self._applied_N.sum()),
            "refused": int(self._refused_N.sum()),
            "pending": self._stream.depth + self._num_held.value,
        }

    def check(self) -> None:
        """The account balances; only asked when nobody pushes."""
        a = self.account()
        assert a["pushed"] == a["applied"] + a["refused"] + a["pending"], f"{self.name}: {a}"

    def gauges(self) -> Metrics:
        """The account, and how old what was applied had become."""
        told = {f"{self.name}.{key}": float(value) for key, value in self.account().items()}
        return told if self.lag is None else {**told, f"{self.name}.lag": self.lag}
