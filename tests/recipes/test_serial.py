from contextlib import ExitStack, closing

import pytest
from badenvs import Counting

import covey
from covey import catalog
from covey.desk import Desk
from covey.runs import Run
from covey.session import Job, Session
from covey.team import Alone, Team

TINY = {
    "num_envs": 3, "unroll": 8, "eval_every": 0, "checkpoint_every": 0, "eval_episodes": 1,
    "until": None, "hidden": [8],
}  # fmt: skip


@pytest.fixture
def session(tmp_path):
    """A session of an algorithm on the counting environment, inside its `with`."""
    with ExitStack() as stack:
        opened = stack.enter_context

        def make(algo, **settings):
            config = catalog.configure(algo, "Counting", settings={**TINY, **settings})
            folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
            desk = opened(Desk(config, Run.create(config, folder), quiet=True))
            team = opened(closing(Team(config.seed, post=Alone(desk.hear))))
            return opened(Session(Job(config, folder, Counting), team, report=desk.report))

        yield make


REPLAYED = ["collect", "store", "sample", "learn", "evaluate", "report", "checkpoint"]
ON_POLICY = ["collect", "rows", "learn", "evaluate", "report", "checkpoint"]


@pytest.mark.parametrize(
    ("algo", "steps"), [("dqn", REPLAYED), ("a2c", ON_POLICY), ("ppo", ON_POLICY)]
)
def test_the_list_of_steps(algo, steps, session):
    opened = session(algo)
    assert list(opened.task.timings()) == steps
    parts = {"agent", "collector", "task", "report"} | ({"replay"} if algo == "dqn" else set())
    assert set(opened.parts) == parts


@pytest.mark.parametrize("steps", [1, 24, 25, 100])
def test_env_steps_are_whole_rounds(steps, session):
    opened = session("a2c", steps=steps)
    assert opened.task.run(env_steps=steps) == "env_steps"
    kept = opened.task.state()
    assert kept["env_steps"] == 24 * -(-steps // 24)
    assert kept["rounds"] == kept["updates"] == kept["env_steps"] // 24


def test_a_replayed_algorithm_updates_as_reuse_says(session):
    opened = session("dqn", n_step=3, batch=10, reuse=5, warmup=40, capacity=1000)
    opened.task.run(env_steps=240)
    replay = opened.parts["replay"]
    assert replay.added == 240 - 2 * 3  # the last two steps wait for what follows
    assert opened.task.state()["updates"] == (replay.added - 40) * 5 // 10
    assert replay.drawn == 10 * opened.task.state()["updates"]


def test_ppo_updates_by_epochs_and_minibatches(session):
    opened = session("ppo", epochs=3, minibatch=10)  # 24 rows: 10 + 10 + 4, or 2 whole ones
    opened.task.run(rounds=4)
    per_round = opened.task.state()["updates"] / 4
    assert per_round in (3 * 2, 3 * 3)


def test_the_parts_are_made_as_the_configuration_says(session):
    opened = session("dqn", capacity=77, batch=5, warmup=9, save_replay=False, scale_reward=True,
                     gamma=0.9)  # fmt: skip
    assert (opened.parts["replay"].capacity, opened.parts["replay"].save_rows) == (77, False)
    collector = opened.parts["collector"]
    assert (collector.envs.num_envs, collector.num_steps, collector.overlap) == (3, 8, 2)
    assert collector.envs.scale.gamma == 0.9


def test_one_seed_collects_the_same_whatever_is_evaluated(session):
    def weights(every):
        opened = session("ppo", eval_every=every, seed=4)
        opened.task.run(rounds=4)
        return covey.session.digest(opened.agent)

    assert weights(0) == weights(24)
