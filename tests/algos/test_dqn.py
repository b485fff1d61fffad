"""DQN: its rows against a walk through every window, its update against torch's own words."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from covey import checkpoint
from covey.algos.dqn import DQN
from covey.errors import UserError
from covey.spaces import spec_of
from covey.types import Final, Leaf, Spec, Unroll

GAMMA = 0.9


def agent(spec, seed=0, **settings):
    torch.manual_seed(seed)
    settings = {"hidden": (16,), "gamma": GAMMA, "n_step": 1, **settings}
    return DQN(spec, DQN.Config(**settings), np.random.default_rng(seed))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 2, 3, 12])
@pytest.mark.parametrize("same_step", [True, False])
def test_rows_are_all_whole_windows(tell, discrete, same_step, n, seed):
    story = tell(discrete, same_step=same_step, seed=seed)
    rows = agent(discrete, n_step=n).rows(story.unroll)
    obs, action, total, weight, after = zip(*story.windows(n, GAMMA), strict=True)
    np.testing.assert_array_equal(rows["obs"], obs)
    np.testing.assert_array_equal(rows["action"], action)
    np.testing.assert_allclose(rows["return"], total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows["discount"], weight, rtol=1e-6)
    kept = rows["discount"] > 0  # after termination nothing looks at what follows
    np.testing.assert_array_equal(rows["next_obs"][kept], np.array(after)[kept])


RECORD = np.dtype([("x", np.float32, (2,)), ("n", np.int64)])


def test_rows_of_records_with_a_truncated_end():
    leaves = {"x": Leaf((2,), np.dtype(np.float32)), "n": Leaf((), np.dtype(np.int64), (9,))}
    spec = Spec(leaves, num_actions=2, action_dim=0)
    assert spec.obs_dtype == RECORD
    obs = np.zeros((4, 1), RECORD)
    obs["n"][:, 0] = [0, 1, 5, 6]
    final = np.array(([3, 3], 2), RECORD)
    unroll = Unroll(
        obs, np.zeros((3, 1), np.int64), np.ones((3, 1), np.float32), np.ones((3, 1), np.float32),
        np.array([[False], [True], [False]]), np.ones((3, 1), bool), {}, [Final(1, 0, final)],
    )  # fmt: skip
    dqn = agent(spec, n_step=2)
    rows = dqn.rows(unroll)
    assert rows["next_obs"]["n"].tolist() == [2, 2]
    assert rows["next_obs"]["x"].tolist() == [[3, 3], [3, 3]]
    assert rows["return"].tolist() == pytest.approx([1.9, 1.0])
    assert np.isfinite(dqn.learn(rows).metrics["loss"])


def batch(tell, spec, dqn, seed=0):
    return dqn.rows(tell(spec, seed=seed).unroll)


def slow_loss(dqn, rows, double):
    obs, after = torch.from_numpy(rows["obs"]), torch.from_numpy(rows["next_obs"])
    reward, discount = torch.from_numpy(rows["return"]), torch.from_numpy(rows["discount"])
    with torch.no_grad():
        chooser = dqn.module if double else dqn.target
        best = chooser(after).argmax(dim=1)
        target = reward + discount * dqn.target(after)[torch.arange(len(best)), best]
    q = dqn.module(obs)[torch.arange(len(best)), torch.from_numpy(rows["action"])]
    return torch.nn.functional.smooth_l1_loss(q, target)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_one_update_has_the_gradient_of_the_paper(tell, discrete, double, dueling):
    dqn = agent(discrete, double=double, dueling=dueling, max_norm=1e9, target_every=100)
    dqn.learn(batch(tell, discrete, dqn))  # now the networks differ
    rows = batch(tell, discrete, dqn, seed=1)
    loss = slow_loss(dqn, rows, double)
    params = list(dqn.module.parameters())
    wanted = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, params)])
    said = dqn.learn(rows).metrics
    torch.testing.assert_close(dqn.optimizer.flat.grad, wanted, rtol=1e-4, atol=1e-6)
    assert said["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert said["grad_norm"] == pytest.approx(wanted.norm().item(), rel=1e-5)


def test_q_goes_to_the_target(discrete):
    dqn = agent(discrete, lr=0.01)
    obs = np.eye(4, dtype=np.float32)[:3]
    rows = {
        "obs": obs, "action": np.array([0, 1, 2]), "return": np.array([1, -2, 3], np.float32),
        "discount": np.zeros(3, np.float32), "next_obs": obs,
    }  # fmt: skip
    first = dqn.learn(rows).metrics["loss"]
    assert dqn.learn(rows).metrics["loss"] < first
    for _ in range(400):
        dqn.learn(rows)
    np.testing.assert_allclose(dqn.forward(obs)[range(3), range(3)], [1, -2, 3], atol=0.05)


def test_the_target_network_follows_every_so_many_updates(tell, discrete):
    dqn = agent(discrete, target_every=3, normalize=True)
    rows = batch(tell, discrete, dqn)
    same = []
    for _ in range(7):
        before = {k: v.clone() for k, v in dqn.target.state_dict().items()}
        dqn.learn(rows)
        now = dqn.target.state_dict()
        same.append(all(torch.equal(now[k], before[k]) for k in now))
        if not same[-1]:
            assert all(torch.equal(now[k], v) for k, v in dqn.module.state_dict().items())
    assert same == [True, True, False, True, True, False, True]
    np.testing.assert_allclose(
        dqn.target_forward(rows["obs"]), dqn.target(torch.from_numpy(rows["obs"])), atol=1e-5
    )


def test_epsilon_falls_with_the_env_step(discrete):
    dqn = agent(discrete, eps_start=1.0, eps_end=0.0, eps_steps=100)
    obs = np.random.default_rng(0).normal(size=(9000, 4)).astype(np.float32)
    best, _ = dqn.act(obs, greedy=True)
    assert (best == dqn.forward(obs).argmax(axis=1)).all()
    for step, share in ((0, 1 / 3), (50, 2 / 3), (100, 1.0)):
        assert (dqn.act(obs, step)[0] == best).mean() == pytest.approx(share, abs=0.03)
    assert (dqn.act(obs, 100)[0] == best).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("normalize", [True, False])
def test_whole_number_observations_are_learnt(dtype, normalize):
    spec = spec_of("Env", gym.spaces.Box(0, 9, (4,), dtype), gym.spaces.Discrete(3))
    dqn = agent(spec, normalize=normalize)
    obs = np.arange(20).reshape(5, 4).astype(dtype)
    ones = np.ones(5, np.float32)
    rows = {"obs": obs, "action": np.array([0, 1, 2, 0, 1]), "return": ones, "discount": ones}
    said = dqn.learn({**rows, "next_obs": obs[::-1].copy()}).metrics
    assert np.isfinite(said["loss"])


def test_the_normaliser_learns_after_the_update(tell, discrete):
    dqn = agent(discrete, normalize=True)
    rows = batch(tell, discrete, dqn)
    loss = slow_loss(dqn, rows, double=True).item()  # with statistics of nothing
    assert dqn.learn(rows).metrics["loss"] == pytest.approx(loss, rel=1e-5)
    moments = dqn.module.encoder.parts[0].normalize.moments
    assert moments[0].tolist() == [len(rows["obs"])] * 4
    np.testing.assert_allclose(moments[1].numpy(), rows["obs"].mean(0), atol=1e-6)


def test_a_users_network_has_no_normaliser(discrete):
    with pytest.raises(UserError, match="normalize"):
        DQN(discrete, DQN.Config(normalize=True), np.random.default_rng(0), nn.Linear(4, 3))


def test_a_users_network_learns(tell, discrete):
    dqn = DQN(discrete, DQN.Config(n_step=1), np.random.default_rng(0), nn.Linear(4, 3))
    rows = batch(tell, discrete, dqn)
    before = dqn.module.weight.detach().clone()
    dqn.learn(rows)
    assert not torch.equal(dqn.module.weight, before)


def test_a_saved_agent_goes_on_bit_for_bit(tell, discrete, tmp_path):
    settings = {"normalize": True, "target_every": 4, "anneal_updates": 50}
    first, second = agent(discrete, 1, **settings), agent(discrete, 2, **settings)
    rows = [batch(tell, discrete, first, seed) for seed in range(12)]
    obs = rows[0]["obs"]
    for one in rows[:6]:
        first.learn(one)
        first.act(obs, 50)
    second.restore(checkpoint.load(checkpoint.save(tmp_path, 1, first.state(), {})).tree)
    for one in rows[6:]:
        assert first.learn(one).metrics == second.learn(one).metrics
        np.testing.assert_array_equal(first.act(obs, 50)[0], second.act(obs, 50)[0])
    for network in ("module", "target"):
        a, b = getattr(first, network).state_dict(), getattr(second, network).state_dict()
        assert all(torch.equal(a[k], b[k]) for k in a)
    assert first.updates == second.updates == 12
