"""Rows in shards: kept, drawn alike or by priority, revised, paced, saved and restored."""

import os
import signal
import time
from functools import partial

import numpy as np
import pytest
from apart import apart, dies, kill, start
from seats import seats, successor, together

import covey
from covey import checkpoint
from covey.envs import make_env
from covey.errors import Stopped, UserError
from covey.links.archive import slots
from covey.links.replay import Pace, Replay, Share, layout
from covey.memory.priorities import Draw
from covey.team import Team

RECORD = np.dtype([("x", np.float32, (2,)), ("n", np.int64)])


def replay(capacity=10, seed=0, save_rows=True, draw=None):
    return Replay(capacity, np.random.default_rng(seed), save_rows, draw)


def rows(*numbers):
    x = np.array(numbers, np.float32)
    return {"x": np.stack([x, -x], axis=1), "n": np.array(numbers, np.int64)}


def kept(r):
    """What may be drawn, in order."""
    if r.block is None:
        return []
    oldest_S, size_S = r.there()
    found = r.columns["n"][slots(r.size, oldest_S, oldest_S + size_S)]
    return sorted(found.tolist())


def test_it_fills_and_then_the_oldest_go():
    r = replay(4)
    assert len(r) == 0
    assert r.add(rows(0, 1, 2)) == 3
    assert (len(r), kept(r)) == (3, [0, 1, 2])
    r.add(rows(3, 4))
    assert (len(r), kept(r)) == (4, [1, 2, 3, 4])
    r.add(rows(5))
    assert (r.added, kept(r)) == (6, [2, 3, 4, 5])


@pytest.mark.parametrize("before", [0, 1, 3, 7])
@pytest.mark.parametrize("num", [4, 5, 8, 11])
def test_more_than_fit_leaves_the_newest(before, num):
    r = replay(4)
    r.add(rows(*range(before)))
    assert r.add(rows(*range(100, 100 + num))) == num
    assert kept(r) == list(range(96 + num, 100 + num))
    r.add(rows(-1))
    assert kept(r) == [-1, *range(97 + num, 100 + num)]


def test_no_rows_change_nothing():
    r = replay()
    r.add(rows(1, 2))
    assert r.add(rows()) == 0
    assert kept(r) == [1, 2]


@pytest.mark.parametrize("filled", [7, 10, 33])
def test_every_row_is_as_likely(filled):
    r = replay()
    r.add(rows(*range(filled)))
    drawn = r.sample(50_000)["n"]
    seen = np.bincount(drawn, minlength=filled)[-len(r) :]
    wanted = 50_000 / len(r)
    assert ((seen - wanted) ** 2 / wanted).sum() < 27.9  # chi-square of 9, one in a thousand
    assert seen.sum() == r.drawn == 50_000


def test_columns_are_drawn_together_and_as_copies():
    r = replay()
    r.add(rows(*range(10)))
    batch = r.sample(100)
    np.testing.assert_array_equal(batch["x"], np.stack([batch["n"], -batch["n"]], axis=1))
    assert (batch["x"].dtype, batch["n"].dtype) == (np.float32, np.int64)
    batch["n"][:] = 99
    assert kept(r) == list(range(10))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": np.zeros((2, 3), np.float32)}, r"'x' holds float32\[2\] .* given float32\[3\]"),
        ({"x": np.zeros(2, np.float32)}, "column 'x'"),
        ({"x": np.zeros((2, 2), np.float64)}, r"'x' holds float32\[2\] .* given float64\[2\]"),
        ({"n": np.zeros(3, np.int64)}, "column 'n'"),
        ({"n": None}, "column 'n' .* given nothing"),
        ({"new": np.zeros(2)}, "column 'new'"),
    ],
)
def test_other_columns_are_refused_by_name(change, sentence):
    r = replay()
    r.add(rows(1, 2))
    changed = {k: v for k, v in {**rows(3, 4), **change}.items() if v is not None}
    with pytest.raises(UserError, match=sentence):
        r.add(changed)
    assert (r.added, kept(r)) == (2, [1, 2])


def test_the_first_rows_must_be_of_one_length():
    with pytest.raises(UserError, match="column 'n'"):
        replay().add({"x": np.zeros((2, 2)), "n": np.zeros(3)})


def test_records(tmp_path):
    r = replay(3)
    obs = np.zeros(5, RECORD)
    obs["x"], obs["n"] = np.arange(10).reshape(5, 2), np.arange(5)
    r.add({"obs": obs})
    batch = r.sample(50)["obs"]
    assert batch.dtype == RECORD
    assert set(batch["n"].tolist()) == {2, 3, 4}
    np.testing.assert_array_equal(batch["x"][:, 0], 2 * batch["n"])
    again = replay(3)
    assert again.restore(checkpoint.load(checkpoint.save(tmp_path, 1, r.state(), {})).tree)
    np.testing.assert_array_equal(again.sample(9)["obs"], r.sample(9)["obs"])


PER = Draw(alpha=0.6, beta=0.4)


def test_rows_drawn_by_priority_have_weights_and_ids():
    r = replay(8, draw=Draw(alpha=1.0, beta=1.0))
    r.add(rows(0, 1, 2), np.array([1.0, 3.0, 0.0]))
    batch = r.sample(4000)
    assert np.bincount(batch["n"], minlength=3) / 4000 == pytest.approx([0.25, 0.75, 0], abs=0.01)
    assert dict(zip(batch["n"].tolist(), batch["weight"].tolist(), strict=True)) == pytest.approx(
        {0: 1.0, 1: 1 / 3}, rel=1e-5
    )
    assert (batch["id"] == batch["n"]).all()
    assert {"weight", "id"}.isdisjoint(replay_of(rows(1)).sample(1))


def replay_of(more):
    r = replay()
    r.add(more)
    return r


def test_revised_rows_are_drawn_by_their_new_errors():
    r = replay(8, draw=Draw(alpha=1.0))
    r.add(rows(0, 1, 2, 3), np.ones(4))
    r.sample(1)
    r.revise(np.array([0, 1, 2]), np.array([0.0, 0.0, 9.0]))
    drawn = r.sample(10_000)["n"]
    assert np.bincount(drawn, minlength=4) / 1e4 == pytest.approx([0, 0, 0.9, 0.1], abs=0.01)
    assert r.refused == 0


def test_a_revision_that_comes_too_late_is_refused_and_counted():
    r = replay(4, draw=PER)
    r.add(rows(0, 1, 2, 3), np.ones(4))
    ids = np.arange(4)
    r.add(rows(4, 5), np.ones(2))  # in the slots of 0 and 1
    r.sample(1)
    before = r.priorities.tree.leaf_N.copy()
    r.revise(ids, np.full(4, 50.0))
    assert r.refused == 2
    changed = r.priorities.tree.leaf_N != before
    assert changed.tolist() == [False, False, True, True]


def test_a_revision_of_what_was_overwritten_but_not_yet_taken_up_is_refused():
    r = replay(4, draw=PER)
    r.add(rows(0, 1, 2, 3), np.ones(4))
    ids = r.sample(20)["id"]
    r.add(rows(4, 5, 6, 7), np.full(4, 0.5))
    r.revise(ids, np.full(20, 50.0))
    assert r.refused == 20
    r.sample(1)
    np.testing.assert_allclose(r.priorities.tree.leaf_N, 0.5**0.6, rtol=1e-4)


def test_a_late_revision_is_refused_after_clear_too():
    r = replay(4, draw=PER)
    r.add(rows(0, 1, 2, 3), np.ones(4))
    ids = r.sample(8)["id"]
    r.clear()
    assert (len(r), kept(r), r.added) == (0, [], 4)
    with pytest.raises(AssertionError, match="empty"):
        r.sample(1)
    r.revise(ids, np.full(8, 50.0))
    assert r.refused == 8
    r.add(rows(10), np.ones(1))
    r.revise(ids, np.full(8, 50.0))
    assert r.refused == 16
    assert r.sample(5)["n"].tolist() == [10] * 5


def test_clear_without_priorities_and_before_the_first_row():
    r = replay(4)
    r.clear()
    r.add(rows(1, 2))
    r.clear()
    r.add(rows(3))
    assert r.sample(4)["n"].tolist() == [3] * 4


def test_errors_that_are_not_finite_are_refused():
    r = replay(4, draw=PER)
    r.add(rows(0, 1, 2), np.ones(3))
    r.sample(1)
    r.revise(np.arange(3), np.array([np.nan, np.inf, 2.0]))
    assert r.refused == 2
    assert r.priorities.tree.total == pytest.approx(2 + 2**0.6, rel=1e-4)


def test_a_large_column_uses_memory_again_once_nobody_holds_it():
    r = replay(40)
    r.add({"image": np.arange(40, dtype=np.uint8)[:, None].repeat(10_000, 1)})
    first = r.sample(16)["image"]
    second = r.sample(16)["image"]
    assert not np.shares_memory(first, second)
    held, at = first.copy(), second.ctypes.data
    view = first[3:]
    del second, first
    third = r.sample(16)["image"]
    assert third.ctypes.data == at
    np.testing.assert_array_equal(view, held[3:])
    assert (third == third[:, :1]).all()


# --- several members


def in_a_team(actor=2, learner=1, capacity=20, draw=None):
    """Replays of the actors, which add, then of the learners, which draw."""
    teams = seats(actor=actor, learner=learner)
    return [of_member(team, capacity, draw) for team in teams]


def of_member(team, capacity=20, draw=None):
    write, read = team.ranks("actor"), team.ranks("learner")
    form = layout(rows(0), capacity, len(write), len(read))
    share = Share(team.waits, team.rank, write, read)
    return Replay(capacity, team.rng("replay"), True, draw, team.block("replay", form), share)


def test_rows_of_all_members_are_drawn_from_where_they_were_written():
    one, two, reader = in_a_team()
    assert (one.add(rows(1, 2, 3)), two.add(rows(10, 11))) == (3, 2)
    assert kept(reader) == [1, 2, 3, 10, 11]
    assert (len(reader), reader.added) == (5, 5)
    batch = reader.sample(100)
    np.testing.assert_array_equal(batch["x"], np.stack([batch["n"], -batch["n"]], axis=1))
    assert set(batch["n"].tolist()) == {1, 2, 3, 10, 11}


@pytest.mark.parametrize("draw", [None, Draw(alpha=1.0)], ids=["alike", "priority"])
@pytest.mark.parametrize("sizes", [(0, 5), (1, 10), (1, 1), (10, 3), (0, 1)])
def test_drawing_is_global_whatever_each_shard_has(sizes, draw):
    *writers, reader = in_a_team(draw=draw)
    errors = {}
    for shard, (writer, num) in enumerate(zip(writers, sizes, strict=True)):
        numbers = [100 * shard + i for i in range(num)]
        error_N = np.array([1.0 + i + 5 * shard for i in range(num)])
        errors |= dict(zip(numbers, error_N if draw else np.ones(num), strict=True))
        writer.add(rows(*numbers), error_N) if num else None
    seen, wanted = dict.fromkeys(errors, 0), {}
    for number in reader.sample(30_000)["n"].tolist():
        seen[number] += 1
    for number, error in errors.items():
        wanted[number] = 30_000 * error / sum(errors.values())
    assert sum((seen[k] - wanted[k]) ** 2 / wanted[k] for k in errors) < 36  # 12 degrees at most


def test_an_exact_number_of_rows_comes_out_whatever_the_shares():
    *writers, reader = in_a_team(actor=7, capacity=700, draw=PER)
    for number, writer in enumerate(writers[:3]):
        writer.add(rows(*range(number * 10 + 1)), np.ones(number * 10 + 1))
    for num in (1, 2, 7, 100, 512):
        assert {len(column) for column in reader.sample(num).values()} == {num}


def test_each_reader_draws_from_its_own_share_and_all_count():
    *writers, first, second = in_a_team(actor=3, learner=2, capacity=30, draw=PER)
    for number, writer in enumerate(writers):
        writer.add(rows(number, 10 + number), np.ones(2))
    assert (len(first), len(second)) == (4, 2)
    assert set(first.sample(50)["n"].tolist()) == {0, 2, 10, 12}
    assert set(second.sample(50)["n"].tolist()) == {1, 11}
    assert first.drawn == second.drawn == 100


def test_more_readers_than_writers_are_refused():
    with pytest.raises(UserError, match="'replay' has 2 readers and 1 writers"):
        in_a_team(actor=1, learner=2)


def test_other_rows_are_refused_where_they_are_added():
    one, _, reader = in_a_team()
    with pytest.raises(UserError, match="'n' holds int64"):
        one.add({**rows(1), "n": np.zeros(1)})
    with pytest.raises(UserError, match="'new' holds nothing"):
        one.add({**rows(1), "new": np.zeros(1)})
    with pytest.raises(UserError, match="is written by actor 0, actor 1, not by this member"):
        reader.add(rows(1))
    assert len(reader) == 0


def test_a_writer_clears_its_shard_and_a_reader_all():
    one, two, reader = in_a_team(draw=PER)
    one.add(rows(1, 2), np.ones(2))
    two.add(rows(10, 11), np.ones(2))
    ids = reader.sample(40)["id"]
    one.clear()
    assert kept(reader) == [10, 11]
    assert set(reader.sample(40)["n"].tolist()) == {10, 11}
    reader.revise(ids, np.full(40, 3.0))
    assert reader.refused == (ids % 2 == 0).sum()
    reader.clear()
    assert len(reader) == 0
    one.add(rows(3), np.ones(1))
    assert reader.sample(3)["n"].tolist() == [3] * 3


def test_a_successor_goes_on_with_its_predecessors_rows():
    teams = seats(actor=1, learner=1)
    first, reader = of_member(teams[0]), of_member(teams[1])
    first.add(rows(1, 2, 3))
    second = of_member(successor(teams[0]))
    second.add(rows(4))
    assert kept(reader) == [1, 2, 3, 4]


def torn_by_a_death(at, more):
    """A writer is killed at the `at`-th column it writes; what the reader then has, and later."""
    team, other = seats(actor=1, learner=1)
    first, reader = of_member(team, 8), of_member(other, 8)
    first.add(rows(*range(8)))

    class Deadly(dict):
        left = at

        def __getitem__(self, key):
            Deadly.left -= 1
            if Deadly.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(key)

    def die():
        first._check = lambda rows: 3
        first.add(Deadly(rows(80, 81, 82)))

    assert dies(die) == -signal.SIGKILL
    after = kept(reader)
    second = of_member(successor(team), 8)
    second.add(rows(*more))
    return [after, kept(reader), len(reader)]


@pytest.mark.parametrize("at", [1, 2])
def test_what_a_death_left_half_written_is_never_drawn(at):
    after, later, num = apart(torn_by_a_death, at, [90])
    assert after == [3, 4, 5, 6, 7]  # the slots of 0, 1 and 2 had begun to be overwritten
    assert later == [3, 4, 5, 6, 7, 90]
    assert num == 6


def hammered(seconds, alpha):
    """Two writers that overwrite as fast as they can, one killed and replaced now and then."""
    teams = seats(actor=2, learner=1)
    draw, begun = Draw(alpha), time.monotonic()

    def write(team):
        mine, number = of_member(team, 3000, draw), team.index
        while True:
            mine.add(rows(*range(number, number + 40)), np.ones(40))
            number += 40

    reader, killed = of_member(teams[2], 3000, draw), 0
    pids = [start(write, team) for team in teams[:2]]
    while not len(reader):
        assert time.monotonic() - begun < seconds
        time.sleep(0.001)
    while time.monotonic() - begun < seconds:
        batch = reader.sample(256)
        assert (batch["x"][:, 0] == batch["n"]).all(), "torn"
        assert (batch["x"][:, 1] == -batch["n"]).all(), "torn"
        if alpha:
            reader.revise(batch["id"], np.abs(np.sin(batch["n"])))
        if time.monotonic() - begun > (killed + 1) * seconds / 8:
            kill(pids[0])
            teams[0] = successor(teams[0])
            pids[0] = start(write, teams[0])
            killed += 1
    for pid in pids:
        kill(pid)
    if alpha:
        reader.priorities.tree.check()
    return [killed, reader.torn, reader.refused, reader.drawn, reader.added]


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_no_torn_row_is_ever_drawn(alpha):
    killed, torn, refused, drawn, added = apart(hammered, 2.0, alpha)
    assert killed >= 2
    assert torn > 0  # it was looked for, and found
    assert (refused > 0) == (alpha > 0)
    assert drawn > 5_000
    assert added > 5_000


def test_rows_that_come_while_others_are_read_stay_in_the_draw():
    """The slot of a row that has gone holds another, which must not be forgotten with it."""
    one, _, reader = in_a_team(draw=PER)
    num = reader.size
    one.add(rows(*range(num)), np.ones(num))
    look = reader._gone

    def overtaken(*of):
        reader._gone = look
        one.add(rows(*range(num, 2 * num)), np.ones(num))
        return look(*of)

    reader._gone = overtaken
    batch = reader.sample(num)
    assert reader.torn == num
    assert min(batch["n"]) >= num
    assert (reader.priorities.tree.leaf_N[:num] > 0).all()


# --- the pace


def paced(reuse=2.0, batch=4, warmup=0, ahead=0, **more):
    found = in_a_team(**more)
    for r in found:
        r.keep_pace(Pace(batch, reuse, warmup, ahead))
    return found


def test_what_is_due_is_reuse_times_what_was_added_after_warmup():
    one, two, reader = paced(reuse=2.5, warmup=3)
    assert reader.due() == 0
    one.add(rows(1, 2, 3))
    assert reader.due() == 0
    two.add(rows(4, 5))
    assert reader.due() == 5.0
    reader.sample(4)
    assert (reader.due(), one.due()) == (1.0, 1.0)


def test_readers_share_a_batch_exactly_and_see_the_same_due():
    *writers, one, two, three = in_a_team(actor=3, learner=3, capacity=300)
    shares = [r.keep_pace(Pace(8, 2.0)) for r in (one, two, three)]
    assert shares == [3, 3, 2]
    for writer in writers:
        writer.keep_pace(Pace(8, 2.0))
        writer.add(rows(*range(20)))
    for drawn in range(1, 4):
        for r, share in zip((one, two, three), shares, strict=True):
            r.sample(share)
            assert r.due() == 120 - 8 * drawn
    assert writers[0].due() == 120 - 24


def test_a_writer_waits_while_too_little_was_drawn_and_is_rung():
    one, _, reader = paced(reuse=1.0, batch=4, ahead=6)
    one.add(rows(*range(9)))  # more than ahead: the next waits

    def draw():
        time.sleep(0.1)
        reader.sample(4)

    began = time.monotonic()
    together(partial(one.add, rows(9)), draw)
    assert 0.09 < one.waited <= time.monotonic() - began < 20
    assert one.gauges()["replay.actor_waited"] == one.waited
    assert not one._waiting_S.any()


def test_a_writer_never_waits_with_its_first_rows():
    one, two, *readers = paced(reuse=1.0, batch=2, learner=2)
    one.add(rows(*range(9)))
    assert not one._may_add()
    two.add(rows(1))  # else its reader would wait for ever, and the other for that one
    assert not two._may_add()
    assert [reader.due() for reader in readers] == [10, 10]


def test_of_writers_that_wait_the_one_that_added_least_is_next(monkeypatch):
    one, two, reader = paced(reuse=1.0, batch=2, capacity=200)
    one.add(rows(*range(30)))
    two.add(rows(*range(10)))
    assert not one._may_add()
    assert not two._may_add()  # and has said so
    reader.sample(40)
    assert not one._may_add()
    assert two._may_add()
    monkeypatch.setattr("covey.links.replay.TURN", 0)  # as if it had not asked again for long
    assert one._may_add()


def kept_apart(seconds):
    """Three writers as fast as they can, each on its own; how many rows each adds."""
    teams = seats(actor=3, learner=1)
    pace = Pace(8, 4.0)

    def write(team):
        mine = of_member(team, 3000)
        mine.keep_pace(pace)
        while True:
            mine.add(rows(*range(20)))

    reader, begun = of_member(teams[3], 3000), time.monotonic()
    reader.keep_pace(pace)
    pids = [start(write, team) for team in teams[:3]]
    while time.monotonic() - begun < seconds:
        if reader.due() >= 8:
            reader.sample(8)
    for pid in pids:
        kill(pid)
    return reader.head_S.tolist()


def test_writers_that_wait_take_turns():
    added = apart(kept_apart, 2.0)
    assert min(added) > 200
    assert max(added) - min(added) <= 0.1 * max(added) + 40


def test_a_reader_waits_until_a_batch_is_due():
    one, _, reader = paced(reuse=1.0, batch=4)

    def add():
        for number in range(4):
            time.sleep(0.02)
            one.add(rows(number))

    together(reader.wait, add)
    assert reader.due() == 4
    assert reader.waited > 0.05
    reader.wait()  # at once


def test_without_reuse_nobody_waits():
    one, _, reader = paced(reuse=None, batch=4, warmup=5)
    for _ in range(50):
        one.add(rows(1))
    assert reader.due() == 4
    reader.wait()
    assert (one.waited, reader.waited) == (0, 0)


def test_waiting_ends_when_all_stop():
    actor, learner = seats(actor=1, learner=1)
    reader = of_member(learner)
    reader.keep_pace(Pace(1, 1.0))
    with pytest.raises(Stopped, match="enough"):
        together(reader.wait, partial(actor.stop, "enough"))


def test_a_wait_in_vain_says_for_what(monkeypatch):
    monkeypatch.setattr("covey.links.waits.Waits.until.__defaults__", (0.05,))
    _, _, reader = paced()
    with pytest.raises(UserError, match=r"waited 0.05 s for rows in 'replay'; absent: actor 0, "):
        reader.wait()


def test_a_writer_that_waits_in_vain_says_so_too(monkeypatch):
    monkeypatch.setattr("covey.links.waits.Waits.until.__defaults__", (0.05,))
    one, _, _ = paced(reuse=1.0, batch=1)
    one.add(rows(1, 2, 3, 4))
    with pytest.raises(UserError, match=r"room in 'replay'; absent: learner 0"):
        one.add(rows(5))
    assert not one._waiting_S.any()


# --- the rest


def test_gauges_tell_what_is_where():
    one, _, reader = paced(reuse=None, draw=PER)
    one.add(rows(1, 2), np.ones(2))
    assert one.gauges() == {"replay.added": 2.0, "replay.drawn": 0.0, "replay.actor_waited": 0.0}
    reader.sample(7)
    assert reader.gauges() == {
        "replay.added": 2.0, "replay.drawn": 7.0, "replay.learner_waited": 0.0, "replay.rows": 2.0,
        "replay.refused": 0.0, "replay.torn": 0.0,
    }  # fmt: skip


def test_a_team_lays_it_out_for_the_rows_of_its_agent():
    teams = seats(actor=2, learner=1)
    env = make_env("CartPole-v1", 2)
    agent = teams[0].agent(covey.DQN, env, covey.DQN.Config(hidden=(4,)))
    unroll = covey.Collector(env, agent, 20).collect(0)
    one, two, reader = (team.replay("replay", agent, capacity=50, alpha=0.6) for team in teams)
    made = agent.rows(unroll)
    error_N = agent.priorities(unroll, made)
    highest = error_N[-25:].max()  # of those that are left in a shard
    num = one.add(made, error_N)
    two.add(made, error_N)
    assert (num > 0, len(reader), reader.capacity) == (True, min(50, 2 * num), 50)
    batch = reader.sample(3)
    assert (batch["obs"].shape, batch["weight"].shape) == ((3, 4), (3,))
    assert reader.priorities.tree.leaf_N.max() == pytest.approx((highest + 1e-6) ** 0.6, rel=1e-5)
    env.close()


def test_a_team_needs_the_agent_to_lay_it_out_and_one_process_does_not():
    with pytest.raises(UserError) as caught:
        seats(actor=1, learner=1)[0].replay("rows")
    assert str(caught.value) == (
        "team.replay('rows', agent) needs the agent: rows of its form cross processes."
    )
    assert Team(1).replay("rows").add(rows(1)) == 1
