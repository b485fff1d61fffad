"""Pictures kept once: what comes out is what went in, whatever is shared, torn or killed."""

import os
import signal
import time

import numpy as np
import pytest
from apart import KILLED, apart, dies, kill, start
from seats import seats, successor

from covey.links.archive import slots
from covey.links.replay import Replay, Share, layout
from covey.memory import frames
from covey.memory.block import size_of
from covey.memory.priorities import Draw

PER = Draw(alpha=0.6, beta=0.4)
SMALL = (4, 6, 8)


def empty(shape):
    """Rows of this form, none."""
    obs = np.empty((0, *shape), np.uint8)
    return {"obs": obs, "n": np.empty(0, np.int64), "next_obs": obs}


def members(shards, capacity, shape=SMALL, draw=None):
    """The writers, then a reader; one shard is written and read by one."""
    if shards == 1:
        return [Replay(capacity, np.random.default_rng(0), draw=draw)] * 2
    return [of_member(team, capacity, shape, draw) for team in seats(actor=shards, learner=1)]


def of_member(team, capacity, shape=SMALL, draw=None):
    write, read = team.ranks("actor"), team.ranks("learner")
    form = layout(empty(shape), capacity, len(write), len(read))
    share = Share(team.waits, team.rank, write, read)
    return Replay(capacity, team.rng("replay"), True, draw, team.block("replay", form), share)


class Lanes:
    """Environments side by side, whose pictures are noise; a reset fills a stack with one."""

    def __init__(self, num, shape, seed=0, ends=0.0):
        self.rng, self.shape, self.ends, self.n = np.random.default_rng(seed), shape, ends, 0
        self.frames = 0
        self.obs = [self.first() for _ in range(num)]
        self.told = {}

    def frame(self):
        self.frames += 1
        return self.rng.integers(0, 256, frames.frame_of(self.shape), np.uint8)

    def first(self):
        return np.concatenate([self.frame()] * frames.frames_in(self.shape))

    def rows(self, steps):
        """One of each lane for each step."""
        made = [self.row(lane) for _ in range(steps) for lane in range(len(self.obs))]
        for obs, number, next_obs in made:
            self.told[number] = obs, next_obs
        obs, number, next_obs = zip(*made, strict=True)
        return {"obs": np.stack(obs), "n": np.array(number), "next_obs": np.stack(next_obs)}

    def row(self, lane):
        self.n += 1
        before, frame = self.obs[lane], self.frame()
        after = np.concatenate([before[len(frame) :], frame])
        self.obs[lane] = self.first() if self.rng.random() < self.ends else after
        return before, self.n, after


def unrelated(numbers, shape=SMALL):
    """Rows that share nothing: as many frames as there can be."""
    rng = np.random.default_rng(min(numbers, default=0))
    obs, next_obs = rng.integers(0, 256, (2, len(numbers), *shape), np.uint8)
    return {"obs": obs, "n": np.array(numbers), "next_obs": next_obs}


def tell(told, rows):
    told |= {n: (a, b) for a, n, b in zip(*map(rows.get, ("obs", "n", "next_obs")), strict=True)}
    return rows


def right(batch, told):
    """Rows are as they were told."""
    for obs, number, next_obs in zip(batch["obs"], batch["n"], batch["next_obs"], strict=True):
        np.testing.assert_array_equal(obs, told[int(number)][0])
        np.testing.assert_array_equal(next_obs, told[int(number)][1])


def kept(r):
    """All rows that may be drawn."""
    oldest_S, size_S = r.there()
    slot_N = slots(r.size, oldest_S, oldest_S + size_S)
    return {name: column.take(slot_N, axis=0) for name, column in r.columns.items()}


def all_numbers(r):
    return sorted(kept(r)["n"].tolist())


# --- what is a frame


@pytest.mark.parametrize(
    ("shape", "num"),
    [
        ((84, 84), 1), ((84, 84, 1), 1), ((84, 84, 3), 1), ((84, 84, 4), 1), ((8, 8, 3), 1),
        ((1, 84, 84), 1), ((2, 84, 84), 2), ((4, 84, 84), 4), ((16, 84, 84), 16),
        ((3, 84, 84), 1), ((9, 84, 84), 3), ((12, 84, 84), 4),
        ((4, 84, 84, 3), 4), ((80, 84, 84), 1), ((4, 2, 2), 1),
    ],
)  # fmt: skip
def test_stacks_are_cut_along_their_first_axis(shape, num):
    assert frames.frames_in(shape) == num
    assert frames.frame_of(shape) == (shape[0] // num, *shape[1:])


def test_only_images_are_kept_as_frames():
    u1, record = np.uint8, np.dtype([("x", np.uint8, (9, 9))])
    rows = {
        "stack": np.zeros((1, 4, 9, 9), u1), "one": np.zeros((1, 1, 9, 9), u1),
        "other": np.zeros((1, 9, 8), u1), "numbers": np.zeros((1, 40), u1),
        "row": np.zeros((1, 1, 40), u1), "floats": np.zeros((1, 9, 9), np.float32),
        "records": np.zeros(1, record),
    }  # fmt: skip
    assert frames.images(rows) == {"stack": 4, "one": 1}
    form = layout(rows, 100, 2, 1)
    assert form["stack.stack"] == ((100, 4), "i8")
    assert form["stack.one"] == ((100, 1), "i8")
    num, _ = frames.room(50, 5)
    assert form["frames"] == ((2 * num, 1, 9, 9), "u1")
    whole = {name for name in form if name.startswith("row.")}
    assert whole == {f"row.{name}" for name in ("other", "numbers", "row", "floats", "records")}
    assert frames.layout({"x": np.zeros((1, 4), np.float32)}, 10, 1) == {}


def test_a_stack_of_four_costs_less_than_a_fifth():
    rows = {**empty((4, 84, 84)), "action": np.zeros(0, np.int64)}
    stacked = 2 * 4 * 84 * 84
    for shards in (1, 4):
        assert size_of(layout(rows, 100_000, shards, 1)) < 100_000 * stacked / 5


# --- what comes out


SHAPES = [SMALL, (6, 8), (1, 6, 8), (3, 6, 8), (9, 10, 11), (6, 8, 3), (4, 5, 7), (2, 6, 8, 3)]


@pytest.mark.parametrize("draw", [None, PER], ids=["alike", "priority"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_come_out_as_they_went_in(shape, shards, draw):
    *writers, reader = members(shards, 150, shape, draw)
    lanes = [Lanes(3, shape, seed, ends=0.05) for seed in range(shards)]
    for other in lanes[1:]:
        other.n = lanes.index(other) * 10**6
        other.told = lanes[0].told
    for steps in [1, 2, 70, 1, *[7] * 60]:
        for writer, lane in zip(writers, lanes, strict=True):
            writer.add(lane.rows(steps))
        batch = reader.sample(20)
        assert (batch["obs"].shape, batch["obs"].dtype) == ((20, *shape), np.uint8)
        right(batch, lanes[0].told)
    assert len(reader) == 150  # what resets cost is provided for
    right(kept(reader), lanes[0].told)
    assert min(reader.frames.end_S) > 3 * reader.frames.num  # it went round and round
    reader.check()


def test_a_column_of_another_form_stands_whole_beside_the_frames():
    r, rng = Replay(50, np.random.default_rng(0)), np.random.default_rng(1)
    wide = rng.integers(0, 256, (80, 9, 7), np.uint8)
    rows = {**unrelated(range(80)), "wide": wide}
    r.add(rows)
    batch = r.sample(30)
    np.testing.assert_array_equal(batch["wide"], wide[batch["n"]])
    np.testing.assert_array_equal(batch["obs"], rows["obs"][batch["n"]])


def test_pictures_in_any_order_of_memory_are_taken():
    r = Replay(50, np.random.default_rng(0))
    rows = unrelated(range(20))
    turned = {**rows, "obs": rows["obs"][::-1], "next_obs": np.asfortranarray(rows["next_obs"])}
    told = {}
    r.add(tell(told, turned))
    right(r.sample(40), told)


def test_no_rows_change_nothing():
    r, lanes = Replay(50, np.random.default_rng(0)), Lanes(2, SMALL)
    r.add(lanes.rows(4))
    end = int(r.frames.end_S[0])
    r.add(empty(SMALL))
    assert (len(r), r.frames.end_S[0]) == (8, end)


def test_after_clear_only_new_rows_are_drawn_and_frames_are_still_known():
    r, lanes = Replay(50, np.random.default_rng(0)), Lanes(2, SMALL)
    r.add(lanes.rows(4))
    end = int(r.frames.end_S[0])
    r.clear()
    r.add(lanes.rows(1))
    assert r.frames.end_S[0] == end + 2
    assert set(r.sample(20)["n"].tolist()) == {9, 10}
    right(r.sample(20), lanes.told)


def test_batches_use_memory_again_once_nobody_holds_it():
    r, lanes = Replay(40, np.random.default_rng(0)), Lanes(2, (4, 40, 40))
    r.add(lanes.rows(20))
    first = r.sample(16)["obs"]
    second = r.sample(16)["obs"]
    assert not np.shares_memory(first, second)
    held, at = first.copy(), second.ctypes.data
    view = first[3:]
    del second, first
    third = r.sample(16)
    assert third["obs"].ctypes.data == at
    np.testing.assert_array_equal(view, held[3:])
    right(third, lanes.told)


# --- what it costs


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_an_env_step_costs_one_frame(steps):
    r, lanes = Replay(400, np.random.default_rng(0)), Lanes(8, SMALL)
    for _ in range(2000 // (8 * steps)):
        r.add(lanes.rows(steps))
    assert r.frames.end_S[0] == lanes.frames == r.added + 8
    assert len(r) == 400


def test_a_reset_costs_one_more_and_no_row():
    r, lanes = Replay(1000, np.random.default_rng(0)), Lanes(8, SMALL, ends=0.1)
    for _ in range(100):
        r.add(lanes.rows(4))
    unseen = 8  # a reset with the last step has no row yet, at most one of each lane
    assert lanes.frames - unseen <= r.frames.end_S[0] <= lanes.frames
    assert lanes.frames > 3400
    assert len(r) == 1000


def test_n_steps_apart_still_share():
    film = np.random.default_rng(0).integers(0, 256, (200, 6, 8), np.uint8)
    stack = np.lib.stride_tricks.sliding_window_view(film, 4, axis=0).transpose(0, 3, 1, 2)
    r = Replay(500, np.random.default_rng(0))
    r.add({"obs": stack[:-5], "next_obs": stack[5:]})
    assert (len(r), r.frames.end_S[0]) == (192, 200)
    np.testing.assert_array_equal(r.columns["next_obs"].take(np.arange(192)), stack[5:])


def test_frames_that_are_too_old_are_written_again():
    r, lanes = Replay(400, np.random.default_rng(0)), Lanes(8, SMALL)
    first = lanes.rows(1)
    r.add(first)
    r.add(lanes.rows(10))
    end = int(r.frames.end_S[0])
    r.add(first)
    assert r.frames.end_S[0] == end
    r.add(lanes.rows(r.frames.reach // 8 + 1))
    end = int(r.frames.end_S[0])
    r.add(first)
    assert r.frames.end_S[0] == end + 16
    right(kept(r), lanes.told)


def test_digests_that_are_forgotten_are_the_old_ones():
    r, lanes = Replay(80, np.random.default_rng(0)), Lanes(8, SMALL)
    for _ in range(200):
        r.add(lanes.rows(1))
        assert len(r.frames._known) <= 2 * r.frames.reach + 16
    assert r.frames.end_S[0] == lanes.frames


@pytest.mark.parametrize("constant", [0, 1], ids=["all", "half"])
def test_frames_of_one_digest_are_told_apart(constant, monkeypatch):
    real = frames.digest
    monkeypatch.setattr(frames, "digest", lambda frame: real(frame) % 2 * constant)
    r, lanes = Replay(100, np.random.default_rng(0)), Lanes(3, SMALL, ends=0.1)
    for _ in range(40):
        r.add(lanes.rows(3))
        right(r.sample(20), lanes.told)
    right(kept(r), lanes.told)


# --- rows whose frames are overwritten


@pytest.mark.parametrize("draw", [None, PER], ids=["alike", "priority"])
@pytest.mark.parametrize("shards", [1, 2])
def test_rows_go_before_their_frames(shards, draw):
    *writers, reader = members(shards, 600, draw=draw)
    told, size, at = {}, 600 // shards, 0
    for num in [1, 3, 500, *[17] * 40]:
        for writer in writers:
            writer.add(tell(told, unrelated(range(at, at + num))))
            at += num
        right(reader.sample(30), told)
    right(kept(reader), told)
    f = reader.frames
    least = shards * ((f.num - f.reach) // 8 - f.part)  # eight frames each, none of them shared
    assert least <= len(reader) < shards * size
    assert all_numbers(reader)[-17:] == list(range(at - 17, at))  # the oldest went
    for s in range(shards):
        row_N = slots(size, reader.there()[0][s : s + 1], reader.head_S[s : s + 1]) + s * size
        for number_MK in f.numbers.values():
            assert number_MK[row_N].min() >= f.end_S[s] - f.num
            assert (number_MK[row_N].min(axis=1) >= f.oldest_M[row_N]).all()
        assert (np.diff(f.oldest_M[row_N]) >= 0).all()
    lanes = Lanes(4, SMALL)
    lanes.n = 10**6
    for _ in range(2 * size // 8 + 8):
        writers[0].add(lanes.rows(2))
    right(kept(reader), told | lanes.told)
    assert len(reader) >= size  # where rows share frames again, all are kept again


class LateHead:
    """In the place of the heads: whoever has read them is held up while others write."""

    def __init__(self, head_S, write):
        self.head_S, self.write = head_S, write

    def __getattr__(self, name):
        return getattr(self.head_S, name)

    def copy(self):
        found = self.head_S.copy()
        self.write()
        return found

    def __mul__(self, other):
        return self.copy() * other


@pytest.mark.parametrize("draw", [None, PER], ids=["alike", "priority"])
@pytest.mark.parametrize("capacity", [2, 40, 600])
def test_however_fast_writers_are_a_reader_finds_something(capacity, draw):
    *writers, reader = members(2, capacity, draw=draw)
    numbers = iter(range(0, 10**9, 250))

    def write():
        for writer in writers:
            at = next(numbers)
            writer.add(unrelated(range(at, at + 250)))

    write()
    reader.head_S = LateHead(reader.head_S, write)
    assert reader.there()[1].sum() > 0
    reader._choose(10)  # would say that the replay is empty


@pytest.mark.parametrize("capacity", [1, 3, 30, 300])
def test_rows_stand_while_more_are_written(capacity):
    r, seen = Replay(capacity, np.random.default_rng(0)), []
    r.add(unrelated(range(30)))
    append = r.frames._append

    def spy(frame_N):
        first = append(frame_N)
        seen.append(len(r))
        return first

    r.frames._append = spy
    for at in range(100, 1000, 100):
        r.add(unrelated(range(at, at + 100)))
    assert len(seen) > 100
    assert min(seen) >= (0 if capacity < 4 else 1)  # of so few, all are overwritten at once


# --- deaths


class DeadlyPixels:
    """In the place of the frames: kills whoever writes the `at`-th time, half-way."""

    def __init__(self, array, at):
        self.array, self.left = array, at

    def __getitem__(self, where):
        return self.array[where]

    def __setitem__(self, where, value):
        self.left -= 1
        if self.left == 0:
            self.array[where[: len(where) // 2]] = value[: len(where) // 2]
            self.array[where[len(where) // 2], :3] = value[len(where) // 2, :3]
            os.kill(os.getpid(), signal.SIGKILL)
        self.array[where] = value

    def take(self, *args, **more):
        return self.array.take(*args, **more)


def killed_while_writing(at, before):
    team, other = seats(actor=1, learner=1)
    first, reader = of_member(team, 300), of_member(other, 300)
    told = {}
    for number in range(0, before, 10):
        first.add(tell(told, unrelated(range(number, number + 10))))
    end, num = int(first.frames.end_S[0]), len(reader)

    last = tell(told, unrelated(range(7000, 7030)))

    def die():
        first.frames.frame_F = DeadlyPixels(first.frames.frame_F, at)
        first.add(last)

    assert dies(die) == KILLED
    right(kept(reader), told)
    parts = (at - 1) // 2  # each is its `obs` and its `next_obs`
    written = [n for n in all_numbers(reader) if n >= 7000]
    assert written == list(range(7000, 7000 + parts * first.frames.part))
    assert reader.head_S[0] == before + len(written)
    assert num - 40 <= len(reader) <= num + len(written)
    assert reader.frames.end_S[0] > end
    second = of_member(successor(team), 300)
    for number in range(8000, 8400, 10):
        second.add(tell(told, unrelated(range(number, number + 10))))
        right(kept(reader), told)
        right(reader.sample(20), told)
    assert min(all_numbers(reader)) >= 8000
    return len(reader)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("before", [10, 500])
def test_a_death_among_half_written_frames_leaves_nothing_wrong(at, before):
    assert apart(killed_while_writing, at, before) > 30


def test_a_successor_knows_the_frames_of_its_predecessor():
    team, other = seats(actor=1, learner=1)
    first, reader, lanes = of_member(team, 200), of_member(other, 200), Lanes(4, SMALL)
    first.add(lanes.rows(100))
    second = of_member(successor(team), 200)
    second.add(lanes.rows(3))
    assert reader.frames.end_S[0] == lanes.frames
    right(kept(reader), lanes.told)


LARGE = (4, 40, 40)


def numbered(numbers):
    """Stacks whose k-th frame is full of twice the row's number + k; two frames are shared."""
    number_N4 = 2 * np.array(numbers)[:, None] + np.arange(4)
    obs = np.repeat(number_N4[..., None], 800, 2).astype(np.uint16).view(np.uint8)
    obs = obs.reshape(-1, *LARGE)
    return {"obs": obs, "n": np.array(numbers), "next_obs": obs[:, ::-1].copy()}


def hammered(seconds, alpha):
    """Two writers that overwrite as fast as they can, one killed and replaced now and then."""
    teams = seats(actor=2, learner=1)
    draw, begun = Draw(alpha), time.monotonic()

    def write(team):
        mine, number = of_member(team, 600, LARGE, draw), team.index * 20
        while True:
            mine.add(numbered(range(number, number + 20)))
            number = (number + 40) % 30_000

    reader, killed = of_member(teams[2], 600, LARGE, draw), 0
    pids = [start(write, team) for team in teams[:2]]
    while not len(reader):
        assert time.monotonic() - begun < 30
        time.sleep(0.001)
    while time.monotonic() - begun < seconds or killed < 2 or not reader.torn:
        assert time.monotonic() - begun < 40
        batch = reader.sample(64)
        for obs in (batch["obs"], batch["next_obs"][:, ::-1]):
            value_N4P = np.ascontiguousarray(obs).reshape(64, 4, -1).view(np.uint16)
            wanted_N4 = 2 * batch["n"][:, None] + np.arange(4)
            assert (value_N4P == wanted_N4[..., None]).all(), "torn"
        if alpha:
            reader.revise(batch["id"], np.abs(np.sin(batch["n"])))
        if time.monotonic() - begun > (killed + 1) * seconds / 6:
            kill(pids[0])
            teams[0] = successor(teams[0])
            pids[0] = start(write, teams[0])
            killed += 1
    for pid in pids:
        kill(pid)
    reader.check()
    return [killed, reader.torn, reader.drawn, min(reader.frames.end_S.tolist())]


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_no_torn_picture_is_ever_drawn(alpha):
    killed, torn, drawn, frames_written = apart(hammered, 2.0, alpha)
    assert killed >= 2
    assert torn > 0  # it was looked for, and found
    assert drawn > 500
    assert frames_written > 2000
