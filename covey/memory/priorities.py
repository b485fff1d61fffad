"""What one reader knows of the rows of all shards: how likely each is to be drawn.

Proportional prioritization, Schaul et al. 2016, https://arxiv.org/abs/1511.05952.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from covey.memory.sumtree import SumTree, compiled
from covey.types import Array

LEAST = 1e-6  # added to every error, so that every row may be drawn again


class Draw(NamedTuple):
    """Rows are drawn by p^alpha and weighted by (N P)^-beta; alpha 0 draws all alike."""

    alpha: float = 0.0
    beta: float = 0.4
    anneal: int = 0  # batches over which beta rises to 1; 0 keeps it


class Drawn(NamedTuple):
    """Rows that were chosen: where they are, which ones, and how likely each was."""

    slot_N: Array
    shard_N: Array
    number_N: Array
    chance_N: Array


class Priorities:
    """Of `shards` shards with `size` slots each; slots of all shards are numbered through."""

    def __init__(self, draw: Draw, shards: int, size: int) -> None:
        self.draw, self.size = draw, size
        self.tree = SumTree(shards * size, compiled())
        self.seen_S = np.zeros(shards, np.int64)  # rows of each shard that are in the tree
        self._floor_S = np.zeros(shards, np.int64)
        self.draws = 0  # batches ever drawn

    def take_up(self, head_S: Array, floor_S: Array, first_M: Array) -> None:
        """Bring into the tree what was written since, and out of it what was forgotten."""
        for shard in (head_S != self.seen_S).nonzero()[0].tolist():
            head = int(head_S[shard])
            slot_N = self.slots(shard, max(int(self.seen_S[shard]), head - self.size), head)
            weight_N = self.powers(first_M[slot_N])
            unknown_N = ~np.isfinite(weight_N)
            if unknown_N.any():  # the highest that there is
                weight_N[unknown_N] = self.tree.leaf_N.max() or 1.0
            self.tree.set(slot_N, weight_N)
            self.seen_S[shard] = head
        for shard in (floor_S > self._floor_S).nonzero()[0].tolist():
            oldest = max(int(self._floor_S[shard]), int(self.seen_S[shard]) - self.size)
            self.forget(self.slots(shard, oldest, int(floor_S[shard])))
            self._floor_S[shard] = floor_S[shard]

    def slots(self, shard: int, first: int, end: int) -> Array:
        """Where the rows of these numbers are, or were."""
        number_N = np.arange(first, end)
        slot_N: Array = shard * self.size + number_N % self.size
        return slot_N

    def choose(self, num: int, rng: np.random.Generator) -> Drawn:
        """Rows, one of each of `num` equal parts of the total."""
        total = self.tree.total
        assert total > 0, "sample from an empty replay"
        slot_N = self.tree.find((np.arange(num) + rng.random(num)) * (total / num))
        shard_N = slot_N // self.size
        last_N = self.seen_S[shard_N] - 1  # the newest row that the tree has of the shard
        number_N = last_N - (last_N - (slot_N - shard_N * self.size)) % self.size
        return Drawn(slot_N, shard_N, number_N, self.tree.leaf_N[slot_N] / total)

    def has(self, shard_N: Array, number_N: Array) -> Array:
        """Whether the tree has these rows, and no newer ones in their slots."""
        end_N = self.seen_S[shard_N]
        has_N: Array = (number_N >= end_N - self.size) & (number_N < end_N)
        return has_N

    def revise(self, slot_N: Array, error_N: Array) -> None:
        """Other priorities for rows that are still there."""
        self.tree.set(slot_N, self.powers(error_N))

    def forget(self, slot_N: Array) -> None:
        """Never draw these."""
        self.tree.set(slot_N, np.zeros(len(slot_N)))

    def powers(self, error_N: Array) -> Array:
        """(|error| + least)^alpha."""
        power_N: Array = (np.abs(error_N.astype(np.float64)) + LEAST) ** self.draw.alpha
        return power_N

    @property
    def beta(self) -> float:
        """Of the next batch."""
        _, beta, anneal = self.draw
        return beta + (1 - beta) * min(1.0, self.draws / anneal if anneal else 0.0)

    def importance(self, chance_N: Array, num_rows: int) -> Array:
        """(N P)^-beta of each row, the largest being 1; P as it really was."""
        weight_N = (num_rows * chance_N) ** -self.beta
        self.draws += 1
        scaled_N: Array = (weight_N / weight_N.max()).astype(np.float32)
        return scaled_N

    def restore(self, slot_N: Array, leaf_N: Array, head_S: Array, draws: int) -> None:
        """Take back what was saved of these slots."""
        self.tree.set(slot_N, leaf_N)
        self.seen_S[:], self.draws = head_S, draws
