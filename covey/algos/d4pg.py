"""Distributed distributional DDPG: a critic of the whole return, by atoms or by quantiles.

Barth-Maron et al. 2018, https://arxiv.org/abs/1804.08617; the quantile head is that of Dabney et
al. 2018, https://arxiv.org/abs/1710.10044.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from covey.config import option
from covey.errors import UserError
from covey.returns import n_step_rows
from covey.types import Array, Learnt, Spec, Tree, Unroll

if TYPE_CHECKING:
    from torch import Tensor, nn

    from covey.optim import Apply


@dataclass(frozen=True, slots=True, kw_only=True)
class D4PGConfig:
    """Settings of D4PG."""

    optimizer: str = option("adam", "which optimizer", choices=("adam", "rmsprop"))
    lr: float = option(1e-4, "step size of policy and critic", above=0)
    gamma: float = option(0.99, "discount", least=0, most=1)
    n_step: int = option(5, "rewards summed before bootstrapping", least=1, most=1000)
    hidden: tuple[int, ...] = option((400, 300), "widths of the hidden layers", least=1)
    head: str = option("categorical", "of the critic", choices=("categorical", "quantile"))
    atoms: int = option(51, "atoms, or quantiles, of a return", least=2)
    v_min: float = option(-150.0, "the lowest atom")
    v_max: float = option(150.0, "the highest atom")
    kappa: float = option(1.0, "the quantile loss is quadratic within, linear outside", above=0)
    target_every: int = option(100, "updates between moves of the target networks", least=1)
    tau: float = option(1.0, "how far they move; 1 copies", above=0, most=1)
    noise_low: float = option(0.3, "least deviation of the noise on actions in [-1, 1]", least=0)
    noise_high: float = option(0.3, "the most; the environments are spread between", least=0)
    slope_limit: float = option(0.0, "each dq/da is clipped to this; 0 = not", least=0)
    max_norm: float = option(40.0, "gradients are clipped to this norm", above=0)
    normalize: bool = option(False, "scale observations by running statistics")
    anneal_updates: int = option(0, "updates over which lr falls to 0; 0 keeps it", least=0)

    def check(self) -> None:
        """What no single setting can know."""
        if self.v_min >= self.v_max:
            raise UserError(f"v_min = {self.v_min:g} must be below v_max = {self.v_max:g}.")


class D4PG:
    """Acts by a deterministic policy with noise; moves it where the mean of the return rises."""

    Config = D4PGConfig
    actions: ClassVar = ("continuous",)
    recipes: ClassVar = ("serial", "hogwild", "apex")
    replayed: ClassVar = True
    extra: ClassVar[dict[str, np.dtype[Any]]] = {}

    def __init__(
        self, spec: Spec, config: D4PGConfig, rng: np.random.Generator,
        network: nn.Module | None = None, device: str = "cpu", apply: Apply | None = None,
        place: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        import torch  # for those who build networks

        from covey.dpg import Pair
        from covey.optim import Optimizer

        c = self.config = config
        self.spec, self.rng, self.device, self.place = spec, rng, device, place
        c.check()
        self.overlap = c.n_step - 1
        self.atoms_Q = torch.linspace(c.v_min, c.v_max, c.atoms, device=device)
        self.pair = Pair(spec, device, network, c.hidden, c.atoms, c.normalize, apply)
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

    def distribution(self, out_NQ: Tensor) -> Tensor:
        """What the critic says as probabilities of the atoms, or as quantiles."""
        return out_NQ if self.config.head == "quantile" else out_NQ.softmax(dim=1)

    def mean(self, distribution_NQ: Tensor) -> Tensor:
        """The mean of each distribution."""
        if self.config.head == "quantile":
            return distribution_NQ.mean(dim=1)
        return distribution_NQ @ self.atoms_Q

    def q(self, out_NQ: Tensor) -> Tensor:
        """The mean of what the critic says."""
        return self.mean(self.distribution(out_NQ))

    def target(self, rows: dict[str, Array], next_NQ: Array) -> Tensor:
        """The distribution of R + discount Z(s', pi(s')), where a critic has said `next_NQ`."""
        from covey.losses import categorical_projection

        return_N, discount_N, out_NQ = map(self.tensor, (rows["return"], rows["discount"], next_NQ))
        if self.config.head == "quantile":
            return return_N.unsqueeze(1) + discount_N.unsqueeze(1) * out_NQ
        prob_NQ = self.distribution(out_NQ)
        return categorical_projection(prob_NQ, return_N, discount_N, self.atoms_Q)

    def tensor(self, column: Array) -> Tensor:
        """For the learner's device."""
        import torch

        return torch.from_numpy(column).to(self.device)

    def priorities(self, unroll: Unroll, rows: dict[str, Array]) -> Array:
        """The temporal difference of each row's means, by the weights that act."""
        q_N = self.q(self.tensor(self.pair.critic(rows["obs"], rows["action"])))
        target_N = self.mean(self.target(rows, self.pair.next_critic(rows)))
        error_N: Array = (target_N - q_N).abs().cpu().numpy()
        return error_N

    def learn(self, rows: dict[str, Array]) -> Learnt:
        """One update of both; every `target_every` of them the target networks move."""
        from covey.losses import categorical_loss, quantile_huber, weighted_mean

        c, pair = self.config, self.pair
        out_NQ, target_NQ = pair.judged(rows), self.target(rows, pair.next_target(rows))
        if c.head == "quantile":
            loss_N = quantile_huber(out_NQ, target_NQ, c.kappa)
        else:
            loss_N = categorical_loss(out_NQ, target_NQ)
        loss = weighted_mean(loss_N, rows.get("weight"))
        norm = self.optimizer.step(loss + pair.actor_loss(rows, self.q, c.slope_limit or math.inf))
        pair.learnt(rows, self.optimizer.apply.crossed(c.target_every), c.tau)
        target_N = self.mean(target_NQ)
        error_N: Array = (target_N - self.q(out_NQ.detach())).abs().cpu().numpy()
        metrics = {"loss": float(loss.detach()), "grad_norm": norm, "q": float(target_N.mean())}
        return Learnt(metrics, error_N)

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
