"""Proximal policy optimisation: several passes over each unroll, held near the policy that acted.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from covey.config import option
from covey.types import Array, Learnt, Spec, Tensors, Tree, Unroll

if TYPE_CHECKING:
    from torch import Tensor, nn

    from covey.optim import Apply


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    """Settings of PPO."""

    lr: float = option(3e-4, "step size of Adam", above=0)
    gamma: float = option(0.99, "discount", least=0, most=1)
    lambda_: float = option(0.95, "GAE's lambda", least=0, most=1)
    clip: float = option(0.2, "how far the probability ratio may leave 1", above=0)
    epochs: int = option(10, "passes over each unroll", least=1)
    minibatch: int = option(64, "rows in one update", least=1)
    entropy: float = option(0.0, "weight of the entropy bonus", least=0)
    value: float = option(0.5, "weight of the value loss", least=0)
    max_norm: float = option(0.5, "gradients are clipped to this norm", above=0)
    scale_advantage: bool = option(True, "centre and scale advantages in each minibatch")
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers", least=1)
    activation: str = option("tanh", "between layers", choices=("tanh", "relu"))
    log_std: float = option(0.0, "log standard deviation of continuous actions at first")
    normalize: bool = option(False, "scale observations by running statistics")
    anneal_updates: int = option(0, "updates over which lr and clip fall to 0; 0 = never", least=0)


class PPO:
    """Samples from its policy; each unroll is learnt in `epochs` shuffled passes."""

    Config = PPOConfig
    actions: ClassVar = ("discrete", "continuous")
    recipes: ClassVar = ("serial",)
    replayed: ClassVar = False
    extra: ClassVar[dict[str, np.dtype[Any]]] = {"logp": np.dtype(np.float32)}
    overlap = 0

    def __init__(
        self, spec: Spec, config: PPOConfig, rng: np.random.Generator,
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
            self.actor.flat, "adam", c.lr, 1e-5, c.max_norm, c.anneal_updates, apply
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
        """`epochs` passes over the rows in shuffled minibatches of nearly equal size."""
        from covey.nets import as_obs, show, tensors

        num = len(rows["action"])
        parts = max(1, round(num / self.config.minibatch))
        for _ in range(self.config.epochs):
            order_N = self.rng.permutation(num)
            shuffled = tensors({k: v[order_N] for k, v in rows.items()}, self.device)
            for i in range(parts):
                part = slice(i * num // parts, (i + 1) * num // parts)
                loss, said = self._loss(minibatch(shuffled, part))
                norm = self.optimizer.step(loss)
        if self.config.normalize:
            show(self.module, as_obs(rows["obs"], self.device))
        last = {name: float(value) for name, value in said.items()}  # the last minibatch speaks
        return Learnt({**last, "grad_norm": norm})

    def _loss(self, batch: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        from torch.nn.functional import mse_loss

        from covey.losses import clipped_surrogate, scaled

        c, policy = self.config, self.actor.policy
        params_NP, value_N = self.module(batch["obs"])
        logp_N = policy.logp(params_NP, batch["action"])
        advantage_N = scaled(batch["advantage"]) if c.scale_advantage else batch["advantage"]
        clip = c.clip * self.optimizer.progress
        policy_loss = clipped_surrogate(logp_N, batch["logp"], advantage_N, clip).mean()
        value_loss = mse_loss(value_N, batch["return"])
        loss = policy_loss + c.value * value_loss
        if c.entropy:
            loss = loss - c.entropy * policy.entropy(params_NP).mean()
        said = {"policy_loss": policy_loss.detach(), "value_loss": value_loss.detach()}
        return loss, {**said, "kl": (batch["logp"] - logp_N.detach()).mean()}

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


def minibatch(batch: Tensors, part: slice) -> Tensors:
    """The same slice of every column; Dict observations one level down."""
    return {k: minibatch(v, part) if isinstance(v, dict) else v[part] for k, v in batch.items()}
