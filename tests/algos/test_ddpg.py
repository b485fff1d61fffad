"""DDPG: its update against the two gradients of the paper, its targets, its noise; a bandit."""

import numpy as np
import pytest
import torch
from torch import nn

from covey.algos.ddpg import DDPG
from covey.optim import follow

GAMMA = 0.9


def agent(spec, seed=0, network=None, **settings):
    torch.manual_seed(seed)
    settings = {
        "hidden": (16,), "gamma": GAMMA, "n_step": 1, "max_norm": 1e9, "slope_limit": 0.0,
        **settings,
    }  # fmt: skip
    made = DDPG(spec, DDPG.Config(**settings), np.random.default_rng(seed), network)
    with torch.no_grad():
        made.optimizer.flat.mul_(3)  # last layers begin near 0
    return made


def batch(tell, spec, made, seed=0):
    return made.rows(tell(spec, seed=seed).unroll)


def gradients(made, rows, loss):
    """Of the critic by its temporal difference, of the policy by -q through the critic."""
    module, target = made.module, made.pair.target
    t = {name: torch.from_numpy(column) for name, column in rows.items()}
    with torch.no_grad():
        next_q = target.critic(t["next_obs"], target.policy(t["next_obs"])).squeeze(1)
        wanted = t["return"] + t["discount"] * next_q
    critic_loss = loss(module.critic(t["obs"], t["action"]).squeeze(1), wanted)
    of_critic = torch.autograd.grad(critic_loss, list(module.critic.parameters()))
    actor_loss = -module.critic(t["obs"], module.policy(t["obs"])).mean()
    of_policy = torch.autograd.grad(actor_loss, list(module.policy.parameters()))
    return torch.cat([g.reshape(-1) for g in [*of_policy, *of_critic]]), critic_loss.item()


LOSSES = {"huber": nn.functional.smooth_l1_loss, "squared": nn.functional.mse_loss}


@pytest.mark.parametrize("loss", LOSSES)
def test_one_update_has_the_gradients_of_the_paper(tell, continuous, loss):
    made = agent(continuous, loss=loss, target_every=100)
    made.learn(batch(tell, continuous, made))  # now networks and targets differ
    rows = batch(tell, continuous, made, seed=1)
    wanted, critic_loss = gradients(made, rows, LOSSES[loss])
    said = made.learn(rows).metrics
    torch.testing.assert_close(made.optimizer.flat.grad, wanted, rtol=1e-4, atol=1e-6)
    assert said["loss"] == pytest.approx(critic_loss, rel=1e-5)
    assert said["grad_norm"] == pytest.approx(wanted.norm().item(), rel=1e-4)


def test_slopes_are_clipped_one_by_one(tell, continuous):
    limit = 2e-3
    free, bound = agent(continuous), agent(continuous, slope_limit=limit)
    before = agent(continuous).module
    rows = batch(tell, continuous, free)
    free.learn(rows)
    bound.learn(rows)
    num = sum(p.numel() for p in before.policy.parameters())
    one, other = free.optimizer.flat.grad, bound.optimizer.flat.grad
    assert torch.equal(one[num:], other[num:])  # the critic's
    obs = torch.from_numpy(rows["obs"])
    action = before.policy(obs)
    at = action.detach().requires_grad_()
    (slope,) = torch.autograd.grad(before.critic(obs, at).sum(), at)
    assert 0.2 < (slope.abs() > limit).float().mean() < 0.8
    loss = -(slope.clamp(-limit, limit) * action).sum(dim=1).mean()
    wanted = torch.autograd.grad(loss, list(before.policy.parameters()))
    flat = torch.cat([g.reshape(-1) for g in wanted])
    torch.testing.assert_close(other[:num], flat, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("every", "tau"), [(1, 0.1), (3, 1.0), (2, 0.5)])
def test_the_targets_move_a_share_of_the_way_every_so_often(tell, continuous, every, tau):
    made = agent(continuous, target_every=every, tau=tau, lr=0.01, normalize=True)
    rows = batch(tell, continuous, made)

    def target():
        return torch.cat([p.reshape(-1) for p in made.pair.target.parameters()])

    for number in range(1, 7):
        before = target().clone()
        made.learn(rows)
        share = tau if number % every == 0 else 0.0
        wanted = before + share * (made.optimizer.flat.detach() - before)
        torch.testing.assert_close(target(), wanted, rtol=1e-5, atol=1e-7)
        assert torch.equal(target(), before) == (share == 0)
    seen = made.pair.target_policy(rows["obs"])
    np.testing.assert_allclose(
        seen, made.pair.target.policy(torch.from_numpy(rows["obs"])).detach(), atol=1e-5
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_the_policy_goes_where_the_reward_is(continuous, loss):
    """A bandit: reward -|a - (0.5, -0.3)|^2."""
    made, best = agent(continuous, lr=3e-3, hidden=(64,), loss=loss), np.float32([0.5, -0.3])
    rng = np.random.default_rng(0)
    obs = np.zeros((64, 4), np.float32)
    for _ in range(1000):
        action = rng.uniform(-1, 1, (64, 2)).astype(np.float32)
        made.learn({
            "obs": obs, "action": action, "return": -np.square(action - best).sum(axis=1),
            "discount": np.zeros(64, np.float32), "next_obs": obs,
        })  # fmt: skip
    np.testing.assert_allclose(made.act(obs[:1], greedy=True)[0][0], best, atol=0.2)


def test_noise_is_gaussian_and_greedy_has_none(continuous):
    made = agent(continuous, noise_low=0.1, noise_high=0.1)
    obs = np.zeros((20_000, 4), np.float32)
    best = made.act(obs, greedy=True)[0]
    assert (best == made.pair.policy(obs)).all()
    assert np.abs(best).max() < 0.5
    noise = made.act(obs)[0] - best
    assert noise.mean() == pytest.approx(0, abs=2e-3)
    assert noise.std() == pytest.approx(0.1, abs=2e-3)
    assert (np.abs(noise) < 0.1).mean() == pytest.approx(0.6827, abs=0.01)
    wild = agent(continuous, noise_low=5.0, noise_high=5.0).act(obs)[0]
    assert wild.dtype == np.float32
    assert np.abs(wild).max() == 1.0


def test_a_users_networks_learn(tell, continuous):
    policy = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    own = nn.ModuleDict({"policy": policy, "critic": nn.Bilinear(4, 2, 1)})
    made = agent(continuous, network=own)
    follow(made.pair.target, made.module, 1.0)
    rows = batch(tell, continuous, made)
    wanted, _ = gradients(made, rows, LOSSES["huber"])
    before = made.optimizer.flat.detach().clone()
    made.learn(rows)
    torch.testing.assert_close(made.optimizer.flat.grad, wanted, rtol=1e-4, atol=1e-6)
    assert (made.optimizer.flat != before).all()
