"""Law 1: one process is the same program; N members in lockstep are one that runs the N seeds."""

import hashlib

import numpy as np
import pytest
from seats import seats

import covey
from covey import steps
from covey.session import digest

ROUNDS, UNROLL, ENVS = 12, 8, 2


def small(algorithm):
    return algorithm.Config(hidden=(8,))


def state_of(agent, collector):
    """Of everything that chance and learning have touched, to the last bit."""
    unroll = collector.unroll
    parts = [unroll.obs_TB, unroll.action_TB, unroll.reward_TB, *unroll.extra.values()]
    found = hashlib.sha256(b"".join(part.tobytes() for part in parts))
    found.update(repr(agent.rng.bit_generator.state).encode())
    return [digest(agent), found.hexdigest()]


APPLY = {
    "self": lambda team: None,
    "in-place": lambda team: team.in_place(),
    "owner": lambda team: team.gradients(writers="all", owner="all"),
    "everyone": lambda team: team.everyone(),
}


def train_with_each_apply(team):
    """A whole small training run for each way to apply a gradient."""
    found = {}
    for name, make in APPLY.items():
        env = covey.make_env("CartPole-v1", ENVS, team.seed)
        apply = make(team)
        agent = team.agent(covey.A2C, env, small(covey.A2C), apply=apply)
        collector = covey.Collector(env, agent, UNROLL)
        task = team.task()
        task.use(steps.collect(collector, agent)).use(steps.rows(agent)).use(steps.learn(agent))
        if name == "owner":
            task.use(steps.apply_pushed(agent, apply))
        task.run(rounds=ROUNDS)
        found[name] = [*state_of(agent, collector), agent.updates]
        env.close()
    return found


@pytest.mark.slow
def test_inline_and_a_process_of_its_own_are_the_same_bits_under_any_apply():
    (apart,) = covey.run(train_with_each_apply, seed=3, all=1)
    assert covey.run(train_with_each_apply, seed=3) == apart
    assert len({weights for weights, _, _ in apart.values()}) == 1
    assert {updates for _, _, updates in apart.values()} == {ROUNDS}


def joined(items):
    return {key: np.concatenate([item[key] for item in items]) for key in items[0]}


def in_lockstep(algorithm, env_id, num_envs=ENVS):
    """A program: rank 0 learns what all gathered, and all go on with its weights."""

    def main(team):
        env = covey.make_env(env_id, num_envs + team.index, team.seed)  # ragged
        agent = team.agent(algorithm, env, small(algorithm))
        collector = covey.Collector(env, agent, UNROLL)
        rows, weights = team.gather("rows", everyone=False), team.gather("weights")
        own = agent.weights()
        for _ in range(ROUNDS):
            items = rows(agent.rows(collector.collect(0)))
            if items is not None:
                agent.learn(joined(items))
            first, *_ = weights(agent.weights() if team.first else {})
            if not team.first:
                for key, value in first.items():
                    own[key][...] = value
                agent.load(own)
        env.close()
        return state_of(agent, collector)

    return main


def one_after_the_other(algorithm, env_id, num, seed, num_envs=ENVS):
    """One process runs the seeds of all members in turn."""
    agents, collectors = [], []
    for team in seats(seed, worker=num):
        env = covey.make_env(env_id, num_envs + team.index, team.seed)
        agents.append(team.agent(algorithm, env, small(algorithm)))
        collectors.append(covey.Collector(env, agents[-1], UNROLL))
    for _ in range(ROUNDS):
        pairs = zip(agents, collectors, strict=True)
        agents[0].learn(joined([agent.rows(c.collect(0)) for agent, c in pairs]))
        for agent in agents[1:]:
            own = agent.weights()
            for key, value in agents[0].weights().items():
                own[key][...] = value
            agent.load(own)
    for collector in collectors:
        collector.envs.close()
    return [state_of(*pair) for pair in zip(agents, collectors, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env_id", "num"), [(covey.A2C, "CartPole-v1", 3), (covey.PPO, "Pendulum-v1", 2)]
)
def test_gather_with_n_members_is_one_that_runs_the_n_seeds(algorithm, env_id, num):
    found = covey.run(in_lockstep(algorithm, env_id), seed=5, worker=num)
    assert found == one_after_the_other(algorithm, env_id, num, seed=5)
    assert len({weights for weights, _ in found}) == 1
    assert len({acted for _, acted in found}) == num


def test_gather_with_one_member_is_the_same_on_every_engine(everywhere):
    main = in_lockstep(covey.A2C, "CartPole-v1")
    team_of_one = {"all": 1}
    (found,) = everywhere(main, seed=5, **team_of_one)
    assert found == covey.run(main, seed=5)


def a_list_of_steps(team):
    """Actors store, a learner draws, learns and publishes: the serial list, cut by roles."""
    env = covey.make_env("CartPole-v1", 2, team.seed)
    agent = team.agent(covey.DQN, env, covey.DQN.Config(hidden=(8,), n_step=2))
    weights = team.latest("weights", agent)
    replay = team.replay("replay", agent, capacity=2000)
    collector = covey.Collector(env, agent, 20)
    done = team.count("done")
    task = team.task()
    task.use(steps.refresh(agent, weights), on="actor")
    task.use(steps.collect(collector, agent), on="actor")
    task.use(steps.store(agent, replay), on="actor")
    task.use(steps.sample(replay, batch=16, reuse=2, warmup=50), on="learner")
    task.use(steps.learn(agent), on="learner")
    task.use(steps.publish(agent, weights), on="learner")
    reason = task.run(updates=30)
    env.close()
    if team.plays("actor"):
        done.add(1)
        team.wake()
    if not team.plays("learner"):
        return {"reason": reason, "seen": weights.seen, "rounds": task.state()["rounds"]}
    actors = len(team.ranks("actor"))
    team.await_others(20)
    assert done.total == actors
    return {
        "reason": reason, "updates": agent.updates, "version": weights.version,
        "replay": replay.gauges(), "env_steps": team.count("env_steps").total,
    }  # fmt: skip


def test_one_list_of_steps_runs_in_one_process_and_cut_over_many(everywhere):
    *actors, learner = everywhere(a_list_of_steps, actor=2, learner=1)
    assert learner["reason"] == "updates"
    assert learner["updates"] >= 30
    assert learner["version"] >= 2
    found = learner["replay"]
    assert found["replay.drawn"] == 16 * learner["updates"]
    assert found["replay.drawn"] <= 2 * (found["replay.added"] - 50)
    if everywhere.engine == "processes":
        assert [of["reason"] for of in actors] == ["updates", "updates"]
        assert found["replay.rows"] == min(found["replay.added"], 2000)
        assert found["replay.refused"] == 0
        acted = [of for of in actors if of["rounds"]]  # one may come when all is over
        assert acted
        assert all(of["seen"] >= 1 for of in acted)
