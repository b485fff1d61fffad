"""Two networks and their slow copies: what each says is what torch says of the same weights."""

import numpy as np
import pytest
import torch

from covey.dpg import Pair
from covey.types import Leaf, Spec

SPEC = Spec({"": Leaf((3,), np.dtype(np.float32))}, num_actions=0, action_dim=2)
RNG = np.random.default_rng(0)
ROWS = {
    "obs": RNG.normal(size=(9, 3)).astype(np.float32),
    "next_obs": RNG.normal(size=(9, 3)).astype(np.float32),
    "action": RNG.uniform(-1, 1, (9, 2)).astype(np.float32),
}


def made(normalize=False, outputs=4):
    torch.manual_seed(0)
    pair = Pair(SPEC, "cpu", None, (8,), outputs, normalize)
    with torch.no_grad():
        pair.flat.add_(torch.randn(pair.flat.shape) / 2)  # the slow copies stay behind
    return pair


@pytest.mark.parametrize("normalize", [False, True])
def test_each_forward_is_of_its_own_network(normalize):
    pair = made(normalize)
    pair.learnt(ROWS, follows=False, tau=1.0)
    obs, after = torch.from_numpy(ROWS["obs"]), torch.from_numpy(ROWS["next_obs"])
    action = torch.from_numpy(ROWS["action"])
    with torch.no_grad():
        for said, wanted in (
            (pair.policy(ROWS["obs"]), pair.module.policy(obs)),
            (pair.critic(ROWS["obs"], ROWS["action"]), pair.module.critic(obs, action)),
            (pair.judged(ROWS), pair.module.critic(obs, action)),
            (pair.next_critic(ROWS), pair.module.critic(after, pair.module.policy(after))),
            (pair.next_target(ROWS), pair.target.critic(after, pair.target.policy(after))),
        ):
            np.testing.assert_allclose(np.asarray(said), wanted.numpy(), rtol=1e-4, atol=1e-5)
    assert not np.allclose(pair.next_critic(ROWS), pair.next_target(ROWS), atol=0.1)
    assert pair.inference == "numpy"


def test_the_actors_loss_moves_the_policy_alone():
    pair = made()
    pair.flat.grad.zero_()
    pair.actor_loss(ROWS, lambda out: out.mean(dim=1), limit=np.inf).backward()
    assert all(p.grad.abs().sum() == 0 for p in pair.module.critic.parameters())
    got = [p.grad.clone() for p in pair.module.policy.parameters()]
    obs = torch.from_numpy(ROWS["obs"])
    loss = -pair.module.critic(obs, pair.module.policy(obs)).mean()
    wanted = torch.autograd.grad(loss, list(pair.module.policy.parameters()))
    torch.testing.assert_close(got, list(wanted))


@pytest.mark.parametrize(("follows", "share"), [(False, 0.0), (True, 0.25)])
def test_slow_copies_follow_when_told_and_statistics_always(follows, share):
    pair = made(normalize=True)
    before = torch.cat([p.reshape(-1) for p in pair.target.parameters()])
    pair.learnt(ROWS, follows, tau=0.25)
    after = torch.cat([p.reshape(-1) for p in pair.target.parameters()])
    torch.testing.assert_close(after, before + share * (pair.flat.detach() - before))
    for part in (pair.module.policy[0], pair.module.critic.encoder):
        assert part.parts[0].normalize.moments[0].tolist() == [9.0] * 3
    counts = [n for n in pair.target.buffers() if n.shape == (3, 3)]
    assert [n[0].tolist() for n in counts] == [[9.0 * follows] * 3] * 2


def test_noise_is_spread_over_the_environments():
    pair = made()
    obs, rng = np.zeros((2, 3), np.float32), np.random.default_rng(1)
    best = pair.policy(obs)
    taken = np.array([pair.act(obs, (0.0, 0.1), (0, 1), rng) for _ in range(2000)])
    assert (taken[:, 0] == best[0]).all()
    assert np.median(np.abs(taken[:, 1] - best[1])) == pytest.approx(0.06745, abs=4e-3)
