"""The newest values, whole, from one member to all others."""

import numpy as np
import pytest
from apart import KILLED, Deadly, apart, dies
from seats import seats, successor, together

from covey.errors import Stopped, UserError
from covey.memory import snapshot
from covey.team import Team


def values(number):
    return {"w": np.full(3, number, np.float32), "n": np.array(number)}


def links(publish=True, learner=1, actor=2):
    teams = seats(learner=learner, actor=actor)
    return [team.latest("weights", values(1), publish=publish) for team in teams]


def read(link):
    """Its version and what was read, which is of that version alone."""
    out = values(0)
    version = link.refresh(out)
    assert (out["w"] == out["n"]).all()
    return version, int(out["n"])


def test_the_first_writer_publishes_what_it_has_before_anybody_acts():
    learner, *actors = links()
    assert [read(actor) for actor in actors] == [(1, 1), (1, 1)]
    assert learner.version == 1


def test_nothing_is_there_until_it_is_published():
    learner, actor, _ = links(publish=False)
    assert (actor.version, actor.refresh(values(0))) == (0, None)
    assert learner.publish(values(7)) == 1
    assert read(actor) == (1, 7)


def test_the_newest_wins_and_is_read_once():
    learner, one, two = links()
    assert [learner.publish(values(number)) for number in (10, 11, 12)] == [2, 3, 4]
    assert (one.version, one.seen) == (4, 0)
    assert read(one) == (4, 12)
    assert (one.seen, two.seen) == (4, 0)
    assert one.refresh(values(0)) is None
    assert read(two) == (4, 12)


def test_what_was_read_or_written_can_be_read_again():
    learner, actor, _ = links()
    out = values(0)
    assert actor.read_again(out) == actor.read_again(out) == 1
    learner.publish(values(5))
    assert learner.read_again(out) == 2
    assert out["n"] == 5


def test_a_team_of_one_process_publishes_and_refreshes():
    link = Team(1).latest("weights", values(3))
    assert read(link) == (1, 3)
    link.publish(values(4))
    link.wait(1)
    assert read(link) == (2, 4)


def test_of_several_learners_the_first_publishes_for_all():
    first, second, actor = links(learner=2, actor=1)
    assert second.publish(values(9)) == 1
    assert read(actor) == (1, 1)
    assert first.publish(values(2)) == second.version == 2
    assert second.publish(values(9)) == 2
    assert read(actor) == (2, 2)
    assert read(second) == (2, 2)


def test_who_only_reads_cannot_publish():
    _, actor, _ = links()
    with pytest.raises(UserError) as caught:
        actor.publish(values(2))
    assert str(caught.value) == "'weights' is published by learner 0; this member only reads it."
    assert actor.version == 1


def test_another_form_is_refused_at_the_writer():
    learner, actor, _ = links()
    with pytest.raises(UserError, match=r"^weights: 'w' holds float32\[3\] but was given float64"):
        learner.publish({**values(2), "w": np.zeros(3)})
    assert read(actor) == (1, 1)


def test_nothing_cannot_be_published():
    with pytest.raises(UserError, match="nothing to publish: give at least one array"):
        Team(1).latest("weights", {})


def test_a_writer_that_nobody_is_is_refused():
    (team,) = seats(actor=1)
    with pytest.raises(UserError, match="nobody in this team is learner; its roles are actor"):
        team.latest("weights", values(1))


def test_waiting_ends_when_it_is_published():
    learner, actor, _ = links(publish=False)

    def wait():
        actor.wait()
        return read(actor)

    assert together(wait, lambda: learner.publish(values(6))) == [(1, 6), 1]


def test_waiting_in_vain_says_for_what_and_for_whom():
    _, actor, _ = links()
    actor.wait()
    with pytest.raises(UserError) as caught:
        actor.wait(4, seconds=0.01)
    assert str(caught.value) == (
        "waited 0.01 s for version 5 of 'weights'; absent: learner 0, who publishes it."
    )


def test_waiting_ends_when_all_stop():
    learner, actor = seats(learner=1, actor=1)
    link = actor.latest("weights", values(1))
    with pytest.raises(Stopped, match="enough"):
        together(link.wait, lambda: learner.stop("enough"))


def test_gauges_tell_how_far_behind_each_reader_is():
    learner, actor, _ = links()
    learner.publish(values(2))
    assert learner.gauges() == {"weights.version": 2.0}
    assert actor.gauges() == {"weights.version": 2.0, "weights.lag": 2.0, "weights.retries": 0.0}
    read(actor)
    learner.publish(values(3))
    assert actor.gauges()["weights.lag"] == 1.0


class Overtaken(dict):
    """What is read into; while it is, three more versions are published."""

    def __init__(self, learner):
        super().__init__(values(0))
        self.learner = learner

    def __getitem__(self, key):
        for _ in range(3):
            self.learner.publish(values(5))
        return super().__getitem__(key)


def test_a_writer_that_is_too_fast_is_an_error_and_its_retries_a_gauge(monkeypatch):
    monkeypatch.setattr(snapshot, "MOST_TRIES", 4)
    learner, actor, _ = links()
    with pytest.raises(UserError, match="weights: written faster than they can be read; publish"):
        actor.refresh(Overtaken(learner))
    assert actor.gauges()["weights.retries"] == 4.0
    assert read(actor) == (actor.version, 5)


def killed_publishes(accesses):
    """The writer dies at its n-th look at the values; a successor publishes what it has."""
    learner, actor = seats(learner=1, actor=1)
    link, reader = (team.latest("weights", values(1)) for team in (learner, actor))
    found = []
    for at in range(1, accesses + 1):
        assert dies(link.publish, Deadly(values(99), at)) == KILLED
        before = read(reader)
        learner = successor(learner)
        link = learner.latest("weights", values(1 + at))
        found.append([before, read(reader)])
    return found


def test_a_successor_publishes_the_next_version_wherever_its_predecessor_died():
    assert apart(killed_publishes, 4) == [
        [[1, 1], [2, 2]], [[None, 0], [3, 3]], [[None, 0], [4, 4]], [[None, 0], [5, 5]]
    ]  # fmt: skip
