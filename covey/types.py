"""The nouns that every part shares.

Shape suffixes, here and everywhere: T time, B environments side by side, N rows, A actions (or
action dimensions), P numbers that describe a distribution, Q quantiles or atoms. `obs_TB` is time
first and has one entry more in time than the others: the observation that follows the last action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from covey.optim import Optimizer

Array = npt.NDArray[Any]
Metrics = dict[str, float]
Tree = dict[str, Any]  # a state to save: nested dicts of arrays, tensors, numbers, strings, lists
Tensors = dict[str, Any]  # a batch behind the door of `learn`: tensors, or dicts of them, by name


def plain_dtype(dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON; of records, their fields."""
    if dtype.names is None:
        return dtype.str
    return [[n, dtype[n].base.str, list(dtype[n].shape)] for n in dtype.names]


def dtype_of(plain: Any) -> np.dtype[Any]:
    """The dtype that `plain_dtype` gave."""
    if isinstance(plain, str):
        return np.dtype(plain)
    return np.dtype([(name, kind, tuple(shape)) for name, kind, shape in plain])


@dataclass(frozen=True, slots=True)
class Leaf:
    """One observation array: `sizes` is set for whole numbers that a network sees as one-hot."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sizes: tuple[int, ...] = ()

    @property
    def is_image(self) -> bool:
        """Bytes in two or three dimensions: a network convolves them."""
        wide = len(self.shape) in (2, 3) and sorted(self.shape)[-2] > 1
        return self.dtype == np.uint8 and wide


@dataclass(frozen=True, slots=True)
class Spec:
    """What an environment gives and takes, as plain data."""

    leaves: Mapping[str, Leaf]  # a Dict observation has one per entry; any other a single one, ""
    num_actions: int  # of a Discrete space; 0 when actions are continuous
    action_dim: int  # of a Box space; 0 when actions are discrete

    @property
    def discrete(self) -> bool:
        """Whether an action is one of `num_actions` choices."""
        return self.num_actions > 0

    @property
    def obs_dtype(self) -> np.dtype[Any]:
        """A Dict observation is one array too: of records, with a field per entry."""
        if "" in self.leaves:
            return self.leaves[""].dtype
        return np.dtype([(name, leaf.dtype, leaf.shape) for name, leaf in self.leaves.items()])

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """The shape of one observation; () for records."""
        return self.leaves[""].shape if "" in self.leaves else ()

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """int64 for choices, float32 for continuous actions."""
        return np.dtype(np.int64 if self.discrete else np.float32)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """() for choices, (A,) for continuous actions."""
        return () if self.discrete else (self.action_dim,)

    def signature(self) -> dict[str, Any]:
        """As JSON, to compare a checkpoint with an environment."""
        leaves = {n: [list(x.shape), x.dtype.str, list(x.sizes)] for n, x in self.leaves.items()}
        return {"obs": leaves, "num_actions": self.num_actions, "action_dim": self.action_dim}


class Final(NamedTuple):
    """The true last observation of a cut episode whose place in `obs` a reset has taken."""

    t: int
    b: int
    obs: Array


@dataclass(slots=True)
class Unroll:
    """T env steps of B environments, time first. Rows that are not `valid` only hold a reset."""

    obs_TB: Array  # T + 1 entries
    action_TB: Array
    reward_TB: Array
    discount_TB: Array  # 0 where the episode terminated, else 1: truncation keeps the future
    last_TB: Array  # the episode ended with this step, by termination or truncation
    valid_TB: Array
    extra: dict[str, Array] = field(default_factory=dict)  # what `act` said besides the action
    finals: list[Final] = field(default_factory=list)
    version: int = 0  # of the weights that acted

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.reward_TB)


class Learnt(NamedTuple):
    """What learning from a batch has told."""

    metrics: Metrics
    priority_N: Array | None = None  # how wrong each row was, where that is known


class Algorithm(Protocol):
    """What a recipe needs of an algorithm; nothing here is optional."""

    actions: ClassVar[tuple[str, ...]]  # "discrete", "continuous"
    recipes: ClassVar[tuple[str, ...]]
    replayed: ClassVar[bool]  # learns rows drawn from a replay, not the unroll just made
    Config: ClassVar[type[Any]]
    spec: Spec
    extra: Mapping[str, np.dtype[Any]]  # columns of `Unroll.extra`
    overlap: int  # steps of the last unroll that the next one must begin with
    updates: int  # optimizer steps so far
    module: torch.nn.Module
    optimizer: Optimizer
    inference: str  # what acts: "numpy" or "torch"

    def act(
        self, obs_B: Array, env_step: int = 0, greedy: bool = False
    ) -> tuple[Array, dict[str, Array]]:
        """Actions for B observations, and the columns named in `extra`."""

    def rows(self, unroll: Unroll) -> dict[str, Array]:
        """What there is to learn from an unroll, in numpy."""

    def learn(self, rows: dict[str, Array]) -> Learnt:
        """Update the weights; `updates` counts the optimizer steps it took."""

    def weights(self) -> dict[str, Array]:
        """What acts and evaluates, as numpy arrays; on the CPU views: writing is loading."""

    def load(self, weights: dict[str, Array]) -> None:
        """Take in weights that were written into what `weights` gave."""

    def state(self) -> Tree:
        """Everything that `restore` needs to go on bit for bit."""

    def restore(self, state: Tree) -> None:
        """Take back what `state` gave."""


class Replayed(Algorithm, Protocol):
    """One that learns rows drawn from a replay; a column `weight`, if there is one, scales each."""

    def priorities(self, unroll: Unroll, rows: dict[str, Array]) -> Array:
        """How wrong the weights that acted are about each row of an unroll: what draws it first."""
