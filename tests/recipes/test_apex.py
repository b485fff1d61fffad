"""Rows are drawn where they were written, what was learnt is revised, and weights come back."""

import json
import os
import signal

import numpy as np
import pytest
from badenvs import Counting

import covey
from covey.metrics import read_metrics
from covey.recipes.apex import MOST
from covey.session import digest
from covey.steps import Collector
from covey.team import Team

ACTOR = ["refresh", "collect", "store", "report"]
LEARNER = ["sample", "learn", "revise", "publish", "report"]
EVALUATOR = ["refresh", "rest", "evaluate", "report"]
SMALL = {"workers": 0, "actors": 2, "batch": 8, "warmup": 16, "reuse": 2, "capacity": 400,
         "n_step": 2, "alpha": 0.6}  # fmt: skip


def one_round(session):
    """Of this member alone, as no other is running."""
    session.task.run(rounds=session.task.state()["rounds"] + 1)


def of_all(sessions, **settings):
    return sessions("dqn", "apex", **{**SMALL, **settings})


def test_the_list_of_steps_of_each_role(sessions):
    opened = of_all(sessions, actors=3, learners=2)
    found = {name: list(session.task.timings()) for name, session in opened.items()}
    assert found == {
        "learner 0": [*LEARNER, "checkpoint"], "learner 1": LEARNER, "actor 0": ACTOR,
        "actor 1": ACTOR, "actor 2": ACTOR, "evaluator 0": EVALUATOR,
    }  # fmt: skip


def test_rows_go_from_the_actors_to_the_learner_and_weights_back(sessions):
    opened = of_all(sessions)
    learner, actor = opened["learner 0"], opened["actor 0"]
    assert len({digest(session.agent) for session in opened.values()}) == 1
    one_round(actor)
    one_round(opened["actor 1"])
    replay = learner.parts["replay"]
    assert replay.added == len(replay) == 2 * 3 * 7  # the last of eight steps waits for the next
    one_round(learner)
    assert learner.agent.updates == (42 - 16) * 2 // 8
    assert replay.drawn == 8 * learner.agent.updates
    assert digest(actor.agent) != digest(learner.agent)
    one_round(actor)
    assert digest(actor.agent) == digest(learner.agent)
    one_round(opened["evaluator 0"])
    assert digest(opened["evaluator 0"].agent) == digest(learner.agent)


def test_first_priorities_are_the_actors_and_then_the_learners(sessions):
    opened = of_all(sessions)
    learner = opened["learner 0"]
    for name in ("actor 0", "actor 1"):
        one_round(opened[name])
    replay = learner.parts["replay"]
    replay.take_up(replay.priorities)
    first = replay.priorities.tree.leaf_N.copy()
    rows = {name: column[:21] for name, column in replay.columns.items()}
    q = opened["actor 0"].agent.forward  # nothing has been learnt since it acted
    best_N, taken_N = q(rows["next_obs"]).max(axis=1), q(rows["obs"])[range(21), rows["action"]]
    error_N = np.abs(rows["return"] + rows["discount"] * best_N - taken_N)
    np.testing.assert_allclose(first[:21], (error_N + 1e-6) ** 0.6, rtol=1e-5)
    one_round(learner)
    assert (replay.priorities.tree.leaf_N != first).sum() > 8
    assert replay.refused == 0


def test_actors_explore_each_at_its_own_rate(sessions):
    opened = of_all(sessions, eps_ladder=0.4)
    found = [opened[f"actor {i}"].agent.epsilon(0, 3) for i in range(2)]
    assert np.concatenate(found) == pytest.approx([0.4 ** (1 + 7 * i / 5) for i in range(6)])


def test_a_learner_does_no_more_in_a_round_than_it_may(sessions):
    opened = of_all(sessions, reuse=64, ahead=1000)
    learner = opened["learner 0"]
    for name in ("actor 0", "actor 1"):
        one_round(opened[name])
    one_round(learner)
    assert learner.agent.updates == MOST


def run(folder, *, algo="dqn", **settings):
    quick = {
        "num_envs": 2,
        "unroll": 16,
        "eval_every": 0,
        "eval_episodes": 1,
        "until": None,
        "hidden": [16],
        "batch": 32,
        "warmup": 64,
        "alpha": 0.6,
        "actors": 2,
        "steps": 4000,
    }
    env = settings.pop("env", "CartPole-v1")
    return covey.train(algo, env, recipe="apex", out=folder, quiet=True, **{**quick, **settings})


def test_samples_per_insert_are_as_asked_and_the_account_is_in_the_metrics(tmp_path):
    result = run(tmp_path / "run", reuse=3, steps=6000)
    *_, row = read_metrics(tmp_path / "run" / "metrics.jsonl")
    added, drawn = row["replay.added"], row["replay.drawn"]
    assert drawn == 32 * result.updates
    assert drawn / (added - 64) == pytest.approx(3, rel=0.05)
    assert row["replay.rows"] == added
    assert row["replay.actor_waited"] + row["replay.learner_waited"] > 0  # whoever is quicker


@pytest.mark.slow
def test_several_learners_take_the_same_steps_and_share_the_batch(tmp_path):
    result = run(tmp_path / "run", learners=2, batch=33, steps=3000)
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert not [e for e in events if e["event"] == "died"]
    *_, row = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert abs(row["replay.drawn"] - 33 * result.updates) <= 33
    assert result.updates > 100


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 2])
def test_it_is_resumed_with_its_replay(learners, tmp_path):
    first = run(tmp_path / "run", learners=learners, steps=2000)
    second = covey.resume(tmp_path / "run", steps=4000, quiet=True)
    assert second.env_steps >= 4000 > first.env_steps
    assert second.updates > first.updates
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["replay.added"] > rows[-1]["replay.rows"] - 1
    assert rows[-1]["replay.added"] >= 3500  # of both stretches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env"),
    [("qrdqn", "CartPole-v1"), ("ddpg", "Pendulum-v1"), ("d4pg", "Pendulum-v1")],
)
def test_every_replayed_algorithm_runs_on_it(algo, env, tmp_path):
    result = run(tmp_path / "run", algo=algo, env=env, steps=2000)
    assert result.env_steps >= 2000
    assert result.updates > 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env"), [("dqn", "ALE/Pong-v5"), ("qrdqn", "ALE/Pong-v5"), ("d4pg", "HalfCheetah-v5")]
)
def test_presets_of_an_hour_begin_as_they_should(algo, env, tmp_path):
    begun = {"steps": 800, "warmup": 200, "reuse": 0.5, "batch": 16, "capacity": 1000}
    result = covey.train(
        algo, env, recipe="apex", out=tmp_path / "run", quiet=True, actors=2, eval_every=0,
        eval_episodes=1, **begun,
    )  # fmt: skip
    *_, row = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert result.env_steps >= 800
    assert row["replay.drawn"] == 16 * result.updates > 16
    assert row["replay.rows"] <= 1000
    assert np.isfinite(row["loss"])


def test_a_row_of_pong_costs_one_frame():
    env = covey.make_env("ALE/Pong-v5", num_envs=4)
    agent = Team(1).agent(covey.DQN, env, covey.DQN.Config(n_step=3, hidden=()))
    collector, replay = Collector(env, agent, 50), Team(1).replay("rows", capacity=2000)
    for _ in range(4):
        replay.add(agent.rows(collector.collect(0)))
    frames, rows = replay.frames.end_S.sum(), replay.added
    assert rows > 750
    assert frames / rows < 1.1
    batch = replay.sample(32)
    assert batch["obs"].shape == batch["next_obs"].shape == (32, 4, 84, 84)
    # n steps later: the newest frame of the one is older by 3 in the other
    assert (batch["obs"][:, 3] == batch["next_obs"][:, 0]).all(axis=(1, 2)).mean() > 0.9
    env.close()


def test_one_process_runs_the_same_list(tmp_path):
    result = covey.train(
        "dqn", Counting, recipe="apex", engine="inline", out=tmp_path / "run", quiet=True,
        num_envs=2, unroll=16, eval_every=0, eval_episodes=1, hidden=[8], warmup=64, alpha=0.6,
        steps=512,
    )  # fmt: skip
    assert result.env_steps == 512
    assert result.updates > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"actors": 1, "learners": 2}, "learners = 2 need as many actors, and there are 1"),
        ({"actors": 4, "learners": 3, "batch": 2}, "replay.batch = 2 is too small for learners"),
        ({"learners": 2, "normalize": True}, "normalize has no meaning with several learners"),
        ({"workers": 2}, "workers = 2 has no meaning on the recipe apex"),
        ({"actors": -1}, "actors = -1 is out of range"),
        ({"learners": 0}, "learners = 0 is out of range"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, said):
    with pytest.raises(covey.UserError, match=said):
        covey.train("dqn", "CartPole-v1", recipe="apex", **settings)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 600])
def test_a_killed_learner_has_a_successor_with_or_without_a_checkpoint(
    after, start_cli, tmp_path, wait_for
):
    settings = ["--set", "num_envs=2", "--set", "checkpoint_every=500", "--set", "eval_every=0"]
    process = start_cli("train", "dqn", "CartPole-v1", "--recipe", "apex", "--actors", "2",
                        "--steps", "3000", "--out", "run", *settings)  # fmt: skip
    events = tmp_path / "run" / "events.jsonl"

    def told(kind, **what):
        lines = events.read_text().splitlines() if events.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [e for e in found if e["event"] == kind and what.items() <= e.items()]

    if after:
        wait_for(lambda: list((tmp_path / "run" / "checkpoints").glob("step_*")), "a checkpoint")
    else:
        wait_for(lambda: told("start"), "the run to begin")
    (learner,) = told("started", member="learner 0")
    os.kill(learner["pid"], signal.SIGKILL)
    said, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert "warning: learner 0 died: killed by signal 9" in said
    (died,) = told("died", member="learner 0")
    assert died["replaced"]
    assert bool(told("resume")) == bool(after)
    assert told("stop")[0]["env_steps"] >= 3000
