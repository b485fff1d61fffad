"""Timing on a machine that others use too: what is compared is measured in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter


def best(action: Callable[[], object], seconds: float = 0.6) -> float:
    """Seconds of the fastest call: on a shared machine the least disturbed one."""
    action()
    ends, shortest = perf_counter() + seconds, float("inf")
    while (began := perf_counter()) < ends:
        action()
        shortest = min(shortest, perf_counter() - began)
    return shortest


def in_turns(
    actions: Mapping[str, Callable[[], float]], seconds: float = 1.0
) -> dict[str, list[float]]:
    """What each action says, one after the other, again and again until the time is over."""
    said: dict[str, list[float]] = {name: [] for name in actions}
    ends = perf_counter() + seconds
    while True:
        for name, action in actions.items():
            said[name].append(action())
        if perf_counter() >= ends:
            return said


def ratio(above: list[float], below: list[float]) -> float:
    """The median ratio of what was measured in the same turn."""
    return median(a / b for a, b in zip(above, below, strict=True))
