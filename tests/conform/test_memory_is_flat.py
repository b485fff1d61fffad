"""Law 10: memory, descriptors and threads are flat over many updates and items."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.links.replay import Replay
from covey.memory.priorities import Draw
from covey.optim import Optimizer, flatten

UPDATES, WARM_UP, LOOKS = 10_000, 2_500, 15
MOST_BYTES = 100  # for each update: an array that is kept takes more


def resident():
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held():
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def looked_at(step):
    """Bytes more for each update once it runs, by least squares, and what else there is more of."""
    at, sizes, before = [], [], None
    for number in range(1, UPDATES + 1):
        step(number)
        if number == WARM_UP:
            before = held()
        if number >= WARM_UP and (number - WARM_UP) % ((UPDATES - WARM_UP) // LOOKS) == 0:
            at.append(number)
            sizes.append(resident())
    return float(np.polyfit(at, sizes, 1)[0]), held() == before


def updating(how):
    """A tiny network is updated, its weights published and read, a count and a stream used."""

    def main(team):
        applies = {
            "in-place": team.in_place,
            "owner": lambda: team.gradients(writers="worker", owner="worker"),
            "everyone": team.everyone,
        }
        apply = applies[how]()
        module = torch.nn.Linear(3, 2)
        flat = flatten(module, apply)
        optimizer = Optimizer(flat, "adam", 1e-3, apply=apply)
        own = {"flat": flat.detach().numpy()}
        weights = team.latest("weights", own, writer="worker")
        fields = {"n": ((8,), "i8")}
        stream = team.stream("rows", fields, writers="worker", readers="worker")
        count, task, batch = team.count("n"), team.task(), torch.ones(1, 3)
        task.share("loss")

        def step(number):
            optimizer.step(module(batch).square().sum())
            if how == "owner" and team.first:
                for _ in range(team.size):
                    assert apply.apply_pushed(optimizer)
            weights.publish(own)
            weights.refresh(own)
            count.add(1)
            count.crossed(100)
            stream.put({"n": np.full(8, number)})
            stream.take()
            team._shared.publish(loss=number / 7)
            team._shared.refresh()

        return looked_at(step)

    return main


@pytest.mark.slow
@pytest.mark.parametrize("how", ["in-place", "owner", "everyone"])
def test_memory_does_not_grow_with_updates(everywhere, how):
    for slope, same in everywhere(updating(how), worker=2):
        assert slope < MOST_BYTES
        assert same


@pytest.mark.slow
def test_memory_does_not_grow_with_rows_and_batches():
    """Numbers, and frames that come again: what a shard knows of them must not pile up."""
    rng = np.random.default_rng(0)
    replay = Replay(256, rng, draw=Draw(0.6, 0.4, 1000))
    picture = rng.integers(256, size=(9, 2, 40, 40), dtype=np.uint8)

    def step(number):
        picture[:-1] = picture[1:]
        picture[-1] = rng.integers(256, size=picture[-1].shape)
        rows = {"obs": picture[:8], "next_obs": picture[1:], "n": np.full(8, number)}
        replay.add(rows, np.full(8, 1.0))
        batch = replay.sample(16)
        replay.revise(batch["id"], np.full(16, number / 7))

    slope, same = looked_at(step)
    assert slope < MOST_BYTES
    assert same
    assert len(replay.frames._known) <= 3 * replay.frames.reach
