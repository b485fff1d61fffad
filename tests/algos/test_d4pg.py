"""D4PG with either head: its update against slow words, distributions against a known law."""

import numpy as np
import pytest
import torch

from covey.algos.d4pg import D4PG
from covey.errors import UserError

GAMMA = 0.9
HEADS = {
    "categorical": {"head": "categorical", "atoms": 11, "v_min": -5.0, "v_max": 5.0},
    "quantile": {"head": "quantile", "atoms": 8},
}
both = pytest.mark.parametrize("head", HEADS)


def agent(spec, head, seed=0, **settings):
    torch.manual_seed(seed)
    settings = {"hidden": (16,), "gamma": GAMMA, "n_step": 1, "max_norm": 1e9, **HEADS[head],
                **settings}  # fmt: skip
    made = D4PG(spec, D4PG.Config(**settings), np.random.default_rng(seed))
    with torch.no_grad():
        made.optimizer.flat.mul_(3)  # last layers begin near 0
    return made


def batch(tell, spec, made, seed=0):
    return made.rows(tell(spec, seed=seed).unroll)


def slow_projected(prob, total, discount):
    """Bellemare et al. 2017, algorithm 1, on 11 atoms from -5 to 5."""
    out = np.zeros(11)
    for j, p in enumerate(prob):
        place = min(max(total + discount * (j - 5), -5), 5) + 5
        below = min(int(place), 9)
        out[below] += p * (below + 1 - place)
        out[below + 1] += p * (place - below)
    return out


def slow_row(head, said, after, total, discount):
    """The loss of one row."""
    if head == "categorical":
        target = slow_projected(after.softmax(0).tolist(), total, discount)
        return -(torch.tensor(target, dtype=torch.float32) * said.log_softmax(0)).sum()
    loss = 0.0
    for i in range(8):
        for wanted in after.tolist():  # every quantile against every target
            u = total + discount * wanted - said[i]
            huber = torch.where(u.abs() <= 1, 0.5 * u * u, u.abs() - 0.5)
            loss = loss + abs((i + 0.5) / 8 - float(u < 0)) * huber / 8
    return loss


def mean(head, said):
    atoms = torch.linspace(-5, 5, 11)
    return (said.softmax(1) * atoms).sum(1) if head == "categorical" else said.mean(1)


@both
def test_one_update_has_the_gradients_of_the_paper(tell, continuous, head):
    made = agent(continuous, head)
    made.learn(batch(tell, continuous, made))  # now networks and targets differ
    rows = batch(tell, continuous, made, seed=1)
    num = len(rows["return"])
    rows["weight"] = np.linspace(0.1, 1, num, dtype=np.float32)
    module, target = made.module, made.pair.target
    obs, after = torch.from_numpy(rows["obs"]), torch.from_numpy(rows["next_obs"])
    said = module.critic(obs, torch.from_numpy(rows["action"]))
    with torch.no_grad():
        next_said = target.critic(after, target.policy(after))
    numbers = zip(rows["return"].tolist(), rows["discount"].tolist(), strict=True)
    losses = [slow_row(head, said[i], next_said[i], *both) for i, both in enumerate(numbers)]
    loss = sum(float(w) * one for w, one in zip(rows["weight"], losses, strict=True)) / num
    of_critic = torch.autograd.grad(loss, list(module.critic.parameters()))
    actor_loss = -mean(head, module.critic(obs, module.policy(obs))).mean()
    of_policy = torch.autograd.grad(actor_loss, list(module.policy.parameters()))
    told = made.learn(rows)
    wanted = torch.cat([g.reshape(-1) for g in [*of_policy, *of_critic]])
    torch.testing.assert_close(made.optimizer.flat.grad, wanted, rtol=1e-3, atol=1e-6)
    assert told.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)


@both
def test_priorities_are_errors_of_means(tell, continuous, head):
    made = agent(continuous, head)
    unroll = tell(continuous).unroll
    rows = made.rows(unroll)
    with torch.no_grad():
        t = {name: torch.from_numpy(column) for name, column in rows.items()}
        q = mean(head, made.module.critic(t["obs"], t["action"]))
        after = made.module.critic(t["next_obs"], made.module.policy(t["next_obs"]))
        error = (t["return"] + t["discount"] * mean(head, after) - q).abs().numpy()
    inside = np.abs(rows["return"]) + 5 * rows["discount"] <= 5 if head == "categorical" else ...
    assert np.size(error[inside]) > 0
    found = made.priorities(unroll, rows)
    np.testing.assert_allclose(found[inside], error[inside], rtol=1e-4, atol=1e-5)


@both
def test_it_learns_a_distribution_not_its_mean(continuous, head):
    """The reward is -2 or 4, as likely: its mean 1 never happens."""
    made = agent(continuous, head, lr=0.01, kappa=0.01)
    obs, action = np.zeros((64, 4), np.float32), np.zeros((64, 2), np.float32)
    rows = {
        "obs": obs, "action": action, "return": np.tile(np.float32([-2, 4]), 32),
        "discount": np.zeros(64, np.float32), "next_obs": obs,
    }  # fmt: skip
    for _ in range(700):
        made.learn(rows)
    said = torch.from_numpy(made.pair.critic(obs[:1], action[:1]))
    if head == "categorical":
        prob = said.softmax(dim=1)[0]
        assert prob[3].item() == pytest.approx(0.5, abs=0.05)
        assert prob[9].item() == pytest.approx(0.5, abs=0.05)
    else:
        np.testing.assert_allclose(said[0].numpy(), [-2] * 4 + [4] * 4, atol=0.6)
    assert made.q(said).item() == pytest.approx(1.0, abs=0.3)


@both
def test_the_policy_goes_where_the_reward_is(continuous, head):
    """A bandit: reward -|a - (0.5, -0.3)|^2."""
    made, best = agent(continuous, head, lr=3e-3, hidden=(64,)), np.float32([0.5, -0.3])
    rng, obs = np.random.default_rng(0), np.zeros((64, 4), np.float32)
    for _ in range(1000):
        action = rng.uniform(-1, 1, (64, 2)).astype(np.float32)
        made.learn({
            "obs": obs, "action": action, "return": -np.square(action - best).sum(axis=1),
            "discount": np.zeros(64, np.float32), "next_obs": obs,
        })  # fmt: skip
    np.testing.assert_allclose(made.act(obs[:1], greedy=True)[0][0], best, atol=0.2)


@both
def test_noise_is_gaussian_and_greedy_has_none(continuous, head):
    made = agent(continuous, head)
    obs = np.zeros((20_000, 4), np.float32)
    best = made.act(obs, greedy=True)[0]
    assert np.abs(best).max() < 0.4
    inside = np.abs(made.act(obs)[0] - best)
    assert np.median(inside) == pytest.approx(0.6745 * 0.3, abs=3e-3)
    np.testing.assert_array_equal(made.act(obs, greedy=True)[0], best)


def test_atoms_must_have_an_order(continuous):
    with pytest.raises(UserError, match=r"v_min = 5 must be below v_max = 5\."):
        agent(continuous, "categorical", v_min=5.0)


def test_the_papers_constants_are_the_defaults():
    c = D4PG.Config()
    assert (c.lr, c.n_step, c.atoms, c.hidden, c.head) == (1e-4, 5, 51, (400, 300), "categorical")
    assert (c.noise_low, c.noise_high, c.gamma, c.target_every, c.tau) == (0.3, 0.3, 0.99, 100, 1.0)
