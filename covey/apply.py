"""Who applies a gradient when there are several processes: `apply=` of an agent."""

from __future__ import annotations

import math
import os
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from covey.errors import Stopped, UserError
from covey.links.gather import Gather
from covey.memory.block import CELL
from covey.optim import Optimizer
from covey.types import Metrics

if TYPE_CHECKING:
    from covey.links.gradients import Gradients
    from covey.team import Team

GROUP_SECONDS = 10.0  # until a group that lost a member gives up


class InPlace:
    """Each worker applies its own gradients to weights and moments that all share, with no lock.

    Recht et al. 2011, https://arxiv.org/abs/1106.5730: what two write at once, one of them wins,
    number by number.
    """

    def __init__(self, team: Team, name: str) -> None:
        self._team, self._name = team, name
        self._count = team.count(f"{name}/updates")

    @property
    def updates(self) -> int:
        """Of all workers together."""
        return self._count.total

    @updates.setter
    def updates(self, number: int) -> None:
        self._count.begin_at(number)

    def place(self, name: str, vector: Tensor) -> Tensor:
        """In memory that all share; whoever comes first brings the first values."""
        if vector.device.type != "cpu" or vector.dtype != torch.float32:
            raise UserError(
                f"hogwild shares float32 weights in main memory; this network is {vector.dtype} on "
                f"{vector.device.type}. Use --device cpu, or the recipe a3c."
            )
        layout = {"filled": ((CELL,), "i8"), "values": ((len(vector),), "f4")}
        block = self._team.block(f"{self._name}/{name}", layout)
        with block.locked():
            if not block["filled"][0]:
                block["values"][:] = vector.numpy()
                block["filled"][0] = 1
        return torch.from_numpy(block["values"])

    def apply(self, optimizer: Optimizer, gradient: Tensor) -> float:
        """Here and now, beside whoever else does."""
        norm = optimizer.clip(gradient)
        if math.isfinite(norm):
            optimizer.update(gradient, self._count.add(1))
        return norm

    def crossed(self, every: int) -> bool:
        """Said to one worker."""
        return self._count.crossed(every)


class ToOwner:
    """Workers push gradients to one owner, who applies the mean of `every` (A3C).

    The owner calls `apply_pushed`. A gradient's version is how many updates had made the weights
    that it was computed on, which comes with the weights.
    """

    def __init__(
        self, team: Team, name: str, every: int, max_lag: int | None, writers: str, owner: str
    ) -> None:
        self._make = partial(
            team.gradient_link, name, every=every, max_lag=max_lag, writers=writers, owner=owner
        )
        self._succeeds = team.rank == team.ranks(owner)[0] and team.generation > 0
        self.link: Gradients | None = None
        self.updates = 0

    def place(self, name: str, vector: Tensor) -> Tensor:
        """Where it is: everybody has weights of its own."""
        if name == "weights":
            self.link = self._make(size=len(vector))
            if self._succeeds:
                self.link.settle()
        return vector

    def check(self) -> None:
        """The account of the link balances."""
        if self.link is not None:
            self.link.check()

    def gauges(self) -> Metrics:
        """Of the link."""
        return {} if self.link is None else self.link.gauges()

    def apply(self, optimizer: Optimizer, gradient: Tensor) -> float:
        """To the owner."""
        norm = optimizer.clip(gradient)
        if math.isfinite(norm):
            assert self.link is not None
            self.link.push(gradient.cpu().numpy(), self.updates)
        return norm

    def apply_pushed(self, optimizer: Optimizer) -> bool:
        """At the owner: one update with the mean of the next `every`; False if too few are here."""
        assert self.link is not None
        mean = self.link.collect(self.updates)
        if mean is None:
            return False
        self.updates += 1
        optimizer.update(torch.from_numpy(mean).to(optimizer.flat.device), self.updates)
        self.link.applied()
        return True

    def crossed(self, every: int) -> bool:
        """After each `every` updates, at the owner."""
        return self.updates % every == 0


class Averaged:
    """Members of one role apply the mean of their gradients, through torch.distributed.

    A step begins only when all are there: so all take as many, and who waits still hears the team
    stop. Nothing listens but on this machine's loopback.
    """

    def __init__(self, team: Team, role: str) -> None:
        self._team, self._ranks = team, team.ranks(role)
        self._block = team.block(f"{role}s", {"arrived": ((team.size, CELL), "i8")})
        self._arrived_N = self._block["arrived"][:, 0]
        self._group: torch.distributed.ProcessGroup | None = None
        self.updates = 0

    def place(self, name: str, vector: Tensor) -> Tensor:
        """Where it is: all copies stay equal."""
        return vector

    def apply(self, optimizer: Optimizer, gradient: Tensor) -> float:
        """Wait for everybody's, then here and now."""
        self.meet()
        if self._group is None:
            self._group = self._join(gradient.device.type)
        try:
            torch.distributed.all_reduce(gradient, group=self._group)
        except RuntimeError as error:  # somebody died in the middle: the launcher ends all
            who = self._team.waits.names(self._ranks)
            self._team.waits.nap(GROUP_SECONDS)
            raise UserError(f"averaging gradients of {who} failed: {error}") from error
        gradient.div_(len(self._ranks))
        norm = optimizer.clip(gradient)
        if math.isfinite(norm):
            self.updates += 1
            optimizer.update(gradient, self.updates)
        return norm

    def meet(self) -> None:
        """Until all have come as far; all of them go on from here, or none."""
        rank = self._team.rank
        with self._block.locked():
            self._arrived_N[rank] += 1
        now = int(self._arrived_N[rank])
        for other in self._ranks:
            self._team.waits.ring(other)
        try:
            self._team.waits.until(
                lambda: not self._late(now),
                lambda: f"update {now} of all; absent: {self._team.waits.names(self._late(now))}",
            )
        except Stopped:
            with self._block.locked():  # nobody arrives meanwhile, and counts on this member
                if self._late(now):
                    self._arrived_N[rank] -= 1
                    raise

    def _late(self, now: int) -> list[int]:
        return [rank for rank in self._ranks if self._arrived_N[rank] < now]

    def _join(self, device: str) -> torch.distributed.ProcessGroup:
        """The group; its members find each other in memory of the team's, not at an address."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        fd = self._team.post.memory("rendezvous", 0, [])
        num, index = len(self._ranks), self._ranks.index(self._team.rank)
        store = torch.distributed.FileStore(f"/proc/self/fd/{fd}", num)  # type: ignore[attr-defined]
        torch.distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo", store=store, rank=index, world_size=num,
            timeout=timedelta(seconds=GROUP_SECONDS),
        )  # fmt: skip
        os.close(fd)
        group = torch.distributed.group.WORLD
        assert group is not None
        return group

    def crossed(self, every: int) -> bool:
        """After each `every` updates, everywhere."""
        return self.updates % every == 0


class Everyone:
    """All members apply the mean of their gradients, in rank order: the same bits everywhere."""

    def __init__(self, gather: Gather) -> None:
        self._gather = gather
        self.updates = 0

    def place(self, name: str, vector: Tensor) -> Tensor:
        """Where it is: all copies stay equal."""
        return vector

    def apply(self, optimizer: Optimizer, gradient: Tensor) -> float:
        """Wait for everybody's, then here and now."""
        gathered = self._gather({"gradient": gradient.cpu().numpy()}) or []
        total = gathered[0]["gradient"].copy()
        for item in gathered[1:]:
            total += item["gradient"]
        mean = torch.from_numpy(total / np.float32(len(gathered))).to(gradient.device)
        norm = optimizer.clip(mean)
        if math.isfinite(norm):
            self.updates += 1
            optimizer.update(mean, self.updates)
        return norm

    def crossed(self, every: int) -> bool:
        """After each `every` updates, everywhere."""
        return self.updates % every == 0
