"""torch.optim, bit for bit, over one vector."""

import copy
import math

import pytest
import torch
from torch import nn

from covey import checkpoint
from covey.errors import UserError
from covey.optim import Optimizer, flatten, follow, frozen_copy

LR = 0.01
TORCH = {
    "adam": lambda w: torch.optim.Adam(w, lr=LR, eps=1e-8, fused=True),
    "rmsprop": lambda w: torch.optim.RMSprop(w, lr=LR, alpha=0.99, eps=1e-8),
    "sgd": lambda w: torch.optim.SGD(w, lr=LR),
}


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def vector(size=33, seed=0):
    w = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    w.requires_grad_()
    w.grad = torch.zeros(size)
    return w


def batches(num, *shape):
    return torch.randn(num, *shape, generator=torch.Generator().manual_seed(9))


def wavy(w, x):
    """A loss whose gradient is never the same twice."""
    return (w * x).sin().sum() + 0.1 * (w * w).sum()


@pytest.mark.parametrize("rule", TORCH)
def test_rule_is_torchs_bit_for_bit(rule):
    ours, theirs = vector(), vector()
    optimizer, reference = Optimizer(ours, rule, LR, eps=1e-8), TORCH[rule]([theirs])
    for x in batches(50, 33):
        optimizer.step(wavy(ours, x))
        reference.zero_grad()
        wavy(theirs, x).backward()
        reference.step()
    assert torch.equal(ours, theirs)
    assert optimizer.updates == 50


@pytest.mark.parametrize("rule", TORCH)
def test_one_vector_learns_as_separate_tensors_do(rule):
    ours, theirs = net(), net()
    optimizer = Optimizer(flatten(ours), rule, LR, eps=1e-8)
    reference = TORCH[rule](theirs.parameters())
    if rule == "adam":
        reference = torch.optim.Adam(theirs.parameters(), lr=LR, eps=1e-8)
    for x in batches(50, 4, 5):
        optimizer.step(ours(x).square().mean())
        reference.zero_grad()
        theirs(x).square().mean().backward()
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("max_norm", [0.01, 0.5, 100.0])
def test_clipping_is_torchs(max_norm):
    ours, theirs = net(), net()
    flat = flatten(ours)
    x = batches(1, 4, 5)[0] * 10
    norm = Optimizer(flat, "sgd", LR, max_norm=max_norm).step(ours(x).square().sum())
    theirs(x).square().sum().backward()
    wanted = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
    assert norm == pytest.approx(wanted.item(), rel=1e-6)
    clipped = torch.cat([p.grad.reshape(-1) for p in theirs.parameters()])
    torch.testing.assert_close(flat.grad, clipped)
    assert clipped.norm() <= max_norm * 1.0001 or norm <= max_norm


def test_flatten_keeps_the_network_as_it_was():
    module, untouched = net(), net()
    flat = flatten(module)
    assert flat.shape == (5 * 7 + 7 + 7 * 3 + 3,)
    x = batches(1, 4, 5)[0]
    assert torch.equal(module(x), untouched(x))
    wanted = torch.cat([p.detach().reshape(-1) for p in untouched.parameters()])
    assert torch.equal(flat, wanted)


def test_flatten_shares_weights_and_gradients():
    module = net()
    flat = flatten(module)
    offset = 0
    for p in module.parameters():
        assert p.data_ptr() == flat[offset:].data_ptr()
        assert p.grad.data_ptr() == flat.grad[offset:].data_ptr()
        offset += p.numel()
    with torch.no_grad():
        flat.fill_(0.5)
    assert all(bool((p == 0.5).all()) for p in module.parameters())
    module(torch.ones(1, 5)).sum().backward()
    assert flat.grad[-3:].tolist() == [1.0, 1.0, 1.0]


def test_flatten_leaves_out_what_does_not_learn():
    module = net()
    module[0].requires_grad_(False)
    assert flatten(module).shape == (7 * 3 + 3,)
    with pytest.raises(UserError, match="at least one parameter"):
        flatten(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(UserError, match="all of one dtype"):
        flatten(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_loss_is_skipped_and_counted(bad):
    w = vector()
    optimizer = Optimizer(w, "adam", LR)
    optimizer.step(w.sum())
    before, moments = w.detach().clone(), copy.deepcopy(optimizer.moments)
    assert not math.isfinite(optimizer.step(w.sum() * bad))
    assert torch.equal(w, before)
    assert all(torch.equal(moments[k], optimizer.moments[k]) for k in moments)
    assert (optimizer.updates, optimizer.skipped) == (1, 1)


def test_ten_bad_losses_in_a_row_end_the_run():
    w = vector()
    optimizer = Optimizer(w, "sgd", LR)
    for _ in range(9):
        optimizer.step(w.sum() * math.nan)
    optimizer.step(w.sum())  # a good one between: counting begins anew
    for _ in range(9):
        optimizer.step(w.sum() * math.nan)
    with pytest.raises(UserError, match=r"10 .*in a row.*after 1 updates"):
        optimizer.step(w.sum() * math.nan)
    assert optimizer.skipped == 19


def test_annealing_falls_to_zero_and_stays():
    w = vector(1)
    with torch.no_grad():
        w.zero_()
    optimizer = Optimizer(w, "sgd", lr=1.0, anneal_updates=4)
    seen = []
    for _ in range(6):
        optimizer.step(-w.sum())
        seen.append(w.item())
    assert seen == [1.0, 1.75, 2.25, 2.5, 2.5, 2.5]
    assert optimizer.progress == 0.0
    assert Optimizer(w, "sgd").progress == 1.0


@pytest.mark.parametrize("share", [0.005, 0.25, 1.0])
def test_a_copy_follows_a_share_of_the_way(share):
    module = nn.Sequential(net(), nn.BatchNorm1d(3))
    copied = frozen_copy(module)
    flat = flatten(module)
    first = flat.detach().clone()
    with torch.no_grad():
        flat.mul_(-3).add_(1)
    module(torch.randn(9, 5))  # the buffers change too
    follow(copied, module, share)
    moved = torch.cat([p.reshape(-1) for p in copied.parameters()])
    torch.testing.assert_close(moved, first + share * (flat - first))
    if share == 1.0:
        assert torch.equal(moved, flat)
    for ours, theirs in zip(copied.buffers(), module.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    assert not any(p.requires_grad for p in copied.parameters())


def test_frozen_copy_is_the_same_network_apart():
    module = net()
    copied = frozen_copy(module)
    x = batches(1, 4, 5)[0]
    assert torch.equal(copied(x), module(x))
    assert not any(p.requires_grad for p in copied.parameters())
    assert all(p.requires_grad for p in module.parameters())
    with torch.no_grad():
        module[0].weight += 1
    assert not torch.equal(copied(x), module(x))


class Elsewhere:
    """Keeps vectors in places of its own, and only writes gradients down."""

    def __init__(self):
        self.updates, self.places, self.seen = 0, {}, []

    def place(self, name, vector):
        self.places[name] = vector.clone()
        return self.places[name]

    def apply(self, optimizer, gradient):
        self.seen.append(gradient.clone())
        return optimizer.clip(gradient)

    def crossed(self, every):
        return False


def test_who_applies_says_where_vectors_live_and_gets_the_gradients():
    elsewhere, module = Elsewhere(), net()
    copied = frozen_copy(module, elsewhere)
    flat = flatten(module, elsewhere)
    optimizer = Optimizer(flat, "adam", apply=elsewhere, max_norm=0.01)
    assert set(elsewhere.places) == {"target", "weights", "mean", "square"}
    assert flat is elsewhere.places["weights"]
    assert optimizer.moments["mean"] is elsewhere.places["mean"]
    with torch.no_grad():
        for name in ("weights", "target"):
            elsewhere.places[name].fill_(0.5)
    assert all((p == 0.5).all() for p in [*module.parameters(), *copied.parameters()])
    norm = optimizer.step(sum(p.sum() for p in module.parameters()))
    assert torch.equal(elsewhere.seen[0], torch.ones(len(flat)))
    assert norm == pytest.approx(len(flat) ** 0.5)
    assert (flat == 0.5).all()
    elsewhere.updates = 7
    assert optimizer.updates == 7


def test_the_mean_of_several_gradients_is_one_update():
    one, three = vector(), vector()
    xs = batches(3, 33)
    Optimizer(one, "adam", LR).step(sum(wavy(one, x) for x in xs) / 3)
    optimizer = Optimizer(three, "adam", LR, accumulate=3)
    first = three.detach().clone()
    assert [optimizer.step(wavy(three, x)) for x in xs[:2]] == [0, 0]
    assert torch.equal(three, first)
    assert optimizer.step(wavy(three, xs[2])) > 0
    torch.testing.assert_close(three, one, rtol=1e-5, atol=1e-7)
    assert optimizer.updates == 1
    assert optimizer.flush() == 0  # nothing is left over


def test_what_has_been_accumulated_can_be_applied_before_its_time():
    one, other = vector(), vector()
    x = batches(1, 33)[0]
    Optimizer(one, "sgd", LR).step(wavy(one, x))
    optimizer = Optimizer(other, "sgd", LR, accumulate=5)
    optimizer.step(wavy(other, x))
    assert optimizer.flush() > 0
    assert torch.equal(other, one)
    assert optimizer.updates == 1


def test_each_so_many_updates_are_crossed_once():
    w = vector()
    optimizer = Optimizer(w, "sgd")
    crossed = []
    for _ in range(7):
        optimizer.step(w.sum())
        crossed.append(optimizer.apply.crossed(3))
    assert crossed == [False, False, True, False, False, True, False]


def test_what_is_not_known_is_refused():
    with pytest.raises(UserError, match=r"'adamw'.*adam, rmsprop, sgd"):
        Optimizer(vector(), "adamw")


@pytest.mark.parametrize("rule", TORCH)
def test_a_saved_optimizer_goes_on_bit_for_bit(rule, tmp_path):
    w = vector()
    optimizer = Optimizer(w, rule, LR, anneal_updates=30)
    xs = batches(20, 33)
    for x in xs[:10]:
        optimizer.step(wavy(w, x))
    optimizer.step(w.sum() * math.nan)
    other = w.detach().clone().requires_grad_()
    other.grad = torch.zeros_like(w)
    path = checkpoint.save(tmp_path, 1, optimizer.state(), {})
    restored = Optimizer(other, rule, LR, anneal_updates=30)
    restored.restore(checkpoint.load(path).tree)
    for x in xs[10:]:
        optimizer.step(wavy(w, x))
        restored.step(wavy(other, x))
    assert torch.equal(w, other)
    assert (restored.updates, restored.skipped) == (20, 1)
