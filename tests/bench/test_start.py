import mmap
import os
from math import isfinite

import numpy as np
import pytest

from covey.bench import start


@pytest.mark.slow
def test_the_figures_are_there_and_make_sense():
    figures = start.measure(actors=3, spawned=1, kills=6)
    assert all(isfinite(value) and value > 0 for value in figures.values())
    assert (figures["actors"], figures["kills"]) == (3, 6)
    assert 1 < figures["own_mib_each"] <= figures["own_mib_max"] <= 20
    assert figures["spawned_own_mib_each"] > 50  # torch, each for itself
    shares = figures["own_mib_each"] / figures["spawned_own_mib_each"]
    assert np.isclose(figures["actor_mib_of_spawned"], shares)
    shares = figures["ready_seconds"] / 3 / figures["spawned_seconds_each"]
    assert np.isclose(figures["actor_seconds_of_spawned"], shares)
    assert figures["ready_seconds"] <= figures["ready_seconds_slowest"]
    names = ("median", "p95", "max")
    recovered = [figures[f"recovery_seconds_{name}"] for name in names]
    assert recovered == sorted(recovered)


def test_own_memory_is_what_nobody_else_has():
    before = start.own_mib(os.getpid())
    own = np.ones(64 * 2**20, np.uint8)
    with_own = start.own_mib(os.getpid())
    assert 60 < with_own - before < 80
    fd = os.memfd_create("both")
    os.ftruncate(fd, 64 * 2**20)
    one, two = (mmap.mmap(fd, 64 * 2**20) for _ in range(2))
    os.close(fd)
    one[:], two[:1] = bytes(own), bytes(1)
    shared = start.own_mib(os.getpid())
    one.close()
    two.close()
    assert start.own_mib(os.getpid()) < shared + 1
    assert len(own) == 64 * 2**20
