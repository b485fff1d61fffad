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


def film(num, lanes=3, seed=0):
    """Rows of `num` steps of stacks, and their places in it."""
    picture = np.random.default_rng(seed).integers(0, 256, (num + 4, lanes, 6, 8), np.uint8)
    stack = np.lib.stride_tricks.sliding_window_view(picture, 4, axis=0)
    stack = stack.transpose(0, 1, 4, 2, 3)  # time, lane, frame
    obs, next_obs = (s.reshape(-1, 4, 6, 8) for s in (stack[:-1], stack[1:]))
    return {"obs": obs, "n": np.arange(len(obs)), "next_obs": next_obs}


def part(rows, first, last):
    return {name: column[first:last] for name, column in rows.items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            same(value, other[name])
        elif isinstance(value, np.ndarray):
            assert (value.dtype, value.shape) == (other[name].dtype, other[name].shape), name
            assert value.tobytes() == other[name].tobytes(), name
        else:
            assert value == other[name], name


@pytest.mark.parametrize("draw", [None, PER], ids=["alike", "priority"])
@pytest.mark.parametrize("stride", [1, 5], ids=["shared", "crowded"])
@pytest.mark.parametrize("filled", [3, 150, 600])
def test_frames_are_saved_once_and_found_again(filled, stride, draw, tmp_path):
    rows = {n: c[::stride] for n, c in film(stride * 450).items()}  # apart, their frames are many
    first, second = replay(200, seed=5, draw=draw), replay(200, seed=99, draw=draw)
    for at in range(0, filled, 6):
        first.add(part(rows, at, min(at + 6, filled)))
    first.sample(3)
    state = first.state()
    path = checkpoint.save(tmp_path, 1, state, {})
    saved = len(state["images"]["frames"])
    assert saved <= min(first.frames.num, int(first.frames.end_S[0]))
    if stride == 1:
        assert saved <= min(filled, 200) + 12 + first.frames.reach
        assert len(first) == min(filled, 200)
    elif filled == 600:
        assert len(first) < 200  # rows made room for frames
    assert second.restore(checkpoint.load(path).tree)
    for at in range(filled, filled + 600, 6):
        for r in (first, second):
            r.add(part(rows, at, at + 6))
        batch, other = first.sample(9), second.sample(9)
        same(batch, other)
        np.testing.assert_array_equal(batch["obs"], rows["obs"][batch["n"] // stride])
        np.testing.assert_array_equal(batch["next_obs"], rows["next_obs"][batch["n"] // stride])
    same(first.state(), second.state())


def images_in_a_team(capacity=60):
    found = []
    for team in seats(actor=2, learner=1):
        form, rng = layout(part(film(1), 0, 0), capacity, 2, 1), team.rng("replay")
        share = Share(team.waits, team.rank, [0, 1], [2])
        found.append(Replay(capacity, rng, True, None, team.block("replay", form), share))
    return found


def test_frames_of_several_shards_are_saved_and_restored(tmp_path):
    *writers, reader = images_in_a_team()
    rows = film(300)
    for writer, filled in zip(writers, (10, 500), strict=True):
        writer.add(part(rows, 0, filled))
    path = checkpoint.save(tmp_path, 1, reader.state(), {})
    *again, second = images_in_a_team()
    assert second.restore(checkpoint.load(path).tree)
    for one, other in zip(writers, again, strict=True):
        for r in (one, other):
            r.add(part(rows, 500, 520))
    for _ in range(5):
        batch = reader.sample(40)
        same(batch, second.sample(40))
        np.testing.assert_array_equal(batch["obs"], rows["obs"][batch["n"]])
    same(reader.state(), second.state())


def test_without_rows_no_frames_are_saved():
    first, second = replay(50, save_rows=False), replay(50, seed=9)
    first.add(part(film(30), 0, 90))
    state = copy.deepcopy(first.state())
    assert len(state["images"]["frames"]) == 0
    assert second.restore(state) is False
    second.add(part(film(30), 0, 90))
    assert len(second) == 50


def test_frames_go_on_after_clear():
    first, second, rows = replay(50), replay(50), film(60)
    first.add(part(rows, 0, 100))
    first.clear()
    assert second.restore(copy.deepcopy(first.state()))
    for r in (first, second):
        r.add(part(rows, 100, 140))
    same(first.state(), second.state())
    same(first.sample(30), second.sample(30))
    assert first.frames.end_S[0] == 140 + 12


def test_images_saved_whole_are_not_what_this_replay_holds():
    first, second = replay(50), replay(50)
    first.add(part(film(30), 0, 40))
    state = first.state()
    images = state.pop("images")
    state["columns"] |= {name: np.zeros((40, 4, 6, 8), np.uint8) for name in images["numbers"]}
    assert second.restore(state) is False
    assert len(second) == 0
