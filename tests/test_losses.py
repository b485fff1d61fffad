"""Losses on tables, against slow loops from the papers, and their gradients."""

import math

import numpy as np
import pytest
import torch

from covey import losses

F64 = torch.float64


def random(*shape, seed=0, grad=False):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return made.requires_grad_(grad)


@pytest.mark.parametrize(
    ("error", "kappa", "wanted"),
    [(0.0, 1.0, 0.0), (0.5, 1.0, 0.125), (-1.0, 1.0, 0.5), (3.0, 1.0, 2.5), (-3.0, 2.0, 4.0)],
)
def test_huber(error, kappa, wanted):
    assert losses.huber(torch.tensor([error]), kappa).tolist() == [wanted]


def slow_quantile_huber(theta, target, kappa):
    """Dabney et al. 2018, eq. 9 and 10, for one row."""
    total = 0.0
    for i, predicted in enumerate(theta):
        tau = (2 * i + 1) / (2 * len(theta))
        for wanted in target:
            u = wanted - predicted
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            total += abs(tau - (1.0 if u < 0 else 0.0)) * huber / kappa / len(target)
    return total


@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_quantile_huber_is_eq_10(kappa, seed):
    theta, target = random(4, 5, seed=seed) * 2, random(4, 7, seed=seed + 50) * 2
    pairs = zip(theta.tolist(), target.tolist(), strict=True)
    wanted = [slow_quantile_huber(a, b, kappa) for a, b in pairs]
    assert losses.quantile_huber(theta, target, kappa).tolist() == pytest.approx(wanted)


def test_quantile_huber_by_hand():
    # u = 2 for tau 1/4 and -1 for tau 3/4: 1/4 * 1.5 + |3/4 - 1| * 0.5
    got = losses.quantile_huber(torch.tensor([[0.0, 3.0]]), torch.tensor([[2.0]]))
    assert got.tolist() == [0.25 * 1.5 + 0.25 * 0.5]


def slow_projection(prob, reward, discount, atoms):
    """Bellemare et al. 2017, algorithm 1, for one row."""
    low, high, num = atoms[0], atoms[-1], len(atoms)
    out = [0.0] * num
    for p, z in zip(prob, atoms, strict=True):
        shifted = min(max(reward + discount * z, low), high)
        b = round((shifted - low) / ((high - low) / (num - 1)), 9)
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:  # the published loop loses this mass; every implementation puts it here
            out[lower] += p
        else:
            out[lower] += p * (upper - b)
            out[upper] += p * (b - lower)
    return out


ATOMS = [-2.0, -1.0, 0.0, 1.0, 2.0]
SHIFTS = [
    (0.0, 1.0),  # on the atoms
    (1.0, 1.0),  # on the atoms, the last one clipped
    (0.3, 0.9),
    (-0.75, 0.5),
    (10.0, 1.0),  # all clipped above
    (-10.0, 1.0),  # all clipped below
    (0.5, 0.0),  # terminated: half way between two atoms
    (1.0, 0.0),  # terminated: on an atom
]


@pytest.mark.parametrize(("reward", "discount"), SHIFTS)
def test_projection_is_algorithm_1(reward, discount):
    prob = random(3, 5, seed=4).softmax(dim=1)
    got = losses.categorical_projection(
        prob, torch.full((3,), reward, dtype=F64), torch.full((3,), discount, dtype=F64),
        torch.tensor(ATOMS, dtype=F64),
    )  # fmt: skip
    wanted = [slow_projection(p, reward, discount, ATOMS) for p in prob.tolist()]
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-12)
    np.testing.assert_allclose(got.sum(dim=1).numpy(), 1.0, atol=1e-12)


def test_projection_of_51_float_atoms_keeps_the_mass():
    atoms = torch.linspace(-10, 10, 51)
    prob = random(64, 51, seed=5).softmax(dim=1).float()
    reward, discount = random(64, seed=6).float() * 5, random(64, seed=7).float().abs().clamp(0, 1)
    got = losses.categorical_projection(prob, reward, discount, atoms)
    wanted = [
        slow_projection(p, r, d, atoms.tolist())
        for p, r, d in zip(prob.tolist(), reward.tolist(), discount.tolist(), strict=True)
    ]
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-5)
    np.testing.assert_allclose(got.sum(dim=1).numpy(), 1.0, atol=1e-5)


def test_categorical_loss_is_cross_entropy():
    logits, target = random(6, 5, seed=8), random(6, 5, seed=9).softmax(dim=1)
    wanted = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(losses.categorical_loss(logits, target), wanted)
    uniform = losses.categorical_loss(torch.zeros(1, 4), torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    assert uniform.item() == pytest.approx(math.log(4))


def toy_q(weight, target):
    """A critic with a parameter: -w |a - target|^2 of each row."""
    return lambda action: -weight * (action - target).square().sum(dim=1, keepdim=True)


def test_deterministic_surrogate_is_the_gradient_through_a_frozen_critic():
    target, weight = random(6, 3, seed=30), torch.tensor(2.5, dtype=F64, requires_grad=True)
    x, theta = random(6, 3, seed=31), random(3, 3, seed=32, grad=True)
    q = toy_q(weight, target)
    loss = losses.deterministic_surrogate(q, (x @ theta).tanh()).mean()
    got = torch.autograd.grad(loss, [theta, weight], allow_unused=True)
    wanted = torch.autograd.grad(-q((x @ theta).tanh()).mean(), theta)
    torch.testing.assert_close(got[0], wanted[0])
    assert got[1] is None  # nothing of it reaches the critic
    assert weight.grad is None


def test_deterministic_surrogate_clips_each_slope():
    action = torch.tensor([[0.5, -0.2], [0.1, 0.3]], requires_grad=True)
    slope = torch.tensor([[3.0, -0.5], [-7.0, 1.0]])
    loss = losses.deterministic_surrogate(lambda a: (slope * a).sum(dim=1), action, limit=1.0)
    assert loss.tolist() == pytest.approx([-(1.0 * 0.5 + -0.5 * -0.2), -(-1.0 * 0.1 + 1.0 * 0.3)])
    loss.sum().backward()
    assert action.grad.tolist() == [[-1.0, 0.5], [1.0, -1.0]]


def test_policy_gradient():
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = losses.policy_gradient(logp, torch.tensor([3.0, -0.5]))
    assert loss.tolist() == [3.0, -1.0]
    loss.sum().backward()
    assert logp.grad.tolist() == [-3.0, 0.5]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),  # slope: d loss / d log ratio
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.0, -2.0, 2.0, 2.0),
        (1.1, 2.0, -2.2, -2.2),
        (0.9, -2.0, 1.8, 1.8),
        (1.5, 2.0, -2.4, 0.0),  # gained enough: cut
        (1.5, -2.0, 3.0, 3.0),  # must come back: not cut
        (0.5, 2.0, -1.0, -1.0),  # must come back: not cut
        (0.5, -2.0, 1.6, 0.0),  # lost enough: cut
    ],
)
def test_clipped_surrogate(ratio, advantage, loss, slope):
    old = torch.tensor([-1.3], dtype=F64)
    logp = (old + math.log(ratio)).requires_grad_()
    got = losses.clipped_surrogate(logp, old, torch.tensor([advantage], dtype=F64), 0.2)
    got.sum().backward()
    assert got.item() == pytest.approx(loss)
    assert logp.grad.item() == pytest.approx(slope)


def test_scaled():
    got = losses.scaled(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    wanted = (np.array([1, 2, 3, 6]) - 3) / np.sqrt(3.5)
    assert got.tolist() == pytest.approx(wanted.tolist())
    assert losses.scaled(torch.tensor([5.0])).tolist() == [0.0]
    assert losses.scaled(torch.tensor([5.0, 5.0])).tolist() == [0.0, 0.0]


TARGET = random(4, 6, seed=20)
PROB = TARGET.softmax(dim=1)
ACTIONS = torch.tensor([0, 5, 2, 2])
DIFFERENTIABLE = {
    "huber": lambda x: losses.huber(x, 0.7),
    "quantile_huber": lambda x: losses.quantile_huber(x, TARGET),
    "categorical_loss": lambda x: losses.categorical_loss(x, PROB),
    "policy_gradient": lambda x: losses.policy_gradient(x, TARGET),
    "clipped_surrogate": lambda x: losses.clipped_surrogate(x, TARGET, TARGET, 0.2),
    "scaled": losses.scaled,
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient(name):
    assert torch.autograd.gradcheck(DIFFERENTIABLE[name], random(4, 6, seed=21, grad=True))
