"""Advantage actor-critic: one gradient step on each unroll.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, with generalised advantages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from covey.config import option
from covey.types import Array, Learnt, Spec, Tree, Unroll

if TYPE_CHECKING:
    from torch import nn

    from covey.optim import Apply


@dataclass(frozen=True, slots=True, kw_only=True)
class A2CConfig:
    """Settings of A2C."""

    optimizer: str = option("rmsprop", "which optimizer", choices=("rmsprop", "adam"))
    lr: float = option(7e-4, "step size", above=0)
    eps: float = option(1e-5, "the optimizer's epsilon", above=0)
    gamma: float = option(0.99, "discount", least=0, most=1)
    lambda_: float = option(1.0, "GAE's lambda; 1 is the n-step return", least=0, most=1)
    entropy: float = option(0.01, "weight of the entropy bonus", least=0)
    value: float = option(0.5, "weight of the value loss", least=0)
    max_norm: float = option(0.5, "gradients are clipped to this norm", above=0)
    scale_advantage: bool = option(False, "centre and scale advantages in each batch")
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers", least=1)
    activation: str = option("tanh", "between layers", choices=("tanh", "relu"))
    log_std: float = option(0.0, "log standard deviation of continuous actions at first")
    normalize: bool = option(False, "scale observations by running statistics")
    anneal_updates: int = option(0, "updates over which lr falls to 0; 0 keeps it", least=0)


class A2C:
    """Samples from its policy; each unroll gives one update of policy and value together."""

    Config = A2CConfig
    actions: ClassVar = ("discrete", "continuous")
    recipes: ClassVar = ("serial", "hogwild", "a3c")
    replayed: ClassVar = False
    extra: ClassVar[dict[str, np.dtype[Any]]] = {"logp": np.dtype(np.float32)}
    overlap = 0

    def __init__(
        self, spec: Spec, config: A2CConfig, rng: np.random.Generator,
        network: nn.Module | None = None, device: str = "cpu", apply: Apply | None = None,
        place: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        from covey.onpolicy import Actor  # torch is for those who build networks
        from covey.optim import Optimizer

        c = self.config = config
        self.spec, self.rng, self.device = spec, rng, device
        self.actor = Actor(
            spec, rng, device, network, c.hidden, c.activation, c.normalize, c.log_std, apply
        )
        self.module, self.inference = self.actor.module, self.actor.inference
        self.optimizer = Optimizer(
            self.actor.flat, c.optimizer, c.lr, c.eps, c.max_norm, c.anneal_updates, apply
        )

    @property
    def updates(self) -> int:
        """Optimizer steps so far."""
        return self.optimizer.updates

    def act(
        self, obs_B: Array, env_step: int = 0, greedy: bool = False
    ) -> tuple[Array, dict[str, Array]]:
        """A sample of the policy, or its mode."""
        return self.actor.act(obs_B, greedy)

    def rows(self, unroll: Unroll) -> dict[str, Array]:
        """Advantages and returns of every valid step."""
        from covey.onpolicy import advantage_rows

        c = self.config
        return advantage_rows(self.module, unroll, c.gamma, c.lambda_, self.device)

    def learn(self, rows: dict[str, Array]) -> Learnt:
        """One update."""
        from torch.nn.functional import mse_loss

        from covey.losses import policy_gradient, scaled
        from covey.nets import show, tensors

        c, policy, batch = self.config, self.actor.policy, tensors(rows, self.device)
        params_NP, value_N = self.module(batch["obs"])
        logp_N = policy.logp(params_NP, batch["action"])
        advantage_N = scaled(batch["advantage"]) if c.scale_advantage else batch["advantage"]
        policy_loss = policy_gradient(logp_N, advantage_N).mean()
        value_loss = mse_loss(value_N, batch["return"])
        entropy = policy.entropy(params_NP).mean()
        norm = self.optimizer.step(policy_loss + c.value * value_loss - c.entropy * entropy)
        if c.normalize:
            show(self.module, batch["obs"])
        metrics = {
            "policy_loss": float(policy_loss.detach()),
            "value_loss": float(value_loss.detach()),
            "entropy": float(entropy.detach()),
            "grad_norm": norm,
        }
        return Learnt(metrics)

    def weights(self) -> dict[str, Array]:
        """The network's weights and buffers, and how many updates made them."""
        from covey.nets import weights

        return {**weights(self.module, self.optimizer.flat), "updates": np.array(self.updates)}

    def load(self, weights: dict[str, Array]) -> None:
        """Take them in."""
        from covey.nets import load

        load(self.module, self.optimizer.flat, weights)
        self.optimizer.apply.updates = int(weights["updates"])

    def state(self) -> Tree:
        """The network, the optimizer and the random state."""
        return {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state(),
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: Tree) -> None:
        """Take them back."""
        from covey.nets import load_weights

        load_weights(self.module, state["module"])
        self.optimizer.restore(state["optimizer"])
        self.rng.bit_generator.state = state["rng"]
