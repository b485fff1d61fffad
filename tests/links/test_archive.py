"""A replay is saved and goes on as if nothing had happened, with one shard or several."""

import copy

import numpy as np
import pytest
from seats import seats

from covey import checkpoint
from covey.links.replay import Replay, Share, layout
from covey.memory.priorities import Draw

PER = Draw(alpha=0.6, beta=0.4)


def replay(capacity=10, seed=0, save_rows=True, draw=None):
    return Replay(capacity, np.random.default_rng(seed), save_rows, draw)


def rows(*numbers):
    x = np.array(numbers, np.float32)
    return {"x": np.stack([x, -x], axis=1), "n": np.array(numbers, np.int64)}


def kept(r):
    return sorted(set(r.sample(2000)["n"].tolist()))


def in_a_team(actor=2, learner=1, capacity=20, draw=None):
    """Replays of the actors, which add, then of the learners, which draw."""
    found = []
    for team in seats(actor=actor, learner=learner):
        write, read = team.ranks("actor"), team.ranks("learner")
        form = layout(rows(0), capacity, len(write), len(read))
        share, rng = Share(team.waits, team.rank, write, read), team.rng("replay")
        found.append(Replay(capacity, rng, True, draw, team.block("replay", form), share))
    return found


@pytest.mark.parametrize("filled", [6, 10, 23])
def test_a_saved_replay_goes_on_as_if_nothing_had_happened(filled, tmp_path):
    first, second = replay(seed=5), replay(seed=99)
    first.add(rows(*range(filled)))
    first.sample(3)
    path = checkpoint.save(tmp_path, 1, first.state(), {})
    assert second.restore(checkpoint.load(path).tree)
    assert (second.added, second.drawn) == (filled, 3)
    for r in (first, second):
        r.add(rows(50, 51, 52))
    for _ in range(3):
        a, b = first.sample(20), second.sample(20)
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_an_empty_replay_is_restored():
    r = replay()
    assert r.restore(replay(seed=3).state())
    assert len(r) == 0


def test_without_rows_filling_begins_anew():
    first, second = replay(save_rows=False), replay(seed=9)
    first.add(rows(1, 2, 3))
    state = copy.deepcopy(first.state())
    assert all(len(column) == 0 for column in state["columns"].values())
    assert second.restore(state) is False
    assert len(second) == 0
    second.add(rows(7))
    assert second.sample(2)["n"].tolist() == [7, 7]


def test_another_capacity_is_not_the_same_ring():
    first = replay(10)
    first.add(rows(*range(10)))
    assert replay(5).restore(first.state()) is False


@pytest.mark.parametrize("draw", [None, PER], ids=["alike", "priority"])
@pytest.mark.parametrize("num", [3, 10, 25])
def test_shards_are_saved_and_restored(num, draw, tmp_path):
    *writers, reader = in_a_team(capacity=20, draw=draw)
    for shard, writer in enumerate(writers):
        writer.add(rows(*range(100 * shard, 100 * shard + num)), np.arange(1.0, num + 1))
    batch = reader.sample(30)
    if draw:
        reader.revise(batch["id"], np.linspace(0, 3, 30))
    path = checkpoint.save(tmp_path, 1, reader.state(), {})
    *again, second = in_a_team(capacity=20, draw=draw)
    assert second.restore(checkpoint.load(path).tree)
    assert (second.added, second.drawn, kept(second)) == (2 * num, 30, kept(reader))
    again[1].add(rows(7), np.ones(1))
    writers[1].add(rows(7), np.ones(1))
    for _ in range(3):
        one, other = reader.sample(20), second.sample(20)
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_reader_that_died_finds_the_rows_where_they_are():
    one, two, reader = in_a_team(draw=PER)
    one.add(rows(1, 2), np.ones(2))
    saved = reader.state()
    two.add(rows(10), np.ones(1))
    teams = one._waits, two  # the writers live on
    assert teams
    assert reader.restore(saved) is False  # what is there is newer than what was saved
    assert kept(reader) == [1, 2, 10]


def test_another_number_of_shards_begins_anew():
    one, _, reader = in_a_team(actor=2)
    one.add(rows(1, 2))
    *_, other = in_a_team(actor=3)
    assert other.restore(reader.state()) is False
    assert len(other) == 0


def test_each_of_two_readers_finds_its_own_share(tmp_path):
    *writers, one, two = in_a_team(actor=2, learner=2, draw=Draw(alpha=1.0))
    for number, writer in enumerate(writers):
        writer.add(rows(*range(10 * number, 10 * number + 4)), np.arange(1.0, 5.0))
    batch = one.sample(50)
    one.revise(batch["id"], batch["n"] + 5.0)
    two.sample(50)
    path = checkpoint.save(tmp_path, 1, one.state(), {})
    *_, again, other = in_a_team(actor=2, learner=2, draw=Draw(alpha=1.0))
    assert again.restore(checkpoint.load(path).tree)
    other.take_up(other.priorities)
    np.testing.assert_allclose(
        other.priorities.tree.leaf_N, two.priorities.tree.leaf_N, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(again.priorities.tree.leaf_N, one.priorities.tree.leaf_N)
    assert (again.drawn, again.due(), other.due()) == (100, one.due(), two.due())
