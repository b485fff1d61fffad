"""What one role shares all others read, the newest of it."""

import random
import time

import numpy as np
import pytest
from apart import apart, kill, start
from seats import seats, successor

from covey.errors import UserError
from covey.links.shared import ROOM, Shared, layout
from covey.memory.block import Block


def members(num=3):
    block = Block(layout(num))
    return [Shared(block.arrays, rank) for rank in range(num)]


def test_what_one_shares_the_others_read_once_they_take_it_in():
    one, two, three = members()
    one.publish(loss=0.5, name="first")
    assert (one.loss, one.name) == (0.5, "first")
    assert two.get("loss") is None
    for other in (two, three):
        other.refresh()
        assert (other.loss, other.name) == (0.5, "first")


def test_the_newest_wins_whoever_shared_it():
    one, two, three = members()
    for number, who in enumerate((one, two, one, two, two, one)):
        who.publish(best=number)
        three.refresh()
        assert three.best == number
    two.refresh()
    one.refresh()
    assert (one.best, two.best) == (5, 5)


def test_values_of_different_members_stand_beside_each_other():
    one, two, three = members()
    one.publish(a=1)
    two.publish(b=2)
    one.publish(c=3)
    three.refresh()
    assert (three.a, three.b, three.c) == (1, 2, 3)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (None, None),
        (True, True),
        (2**62, 2**62),
        (0.1, 0.1),
        ("wörter", "wörter"),
        ([1, [2.5, "x"]], [1, [2.5, "x"]]),
        ({"a": {"b": [1]}}, {"a": {"b": [1]}}),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        ({"a": np.float64(0.25)}, {"a": 0.25}),
    ],
    ids=str,
)
def test_plain_values_come_through(value, read):
    one, two = members(2)
    one.publish(value=value)
    two.refresh()
    assert two.value == read
    assert type(two.value) is type(read)


@pytest.mark.parametrize(
    "value", [np.zeros(3), object(), {1, 2}, b"bytes"], ids=lambda v: str(type(v))
)
def test_what_is_not_plain_is_refused_and_leaves_nothing_behind(value):
    one, two = members(2)
    one.publish(good=1)
    with pytest.raises(
        UserError, match=r"cannot share \['bad', 'good'\]: .* is not a number, text"
    ):
        one.publish(bad=value)
    assert one.get("bad") is None
    one.publish(good=2)
    two.refresh()
    assert (two.good, two.get("bad")) == (2, None)


def test_too_much_is_refused_in_a_sentence_and_leaves_nothing_behind():
    one, two = members(2)
    one.publish(good=1)
    with pytest.raises(UserError) as caught:
        one.publish(text="x" * ROOM)
    assert str(caught.value).startswith("the shared values take ")
    assert str(caught.value).endswith(f" bytes, more than {ROOM}; use team.latest.")
    one.publish(good=2)
    two.refresh()
    assert two.good == 2


def test_what_was_not_shared_is_said_with_what_to_do():
    (one,) = members(1)
    with pytest.raises(AttributeError) as caught:
        _ = one.loss
    assert str(caught.value) == (
        "ctx.shared.loss has not been shared yet. Declare it with task.share('loss') and write it "
        "as a ctx value in a step."
    )
    assert one.get("loss", 3) == 3


def test_a_process_alone_reads_what_it_shared():
    shared = Shared()
    shared.publish(a=1)
    shared.refresh()
    shared.publish(b=2)
    assert (shared.a, shared.b) == (1, 2)


def test_a_successor_goes_on_with_what_its_predecessor_shared():
    block = Block(layout(2))
    first, other = Shared(block.arrays, 0), Shared(block.arrays, 1)
    first.publish(a=1, b=2)
    later = Shared(block.arrays, 0)
    assert (later.a, later.b) == (1, 2)
    later.publish(b=3)
    other.refresh()
    assert (other.a, other.b) == (1, 3)


def test_steps_of_one_role_read_what_another_shared():
    actor, learner = seats(actor=1, learner=1)
    writing, reading, seen = learner.task(), actor.task(), []
    writing.share("found")
    writing.use(lambda ctx: setattr(ctx, "found", ctx.rounds), on="learner")
    reading.use(lambda ctx: seen.append(ctx.shared.get("found")), on="actor")
    reading.run(rounds=1)
    for rounds in range(2, 5):
        writing.run(rounds=rounds - 1)
        reading.run(rounds=rounds)
    assert seen == [None, 0, 1, 2]


def killed_often(times):
    """Who shares is killed at any time: others read whole sets, never older ones."""
    block, rng = Block(layout(2)), random.Random(9)
    reader = Shared(block.arrays, 1)

    def share():
        own = Shared(block.arrays, 0)
        number = own.get("number", 0)
        while True:
            number += 1
            own.publish(number=number, again=number, long=[number] * (number % 50))

    seen = [0]
    for _ in range(times):
        pid, before = start(share), seen[-1]
        until = time.monotonic() + rng.uniform(0.002, 0.006)
        while time.monotonic() < until or seen[-1] == before:
            assert time.monotonic() < until + 20, "nothing new"
            reader.refresh()
            number = reader.get("number", 0)
            assert reader.get("again", 0) == number
            assert reader.get("long", []) == [number] * (number % 50)
            seen.append(number)
        kill(pid)
    assert seen == sorted(seen)
    return len(set(seen))


def test_what_is_shared_is_whole_and_never_goes_back_while_its_writer_is_killed():
    assert apart(killed_often, 40) > 40


def test_successors_of_a_team_share_on():
    one, two = seats(worker=2)
    one._shared.publish(a=1)
    later = successor(one)
    later._shared.publish(b=2)
    two._shared.refresh()
    assert (two._shared.a, two._shared.b) == (1, 2)
