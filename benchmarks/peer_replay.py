"""A replay buffer of one library, filled, that runs its loop when it is told to.

python peer_replay.py covey|cpprb|tianshou|stable-baselines3 CAPACITY LOOPS

Reads lines; for each prints the CPU seconds of LOOPS loops, each: 64 rows in, 512 rows out, 512
priorities revised. stable-baselines3 has no priorities: its rows are drawn alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import process_time

import numpy as np

ADDED, DRAWN = 64, 512


def rows(num: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.random((num, 4), np.float32), "action": rng.integers(0, 2, num),
        "reward": rng.random(num, np.float32), "done": rng.random(num) < 0.01,
        "next_obs": rng.random((num, 4), np.float32),
    }  # fmt: skip


def covey(capacity: int) -> Callable[[], object]:
    from covey.links.replay import Replay
    from covey.memory.priorities import Draw

    replay = Replay(capacity, np.random.default_rng(0), draw=Draw(alpha=0.6, beta=0.4))
    rng, new = np.random.default_rng(1), rows(ADDED)
    replay.add(rows(capacity), rng.random(capacity))
    first, errors = rng.random(ADDED), rng.random(DRAWN)

    def loop() -> None:
        replay.add(new, first)
        replay.revise(replay.sample(DRAWN)["id"], errors)

    return loop


def cpprb(capacity: int) -> Callable[[], object]:
    from cpprb import PrioritizedReplayBuffer

    form = {"obs": {"shape": 4}, "action": {"dtype": np.int64}, "reward": {}, "done": {},
            "next_obs": {"shape": 4}}  # fmt: skip
    buffer = PrioritizedReplayBuffer(capacity, form, alpha=0.6)
    rng, new = np.random.default_rng(1), rows(ADDED)
    for _ in range(capacity // 4096):
        buffer.add(**rows(4096), priorities=rng.random(4096))
    first, errors = rng.random(ADDED), rng.random(DRAWN)

    def loop() -> None:
        buffer.add(**new, priorities=first)
        batch = buffer.sample(DRAWN, beta=0.4)
        buffer.update_priorities(batch["indexes"], errors)

    return loop


def tianshou(capacity: int) -> Callable[[], object]:
    from tianshou.data import Batch, PrioritizedVectorReplayBuffer

    buffer = PrioritizedVectorReplayBuffer(capacity, ADDED, alpha=0.6, beta=0.4)
    rng, r = np.random.default_rng(1), rows(ADDED)
    new = Batch(
        obs=r["obs"], act=r["action"], rew=r["reward"], terminated=r["done"],
        truncated=np.zeros(ADDED, bool), obs_next=r["next_obs"], info=Batch(),
    )  # fmt: skip
    for _ in range(capacity // ADDED):
        buffer.add(new, buffer_ids=np.arange(ADDED))
    errors = rng.random(DRAWN)

    def loop() -> None:
        buffer.add(new, buffer_ids=np.arange(ADDED))
        _, index = buffer.sample(DRAWN)
        buffer.update_weight(index, errors)

    return loop


def stable_baselines3(capacity: int) -> Callable[[], object]:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    box, choice = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    buffer = ReplayBuffer(capacity, box, choice, device="cpu", n_envs=ADDED,
                          handle_timeout_termination=False)  # fmt: skip
    r = rows(ADDED)

    def add() -> None:
        buffer.add(r["obs"], r["next_obs"], r["action"], r["reward"], r["done"], [{}] * ADDED)

    for _ in range(capacity // ADDED):
        add()

    def loop() -> None:
        add()
        buffer.sample(DRAWN)

    return loop


KINDS = {
    "covey": covey, "cpprb": cpprb, "tianshou": tianshou, "stable-baselines3": stable_baselines3,
}  # fmt: skip


def main() -> None:
    kind, capacity, loops = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    loop = KINDS[kind](capacity)
    for _ in range(5):
        loop()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = process_time()
        for _ in range(loops):
            loop()
        print(process_time() - began, flush=True)


if __name__ == "__main__":
    main()
