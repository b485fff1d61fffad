"""This machine's limits and how near covey comes to them, measured in turns in one run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from covey.errors import UserError, nearest

BENCHES = {
    "serial": "one process: acting and updating beside the bare environment",
    "transport": "unrolls through a stream beside memcpy and multiprocessing.Queue",
    "weights": "refreshing and publishing beside memcpy; torn reads",
    "replay": "rows in and out of a prioritized replay beside a bare look-up",
    "apex": "a learner beside its own rate; 360 actors at the rates of the Ape-X paper",
    "actors": "hundreds of actors that wait, and one that has a fast environment",
    "hogwild": "workers on the same weights against one worker",
    "start": "many actors until they act, their own memory, and the successor of a killed one",
}


def bench(name: str, settings: Mapping[str, Any] | None = None) -> Callable[..., dict[str, float]]:
    """What measures it, for so long or with so many; the figures come back by name."""
    from covey.config import converted  # for those who measure

    if name not in BENCHES:
        raise UserError(f"unknown bench '{name}'. {nearest(name, BENCHES)}")
    found: Callable[..., dict[str, float]] = import_module(f"covey.bench.{name}").measure
    parameters = inspect.signature(found).parameters.values()
    numbers = {p.name: type(p.default) for p in parameters if isinstance(p.default, int | float)}
    wanted = settings or {}
    for key in wanted.keys() - numbers.keys():
        raise UserError(f"bench {name} has no setting '{key}'. {nearest(key, numbers)}")
    return partial(found, **{k: converted(k, value, numbers[k]) for k, value in wanted.items()})
