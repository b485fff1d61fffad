"""The fault laboratory: an environment that signs what it shows, a nemesis, and the history.

The learner is the nemesis too: it knows every actor's process from shared memory, breaks them on a
seeded schedule, and checks every transition that reaches it.
"""

import ctypes
import os
import random
import signal
import time
from collections import Counter, deque
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import covey
from covey.engines import processes
from covey.engines.care import Care
from covey.links.replay import Replay, Share, layout
from covey.memory import pulse
from covey.memory.priorities import Draw

KINDS = ("kill", "stop", "segv", "raise", "exit", "hang", "slow reset")
CAUSES = {
    "kill": "signal 9", "stop": "no progress", "segv": "signal 11",
    "raise": "EnvError: ", "exit": "exited with status 3", "hang": "no progress",
}  # fmt: skip
NO_ORDER, PID, GENERATION = 0, 1, 2  # columns of an actor's orders; column 0 holds the order
CAPACITY = 20_000  # rows in an actor's shard
ROWS = 8  # transitions in an item of the stream
HANG_SECONDS, SLOW_RESET_SECONDS = 0.5, 1.0
CARE = Care(step=HANG_SECONDS, reset=20.0, start=30.0, soon=0.001)
LONGEST_RECOVERY = 20.0


class Fault(NamedTuple):
    wait: float  # seconds after the one before
    kind: str
    actor: int


def schedule(seed, num, actors, mean_wait=0.1):
    """Every kind once, then any; the same for the same seed."""
    rng = random.Random(seed)
    kinds = [*KINDS, *rng.choices(KINDS, k=max(0, num - len(KINDS)))][:num]
    rng.shuffle(kinds)
    return [Fault(rng.expovariate(1 / mean_wait), kind, rng.randrange(actors)) for kind in kinds]


def sign(rows):
    """A checksum of (..., actor, generation, episode, step)."""
    mixed = np.zeros(rows.shape[:-1], np.uint64)
    with np.errstate(over="ignore"):
        for column in range(rows.shape[-1]):
            mixed = (mixed ^ rows[..., column].astype(np.uint64)) * np.uint64(0x100000001B3)
    return (mixed >> np.uint64(16)).astype(np.int64)


class Signed(gym.Env):
    """obs = actor, generation, episode, step, checksum. Obeys the orders in `order[0]`."""

    observation_space = spaces.Box(-(2**62), 2**62, (5,), np.int64)
    action_space = spaces.Discrete(2)

    def __init__(self, actor, generation, order, step_seconds=0.0005):
        self.actor, self.generation, self.order = actor, generation, order
        self.episode, self.t, self.step_seconds = -1, 0, step_seconds
        self.slow = False

    def _obs(self):
        row = np.array([self.actor, self.generation, self.episode, self.t], np.int64)
        return np.append(row, sign(row))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.slow:
            time.sleep(SLOW_RESET_SECONDS)
            self.slow = False
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        order = int(self.order[0])
        if order:  # clearing what is clear could undo an order that comes just now
            self.order[0] = NO_ORDER
            self._obey(KINDS[order - 1])
        time.sleep(self.step_seconds)
        self.t += 1
        over = self.np_random.random() < 0.1
        return self._obs(), float(self.t), bool(over), False, {}

    def _obey(self, kind):
        if kind == "raise":
            raise RuntimeError("ordered to")
        if kind == "exit":
            os._exit(3)
        if kind == "segv":
            ctypes.string_at(0)
        while kind == "hang":
            ctypes.PyDLL(None).sleep(1000)  # a PyDLL does not let go of the interpreter
        self.slow = kind == "slow reset"


class Idle:
    """An agent that always does the same."""

    actions = ("discrete",)
    overlap, extra = 0, {}

    class Config:
        pass

    def __init__(self, spec, config, rng, **_):
        self.spec = spec

    def act(self, obs_B, env_step=0, greedy=False):
        return np.zeros(len(obs_B), np.int64), {}


class History:
    """What reached the reader, checked as it comes: the verdict on all faults."""

    def __init__(self, actors):
        self.last = [(-1, 0, 0)] * actors  # generation, episode, step of the newest row
        self.ended = [True] * actors
        self.rows = np.zeros(actors, np.int64)
        self.wrong = Counter()

    def add(self, actor, obs, over):
        """Rows (T, 5) of one writer in order, and where an episode ended."""
        self.rows[actor] += len(obs)
        self.wrong["torn"] += int((sign(obs[:, :4]) != obs[:, 4]).sum())
        self.wrong["of another"] += int((obs[:, 0] != actor).sum())
        for key, ends in zip(map(tuple, obs[:, 1:4].tolist()), over.tolist(), strict=True):
            if key <= self.last[actor]:
                self.wrong["doubled or late"] += 1
            elif key not in self._may_follow(actor, key[0]):
                self.wrong["missing before"] += 1
            self.last[actor], self.ended[actor] = key, ends

    def _may_follow(self, actor, generation):
        before, episode, step = self.last[actor]
        if generation > before:
            return [(generation, 0, 0)]
        return [(before, episode + 1, 0)] if self.ended[actor] else [(before, episode, step + 1)]


class Nemesis:
    """Breaks actors when it is time, and waits until each has recovered."""

    def __init__(self, faults, orders, history):
        self.due, self.orders, self.history = deque(faults), orders, history
        self.at = time.monotonic() + 0.2
        self.open = {}  # actor: fault, generation, time
        self.done, self.lost = [], []
        self.before = {}  # actor: the episode that a slow reset begins, at the latest, and a step

    def act(self):
        """Do what is due; True when all is over."""
        now = time.monotonic()
        for actor, (fault, generation, when) in list(self.open.items()):
            last, before = self.history.last[actor], (generation, *self.before[actor])
            slow = fault.kind == "slow reset"
            if last > before if slow else last[0] > generation:
                self.done.append((fault.kind, actor, generation, now - when))
                del self.open[actor]
            elif now - when > LONGEST_RECOVERY:
                self.lost.append((fault.kind, actor, generation))
                del self.open[actor]
        if self.due and now >= self.at and self.due[0].actor not in self.open:
            self._break(self.due.popleft(), now)
            self.at = now + (self.due[0].wait if self.due else 0)
        return not self.due and not self.open

    def _break(self, fault, now):
        row, (generation, episode, step) = self.orders[fault.actor], self.history.last[fault.actor]
        if generation < 0 or int(row[GENERATION]) != generation:
            self.due.appendleft(fault)  # its successor has not shown itself yet
            return
        self.before[fault.actor] = episode + 2, step
        self.open[fault.actor] = fault, generation, now
        if fault.kind == "kill":
            os.kill(int(row[PID]), signal.SIGKILL)
        elif fault.kind == "stop":
            os.kill(int(row[PID]), signal.SIGSTOP)
        else:
            row[0] = KINDS.index(fault.kind) + 1


class Streamed:
    """Transitions go to the learner through a stream."""

    def __init__(self, team):
        fields = {"obs": ((ROWS, 5), "i8"), "over": ((ROWS,), "?")}
        self.team, self.stream = team, team.stream("rows", fields, slots=4)

    def put(self, obs, over):
        self.stream.put({"obs": obs, "over": over})

    def take(self, history):
        """The next item into the history; whether there was one."""
        item = self.stream.take_now()
        if item is not None:
            history.add(self.team.members[item.writer][1], item.values["obs"], item.values["over"])
        return item is not None

    def account(self):
        s = self.stream
        return {"written": s.written, "taken": s.taken, "depth": s.depth, "dropped": s.dropped}


class Stored:
    """Transitions stay in a replay; the learner looks at each new one, draws, and revises."""

    def __init__(self, team):
        actors, columns = len(team.ranks("actor")), {"obs": np.zeros((1, 5), np.int64),
                                                     "over": np.zeros(1, bool)}  # fmt: skip
        form = layout(columns, actors * CAPACITY, actors, 1)
        share = Share(team.waits, team.rank, team.ranks("actor"), team.ranks("learner"))
        draw, block = Draw(alpha=0.6), team.block("rows", form)
        self.replay = Replay(actors * CAPACITY, team.rng("rows"), True, draw, block, share)
        self.seen, self.wrong = np.zeros(actors, np.int64), Counter()

    def put(self, obs, over):
        self.replay.add({"obs": obs, "over": over}, np.abs(np.sin(obs[:, 3])) + 0.1)

    def take(self, history):
        """Rows that are new into the history, and drawn ones checked; whether any was new."""
        heads, oldest = self.replay.head_S.copy(), self.replay.there()[0]
        assert (oldest <= self.seen).all(), "too slow: rows were overwritten that nobody had seen"
        for actor in (heads > self.seen).nonzero()[0].tolist():
            slot = actor * CAPACITY + np.arange(self.seen[actor], heads[actor]) % CAPACITY
            columns = self.replay.columns
            history.add(actor, columns["obs"][slot], columns["over"][slot])
        new, self.seen = (heads > self.seen).any(), heads
        if len(self.replay):
            batch = self.replay.sample(64)
            self.wrong["drawn torn"] += int((sign(batch["obs"][:, :4]) != batch["obs"][:, 4]).sum())
            self.replay.revise(batch["id"], np.abs(np.cos(batch["obs"][:, 3])))
        return new

    def account(self):
        self.replay.check()
        assert not self.wrong["drawn torn"]
        written, left = divmod(self.replay.added, ROWS)
        assert not left
        return {"written": written, "taken": int(self.seen.sum()) // ROWS, "depth": 0, "dropped": 0}


def act_until_stopped(team, orders, carrier, step_seconds=0.0005):
    """An actor: whole items of transitions, until the team stops."""
    row = orders[team.index]
    row[:3] = NO_ORDER, os.getpid(), team.generation
    env = covey.make_env(
        lambda: Signed(team.index, team.generation, row, step_seconds), 1, team.seed
    )
    collector = covey.Collector(env, team.agent(Idle, env), ROWS)
    while team.stopped is None:
        unroll = collector.collect(0)
        carrier.put(unroll.obs_TB[:-1, 0], unroll.last_TB[:, 0])


def open_lab(team, how=Streamed):
    """The orders, and what carries transitions from the actors to the learner."""
    actors = len(team.ranks("actor"))
    orders = team.block("orders", {"order": ((actors, 8), "i8")})["order"]
    return orders, how(team)


def laboratory(faults, step_seconds=0.0005, how=Streamed):
    """A program in which actors survive these faults; the learner returns its findings."""

    def main(team):
        orders, carrier = open_lab(team, how)
        if team.role == "actor":
            return act_until_stopped(team, orders, carrier, step_seconds)
        actors = len(orders)
        history = History(actors)
        nemesis = Nemesis(faults, orders, history)
        while not nemesis.act():
            if not carrier.take(history):
                time.sleep(0.001)
            team.pulse.beat()
        team.stop("enough")
        ranks = team.ranks("actor")
        deadline = time.monotonic() + 5
        while any(team.pulse_N[r, pulse.PHASE] != pulse.ENDED for r in ranks):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        while carrier.take(history):
            pass
        return {
            "done": nemesis.done, "lost": nemesis.lost, "wrong": dict(history.wrong),
            "rows": history.rows, **carrier.account(),
            "stepped": [int(team.pulse_N[r, pulse.STEPPED]) for r in ranks],
        }  # fmt: skip

    return main


def survive(seed, num, actors=4, how=Streamed, **more):
    """Run the laboratory: the learner's findings and the supervisor's events."""
    print(f"nemesis seed {seed}")
    events = []
    found = processes.run(
        laboratory(schedule(seed, num, actors), how=how), seed=seed,
        members={"actor": actors, "learner": 1}, care=CARE,
        hear=lambda kind, **what: events.append((kind, what)), **more,
    )  # fmt: skip
    return found[-1], events


def verdict(found, events, num):
    """Everything that must hold after `num` faults."""
    assert not found["lost"], found["lost"]
    assert len(found["done"]) == num
    assert not {k: v for k, v in found["wrong"].items() if v}, found["wrong"]
    died = {(e["member"], e["generation"]): e for kind, e in events if kind == "died"}
    deadly = [f for f in found["done"] if f[0] != "slow reset"]
    for kind, actor, generation, _ in deadly:
        event = died.pop((f"actor {actor}", generation))
        assert CAUSES[kind] in event["cause"], (kind, event)
        assert event["replaced"]
    assert not died, f"deaths that nobody ordered: {died}"
    assert (found["depth"], found["dropped"]) == (0, 0)
    assert sum(found["rows"]) == found["taken"] * ROWS == found["written"] * ROWS
    deaths = Counter(actor for _, actor, _, _ in deadly)
    for actor, stepped in enumerate(found["stepped"]):
        lost = stepped - found["rows"][actor]
        assert 0 <= lost <= ROWS * (deaths[actor] + 1), (actor, lost, deaths[actor])


def recoveries(found, *kinds):
    """Seconds from each fault of these kinds to its successor's first transition, sorted."""
    return sorted(seconds for kind, _, _, seconds in found["done"] if kind in kinds)
