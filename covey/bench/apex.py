"""The whole of Ape-X: a learner beside its own rate, and the paper's rates on this machine.

The paper's (Horgan et al. 2018): 360 actors that take 12,500 steps a second into a replay of two
million rows, of which 19 batches of 512 a second are learnt. The actors' environments wait as long
as the paper's took; everything else is done.
"""

from __future__ import annotations

from functools import partial
from time import monotonic, perf_counter
from typing import Any

from covey import steps
from covey.algos.dqn import DQN
from covey.bench.actors import SETTLE_SECONDS, Waiting
from covey.bench.turns import clocked, in_turns, ratio, typical
from covey.engines.care import Care
from covey.envs import make_env
from covey.team import Team, run

ACTORS, STEP_SECONDS, CHUNK = 360, 0.0288, 50
BATCHES_PER_SECOND, BATCH, CAPACITY = 19.0, 512, 2_000_000
ROUNDS = 20  # of the learner in a turn
CONFIG = DQN.Config(hidden=(128, 128), n_step=3, eps_ladder=0.4)


def measure(
    seconds: float = 10.0, paper_seconds: float = 30.0, actors: int = ACTORS
) -> dict[str, float]:
    """Updates beside those of a batch in memory; rows in and out at the paper's rates."""
    beside: dict[str, float] = run(partial(learner_and_actor, seconds), actor=1, learner=1)[1]
    paper: dict[str, float] = run(
        partial(at_the_papers_rates, paper_seconds), actor=actors, learner=1, care=Care(step=60.0)
    )[-1]
    return beside | paper


def learner_and_actor(seconds: float, team: Team) -> dict[str, float] | None:
    """A learner of CartPole in turns: the whole round, and nothing but learning."""
    env = make_env("CartPole-v1", 16, team.seed)
    agent: Any = team.agent(DQN, env, CONFIG)
    weights = team.latest("weights", agent)
    replay = team.replay("replay", agent, 2**20, alpha=0.6)
    with team.task() as task:
        task.use(steps.refresh(agent, weights), on="actor")
        task.use(steps.collect(env, agent, CHUNK), on="actor")
        task.use(steps.store(agent, replay), on="actor")
        task.use(steps.sample(replay, BATCH, reuse=None), on="learner")
        task.use(steps.learn(agent), on="learner")
        task.use(steps.revise(replay), on="learner")
        task.use(steps.publish(agent, weights), on="learner")
        if team.role == "actor":
            task.run()
            return None
        task.run(rounds=5)
        batch, began, before = replay.sample(BATCH), perf_counter(), replay.added

        def whole() -> None:
            task.run(rounds=task.state()["rounds"] + ROUNDS)

        def alone() -> None:
            for _ in range(ROUNDS):
                agent.learn(batch)
                team.pulse.beat()

        found = in_turns({"whole": partial(clocked, whole), "alone": partial(clocked, alone)},
                         seconds)  # fmt: skip
        added = (replay.added - before) / (perf_counter() - began)
        team.stop("measured")
    return {
        "learner_updates_per_second": ROUNDS / typical(found["whole"]),
        "learner_updates_per_second_in_memory": ROUNDS / typical(found["alone"]),
        "learner_of_in_memory": ratio(found["alone"], found["whole"]),
        "actor_rows_per_second_meanwhile": added,
    }


def at_the_papers_rates(seconds: float, team: Team) -> dict[str, float] | None:
    """An actor of one environment that waits, or the learner, held to the paper's rate."""
    env = make_env(lambda: Waiting(STEP_SECONDS), 1, team.seed)
    agent: Any = team.agent(DQN, env, CONFIG)
    weights = team.latest("weights", agent)
    replay = team.replay("replay", agent, CAPACITY, alpha=0.6)
    with team.task() as task:
        task.use(steps.refresh(agent, weights), on="actor")
        task.use(steps.collect(env, agent, CHUNK), on="actor")
        task.use(steps.store(agent, replay), on="actor")
        task.use(steps.sample(replay, BATCH, reuse=None), on="learner")
        task.use(steps.learn(agent), on="learner")
        task.use(steps.revise(replay), on="learner")
        task.use(steps.publish(agent, weights), on="learner")
        if team.role == "actor":
            task.run()
            return None
        while not (replay.head_S > 0).all():
            team.waits.nap(0.1)
        team.waits.nap(SETTLE_SECONDS)
        figures = watched(team, task, replay, seconds)
        team.stop("measured")
    return figures


def watched(team: Team, task: Any, replay: Any, seconds: float) -> dict[str, float]:
    """Rounds of the learner, BATCHES_PER_SECOND of them a second, and what came in meanwhile."""
    task.run(rounds=task.state()["rounds"] + 5)
    began, added, drawn, memory = monotonic(), replay.added, replay.drawn, resident()
    seen, rounds = [memory], 0
    while (now := monotonic() - began) < seconds:
        if rounds < now * BATCHES_PER_SECOND:
            task.run(rounds=task.state()["rounds"] + 1)
            rounds += 1
        else:
            team.waits.nap(rounds / BATCHES_PER_SECOND - now)
        if rounds % 19 == 0:
            seen.append(resident())
    spent, ideal = monotonic() - began, len(team.ranks("actor")) / STEP_SECONDS
    rows_in, rows_out = (replay.added - added) / spent, (replay.drawn - drawn) / spent
    return {
        "paper_actors": float(len(team.ranks("actor"))), "paper_seconds": spent,
        "paper_rows_in_per_second": rows_in, "paper_rows_in_of_ideal": rows_in / ideal,
        "paper_rows_out_per_second": rows_out,
        "paper_rows_out_of_paper": rows_out / (BATCHES_PER_SECOND * BATCH),
        "paper_learner_mib_before": memory, "paper_learner_mib_half": seen[len(seen) // 2],
        "paper_learner_mib_most": max(seen), "paper_learner_mib_after": seen[-1],
        "paper_revisions_refused": float(replay.refused),
    }  # fmt: skip


def resident() -> float:
    """MiB of this process that no other shares: what it keeps, not the replay."""
    with open("/proc/self/smaps_rollup") as rollup:  # noqa: PTH123  read often
        found = [int(line.split()[1]) for line in rollup if line.startswith("Private_")]
    return sum(found) / 1024
