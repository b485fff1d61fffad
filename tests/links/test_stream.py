"""Each item to one reader, in order, none lost, none doubled, however full it is."""

import os
import random
import signal
import time

import numpy as np
import pytest
from apart import KILLED, Deadly, all_end, apart, dies, end, full_of, kill, start, whole
from seats import seats, successor, together

from covey.errors import Stopped, UserError
from covey.memory.block import Block, Word
from covey.team import Team

FIELDS = {"x": ((3,), "f4"), "n": ((), "i8")}
WIDE = {"a": ((20_000,), "i8"), "b": ((20_000,), "i8")}


def item(number):
    return {"x": np.full(3, number, np.float32), "n": np.array(number)}


def wide(number):
    return {"a": full_of(number, 20_000), "b": full_of(number, 20_000)}


def streams(actor=2, learner=1, fields=FIELDS, **more):
    """Those of the actors, then those of the learners."""
    return [team.stream("rows", fields, **more) for team in seats(actor=actor, learner=learner)]


def taken(found):
    assert (found.values["x"] == found.values["n"]).all()
    return int(found.values["n"]), found.writer


def account(stream):
    found = stream.written, stream.taken, stream.depth, stream.dropped
    assert found[0] == sum(found[1:])
    return found


def test_items_of_a_writer_come_in_order_and_writers_take_turns():
    one, two, reader = streams(slots=3)
    for number in range(3):
        one.put(item(number))
    two.put(item(10))
    two.put(item(11))
    assert [taken(reader.take()) for _ in range(5)] == [(0, 0), (10, 1), (1, 0), (11, 1), (2, 0)]
    assert reader.take_now() is None
    assert account(reader) == account(one) == (5, 5, 0, 0)


def test_each_item_goes_to_one_reader():
    *writers, first, second = streams(actor=5, learner=2, slots=4)
    for number, writer in enumerate(4 * writers):
        writer.put(item(number))
    found = [
        [taken(reader.take()) for _ in range(num)] for reader, num in ((first, 12), (second, 8))
    ]
    assert first.take_now() is second.take_now() is None
    assert [{writer for _, writer in of} for of in found] == [{0, 2, 4}, {1, 3}]
    assert sorted(number for of in found for number, _ in of) == list(range(20))


def test_an_item_stands_until_the_next_is_taken():
    writer, _, reader = streams(slots=2)
    writer.put(item(1))
    writer.put(item(2))
    found = reader.take()
    assert account(reader) == (2, 0, 2, 0)
    with pytest.raises(UserError, match="room in 'rows'"):
        writer.put(item(3), seconds=0.01)
    assert taken(found) == (1, 0)
    assert taken(reader.take()) == (2, 0)
    assert account(reader) == (2, 1, 1, 0)
    reader.give_back()
    reader.give_back()
    assert account(reader) == (2, 2, 0, 0)
    writer.put(item(3))


def test_a_full_stream_holds_up_its_writer_alone_and_says_whom_it_waits_for():
    one, two, _ = streams(slots=2)
    for number in range(2):
        one.put(item(number))
    with pytest.raises(UserError) as caught:
        one.put(item(2), seconds=0.01)
    assert str(caught.value) == (
        "waited 0.01 s for room in 'rows'; absent: learner 0, who takes from it."
    )
    two.put(item(3))
    assert account(one) == (3, 0, 3, 0)


def test_the_reader_that_is_absent_is_named():
    *writers, _, _ = streams(actor=2, learner=2, slots=1)
    for index, writer in enumerate(writers):
        writer.put(item(0))
        with pytest.raises(UserError, match=f"absent: learner {index}, who takes"):
            writer.put(item(1), seconds=0.01)


def test_waiting_in_vain_for_an_item_names_the_writers():
    *_, first, second = streams(actor=3, learner=2)
    with pytest.raises(UserError) as caught:
        first.take(seconds=0.01)
    assert str(caught.value) == "waited 0.01 s for an item of 'rows'; absent: actor 0, actor 2."
    with pytest.raises(UserError, match=r"absent: actor 1\."):
        second.take(seconds=0.01)


def test_both_ends_wake_each_other():
    writer, _, reader = streams(slots=1)

    def put():
        for number in range(200):
            writer.put(item(number))

    def take():
        return [taken(reader.take())[0] for _ in range(200)]

    assert together(put, take)[1] == list(range(200))


def test_whoever_may_go_on_is_rung_and_nobody_else():
    teams = seats(actor=2, learner=2)
    links = [team.stream("rows", FIELDS, slots=1) for team in teams]
    word_N = teams[0]._blocks["roster"]["bells.word"][:, 0]

    def rung(action):
        word_N[:] = 0
        action()
        return np.flatnonzero(word_N).tolist()

    assert rung(lambda: links[1].put(item(1))) == [3]
    assert rung(links[3].take) == []
    assert rung(links[3].give_back) == [1]


def test_both_ends_stop_waiting_when_all_stop():
    actor, learner = seats(actor=1, learner=1)
    writer, reader = (team.stream("rows", FIELDS, slots=1) for team in (actor, learner))
    actor.stop("enough")
    with pytest.raises(Stopped, match="enough"):
        reader.take()
    writer.put(item(1))  # there is room: nothing to wait for
    with pytest.raises(Stopped, match="enough"):
        writer.put(item(2))
    assert taken(reader.take()) == (1, 0)  # it is there
    with pytest.raises(Stopped, match="enough"):
        reader.take()
    assert account(reader) == (1, 1, 0, 0)


def test_when_full_the_oldest_may_be_dropped_and_counted():
    writer, _, reader = streams(slots=3, when_full="drop")
    for number in range(10):
        writer.put(item(number))
    assert account(writer) == (10, 0, 3, 7)
    assert [taken(reader.take())[0] for _ in range(3)] == [7, 8, 9]
    assert reader.take_now() is None
    assert account(reader) == (10, 3, 0, 7)


def test_what_was_taken_stands_while_newer_items_replace_it():
    writer, _, reader = streams(slots=1, when_full="drop")
    writer.put(item(0))
    found = reader.take()
    for number in range(1, 9):
        writer.put(item(number))
    assert taken(found) == (0, 0)
    assert taken(reader.take()) == (8, 0)
    reader.give_back()
    assert account(reader) == (9, 2, 0, 7)


@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_it_is_bounded_however_much_is_put(when_full):
    writer, _, reader = streams(slots=4, when_full=when_full)
    deepest = 0
    for number in range(500):
        if when_full == "drop" or writer.depth < 4:
            writer.put(item(number))
        deepest = max(deepest, writer.depth)
        if number % 7 == 0:
            reader.take()
    assert deepest == 4
    account(reader)


def test_gauges_are_the_account():
    writer, _, reader = streams(slots=2, when_full="drop")
    for number in range(5):
        writer.put(item(number))
    reader.take()
    reader.take()
    told = {"rows.written": 5.0, "rows.taken": 1.0, "rows.depth": 1.0, "rows.dropped": 3.0}
    assert reader.gauges() == writer.gauges() == told


def test_alone_there_is_nobody_to_wait_for():
    stream = Team(1).stream("rows", FIELDS, slots=2)
    assert stream.take() is None
    stream.put(item(1))
    stream.put(item(2))
    with pytest.raises(UserError) as caught:
        stream.put(item(3))
    assert str(caught.value) == (
        "'rows' is full (2 items) and this very member takes from it: take before putting more, "
        "or give it more slots."
    )
    assert [taken(stream.take()) for _ in range(2)] == [(1, 0), (2, 0)]
    assert stream.take() is None
    assert account(stream) == (2, 2, 0, 0)


def test_a_member_may_write_to_itself_and_is_told_when_it_cannot():
    (team,) = seats(worker=1)
    stream = team.stream("rows", FIELDS, slots=1, writers="worker", readers="worker")
    stream.put(item(1))
    with pytest.raises(UserError, match="this very member takes from it"):
        stream.put(item(2))
    assert taken(stream.take()) == (1, 0)


def test_when_full_has_two_meanings():
    with pytest.raises(UserError, match=r"when_full='block' is unknown\. Known: wait, drop\."):
        Team(1).stream("rows", FIELDS, when_full="block")


def test_more_readers_than_writers_are_refused():
    team, *_ = seats(actor=1, learner=2)
    with pytest.raises(UserError) as caught:
        team.stream("rows", FIELDS)
    assert str(caught.value) == (
        "'rows' has 2 readers and 1 writers; each reader needs a writer of its own."
    )


@pytest.mark.parametrize(("slots", "fields"), [(0, FIELDS), (-1, FIELDS), (2, {})])
def test_without_room_or_fields_it_is_refused(slots, fields):
    with pytest.raises(UserError, match="'rows' needs at least one slot, and items of at least"):
        Team(1).stream("rows", fields, slots)


@pytest.mark.parametrize(("role", "change"), [("actors", "writers"), ("learners", "readers")])
def test_a_role_that_nobody_plays_is_refused(role, change):
    team, *_ = seats(actor=1, learner=1)
    with pytest.raises(UserError) as caught:
        team.stream("rows", FIELDS, **{change: role})
    assert str(caught.value) == (
        f"nobody in this team is {role}; its roles are actor, learner. Start it with {role}=1, "
        "or name another role."
    )


def test_who_is_neither_writer_nor_reader_is_told_so():
    writer, other, reader = streams(actor=2, learner=1)
    with pytest.raises(UserError) as caught:
        reader.put(item(1))
    assert str(caught.value) == "'rows' is written by actor 0, actor 1, not by this member."
    for stream in (writer, other):
        with pytest.raises(UserError, match="'rows' is read by learner 0, not by this member"):
            stream.take()


def test_another_form_is_refused_at_the_writer_and_nothing_is_put():
    writer, _, reader = streams()
    with pytest.raises(UserError, match=r"^rows: 'x' holds float32\[3\] but was given float64"):
        writer.put({**item(1), "x": np.zeros(3)})
    with pytest.raises(UserError, match=r"^rows: 'n' holds int64\[\] but was given nothing"):
        writer.put({"x": np.zeros(3, np.float32)})
    assert account(reader) == (0, 0, 0, 0)


def killed_puts(accesses, when_full):
    """A writer dies at its n-th look at the item; its successor puts the next."""
    actor, learner = seats(actor=1, learner=1)
    reader = learner.stream("rows", FIELDS, slots=2, when_full=when_full)
    for at in range(1, accesses + 1):
        writer = actor.stream("rows", FIELDS, slots=2, when_full=when_full)
        assert dies(writer.put, Deadly(item(99), at)) == KILLED
        actor = successor(actor)
    writer = actor.stream("rows", FIELDS, slots=2, when_full=when_full)
    writer.put(item(1))
    assert taken(reader.take()) == (1, 0)
    reader.give_back()
    return account(writer)


@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_an_item_whose_writer_died_half_way_was_never_put(when_full):
    assert apart(killed_puts, 4, when_full) == [1, 1, 0, 0]


def test_what_a_reader_was_not_done_with_goes_to_its_successor():
    actor, learner = seats(actor=1, learner=1)
    writer = actor.stream("rows", FIELDS, slots=4)
    for number in range(3):
        writer.put(item(number))
    reader = learner.stream("rows", FIELDS, slots=4)
    assert [taken(reader.take())[0] for _ in range(2)] == [0, 1]
    later = successor(learner).stream("rows", FIELDS, slots=4)
    assert [taken(later.take())[0] for _ in range(2)] == [1, 2]


def writers_killed_often(times, when_full):
    """Three writers and two readers; any writer dies at any time."""
    teams, rng = seats(actor=3, learner=2), random.Random(4)
    links = [team.stream("rows", WIDE, slots=2, when_full=when_full) for team in teams]
    seen = [[] for _ in range(3)]

    def write(index):
        ring = links[index]._rings[index]
        while True:  # each writer numbers its items, over all its generations
            links[index].put(wide(3 * ring.written + index))

    def read(reader):
        while (found := reader.take_now()) is not None:
            number = whole(found.values["a"])
            assert whole(found.values["b"]) == number
            assert number % 3 == found.writer
            seen[found.writer].append(number // 3)

    pids = [start(write, index) for index in range(3)]
    for _ in range(times):
        until = time.monotonic() + rng.uniform(0.001, 0.008)
        while time.monotonic() < until:
            read(links[3])
            read(links[4])
        victim = rng.randrange(3)
        kill(pids[victim])
        pids[victim] = start(write, victim)
    for pid in pids:
        kill(pid)
    read(links[3])
    read(links[4])
    written = [ring.written for ring in links[0]._rings]
    if when_full == "wait":
        assert seen == [list(range(num)) for num in written]
    assert seen == [sorted(set(of)) for of in seen]
    assert account(links[0]) == (sum(written), sum(map(len, seen)), 0, links[0].dropped)
    return sum(written), links[0].dropped


@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_nothing_is_lost_or_doubled_while_writers_are_killed(when_full):
    written, dropped = apart(writers_killed_often, 60, when_full)
    assert written > 100
    assert when_full == "drop" or dropped == 0


def a_reader_killed_often(times, items):
    """The reader dies at any time; what it was not done with is taken once more."""
    actor, learner = seats(actor=1, learner=1)
    writer, rng = actor.stream("rows", WIDE, slots=3), random.Random(6)
    block = Block({"seen": ((items,), "i8"), "done": ((8,), "i8")})
    done = Word(block["done"])

    def write():
        for number in range(items):
            writer.put(wide(number))

    def read(team):
        reader = team.stream("rows", WIDE, slots=3)
        while done.value < items:
            number = whole(reader.take().values["a"])
            block["seen"][number] += 1
            done.value = number + 1
        reader.give_back()

    learner.stream("rows", WIDE, slots=3)
    pids, deaths = [start(write), start(read, learner)], 0
    while deaths < times and done.value < items:
        time.sleep(rng.uniform(0.001, 0.005))
        os.kill(pids[1], signal.SIGKILL)
        assert end(pids[1]) in (KILLED, 0)  # it may just have read the last one
        learner, deaths = successor(learner), deaths + 1
        pids[1] = start(read, learner)
    all_end(pids)
    seen = block["seen"].tolist()
    assert min(seen) >= 1
    assert sum(seen) - items <= deaths
    return account(writer)


def test_nothing_is_lost_while_the_reader_is_killed_and_what_it_held_is_seen_again():
    assert apart(a_reader_killed_often, 40, 600) == [600, 600, 0, 0]
