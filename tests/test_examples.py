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


@pytest.mark.parametrize("members", [{}, {"worker": 4}], ids=["alone", "workers"])
def test_hogwild_counts_exactly_and_learns_the_network(members):
    hogwild, num = load("hogwild"), members.get("worker", 1)
    counted, learnt = covey.run(hogwild.count, **members), covey.run(hogwild.network, **members)
    assert counted == ([40] * num if members else 10)
    for row in learnt if members else [learnt]:
        assert row == pytest.approx([-1.0] * 4, abs=1e-3)


@pytest.mark.slow
def test_hogwild_q_learning_solves_cartpole():
    *_, (reason, env_steps) = covey.run(load("hogwild").q_learning, worker=4, evaluator=1)
    assert reason == "solved"
    assert env_steps < 500_000


@pytest.mark.slow
@pytest.mark.parametrize("members", [{}, {"worker": 3, "learner": 1, "evaluator": 1}],
                         ids=["alone", "team"])  # fmt: skip
def test_a3c_solves_cartpole_and_its_account_balances(members):
    found = covey.run(load("a3c").main, seed=2, **members)
    reason, env_steps, gauges = found[3] if members else found
    assert reason == "solved"
    assert env_steps < 300_000
    account = {name.partition(".")[2]: value for name, value in gauges.items()}
    assert account["pushed"] == account["applied"] + account["refused"] + account["pending"]
    assert account["applied"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "ddpg", "d4pg"])
def test_apex_solves_its_task_and_draws_as_asked(name):
    members = {"actor": 2, "learner": 1, "evaluator": 1}
    reason, env_steps, gauges = covey.run(load("apex").program(name), seed=3, **members)[2]
    assert reason == "solved"
    assert env_steps < 100_000
    drawn, added = gauges["replay.drawn"], gauges["replay.added"]
    assert drawn / (added - 1_000) == pytest.approx(16, rel=0.03)


@pytest.mark.slow
def test_apex_is_one_process_too():
    reason, env_steps, gauges = covey.run(load("apex").program("dqn"), seed=1)
    assert (reason, gauges["replay.refused"]) == ("solved", 0)
    assert env_steps < 100_000
