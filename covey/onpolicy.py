"""What on-policy algorithms share: an actor that samples, and advantages."""

from __future__ import annotations

import numpy as np
from torch import nn

from covey import infer, nets
from covey.dists import policy_of
from covey.optim import Apply, flatten
from covey.returns import gae
from covey.types import Array, Spec, Unroll


class Actor:
    """A network that says a policy and a value, and the policy's own random numbers."""

    def __init__(
        self, spec: Spec, rng: np.random.Generator, device: str, network: nn.Module | None,
        hidden: tuple[int, ...], activation: str, normalize: bool, log_std: float,
        apply: Apply | None = None,
    ) -> None:  # fmt: skip
        self.rng, self.policy = rng, policy_of(spec)
        own = nets.chosen(
            network,
            lambda: nets.ActorCritic(spec, hidden, activation, normalize, log_std),
            spec, self.policy.width, with_value=True, normalize=normalize,
        )  # fmt: skip
        self.module = own.to(device)
        self.flat = flatten(self.module, apply)
        self.forward, self.inference = infer.policy_forward(self.module, spec)

    def act(self, obs_B: Array, greedy: bool) -> tuple[Array, dict[str, Array]]:
        """A sample and its log probability, or the mode."""
        params_BP = self.forward(obs_B)
        if greedy:
            return self.policy.mode(params_BP), {}
        action_B, logp_B = self.policy.sample(params_BP, self.rng)
        return action_B, {"logp": logp_B}


def advantage_rows(
    module: nn.Module, unroll: Unroll, gamma: float, lambda_: float, device: str
) -> dict[str, Array]:
    """A row for each valid step: what was done, how much better than expected, and the return."""
    u = unroll
    obs_NX = u.obs_TB.reshape(-1, *u.obs_TB.shape[2:])
    final_NX = [final.obs[None] for final in u.finals]
    with nets.constant(module):
        _, value_N = module(nets.as_obs(np.concatenate([obs_NX, *final_NX]), device))
    value_N = value_N.cpu().numpy()
    value_TB = value_N[: len(obs_NX)].reshape(len(u.obs_TB), -1)
    next_value_TB = value_TB[1:].copy()
    for i, final in enumerate(u.finals):
        next_value_TB[final.t, final.b] = value_N[len(obs_NX) + i]
    advantage_TB = gae(
        u.reward_TB, u.discount_TB, u.last_TB, value_TB[:-1], next_value_TB, gamma, lambda_
    )
    keep_TB = u.valid_TB
    return {
        "obs": u.obs_TB[:-1][keep_TB],
        "action": u.action_TB[keep_TB],
        "logp": u.extra["logp"][keep_TB],
        "advantage": advantage_TB[keep_TB],
        "return": (advantage_TB + value_TB[:-1])[keep_TB],
    }
