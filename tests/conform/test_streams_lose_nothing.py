"""Law 5: a stream loses nothing and doubles nothing, and its memory is bounded."""

import numpy as np
import pytest
from everywhere import Nemesis, slowly

SIZE, SLOTS, ITEMS, KILLS = 20_000, 3, 400, 25
FIELDS = {"a": ((SIZE,), "i8"), "b": ((SIZE,), "i8"), "n": ((), "i8")}


def item(number):
    return {"a": np.full(SIZE, number), "b": np.full(SIZE, number), "n": np.array(number)}


def check(found):
    number = int(found.values["n"])
    for key in "ab":
        assert found.values[key].min() == found.values[key].max() == number
    return number


def streaming(when_full):
    """Actors number their items and are killed at any time; learners check what comes."""

    def main(team):
        stream = team.stream("rows", FIELDS, SLOTS, when_full)
        taken, nemesis, task = team.count("taken"), Nemesis(team, KILLS, "actor"), team.task()
        seen, deepest = {rank: [] for rank in team.ranks("actor")}, 0

        def put(ctx):  # a writer numbers on where its predecessor was
            stream.put(item(stream._rings[stream._own].written))

        def take(ctx):
            found = stream.take()
            seen[found.writer].append(check(found))
            taken.add(1)

        def judge(ctx):
            nonlocal deepest
            nemesis.act()
            deepest = max(deepest, stream.depth)

        task.use(put, on="actor").use(judge, on="judge").use(take, on="learner")
        if team.plays("actor"):
            nemesis.live()
        until = (lambda ctx: nemesis.over and taken.total >= ITEMS) if team.plays("judge") else None
        task.run(until=until)
        stream.give_back()
        if team.plays("judge"):
            team.await_others(20)
        account = [stream.written, stream.taken, stream.depth, stream.dropped]
        return {"seen": list(seen.values()), "deepest": deepest, "account": account}

    return main


@slowly
@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_what_was_put_is_taken_once_and_in_order_while_writers_are_killed(everywhere, when_full):
    found = everywhere.light(streaming(when_full), actor=3, learner=2, judge=1)
    readers, judge = found[-3:-1] or found, found[-1]
    written, taken, depth, dropped = judge["account"]
    assert written == taken + depth + dropped
    assert taken == sum(len(numbers) for of in readers for numbers in of["seen"]) >= ITEMS
    assert max(depth, judge["deepest"]) <= SLOTS * (3 if len(found) > 1 else 1)
    by_writer = [numbers for of in readers for numbers in of["seen"] if numbers]
    assert len(by_writer) == (3 if len(found) > 1 else 1)  # each writer has one reader
    if when_full == "wait":
        assert dropped == 0
        assert all(numbers == list(range(len(numbers))) for numbers in by_writer)
    assert all(numbers == sorted(set(numbers)) for numbers in by_writer)
