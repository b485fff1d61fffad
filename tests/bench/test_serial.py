import torch

from covey.bench import serial


def test_the_figures_are_there_and_make_sense():
    threads = torch.get_num_threads()
    try:
        figures = serial.measure(seconds=0.03)
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
