"""Deep deterministic policy gradient, n-step, as Ape-X DPG uses it.

Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971; Horgan et al. 2018,
https://arxiv.org/abs/1803.00933.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from covey.config import option
from covey.returns import n_step_rows
from covey.types import Array, Learnt, Spec, Tree, Unroll

if TYPE_CHECKING:
    from torch import nn

    from covey.optim import Apply


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPGConfig:
    """Settings of DDPG."""

    optimizer: str = option("adam", "which optimizer", choices=("adam", "rmsprop"))
    lr: float = option(1e-4, "step size of policy and critic", above=0)
    gamma: float = option(0.99, "discount", least=0, most=1)
    n_step: int = option(5, "rewards summed before bootstrapping", least=1, most=1000)
    hidden: tuple[int, ...] = option((400, 300), "widths of the hidden layers", least=1)
    loss: str = option("huber", "of the critic's error", choices=("huber", "squared"))
    target_every: int = option(100, "updates between moves of the target networks", least=1)
    tau: float = option(1.0, "how far they move; 1 copies", above=0, most=1)
    noise_low: float = option(0.3, "least deviation of the noise on actions in [-1, 1]", least=0)
    noise_high: float = option(0.3, "the most; the environments are spread between", least=0)
    slope_limit: float = option(1.0, "each dq/da is clipped to this; 0 = not", least=0)
    max_norm: float = option(40.0, "gradients are clipped to this norm", above=0)
    normalize: bool = option(False, "scale observations by running statistics")
    anneal_updates: int = option(0, "updates over which lr falls to 0; 0 keeps it", least=0)


class DDPG:
    """Acts by a deterministic policy with noise; the critic says where to move its actions."""

    Config = DDPGConfig
    actions: ClassVar = ("continuous",)
    recipes: ClassVar = ("serial", "hogwild", "apex")
    replayed: ClassVar = True
    extra: ClassVar[dict[str, np.dtype[Any]]] = {}

    def __init__(
        self, spec: Spec, config: DDPGConfig, rng: np.random.Generator,
        network: nn.Module | None = None, device: str = "cpu", apply: Apply | None = None,
        place: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        from covey.dpg import Pair  # torch is for those who build networks
        from covey.optim import Optimizer

        c = self.config = config
        self.spec, self.rng, self.device, self.place = spec, rng, device, place
        self.overlap = c.n_step - 1
        self.pair = Pair(spec, device, network, c.hidden, 1, c.normalize, apply)
        self.module, self.inference = self.pair.module, self.pair.inference
        self.optimizer = Optimizer(
            self.pair.flat, c.optimizer, c.lr, max_norm=c.max_norm,
            anneal_updates=c.anneal_updates, apply=apply,
        )  # fmt: skip

    @property
    def updates(self) -> int:
        """Optimizer steps so far."""
        return self.optimizer.updates

    def act(
        self, obs_B: Array, env_step: int = 0, greedy: bool = False
    ) -> tuple[Array, dict[str, Array]]:
        """The policy's actions, with noise unless greedy."""
        if greedy:
            return self.pair.policy(obs_B), {}
        noise = (self.config.noise_low, self.config.noise_high)
        return self.pair.act(obs_B, noise, self.place, self.rng), {}

    def rows(self, unroll: Unroll) -> dict[str, Array]:
        """One row for each step whose n-step window is whole."""
        return n_step_rows(unroll, self.config.gamma, self.config.n_step)

    def priorities(self, unroll: Unroll, rows: dict[str, Array]) -> Array:
        """The temporal difference of each row, by the weights that act."""
        next_N = self.pair.next_critic(rows)[:, 0]
        q_N = self.pair.critic(rows["obs"], rows["action"])[:, 0]
        error_N: Array = np.abs(rows["return"] + rows["discount"] * next_N - q_N)
        return error_N

    def learn(self, rows: dict[str, Array]) -> Learnt:
        """One update of both; every `target_every` of them the target networks move."""
        import torch

        from covey.losses import huber, weighted_mean

        c, pair = self.config, self.pair
        target_N = rows["return"] + rows["discount"] * pair.next_target(rows)[:, 0]
        error_N = torch.from_numpy(target_N).to(self.device) - pair.judged(rows).squeeze(1)
        loss_N = huber(error_N) if c.loss == "huber" else error_N.square()
        loss = weighted_mean(loss_N, rows.get("weight"))
        limit = c.slope_limit or math.inf
        norm = self.optimizer.step(loss + pair.actor_loss(rows, lambda q_N1: q_N1, limit))
        pair.learnt(rows, self.optimizer.apply.crossed(c.target_every), c.tau)
        metrics = {"loss": float(loss.detach()), "grad_norm": norm, "q": float(target_N.mean())}
        return Learnt(metrics, np.abs(error_N.detach().cpu().numpy()))

    def weights(self) -> dict[str, Array]:
        """Both networks' weights and buffers, and how many updates made them."""
        from covey.nets import weights

        return {**weights(self.module, self.optimizer.flat), "updates": np.array(self.updates)}

    def load(self, weights: dict[str, Array]) -> None:
        """Take them in."""
        from covey.nets import load

        load(self.module, self.optimizer.flat, weights)
        self.optimizer.apply.updates = int(weights["updates"])

    def state(self) -> Tree:
        """The networks, their slow copies, the optimizer and the random state."""
        return {
            "module": self.module.state_dict(),
            "target": self.pair.target.state_dict(),
            "optimizer": self.optimizer.state(),
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: Tree) -> None:
        """Take them back."""
        from covey.nets import load_weights

        load_weights(self.module, state["module"])
        load_weights(self.pair.target, state["target"])
        self.optimizer.restore(state["optimizer"])
        self.rng.bit_generator.state = state["rng"]
