"""One process plays every role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from threadpoolctl import threadpool_limits

from covey.errors import UserError
from covey.team import Alone, Main, Team


def run(
    main: Main, *, seed: int, members: Mapping[str, int], care: Any = None,
    hear: Callable[..., None] = lambda kind, **what: None,
) -> Any:  # fmt: skip
    """What `main` returns."""
    if members:
        told = ", ".join(f"{role}={num}" for role, num in members.items())
        raise UserError(
            f"the engine inline is one process that plays every role, so {told} has no meaning. "
            "Leave it out, or say engine='processes'."
        )
    # numpy multiplies small matrices here: one thread is fastest and gives the same bits
    with (
        threadpool_limits(limits=1, user_api="blas"),
        closing(Team(seed, post=Alone(hear))) as team,
    ):
        return main(team)
