import os
from math import isfinite

import pytest

from covey.bench import hogwild


@pytest.mark.slow
def test_the_figures_are_there_and_make_sense(monkeypatch):
    monkeypatch.setattr(hogwild, "WORKERS", (1, 2))
    figures = hogwild.measure(seconds=0.3, turns_seconds=0)
    assert all(isfinite(value) and value > 0 for value in figures.values())
    assert figures["cores"] == len(os.sched_getaffinity(0))
    one, two = (figures[f"{num}_workers_steps_per_second"] for num in (1, 2))
    assert one > 100
    assert figures["2_workers_of_one"] == two / one


def test_the_fastest_turn_of_each_counts(monkeypatch):
    said = {1: [100.0, 180.0], 2: [200.0, 120.0], 4: [150.0, 240.0]}
    monkeypatch.setattr(hogwild, "rate", lambda num, _: hogwild.Rate(said[num].pop(0), 7.0))

    def twice(actions, seconds):
        for action in [*actions.values(), *actions.values()]:
            action()

    monkeypatch.setattr(hogwild, "in_turns", twice)
    figures = hogwild.measure()
    assert [figures[f"{num}_workers_steps_per_second"] for num in (1, 2, 4)] == [180, 200, 240]
    assert figures["4_workers_of_one"] == 240 / 180
    assert figures["2_workers_cpu_microseconds_per_step"] == 7
