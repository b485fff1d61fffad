"""A2C: its rows against a walk through time, its update against torch's own distributions."""

import numpy as np
import pytest
import torch
from torch import nn

from covey import checkpoint
from covey.algos.a2c import A2C
from covey.errors import UserError

GAMMA, LAMBDA = 0.9, 0.8


def agent(spec, seed=0, **settings):
    torch.manual_seed(seed)
    settings = {"hidden": (16,), "gamma": GAMMA, "lambda_": LAMBDA, "max_norm": 1e9, **settings}
    return A2C(spec, A2C.Config(**settings), np.random.default_rng(seed))


def slow_rows(a2c, story):
    """The sum of discounted TD errors of each real step, to the end of its episode."""
    u, after = story.unroll, {(t, b): obs for t, b, obs in story.steps}

    def value(obs):
        with torch.no_grad():
            return a2c.module(torch.from_numpy(obs[None]))[1].item()

    for t in range(u.num_steps):
        for b in range(u.reward_TB.shape[1]):
            if (t, b) not in after:
                continue
            advantage, weight = 0.0, 1.0
            for s in range(t, u.num_steps):
                future = GAMMA * u.discount_TB[s, b] * value(after[s, b])
                advantage += weight * (u.reward_TB[s, b] + future - value(u.obs_TB[s, b]))
                weight *= GAMMA * LAMBDA
                if u.last_TB[s, b]:
                    break
            yield u.obs_TB[t, b], u.action_TB[t, b], u.extra["logp"][t, b], advantage, (t, b)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("same_step", [True, False])
def test_rows_are_all_real_steps_with_their_advantages(tell, discrete, same_step, seed):
    a2c = agent(discrete)
    story = tell(discrete, steps=8, same_step=same_step, seed=seed)
    rows = a2c.rows(story.unroll)
    obs, action, logp, advantage, _ = zip(*slow_rows(a2c, story), strict=True)
    np.testing.assert_array_equal(rows["obs"], obs)
    np.testing.assert_array_equal(rows["action"], action)
    np.testing.assert_array_equal(rows["logp"], logp)
    np.testing.assert_allclose(rows["advantage"], advantage, atol=1e-5)
    with torch.no_grad():
        value = a2c.module(torch.from_numpy(np.array(obs)))[1].numpy()
    np.testing.assert_allclose(rows["return"], advantage + value, atol=1e-5)
    assert all(column.dtype != np.float64 for column in rows.values())


def slow_loss(a2c, rows, continuous):
    c = a2c.config
    params, value = a2c.module(torch.from_numpy(rows["obs"]))
    if continuous:
        normal = torch.distributions.Normal(params[:, :2], params[:, 2:].exp())
        policy = torch.distributions.Independent(normal, 1)
    else:
        policy = torch.distributions.Categorical(logits=params)
    advantage = torch.from_numpy(rows["advantage"])
    if c.scale_advantage:
        advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    gain = (policy.log_prob(torch.from_numpy(rows["action"])) * advantage).mean()
    error = (value - torch.from_numpy(rows["return"])).pow(2).mean()
    return -gain + c.value * error - c.entropy * policy.entropy().mean()


@pytest.mark.parametrize("scale_advantage", [False, True])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_one_update_has_the_gradient_of_the_paper(tell, request, kind, scale_advantage):
    spec = request.getfixturevalue(kind)
    a2c = agent(spec, scale_advantage=scale_advantage, entropy=0.1)
    rows = a2c.rows(tell(spec).unroll)
    loss = slow_loss(a2c, rows, kind == "continuous")
    grads = torch.autograd.grad(loss, list(a2c.module.parameters()))
    wanted = torch.cat([g.reshape(-1) for g in grads])
    said = a2c.learn(rows).metrics
    torch.testing.assert_close(a2c.optimizer.flat.grad, wanted, rtol=1e-5, atol=1e-6)
    assert said["grad_norm"] == pytest.approx(wanted.norm().item(), rel=1e-5)
    parts = said["policy_loss"] + 0.5 * said["value_loss"] - 0.1 * said["entropy"]
    assert parts == pytest.approx(loss.item(), rel=1e-5)
    assert a2c.updates == 1


def test_the_better_action_becomes_likelier(discrete):
    a2c = agent(discrete, lr=0.01, entropy=0.0)
    obs = np.ones((6, 4), np.float32)
    action = np.array([0, 1, 2, 0, 1, 2])
    gain = (action == 1).astype(np.float32)
    rows = {"obs": obs, "action": action, "logp": gain, "advantage": gain - 1 / 3, "return": gain}
    rows = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in rows.items()}
    for _ in range(50):
        a2c.learn(rows)
    assert a2c.act(obs, greedy=True)[0].tolist() == [1] * 6


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_acting_says_the_log_probability_of_the_policy(request, kind):
    spec = request.getfixturevalue(kind)
    a2c = agent(spec)
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    action, extra = a2c.act(obs)
    params, _ = a2c.module(torch.from_numpy(obs))
    wanted = a2c.actor.policy.logp(params, torch.from_numpy(action))
    np.testing.assert_allclose(extra["logp"], wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert (action.dtype, action.shape[1:]) == (spec.action_dtype, spec.action_shape)
    greedy, _ = a2c.act(obs, greedy=True)
    np.testing.assert_array_equal(greedy, a2c.act(obs, greedy=True)[0])


def test_the_normaliser_learns_after_the_update(tell, discrete):
    a2c = agent(discrete, normalize=True)
    rows = a2c.rows(tell(discrete).unroll)
    before = slow_loss(a2c, rows, continuous=False).item()  # with statistics of nothing
    said = a2c.learn(rows).metrics
    parts = said["policy_loss"] + 0.5 * said["value_loss"] - 0.01 * said["entropy"]
    assert parts == pytest.approx(before, rel=1e-5)
    moments = a2c.module.encoder.parts[0].normalize.moments
    assert moments[0].tolist() == [len(rows["obs"])] * 4
    np.testing.assert_allclose(moments[1].numpy(), rows["obs"].mean(0), atol=1e-6)


def test_a_users_network_must_say_a_value_and_has_no_normaliser(discrete):
    rng = np.random.default_rng(0)
    with pytest.raises(UserError, match="a value each"):
        A2C(discrete, A2C.Config(), rng, nn.Linear(4, 3))
    with pytest.raises(UserError, match="normalize"):
        A2C(discrete, A2C.Config(normalize=True), rng, agent(discrete).module)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_a_saved_agent_goes_on_bit_for_bit(tell, request, kind, tmp_path):
    spec = request.getfixturevalue(kind)
    first, second = (agent(spec, seed, normalize=True, anneal_updates=20) for seed in (1, 2))
    unrolls = [tell(spec, seed=seed).unroll for seed in range(6)]
    for unroll in unrolls[:3]:
        first.learn(first.rows(unroll))
        first.act(unroll.obs_TB[0])
    second.restore(checkpoint.load(checkpoint.save(tmp_path, 1, first.state(), {})).tree)
    for unroll in unrolls[3:]:
        assert first.learn(first.rows(unroll)).metrics == second.learn(second.rows(unroll)).metrics
        a, b = first.act(unroll.obs_TB[0]), second.act(unroll.obs_TB[0])
        np.testing.assert_array_equal(a[0], b[0])
    a, b = first.module.state_dict(), second.module.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)
