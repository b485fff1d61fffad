"""One flat vector per network, and an optimizer that takes a loss.

Every parameter is a view on one vector and every gradient on another: publishing weights is one
copy, clipping one norm, and an update a handful of vector operations.

The rules run torch's own operations and give the same bits as torch.optim; a test holds them to
that. They stand here because building a torch.optim optimizer imports torch's compiler, a third
of the whole start-up time, and because a rule over plain vectors can be shared between processes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from covey.errors import UserError
from covey.types import Tree

BAD_GRADIENTS_IN_A_ROW = 10
Moments = dict[str, Tensor]
Network = TypeVar("Network", bound=nn.Module)
Rule = Callable[[Tensor, Tensor, Moments, int, float, float], None]


def flatten(module: nn.Module, apply: Apply | None = None, name: str = "weights") -> Tensor:
    """Move all parameters that learn, and their gradients, into one vector each."""
    params = [p for p in module.parameters() if p.requires_grad]
    if not params or any(p.dtype != params[0].dtype for p in params):
        raise UserError("a network needs at least one parameter, and all of one dtype.")
    first = torch.cat([p.detach().reshape(-1) for p in params])
    flat = first if apply is None else apply.place(name, first)
    flat.grad = torch.zeros_like(flat)
    offset = 0
    for p in params:
        part = slice(offset, offset + p.numel())
        p.data, p.grad = flat[part].view_as(p), flat.grad[part].view_as(p)
        offset += p.numel()
    return flat


def frozen_copy(module: Network, apply: Apply | None = None, name: str = "target") -> Network:
    """The same network with its own, constant weights."""
    copied = copy.deepcopy(module)
    flatten(copied, apply, name)
    return copied.requires_grad_(False)


def follow(target: nn.Module, module: nn.Module, share: float) -> None:
    """Move a frozen copy so much of the way to the weights it was copied from; 1 copies them."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(module.parameters()), share)
        for to, value in zip(target.buffers(), module.buffers(), strict=True):
            to.copy_(value)


def adam(w: Tensor, grad: Tensor, moments: Moments, step: int, lr: float, eps: float) -> None:
    """Kingma and Ba 2015, betas 0.9 and 0.999: the kernel behind torch.optim.Adam(fused=True)."""
    torch._fused_adam_(
        [w], [grad], [moments["mean"]], [moments["square"]], [], [torch.tensor(float(step))],
        lr=lr, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=eps, amsgrad=False, maximize=False,
    )  # fmt: skip


def rmsprop(w: Tensor, grad: Tensor, moments: Moments, step: int, lr: float, eps: float) -> None:
    """Tieleman and Hinton 2012, decay 0.99, as torch.optim.RMSprop computes it."""
    square = moments["square"]
    square.mul_(0.99).addcmul_(grad, grad, value=1 - 0.99)
    w.addcdiv_(grad, square.sqrt().add_(eps), value=-lr)


def sgd(w: Tensor, grad: Tensor, moments: Moments, step: int, lr: float, eps: float) -> None:
    """Plain gradient descent."""
    w.add_(grad, alpha=-lr)


RULES: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "adam": (adam, ("mean", "square")),
    "rmsprop": (rmsprop, ("square",)),
    "sgd": (sgd, ()),
}


class Apply(Protocol):
    """Who applies a gradient, and to which copy of the weights."""

    updates: int  # optimizer steps so far, as far as this member knows

    def place(self, name: str, vector: Tensor) -> Tensor:
        """Where a vector of a network or an optimizer lives; `vector` holds its first values."""

    def apply(self, optimizer: Optimizer, gradient: Tensor) -> float:
        """Bring a gradient into the weights, or to whoever does; its norm before clipping."""

    def crossed(self, every: int) -> bool:
        """Whether `updates` has gone over a new multiple of `every`; said to one member only."""


class ToSelf:
    """One process applies its gradients to its own weights."""

    def __init__(self) -> None:
        self.updates = 0

    def place(self, name: str, vector: Tensor) -> Tensor:
        """Where it is."""
        return vector

    def apply(self, optimizer: Optimizer, gradient: Tensor) -> float:
        """Here and now."""
        norm = optimizer.clip(gradient)
        if math.isfinite(norm):
            self.updates += 1
            optimizer.update(gradient, self.updates)
        return norm

    def crossed(self, every: int) -> bool:
        """After each `every` updates."""
        return self.updates % every == 0


class Optimizer:
    """`step(loss)`: backward, clip, update. What that means over processes is `apply`."""

    def __init__(
        self, flat: Tensor, rule: str = "adam", lr: float = 1e-3, eps: float = 1e-8,
        max_norm: float = math.inf, anneal_updates: int = 0, apply: Apply | None = None,
        accumulate: int = 1,
    ) -> None:  # fmt: skip
        if rule not in RULES:
            raise UserError(f"optimizer '{rule}' is unknown. Known: {', '.join(RULES)}.")
        self.apply: Apply = apply or ToSelf()
        self.flat, self.lr, self.eps, self.max_norm = flat, lr, eps, max_norm
        self.anneal_updates = anneal_updates
        self._rule, names = RULES[rule]
        self.moments = {name: self.apply.place(name, torch.zeros_like(flat)) for name in names}
        self.accumulate, self._added = accumulate, 0
        self.skipped = 0  # gradients that were not finite
        self._skipped_in_a_row = 0

    @property
    def updates(self) -> int:
        """Optimizer steps so far."""
        return self.apply.updates

    @property
    def progress(self) -> float:
        """1 at the start, falling to 0 over `anneal_updates`; always 1 without annealing."""
        return self._progress(self.updates)

    def _progress(self, updates: int) -> float:
        return max(0.0, 1 - updates / self.anneal_updates) if self.anneal_updates else 1.0

    def step(self, loss: Tensor) -> float:
        """Apply the gradient of the loss, clipped; its norm before clipping comes back.

        With `accumulate`, the mean of so many is applied with the last of them; until then 0.
        """
        gradient = self.flat.grad
        assert gradient is not None
        if not self._added:
            gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._added += 1
        return self.flush() if self._added >= self.accumulate else 0.0

    def flush(self) -> float:
        """Apply what has been accumulated so far, if anything."""
        gradient, added, self._added = self.flat.grad, self._added, 0
        if not added or gradient is None:
            return 0.0
        if added > 1:
            gradient.div_(added)
        return self.apply.apply(self, gradient)

    def clip(self, gradient: Tensor) -> float:
        """Shorten it to the longest norm allowed; one that is not finite is counted, to be left."""
        norm = float(gradient.norm())
        if not math.isfinite(norm):
            self._skip()
            return norm
        self._skipped_in_a_row = 0
        if norm > self.max_norm:
            gradient.mul_(self.max_norm / (norm + 1e-6))
        return norm

    def update(self, gradient: Tensor, number: int) -> None:
        """The rule: update `number` of these weights."""
        lr = self.lr * self._progress(number - 1)
        with torch.no_grad():
            self._rule(self.flat, gradient, self.moments, number, lr, self.eps)

    def _skip(self) -> None:
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= BAD_GRADIENTS_IN_A_ROW:
            raise UserError(
                f"{BAD_GRADIENTS_IN_A_ROW} gradients in a row were not finite, after "
                f"{self.updates} updates. Lower lr, or scale rewards and observations."
            )

    def state(self) -> Tree:
        """Moments and counts; the weights are the network's."""
        return {"moments": self.moments, "updates": self.updates, "skipped": self.skipped}

    def restore(self, state: Tree) -> None:
        """Take them back."""
        if state["moments"].keys() != self.moments.keys():
            raise UserError("the checkpoint is of another optimizer; set it back to that one.")
        self.apply.updates, self.skipped = state["updates"], state["skipped"]
        for name, saved in state["moments"].items():
            self.moments[name].copy_(torch.tensor(saved))
