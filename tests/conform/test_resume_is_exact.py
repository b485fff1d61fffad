"""Law 11: in lockstep, stop and resume is the same as never stopped, bit for bit."""

import numpy as np
import pytest
import torch

import covey
from covey import checkpoint, steps

MEMBERS, ROUNDS, STOPS = 2, 24, (7, 16)


class Member:
    """One member's environments, agent and task, and where they are saved."""

    def __init__(self, team, folder, algorithm, env_id, apply=None, unroll=8):
        self.team, self.folder = team, folder / f"{team.role}-{team.index}"
        self.env = covey.make_env(env_id, 2 + team.index, team.seed, scale_reward=True)
        self.agent = team.agent(algorithm, self.env, self.config(algorithm, apply), apply=apply)
        self.collector = covey.Collector(self.env, self.agent, unroll)
        self.task = team.task()
        self.parts = {"agent": self.agent, "collector": self.collector, "task": self.task}

    def config(self, algorithm, apply):
        """Statistics of observations are not gradients: everyone would keep its own."""
        return algorithm.Config(hidden=(8,), normalize=apply is None)

    def run(self, rounds):
        """From where it was saved, so many rounds in all; then save, and say what there is."""
        if checkpoint.steps(self.folder):
            saved = checkpoint.newest_good(self.folder)
            exact = [
                part.restore(saved.tree[name]) is not False for name, part in self.parts.items()
            ]
            assert all(exact)
            torch.set_rng_state(torch.tensor(saved.tree["torch_rng"]))
        self.task.run(rounds=rounds)
        tree = {name: part.state() for name, part in self.parts.items()}
        checkpoint.save(self.folder, rounds, {**tree, "torch_rng": torch.get_rng_state()}, {})
        self.env.close()


def mean_of_all(folder, rounds, algorithm, env_id):
    """Everyone applies the mean of all gradients."""

    def main(team):
        member = Member(team, folder, algorithm, env_id, apply=team.everyone())
        member.task.use(steps.collect(member.collector, member.agent))
        member.task.use(steps.rows(member.agent)).use(steps.learn(member.agent))
        member.run(rounds)

    return main


def gathered(folder, rounds, algorithm, env_id):
    """Rank 0 learns what all gathered, and all go on with its weights."""

    def main(team):
        member = Member(team, folder, algorithm, env_id)
        agent, own = member.agent, member.agent.weights()
        rows, weights = team.gather("rows", everyone=False), team.gather("weights")

        def gather(ctx):
            items = rows(agent.rows(ctx.unroll)) or []
            joined = {
                key: np.concatenate([item[key] for item in items]) for key in (items or [{}])[0]
            }
            ctx.batches = [joined] if joined else []

        def sync(ctx):
            first, *_ = weights(agent.weights() if team.first else {})
            if not team.first:
                for key, value in first.items():
                    own[key][...] = value
                agent.load(own)

        member.task.use(steps.collect(member.collector, agent))
        member.task.use(covey.declare(gather, reads=["unroll"], writes=["batches"]))
        member.task.use(steps.learn(agent)).use(sync)
        member.run(rounds)

    return main


def same(one, two, where=""):
    """Two trees, leaf by leaf; env steps of the team apart: they are counted as it goes."""
    assert type(one) is type(two), where
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one.keys() - {"env_steps"}:
            same(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, np.ndarray):
        assert one.tobytes() == two.tobytes(), where
    else:
        assert one == two, where


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "algorithm", "env_id"),
    [
        (mean_of_all, covey.A2C, "CartPole-v1"),
        (mean_of_all, covey.PPO, "Pendulum-v1"),
        (gathered, covey.PPO, "CartPole-v1"),
    ],
)
def test_stopped_and_resumed_is_as_never_stopped(program, algorithm, env_id, tmp_path):
    covey.run(program(tmp_path / "whole", ROUNDS, algorithm, env_id), seed=4, worker=MEMBERS)
    for rounds in (*STOPS, ROUNDS):
        covey.run(program(tmp_path / "cut", rounds, algorithm, env_id), seed=4, worker=MEMBERS)
    weights = []
    for index in range(MEMBERS):
        whole, cut = (
            checkpoint.newest_good(tmp_path / name / f"worker-{index}").tree
            for name in ("whole", "cut")
        )
        same(whole, cut)
        assert whole["task"]["rounds"] == ROUNDS
        weights.append(whole["agent"]["module"])
    same(*weights)
    assert whole["agent"]["optimizer"]["updates"] > 0 or program is gathered
