"""What deterministic policy gradients share: two networks, their slow copies, noise, the actor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from covey import critics, infer, losses, nets, optim
from covey.explore import noisy, spread
from covey.types import Array, Spec


class Pair:
    """A policy and a critic, and the copies of both that targets are read from.

    What `policy`, `critic` and their targets say is a constant, in numpy; gradients go through
    `module`.
    """

    def __init__(
        self, spec: Spec, device: str, network: nn.Module | None, hidden: tuple[int, ...],
        outputs: int, normalize: bool, apply: optim.Apply | None = None,
    ) -> None:  # fmt: skip
        self.device, self.normalize = device, normalize
        self.module = critics.chosen(network, spec, hidden, outputs, normalize).to(device)
        self.target = optim.frozen_copy(self.module, apply)
        self.flat = optim.flatten(self.module, apply)
        self.policy, self.inference = infer.policy_forward(self.module.policy, spec)
        self.critic = infer.critic_forward(self.module.critic, spec)
        self.target_policy, _ = infer.policy_forward(self.target.policy, spec)
        self.target_critic = infer.critic_forward(self.target.critic, spec)

    def act(
        self, obs_B: Array, noise: tuple[float, float], place: tuple[int, int],
        rng: np.random.Generator,
    ) -> Array:  # fmt: skip
        """The policy's actions with noise, from low to high over all actors' environments."""
        return noisy(self.policy(obs_B), spread(*noise, place, len(obs_B)), rng)

    def next_target(self, rows: dict[str, Array]) -> Array:
        """What the slow critic says of the slow policy's next actions."""
        return self.target_critic(rows["next_obs"], self.target_policy(rows["next_obs"]))

    def next_critic(self, rows: dict[str, Array]) -> Array:
        """What the critic that is learnt says of the next actions of the policy that acts."""
        return self.critic(rows["next_obs"], self.policy(rows["next_obs"]))

    def judged(self, rows: dict[str, Array]) -> Tensor:
        """What the critic says of the actions taken; gradients go through it."""
        action_NA = torch.from_numpy(rows["action"]).to(self.device)
        out_NP: Tensor = self.module.critic(nets.as_obs(rows["obs"], self.device), action_NA)
        return out_NP

    def actor_loss(
        self, rows: dict[str, Array], mean: Callable[[Tensor], Tensor], limit: float
    ) -> Tensor:
        """Of the policy alone; `mean` makes what the critic says of N rows into q_N."""
        obs = nets.as_obs(rows["obs"], self.device)
        return losses.deterministic_surrogate(
            lambda at_NA: mean(self.module.critic(obs, at_NA)), self.module.policy(obs), limit
        ).mean()

    def learnt(self, rows: dict[str, Array], follows: bool, tau: float) -> None:
        """After an update: statistics of what was seen, and the slow copies move on."""
        if self.normalize:
            nets.show(self.module, nets.as_obs(rows["obs"], self.device))
        if follows:
            optim.follow(self.target, self.module, tau)
