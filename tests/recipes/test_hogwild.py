"""All workers write the same weights and moments; looks at them are copies."""

import json

import numpy as np
import pytest
from badenvs import Counting

import covey
from covey import catalog
from covey.errors import UserError
from covey.session import digest

WORKER = ["collect", "rows", "learn", "report"]
EVALUATOR = ["rest", "copy_weights", "evaluate", "report", "checkpoint"]


def one_round(session):
    """Of this member alone, as no other is running."""
    session.task.run(rounds=session.task.state()["rounds"] + 1)


@pytest.mark.parametrize("algo", ["dqn", "a2c"])
def test_the_list_of_steps_of_each_role(algo, sessions):
    opened = sessions(algo, "hogwild")
    found = {name: list(session.task.timings()) for name, session in opened.items()}
    assert found == {"evaluator 0": EVALUATOR, "worker 0": WORKER, "worker 1": WORKER}
    said = [what["text"] for kind, what in opened["worker 0"].team.post.told if kind == "say"]
    assert "evaluations and checkpoints are of weights in motion: approximate" in said[-1]


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("algo", ["dqn", "a2c"])
def test_weights_and_moments_are_one_memory(algo, optimizer, sessions):
    opened = sessions(algo, "hogwild", optimizer=optimizer)
    one, two, still = (opened[name] for name in ("worker 0", "worker 1", "evaluator 0"))
    first = digest(one.agent)
    one_round(one)
    assert digest(one.agent) == digest(two.agent) == digest(still.agent) != first
    assert digest(still.evaluated) == first  # until it copies them
    moments = [session.agent.optimizer.moments for session in (one, two)]
    assert set(moments[0]) == ({"mean", "square"} if optimizer == "adam" else {"square"})
    for name, of_one in moments[0].items():
        assert of_one.abs().sum() > 0
        np.testing.assert_array_equal(of_one, moments[1][name])
    one_round(two)
    assert one.agent.updates == two.agent.updates == 2
    one_round(still)
    assert digest(still.evaluated) == digest(one.agent)


def test_the_target_follows_when_the_common_count_crosses(sessions):
    opened = sessions("dqn", "hogwild", target_every=3)
    one, two = opened["worker 0"], opened["worker 1"]

    def same(session):
        pairs = zip(session.agent.module.parameters(), session.agent.target.parameters(),
                    strict=True)  # fmt: skip
        return all(bool((online == target).all()) for online, target in pairs)

    found = []
    for session in (one, two, one, two, one, two):
        one_round(session)
        found.append((same(one), same(two)))  # the target is common too
    assert found == [(number % 3 == 0,) * 2 for number in range(1, 7)]


def test_every_worker_draws_a_final_epsilon(sessions):
    ends, chances = [0.1, 0.01, 0.5], [0.4, 0.3, 0.3]
    opened = sessions("dqn", "hogwild", workers=8, eps_ends=ends, eps_chances=chances)
    drawn = [s.agent.eps_end for name, s in opened.items() if name.startswith("worker")]
    assert len(drawn) == 8
    assert len(set(drawn)) >= 2
    assert set(drawn) <= set(ends)


def test_a_network_on_a_graphics_card_is_refused_in_a_sentence():
    import torch

    from covey.apply import InPlace
    from covey.team import Team

    with pytest.raises(UserError, match=r"hogwild shares .+ Use --device cpu, or the recipe a3c"):
        InPlace(Team(1), "network").place("weights", torch.zeros(3, device="meta"))


@pytest.mark.parametrize("algo", ["dqn", "a2c"])
def test_a_run_is_trained_and_saved(algo, tmp_path):
    result = covey.train(
        algo, Counting, recipe="hogwild", workers=2, out=tmp_path / "run", quiet=True,
        steps=2000, num_envs=3, unroll=8, hidden=[8], eval_every=500, eval_episodes=2,
        checkpoint_every=500,
    )  # fmt: skip
    assert result.reason == "env_steps"
    assert result.env_steps >= 2000
    # all of them: the evaluator was asleep when the last were done
    assert result.updates >= 2000 // 24
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    assert kinds.count("started") == 3
    assert "died" not in kinds
    assert covey.load(result.folder, env=Counting)(np.zeros(3, np.float32)) in (0, 1)


def test_nothing_is_replayed_and_nothing_pushed():
    config = catalog.configure("dqn", "CartPole-v1", "hogwild")
    assert (config.replay, config.gradients) == (None, None)
