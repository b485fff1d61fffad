"""Gradients go to one owner, its weights come back, and the account balances."""

import json

import numpy as np
import pytest
from badenvs import Counting

import covey
from covey.metrics import read_metrics
from covey.session import digest

WORKER = ["refresh", "collect", "rows", "learn", "report"]
LEARNER = ["apply_pushed", "publish", "report", "checkpoint"]
EVALUATOR = ["refresh", "rest", "evaluate", "report"]


def one_round(session):
    """Of this member alone, as no other is running."""
    session.task.run(rounds=session.task.state()["rounds"] + 1)


def test_the_list_of_steps_of_each_role(sessions):
    opened = sessions("a2c", "a3c")
    found = {name: list(session.task.timings()) for name, session in opened.items()}
    assert found == {
        "learner 0": LEARNER, "worker 0": WORKER, "worker 1": WORKER, "evaluator 0": EVALUATOR,
    }  # fmt: skip
    assert {s.agent.optimizer.apply.link.every for s in opened.values()} == {1}


def test_workers_push_the_owner_applies_and_everybody_refreshes(sessions):
    opened = sessions("a2c", "a3c")
    learner, *others = opened.values()
    assert len({digest(session.agent) for session in opened.values()}) == 1
    one, two = opened["worker 0"], opened["worker 1"]
    one_round(one)
    one_round(two)
    assert digest(one.agent) == digest(two.agent)  # they only push
    link = learner.agent.optimizer.apply.link
    assert list(link.account().values()) == [2, 0, 0, 2]
    one_round(learner)
    one_round(learner)
    assert list(link.account().values()) == [2, 2, 0, 0]
    assert learner.agent.updates == 2
    for session in others:
        assert digest(session.agent) != digest(learner.agent)
        one_round(session)
    assert digest(opened["evaluator 0"].agent) == digest(learner.agent)
    assert others[0].team.count("env_steps").total == 4 * 3 * 8  # of all workers together


def test_an_update_is_the_mean_of_k_gradients(sessions):
    opened = sessions("a2c", "a3c", **{"gradients.every": 2, "optimizer": "rmsprop"})
    one, two, learner = (opened[name] for name in ("worker 0", "worker 1", "learner 0"))
    for session in (one, two):
        one_round(session)
    mean = (one.agent.optimizer.flat.grad + two.agent.optimizer.flat.grad) / 2
    before = learner.agent.optimizer.flat.detach().clone()
    one_round(learner)
    lr, eps = learner.config.algorithm.lr, learner.config.algorithm.eps
    step = lr * mean / ((0.01 * mean.square()).sqrt() + eps)
    after = learner.agent.optimizer.flat.detach()
    np.testing.assert_allclose(after, before - step, rtol=1e-5, atol=1e-7)
    assert learner.agent.updates == 1
    assert list(learner.agent.optimizer.apply.link.account().values()) == [2, 2, 0, 0]


def test_what_is_too_old_is_refused_and_counted(sessions):
    opened = sessions("a2c", "a3c", **{"gradients.max_lag": 0})
    one, two, learner = (opened[name] for name in ("worker 0", "worker 1", "learner 0"))
    one_round(one)
    one_round(two)
    one_round(learner)  # of what the other pushed, the weights are now one update old
    one_round(one)
    one_round(learner)
    link = learner.agent.optimizer.apply.link
    assert list(link.account().values()) == [3, 2, 1, 0]
    assert link.gauges()["gradients.refused"] == 1
    assert learner.agent.updates == 2


def test_the_learning_rate_falls_with_the_owners_updates(sessions):
    opened = sessions("a2c", "a3c", workers=1, anneal_updates=2)
    worker, learner = opened["worker 0"], opened["learner 0"]
    weights = [digest(learner.agent)]
    for _ in range(3):
        one_round(worker)
        one_round(learner)
        weights.append(digest(learner.agent))
    assert len(set(weights[:3])) == 3
    assert weights[3] == weights[2]  # the third update had a learning rate of 0
    assert learner.agent.updates == 3


@pytest.mark.parametrize("engine", ["processes", "inline"])
def test_a_run_is_trained_saved_and_its_account_balances(engine, tmp_path):
    alone = engine == "inline"
    result = covey.train(
        "a2c", Counting, recipe="a3c", engine=engine, out=tmp_path / "run", quiet=True,
        steps=2000, num_envs=3, unroll=8, hidden=[8], eval_every=500, eval_episodes=2,
        checkpoint_every=500, **{} if alone else {"workers": 2},
    )  # fmt: skip
    assert result.reason == "env_steps"
    assert result.env_steps >= 2000
    assert len(result.evaluation.returns) == 2
    row = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    account = {name: row[f"gradients.{name}"] for name in ("pushed", "applied", "refused")}
    assert account["pushed"] == account["applied"] + account["refused"] + row["gradients.pending"]
    assert result.updates == account["applied"] > 0
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    assert kinds.count("started") == (0 if alone else 4)
    assert kinds[-1] == "stop"
    assert "died" not in kinds
