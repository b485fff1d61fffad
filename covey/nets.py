"""Networks for any `Spec`, and a user's own in their place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from covey.errors import UserError
from covey.types import Array, Leaf, Spec, Tensors

Obs = Tensor | dict[str, Tensor]
IMAGE_FEATURES = 512


def tensors(rows: dict[str, Array], device: torch.device | str = "cpu") -> Tensors:
    """Numpy rows as torch tensors without a copy; records become a dict of tensors."""
    return {name: as_obs(column, device) for name, column in rows.items()}


def as_obs(column: Array, device: torch.device | str = "cpu") -> Obs:
    """One column, or a dict of them for records."""
    names = column.dtype.names
    if names is None:
        return torch.from_numpy(column).to(device)
    return {n: torch.from_numpy(np.ascontiguousarray(column[n])).to(device) for n in names}


class Normalize(nn.Module):
    """(x - mean) / deviation of all it was shown; its moments are saved with the weights.

    The learner shows it what it learnt from, so whoever has the weights has the same statistics.
    """

    def __init__(self, size: int, limit: float = 10.0) -> None:
        super().__init__()
        self.limit = limit
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("moments", torch.zeros(3, size, dtype=torch.float64))  # n, mean, m2
        self.moments: Tensor

    def forward(self, x_NF: Tensor) -> Tensor:
        """Centred, scaled, clipped."""
        return ((x_NF - self.mean) * self.scale).clamp(-self.limit, self.limit)

    @torch.no_grad()
    def update(self, x_NF: Tensor) -> None:
        """Merge the moments of N more rows (Chan et al. 1979)."""
        x_NF = x_NF.double()
        count, mean, m2 = self.moments
        delta, num = x_NF.mean(0) - mean, len(x_NF)
        total = count + num
        self.moments[2] = m2 + x_NF.var(0, unbiased=False) * num + delta**2 * count * num / total
        self.moments[1] = mean + delta * num / total
        self.moments[0] = total
        self.mean.copy_(self.moments[1])
        self.scale.copy_((self.moments[2] / total + 1e-8).rsqrt())


class Numbers(nn.Module):
    """A leaf of numbers, flat, normalised if wanted."""

    def __init__(self, leaf: Leaf, normalize: bool) -> None:
        super().__init__()
        self.size = int(np.prod(leaf.shape))
        self.normalize = Normalize(self.size) if normalize else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, size) floats."""
        x = x.reshape(len(x), -1).float()
        return x if self.normalize is None else self.normalize(x)


class OneHot(nn.Module):
    """A leaf of whole numbers, each as one-hot."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.sizes, self.size = leaf.sizes, sum(leaf.sizes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, size) floats."""
        x = x.reshape(len(x), len(self.sizes))
        hot = [nn.functional.one_hot(x[:, i], n) for i, n in enumerate(self.sizes)]
        return torch.cat(hot, dim=-1).float()


class Encoder(nn.Module):
    """Observations as N feature rows: what each leaf says, side by side."""

    def __init__(self, spec: Spec, normalize: bool = False, half: bool = False) -> None:
        super().__init__()
        self.names = list(spec.leaves)
        self.parts = nn.ModuleList()
        self.size = 0
        for leaf in spec.leaves.values():
            if leaf.is_image:
                self.parts.append((Half if half else nn.Sequential)(*nature_cnn(leaf)))
                self.size += IMAGE_FEATURES
            else:
                part = OneHot(leaf) if leaf.sizes else Numbers(leaf, normalize)
                self.parts.append(part)
                self.size += part.size

    def forward(self, obs: Obs) -> Tensor:
        """Features of all leaves side by side."""
        if isinstance(obs, Tensor):
            features: Tensor = self.parts[0](obs)
            return features
        said = [part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)]
        return torch.cat(said, dim=-1)

    def update(self, obs: Obs) -> None:
        """Show the normalisers what was learnt from."""
        for name, part in zip(self.names, self.parts, strict=True):
            x = obs if isinstance(obs, Tensor) else obs[name]
            if isinstance(part, Numbers) and part.normalize is not None:
                part.normalize.update(x.reshape(len(x), -1))


class Pixels(nn.Module):
    """Bytes as numbers in [0, 1], channels first; no copy of the bytes is kept."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.add_channel = len(leaf.shape) == 2
        self.channels_last = len(leaf.shape) == 3 and leaf.shape[2] < leaf.shape[0]
        shape = (1, *leaf.shape) if self.add_channel else leaf.shape
        self.shape = (shape[2], shape[0], shape[1]) if self.channels_last else shape

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) floats."""
        if self.add_channel:
            x = x.unsqueeze(1)
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)
        # channels last in memory: convolutions and their gradients take a quarter less time
        return x.to(torch.float32, memory_format=torch.channels_last).div_(255.0)


class Half(nn.Sequential):
    """Layers that compute in bfloat16; weights, their gradients and what comes out do not."""

    def forward(self, x: Tensor) -> Tensor:
        """What the last layer says, as float32."""
        with torch.autocast(x.device.type, torch.bfloat16):
            out: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return out.float()


def nature_cnn(leaf: Leaf) -> list[nn.Module]:
    """The network of Mnih et al. 2015, for any image of at least 36 by 36."""
    pixels = Pixels(leaf)
    channels, height, width = pixels.shape
    if min(height, width) < 36:  # too small for its strides: one convolution, then dense
        layers: list[nn.Module] = [nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.Flatten()]
        flat = 32 * height * width
    else:
        layers = [nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                  nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()]  # fmt: skip
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        flat = 64 * height * width
    return [pixels, *layers, nn.Linear(flat, IMAGE_FEATURES), nn.ReLU()]


class FastTanh(torch.autograd.Function):
    """tanh by numpy: torch's own takes ten times as long, the dearest part of a small network."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """y = tanh(x)."""
        y = torch.from_numpy(np.tanh(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """dx = dy (1 - y^2)."""
        (y,) = ctx.saved_tensors
        dx: Tensor = torch.ops.aten.tanh_backward(grad, y)
        return dx


class Tanh(nn.Module):
    """tanh, by the fastest way for the device."""

    def forward(self, x: Tensor) -> Tensor:
        """tanh(x)."""
        out: Tensor = torch.tanh(x) if x.is_cuda else FastTanh.apply(x)  # type: ignore[no-untyped-call]
        return out


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": Tanh}


def mlp(sizes: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers, each followed by the activation."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


class QNet(nn.Module):
    """Q(s, a) for every action; dueling (Wang et al. 2016) splits it into value and advantage.

    With `quantiles` it says so many numbers for each action in turn, and is not dueling.
    """

    def __init__(
        self, spec: Spec, hidden: Sequence[int], dueling: bool, normalize: bool, quantiles: int = 1,
        half: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = Encoder(spec, normalize, half)
        self.trunk = mlp([self.encoder.size, *hidden], "relu")
        last = hidden[-1] if hidden else self.encoder.size
        self.advantage = nn.Linear(last, spec.num_actions * quantiles)
        self.value = nn.Linear(last, 1) if dueling else None

    def forward(self, obs: Obs) -> Tensor:
        """q_NA."""
        h_NF = self.trunk(self.encoder(obs))
        q_NA: Tensor = self.advantage(h_NF)
        if self.value is None:
            return q_NA
        value_N1: Tensor = self.value(h_NF)
        return value_N1 + q_NA - q_NA.mean(dim=1, keepdim=True)


class ActorCritic(nn.Module):
    """A policy's numbers and a value: two networks, over one encoder if it convolves."""

    def __init__(
        self, spec: Spec, hidden: Sequence[int], activation: str, normalize: bool, log_std: float
    ) -> None:
        super().__init__()
        self.encoder = Encoder(spec, normalize)
        sizes = [self.encoder.size, *hidden]
        self.actor = mlp(sizes, activation)
        self.critic = mlp(sizes, activation)
        self.policy = nn.Linear(sizes[-1], spec.num_actions or spec.action_dim)
        self.value = nn.Linear(sizes[-1], 1)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                orthogonal(module, 2**0.5)
        orthogonal(self.policy, 0.01)
        orthogonal(self.value, 1.0)
        self.log_std = (
            None if spec.discrete else nn.Parameter(torch.full((spec.action_dim,), log_std))
        )

    def forward(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """params_NP (logits, or means beside log standard deviations) and value_N."""
        x_NF = self.encoder(obs)
        params_NP: Tensor = self.policy(self.actor(x_NF))
        if self.log_std is not None:
            params_NP = torch.cat([params_NP, self.log_std.expand_as(params_NP)], dim=-1)
        return params_NP, self.value(self.critic(x_NF)).squeeze(-1)


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Orthogonal weights, zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


@contextmanager
def constant(module: nn.Module) -> Iterator[None]:
    """Inside it, what a network says is a constant: no gradient, no dropout, no statistics."""
    learning = module.training
    if learning:
        module.eval()
    with torch.no_grad():
        yield
    if learning:
        module.train()


def load_weights(module: nn.Module, saved: dict[str, Array]) -> None:
    """Arrays into parameters and buffers, by name, in place."""
    try:
        module.load_state_dict({name: torch.tensor(value) for name, value in saved.items()})
    except RuntimeError as error:
        what = " ".join(str(error).split())[:200]
        raise UserError(
            f"the saved weights do not fit this network: {what}. Give the network and the settings "
            "that the run was started with."
        ) from None


def weights(module: nn.Module, flat: Tensor) -> dict[str, Array]:
    """All that acting needs, as numpy arrays: the flat vector and the buffers; views on the CPU."""
    found = {"flat": flat.detach(), **dict(module.named_buffers())}
    return {name: value.cpu().numpy() for name, value in found.items()}


def load(module: nn.Module, flat: Tensor, given: dict[str, Array]) -> None:
    """Take in what was written into what `weights` gave; on the CPU it is there already."""
    if flat.device.type == "cpu":
        return
    with torch.no_grad():
        for name, value in {"flat": flat, **dict(module.named_buffers())}.items():
            value.copy_(torch.from_numpy(given[name]))


def show(module: nn.Module, obs: Obs) -> None:
    """Let a network's normalisers see what was learnt from."""
    for part in module.modules():
        if isinstance(part, Encoder):
            part.update(obs)


def chosen(
    network: nn.Module | None, default: Callable[[], nn.Module], spec: Spec, width: int,
    *, with_value: bool, normalize: bool,
) -> nn.Module:  # fmt: skip
    """The user's own network, if it fits, or ours."""
    if network is None:
        return default()
    if normalize:
        raise UserError("normalize belongs to covey's own network; set normalize=false.")
    check_user_network(network, spec, width, with_value)
    return network


def check_user_network(network: nn.Module, spec: Spec, width: int, with_value: bool) -> None:
    """A user's own network must map N observations to what the algorithm reads."""
    wanted = f"({width} numbers each, a value each)" if with_value else f"{width} numbers each"
    obs = as_obs(np.zeros((3, *spec.obs_shape), spec.obs_dtype))
    try:
        with constant(network):
            out = network(obs)
    except Exception as error:  # any failure of foreign code becomes one sentence
        raise UserError(
            f"the network failed on 3 observations of shape {spec.obs_shape}: {error}"
        ) from error
    said = [_form(part) for part in (out if isinstance(out, tuple) else (out,))]
    if said != [(3, width), (3,)][: 1 + with_value]:
        raise UserError(
            f"the network must return {wanted} for N observations; for 3 it gave {said}."
        )


def _form(said: object) -> object:
    return tuple(said.shape) if isinstance(said, Tensor) else type(said).__name__
