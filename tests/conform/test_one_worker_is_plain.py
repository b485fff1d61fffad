"""Law 2: one worker under any `apply=` is the plain torch optimizer; everyone, the joined batch."""

import pytest
import torch
from torch import nn

import covey
from covey.links.waits import PATIENCE
from covey.optim import Optimizer, flatten

LR, STEPS, ROWS = 0.01, 25, 12
TORCH = {
    "adam": lambda w: torch.optim.Adam(w, lr=LR, eps=1e-8, fused=True),
    "rmsprop": lambda w: torch.optim.RMSprop(w, lr=LR, alpha=0.99, eps=1e-8),
    "sgd": lambda w: torch.optim.SGD(w, lr=LR),
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def loss(module, batch):
    return (module(batch) - batch[:, :3].sin()).square().mean()


def batches():
    return torch.randn(STEPS, ROWS, 5, generator=torch.Generator().manual_seed(9))


def plain(rule):
    module = net()
    flat = flatten(module)
    optimizer = TORCH[rule]([flat])
    for batch in batches():
        optimizer.zero_grad(set_to_none=False)
        loss(module, batch).backward()
        optimizer.step()
    return flat.tolist()


def trained(rule, apply, part=lambda batch: batch):
    """The weights after every batch was learnt, or a part of each."""
    module = net()
    flat = flatten(module, apply)
    optimizer = Optimizer(flat, rule, LR, apply=apply)
    for batch in batches():
        optimizer.step(loss(module, part(batch)))
    return flat.tolist()


def alone_with_every_rule(team):
    found = {}
    for rule in TORCH:
        found[f"{rule} in-place"] = trained(rule, team.in_place(f"{rule} in-place"))
        found[f"{rule} everyone"] = trained(rule, team.everyone(f"{rule} everyone"))
    return found


@pytest.mark.parametrize("members", [{}, {"worker": 1}], ids=["inline", "processes"])
def test_in_place_and_everyone_with_one_worker_are_plain_torch_bit_for_bit(members):
    found = covey.run(alone_with_every_rule, **members)
    found = found[0] if members else found
    assert len(found) == 2 * len(TORCH)
    for name, weights in found.items():
        assert weights == plain(name.split()[0]), name


def pushed_to_an_owner(team):
    """A worker computes each gradient on the newest weights, an owner applies it and publishes."""
    found = {}
    for rule in TORCH:
        apply = team.gradients(rule)
        module = net()
        flat = flatten(module, apply)
        optimizer = Optimizer(flat, rule, LR, apply=apply)
        weights = team.latest(f"{rule} weights", {"flat": flat.detach().numpy()})
        for number, batch in enumerate(batches()):
            if team.plays("worker"):
                weights.wait(number, PATIENCE)
                weights.refresh({"flat": flat.detach().numpy()})
                apply.updates = number
                optimizer.step(loss(module, batch))
            if team.plays("learner"):
                assert apply.apply_pushed(optimizer)
                assert apply.link.lag == 0
                weights.publish({"flat": flat.detach().numpy()})
        found[rule] = flat.tolist(), apply.link.account()
    return found


def test_an_owner_with_one_worker_is_plain_torch_bit_for_bit(everywhere):
    found = everywhere(pushed_to_an_owner, worker=1, learner=1)[-1]
    for rule, (weights, account) in found.items():
        assert weights == plain(rule), rule
        assert account == {"pushed": STEPS, "applied": STEPS, "refused": 0, "pending": 0}


def together_with_every_rule(team):
    """Each member learns its part of every batch."""
    part = ROWS // team.size
    own = slice(team.rank * part, (team.rank + 1) * part)
    return {rule: trained(rule, team.everyone(rule), lambda batch: batch[own]) for rule in TORCH}


@pytest.mark.parametrize("num", [2, 3])
def test_everyone_with_n_is_plain_on_the_joined_batch(num):
    found = covey.run(together_with_every_rule, learner=num)
    assert found == [found[0]] * num  # bit for bit the same everywhere
    for rule in TORCH:
        assert found[0][rule] == pytest.approx(plain(rule), abs=1e-6, rel=0)
