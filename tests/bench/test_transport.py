import multiprocessing
from math import isfinite
from statistics import median
from time import perf_counter

import numpy as np

from covey.bench import transport


def test_the_figures_are_there_and_make_sense():
    figures = transport.measure(seconds=0.1)
    assert all(isfinite(value) and value > 0 for value in figures.values())
    assert 1.3 < figures["unroll_megabytes"] < 1.5
    assert figures["stream_of_memcpy"] < 1.5  # the copy is a part of it
    assert figures["stream_of_queue"] > 2
    assert figures["round_trip_microseconds"] > 1
    for name in ("stream", "stream_copied_out"):
        rate = figures[f"{name}_gigabytes_per_second"]
        assert np.isclose(
            rate / figures["memcpy_gigabytes_per_second"], figures[f"{name}_of_memcpy"]
        )


def test_a_queue_takes_at_least_as_long_as_what_goes_through_it():
    slow = median(transport.through_queue(np.ones(4_000_000, np.uint8), 4, 2) for _ in range(3))
    fast = median(transport.through_queue(1, 4, 2) for _ in range(3))
    assert fast < slow
    assert multiprocessing.active_children() == []


def test_a_process_beside_is_gone_when_it_is_over(wait_for):
    began = perf_counter()
    with transport.beside(lambda: wait_for(lambda: False, "ever", 1000)):
        pass
    assert perf_counter() - began < 60
