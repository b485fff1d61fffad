"""How many there were, exactly, whoever dies; a crossing is said once."""

import os
import random
import signal
import sys
import time

import pytest
from apart import KILLED, DeadlyWord, all_end, apart, dies, kill, start
from seats import seats, successor, together

from covey.errors import UserError
from covey.links.count import MOST_PERIODS
from covey.memory.block import Block, Word
from covey.team import Team


def counts(num=1, name="n"):
    return [team.count(name) for team in seats(worker=num)]


def test_adds_of_all_members_are_one_total():
    counted = counts(3)
    assert [c.total for c in counted] == [0, 0, 0]
    assert counted[0].add(5) == 5
    assert counted[2].add(2**40) == 2**40 + 5
    assert counted[0].add(1) == 2**40 + 6
    assert {c.total for c in counted} == {2**40 + 6}


def test_a_team_of_one_process_counts_too():
    count = Team(1).count("n")
    assert [count.add(3) for _ in range(4)] == [3, 6, 9, 12]
    assert [count.crossed(5), count.crossed(5)] == [True, False]


def test_counts_of_different_names_are_apart():
    (team,) = seats(worker=1)
    one, two = team.count("one"), team.count("two")
    one.add(1)
    assert (one.total, two.total, team.count("one").total) == (1, 0, 1)


def test_its_gauge_is_the_total():
    one, two = counts(2, "seen")
    one.add(4)
    assert two.gauges() == {"seen": 4.0}


@pytest.fixture
def restless():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_of_one_member_lose_nothing(restless):
    (count,) = counts()

    def add():
        for _ in range(20_000):
            count.add(1)

    together(add, add, add)
    assert count.total == 60_000


def test_a_crossing_is_said_once():
    (count,) = counts()
    said = []
    for _ in range(35):
        count.add(1)
        said.append((count.crossed(10), count.crossed(10)))
    assert [i + 1 for i, (first, _) in enumerate(said) if first] == [10, 20, 30]
    assert not any(second for _, second in said)


def test_a_crossing_is_said_to_one_member_whoever_asks_first():
    one, two = counts(2)
    one.add(7)
    two.add(7)
    assert [two.crossed(10), one.crossed(10), two.crossed(10)] == [True, False, False]
    one.add(6)
    assert [one.crossed(10), two.crossed(10)] == [True, False]


def test_boundaries_passed_at_once_are_one_crossing():
    (count,) = counts()
    count.add(99)
    assert [count.crossed(10), count.crossed(10)] == [True, False]
    count.add(1)
    assert count.crossed(10)


def test_periods_are_apart():
    one, two = counts(2)
    one.add(12)
    assert (one.crossed(3), two.crossed(4), two.crossed(3), one.crossed(4)) == (1, 1, 0, 0)
    two.add(3)
    assert (two.crossed(3), two.crossed(4)) == (True, False)


@pytest.mark.parametrize("every", [0, -5])
def test_every_none_is_never(every):
    (count,) = counts()
    count.add(100)
    assert not count.crossed(every)


def test_nothing_was_crossed_before_the_first():
    (count,) = counts()
    assert not count.crossed(10)
    count.add(9)
    assert not count.crossed(10)


def test_too_many_periods_are_refused_in_a_sentence():
    one, two = counts(2)
    for every in range(1, MOST_PERIODS + 1):
        one.crossed(every)
    with pytest.raises(UserError, match="a count announces at most 64 different periods"):
        two.crossed(1000)
    two.add(64)
    assert one.crossed(64)


def test_it_goes_on_from_a_saved_total():
    one, two = counts(2)
    two.crossed(10)  # asked before
    one.begin_at(1234)
    two.begin_at(1234)
    assert (one.total, two.total) == (1234, 1234)
    assert not one.crossed(10)
    assert not one.crossed(100)  # not asked before: what was saved had been announced
    assert one.add(6) == 1240
    assert (two.crossed(10), two.crossed(100)) == (True, False)
    one.add(60)
    assert two.crossed(100)


def test_a_total_that_is_further_stays():
    (count,) = counts()
    count.add(50)
    count.begin_at(20)
    assert count.total == 50
    assert count.crossed(30)
    count.begin_at(50)
    assert count.total == 50


def test_what_was_counted_in_the_meantime_counts_towards_a_saved_total():
    one, two = counts(2)
    one.add(5)
    two.begin_at(100)
    assert one.total == 100


def test_a_successor_goes_on():
    first, other = seats(worker=2)
    first.count("n").add(3)
    other.count("n").add(4)
    later = successor(first).count("n")
    assert later.add(1) == 8 == other.count("n").total


def deadly(count, at):
    """It dies before its `at`-th store."""
    count._own, DeadlyWord.left = DeadlyWord(count._own), at


def killed_add():
    (count,) = counts()
    count.add(7)

    def add():
        deadly(count, 1)
        count.add(1)

    assert dies(add) == KILLED
    assert count.total == 7
    return count.add(1)


def test_an_add_that_was_killed_was_not_or_was_whole():
    assert apart(killed_add) == 8


class DeadlyCells:
    """An array that kills whoever would store into it for the `at`-th time."""

    def __init__(self, array, at):
        self.array, self.left = array, at

    def __getitem__(self, key):
        return self.array[key]

    def __setitem__(self, key, value):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.array[key] = value


def killed_announcements():
    """Whoever announces is killed before that store: the next one announces."""
    one, two = counts(2)
    one.add(10)
    assert one.crossed(5)
    one.add(5)

    def announce():
        one._rows[5] = DeadlyWord(one._rows[5])
        DeadlyWord.left = 1
        one.crossed(5)

    assert dies(announce) == KILLED
    return [two.crossed(5), one.crossed(5), two.crossed(5)]


def test_who_is_killed_before_it_announced_has_said_nothing():
    assert apart(killed_announcements) == [True, False, False]


def killed_first_asks(stores):
    """Killed while it makes room for a new period."""
    found = []
    for at in range(1, stores + 1):
        one, two = counts(2)
        one.add(10)

        def ask(one=one, at=at):
            one._block.arrays["period"] = DeadlyCells(one._block["period"], at)
            one.crossed(5)

        assert dies(ask) == KILLED
        found.append([two.crossed(5), two.crossed(5), one.crossed(5)])
        one.add(3)
        assert two.crossed(13)  # a period of its own, wherever the other died
    return found


def test_who_is_killed_while_it_asks_for_the_first_time_has_said_nothing():
    assert apart(killed_first_asks, 2) == [[True, False, False]] * 2


def killed_beginnings():
    """A resuming member is killed before each of its stores; its successor begins again."""
    found = []
    for part, at in (("begun", 1), ("period", 1), ("cell", 1)):
        one, two = counts(2)
        one.add(3)
        one.crossed(10)

        def begin(one=one, part=part, at=at):
            if part == "cell":
                deadly(one, at)
            else:
                one._block.arrays[part] = DeadlyCells(one._block[part], at)
            one.begin_at(25)

        assert dies(begin) == KILLED
        assert two.total == 3
        two.begin_at(25)
        found.append([two.total, two.crossed(10), one.crossed(7)])
        one.add(5)
        found.append([one.crossed(10), two.crossed(7)])
    return found


def test_a_beginning_that_was_killed_is_begun_again():
    assert apart(killed_beginnings) == [[25, False, False], [True, True]] * 3


LOG = {name: ((4, 8), "i8") for name in ("begun", "ended", "said")}


def counting(counted, log, every, rank, adds=2**62):
    begun, ended, said = (Word(log[name][rank]) for name in LOG)
    for _ in range(adds):
        begun.value += 1
        counted[rank].add(1)
        ended.value += 1
        if counted[rank].crossed(every):
            said.value += 1


def killed_often(times, every):
    """Four members add and announce; any is killed at any time and replaced."""
    counted, log, rng = counts(4), Block(LOG), random.Random(5)
    pids = [start(counting, counted, log, every, rank) for rank in range(4)]
    totals = []
    for _ in range(times):
        until = time.monotonic() + rng.uniform(0.001, 0.008)
        while time.monotonic() < until:
            totals.append(counted[0].total)
        victim = rng.randrange(4)
        kill(pids[victim])
        counted_own = counted[victim]._own.value
        begun, ended = (int(log[name][victim, 0]) for name in ("begun", "ended"))
        assert ended <= counted_own <= begun <= ended + 1
        log["begun"][victim, 0] = log["ended"][victim, 0] = counted_own
        pids[victim] = start(counting, counted, log, every, victim)
    for pid in pids:
        kill(pid)
    assert totals == sorted(totals)
    return counted[0].total, int(log["said"].sum())


def test_counts_are_exact_while_members_are_killed_and_no_crossing_is_said_twice():
    total, said = apart(killed_often, 60, 10)
    assert total > 1000
    # a member that is killed after it announced has told nobody
    assert total // 10 - 60 <= said <= total // 10


def race(members, adds, every):
    counted, log = counts(members), Block(LOG)
    all_end([start(counting, counted, log, every, rank, adds) for rank in range(members)])
    return counted[0].total, log["said"][:, 0].tolist()


def test_every_crossing_is_said_exactly_once_while_all_count():
    total, said = apart(race, 4, 4000, 7)
    assert total == 16_000
    assert sum(said) == 16_000 // 7
    assert min(said) > 0  # to whoever crossed it, not always to the same
