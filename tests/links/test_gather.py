"""One item of every member a round, in rank order, whatever its form."""

import random
import time
from functools import partial

import numpy as np
import pytest
from apart import KILLED, DeadlyWord, all_end, apart, dies, full_of, kill, start, whole
from seats import seats, successor, together

from covey.errors import Stopped, UserError
from covey.links.gather import PLACES, SMALLEST
from covey.memory.block import Block, Word
from covey.team import Team

RECORD = np.dtype([("x", np.float32, (2,)), ("n", np.int64)])


def gathers(num=3, everyone=True):
    return [team.gather("g", everyone) for team in seats(worker=num)]


def turn(links, items):
    """What each member got in one round."""
    return together(*[partial(link, item) for link, item in zip(links, items, strict=True)])


def same(found, given):
    assert found.keys() == given.keys()
    for key, value in given.items():
        wanted = np.asarray(value)
        assert (found[key].dtype, found[key].shape) == (wanted.dtype, wanted.shape)
        assert found[key].tobytes() == wanted.tobytes()


def test_everybody_gets_all_items_in_rank_order():
    links = gathers(4)
    for number in range(5):
        given = [{"n": np.array([number, rank])} for rank in range(4)]
        for found in turn(links, given):
            assert [item["n"].tolist() for item in found] == [[number, rank] for rank in range(4)]


def test_rank_0_alone_gets_them_if_not_everyone_shall():
    links = gathers(3, everyone=False)
    for number in range(7):
        first, *others = turn(links, [{"n": np.array(number + rank)} for rank in range(3)])
        assert [int(item["n"]) for item in first] == [number, number + 1, number + 2]
        assert others == [None, None]


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"": np.arange(3), "two words": np.arange(2), "version": np.array(1)},
        {"number": 3, "float": 2.5, "flag": True, "list": [1, 2, 3]},
        {"text": "wörter", "texts": np.array(["a", "bcd"]), "bytes": b"\0\1"},
        {"none": np.zeros((0, 4), np.float32), "empty": np.zeros((3, 0), "?")},
        {name: np.arange(7).astype(name) for name in ("?", "i1", "u2", "f2", "f8", "c16", ">i4")},
        {"when": np.array(["2020-01-01"], "datetime64[D]")},
        {"record": np.zeros(4, RECORD), "one": np.ones((), RECORD)},
        {"turned": np.arange(12).reshape(3, 4).T, "step": np.arange(12)[::3]},
    ],
    ids=lambda item: ",".join(item),
)
def test_any_dtype_and_shape_comes_through(item):
    links = gathers(2)
    for found in turn(links, [item, {"other": np.arange(5)}]):
        same(found[0], item)
        same(found[1], {"other": np.arange(5)})


def test_items_may_be_ragged_and_of_another_form_each_round():
    links, rng = gathers(3), np.random.default_rng(1)
    for number in range(12):
        sizes = rng.integers(0, 40_000, 3)
        given = [{f"of {number}": rng.normal(size=size)} for size in sizes]
        for found in turn(links, given):
            for got, wanted in zip(found, given, strict=True):
                same(got, wanted)


def test_memory_grows_with_the_items_and_no_further():
    links = gathers(1)
    for size in (1, 100_000, 10, 1_000_000, 10):
        for _ in range(2 * PLACES):
            same(links[0]({"x": np.arange(size)})[0], {"x": np.arange(size)})
    held = [len(place._bytes) for place in links[0]._places.values()]
    assert held == [2**23] * PLACES
    small = gathers(1)[0]
    for _ in range(100):
        small({"x": np.arange(10)})
    assert [len(place._bytes) for place in small._places.values()] == [SMALLEST] * PLACES


def test_what_was_gathered_stands_until_the_next_call_and_nobody_writes_it():
    one, two = gathers(2)
    kept = turn([one, two], [{"n": np.array([1])}, {"n": np.array([2])}])[0]
    with pytest.raises(ValueError, match="read-only"):
        kept[1]["n"] += 1

    def ahead():  # gives its next item while the other still reads this round
        return two({"n": np.array([4])})

    def behind():
        time.sleep(0.05)
        assert [item["n"].tolist() for item in kept] == [[1], [2]]
        return one({"n": np.array([3])})

    for found in together(ahead, behind):
        assert [item["n"].tolist() for item in found] == [[3], [4]]


def test_who_is_ahead_waits_for_a_reader_that_is_behind():
    _, one, two = gathers(3, everyone=False)
    for number in range(PLACES):
        assert one({"n": number}) is None
        assert two({"n": number}) is None
    with pytest.raises(UserError) as caught:
        one({"n": 9}, seconds=0.01)
    assert str(caught.value) == "waited 0.01 s for room in 'g' for round 3; absent: worker 0."


def test_a_reader_that_is_behind_gets_each_round_as_it_was_given():
    first, one = gathers(2, everyone=False)

    def give():
        for number in range(100):
            one({"n": number})

    def take():
        return [int(first({"n": 0})[1]["n"]) for _ in range(100)]

    assert together(give, take)[1] == list(range(100))


def test_waiting_in_vain_names_who_is_absent():
    _, one, _, three = gathers(4)
    with pytest.raises(UserError):
        three({}, seconds=0.01)
    with pytest.raises(UserError) as caught:
        one({}, seconds=0.01)
    assert str(caught.value) == "waited 0.01 s for round 1 of 'g'; absent: worker 0, worker 2."


def test_waiting_ends_when_all_stop():
    one, two = seats(worker=2)
    link = one.gather("g")
    with pytest.raises(Stopped, match="enough"):
        together(lambda: link({}), lambda: two.stop("enough"))


@pytest.mark.parametrize("everyone", [True, False])
def test_a_barrier_is_left_by_nobody_before_all_have_come(everyone):
    links, come, left = gathers(3, everyone), [], []

    def member(rank):
        for number in range(20):
            if rank == number % 3:
                time.sleep(0.001)
            come.append(number)
            links[rank].barrier()
            assert come.count(number) == 3
            left.append(number)

    together(*[partial(member, rank) for rank in range(3)])
    assert sorted(left) == sorted(come) == sorted(3 * list(range(20)))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_barrier_without_the_others_says_so(rank):
    links = gathers(2, everyone=False)
    with pytest.raises(UserError, match=rf"round 1 of 'g'; absent: worker {1 - rank}\."):
        links[rank].barrier(seconds=0.01)


def test_items_and_barriers_take_turns():
    links = gathers(2, everyone=False)

    def member(link):
        found = []
        for number in range(10):
            found.append(link({"n": number}))
            link.barrier()
        return found

    first, other = together(*[partial(member, link) for link in links])
    assert other == [None] * 10
    assert len(first) == 10


def test_objects_do_not_cross():
    (link,) = gathers(1)
    with pytest.raises(UserError) as caught:
        link({"what": np.array([None, {}])})
    assert str(caught.value) == "'what' holds Python objects; give numbers, records or bytes."
    padded = np.zeros(2, np.dtype([("a", "i1"), ("b", "i8")], align=True))
    with pytest.raises(UserError, match="'padded' holds padded or nested records"):
        link({"padded": padded})
    assert link.rounds == 0
    same(link({"x": 1})[0], {"x": 1})


def test_gauges_tell_the_rounds_and_how_far_the_last_is_behind():
    first, one = gathers(2, everyone=False)
    one({})
    one({})
    assert one.gauges() == {"g.rounds": 2.0, "g.lag": 2.0}
    assert first.gauges() == {"g.rounds": 0.0, "g.lag": 0.0}
    first({})
    assert one.gauges() == {"g.rounds": 2.0, "g.lag": 1.0}


def test_alone_it_gives_back_what_it_was_given():
    link = Team(1).gather("g")
    for number in range(5):
        (found,) = link({"n": np.full(1000 * number, number)})
        assert (found["n"] == number).all()
    link.barrier()
    assert link.rounds == 6


def test_a_successor_goes_on_with_the_round_that_is_due():
    one, two = seats(worker=2)
    links = [team.gather("g") for team in (one, two)]
    for number in range(3):
        turn(links, [{"n": number}, {"n": 10 + number}])
    links[1] = successor(two).gather("g")
    found, _ = turn(links, [{"n": 3}, {"n": 99}])
    assert [int(item["n"]) for item in found] == [3, 99]


def laid_out(teams):
    """Gathers whose memories are there before anybody forks."""
    links = [team.gather("g") for team in teams]
    for place in links[0]._places.values():
        place.at_least(1)
    return links


def killed_givers():
    """A member dies after it wrote its item, before it said so: its successor gives another."""
    one, two = seats(worker=2)
    links = laid_out([one, two])

    def give():
        class Unsaid(type(links[1]._round_N)):
            def __setitem__(self, key, value):
                DeadlyWord.left = 1
                DeadlyWord(Word(np.zeros(1, np.int64))).value = 0

        links[1]._round_N = links[1]._round_N.view(Unsaid)
        links[1]({"n": np.arange(100)})

    assert dies(give) == KILLED
    later = successor(two).gather("g")
    pid = start(later, {"n": np.arange(5)})
    found = links[0]({"n": np.arange(3)})
    all_end([pid])
    return [item["n"].tolist() for item in found]


def test_an_item_whose_giver_died_half_way_was_never_given():
    assert apart(killed_givers) == [[0, 1, 2], [0, 1, 2, 3, 4]]


def killed_often(times):
    """A member of three dies at any time; each round has one whole item of everybody."""
    teams, rng = seats(worker=3), random.Random(3)
    block = Block({"rounds": ((8,), "i8")})
    rounds = Word(block["rounds"])

    def member(team):
        link = team.gather("g")
        while True:
            size = 1000 + 1000 * (link.rounds % 7) + 10 * team.rank
            found = link({"n": full_of(link.rounds, size)})
            assert [whole(item["n"]) for item in found] == [link.rounds - 1] * 3
            assert [len(item["n"]) - size for item in found] == [
                10 * (rank - team.rank) for rank in range(3)
            ]
            if team.rank == 0:
                rounds.value = link.rounds

    laid_out(teams)
    pids = [start(member, team) for team in teams]
    for _ in range(times):
        time.sleep(rng.uniform(0.002, 0.008))
        victim = rng.randrange(3)
        kill(pids[victim])
        teams[victim] = successor(teams[victim])
        pids[victim] = start(member, teams[victim])
    before, deadline = rounds.value, time.monotonic() + 20
    while rounds.value < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for pid in pids:
        kill(pid)
    return rounds.value


def test_every_round_is_whole_while_members_are_killed():
    assert apart(killed_often, 40) > 40
