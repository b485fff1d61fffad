"""A member's place in the team: its role, its random numbers, its links by name."""

import itertools
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from seats import seats, successor, together

import covey
from covey.engines import processes
from covey.envs import make_env
from covey.errors import UserError
from covey.memory import pulse
from covey.team import Alone, Seat, Team, enough_memory, seed_torch

QUICK = {"preload": ("covey.team",)}  # nothing here needs torch


def member(seed=1, role="all", index=0, generation=0):
    members = tuple((role, i) for i in range(index + 1))
    return Team(seed, seat=Seat(index, generation, members), post=Alone())


def test_no_two_uses_share_a_stream():
    streams, num = set(), 0
    teams = [Team(seed) for seed in (0, 1, 2**40)]
    for team, role, index, generation, use in itertools.product(
        teams, ("all", "actor", "learner"), (*range(20), 98), (0, 1, 2),
        ("env", "act", "weights", "replay/replay", "replay/two", "a", "ab"),
    ):  # fmt: skip
        team.role, team.index, team.generation = role, index, generation
        streams.add(team.rng(use).bytes(16))
        num += 1
    assert len(streams) == num


@pytest.mark.parametrize("generation", [0, 1, ord("x")])
def test_a_role_and_a_use_are_not_run_together(generation):
    teams = [Team(1) for _ in range(2)]
    for one, two in (
        (("a", 0, generation, "bc"), ("ab", 0, generation, "c")),
        (("all", ord("x"), generation, "a"), ("all", generation, 0, "ax")),
        (("all", ord("x"), generation, "a"), ("all", 0, generation, "ax")),
    ):
        drawn = []
        for team, (team.role, team.index, team.generation, use) in zip(
            teams, (one, two), strict=True
        ):
            drawn.append(team.rng(use).bytes(8))
        assert drawn[0] != drawn[1]


def test_a_stream_depends_on_seed_role_index_generation_and_use_only():
    one, two = member(7, "actor", 3), member(7, "actor", 3)
    one.rng("replay/other").random(9)  # asked for before, and used
    two.rng("weights")
    assert one.rng("act").bytes(32) == two.rng("act").bytes(32)
    assert one.rng("act").bytes(32) == one.rng("act").bytes(32)
    *_, among_others = seats(7, learner=1, actor=4)
    assert among_others.name == "actor 3"
    assert one.rng("act").bytes(32) == among_others.rng("act").bytes(32)
    assert one.seed.generate_state(4).tolist() == one.child("env").generate_state(4).tolist()
    assert one.rng("act").bytes(32) != member(7, "actor", 3, generation=1).rng("act").bytes(32)


def test_what_is_common_is_the_same_in_every_member_and_generation():
    drawn = {
        np.random.default_rng(team.common("weights")).bytes(16)
        for team in (Team(5), *seats(5, actor=2, learner=1), member(5, "x", 3, 2))
    }
    assert len(drawn) == 1
    assert np.random.default_rng(Team(6).common("weights")).bytes(16) not in drawn


def test_members_are_numbered_through_and_within_their_role():
    teams = seats(actor=2, learner=1)
    assert [team.name for team in teams] == ["actor 0", "actor 1", "learner 0"]
    assert [(team.rank, team.index, team.size) for team in teams] == [
        (0, 0, 3),
        (1, 1, 3),
        (2, 0, 3),
    ]
    assert [team.first for team in teams] == [True, False, False]
    assert [team.plays("actor") for team in teams] == [True, True, False]
    assert teams[0].ranks("actor") == [0, 1]
    assert teams[0].ranks("learner") == [2]
    assert [team.generation for team in (teams[1], successor(teams[1]))] == [0, 1]


def test_a_process_alone_plays_every_role():
    team = Team(1)
    assert (team.name, team.rank, team.size, team.first, team.roles) == ("all 0", 0, 1, True, None)
    assert team.plays("whatever")
    assert team.ranks("whatever") == [0]


def test_a_role_that_nobody_plays_is_refused_with_those_that_there_are():
    team, *_ = seats(actor=2, learner=1)
    with pytest.raises(UserError) as caught:
        team.ranks("worker")
    assert str(caught.value) == (
        "nobody in this team is worker; its roles are actor, learner. Start it with worker=1, or "
        "name another role."
    )


def weights_of(team, seed_env=0):
    """First weights of an agent; then what torch, numpy and the agent would draw."""
    import torch

    env = make_env("CartPole-v1", 1, seed_env)
    agent = team.agent(covey.PPO, env)
    env.close()
    weights = b"".join(p.detach().numpy().tobytes() for p in agent.module.parameters())
    return weights.hex()[:400], torch.rand(3).tolist(), agent.rng.bytes(8).hex()


def test_agents_of_one_seed_have_the_same_weights_and_of_another_not():
    assert weights_of(Team(1)) == weights_of(Team(1))
    assert weights_of(Team(1))[0] != weights_of(Team(2))[0]


def test_all_members_begin_with_the_same_weights_and_explore_and_drop_out_differently():
    teams = seats(1, actor=2, learner=1)
    found = [weights_of(team) for team in (Team(1), *teams, successor(teams[0]))]
    first, torch_draws, own_draws = zip(*found, strict=True)
    assert len(set(first)) == 1
    assert len(set(map(tuple, torch_draws))) == len(set(own_draws)) == 5


def test_a_member_tells_whoever_watches_it_each_env_step():
    (team,) = seats(actor=1)
    env = make_env("CartPole-v1", 2)
    agent = team.agent(covey.DQN, env)
    covey.Collector(env, agent, 5).collect(0)
    assert team.pulse.stepped == 10
    env.close()
    env = make_env("CartPole-v1", 2)
    Team(1).agent(covey.DQN, env)
    assert env.pulse is None
    env.close()


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
    one, two = Team(1).replay("one", capacity=5), Team(1).replay("two", capacity=7)
    assert (one.capacity, two.capacity) == (5, 7)
    rows = {"x": np.arange(5)}
    one.add(rows)
    two.add(rows)
    assert one.sample(50)["x"].tolist() != two.sample(50)["x"].tolist()


def test_a_name_is_the_same_memory_for_all_and_of_one_thing():
    one, two = seats(worker=2)
    layout = {"n": ((4,), "i8")}
    one.block("mine", layout)["n"][2] = 7
    assert two.block("mine", layout)["n"].tolist() == [0, 0, 7, 0]
    assert one.block("mine", {"n": ((4,), np.int64)}) is one.block("mine", layout)
    said = "'mine' is the name of something else here; give each link its own."
    for ask in (
        partial(one.block, "mine", {"n": ((5,), "i8")}),
        partial(one.count, "mine"),
        partial(two.gather, "mine"),
        partial(two.latest, "mine", {"w": np.zeros(3)}, "worker"),
    ):
        with pytest.raises(UserError) as caught:
            ask()
        assert str(caught.value) == said
    with pytest.raises(UserError, match="'roster' is the name of something else"):
        one.count("roster")


def test_stop_is_heard_in_the_whole_team():
    one, two = seats(worker=2)
    assert one.stopped is None
    one.stop("enough")
    two.stop("more")
    assert (one.stopped, two.stopped) == ("enough", "enough")


def test_wake_makes_all_look_again():
    one, two = seats(worker=2)
    there = []

    def wait():
        return two.waits.until(lambda: bool(there), lambda: "it", 20)

    assert together(wait, lambda: (there.append(1), one.wake())) == [True, (None, None)]


def test_others_are_awaited_until_they_have_ended_or_the_time_is_over():
    one, two, three = seats(worker=3)
    two.pulse.enter(pulse.ENDED)
    began = time.monotonic()
    one.await_others(seconds=0.05)
    assert 0.05 <= time.monotonic() - began < 5
    together(partial(one.await_others, 20), partial(three.pulse.enter, pulse.ENDED))
    assert time.monotonic() - began < 10
    Team(1).await_others(30)


def test_what_a_process_alone_tells_is_heard_here():
    heard = []
    team = Team(1, post=Alone(lambda kind, **what: heard.append((kind, what))))
    team.post.tell("say", text="hello")
    assert heard == [("say", {"text": "hello"})]
    Team(1).post.tell("nobody", listens=True)


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_closed_team_gives_its_descriptors_back_and_so_does_one_that_nobody_holds():
    before = num_descriptors()
    team = Team(1)
    team.count("n")
    team.stream("rows", {"n": ((), "i8")})
    assert num_descriptors() > before
    team.close()
    del team
    assert num_descriptors() == before
    Team(1).count("n")
    assert num_descriptors() == before


def test_a_main_runs_once_and_its_result_comes_back():
    def main(team):
        assert team.first
        assert (team.rank, team.size, team.roles) == (0, 1, None)
        task = team.task()
        task.use(lambda ctx: None, on="actor").use(lambda ctx: None, on="learner")
        return task.run(rounds=2), team.root_seed

    assert covey.run(main, seed=5) == ("rounds", 5)


def test_every_member_runs_main_in_its_place():
    def main(team):
        drawn = team.rng("act").bytes(8).hex()
        return team.name, team.rank, team.size, team.first, team.generation, os.getpid(), drawn

    found = processes.run(main, seed=3, members={"actor": 2, "learner": 1}, **QUICK)
    assert [of[:5] for of in found] == [
        ["actor 0", 0, 3, True, 0], ["actor 1", 1, 3, False, 0], ["learner 0", 2, 3, False, 0]
    ]  # fmt: skip
    assert len({of[5] for of in found} | {os.getpid()}) == 4
    assert [of[6] for of in found] == [
        team.rng("act").bytes(8).hex() for team in seats(3, actor=2, learner=1)
    ]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (
            {"actor": 2, "learner": 1, "engine": "inline"},
            "the engine inline is one process that plays every role, so actor=2, learner=1 has no "
            "meaning. Leave it out, or say engine='processes'.",
        ),
        (
            {"engine": "processes"},
            "the engine processes needs to know its members, as actor=4, learner=1.",
        ),
        ({"actor": 0}, "actor=0 must be a whole number of at least 1."),
        ({"actor": 2, "learner": -1}, "learner=-1 must be a whole number of at least 1."),
        ({"actor": 1.5}, "actor=1.5 must be a whole number of at least 1."),
    ],
)
def test_members_and_engines_are_refused_in_a_sentence(members, said):
    def main(team):
        raise AssertionError("ran")

    with pytest.raises(UserError) as caught:
        covey.run(main, **members)
    assert str(caught.value) == said


def test_an_unknown_engine_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"'proceses'.*'processes'"):
        covey.run(lambda team: None, engine="proceses", actor=1)


def test_forms_that_differ_between_members_are_refused():
    def main(team):
        team.stream("rows", {"n": ((2 + team.rank,), "i8")}, slots=1)

    with pytest.raises(UserError) as caught:
        processes.run(main, seed=1, members={"actor": 1, "learner": 1}, **QUICK)
    assert "'rows' has the form " in str(caught.value)
    assert "for one member and" in str(caught.value)
    assert str(caught.value).endswith("Give all the same.")


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


def test_env_steps_are_counted_over_the_team():
    one, two = seats(actor=2)
    tasks = [team.task() for team in (one, two)]
    for task, steps in zip(tasks, (5, 7), strict=True):

        def step(ctx, steps=steps):
            ctx.env_steps += steps

        task.use(step, on="actor")
    tasks[0].run(rounds=2)
    tasks[1].run(rounds=1)
    assert [task.state()["env_steps"] for task in tasks] == [10, 17]
    assert one.count("env_steps").total == 17
    assert tasks[0].run(env_steps=18) == "env_steps"
    assert one.stopped == two.stopped == "env_steps"
    assert two.count("env_steps").total == 22


def test_torch_draws_as_after_its_own_way_to_seed_it():
    torch.manual_seed(5)
    expected = torch.rand(3)
    seed_torch(5)
    assert torch.equal(torch.rand(3), expected)


def test_a_replay_that_will_not_fit_is_refused_with_what_does():
    said = r"'rows' with capacity = 50 takes 1048576.0 GiB and .* Set capacity to \d"
    with pytest.raises(UserError, match=said):
        enough_memory("rows", 2**50, 50)
    enough_memory("rows", 2**20, 50)


def test_a_replay_of_one_process_is_laid_out_for_its_agent():
    team = Team(1)
    env = covey.make_env("CartPole-v1", num_envs=1)
    agent = team.agent(covey.DQN, env, covey.DQN.Config(hidden=(4,)))
    replay = team.replay("rows", agent, capacity=9, alpha=0.5)
    assert sorted(replay.columns) == ["action", "discount", "next_obs", "obs", "return"]
    assert (len(replay), replay.shards, replay.priorities.draw.alpha) == (0, 1, 0.5)
    team.close()
    env.close()
