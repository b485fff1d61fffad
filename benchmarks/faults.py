"""The fault laboratory at length, and whether anything grows or is left behind.

    python benchmarks/faults.py [--faults 200] [--seed 1] [--respawns 1000] [--updates 100000]

Recovery is from the fault to the successor's first transition, as the learner sees it; of those
that stop or hang it contains the laboratory's patience. A failed check ends the program with its
reason. The figures are written to benchmarks/results/faults.json.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import covey
from covey import steps
from covey.engines import processes
from covey.engines.care import Care

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
from lab import HANG_SECONDS, KINDS, Stored, Streamed, recoveries, survive, verdict

RESULTS = Path(__file__).parent / "results" / "faults.json"
WARM_UP = 0.1  # of a program, before it is looked at for the first time
FLAT_MIB = 2.0
PATIENCE = 600.0


def faults(num: int, seed: int, how: Any) -> dict[str, Any]:
    """Seconds of recovery for each kind, once the verdict is good."""
    found, events = survive(seed, num, how=how)
    verdict(found, events, num)
    kinds = {kind: recoveries(found, kind) for kind in KINDS}
    return {
        "seed": seed, "survived": len(found["done"]), "transitions": sum(found["rows"]),
        "torn_or_doubled_or_missing": sum(found["wrong"].values()),
        "patience_seconds": HANG_SECONDS,
        "recovery_seconds": {
            kind: {"num": len(of), "median": float(np.median(of)),
                   "p95": float(np.percentile(of, 95)), "max": of[-1]}
            for kind, of in kinds.items() if of
        },
    }  # fmt: skip


def look(pid: int | str = "self") -> dict[str, float]:
    """Descriptors, threads and resident memory of a process."""
    of = Path(f"/proc/{pid}")
    pages = int((of / "statm").read_text().split()[1])
    return {
        "descriptors": len(list((of / "fd").iterdir())),
        "threads": len(list((of / "task").iterdir())),
        "mib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 2),
    }


def flat(looks: dict[str, list[dict[str, float]]], moving: int = 0) -> dict[str, Any]:
    """First and last look at each process; so many descriptors may come and go."""
    for who, (first, *_, last) in looks.items():
        more = {name: last[name] - first[name] for name in first}
        assert more["descriptors"] <= moving, (who, more)
        assert more["threads"] <= 0, (who, more)
        assert more["mib"] <= FLAT_MIB, (who, more)
    return {who: {"first": of[0], "last": of[-1]} for who, of in looks.items()}


def respawns(num: int) -> dict[str, Any]:
    """The launcher and the zygote, while actors die at once again and again."""
    looks: dict[str, list[dict[str, float]]] = {"launcher": [], "zygote": []}
    died, zygote, began = 0, 0, time.perf_counter()

    def main(team: Any) -> None:
        lives = team.count("lives")
        if team.role == "learner":
            team.post.tell("here", zygote=os.getppid())
            team.waits.until(lambda: lives.total >= num, lambda: f"{num} lives", PATIENCE)
            return
        team.pulse.enter(1)
        lives.add(1)
        team.wake()
        os._exit(1)

    def hear(kind: str, **what: Any) -> None:
        nonlocal died, zygote
        zygote = what.get("zygote", zygote)
        died += kind == "died"
        if kind == "died" and died >= WARM_UP * num and died % (num // 10) == 0:
            looks["launcher"].append(look())
            looks["zygote"].append(look(zygote))

    members = {"actor": 2, "learner": 1}
    processes.run(main, seed=1, members=members, care=Care(soon=0.0), hear=hear)
    # each of the two actors may just now be between two generations
    return {"num": died, "seconds": round(time.perf_counter() - began, 1),
            **flat(looks, moving=2 * processes.DESCRIPTORS)}  # fmt: skip


def updates(num: int, main: Any, actor: str) -> dict[str, Any]:
    """Every member of a team with a learner that makes so many updates."""
    began = time.perf_counter()
    *others, learner = covey.run(partial(main, num), **{actor: 2}, learner=1)
    looks = {f"{actor} {i}": of for i, of in enumerate(others)} | {"learner 0": learner}
    seconds = round(time.perf_counter() - began, 1)
    return {"num": num, "seconds": seconds, **flat(looks)}


class Watch:
    """A step that looks at this member twice: when it is warm, and at the end."""

    def __init__(self, team: Any, num: int) -> None:
        self.done, self.learns = team.count("updates"), team.role == "learner"
        self.warm, self.looks = WARM_UP * num, []

    def __call__(self, ctx: Any) -> None:
        if self.learns:
            self.done.add(1)
        if not self.looks and self.done.total >= self.warm:
            self.looks.append(look())


def a3c(num: int, team: Any) -> list[dict[str, float]]:
    """Workers push gradients to the learner."""
    env = covey.make_env("CartPole-v1", 1, team.seed)
    gradients = team.gradients(max_lag=100)
    agent = team.agent(covey.A2C, env, apply=gradients)
    weights, watch = team.latest("weights", agent), Watch(team, num)
    with team.task() as task:
        task.use(steps.refresh(agent, weights), on="worker")
        task.use(steps.collect(env, agent, 2), on="worker")
        task.use(steps.rows(agent), on="worker")
        task.use(steps.learn(agent), on="worker")
        task.use(steps.apply_pushed(agent, gradients), on="learner")
        task.use(steps.publish(agent, weights), on="learner")
        task.use(watch)
        task.run(updates=num if team.role == "learner" else None)
    return [*watch.looks, look()]


def apex(num: int, team: Any) -> list[dict[str, float]]:
    """Actors fill a replay, which is full long before the first look."""
    env = covey.make_env("CartPole-v1", 4, team.seed)
    agent = team.agent(covey.DQN, env, covey.DQN.Config(hidden=(16,)))
    weights, watch = team.latest("weights", agent), Watch(team, num)
    replay = team.replay("replay", agent, 10_000, alpha=0.6)
    with team.task() as task:
        task.use(steps.refresh(agent, weights), on="actor")
        task.use(steps.collect(env, agent, 16), on="actor")
        task.use(steps.store(agent, replay), on="actor")
        task.use(steps.sample(replay, 32, reuse=8, most=1), on="learner")
        task.use(steps.learn(agent), on="learner")
        task.use(steps.revise(replay), on="learner")
        task.use(steps.publish(agent, weights), on="learner")
        task.use(watch)
        task.run(updates=num if team.role == "learner" else None)
    return [*watch.looks, look()]


def orphans() -> dict[str, Any]:
    """What is left a second after `kill -9` of the process that a user started."""
    before = outside()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        words = ("train", "a2c", "CartPole-v1", "--recipe", "a3c", "--workers", "3", "--quiet",
                 "--steps", "100000000", "--set", "until=none", "--out", str(folder))  # fmt: skip
        launcher = subprocess.Popen([sys.executable, "-m", "covey", *words])
        watched = {os.pidfd_open(pid): pid for pid in children(launcher, folder)}
        began = time.perf_counter()
        os.kill(launcher.pid, signal.SIGKILL)
        launcher.wait()
        gone = []
        for pidfd in watched:
            left = max(0.0, began + 1 - time.perf_counter())
            gone.append(bool(select.select([pidfd], [], [], left)[0]))
        seconds = time.perf_counter() - began
        time.sleep(max(0.0, began + 1 - time.perf_counter()))
        after = outside()
        for pidfd in watched:
            os.close(pidfd)
    found = {"processes": len(gone) - sum(gone), "memory_files": len(after[0] - before[0]),
             "ports": len(after[1] - before[1])}  # fmt: skip
    assert not any(found.values()), found
    return {"members": len(gone), "all_gone_seconds": round(seconds, 3), "left_after_1_s": found}


def children(launcher: subprocess.Popen[bytes], folder: Path, members: int = 5) -> set[int]:
    """The zygote and the members, once all have begun."""
    deadline, started = time.monotonic() + 60, []
    while len(started) < members:
        assert time.monotonic() < deadline, "it did not begin"
        time.sleep(0.05)
        log = folder / "events.jsonl"
        rows = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
        started = [row["pid"] for row in rows if row["event"] == "started"]
    stat = Path(f"/proc/{started[0]}/stat").read_text()
    return {*started, int(stat.rpartition(")")[2].split()[1])}


def outside() -> tuple[set[str], set[str]]:
    """Named shared memory of this machine, and sockets that listen."""
    rows = [
        row.split()
        for name in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {p.name for p in Path("/dev/shm").iterdir()}, {r[1] for r in rows if r[3] == "0A"}


def main() -> None:
    """Everything, one after the other."""
    options = argparse.ArgumentParser(description="faults survived, nothing grown, nothing left")
    for name, number in (("faults", 200), ("seed", 1), ("respawns", 1000), ("updates", 100_000)):
        options.add_argument(f"--{name}", type=int, default=number)
    chosen = options.parse_args()
    threads = threading.active_count()
    figures = {
        "faults": faults(chosen.faults, chosen.seed, Streamed),
        "faults_on_a_replay": faults(chosen.faults, chosen.seed, Stored),
        "respawns": respawns(chosen.respawns),
        "updates": updates(chosen.updates, a3c, "worker"),
        "updates_of_apex": updates(chosen.updates, apex, "actor"),
        "kill_of_the_launcher": orphans(),
    }
    assert threading.active_count() == threads
    print(text := json.dumps(figures, indent=1))
    RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
