"""The same `main` in every process, and what it asks of its place in the team."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from covey.errors import UserError
from covey.links.replay import Replay
from covey.task import Shared, Task
from covey.types import Algorithm, Spec

Main = Callable[["Team"], Any]


class Team:
    """This process: its roles, its random numbers, and the links to the others.

    `roles` None plays them all. Random numbers are children of one `SeedSequence`, by role, index
    and use: no two parts ever share a stream, and adding one changes no other.
    """

    def __init__(self, seed: int, roles: frozenset[str] | None = None) -> None:
        self.roles = roles
        self.role, self.index, self.rank, self.size = "all", 0, 0, 1
        self.root_seed = seed
        self._shared = Shared()

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def seed(self) -> np.random.SeedSequence:
        """For this member's environments."""
        return self.child("env")

    def child(self, use: str) -> np.random.SeedSequence:
        """The seed of one use in this member."""
        key = [self.root_seed, *f"{self.role}/{use}".encode(), self.index]
        return np.random.SeedSequence(key)

    def rng(self, use: str) -> np.random.Generator:
        """The random numbers of one use in this member."""
        return np.random.default_rng(self.child(use))

    def agent(
        self, algorithm: type[Any], env: Any, config: Any = None,
        network: Any = None, device: str = "cpu",
    ) -> Algorithm:  # fmt: skip
        """An agent for an environment, with weights and exploration of its own seed."""
        import torch

        spec: Spec = env.spec
        kind = "discrete" if spec.discrete else "continuous"
        if kind not in algorithm.actions:
            raise UserError(
                f"{algorithm.__name__} needs {' or '.join(algorithm.actions)} actions; "
                f"{env.name} has {kind} ones."
            )
        torch.manual_seed(int(self.child("weights").generate_state(1)[0]))
        agent: Algorithm = algorithm(
            spec, config or algorithm.Config(), self.rng("act"), network=network, device=device
        )
        return agent

    def replay(self, name: str, capacity: int = 100_000, save_rows: bool = True) -> Replay:
        """Rows to learn from again and again."""
        return Replay(capacity, self.rng(f"replay/{name}"), save_rows)

    def task(self) -> Task:
        """A task for the roles that this process plays."""
        return Task(self.roles, self._shared)


def run(main: Main, *, seed: int = 1, engine: str = "inline", **members: int) -> Any:
    """Run `main(team)` in every member of the team; alone it plays every role."""
    if members or engine != "inline":
        wanted = ", ".join([*(f"{k}={v}" for k, v in members.items()), f"engine={engine!r}"])
        raise UserError(
            f"covey.run({wanted}): several processes are not part of this version. "
            "Leave these out and one process plays every role."
        )
    return main(Team(seed))
