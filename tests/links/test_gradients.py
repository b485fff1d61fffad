"""Many push, one applies the mean of k: pushed = applied + refused + pending."""

import random
import time

import numpy as np
import pytest
from apart import apart, kill, start
from seats import seats, successor, together

from covey.errors import Stopped, UserError
from covey.memory.block import Block, Word
from covey.team import Team

SIZE = 5
WORKERS = 3


def link(team, every=1, max_lag=None, size=SIZE):
    return team.gradient_link("g", size, every, max_lag, "worker", "learner")


def links(worker=2, every=1, max_lag=None):
    """Those of the workers, then the owner's."""
    return [link(team, every, max_lag) for team in seats(worker=worker, learner=1)]


def gradient(number):
    return np.full(SIZE, number, np.float32)


def account(gradients):
    """pushed, applied, refused, pending; they balance."""
    found = gradients.account()
    assert found["pushed"] == found["applied"] + found["refused"] + found["pending"]
    return tuple(found.values())


def collected(owner, version=0):
    """The mean, which all its numbers are, applied."""
    mean = owner.collect(version)
    assert (mean == mean[0]).all()
    owner.applied()
    return float(mean[0])


def test_the_owner_gets_the_mean_of_as_many_as_it_wants():
    one, two, owner = links(every=3)
    for worker, number in ((one, 1), (two, 2), (one, 6)):
        worker.push(gradient(number), 0)
        account(owner)
    assert account(owner) == (3, 0, 0, 3)
    assert collected(owner) == 3.0
    assert account(owner) == account(one) == (3, 3, 0, 0)


def test_one_alone_arrives_bit_for_bit():
    one, _, owner = links()
    pushed = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)
    one.push(pushed, 0)
    assert owner.collect(0).tobytes() == pushed.tobytes()


def test_the_mean_is_torchs_and_numpys_sum_in_the_order_of_arrival():
    rng = np.random.default_rng(2)
    one, two, owner = links(every=3)
    pushed = rng.normal(size=(3, SIZE)).astype(np.float32)
    for worker, one_of in zip((one, two, one), pushed, strict=True):
        worker.push(one_of, 0)
    wanted = (pushed[0] + pushed[1] + pushed[2]) / np.float32(3)
    assert owner.collect(0).tobytes() == wanted.tobytes()


def test_it_is_pending_until_it_is_applied():
    one, _, owner = links(every=2)
    one.push(gradient(1), 0)
    one.push(gradient(2), 0)
    assert account(one) == (2, 0, 0, 2)
    owner.collect(0)
    assert account(one) == (2, 0, 0, 2)
    owner.applied()
    assert account(one) == (2, 2, 0, 0)


def test_those_that_are_too_old_are_refused_and_the_next_wanted():
    one, _, owner = links(max_lag=2)
    for version in (4, 6, 7, 8):
        one.push(gradient(version), version)
        if version == 6:
            assert collected(owner, 7) == 6.0
            assert account(owner) == (2, 1, 1, 0)
    assert collected(owner, 10) == 8.0
    assert account(owner) == (4, 2, 2, 0)


@pytest.mark.parametrize(("max_lag", "oldest"), [(0, 9), (1, 8), (5, 4)])
def test_as_old_as_allowed_is_taken(max_lag, oldest):
    one, _, owner = links(max_lag=max_lag)
    one.push(gradient(1), oldest - 1)
    one.push(gradient(2), oldest)
    assert collected(owner, 9) == 2.0
    assert account(owner) == (2, 1, 1, 0)


def test_without_a_limit_however_old():
    one, _, owner = links()
    one.push(gradient(1), 0)
    assert collected(owner, 10**9) == 1.0


def test_those_of_weights_that_a_restart_has_undone_are_refused():
    one, _, owner = links()
    one.push(gradient(1), 900)
    one.push(gradient(2), 500)
    assert collected(owner, 500) == 2.0
    assert account(owner) == (2, 1, 1, 0)


def test_what_is_refused_is_no_part_of_a_mean():
    one, two, owner = links(every=2, max_lag=0)
    for worker, number, version in ((one, 1, 3), (two, 100, 2), (one, 3, 3)):
        worker.push(gradient(number), version)
    assert collected(owner, 3) == 2.0
    assert account(owner) == (3, 2, 1, 0)


def test_gauges_are_the_account_and_the_owner_knows_the_age():
    one, two, owner = links(every=2)
    one.push(gradient(1), 2)
    two.push(gradient(1), 5)
    told = {"g.pushed": 2.0, "g.applied": 0.0, "g.refused": 0.0, "g.pending": 2.0}
    assert one.gauges() == owner.gauges() == told
    collected(owner, 6)
    told |= {"g.applied": 2.0, "g.pending": 0.0}
    assert owner.gauges() == {**told, "g.lag": 2.5}
    assert two.gauges() == told
    for version in (7, 8):
        one.push(gradient(1), version)
    collected(owner, 8)
    assert owner.gauges()["g.lag"] == 0.5


def test_a_worker_waits_while_its_owner_is_far_behind():
    one, _, _ = links()
    one.push(gradient(1), 0)
    one.push(gradient(2), 0)
    one._stream.put = lambda item, put=one._stream.put: put(item, seconds=0.01)
    with pytest.raises(UserError) as caught:
        one.push(gradient(3), 0)
    assert str(caught.value) == (
        "waited 0.01 s for room in 'g'; absent: learner 0, who takes from it."
    )
    assert account(one) == (2, 0, 0, 2)


@pytest.mark.parametrize(("worker", "every"), [(1, 5), (2, 5), (3, 1), (4, 64)])
def test_there_is_room_for_a_whole_mean_from_workers_that_push_alike(worker, every):
    *workers, owner = links(worker, every)
    for number in range(every):
        workers[number % worker].push(gradient(number), 0)
    assert collected(owner) == (every - 1) / 2


def test_owner_and_workers_wake_each_other():
    one, two, owner = links(every=2)

    def push(worker):
        for number in range(100):
            worker.push(gradient(number), number)

    def own():
        return [collected(owner, 100) for _ in range(100)]

    together(lambda: push(one), lambda: push(two), own)
    assert account(owner) == (200, 200, 0, 0)


def test_a_stop_while_the_owner_waits_leaves_what_it_holds_pending():
    worker, learner = seats(worker=1, learner=1)
    one, owner = link(worker, every=3), link(learner, every=3)
    one.push(gradient(1), 0)
    one.push(gradient(2), 0)

    with pytest.raises(Stopped, match="enough"):
        together(lambda: owner.collect(0), lambda: worker.stop("enough"))
    assert account(one) == account(owner) == (2, 0, 0, 2)
    assert owner.gauges()["g.pending"] == 2.0


def test_alone_it_waits_for_nobody_and_goes_on_later():
    gradients = Team(1).gradient_link("g", SIZE, 2, None, "worker", "learner")
    assert gradients.collect(0) is None
    gradients.push(gradient(1), 0)
    assert gradients.collect(0) is None
    assert account(gradients) == (1, 0, 0, 1)
    gradients.push(gradient(4), 0)
    assert collected(gradients) == 2.5
    assert account(gradients) == (2, 2, 0, 0)


@pytest.mark.parametrize(("every", "max_lag"), [(0, None), (-1, None), (1, -1)])
def test_the_mean_of_none_and_the_age_of_none_are_refused(every, max_lag):
    with pytest.raises(UserError, match=rf"'g' with every={every}, max_lag={max_lag}: the owner"):
        link(Team(1), every, max_lag)


def test_another_size_is_refused_at_the_worker():
    one, _, owner = links()
    with pytest.raises(UserError, match=r"g: 'gradient' holds float32\[5\] but was given float32"):
        one.push(np.zeros(4, np.float32), 0)
    assert account(owner) == (0, 0, 0, 0)


def test_roles_that_nobody_plays_are_refused():
    (worker,) = seats(worker=1)
    with pytest.raises(UserError, match="nobody in this team is learner"):
        link(worker)
    (learner,) = seats(learner=1)
    with pytest.raises(UserError, match="nobody in this team is worker"):
        link(learner)


def test_what_a_dead_owner_held_is_refused_by_its_successor():
    worker, learner = seats(worker=1, learner=1)
    one, owner = link(worker, every=3), link(learner, every=3)
    for number in range(3):
        one.push(gradient(number), 0)
    assert collected(owner) == 1.0
    for number in range(2):
        one.push(gradient(number), 0)
    for _ in range(2):  # it took them in and died before the third came
        owner._hold(0)
        owner._stream.take()
    later = link(successor(learner), every=3)
    later.settle()
    # the second it had not given back, so that is taken again
    assert account(one) == (5, 3, 1, 1)


def work(team, every, version):
    gradients = link(team, every, max_lag=1)
    while True:
        gradients.push(gradient(1), version.value)


def own(team, every, version):
    owner = link(team, every, max_lag=1)
    if team.generation:
        owner.settle()
    while True:
        assert (owner.collect(version.value) == 1).all()
        version.value += 1
        owner.applied()


def settled(gradients, seconds=10):
    """The account once the owner has taken in what was pushed."""
    deadline = time.monotonic() + seconds
    while True:
        found = tuple(gradients.account().values())
        if not gradients._stream.depth and found[0] == sum(found[1:]):
            return found
        assert time.monotonic() < deadline, found


def killed_often(times, every):
    """Workers die at any time, then the owner at any time while others work."""
    *workers, learner = seats(worker=WORKERS, learner=1)
    rng, block = random.Random(8), Block({"version": ((8,), "i8")})
    version, watch, found = Word(block["version"]), link(workers[0], every), []
    owner = start(own, learner, every, version)
    for turn in range(times):
        pids = [start(work, worker, every, version) for worker in workers]
        time.sleep(rng.uniform(0.003, 0.01))
        if turn % 2:
            kill(owner)
            learner = successor(learner)
            owner = start(own, learner, every, version)
            time.sleep(rng.uniform(0.003, 0.01))
        for pid in rng.sample(pids, WORKERS):
            kill(pid)
        workers = [successor(worker) for worker in workers]
        found.append(settled(watch))
    kill(owner)
    assert found == sorted(found)
    return found[-1], version.value, [int(n.min()) for n in (watch._applied_N, watch._refused_N)]


@pytest.mark.parametrize("every", [1, 3])
def test_the_account_balances_whoever_is_killed(every):
    (pushed, applied, refused, pending), version, least = apart(killed_often, 30, every)
    assert pushed > 100
    assert applied > 50
    assert applied // every <= version  # an update whose owner died before it said so
    assert refused > 0
    assert 0 <= pending <= every  # the owner may be applying the newest mean
    assert min(least) >= 0
