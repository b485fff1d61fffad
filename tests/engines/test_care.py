"""Rules of patience and replacement, with the time given by hand."""

import math
from itertools import pairwise

import pytest

from covey.engines.care import LONGEST_LOOK, Care, Health
from covey.memory import pulse

PHASES = range(len(pulse.PHASES))


def health(**rules):
    return Health(Care(**rules))


def test_each_phase_has_its_own_patience():
    care = Care(step=1, reset=2, start=3, save=4, grace=5, learn=0)
    assert [care.patience(phase) for phase in PHASES] == [3, 1, 2, math.inf, 4, 5]


def test_whoever_keeps_something_has_at_least_the_patience_of_a_learner():
    care = Care(step=1, reset=200, start=3, save=4, grace=5, learn=100)
    assert [care.patience(phase, keeps=True) for phase in PHASES] == [
        100, 100, 200, math.inf, 100, 100,
    ]  # fmt: skip


def test_once_all_stop_nobody_has_long_but_those_who_save():
    care = Care(grace=1, last_grace=20, reset=50)
    assert [care.patience_at_stop(phase, False) for phase in PHASES] == [1, 1, 1, 1, 20, 1]
    assert [care.patience_at_stop(phase, True) for phase in PHASES] == [1, 20, 50, 1, 20, 1]


def test_a_slow_reset_is_waited_for_longer_than_a_step():
    care = Care()
    assert care.patience(pulse.RESETTING) == 120
    assert care.patience(pulse.RUNNING) == 30
    assert care.patience(pulse.WAITING) == math.inf


@pytest.mark.parametrize(
    ("role", "keepers", "keeps"),
    [
        ("actor", (), False), ("worker", (), False), ("evaluator", (), False),
        ("learner", (), True), ("anything", (), True), ("evaluator", ("evaluator",), True),
        ("worker", ("evaluator",), False),
    ],
)  # fmt: skip
def test_who_is_waited_for_in_the_end(role, keepers, keeps):
    assert Care(keepers=keepers).keeps(role) is keeps


def test_idle_is_the_time_without_a_beat():
    one = health()
    one.born(10.0)
    assert one.look(1, 10.1) == 0
    assert one.look(1, 10.4) == pytest.approx(0.3)
    assert one.look(1, 10.6) == pytest.approx(0.5)
    assert one.look(2, 10.7) == 0
    assert one.look(2, 10.8) == pytest.approx(0.1)


def test_a_beat_that_went_backwards_is_a_beat():
    one = health()
    one.look(7, 1.0)
    one.look(7, 1.4)
    assert one.look(-3, 1.5) == 0


def test_a_launcher_that_slept_blames_nobody():
    one = health()
    one.born(0.0)
    one.look(1, 0.1)
    assert one.look(1, 3600.0) == LONGEST_LOOK
    assert one.look(1, 3600.1) == pytest.approx(LONGEST_LOOK + 0.1)


def test_a_new_generation_begins_without_blame():
    one = health()
    one.born(0.0)
    for i in range(10):
        one.look(1, 0.4 * i)
    assert one.idle > 3
    one.born(4.0)
    assert one.idle == 0
    assert one.look(1, 4.1) == pytest.approx(0.1)


def lives(one, *lengths, at=0.0):
    """Live and die so often; the pauses that follow."""
    pauses = []
    for length in lengths:
        one.born(at)
        at += length
        pauses.append(one.died(at, f"after {length}"))
        at += pauses[-1] or 0
    return pauses


def test_one_who_lived_long_is_replaced_at_once():
    assert lives(health(), 5, 5, 5, 5, 5, 5, 5) == [0] * 7


def test_a_crash_loop_is_slowed_down_and_then_left_out():
    one = health()
    assert lives(one, *[0.5] * 5) == [0, 0.1, 0.2, 0.4, None]
    assert one.quarantined
    assert (one.deaths, one.short_lives) == (5, 5)
    assert list(one.causes) == ["after 0.5"] * 5


def test_one_long_life_ends_a_crash_loop():
    one = health()
    assert lives(one, 0.5, 0.5, 0.5, 0.5, 2, 0.5, 0.5, 0.5, 0.5) == [
        0, 0.1, 0.2, 0.4, 0, 0, 0.1, 0.2, 0.4,
    ]  # fmt: skip
    assert not one.quarantined
    assert one.deaths == 9


def test_a_life_of_just_the_length_is_not_short():
    assert lives(health(soon=1.0, failures=1), 1.0) == [0]
    assert lives(health(soon=1.0, failures=1), 0.99) == [None]


def test_pauses_double_up_to_the_longest():
    pauses = lives(health(failures=10**6, first_delay=1, longest_delay=20), *[0.1] * 2000)
    assert pauses[:7] == [0, 1, 2, 4, 8, 16, 20]
    assert set(pauses[7:]) == {20}
    assert all(one <= two for one, two in pairwise(pauses))


def test_only_the_newest_causes_are_kept():
    one = health(failures=10**6, soon=0)
    lives(one, *range(1, 101))
    assert len(one.causes) == 8
    assert one.causes[-1] == "after 100"
    assert one.deaths == 100
