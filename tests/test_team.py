import itertools

import numpy as np
import pytest

import covey
from covey.envs import make_env
from covey.errors import UserError
from covey.team import Team


def member(seed=1, role="all", index=0):
    team = Team(seed)
    team.role, team.index = role, index
    return team


def test_no_two_uses_share_a_stream():
    streams = set()
    keys = list(itertools.product(
        (0, 1, 2**40), ("all", "actor", "learner"), range(40),
        ("env", "act", "weights", "replay/replay", "replay/two"),
    ))  # fmt: skip
    for seed, role, index, use in keys:
        streams.add(member(seed, role, index).rng(use).bytes(16))
    assert len(streams) == len(keys)


def test_a_role_and_a_use_are_not_run_together():
    assert member(role="a").rng("bc").bytes(8) != member(role="ab").rng("c").bytes(8)
    assert member(index=ord("x")).rng("a").bytes(8) != member(index=0).rng("ax").bytes(8)


def test_a_stream_depends_on_seed_role_index_and_use_only():
    one, two = member(7, "actor", 3), member(7, "actor", 3)
    one.rng("replay/other").random(9)  # asked for before, and used
    two.rng("weights")
    assert one.rng("act").bytes(32) == two.rng("act").bytes(32)
    assert one.rng("act").bytes(32) == one.rng("act").bytes(32)
    one.size = 9  # more members change nothing for this one
    assert one.rng("act").bytes(32) == two.rng("act").bytes(32)


def test_agents_of_one_seed_have_the_same_weights_and_of_another_not():
    def weights(seed):
        env = make_env("CartPole-v1", 1)
        agent = Team(seed).agent(covey.PPO, env)
        env.close()
        return [p.detach().numpy().tobytes() for p in agent.module.parameters()]

    assert weights(1) == weights(1)
    assert weights(1) != weights(2)


def test_an_agent_is_refused_where_it_cannot_act():
    env = make_env("Pendulum-v1", 1)
    with pytest.raises(UserError) as caught:
        Team(1).agent(covey.DQN, env)
    assert str(caught.value) == "DQN needs discrete actions; Pendulum-v1 has continuous ones."
    env.close()


def test_an_agent_has_its_own_defaults_and_random_numbers():
    env = make_env("CartPole-v1", 1)
    team = Team(1)
    agent = team.agent(covey.DQN, env)
    assert agent.config == covey.DQN.Config()
    assert agent.rng.bit_generator.state == team.rng("act").bit_generator.state
    env.close()


def test_two_replays_draw_differently():
    one, two = Team(1).replay("one", 5), Team(1).replay("two", 7)
    assert (one.capacity, two.capacity) == (5, 7)
    rows = {"x": np.arange(5)}
    one.add(rows)
    two.add(rows)
    assert one.sample(50)["x"].tolist() != two.sample(50)["x"].tolist()


def test_a_main_runs_once_and_its_result_comes_back():
    def main(team):
        assert team.first
        assert (team.rank, team.size, team.roles) == (0, 1, None)
        task = team.task()
        task.use(lambda ctx: None, on="actor").use(lambda ctx: None, on="learner")
        return task.run(rounds=2), team.root_seed

    assert covey.run(main, seed=5) == ("rounds", 5)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"actor": 2, "learner": 1}, "covey.run(actor=2, learner=1, engine='inline')"),
        ({"engine": "processes"}, "covey.run(engine='processes')"),
    ],
)
def test_members_and_engines_are_refused_in_a_sentence(members, said):
    def main(team):
        raise AssertionError("ran")

    with pytest.raises(UserError) as caught:
        covey.run(main, **members)
    assert said in str(caught.value)
    assert "several processes are not part of this version" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tasks_of_one_team_share_values():
    team = Team(1)
    one, two = team.task(), team.task()
    one.share("found")
    one.use(lambda ctx: setattr(ctx, "found", 3))
    one.run(rounds=1)
    seen = []
    two.use(lambda ctx: seen.append(ctx.shared.found))
    two.run(rounds=1)
    assert seen == [3]
