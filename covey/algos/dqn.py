"""Deep Q-learning: double (van Hasselt 2016), dueling (Wang 2016), n-step, from a replay.

Mnih et al. 2015, https://www.nature.com/articles/nature14236.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from covey.config import option
from covey.explore import check_chances, epsilon_greedy, final_epsilon, ladder, linear
from covey.returns import double_q_target, n_step_errors, n_step_rows
from covey.types import Array, Learnt, Spec, Tree, Unroll

if TYPE_CHECKING:
    from torch import nn

    from covey.optim import Apply


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig:
    """Settings of DQN."""

    optimizer: str = option("adam", "which optimizer", choices=("adam", "rmsprop"))
    lr: float = option(1e-3, "step size", above=0)
    gamma: float = option(0.99, "discount", least=0, most=1)
    n_step: int = option(3, "rewards summed before bootstrapping", least=1, most=1000)
    hidden: tuple[int, ...] = option((128, 128), "widths of the hidden layers", least=1)
    double: bool = option(True, "the online network chooses, the target network values")
    dueling: bool = option(True, "separate value and advantage")
    target_every: int = option(250, "updates between copies to the target network", least=1)
    max_norm: float = option(10.0, "gradients are clipped to this norm", above=0)
    eps_start: float = option(1.0, "share of random actions at first", least=0, most=1)
    eps_end: float = option(0.04, "share of random actions in the end", least=0, most=1)
    eps_ends: tuple[float, ...] = option(
        (), "instead of eps_end, each process draws one of these", least=0, most=1
    )
    eps_chances: tuple[float, ...] = option((), "how likely each of eps_ends is", least=0, most=1)
    eps_steps: int = option(10_000, "env steps from the one to the other", least=0)
    eps_ladder: float = option(
        0.0, "instead, each environment of all actors has its own, from this down; 0 = off",
        least=0, most=1,
    )  # fmt: skip
    eps_power: float = option(7.0, "the last of the ladder is eps_ladder to 1 + this", least=0)
    normalize: bool = option(False, "scale observations by running statistics")
    half: bool = option(False, "convolve in bfloat16, where the processor has it twice as fast")
    anneal_updates: int = option(0, "updates over which lr falls to 0; 0 keeps it", least=0)

    def check(self) -> None:
        """What no single setting can know."""
        check_chances(self.eps_ends, self.eps_chances)


class DQN:
    """Acts epsilon-greedily on Q, learns Q from rows (s, a, R, discount, s')."""

    Config = DQNConfig
    actions: ClassVar = ("discrete",)
    recipes: ClassVar = ("serial", "hogwild", "apex")
    replayed: ClassVar = True

    def __init__(
        self, spec: Spec, config: DQNConfig, rng: np.random.Generator,
        network: nn.Module | None = None, device: str = "cpu", apply: Apply | None = None,
        place: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        from covey import infer, nets, optim  # torch is for those who build networks

        self.spec, self.config, self.rng, self.device = spec, config, rng, device
        self.extra = {"q": np.dtype(("f4", (spec.num_actions,)))}
        self.overlap = config.n_step - 1
        self.eps_end = final_epsilon(config.eps_end, config.eps_ends, config.eps_chances, rng)
        self.place = place
        own = nets.chosen(
            network,
            lambda: nets.QNet(
                spec, config.hidden, config.dueling, config.normalize, half=config.half
            ),
            spec, spec.num_actions, with_value=False, normalize=config.normalize,
        )  # fmt: skip
        self.module = own.to(device)
        self.target = optim.frozen_copy(self.module, apply)
        self.optimizer = optim.Optimizer(
            optim.flatten(self.module, apply), config.optimizer, config.lr,
            max_norm=config.max_norm, anneal_updates=config.anneal_updates, apply=apply,
        )  # fmt: skip
        self.forward, self.inference = infer.policy_forward(self.module, spec)
        self.target_forward, _ = infer.policy_forward(self.target, spec)

    @property
    def updates(self) -> int:
        """Optimizer steps so far."""
        return self.optimizer.updates

    def act(
        self, obs_B: Array, env_step: int = 0, greedy: bool = False
    ) -> tuple[Array, dict[str, Array]]:
        """Epsilon-greedy, epsilon falling with the env step."""
        q_BA = self.forward(obs_B)
        epsilon = 0.0 if greedy else self.epsilon(env_step, len(obs_B))
        return epsilon_greedy(q_BA, epsilon, self.rng), {"q": q_BA}

    def epsilon(self, env_step: int, num_envs: int) -> float | Array:
        """The share of random actions: of all environments, or of each."""
        c = self.config
        if c.eps_ladder:
            return ladder(c.eps_ladder, c.eps_power, self.place, num_envs)
        return linear(env_step, c.eps_start, self.eps_end, c.eps_steps)

    def rows(self, unroll: Unroll) -> dict[str, Array]:
        """One row for each step whose n-step window is whole."""
        return n_step_rows(unroll, self.config.gamma, self.config.n_step)

    def priorities(self, unroll: Unroll, rows: dict[str, Array]) -> Array:
        """The temporal difference of each row, by the weights that acted."""
        return n_step_errors(unroll, self.config.gamma, self.config.n_step, self.forward)

    def learn(self, rows: dict[str, Array]) -> Learnt:
        """One update; every `target_every` of them the target network catches up."""
        import torch
        from torch.nn.functional import huber_loss

        from covey.nets import as_obs, show

        next_target_NA = self.target_forward(rows["next_obs"])
        chooser_NA = self.forward(rows["next_obs"]) if self.config.double else next_target_NA
        target_N = double_q_target(rows["return"], rows["discount"], chooser_NA, next_target_NA)
        obs_N = as_obs(rows["obs"], self.device)
        action_N1 = torch.from_numpy(rows["action"]).to(self.device).unsqueeze(1)
        q_N = self.module(obs_N).gather(1, action_N1).squeeze(1)
        loss_N = huber_loss(q_N, torch.from_numpy(target_N).to(self.device), reduction="none")
        if "weight" in rows:
            loss_N = loss_N * torch.from_numpy(rows["weight"]).to(self.device)
        loss = loss_N.mean()
        norm = self.optimizer.step(loss)
        if self.config.normalize:
            show(self.module, obs_N)
        if self.optimizer.apply.crossed(self.config.target_every):
            self.target.load_state_dict(self.module.state_dict())
        metrics = {"loss": float(loss.detach()), "grad_norm": norm, "q": float(target_N.mean())}
        return Learnt(metrics, np.abs(q_N.detach().cpu().numpy() - target_N))

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
        """Both networks, the optimizer and the random state."""
        return {
            "module": self.module.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state(),
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: Tree) -> None:
        """Take them back."""
        from covey.nets import load_weights

        load_weights(self.module, state["module"])
        load_weights(self.target, state["target"])
        self.optimizer.restore(state["optimizer"])
        self.rng.bit_generator.state = state["rng"]
