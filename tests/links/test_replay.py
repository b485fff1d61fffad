"""A ring of rows, drawn uniformly, saved and restored."""

import copy
from functools import partial

import numpy as np
import pytest
from seats import seats, together

import covey
from covey import checkpoint
from covey.envs import make_env
from covey.errors import Stopped, UserError
from covey.links.replay import CHUNK, Replay, fields_of
from covey.team import Team

RECORD = np.dtype([("x", np.float32, (2,)), ("n", np.int64)])


def replay(capacity=10, seed=0, save_rows=True):
    return Replay(capacity, np.random.default_rng(seed), save_rows)


def rows(*numbers):
    x = np.array(numbers, np.float32)
    return {"x": np.stack([x, -x], axis=1), "n": np.array(numbers, np.int64)}


def kept(r):
    return sorted(r.columns["n"][: len(r)].tolist()) if len(r) else []


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


def in_a_team(actor=2, learner=1, capacity=10_000, slots=4):
    """Replays of the actors, which only add, then of the learners, which keep and draw."""
    found = []
    for team in seats(actor=actor, learner=learner):
        stream = team.stream("replay", fields_of(rows(0)), slots)
        found.append(Replay(capacity, team.rng("replay"), True, stream, team.plays("learner")))
    return found


def test_rows_of_all_members_are_kept_where_they_are_drawn():
    one, two, reader = in_a_team()
    assert one.add(rows(1, 2, 3)) == 3
    assert two.add(rows(10, 11)) == 2
    assert one.add(rows(4)) == 1
    assert (len(one), len(reader)) == (0, 0)
    reader.wait(6)
    assert kept(reader) == [1, 2, 3, 4, 10, 11]
    assert reader.added == 6
    batch = reader.sample(100)
    np.testing.assert_array_equal(batch["x"], np.stack([batch["n"], -batch["n"]], axis=1))
    assert reader._stream.depth == 0  # the slots are free again


@pytest.mark.parametrize("num", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_any_number_of_rows_crosses_in_chunks_and_no_row_of_the_rest(num):
    one, _, reader = in_a_team()
    assert one.add(rows(*range(1, num + 1))) == num
    reader.wait(num)
    assert kept(reader) == list(range(1, num + 1))
    assert reader._stream.written == -(-num // CHUNK)


def test_it_waits_for_so_many_and_takes_in_what_else_is_there():
    one, two, reader = in_a_team()

    def add():
        for number in range(10):
            one.add(rows(number))
            two.add(rows(100 + number))

    together(partial(reader.wait, 20), add)
    assert len(reader) == 20
    one.add(rows(7))
    reader.wait(5)  # it has more, and takes in the newest too
    assert len(reader) == 21


def test_writers_that_never_pause_do_not_hold_it_up():
    one, _, reader = in_a_team()
    one.add(rows(0))
    take_now = reader._stream.take_now

    def another():
        one.add(rows(reader.added + 1))
        return take_now()

    reader._stream.take_now = another
    reader.wait(0)
    assert kept(reader) == [0]
    assert reader._stream.depth == 1


def test_waiting_for_rows_ends_when_all_stop():
    actor, learner = seats(actor=1, learner=1)
    stream = learner.stream("replay", fields_of(rows(0)))
    reader = Replay(10, learner.rng("replay"), True, stream)
    with pytest.raises(Stopped, match="enough"):
        together(partial(reader.wait, 1), partial(actor.stop, "enough"))


def test_only_readers_wait():
    one, _, _ = in_a_team()
    one.wait(10**9)
    replay().wait(10**9)


def test_each_reader_keeps_the_rows_of_its_writers():
    *writers, first, second = in_a_team(actor=3, learner=2)
    for number, writer in enumerate(writers):
        writer.add(rows(number, 10 + number))
    first.wait(4)
    second.wait(2)
    assert kept(first) == [0, 2, 10, 12]
    assert kept(second) == [1, 11]


def test_other_rows_are_refused_where_they_are_added():
    one, _, reader = in_a_team()
    with pytest.raises(UserError, match="replay columns must be of one length, but have: 'x' 3, "):
        one.add({**rows(1, 2, 3), "n": np.arange(2)})
    with pytest.raises(UserError, match="'n' holds int64"):
        one.add({**rows(1), "n": np.zeros(1)})
    with pytest.raises(UserError, match="'new' holds nothing"):
        one.add({**rows(1), "new": np.zeros(1)})
    reader.wait(0)
    assert len(reader) == 0


def test_gauges_are_told_where_the_rows_are():
    one, _, reader = in_a_team()
    one.add(rows(1, 2))
    moved = {"replay.written": 1.0, "replay.taken": 0.0, "replay.depth": 1.0, "replay.dropped": 0.0}
    assert one.gauges() == moved
    assert reader.gauges() == {"replay.added": 0.0, "replay.drawn": 0.0, **moved}
    reader.wait(2)
    reader.sample(7)
    moved |= {"replay.taken": 1.0, "replay.depth": 0.0}
    assert reader.gauges() == {"replay.added": 2.0, "replay.drawn": 7.0, **moved}
    assert replay().gauges() == {"replay.added": 0.0, "replay.drawn": 0.0}


def test_a_team_lays_it_out_for_the_rows_of_its_agent():
    teams = seats(actor=2, learner=1)
    env = make_env("CartPole-v1", 2)
    agent = teams[0].agent(covey.DQN, env, covey.DQN.Config(hidden=(4,)))
    unroll = covey.Collector(env, agent, 20).collect(0)
    one, two, reader = (team.replay("replay", agent, capacity=50) for team in teams)
    num = one.add(agent.rows(unroll))
    two.add(agent.rows(unroll))
    reader.wait(2 * num)
    assert (num > 0, len(reader), reader.capacity) == (True, min(50, 2 * num), 50)
    assert reader.sample(3)["obs"].shape == (3, 4)
    env.close()


def test_a_team_needs_the_agent_to_lay_it_out_and_one_process_does_not():
    with pytest.raises(UserError) as caught:
        seats(actor=1, learner=1)[0].replay("rows")
    assert str(caught.value) == (
        "team.replay('rows', agent) needs the agent: rows of its form cross processes."
    )
    assert Team(1).replay("rows").add(rows(1)) == 1
