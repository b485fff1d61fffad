"""Weights whose running sum can be searched: leaves of float64, and sums of sixteen up to the root.

Written in C, where it was compiled when covey was installed, and in numpy: both give the same bits,
so a machine without a compiler is only slower.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from covey.types import Array

WIDTH = 16  # children of a node: two cache lines
COMPILED = Path(__file__).with_name("libsumtree.so")


def compiled() -> ctypes.CDLL | None:
    """The kernels, if they are there and work here."""
    try:
        return ctypes.CDLL(str(COMPILED))
    except OSError:
        return None


class SumTree:
    """`size` weights, all 0 at first."""

    def __init__(self, size: int, library: ctypes.CDLL | None = None) -> None:
        self.size = size
        self._levels: list[Array] = []
        num = size
        while not self._levels or num > 1:
            num = -(-num // WIDTH)
            self._levels.insert(0, np.zeros(num * WIDTH))
        self.leaf_N = self._levels[-1][:size]
        self._library = library
        starts = [level.ctypes.data for level in self._levels]
        self._starts = (ctypes.c_void_p * len(starts))(*starts)
        self._node_N = np.zeros(0, np.int64)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(np.cumsum(self._levels[0])[-1])

    def set(self, index_N: Array, weight_N: Array) -> None:
        """Give leaves other weights; of one that is named twice the last is taken."""
        if self._library is None:
            self._set(index_N, weight_N)
            return
        index_N = np.ascontiguousarray(index_N, np.int64)
        weight_N = np.ascontiguousarray(weight_N, np.float64)
        assert len(index_N) == len(weight_N)
        self._library.tree_set(
            self._starts, _long(len(self._levels)), _at(index_N), _at(weight_N),
            _long(len(index_N)), _at(self._nodes(len(index_N))),
        )  # fmt: skip

    def find(self, target_N: Array) -> Array:
        """For each number below `total` the leaf at which the running sum goes over it."""
        if self._library is None:
            return self._find(target_N)
        left_N, found_N = np.array(target_N, np.float64), np.empty(len(target_N), np.int64)
        self._library.tree_find(
            self._starts, _long(len(self._levels)), _at(left_N), _long(len(left_N)), _at(found_N)
        )
        return found_N

    def _nodes(self, num: int) -> Array:
        if len(self._node_N) < num:
            self._node_N = np.empty(num, np.int64)
        return self._node_N

    def _set(self, index_N: Array, weight_N: Array) -> None:
        self.leaf_N[index_N] = weight_N
        for level, below in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            index_N = index_N // WIDTH
            level[index_N] = below.reshape(-1, WIDTH)[index_N].cumsum(axis=1)[:, -1]

    def _find(self, target_N: Array) -> Array:
        left_N, node_N = np.array(target_N, np.float64), np.zeros(len(target_N), np.int64)
        for level in self._levels:
            child_NK = level.reshape(-1, WIDTH)[node_N]
            sum_NK = child_NK.cumsum(axis=1)
            chosen_N = (sum_NK <= left_N[:, None]).sum(axis=1)
            # rounding may go past the end: then it is the last that weighs anything
            last_N = WIDTH - 1 - (child_NK[:, ::-1] > 0).argmax(axis=1)
            chosen_N = np.minimum(chosen_N, last_N)
            before_NK = np.pad(sum_NK, ((0, 0), (1, 0)))
            left_N -= before_NK[np.arange(len(node_N)), chosen_N]
            node_N = node_N * WIDTH + chosen_N
        return node_N

    def check(self) -> None:
        """Every node is the sum of its children, and nothing weighs less than nothing."""
        assert (self._levels[-1] >= 0).all()
        for level, below in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            sums = below.reshape(-1, WIDTH).cumsum(axis=1)[:, -1]
            assert (level[: len(sums)] == sums).all()
            assert not level[len(sums) :].any()


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _long(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(number)
