from math import isfinite

import numpy as np

from covey.bench import replay


def test_the_figures_are_there_and_make_sense():
    figures = replay.measure(seconds=0.3, capacity=4096, frames=600)
    assert all(isfinite(value) and value >= 0 for value in figures.values())
    for kind in ("small", "frames"):
        assert 0 < figures[f"{kind}_loop_of_look_up"] < 1.5
        assert figures[f"{kind}_look_up_microseconds"] > 1
    assert figures["frames_look_up_microseconds"] > 5 * figures["small_look_up_microseconds"]
    assert figures["actor_rows_per_second"] > 1000
    assert figures["actor_waited_seconds"] == 0


def test_a_loop_adds_draws_and_revises():
    loop = replay.Loop(replay.small_rows(np.random.default_rng(0), 1000), replay.DRAW)
    before = loop.replay.priorities.tree.leaf_N.copy()
    assert loop.turn() > 0
    assert loop.replay.added == 1000 + replay.LOOPS * replay.ADDED
    assert loop.replay.drawn == replay.LOOPS * replay.DRAWN
    assert (loop.replay.priorities.tree.leaf_N != before).sum() > 500
    assert loop.look_up() > 0
