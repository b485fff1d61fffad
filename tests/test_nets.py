"""Networks for every kind of observation, and the sentences about a user's own."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from covey import nets
from covey.errors import UserError
from covey.optim import flatten
from covey.spaces import spec_of
from covey.types import Leaf, Spec

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
CHOICES = Discrete(4)
MOVES = Box(-1, 1, (2,))
U8, F32, I64 = np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.int64)


def spec(space, action=CHOICES):
    return spec_of("Env", space, action)


def image(*shape):
    return Box(0, 255, shape, np.uint8)


def zeros(spec, num=3):
    return nets.as_obs(np.zeros((num, *spec.obs_shape), spec.obs_dtype))


RECORDS = gym.spaces.Dict({
    "camera": image(40, 40, 3), "near": gym.spaces.Dict({"x": MOVES}), "tool": Discrete(5),
})  # fmt: skip


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (Box(-1, 1, (6,)), 6),
        (Box(-1, 1, (3, 4), np.float64), 12),
        (Box(0, 255, (128,), np.uint8), 128),
        (image(84, 84), 512),
        (image(84, 84, 1), 512),
        (image(1, 84, 84), 512),
        (image(84, 84, 3), 512),
        (image(4, 84, 84), 512),
        (image(36, 40, 3), 512),
        (image(8, 8, 3), 512),
        (Discrete(7), 7),
        (Discrete(7, start=-3), 7),
        (gym.spaces.MultiDiscrete([3, 4]), 7),
        (gym.spaces.MultiDiscrete([[3, 4], [2, 2]]), 11),
        (gym.spaces.MultiBinary(5), 5),
        (RECORDS, 512 + 2 + 5),
    ],
)
def test_encoder_makes_feature_rows_of_any_space(space, size):
    made = spec(space)
    encoder = nets.Encoder(made, normalize=True)
    assert encoder.size == size
    assert encoder(zeros(made)).shape == (3, size)
    assert encoder(zeros(made)).dtype == torch.float32
    encoder.update(zeros(made))


@pytest.mark.parametrize(
    ("leaf", "values", "wanted"),
    [
        (Leaf((2, 2), F32), [[[1, 2], [3, 4]]], [[1, 2, 3, 4]]),
        (Leaf((), I64, (3,)), [2, 0], [[0, 0, 1], [1, 0, 0]]),
        (Leaf((2,), I64, (2, 3)), [[1, 2], [0, 1]], [[0, 1, 0, 0, 1], [1, 0, 0, 1, 0]]),
    ],
)
def test_features_of_numbers(leaf, values, wanted):
    encoder = nets.Encoder(Spec({"": leaf}, num_actions=2, action_dim=0))
    assert encoder(torch.from_numpy(np.array(values, leaf.dtype))).tolist() == wanted


def test_features_of_records_stand_side_by_side_in_order():
    made = Spec({"b": Leaf((2,), F32), "a.c": Leaf((), I64, (2,))}, num_actions=2, action_dim=0)
    rows = np.array([([5, 6], 1), ([7, 8], 0)], made.obs_dtype)
    encoder = nets.Encoder(made)
    assert encoder(nets.as_obs(rows)).tolist() == [[5, 6, 0, 1], [7, 8, 1, 0]]


@pytest.mark.parametrize("name", ["obs", "a/b", "items", "keys", "training", "with space"])
def test_any_entry_name_will_do(name):
    for entry in (MOVES, image(8, 8, 3)):
        made = spec(gym.spaces.Dict({name: entry, "other": MOVES}))
        encoder = nets.Encoder(made, normalize=True)
        encoder.update(zeros(made))
        assert encoder(zeros(made)).shape == (3, encoder.size)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((84, 84), (1, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 1), (1, 84, 84)),
    ],
)
def test_pixels_put_channels_first_and_bytes_into_0_to_1(shape, wanted):
    pixels = nets.Pixels(Leaf(shape, U8))
    assert pixels.shape == wanted
    x = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
    channels_last = wanted[1:] == shape[:2]
    moved = x.reshape(2, *wanted) if not channels_last else np.moveaxis(x.reshape(2, *shape), -1, 1)
    if len(shape) == 2:
        moved = x[:, None]
    np.testing.assert_allclose(pixels(torch.from_numpy(x)).numpy(), moved / 255, rtol=1e-6)


def test_half_convolves_in_bfloat16_and_keeps_weights_and_what_it_says_in_float32():
    made, x = spec(Box(0, 255, (4, 40, 40), np.uint8)), torch.randint(0, 256, (5, 4, 40, 40))
    whole = nets.QNet(made, (8,), dueling=True, normalize=False)
    half = nets.QNet(made, (8,), dueling=True, normalize=False, half=True)
    half.load_state_dict(whole.state_dict())
    seen = []
    half.encoder.parts[0][1].register_forward_hook(lambda *of: seen.append(of[2].dtype))
    said, exact = half(x.to(torch.uint8)), whole(x.to(torch.uint8))
    assert (seen, said.dtype) == ([torch.bfloat16], torch.float32)
    torch.testing.assert_close(said, exact, rtol=0.05, atol=0.005)
    assert not torch.equal(said, exact)
    for net, out in ((half, said), (whole, exact)):
        out.square().sum().backward()
        assert {p.dtype for p in net.parameters()} == {p.grad.dtype for p in net.parameters()}
    for (name, p), q in zip(half.named_parameters(), whole.parameters(), strict=True):
        near = torch.nn.functional.cosine_similarity(p.grad.ravel(), q.grad.ravel(), dim=0)
        assert near > 0.98, name


@pytest.mark.parametrize("sizes", [[100], [1, 1, 98], [30, 50, 20]])
def test_normalize_has_the_moments_of_all_rows(sizes):
    rows = np.random.default_rng(1).normal([5, -100, 0], [1, 20, 1e-3], (100, 3))
    rows = rows.astype(np.float32)
    normalize = nets.Normalize(3)
    for chunk in np.split(rows, np.cumsum(sizes)[:-1]):
        normalize.update(torch.from_numpy(chunk))
    exact = rows.astype(np.float64)
    np.testing.assert_allclose(normalize.moments[0].numpy(), 100)
    np.testing.assert_allclose(normalize.moments[1].numpy(), exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalize.moments[2].numpy() / 100, exact.var(0), rtol=1e-9)
    got = normalize(torch.from_numpy(rows)).numpy()
    wanted = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-8)
    np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_normalize_changes_nothing_at_first_and_clips():
    normalize = nets.Normalize(1)
    assert normalize(torch.tensor([[3.0], [11.0], [-99.0]])).tolist() == [[3.0], [10.0], [-10.0]]


def test_dueling_is_value_plus_centred_advantage():
    torch.manual_seed(0)
    made = spec(Box(-1, 1, (3,)))
    net = nets.QNet(made, (16,), dueling=True, normalize=False)
    x = torch.randn(5, 3)
    hidden = net.trunk(x)
    advantage, value = net.advantage(hidden), net.value(hidden)
    wanted = value + (advantage - advantage.mean(1, keepdim=True))
    torch.testing.assert_close(net(x), wanted)
    torch.testing.assert_close(net(x).mean(1, keepdim=True), value)
    plain = nets.QNet(made, (), dueling=False, normalize=False)
    torch.testing.assert_close(plain(x), plain.advantage(x))


@pytest.mark.parametrize("space", [Box(-1, 1, (3,)), image(40, 40), RECORDS])
@pytest.mark.parametrize(("action", "width"), [(CHOICES, 4), (MOVES, 4)])
def test_actor_critic_says_a_policy_and_a_value(space, action, width):
    made = spec(space, action)
    net = nets.ActorCritic(made, (8,), "tanh", normalize=True, log_std=-0.5)
    params, value = net(zeros(made))
    assert params.shape == (3, width)
    assert value.shape == (3,)
    if action is MOVES:
        assert params[:, 2:].tolist() == [[-0.5, -0.5]] * 3


def test_actor_critic_begins_near_uniform_with_orthogonal_layers():
    torch.manual_seed(1)
    net = nets.ActorCritic(spec(Box(-1, 1, (8,))), (8, 8), "tanh", False, 0.0)
    weight = net.actor[0].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(8), atol=1e-5, rtol=0)
    assert net.policy.weight.abs().max() < 0.01
    assert all(m.bias.abs().sum() == 0 for m in net.modules() if isinstance(m, nn.Linear))


def test_fast_tanh_is_tanh():
    x = torch.linspace(-12, 12, 1001)
    torch.testing.assert_close(nets.FastTanh.apply(x), torch.tanh(x), rtol=1e-6, atol=1e-7)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    nets.Tanh()(ours).square().sum().backward()
    torch.tanh(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    exact = torch.randn(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(nets.FastTanh.apply, exact)


def test_weights_are_views_of_all_that_acting_needs():
    made = spec(Box(-1, 1, (3,)))
    net, other = (nets.QNet(made, (4,), dueling=False, normalize=True) for _ in range(2))
    flat, others_flat = flatten(net), flatten(other)
    net.encoder.update(torch.randn(9, 3))
    obs = torch.randn(5, 3)
    assert not torch.equal(other(obs), net(obs))
    given, into = nets.weights(net, flat), nets.weights(other, others_flat)
    assert given.keys() == into.keys() == {"flat", *dict(net.named_buffers())}
    assert len(given) > 1  # what normalises is no parameter
    for name, value in given.items():
        into[name][...] = value
    nets.load(other, others_flat, into)
    assert torch.equal(other(obs), net(obs))


def test_load_weights_writes_in_place():
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    address = net.weight.data_ptr()
    nets.load_weights(net, {k: v.numpy() for k, v in other.state_dict().items()})
    assert torch.equal(net.weight, other.weight)
    assert net.weight.data_ptr() == address


class Says(nn.Module):
    """A network that says what it is told to."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def forward(self, obs):
        return self.out


PLAIN = spec(Box(-1, 1, (6,)))
ROWS, VALUES = torch.zeros(3, 4), torch.zeros(3)


def test_a_network_that_fits_is_accepted():
    nets.check_user_network(nn.Linear(6, 4), PLAIN, 4, with_value=False)
    nets.check_user_network(Says((ROWS, VALUES)), PLAIN, 4, with_value=True)
    nets.check_user_network(Says((ROWS, VALUES)), spec(RECORDS), 4, with_value=True)


@pytest.mark.parametrize(
    ("out", "with_value", "sentence"),
    [
        (torch.zeros(3, 5), False, r"must return 4 numbers each for N .* gave \[\(3, 5\)\]"),
        (torch.zeros(4), False, r"gave \[\(4,\)\]"),
        ((ROWS, VALUES), False, r"must return 4 numbers each .* gave \[\(3, 4\), \(3,\)\]"),
        (ROWS, True, r"must return \(4 numbers each, a value each\) .* gave \[\(3, 4\)\]"),
        ((ROWS, torch.zeros(3, 1)), True, r"gave \[\(3, 4\), \(3, 1\)\]"),
        ([ROWS, VALUES], True, "the network must return"),
        ({"q": ROWS}, False, "the network must return"),
        ((ROWS, None), True, "the network must return"),
    ],
)
def test_a_network_that_says_something_else_is_refused(out, with_value, sentence):
    with pytest.raises(UserError, match=sentence):
        nets.check_user_network(Says(out), PLAIN, 4, with_value)


def test_a_network_that_fails_is_refused_with_its_reason():
    with pytest.raises(UserError, match=r"failed on 3 observations of shape \(6,\): mat1 and mat2"):
        nets.check_user_network(nn.Linear(5, 4), PLAIN, 4, with_value=False)
