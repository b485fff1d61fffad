"""A bounded queue that survives the death of either end."""

import os
import random
import time

import numpy as np
import pytest
from apart import (
    KILLED,
    Deadly,
    DeadlyWord,
    all_end,
    apart,
    dies,
    end,
    full_of,
    kill,
    start,
    whole,
)  # fmt: skip

from covey.errors import UserError
from covey.memory.block import Block
from covey.memory.ring import Ring, layout

FIELDS = {"x": ((3,), "f4"), "n": ((), "i8")}
WIDE = {"a": ((40_000,), "i8"), "b": ((40_000,), "i8")}  # copied for long enough to be killed in


def make(fields=FIELDS, slots=4, lossy=False, rings=1):
    block = Block(layout(fields, slots, rings))
    return [Ring(block.arrays, number, "ring", lossy) for number in range(rings)]


def item(number):
    return {"x": np.full(3, number, np.float32), "n": np.array(number)}


def wide(number):
    return {"a": full_of(number, 40_000), "b": full_of(number, 40_000)}


def account(ring):
    return ring.written, ring.taken, ring.depth, ring.dropped


def take(ring):
    got = ring.first()
    number = int(got["n"])
    assert got["x"].tolist() == [number] * 3
    ring.done()
    return number


def test_items_come_out_in_order_and_a_full_ring_says_so():
    (ring,) = make()
    assert ring.first() is None
    for number in range(4):
        assert not ring.full
        ring.put(item(number))
    assert ring.full
    assert account(ring) == (4, 0, 4, 0)
    with pytest.raises(AssertionError):
        ring.put(item(9))
    assert [take(ring) for _ in range(2)] == [0, 1]
    assert not ring.full
    assert account(ring) == (4, 2, 2, 0)


def test_an_item_stands_until_it_is_done():
    (ring,) = make()
    for number in range(4):
        ring.put(item(number))
    first = ring.first()
    assert ring.first()["n"] == first["n"] == 0
    assert ring.full
    ring.done()
    ring.put(item(4))
    assert first["n"] == 4  # a view: its slot has been given back


@pytest.mark.parametrize("slots", [1, 2, 3, 7])
def test_any_order_of_puts_and_takes_is_a_queue(slots):
    (ring,), rng, wanted, put = make(slots=slots), random.Random(slots), [], 0
    for _ in range(500):
        if rng.random() < 0.5 and not ring.full:
            ring.put(item(put))
            wanted.append(put)
            put += 1
        elif wanted:
            assert take(ring) == wanted.pop(0)
        assert account(ring) == (put, put - len(wanted), len(wanted), 0)
        assert ring.full == (len(wanted) == slots)


def test_rings_of_one_block_are_apart():
    one, two = make(rings=2)
    one.put(item(1))
    two.put(item(2))
    two.put(item(3))
    assert (take(one), take(two), one.depth, two.depth) == (1, 2, 0, 1)


def test_a_field_may_have_any_name():
    fields = {name: ((2,), "f4") for name in ("head", "tail", "dropped", "item.x", "")}
    (ring,) = make(fields)
    given = {name: np.full(2, i, np.float32) for i, name in enumerate(fields)}
    ring.put(given)
    got = ring.first()
    assert {name: value.tolist() for name, value in got.items()} == {
        name: value.tolist() for name, value in given.items()
    }
    assert account(ring) == (1, 0, 1, 0)


def test_another_form_is_refused_at_the_writer_and_nothing_is_put():
    (ring,) = make()
    with pytest.raises(
        UserError, match=r"^ring: 'x' holds float32\[3\] but was given float32\[4\]"
    ):
        ring.put({**item(1), "x": np.zeros(4, np.float32)})
    with pytest.raises(UserError, match="'n' holds int64"):
        ring.put({**item(1), "n": np.array(1.0)})
    assert account(ring) == (0, 0, 0, 0)


def test_a_lossy_ring_keeps_the_newest():
    (ring,) = make(slots=4, lossy=True)
    for number in range(10):
        ring.put(item(number))
    assert not ring.full
    assert account(ring) == (10, 0, 3, 7)
    assert [take(ring) for _ in range(3)] == [7, 8, 9]
    assert ring.first() is None
    assert account(ring) == (10, 3, 0, 7)


@pytest.mark.parametrize("slots", [2, 3, 6])
def test_a_lossy_ring_accounts_for_everything(slots):
    (ring,), rng, kept, put, taken = make(slots=slots, lossy=True), random.Random(slots), [], 0, 0
    for _ in range(1000):
        if rng.random() < 0.6:
            ring.put(item(put))
            kept = [*kept, put][-(slots - 1) :]
            put += 1
        elif kept:
            assert take(ring) == kept.pop(0)
            taken += 1
        assert account(ring) == (put, taken, len(kept), put - taken - len(kept))


def test_what_was_taken_from_a_lossy_ring_is_a_copy():
    (ring,) = make(slots=2, lossy=True)
    ring.put(item(0))
    got = ring.first()
    for number in range(1, 5):
        ring.put(item(number))
    assert got["n"] == 0
    ring.done()
    assert account(ring) == (5, 1, 1, 3)
    assert take(ring) == 4


def unannounced(ring, item):
    ring._head, DeadlyWord.left = DeadlyWord(ring._head), 1
    ring.put(item)


def killed_puts(accesses):
    """The writer dies at its n-th look at the item; its successor goes on."""
    (ring,) = make(slots=3)
    ring.put(item(0))
    for at in range(1, accesses + 1):
        assert dies(ring.put, Deadly(item(99), at)) == KILLED
        assert account(ring) == (1, 0, 1, 0)
    assert dies(unannounced, ring, item(99)) == KILLED
    assert account(ring) == (1, 0, 1, 0)
    assert dies(ring.put, Deadly(item(1), accesses + 1)) == 0
    assert account(ring) == (2, 0, 2, 0)
    ring.put(item(2))
    return [take(ring) for _ in range(3)]


def test_what_a_killed_writer_had_half_put_was_never_there():
    assert apart(killed_puts, 6) == [0, 1, 2]


def killed_often(times, lossy):
    """Writers are killed at any time, each successor goes on where its predecessor was."""
    (ring,), rng = make(WIDE, slots=3, lossy=lossy), random.Random(2)

    def write():
        while True:
            if not ring.full:
                ring.put(wide(ring.written))

    seen = []

    def read():
        while (got := ring.first()) is not None:
            number = whole(got["a"])
            assert whole(got["b"]) == number
            seen.append(number)
            ring.done()

    for _ in range(times):
        pid = start(write)
        until = time.monotonic() + rng.uniform(0.001, 0.008)
        while time.monotonic() < until:
            read()
        kill(pid)
        written, taken, depth, dropped = account(ring)
        assert written == taken + depth + dropped
    read()
    assert seen == sorted(set(seen))
    assert account(ring) == (ring.written, len(seen), 0, ring.written - len(seen))
    return ring.written, ring.dropped


def test_nothing_is_lost_doubled_or_torn_while_writers_are_killed():
    written, dropped = apart(killed_often, 60, False)
    assert written > 60
    assert dropped == 0


def test_a_lossy_ring_says_what_it_lost_while_writers_are_killed():
    written, _ = apart(killed_often, 60, True)
    assert written > 60


def killed_readers():
    """What a killed reader held but was not done with is there for its successor."""
    (ring,) = make()
    for number in range(4):
        ring.put(item(number))

    def die(after):
        for _ in range(after):
            take(ring)
        ring.first()
        os._exit(7)

    assert dies(die, 2) == 7
    assert account(ring) == (4, 2, 2, 0)
    return [take(ring) for _ in range(2)]


def test_a_successor_reads_what_its_predecessor_was_not_done_with():
    assert apart(killed_readers) == [2, 3]


def killed_skips(stores):
    """A reader of a lossy ring is killed before each store of its account."""
    found = []
    for at in range(1, stores + 1):
        (ring,) = make(slots=3, lossy=True)
        for number in range(4):
            ring.put(item(number))
        take(ring)  # skips 0 and 1, takes 2
        for number in range(4, 9):
            ring.put(item(number))

        def skip(ring=ring, at=at):
            ring._tail = DeadlyWord(ring._tail)
            ring._drops = [tuple(map(DeadlyWord, pair)) for pair in ring._drops]
            DeadlyWord.left = at
            ring.first()

        assert dies(skip) == KILLED
        assert account(ring) == (9, 1, 2, 6)
        ring.put(item(9))
        assert account(ring) == (10, 1, 2, 7)
        assert (take(ring), take(ring)) == (8, 9)
        found.append(account(ring))
    return found


def test_the_account_holds_wherever_a_reader_of_a_lossy_ring_is_killed():
    assert apart(killed_skips, 3) == [[10, 3, 0, 7]] * 3


def race(items, lossy):
    (ring,) = make(WIDE, slots=3, lossy=lossy)

    def write():
        for number in range(items):
            while ring.full:
                pass
            ring.put(wide(number))

    pid, seen = start(write), []
    while ring.written < items or ring.depth:
        got = ring.first()
        if got is not None:
            number = whole(got["a"])
            assert whole(got["b"]) == number
            seen.append(number)
            ring.done()
    all_end([pid])
    assert seen == sorted(set(seen))
    assert account(ring) == (items, len(seen), 0, items - len(seen))
    return len(seen)


def test_a_writer_and_a_reader_at_full_speed():
    assert apart(race, 1000, False) == 1000


def test_a_writer_that_overtakes_its_reader_is_never_read_torn():
    assert 0 < apart(race, 2000, True) <= 2000


def test_end_of_a_process_that_ended_well():
    assert apart(ended_well) == [0, 3]


def ended_well():
    return [dies(lambda: None), end(start(lambda: 1 / 0))]
