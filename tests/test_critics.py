"""Networks of continuous actions, and the sentences about a user's own."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from covey import critics
from covey.errors import UserError
from covey.nets import Encoder, as_obs
from covey.spaces import spec_of

Box = gym.spaces.Box
MOVES = Box(-2, 2, (2,))
RECORDS = gym.spaces.Dict({"x": Box(-1, 1, (3,)), "tool": gym.spaces.Discrete(5)})
PLAIN = spec_of("Env", Box(-1, 1, (3,)), MOVES)


def zeros(spec, num=4):
    return as_obs(np.zeros((num, *spec.obs_shape), spec.obs_dtype))


@pytest.mark.parametrize("space", [Box(-1, 1, (3,)), Box(0, 255, (40, 40), np.uint8), RECORDS])
@pytest.mark.parametrize("outputs", [1, 51])
def test_policy_and_critic_of_any_observation(space, outputs):
    spec = spec_of("Env", space, MOVES)
    pair = critics.PolicyAndCritic(spec, (8, 6), outputs, normalize=True)
    action = pair.policy(zeros(spec))
    assert action.shape == (4, 2)
    assert pair.critic(zeros(spec), action).shape == (4, outputs)


def test_a_critic_reads_the_action_beside_the_observation():
    torch.manual_seed(0)
    critic = critics.Critic(PLAIN, (), 1, normalize=False)
    obs, action = torch.randn(4, 3), torch.randn(4, 2)
    layer = critic.layers[-1]
    wanted = obs @ layer.weight[0, :3] + action @ layer.weight[0, 3:] + layer.bias
    torch.testing.assert_close(critic(obs, action).squeeze(1), wanted)


def test_they_share_nothing_and_begin_near_zero():
    torch.manual_seed(1)
    pair = critics.PolicyAndCritic(PLAIN, (64, 64), 1, normalize=True)
    ours = {id(x) for x in [*pair.policy.parameters(), *pair.policy.buffers()]}
    assert not ours & {id(x) for x in [*pair.critic.parameters(), *pair.critic.buffers()]}
    assert sum(isinstance(m, Encoder) for m in pair.modules()) == 2
    obs = torch.randn(100, 3)
    assert pair.policy(obs).abs().max() < 0.05
    assert pair.critic(obs, torch.rand(100, 2)).abs().max() < 0.05


def test_actions_stay_inside():
    pair = critics.PolicyAndCritic(PLAIN, (8,), 1, normalize=False)
    with torch.no_grad():
        pair.policy[-2].weight.fill_(1000)
    assert pair.policy(torch.randn(50, 3) * 100).abs().max() <= 1


class Judge(nn.Module):
    """A user's own critic."""

    def __init__(self, outputs=1):
        super().__init__()
        self.layer = nn.Linear(5, outputs)

    def forward(self, obs, action):
        return self.layer(torch.cat([obs, action], dim=1))


def pair(policy=None, critic=None):
    squashed = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    return nn.ModuleDict({"policy": policy or squashed, "critic": critic or Judge()})


def far(x):
    return nn.Sequential(nn.Linear(3, 2), nn.Threshold(1e9, x))


def test_a_pair_that_fits_is_taken_as_it_is():
    own = pair()
    assert critics.chosen(own, PLAIN, (8,), 1, normalize=False) is own
    assert critics.chosen(pair(far(-1.0)), PLAIN, (8,), 1, normalize=False)
    made = critics.chosen(None, PLAIN, (8,), 1, normalize=True)
    assert isinstance(made, critics.PolicyAndCritic)


NEEDED = "needs two modules: policy"


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (pair(nn.Linear(3, 3), nn.Bilinear(3, 3, 1)), r"policy must return 2 .* gave \[\(3, 3\), "),
        (pair(critic=Judge(5)), r"its critic 1 for each of .* gave \[\(3, 2\), \(3, 5\)\]"),
        (pair(far(-1.5)), r"2 numbers in \[-1, 1\]"),
        (pair(nn.Linear(4, 2)), r"failed on 3 observations of shape \(3,\): mat1 and mat2"),
        (nn.Linear(3, 2), NEEDED),
        (nn.ModuleDict({"policy": nn.Linear(3, 2)}), NEEDED),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_in_a_sentence(own, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        critics.chosen(own, PLAIN, (8,), 1, normalize=False)
    assert "\n" not in str(caught.value)


def test_a_users_pair_has_no_normaliser():
    with pytest.raises(UserError, match="normalize"):
        critics.chosen(pair(), PLAIN, (8,), 1, normalize=True)
