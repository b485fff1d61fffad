"""Who applies a gradient: in place, an owner, everyone. One worker is always plain torch."""

import math
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from seats import seats, successor, together
from torch import nn

import covey
from covey import checkpoint
from covey.engines.place import MemberError
from covey.envs import make_env
from covey.errors import Stopped, UserError
from covey.optim import Optimizer, flatten, frozen_copy
from covey.team import Team

LR, SIZE = 0.01, 8
TORCH = {
    "adam": lambda w: torch.optim.Adam(w, lr=LR, eps=1e-8, fused=True),
    "rmsprop": lambda w: torch.optim.RMSprop(w, lr=LR, alpha=0.99, eps=1e-8),
    "sgd": lambda w: torch.optim.SGD(w, lr=LR),
}


@pytest.fixture(autouse=True)
def one_thread():
    """As members of a team have it: others want the processor too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def loss(module, batch):
    return (module(batch) - batch[:, :3].sin()).square().mean()


def batches(num, rows=SIZE):
    return torch.randn(num, rows, 5, generator=torch.Generator().manual_seed(9))


class Learner:
    """A network and its optimizer."""

    def __init__(self, apply=None, rule="adam", seed=0, **more):
        self.module, self.apply = net(seed), apply
        self.flat = flatten(self.module, apply)
        self.optimizer = Optimizer(self.flat, rule, LR, apply=apply, **more)

    def step(self, batch):
        return self.optimizer.step(loss(self.module, batch))

    def take(self, other):
        """Its weights, as a link would bring them."""
        with torch.no_grad():
            self.flat.copy_(other.flat)
        self.apply.updates = other.optimizer.updates


class Pushed:
    """A worker and its owner, in two members of a team or in one process."""

    def __init__(self, rule="adam", alone=False, every=1, max_lag=None, **more):
        teams = [Team(1)] if alone else seats(worker=1, learner=1)
        made = [
            Learner(team.gradients(every=every, max_lag=max_lag), rule, **more) for team in teams
        ]
        self.worker, self.owner = made[0], made[-1]

    @property
    def flat(self):
        return self.owner.flat

    @property
    def optimizer(self):
        return self.owner.optimizer

    def step(self, batch):
        self.worker.step(batch)
        self.owner.apply.apply_pushed(self.owner.optimizer)
        self.worker.take(self.owner)


ONE_WORKER = {
    "self": lambda rule, **m: Learner(None, rule, **m),
    "in-place": lambda rule, **m: Learner(seats(worker=1)[0].in_place(), rule, **m),
    "in-place alone": lambda rule, **m: Learner(Team(1).in_place(), rule, **m),
    "owner": Pushed,
    "owner alone": partial(Pushed, alone=True),
    "everyone": lambda rule, **m: Learner(seats(worker=1)[0].everyone(), rule, **m),
    "everyone alone": lambda rule, **m: Learner(Team(1).everyone(), rule, **m),
}


@pytest.mark.parametrize("apply", ONE_WORKER)
@pytest.mark.parametrize("rule", TORCH)
def test_one_worker_is_torchs_optimizer_bit_for_bit(apply, rule):
    ours, theirs = ONE_WORKER[apply](rule), net()
    flat = flatten(theirs)  # over separate tensors, the last bits of their ends would differ
    reference = TORCH[rule]([flat])
    for batch in batches(40):
        ours.step(batch)
        reference.zero_grad(set_to_none=False)
        loss(theirs, batch).backward()
        reference.step()
    assert torch.equal(ours.flat, flat)
    assert ours.optimizer.updates == 40


@pytest.mark.parametrize("apply", ONE_WORKER)
def test_clipping_and_a_falling_step_size_are_those_of_one_process(apply):
    more = {"max_norm": 0.05, "anneal_updates": 15}
    ours, plain = ONE_WORKER[apply]("rmsprop", **more), Learner(None, "rmsprop", **more)
    for batch in batches(20):
        ours.step(batch)
        plain.step(batch)
    assert torch.equal(ours.flat, plain.flat)
    assert ours.optimizer.progress == plain.optimizer.progress == 0.0


@pytest.mark.parametrize("apply", ONE_WORKER)
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(apply):
    ours = ONE_WORKER[apply]("adam")
    one, two, three = batches(3)
    ours.step(one)
    before, moments = ours.flat.clone(), {k: m.clone() for k, m in ours.optimizer.moments.items()}
    worker = getattr(ours, "worker", ours)
    assert math.isnan(worker.step(two * math.nan))
    assert torch.equal(ours.flat, before)
    assert all(torch.equal(moments[k], m) for k, m in ours.optimizer.moments.items())
    assert (ours.optimizer.updates, worker.optimizer.skipped) == (1, 1)
    ours.step(three)
    plain = Learner()
    plain.step(one)
    plain.step(three)
    assert torch.equal(ours.flat, plain.flat)


@pytest.mark.parametrize("rule", TORCH)
def test_workers_in_place_that_take_turns_are_one_process(rule):
    workers = [Learner(team.in_place(), rule, seed) for seed, team in enumerate(seats(worker=3))]
    plain = Learner(None, rule)
    for number, batch in enumerate(batches(30)):
        workers[number % 3].step(batch)
        plain.step(batch)
        assert {worker.optimizer.updates for worker in workers} == {number + 1}
    for worker in workers:
        assert torch.equal(worker.flat, plain.flat)
        for name, moment in worker.optimizer.moments.items():
            assert torch.equal(moment, plain.optimizer.moments[name])


def test_a_successor_in_place_finds_weights_moments_and_count():
    first, other = seats(worker=2)
    one, two = Learner(first.in_place()), Learner(other.in_place())
    for batch in batches(6):
        one.step(batch)
    later = Learner(successor(first).in_place(), seed=3)
    assert torch.equal(later.flat, two.flat)
    assert torch.equal(later.optimizer.moments["mean"], two.optimizer.moments["mean"])
    assert later.optimizer.updates == 6


def test_first_values_that_were_half_written_are_written_again():
    first, other = seats(worker=2)
    block = first.block("network/weights", {"filled": ((8,), "i8"), "values": ((4,), "f4")})
    block["values"][:2] = 99  # by a member that was killed in between
    placed = other.in_place().place("weights", torch.arange(4.0))
    assert placed.tolist() == first.in_place().place("weights", torch.zeros(4)).tolist()
    assert placed.tolist() == [0, 1, 2, 3]


def test_networks_of_two_names_are_apart():
    (team,) = seats(worker=1)
    one, two = Learner(team.in_place("actor")), Learner(team.in_place("critic"), seed=1)
    one.step(batches(1)[0])
    assert (one.optimizer.updates, two.optimizer.updates) == (1, 0)
    assert not torch.equal(one.flat, two.flat)


@pytest.mark.parametrize(
    ("vector", "what"),
    [
        (torch.zeros(3, device="meta"), "torch.float32 on meta"),
        (torch.zeros(3, dtype=torch.float64), "torch.float64 on cpu"),
    ],
)
def test_what_cannot_be_shared_in_place_is_refused_in_a_sentence(vector, what):
    with pytest.raises(UserError) as caught:
        Team(1).in_place().place("weights", vector)
    assert str(caught.value) == (
        f"hogwild shares float32 weights in main memory; this network is {what}. Use --device cpu, "
        "or the recipe a3c."
    )


def test_in_place_a_crossing_is_said_to_one_worker():
    workers = [Learner(team.in_place()) for team in seats(worker=3)]
    said = []
    for number, batch in enumerate(batches(20)):
        workers[number % 3].step(batch)
        said.append(sum(worker.apply.crossed(5) for worker in workers))
    assert [number + 1 for number, times in enumerate(said) if times] == [5, 10, 15, 20]
    assert max(said) == 1


def test_the_target_of_hogwild_dqns_catches_up_once_for_all():
    env = make_env("CartPole-v1", 4)
    config = covey.DQN.Config(hidden=(4,), target_every=5, dueling=False)
    agents = [team.agent(covey.DQN, env, config, apply=team.in_place()) for team in seats(worker=2)]
    rows = agents[0].rows(covey.Collector(env, agents[0], 20).collect(0))
    env.close()

    def target(agent):
        return torch.cat([p.reshape(-1) for p in agent.target.parameters()])

    caught_up = []
    for number in range(1, 18):
        before = target(agents[0]).clone()
        agents[number % 2].learn(rows)
        if not torch.equal(before, target(agents[0])):
            caught_up.append(number)
            assert torch.equal(target(agents[0]), agents[0].optimizer.flat)
        assert torch.equal(target(agents[0]), target(agents[1]))
    assert caught_up == [5, 10, 15]


def test_a_saved_count_goes_on_in_place():
    one, two = (Learner(team.in_place()) for team in seats(worker=2))
    one.apply.crossed(10)
    one.apply.updates = two.apply.updates = 25
    assert (one.optimizer.updates, two.optimizer.updates) == (25, 25)
    assert not two.apply.crossed(10)
    for batch in batches(5):
        one.step(batch)
    assert two.apply.crossed(10)
    assert not one.apply.crossed(10)


@pytest.mark.parametrize("rule", TORCH)
def test_the_owner_applies_the_mean_of_k(rule):
    *workers, owner = (
        Learner(team.gradients(every=3), rule) for team in seats(worker=3, learner=1)
    )
    plain = Learner(None, rule)
    for batch in batches(10, 3 * SIZE):
        parts = batch.chunk(3)
        for worker, part in zip(workers, parts, strict=True):
            worker.take(owner)
            worker.step(part)
        assert owner.apply.apply_pushed(owner.optimizer)
        plain.step(batch)
        assert torch.allclose(owner.flat, plain.flat, atol=1e-6, rtol=0)
    assert owner.optimizer.updates == 10
    assert owner.apply.link.account() == {
        "pushed": 30, "applied": 30, "refused": 0, "pending": 0
    }  # fmt: skip


def test_alone_the_owner_waits_for_no_more_than_there_are():
    both = Learner(Team(1).gradients(every=2))
    before = both.flat.clone()
    for number, batch in enumerate(batches(4), 1):
        both.step(batch)
        assert both.apply.apply_pushed(both.optimizer) == (number % 2 == 0)
        assert torch.equal(both.flat, before) == (number < 2)
    assert both.optimizer.updates == 2


def test_gradients_carry_the_number_of_updates_behind_their_weights():
    worker, owner = (Learner(team.gradients(max_lag=2)) for team in seats(worker=1, learner=1))
    lags = []
    for number, batch in enumerate(batches(7)):
        if number % 3 == 0:
            worker.take(owner)
        worker.step(batch)
        assert owner.apply.apply_pushed(owner.optimizer)
        lags.append(owner.apply.link.lag)
    assert lags == [0, 1, 2, 0, 1, 2, 0]
    assert owner.apply.gauges() == {
        "gradients.pushed": 7.0, "gradients.applied": 7.0, "gradients.refused": 0.0,
        "gradients.pending": 0.0, "gradients.lag": 0.0,
    }  # fmt: skip
    assert "gradients.lag" not in worker.apply.gauges()


def test_the_owner_refuses_gradients_of_weights_that_are_too_old():
    quick, slow, owner = (Learner(team.gradients(max_lag=1)) for team in seats(worker=2, learner=1))
    plain, given = Learner(), batches(6)

    def update(batch):
        quick.take(owner)
        quick.step(batch)
        plain.step(batch)
        assert owner.apply.apply_pushed(owner.optimizer)

    update(given[0])
    update(given[1])
    slow.step(given[2])  # on the first weights, two updates ago: never applied
    update(given[3])
    slow.step(given[4])
    update(given[5])
    assert torch.equal(owner.flat, plain.flat)
    found = owner.apply.link.account()
    assert found["pushed"] == found["applied"] + found["refused"] + found["pending"] == 6
    assert (found["applied"], owner.optimizer.updates) == (4, 4)


def test_an_owner_that_took_an_earlier_checkpoint_back_refuses_what_is_of_later_weights():
    worker, owner = (Learner(team.gradients()) for team in seats(worker=1, learner=1))
    one, two, three = batches(3)
    for batch in (one, two):
        worker.take(owner)
        worker.step(batch)
        owner.apply.apply_pushed(owner.optimizer)
    worker.take(owner)
    worker.step(three)
    owner.apply.updates = 1
    worker.take(owner)
    worker.step(three)
    assert owner.apply.apply_pushed(owner.optimizer)
    assert owner.apply.link.account() == {"pushed": 4, "applied": 3, "refused": 1, "pending": 0}
    assert owner.optimizer.updates == 2


def test_only_a_successor_of_the_owner_settles_the_account():
    teams = seats(worker=1, learner=2)
    worker, owner, other = (Learner(team.gradients(every=2)) for team in teams)
    for batch in batches(3):
        worker.step(batch)
    assert owner.apply.apply_pushed(owner.optimizer)
    owner.apply.link._held.append(0)  # it holds the third
    owner.apply.link._hold(0)
    balanced = {"pushed": 3, "applied": 2, "refused": 0, "pending": 3}
    assert owner.apply.link.account() == balanced
    Learner(successor(teams[2]).gradients(every=2))
    Learner(successor(teams[0]).gradients(every=2))
    assert other.apply.link.account() == balanced
    later = Learner(successor(teams[1]).gradients(every=2))
    assert later.apply.link.account() == {"pushed": 3, "applied": 2, "refused": 0, "pending": 1}


def test_without_a_link_there_are_no_gauges_yet():
    assert Team(1).gradients().gauges() == {}


def test_roles_that_nobody_plays_are_refused():
    with pytest.raises(UserError, match="nobody in this team is learner"):
        seats(worker=1)[0].gradients()
    with pytest.raises(UserError, match="nobody in this team is worker"):
        Learner(seats(actor=1, learner=1)[1].gradients())
    with pytest.raises(UserError, match="every=0"):
        Learner(Team(1).gradients(every=0))


def in_step(num, rule="adam", rows=SIZE, times=10, spoil=lambda number, rank, part: part):
    """Members that apply the mean of their gradients, each of its part of the batch."""
    learners = [Learner(team.everyone(), rule) for team in seats(worker=num)]
    plain = Learner(None, rule)
    for number, batch in enumerate(batches(times, num * rows)):
        parts = [spoil(number, rank, part) for rank, part in enumerate(batch.chunk(num))]
        together(*[partial(of.step, part) for of, part in zip(learners, parts, strict=True)])
        plain.step(batch)
    return learners, plain


@pytest.mark.parametrize("rule", TORCH)
@pytest.mark.parametrize("num", [2, 3])
def test_everyone_is_plain_on_the_joined_batch(num, rule):
    learners, plain = in_step(num, rule)
    assert torch.allclose(learners[0].flat, plain.flat, atol=1e-6, rtol=0)
    assert all(torch.equal(of.flat, learners[0].flat) for of in learners)
    assert {of.optimizer.updates for of in learners} == {10}
    assert [of.apply.crossed(5) for of in learners] == [True] * num


def test_a_gradient_of_one_that_is_not_finite_is_left_out_by_all():
    def spoil(number, rank, part):
        return part * math.nan if (number, rank) == (3, 1) else part

    learners, _ = in_step(3, spoil=spoil)
    assert {of.optimizer.updates for of in learners} == {9}
    assert {of.optimizer.skipped for of in learners} == {1}
    assert all(torch.equal(of.flat, learners[0].flat) for of in learners)
    assert torch.isfinite(learners[0].flat).all()


def test_the_mean_is_summed_in_rank_order():
    learners = [Learner(team.everyone(), "sgd") for team in seats(worker=3)]
    before = learners[0].flat.clone()
    parts = batches(3)
    gradients = []
    for part in parts:
        alone = Learner(None, "sgd")
        alone.flat.grad.zero_()
        loss(alone.module, part).backward()
        gradients.append(alone.flat.grad.numpy())
    together(*[partial(of.step, part) for of, part in zip(learners, parts, strict=True)])
    mean = (gradients[0] + gradients[1] + gradients[2]) / np.float32(3)
    with torch.no_grad():
        before.add_(torch.from_numpy(mean), alpha=-LR)
    assert torch.equal(learners[2].flat, before)


def test_a_target_is_placed_like_the_weights():
    one, two = seats(worker=2)
    targets = []
    for team, seed in ((one, 0), (two, 1)):
        apply = team.in_place()
        targets.append(frozen_copy(net(seed), apply))
        flatten(net(seed), apply)
    first, second = (torch.cat([p.reshape(-1) for p in of.parameters()]) for of in targets)
    assert torch.equal(first, second)
    with torch.no_grad():
        next(targets[0].parameters()).fill_(7)
    assert (next(targets[1].parameters()) == 7).all()


@pytest.mark.parametrize("apply", ["in-place", "owner", "everyone"])
def test_a_saved_optimizer_goes_on_bit_for_bit(apply, tmp_path):
    ours, plain = ONE_WORKER[apply]("adam", anneal_updates=30), Learner(anneal_updates=30)
    *before, last = batches(11)
    for batch in before:
        plain.step(batch)
    with torch.no_grad():
        ours.flat.copy_(plain.flat)
    path = checkpoint.save(tmp_path, 10, plain.optimizer.state(), {})
    ours.optimizer.restore(checkpoint.load(path).tree)
    if isinstance(ours, Pushed):
        ours.worker.take(ours.owner)
    ours.step(last)
    plain.step(last)
    assert torch.equal(ours.flat, plain.flat)
    assert ours.optimizer.updates == 11


# --- the learners, through torch.distributed


def listening():
    """Addresses on which this process listens."""
    found = set()
    inodes = {str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if is_open(entry)}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            address, state, inode = (line.split()[i] for i in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in inodes:
                found.add(address.partition(":")[0])
    return sorted(found)


def is_open(entry):
    """Not the one that lists them."""
    return entry.is_symlink()


def averaged(team, updates=20):
    """A learner's weights after updates with its part of each batch, and who could reach it."""
    module = net()
    optimizer = Optimizer(flatten(module), "adam", LR, apply=team.averaged())
    num = len(team.ranks("learner"))
    for batch in batches(updates, 4 * num):
        optimizer.step(loss(module, batch[team.index :: num]))
    return optimizer.flat.tolist(), optimizer.updates, listening()


def test_averaged_is_plain_on_the_joined_batch_and_listens_on_loopback_only():
    found = covey.run(averaged, learner=3)
    module = net()
    optimizer = Optimizer(flatten(module), "adam", LR)
    for batch in batches(20, 12):
        optimizer.step(loss(module, batch))
    (first, *others) = found
    assert all(weights == first[0] for weights, *_ in others)
    np.testing.assert_allclose(first[0], optimizer.flat.tolist(), atol=1e-6)
    assert [updates for _, updates, _ in found] == [20, 20, 20]
    assert {address for *_, addresses in found for address in addresses} == {"0100007F"}


def test_one_alone_is_the_plain_optimizer_bit_for_bit():
    found = covey.run(averaged, learner=1)
    module = net()
    optimizer = Optimizer(flatten(module), "adam", LR)
    for batch in batches(20, 4):
        optimizer.step(loss(module, batch))
    assert found[0][0] == optimizer.flat.tolist()


def test_all_begin_an_update_or_none():
    one, two = (team.averaged() for team in seats(learner=2))
    together(one.meet, two.meet)
    one._team.stop("enough")
    with pytest.raises(Stopped):
        one.meet()
    with pytest.raises(Stopped):  # the first has taken its arrival back
        two.meet()
    assert one._arrived_N.tolist() == [1, 1]


def test_one_who_is_counted_on_takes_part_though_all_stop():
    one, two = (team.averaged() for team in seats(learner=2))
    one._arrived_N[0] += 1  # the first has come
    one._team.stop("enough")
    two.meet()  # so the second goes on
    assert one._late(1) == []


def test_a_learner_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr("covey.links.waits.Waits.until.__defaults__", (0.05,))
    one, _ = (team.averaged() for team in seats(learner=2))
    with pytest.raises(UserError, match=r"waited 0.05 s for update 1 of all; absent: learner 1"):
        one.meet()


def dies_in_the_middle(team):
    module = net()
    optimizer = Optimizer(flatten(module), "adam", LR, apply=team.averaged())
    for number, batch in enumerate(batches(1000)):
        if number == 5 and team.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step(loss(module, batch))


def test_when_one_of_them_dies_all_end_with_one_error():
    began = time.monotonic()
    with pytest.raises(MemberError, match=r"^learner 1 failed: killed by signal 9"):
        covey.run(dies_in_the_middle, learner=2)
    assert time.monotonic() - began < 60
