"""What flows between processes, and who applies it: lists of steps, each on a role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Recipe(NamedTuple):
    """The list of steps, and what it needs to be set up."""

    build: Callable[..., Any]  # (team, session) -> the task
    members: Mapping[str, str | int] = {}  # by role: how many, or the setting that says it
    keeper: str = "learner"  # the role that saves and finishes
    replays: bool = False  # algorithms that learn from a replay do so here
    pushes: bool = False  # gradients go to an owner
    normalizes: bool = True  # observation statistics reach everybody

    def __call__(self, team: Any, session: Any) -> Any:
        """The task of one member."""
        return self.build(team, session)

    @property
    def what(self) -> str:
        """In one line."""
        return (self.build.__doc__ or "").strip().partition("\n")[0]
