"""The forward pass in numpy says what torch says, always."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from covey.critics import Critic, PolicyAndCritic
from covey.infer import critic_forward, policy_forward
from covey.nets import ActorCritic, QNet, as_obs
from covey.optim import flatten
from covey.spaces import spec_of

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
CHOICES = Discrete(3)
MOVES = Box(-1, 1, (2,))


def spec(obs=None, action=CHOICES):
    return spec_of("Env", Box(-1, 1, (5,)) if obs is None else obs, action)


def observations(made, num=9, seed=0):
    """Whatever the space holds, as rows."""
    rng = np.random.default_rng(seed)
    out = np.zeros((num, *made.obs_shape), made.obs_dtype)
    for name, leaf in made.leaves.items():
        part = out[name] if name else out
        part[...] = rng.integers(0, min(leaf.sizes or (3,)), part.shape)
        if leaf.dtype.kind == "f":
            part[...] = rng.normal(size=part.shape) * 3
    return out


def agrees(module, made, through, seed=0):
    torch.manual_seed(seed)
    forward, by = policy_forward(module, made)
    assert by == through
    same(forward, module, made)
    return forward


def same(forward, module, made, seed=0):
    obs = observations(made, seed=seed)
    with torch.no_grad():
        out = module(as_obs(obs.copy()))
    wanted = out[0] if isinstance(out, tuple) else out
    np.testing.assert_allclose(forward(obs), wanted.numpy(), rtol=1e-5, atol=1e-5)


def shown(module, made):
    """A normaliser that has seen something."""
    module.encoder.update(as_obs(observations(made, 50, seed=1)))
    return module


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 8)])
def test_q_net(dueling, normalize, hidden):
    module = QNet(spec(), hidden, dueling, normalize)
    forward = agrees(module, spec(), "numpy")
    same(forward, shown(module, spec()), spec())


def test_quantiles_of_each_action():
    module = QNet(spec(), (16,), dueling=False, normalize=True, quantiles=7)
    forward = agrees(module, spec(), "numpy")
    assert forward(observations(spec())).shape == (9, 21)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("hidden", [(), (16, 8)])
def test_a_deterministic_policy(hidden, normalize):
    made = spec(action=MOVES)
    module = PolicyAndCritic(made, hidden, 1, normalize).policy
    forward = agrees(module, made, "numpy")
    with torch.no_grad():
        module[-2].weight.mul_(300)  # else it says next to nothing
    module[0].update(as_obs(observations(made, 50, seed=1)))
    same(forward, module, made)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("obs", [Box(-1, 1, (5,)), Box(0, 255, (8, 8, 3), np.uint8), "records"])
def test_a_critic_follows_its_weights(obs, normalize):
    made = spec(RECORDS if obs == "records" else obs, MOVES)
    critic = Critic(made, (16, 8), 4, normalize)
    flat = flatten(critic)
    forward = critic_forward(critic, made)
    assert ("through_torch" in forward.__qualname__) == (len(made.obs_shape) != 1)
    action = np.random.default_rng(1).uniform(-1, 1, (9, 2)).astype(np.float32)
    for seed in range(3):
        with torch.no_grad():
            flat.add_(torch.randn(flat.shape, generator=torch.Generator().manual_seed(seed)))
        critic.encoder.update(as_obs(observations(made, 50, seed=seed)))
        rows = observations(made, seed=seed + 5)
        with torch.no_grad():
            wanted = critic(as_obs(rows), torch.from_numpy(action))
        np.testing.assert_allclose(forward(rows, action), wanted.numpy(), rtol=1e-4, atol=1e-4)


def test_a_users_critic_goes_through_torch():
    class Own(Critic):
        def forward(self, obs, action_NA):
            return super().forward(obs, action_NA) * 2

    made = spec(action=MOVES)
    critic, action = Own(made, (8,), 1, False), np.zeros((9, 2), np.float32)
    wanted = critic(as_obs(observations(made)), torch.from_numpy(action)).detach().numpy()
    np.testing.assert_allclose(critic_forward(critic, made)(observations(made), action), wanted)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("action", [CHOICES, MOVES])
def test_actor_critic(action, activation, normalize):
    made = spec(action=action)
    module = ActorCritic(made, (16, 8), activation, normalize, -0.3)
    forward = agrees(module, made, "numpy")
    same(forward, shown(module, made), made)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)],
        [nn.Linear(5, 8, bias=False), nn.Tanh(), nn.Linear(8, 3)],
        [nn.Flatten(), nn.Linear(5, 3)],
    ],
)
def test_a_users_sequence(layers):
    agrees(nn.Sequential(*layers), spec(), "numpy")


UNKNOWN = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3))
RECORDS = gym.spaces.Dict({"a": Box(-1, 1, (2,)), "b": Discrete(4)})


@pytest.mark.parametrize(
    ("made", "build"),
    [
        (spec(Box(0, 255, (40, 40), np.uint8)), lambda s: QNet(s, (16,), True, False)),
        (spec(Box(0, 255, (8, 8, 3), np.uint8)), lambda s: ActorCritic(s, (8,), "tanh", False, 0)),
        (spec(RECORDS), lambda s: QNet(s, (16,), True, True)),
        (spec(RECORDS, MOVES), lambda s: ActorCritic(s, (8,), "tanh", True, 0.0)),
        (spec(Discrete(6)), lambda s: QNet(s, (16,), True, True)),
        (spec(), lambda s: UNKNOWN),
    ],
)
def test_what_numpy_does_not_know_is_left_to_torch(made, build):
    agrees(build(made), made, "torch")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.int64])
@pytest.mark.parametrize("normalize", [False, True])
def test_whole_numbers_as_features(dtype, normalize):
    made = spec(Box(0, 100, (5,), dtype))
    module = QNet(made, (16,), True, normalize)
    forward = agrees(module, made, "numpy")
    same(forward, shown(module, made) if normalize else module, made)
    assert forward(observations(made)).dtype == np.float32


@pytest.mark.parametrize("dueling", [False, True])
def test_it_follows_the_weights_without_being_made_anew(dueling):
    module = QNet(spec(), (16,), dueling, normalize=True)
    flat = flatten(module)
    forward, _ = policy_forward(module, spec())
    for seed in range(3):
        with torch.no_grad():
            flat.add_(torch.randn(flat.shape, generator=torch.Generator().manual_seed(seed)))
        module.encoder.update(torch.randn(20, 5) * 3)
        same(forward, module, spec(), seed)


def test_it_follows_loaded_weights_and_the_deviation():
    made = spec(action=MOVES)
    module, other = (ActorCritic(made, (8,), "tanh", True, x) for x in (0.0, -1.0))
    shown(other, made)
    flatten(module)
    forward, _ = policy_forward(module, made)
    module.load_state_dict(other.state_dict())
    same(forward, other, made)
    np.testing.assert_array_equal(forward(observations(made))[:, 2:], -1)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.ReLU(), nn.Linear(5, 3)],
        [nn.Tanh(), nn.Linear(5, 3)],
        [nn.Flatten(), nn.ReLU(), nn.Linear(5, 3)],
    ],
)
def test_observations_are_left_as_they_were(layers):
    forward, _ = policy_forward(nn.Sequential(*layers), spec())
    obs = observations(spec())
    kept = obs.copy()
    first = forward(obs)
    np.testing.assert_array_equal(obs, kept)
    np.testing.assert_array_equal(forward(obs), first)


def test_a_reparametrised_layer_is_followed_too():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))
    module = nn.Sequential(layer)
    forward, _ = policy_forward(module, spec())
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(3.0)
    same(forward, module, spec())


def test_a_partial_flatten_is_right():
    made = spec(Box(-1, 1, (2, 3, 4)))
    module = nn.Sequential(nn.Flatten(2), nn.Linear(12, 3), nn.Flatten())
    same(policy_forward(module, made)[0], module, made)
