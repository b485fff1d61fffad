"""Acting without torch's overhead: a network's layers in numpy, on the same memory as its weights.

A forward pass of a small network costs torch about three times what it costs numpy. Every layer
here reads the parameters through views, so there is nothing to copy after an update. What it does
not know is left to torch, and what it knows is compared with torch once, when it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from covey.critics import Critic
from covey.nets import ActorCritic, Encoder, Numbers, QNet, Tanh, as_obs, constant
from covey.types import Array, Spec

Forward = Callable[[Array], Array]
Judge = Callable[[Array, Array], Array]


def policy_forward(module: nn.Module, spec: Spec) -> tuple[Forward, str]:
    """observations -> what the policy reads (q or distribution numbers), and "numpy" or "torch"."""
    through_torch = _torch_forward(module)
    in_numpy = _translate(module) if next(module.parameters()).device.type == "cpu" else None
    if in_numpy is not None and "" in spec.leaves:
        rng = np.random.default_rng(0)
        obs_NF = rng.standard_normal((7, *spec.obs_shape)).astype(spec.obs_dtype)
        wanted = through_torch(obs_NF)
        if np.allclose(in_numpy(obs_NF), wanted, rtol=1e-4, atol=1e-4):
            return in_numpy, "numpy"
    return through_torch, "torch"


def critic_forward(critic: nn.Module, spec: Spec) -> Judge:
    """(observations, actions) -> what the critic says of them; in numpy where that is known."""
    device = next(critic.parameters()).device

    def through_torch(obs_B: Array, action_BA: Array) -> Array:
        with constant(critic):
            out = critic(as_obs(obs_B, device), torch.from_numpy(action_BA).to(device))
        result: Array = out.float().cpu().numpy()
        return result

    if type(critic) is not Critic or device.type != "cpu" or "" not in spec.leaves:
        return through_torch
    encode, layers = _layer(critic.encoder), _chain(list(critic.layers))
    if encode is None or layers is None:
        return through_torch
    return lambda obs_B, action_BA: layers(np.concatenate([encode(obs_B), action_BA], axis=1))


def _torch_forward(module: nn.Module) -> Forward:
    device = next(module.parameters()).device

    def forward(obs_B: Array) -> Array:
        with constant(module):
            out = module(as_obs(obs_B, device))
        result: Array = (out[0] if isinstance(out, tuple) else out).float().cpu().numpy()
        return result

    return forward


def _translate(module: nn.Module) -> Forward | None:
    if isinstance(module, QNet):
        return _q_net(module)
    if isinstance(module, ActorCritic):
        return _actor(module)
    if isinstance(module, nn.Sequential):
        return _chain(list(module))
    return None


def _q_net(net: QNet) -> Forward | None:
    if net.value is None:
        return _chain([net.encoder, *net.trunk, net.advantage])
    trunk, advantage, value = (
        _chain([net.encoder, *net.trunk]), _linear(net.advantage), _linear(net.value),
    )  # fmt: skip
    if trunk is None:
        return None

    num = net.advantage.out_features
    centred_AA = np.eye(num, dtype=np.float32) - np.float32(1 / num)

    def dueling(obs_B: Array) -> Array:
        h_BF = trunk(obs_B)
        q_BA: Array = advantage(h_BF).dot(centred_AA)
        q_BA += value(h_BF)
        return q_BA

    return dueling


def _actor(net: ActorCritic) -> Forward | None:
    chain = _chain([net.encoder, *net.actor, net.policy])
    if chain is None or net.log_std is None:
        return chain
    log_std_A = _view(net.log_std)

    def gaussian(obs_B: Array) -> Array:
        mean_BA = chain(obs_B)
        return np.concatenate([mean_BA, np.broadcast_to(log_std_A, mean_BA.shape)], axis=1)

    return gaussian


def _chain(layers: list[nn.Module]) -> Forward | None:
    steps = [_layer(layer) for layer in layers]
    if any(step is None for step in steps):
        return None
    known = [step for step in steps if step is not None]

    def forward(x: Array) -> Array:
        for step in known:
            x = step(x)
        return x

    return forward


def _layer(layer: nn.Module) -> Forward | None:
    """One layer; exact types only, as what derives from them may compute something else."""
    if type(layer) is nn.Linear and not layer._forward_pre_hooks:
        return _linear(layer)
    if type(layer) is nn.ReLU:
        return partial(np.maximum, 0)
    if type(layer) in (nn.Tanh, Tanh):
        return np.tanh
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return lambda x: x.reshape(len(x), -1)
    if type(layer) is Encoder:
        return _encoder(layer)
    return None


def _linear(layer: nn.Linear) -> Forward:
    weight_FO = _view(layer.weight).T
    if layer.bias is None:
        return lambda x: x.dot(weight_FO)
    bias_O = _view(layer.bias)

    def forward(x: Array) -> Array:
        y: Array = x.dot(weight_FO)  # the product of `@`, and half of its overhead
        y += bias_O
        return y

    return forward


def _encoder(encoder: Encoder) -> Forward | None:
    part = encoder.parts[0]
    if not isinstance(part, Numbers):
        return None
    if part.normalize is None:
        return lambda x: x.reshape(len(x), -1).astype(np.float32, copy=False)
    n = part.normalize
    mean, scale, limit = _view(n.mean), _view(n.scale), n.limit

    def forward(x: Array) -> Array:
        y = x.reshape(len(x), -1).astype(np.float32)
        y -= mean
        y *= scale
        return np.clip(y, -limit, limit, out=y)

    return forward


def _view(tensor: torch.Tensor) -> Array:
    return tensor.detach().numpy()
