"""Networks for continuous actions: a deterministic policy, and a critic of what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from covey.errors import UserError
from covey.nets import Encoder, Obs, Tanh, as_obs, constant, mlp
from covey.types import Spec

FIRST_WEIGHTS = 3e-3  # of last layers: neither tanh nor q begins far from 0 (Lillicrap et al. 2016)


class Critic(nn.Module):
    """What an action is worth: one number, or as many as describe its distribution."""

    def __init__(self, spec: Spec, hidden: Sequence[int], outputs: int, normalize: bool) -> None:
        super().__init__()
        self.encoder = Encoder(spec, normalize)
        sizes = [self.encoder.size + spec.action_dim, *hidden]
        self.layers = nn.Sequential(*mlp(sizes, "relu"), last(sizes[-1], outputs))

    def forward(self, obs: Obs, action_NA: Tensor) -> Tensor:
        """outputs_NP."""
        out_NP: Tensor = self.layers(torch.cat([self.encoder(obs), action_NA], dim=1))
        return out_NP


class PolicyAndCritic(nn.Module):
    """Two networks that share nothing: `policy(obs)` and `critic(obs, action)`."""

    def __init__(self, spec: Spec, hidden: Sequence[int], outputs: int, normalize: bool) -> None:
        super().__init__()
        encoder = Encoder(spec, normalize)
        sizes = [encoder.size, *hidden]
        self.policy = nn.Sequential(
            encoder, *mlp(sizes, "relu"), last(sizes[-1], spec.action_dim), Tanh()
        )
        self.critic = Critic(spec, hidden, outputs, normalize)


def last(inputs: int, outputs: int) -> nn.Linear:
    """A layer that says almost nothing at first."""
    layer = nn.Linear(inputs, outputs)
    nn.init.uniform_(layer.weight, -FIRST_WEIGHTS, FIRST_WEIGHTS)
    nn.init.uniform_(layer.bias, -FIRST_WEIGHTS, FIRST_WEIGHTS)
    return layer


def chosen(
    network: nn.Module | None, spec: Spec, hidden: Sequence[int], outputs: int, normalize: bool
) -> PolicyAndCritic:
    """The user's own pair of networks, if it fits, or ours."""
    if network is None:
        return PolicyAndCritic(spec, hidden, outputs, normalize)
    if normalize:
        raise UserError("normalize belongs to covey's own network; set normalize=false.")
    pair = cast(PolicyAndCritic, network)  # any module with these two parts will do
    if not all(isinstance(getattr(pair, n, None), nn.Module) for n in ("policy", "critic")):
        raise UserError(
            "the network needs two modules: policy, called with N observations, and critic, called "
            "with N observations and actions."
        )
    check_user_pair(pair, spec, outputs)
    return pair


def check_user_pair(pair: PolicyAndCritic, spec: Spec, outputs: int) -> None:
    """What a user's own say of N observations must have the right form and range."""
    obs = as_obs(np.zeros((3, *spec.obs_shape), spec.obs_dtype))
    try:
        with constant(pair):
            action_NA = pair.policy(obs)
            out_NP = pair.critic(obs, action_NA)
            said = [tuple(action_NA.shape), tuple(out_NP.shape)]
            inside = float(action_NA.abs().max()) <= 1
    except Exception as error:  # any failure of foreign code becomes one sentence
        raise UserError(
            f"the network failed on 3 observations of shape {spec.obs_shape}: {error}"
        ) from error
    if said != [(3, spec.action_dim), (3, outputs)] or not inside:
        raise UserError(
            f"the network's policy must return {spec.action_dim} numbers in [-1, 1] and its critic "
            f"{outputs} for each of N observations; for 3 they gave {said}."
        )
