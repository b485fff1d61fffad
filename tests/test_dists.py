"""Sampling in numpy and densities in torch tell of the same distribution."""

import numpy as np
import pytest
import torch

from covey.dists import Categorical, Gaussian, policy_of
from covey.types import Leaf, Spec

LEAVES = {"": Leaf((2,), np.dtype(np.float32))}
SAMPLES = 40_000


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_choices_come_as_often_as_softmax_says(seed):
    logits = normal(5, seed=seed) * 1.5
    rng = np.random.default_rng(seed + 10)
    action, _ = Categorical(5).sample(np.tile(logits, (SAMPLES, 1)), rng)
    seen = np.bincount(action, minlength=5)
    wanted = SAMPLES * np.exp(logits) / np.exp(logits).sum()
    assert ((seen - wanted) ** 2 / wanted).sum() < 18.5  # chi-square of 4, one in a thousand


def test_rows_are_sampled_independently():
    logits = np.zeros((SAMPLES, 2), np.float32)
    action, _ = Categorical(2).sample(logits, np.random.default_rng(3))
    pairs = np.bincount(action[::2] * 2 + action[1::2], minlength=4)
    assert ((pairs - SAMPLES / 8) ** 2 / (SAMPLES / 8)).sum() < 16.3  # chi-square of 3


def test_sampled_log_probability_is_torchs():
    params = normal(200, 6) * 3
    policy = Categorical(6)
    action, logp = policy.sample(params, np.random.default_rng(1))
    got = policy.logp(torch.from_numpy(params), torch.from_numpy(action))
    wanted = torch.distributions.Categorical(logits=torch.from_numpy(params))
    np.testing.assert_allclose(logp, got.numpy(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got, wanted.log_prob(torch.from_numpy(action)))
    torch.testing.assert_close(policy.entropy(torch.from_numpy(params)), wanted.entropy())
    assert action.dtype == np.int64
    assert logp.dtype == np.float32


def test_sampling_leaves_the_logits_alone():
    params = normal(4, 3)
    kept = params.copy()
    Categorical(3).sample(params, np.random.default_rng(0))
    np.testing.assert_array_equal(params, kept)


def test_great_logits_neither_overflow_nor_lose():
    params = np.array([[1e4, 0.0], [-1e4, 0.0]], np.float32)
    action, logp = Categorical(2).sample(params, np.random.default_rng(0))
    assert action.tolist() == [0, 1]
    assert logp.tolist() == [0.0, 0.0]
    assert Categorical(2).entropy(torch.from_numpy(params)).tolist() == [0.0, 0.0]


def test_gaussian_samples_have_its_moments():
    params = np.tile(np.array([1.0, -2.0, np.log(0.5), np.log(3.0)], np.float32), (SAMPLES, 1))
    action, _ = Gaussian(2).sample(params, np.random.default_rng(4))
    assert action.dtype == np.float32
    error = 5 / np.sqrt(SAMPLES)  # five standard errors
    np.testing.assert_allclose((action.mean(0) - [1, -2]) / [0.5, 3], 0, atol=error)
    np.testing.assert_allclose(action.std(0) / [0.5, 3], 1, atol=error)
    assert abs(np.corrcoef(action.T)[0, 1]) < error


def test_gaussian_density_is_torchs():
    params = normal(200, 6)
    policy = Gaussian(3)
    action, logp = policy.sample(params, np.random.default_rng(5))
    torch_params, torch_action = torch.from_numpy(params), torch.from_numpy(action)
    got = policy.logp(torch_params, torch_action)
    wanted = torch.distributions.Normal(torch_params[:, :3], torch_params[:, 3:].exp())
    np.testing.assert_allclose(logp, got.numpy(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got, wanted.log_prob(torch_action).sum(-1))
    torch.testing.assert_close(policy.entropy(torch_params), wanted.entropy().sum(-1))


def test_gaussian_density_to_six_digits():
    params = normal(200, 6) * np.float32(0.3)
    action, logp = Gaussian(3).sample(params, np.random.default_rng(6))
    got = Gaussian(3).logp(torch.from_numpy(params).double(), torch.from_numpy(action).double())
    np.testing.assert_allclose(logp, got.numpy(), rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize("policy", [Categorical(4), Gaussian(2)])
def test_densities_differentiate(policy):
    params = torch.from_numpy(normal(5, 4)).double().requires_grad_()
    action = torch.arange(5) % 4 if isinstance(policy, Categorical) else torch.ones(5, 2).double()
    assert torch.autograd.gradcheck(lambda p: policy.logp(p, action), params)
    assert torch.autograd.gradcheck(policy.entropy, params)


def test_mode():
    params = np.array([[0.0, 3.0, 1.0, -1.0], [2.0, -3.0, 0.0, 0.0]], np.float32)
    assert Categorical(4).mode(params).tolist() == [1, 0]
    assert Gaussian(2).mode(params).tolist() == [[0.0, 3.0], [2.0, -3.0]]


def test_the_space_decides():
    assert policy_of(Spec(LEAVES, num_actions=3, action_dim=0)).width == 3
    assert policy_of(Spec(LEAVES, num_actions=0, action_dim=3)).width == 6
