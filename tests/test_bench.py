import time

import torch

from covey import bench


def test_the_best_is_the_fastest_call():
    naps = iter([0.03, 0.02, 0.001] + [0.02] * 50)
    assert 0.001 <= bench.best(lambda: time.sleep(next(naps)), seconds=0.1) < 0.015


def test_the_figures_are_there_and_make_sense(monkeypatch):
    best = bench.best
    monkeypatch.setattr(bench, "best", lambda action: best(action, 0.03))
    threads = torch.get_num_threads()
    try:
        figures = bench.BENCHES["serial"]()
    finally:
        torch.set_num_threads(threads)
    assert set(figures) == {
        "environment_steps_per_second",
        *(f"{algo}_{name}" for algo in ("dqn", "ppo") for name in (
            "acting_steps_per_second", "updates_per_second", "acting_of_environment")),
    }  # fmt: skip
    assert all(value > 0 for value in figures.values())
    for algo in ("dqn", "ppo"):
        acting = figures[f"{algo}_acting_steps_per_second"]
        assert (
            figures[f"{algo}_acting_of_environment"]
            == acting / figures["environment_steps_per_second"]
        )
        assert figures[f"{algo}_acting_of_environment"] < 1.2  # acting includes the environment
