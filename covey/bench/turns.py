"""Timing on a machine that others use too: what is compared is measured in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter


def best(action: Callable[[], object], seconds: float = 0.6) -> float:
    """Seconds of the fastest call: on a shared machine the least disturbed one."""
    action()
    ends, shortest = perf_counter() + seconds, float("inf")
    while (began := perf_counter()) < ends:
        action()
        shortest = min(shortest, perf_counter() - began)
    return shortest


def clocked(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = perf_counter()
    action()
    return perf_counter() - began


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


def typical(seconds: Sequence[float]) -> float:
    """The lower quartile: what others do on this machine can only slow a turn down."""
    return sorted(seconds)[len(seconds) // 4]


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Of what is typical of two things that were measured in turns."""
    return typical(above) / typical(below)
