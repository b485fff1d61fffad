"""PPO: which rows each update sees, and its gradient against torch's own distributions."""

import numpy as np
import pytest
import torch

from covey import checkpoint
from covey.algos.ppo import PPO, minibatch
from covey.types import Leaf, Spec


def agent(spec, seed=0, **settings):
    torch.manual_seed(seed)
    settings = {"hidden": (16,), "max_norm": 1e9, "epochs": 1, "minibatch": 1000, **settings}
    return PPO(spec, PPO.Config(**settings), np.random.default_rng(seed))


def numbered(num):
    """Rows whose return says which one it is."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(num, 4)).astype(np.float32),
        "action": rng.integers(3, size=num),
        "logp": np.full(num, -1.1, np.float32),
        "advantage": rng.normal(size=num).astype(np.float32),
        "return": np.arange(num, dtype=np.float32),
    }


@pytest.mark.parametrize(
    ("num", "size", "sizes"),
    [
        (12, 4, [4, 4, 4]),
        (10, 4, [5, 5]),
        (11, 4, [3, 4, 4]),
        (3, 64, [3]),
        (5, 1, [1, 1, 1, 1, 1]),
        (70, 64, [70]),
    ],
)
def test_every_epoch_shows_every_row_once(discrete, monkeypatch, num, size, sizes):
    ppo = agent(discrete, epochs=3, minibatch=size)
    seen = []
    original = ppo._loss

    def record(batch):
        seen.append(batch["return"].int().tolist())
        assert torch.equal(batch["obs"], torch.from_numpy(rows["obs"])[seen[-1]])
        return original(batch)

    monkeypatch.setattr(ppo, "_loss", record)
    rows = numbered(num)
    ppo.learn(rows)
    assert [len(part) for part in seen] == sizes * 3
    assert ppo.updates == len(sizes) * 3
    flat = [i for part in seen for i in part]
    orders = [flat[i : i + num] for i in range(0, len(flat), num)]
    assert all(sorted(order) == list(range(num)) for order in orders)
    if num > 9:
        assert orders[0] != orders[1] != orders[2]


def slow_loss(ppo, rows, continuous=False):
    """Schulman et al. 2017, eq. 7 and 9, with each case of the minimum spelt out."""
    c = ppo.config
    params, value = ppo.module(torch.from_numpy(rows["obs"]))
    if continuous:
        normal = torch.distributions.Normal(params[:, :2], params[:, 2:].exp())
        policy = torch.distributions.Independent(normal, 1)
    else:
        policy = torch.distributions.Categorical(logits=params)
    ratio = policy.log_prob(torch.from_numpy(rows["action"])).exp()
    ratio = ratio / torch.from_numpy(rows["logp"]).exp()
    advantage = torch.from_numpy(rows["advantage"])
    if c.scale_advantage:
        advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    total = 0.0
    for r, a in zip(ratio, advantage, strict=True):
        bound = 1 + c.clip if a > 0 else 1 - c.clip
        cut = r > bound if a > 0 else r < bound
        total = total + (bound * a if cut else r * a)
    error = (value - torch.from_numpy(rows["return"])).pow(2).mean()
    return -total / len(ratio) + c.value * error - c.entropy * policy.entropy().mean()


@pytest.mark.parametrize("scale_advantage", [False, True])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_one_update_has_the_gradient_of_the_paper(tell, request, kind, scale_advantage):
    spec = request.getfixturevalue(kind)
    ppo = agent(spec, scale_advantage=scale_advantage, entropy=0.05)
    rows = ppo.rows(tell(spec).unroll)
    loss = slow_loss(ppo, rows, kind == "continuous")
    grads = torch.autograd.grad(loss, list(ppo.module.parameters()))
    wanted = torch.cat([g.reshape(-1) for g in grads])
    said = ppo.learn(rows).metrics
    torch.testing.assert_close(ppo.optimizer.flat.grad, wanted, rtol=1e-4, atol=1e-5)
    assert said["grad_norm"] == pytest.approx(wanted.norm().item(), rel=1e-4)
    assert ppo.updates == 1


def test_one_update_moves_the_weights_as_adam_does(discrete):
    ppo = agent(discrete, lr=0.01)
    rows = numbered(20)
    torch.manual_seed(0)
    other = PPO(discrete, ppo.config, np.random.default_rng(0))
    reference = torch.optim.Adam(other.module.parameters(), lr=0.01, eps=1e-5)
    slow_loss(other, rows).backward()
    reference.step()
    ppo.learn(rows)
    torch.testing.assert_close(ppo.actor.flat, other.actor.flat, rtol=1e-4, atol=1e-5)


def test_fresh_rows_have_a_ratio_of_one(tell, discrete):
    ppo = agent(discrete, lr=1e-9)
    unroll = tell(discrete).unroll
    for t in range(unroll.num_steps):
        unroll.action_TB[t], extra = ppo.act(unroll.obs_TB[t])
        unroll.extra["logp"][t] = extra["logp"]
    said = ppo.learn(ppo.rows(unroll)).metrics
    assert said["kl"] == pytest.approx(0, abs=1e-5)
    assert said["policy_loss"] == pytest.approx(0, abs=1e-5)  # of centred advantages


def test_the_clip_anneals_with_the_step_size(discrete):
    ppo = agent(discrete, anneal_updates=4, clip=0.2, scale_advantage=False)
    rows = numbered(8)
    rows["advantage"][:] = 1
    params, _ = ppo.module(torch.from_numpy(rows["obs"]))
    logp = ppo.actor.policy.logp(params, torch.from_numpy(rows["action"])).detach().numpy()
    batch = {k: torch.from_numpy(v) for k, v in {**rows, "logp": logp - 1}.items()}
    cut = []
    for ppo.optimizer.apply.updates in (0, 2, 4):
        cut.append(-ppo._loss(batch)[1]["policy_loss"].item())
    assert cut == pytest.approx([1.2, 1.1, 1.0])


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_the_normaliser_learns_after_all_epochs(tell, request, kind):
    spec = request.getfixturevalue(kind)
    ppo = agent(spec, normalize=True, epochs=2, minibatch=10)
    rows = ppo.rows(tell(spec).unroll)
    normalize = ppo.module.encoder.parts[0].normalize
    ppo.learn(rows)
    assert normalize.moments[0].tolist() == [len(rows["obs"])] * 4  # once, not once an epoch
    np.testing.assert_allclose(normalize.mean.numpy(), rows["obs"].mean(0), atol=1e-6)


def test_records_are_cut_one_level_down():
    x = torch.arange(6)
    got = minibatch({"obs": {"a": x, "b": -x}, "action": x}, slice(2, 4))
    assert got["obs"]["a"].tolist() == got["action"].tolist() == [2, 3]
    assert got["obs"]["b"].tolist() == [-2, -3]


@pytest.mark.parametrize("normalize", [False, True])
def test_records_are_learnt(normalize):
    leaves = {"x": Leaf((2,), np.dtype(np.float32)), "n": Leaf((), np.dtype(np.int64), (9,))}
    spec = Spec(leaves, num_actions=3, action_dim=0)
    ppo = agent(spec, epochs=2, minibatch=4, normalize=normalize)
    obs = np.zeros(9, spec.obs_dtype)
    obs["n"] = np.arange(9)
    ppo.learn({**numbered(9), "obs": obs})
    assert ppo.updates == 4
    assert ppo.act(obs)[0].shape == (9,)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_a_saved_agent_goes_on_bit_for_bit(tell, request, kind, tmp_path):
    spec = request.getfixturevalue(kind)
    settings = {"normalize": True, "epochs": 2, "minibatch": 10, "anneal_updates": 40}
    first, second = (agent(spec, seed, **settings) for seed in (1, 2))
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
