"""Waiting for others: with a deadline, rung awake, and over when the team stops."""

import time

import pytest
from seats import seats, together

from covey.errors import Stopped, UserError
from covey.links.waits import PATIENCE, Waits
from covey.memory.pulse import RUNNING, WAITING
from covey.team import Team


def test_what_is_ready_is_not_waited_for():
    (team,) = seats(worker=1)
    assert team.waits.until(lambda: True, lambda: "nothing", seconds=0)
    assert team.waits.seconds == 0


def test_alone_nobody_will_come():
    waits = Waits()
    assert waits.alone
    assert waits.until(lambda: False, lambda: "nobody") is False
    assert waits.until(lambda: True, lambda: "nobody") is True
    began = time.monotonic()
    waits.nap(PATIENCE)
    waits.ring(0)
    waits.ring_all()
    assert time.monotonic() - began < 5
    assert Team(1).waits.alone
    assert not seats(worker=1)[0].waits.alone


def test_a_ring_wakes_whom_it_is_for():
    one, two = seats(worker=2)
    come = []

    def wait():
        return one.waits.until(lambda: bool(come), lambda: "it", seconds=20)

    def ring():
        come.append(1)
        two.waits.ring(0)

    assert together(wait, ring) == [True, None]


def test_in_vain_it_says_for_how_long_and_what_for():
    (team,) = seats(worker=1)
    said = []

    def what():
        said.append(1)
        return "the moon"

    with pytest.raises(UserError) as caught:
        team.waits.until(lambda: False, what, seconds=0.02)
    assert str(caught.value) == "waited 0.02 s for the moon."
    assert said == [1]
    assert 0.02 <= team.waits.seconds < 5


def test_time_spent_waiting_adds_up():
    (team,) = seats(worker=1)
    for _ in range(3):
        with pytest.raises(UserError):
            team.waits.until(lambda: False, lambda: "nothing", seconds=0.01)
    assert 0.03 <= team.waits.seconds < 5


def test_a_stop_ends_it_with_its_reason_but_what_is_ready_counts():
    one, two = seats(worker=2)
    two.stop("enough")
    assert one.waits.until(lambda: True, lambda: "it")
    with pytest.raises(Stopped, match="enough"):
        one.waits.until(lambda: False, lambda: "it")


def test_a_stop_ends_a_nap():
    one, two = seats(worker=2)
    began = time.monotonic()
    together(lambda: one.waits.nap(30), lambda: two.stop("enough"))
    one.waits.nap(30)
    assert time.monotonic() - began < 10


def test_whoever_watches_sees_that_it_waits():
    (team,) = seats(worker=1)
    team.pulse.enter(RUNNING)
    phases = []

    def ready():
        phases.append(team.pulse.phase)
        return len(phases) > 2

    assert team.waits.until(ready, lambda: "it")
    assert phases[1:3] == [WAITING, WAITING]
    assert {phases[0], *phases[3:]} == {RUNNING}
    assert team.pulse.phase == RUNNING


def test_members_are_named_by_role_and_index_as_far_as_they_are_known():
    *_, team = seats(actor=2, learner=1)
    assert team.waits.names([2, 1]) == "learner 0, actor 1"
    assert Waits().names([0, 3]) == "rank 0, rank 3"
    assert team.waits.names([]) == ""
