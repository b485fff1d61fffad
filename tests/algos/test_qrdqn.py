"""QR-DQN: its target and update against slow words of the paper, its quantiles against a law."""

import numpy as np
import pytest
import torch
from torch import nn

from covey.algos.qrdqn import QRDQN
from covey.errors import UserError

GAMMA, QUANTILES = 0.9, 5


def agent(spec, seed=0, network=None, **settings):
    torch.manual_seed(seed)
    settings = {
        "hidden": (16,), "gamma": GAMMA, "quantiles": QUANTILES, "max_norm": 1e9, **settings,
    }  # fmt: skip
    return QRDQN(spec, QRDQN.Config(**settings), np.random.default_rng(seed), network)


def batch(tell, spec, made, seed=0):
    return made.rows(tell(spec, seed=seed).unroll)


def slow_target(made, rows, double):
    """Row by row: the whole distribution of the action with the best mean, not the best mean."""
    for i, (total, discount) in enumerate(zip(rows["return"], rows["discount"], strict=True)):
        obs = torch.from_numpy(rows["next_obs"][i : i + 1])
        with torch.no_grad():
            theirs = made.target(obs).view(3, QUANTILES)
            chooser = made.module(obs).view(3, QUANTILES) if double else theirs
        best = max(range(3), key=lambda a: float(chooser[a].mean()))
        yield [float(total) + float(discount) * float(z) for z in theirs[best]]


@pytest.mark.parametrize("double", [True, False])
def test_the_target_is_a_distribution(tell, discrete, double):
    made = agent(discrete, lr=0.01, double=double)
    for seed in range(20):  # now the networks differ
        made.learn(batch(tell, discrete, made, seed))
    rows = batch(tell, discrete, made, seed=99)
    wanted = np.array(list(slow_target(made, rows, double)))
    np.testing.assert_allclose(made.target_quantiles(rows), wanted, rtol=1e-4, atol=1e-5)
    assert wanted.std(axis=1).max() > 0.01


def slow_loss(theta, target, kappa):
    """Every quantile against every target."""
    total = 0.0
    for i in range(QUANTILES):
        tau = (i + 0.5) / QUANTILES
        for j in range(QUANTILES):
            u = target[j] - theta[i]
            huber = torch.where(u.abs() <= kappa, 0.5 * u * u, kappa * (u.abs() - 0.5 * kappa))
            total = total + abs(tau - float(u < 0)) * huber / kappa / QUANTILES
    return total


@pytest.mark.parametrize("kappa", [1.0, 0.25])
def test_one_update_has_the_gradient_of_the_paper(tell, discrete, kappa):
    made = agent(discrete, kappa=kappa)
    rows = batch(tell, discrete, made)
    rows["weight"] = np.linspace(0.1, 1, len(rows["action"]), dtype=np.float32)
    said = made.module(torch.from_numpy(rows["obs"])).view(-1, 3, QUANTILES)
    target = torch.tensor(list(slow_target(made, rows, double=False)))
    loss = 0.0
    for i, (action, weight) in enumerate(zip(rows["action"], rows["weight"], strict=True)):
        loss = loss + float(weight) * slow_loss(said[i, action], target[i], kappa) / len(said)
    wanted = torch.autograd.grad(loss, list(made.module.parameters()))
    chosen = said.detach()[torch.arange(len(said)), torch.from_numpy(rows["action"])]
    errors = (target.mean(dim=1) - chosen.mean(dim=1)).abs().tolist()
    told = made.learn(rows)
    flat = torch.cat([g.reshape(-1) for g in wanted])
    torch.testing.assert_close(made.optimizer.flat.grad, flat, rtol=1e-4, atol=1e-6)
    assert told.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert told.priority_N == pytest.approx(errors, rel=1e-3, abs=1e-5)


def test_quantiles_go_to_those_of_the_return(discrete):
    """Rewards 0, 1, 2, ..., 9, each as likely: quantile (2i + 1) / 10 of them is 2i + 0.5."""
    made = agent(discrete, lr=0.02, eps=1e-8, kappa=0.01)
    obs = np.tile(np.float32([1, 0, 0, 0]), (10, 1))
    rows = {
        "obs": obs, "action": np.full(10, 1), "return": np.arange(10, dtype=np.float32),
        "discount": np.zeros(10, np.float32), "next_obs": obs,
    }  # fmt: skip
    for _ in range(1500):
        made.learn(rows)
    found = made.forward(obs[:1]).reshape(3, QUANTILES)[1]
    np.testing.assert_allclose(found, [0.5, 2.5, 4.5, 6.5, 8.5], atol=0.75)
    assert made.q(obs[:1])[0, 1] == pytest.approx(4.5, abs=0.4)


def test_it_acts_on_the_mean_of_each_actions_quantiles(discrete):
    made = agent(discrete, hidden=())
    with torch.no_grad():
        made.optimizer.flat.zero_()
        bias = made.module.advantage.bias.view(3, QUANTILES)
        bias[0] = torch.tensor([0.0, 0, 0, 0, 9])  # the best there may be
        bias[1] = torch.tensor([2.0, 2, 2, 2, 2])  # the best mean
        bias[2] = torch.tensor([-9.0, 4, 4, 4, 4])
    obs = np.zeros((6, 4), np.float32)
    np.testing.assert_allclose(made.q(obs), np.tile([1.8, 2.0, 1.4], (6, 1)), rtol=1e-6)
    assert (made.act(obs, greedy=True)[0] == 1).all()


def test_epsilon_falls_with_the_env_step_and_zero_is_zero(discrete):
    made = agent(discrete, eps_start=1.0, eps_end=0.0, eps_steps=100)
    obs = np.random.default_rng(0).normal(size=(9000, 4)).astype(np.float32)
    best, _ = made.act(obs, greedy=True)
    for step, share in ((0, 1 / 3), (50, 2 / 3)):
        assert (made.act(obs, step)[0] == best).mean() == pytest.approx(share, abs=0.03)
    assert (made.act(obs, 100)[0] == best).all()


def test_the_target_network_follows_every_so_many_updates(tell, discrete):
    made = agent(discrete, target_every=3, normalize=True)
    rows = batch(tell, discrete, made)
    same = []
    for _ in range(7):
        made.learn(rows)
        now, target = made.module.state_dict(), made.target.state_dict()
        same.append(all(torch.equal(now[k], target[k]) for k in now))
    assert same == [False, False, True, False, False, True, False]


def test_a_users_network_says_all_quantiles(tell, discrete):
    made = agent(discrete, network=nn.Linear(4, 3 * QUANTILES))
    before = made.module.weight.detach().clone()
    made.learn(batch(tell, discrete, made))
    assert not torch.equal(made.module.weight, before)
    with pytest.raises(UserError, match="must return 15 numbers each"):
        agent(discrete, network=nn.Linear(4, 3))


def test_the_papers_constants_are_the_defaults():
    config = QRDQN.Config()
    assert (config.quantiles, config.kappa, config.lr, config.eps) == (200, 1.0, 5e-5, 0.01 / 32)
    assert (config.target_every, config.max_norm, config.eps_end) == (10_000, 10.0, 0.01)
