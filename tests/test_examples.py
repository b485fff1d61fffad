"""The examples are what they say: short, and they learn."""

import importlib.util
from pathlib import Path

import pytest

import covey

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_an_example_is_under_60_lines(path):
    assert len(path.read_text().splitlines()) < 60


@pytest.mark.slow
def test_task_solves_cartpole(capsys):
    reason, log, score = covey.run(load("task").main, seed=1)
    assert reason == "solved"
    assert score >= 475
    began, ended, _ = zip(*log, strict=True)
    assert began[0] == 0
    assert began[1:] == ended[:-1]  # the back half saw each round's end
    assert [ended[i] - began[i] for i in range(3)] == [256] * 3
    assert {at for _, _, at in log} >= {0.0}
    told = capsys.readouterr().out
    for step in ("note", "refresh", "evaluate", "collect", "store", "sample", "train"):
        assert f"{step:9} p50" in told
