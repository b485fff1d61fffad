"""Why everybody stops: said once, seen by all, for ever."""

import os
import random
import time
from signal import SIGKILL

import numpy as np
import pytest
from apart import KILLED, all_end, apart, dies, end, kill, start
from seats import seats, successor, together

from covey.errors import Stopped
from covey.links.signal import LONGEST, Flag, Signal, layout
from covey.memory.block import Block
from covey.team import Team


def signals(num=3):
    """Those of the members, then the launcher's."""
    block = Block(layout(num))
    return [Signal(block.arrays, rank) for rank in range(num + 1)]


def test_nobody_has_said_anything_at_first():
    assert [signal.reason for signal in signals()] == [None] * 4
    assert Flag().reason is None


@pytest.mark.parametrize("who", range(4))
def test_what_one_says_all_hear(who):
    said = signals()
    said[who].stop("solved")
    assert [signal.reason for signal in said] == ["solved"] * 4


def test_the_first_reason_stays():
    one, two, _, launcher = signals()
    two.stop("solved")
    launcher.stop("interrupted")
    one.stop("updates")
    two.stop("again")
    assert {one.reason, two.reason, launcher.reason} == {"solved"}


def test_who_hears_only_later_hears_the_first_too():
    one, two, late, launcher = signals()
    launcher.stop("interrupted")
    one.stop("updates")
    two.stop("updates")
    assert late.reason == "interrupted"


def heard_while_others_speak(seconds):
    block = Block(layout(200))
    launcher = Signal(block.arrays, 200)
    launcher.stop("first")
    when_N, later = block["when"][:200, 0], time.monotonic_ns() + 10**12

    def speak():
        rng = np.random.default_rng(0)
        while True:
            when_N[:] = later * rng.integers(2, size=200)

    pid, begun, heard = start(speak), time.monotonic(), set()
    while time.monotonic() - begun < seconds:
        heard.add(launcher._first())
    kill(pid)
    return sorted(heard)


def test_the_first_reason_is_heard_while_others_speak():
    assert apart(heard_while_others_speak, 0.5) == ["first"]


def test_the_launchers_reason_is_not_mixed_with_a_members():
    block = Block(layout(1))
    member, launcher = Signal(block.arrays, 0), Signal(block.arrays, 1)
    launcher.stop("interrupted")
    member.stop("x")
    assert [bytes(text).rstrip(b"\0") for text in block["text"]] == [b"x", b"interrupted"]


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("", ""),
        ("wörter", "wörter"),
        ("a" * 1000, "a" * (LONGEST - 1)),
        ("é" * 300, "é" * ((LONGEST - 1) // 2) + "\N{REPLACEMENT CHARACTER}"),
    ],
    ids=["empty", "letters", "long", "cut"],
)
def test_any_reason_is_heard_as_far_as_there_is_room(said, heard):
    one, other, *_ = signals()
    one.stop(said)
    assert other.reason == heard


@pytest.mark.parametrize("first", ["", "first"])
def test_a_process_alone_keeps_its_first_reason_too(first):
    flag = Flag()
    flag.stop(first)
    flag.stop("second")
    assert flag.reason == first


def test_a_team_of_one_process_stops_itself():
    team = Team(1)
    assert team.stopped is None
    team.stop("enough")
    assert team.stopped == "enough"
    assert team.task().run(rounds=5) == "enough"


def test_it_is_sticky_for_successors():
    one, two = seats(worker=2)
    two.stop("enough")
    assert successor(one).stopped == "enough"


def test_it_wakes_every_wait():
    teams = seats(worker=4)

    def wait(team):
        try:
            team.waits.until(lambda: False, lambda: "what never comes", seconds=30)
        except Stopped as stopped:
            return str(stopped)

    began = time.monotonic()
    waiting = [lambda team=team: wait(team) for team in teams[:3]]
    assert together(*waiting, lambda: teams[3].stop("enough")) == ["enough"] * 3 + [None]
    assert time.monotonic() - began < 10


class Cut:
    """The time of a reason; whoever would write it is killed before or after."""

    def __init__(self, array, after):
        self.array, self.after = array, after

    def __getitem__(self, key):
        return self.array[key]

    def __setitem__(self, key, value):
        if self.after:
            self.array[key] = value
        os.kill(os.getpid(), SIGKILL)


def killed_while_it_said_why():
    found = []
    for after in (False, True):
        one, two, three, _ = signals()

        def stop(one=one, after=after):
            one._when_N = Cut(one._when_N, after)
            one.stop("first")

        assert dies(stop) == KILLED
        before = two.reason
        two.stop("second")
        found.append([before, three.reason, two.reason])
    return found


def test_who_is_killed_while_it_says_why_has_said_nothing_or_all_of_it():
    nothing, all_of_it = apart(killed_while_it_said_why)
    assert nothing == [None, "second", "second"]
    assert all_of_it == [None, "first", "first"]


def race(times):
    """All say stop at the same time, and some are killed meanwhile: one whole reason is heard."""
    rng, reasons = random.Random(7), []
    for _ in range(times):
        said = signals(3)

        def stop(rank, said=said):
            said[rank].stop(str(rank) * 100)

        pids = [start(stop, rank) for rank in range(3)]
        if rng.random() < 0.5:
            victim = pids.pop(rng.randrange(3))
            os.kill(victim, SIGKILL)
            assert end(victim) in (0, KILLED)
        all_end(pids)
        heard = {signal.reason for signal in said}
        assert len(heard) == 1
        (reason,) = heard
        assert reason == reason[0] * 100
        reasons.append(reason[0])
    return sorted(set(reasons))


def test_one_whole_reason_is_heard_whoever_speaks_at_once():
    assert set(apart(race, 30)) <= set("012")


def test_reasons_are_told_by_the_time_they_were_given():
    block = Block(layout(2))
    one, two = Signal(block.arrays, 0), Signal(block.arrays, 1)
    two.stop("later")
    block["when"][1, 0] += 10**9
    one.stop("earlier")
    assert one.reason == "earlier"
    assert np.argmin(block["when"][:2, 0]) == 0
