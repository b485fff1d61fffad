"""How long many actors take until they can act, what memory each has of its own, and how soon a
successor acts when one is killed; beside processes that start as `multiprocessing` spawns them, a
fresh interpreter each, and only import torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from subprocess import PIPE
from time import perf_counter
from typing import Any

import numpy as np

from covey import steps
from covey.algos.dqn import DQN
from covey.bench.actors import Waiting
from covey.engines.care import Care
from covey.envs import make_env
from covey.steps import Collector
from covey.team import Team, run
from covey.types import Array

ACTORS, SPAWNED, KILLS = 128, 4, 40
STARTS = 3  # of which the least disturbed one is told
MORTALS = 4  # actors that are killed in turns
STEP_SECONDS = 0.001
PATIENCE = 120.0
PID, LIVES = 0, 1  # columns of an actor's line


def measure(actors: int = ACTORS, spawned: int = SPAWNED, kills: int = KILLS) -> dict[str, float]:
    """Seconds and MiB; of what is spawned for each process, as its start keeps a core busy."""
    crowds = [
        run(partial(stand_ready, perf_counter()), actor=actors, learner=1)[-1]
        for _ in range(STARTS)
    ]
    crowd = min(crowds, key=lambda crowd: float(crowd["ready_seconds"]))
    care = Care(soon=0.0)  # however often they are killed
    *_, recovered = run(partial(die_in_turns, kills), care=care, actor=MORTALS, learner=1)
    plain = spawn(spawned)
    return {
        "actors": actors,
        **crowd,
        "ready_seconds_slowest": max(crowd["ready_seconds"] for crowd in crowds),
        **plain,
        "actor_seconds_of_spawned": crowd["ready_seconds"] / actors / plain["spawned_seconds_each"],
        "actor_mib_of_spawned": crowd["own_mib_each"] / plain["spawned_own_mib_each"],
        "kills": len(recovered),
        "recovery_seconds_median": float(np.median(recovered)),
        "recovery_seconds_p95": float(np.percentile(recovered, 95)),
        "recovery_seconds_max": max(recovered),
    }


def lines(team: Team) -> Array:
    """A line of shared words for each actor."""
    words: Array = team.block("lines", {"word": ((len(team.ranks("actor")), 8), "i8")})["word"]
    return words


def stand_ready(began: float, team: Team) -> dict[str, float] | None:
    """An actor: acts for a moment, then waits. The learner: when all have, and what they weigh."""
    line_N, (learner,) = lines(team), team.ranks("learner")
    if team.role == "actor":
        env = make_env("CartPole-v1", 1, team.seed)
        Collector(env, team.agent(DQN, env), 2).collect(0)
        line_N[team.index, PID] = os.getpid()
        team.waits.ring(learner)
        team.waits.until(lambda: False, lambda: "the end", PATIENCE)
        return None
    team.waits.until(lambda: bool(line_N[:, PID].all()), lambda: "all actors", PATIENCE)
    seconds = perf_counter() - began
    own = [own_mib(pid) for pid in line_N[:, PID]]
    team.stop("measured")
    return {
        "ready_seconds": seconds, "own_mib_each": float(np.mean(own)), "own_mib_max": max(own),
    }  # fmt: skip


def own_mib(pid: int) -> float:
    """Memory that a process shares with no other, in MiB."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(row[1]) for row in rows if row[0].startswith("Private_")) / 1024


def die_in_turns(kills: int, team: Team) -> list[float] | None:
    """An actor: acts on and on. The learner: kills one after the other, and times the next."""
    line_N = lines(team)
    if team.role == "actor":
        act(team, line_N[team.index])
        return None
    expected, found = np.ones(len(line_N), np.int64), []
    await_lives(team, line_N, expected)
    for number in range(kills):
        victim = number % len(line_N)
        expected[victim] += 1
        began = perf_counter()
        os.kill(int(line_N[victim, PID]), signal.SIGKILL)
        await_lives(team, line_N, expected)
        found.append(perf_counter() - began)
    team.stop("measured")
    return found


def act(team: Team, line: Array) -> None:
    """Step by step, in an environment that leaves the processor to others."""
    env, (learner,) = make_env(lambda: Waiting(STEP_SECONDS), 1, team.seed), team.ranks("learner")
    agent: Any = team.agent(DQN, env)

    def show(ctx: Any) -> None:
        if line[LIVES] != team.generation + 1:
            line[PID], line[LIVES] = os.getpid(), team.generation + 1
            team.waits.ring(learner)

    with team.task() as task:
        task.use(steps.collect(env, agent, 1), on="actor")
        task.use(show, on="actor")
        task.run()


def await_lives(team: Team, line_N: Array, expected: Array) -> None:
    """Until each actor's newest generation has made a transition."""
    team.waits.until(
        lambda: bool((line_N[:, LIVES] == expected).all()), lambda: "a successor", PATIENCE
    )


def spawn(num: int) -> dict[str, float]:
    """Interpreters that import torch, all started at once: seconds and MiB for each."""
    command = [sys.executable, "-c", "import torch; print(flush=True); input()"]
    began = perf_counter()
    with ExitStack() as stack:
        found = [
            stack.enter_context(subprocess.Popen(command, stdin=PIPE, stdout=PIPE))
            for _ in range(num)
        ]
        for process in found:
            process.stdout.readline()  # type: ignore[union-attr]
        seconds = perf_counter() - began
        own = [own_mib(process.pid) for process in found]
        for process in found:
            process.communicate(b"\n", PATIENCE)
    return {
        "spawned_seconds_each": seconds / num, "spawned_own_mib_each": float(np.mean(own)),
    }  # fmt: skip
