"""Policies as distributions: sampled in numpy to act, differentiated in torch to learn.

Both read `params_NP`, the numbers a network says: logits, or means beside log standard deviations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from covey.types import Array, Spec

if TYPE_CHECKING:
    from torch import Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Categorical:
    """One of A choices with probability softmax(params)."""

    def __init__(self, num_actions: int) -> None:
        self.width = num_actions

    def sample(self, params_BP: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions, and the log probability of each."""
        logp_BA = params_BP - params_BP.max(axis=1, keepdims=True)
        logp_BA -= np.log(np.exp(logp_BA).sum(axis=1, keepdims=True))
        # Gumbel's trick: the arg max of logits plus Gumbel noise is a sample of their softmax
        noise_BA = -np.log(rng.standard_exponential(logp_BA.shape))
        action_B = (logp_BA + noise_BA).argmax(axis=1)
        return action_B, logp_BA[np.arange(len(action_B)), action_B]

    def mode(self, params_BP: Array) -> Array:
        """The likeliest action."""
        action_B: Array = params_BP.argmax(axis=1)
        return action_B

    def logp(self, params_NP: Tensor, action_N: Tensor) -> Tensor:
        """log pi(a|s)."""
        from torch.nn.functional import cross_entropy

        return -cross_entropy(params_NP, action_N, reduction="none")

    def entropy(self, params_NP: Tensor) -> Tensor:
        """Entropy of pi(.|s)."""
        logp_NA = params_NP.log_softmax(dim=-1)
        return -(logp_NA.exp() * logp_NA).sum(dim=-1)


class Gaussian:
    """A normal for each action dimension, independent of the others."""

    def __init__(self, action_dim: int) -> None:
        self.width = 2 * action_dim

    def sample(self, params_BP: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions, and the log density of each."""
        mean_BA, log_std_BA = np.split(params_BP, 2, axis=1)
        z_BA = rng.standard_normal(mean_BA.shape, dtype=np.float32)
        logp_B = (-0.5 * z_BA**2 - log_std_BA - HALF_LOG_2PI).sum(axis=1)
        return mean_BA + np.exp(log_std_BA) * z_BA, logp_B

    def mode(self, params_BP: Array) -> Array:
        """The mean."""
        return params_BP[:, : self.width // 2]

    def logp(self, params_NP: Tensor, action_NA: Tensor) -> Tensor:
        """log pi(a|s)."""
        mean_NA, log_std_NA = params_NP.chunk(2, dim=-1)
        z_NA = (action_NA - mean_NA) * (-log_std_NA).exp()
        return (-0.5 * z_NA.square() - log_std_NA - HALF_LOG_2PI).sum(dim=-1)

    def entropy(self, params_NP: Tensor) -> Tensor:
        """Entropy of pi(.|s)."""
        _, log_std_NA = params_NP.chunk(2, dim=-1)
        return (log_std_NA + 0.5 + HALF_LOG_2PI).sum(dim=-1)


def policy_of(spec: Spec) -> Categorical | Gaussian:
    """The distribution that fits the action space."""
    return Categorical(spec.num_actions) if spec.discrete else Gaussian(spec.action_dim)
