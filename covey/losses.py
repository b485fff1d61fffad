"""Losses: pure functions of what networks say and what happened; differentiable ones in torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from covey.types import Array


def huber(error: Tensor, kappa: float = 1.0) -> Tensor:
    """0.5 e^2 within kappa, linear outside (Huber 1964)."""
    return huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa)


def weighted_mean(loss_N: Tensor, weight_N: Array | None) -> Tensor:
    """The mean over rows, each scaled by its importance weight if rows were not drawn alike."""
    if weight_N is None:
        return loss_N.mean()
    return (loss_N * torch.from_numpy(weight_N).to(loss_N.device)).mean()


def quantile_huber(theta_NQ: Tensor, target_NQ: Tensor, kappa: float = 1.0) -> Tensor:
    """Dabney et al. 2018, eq. 10: every quantile against every target, per row.

    The sum over quantiles of the mean over targets of |tau - 1{u < 0}| L_kappa(u) / kappa.
    """
    num = theta_NQ.shape[1]
    tau_Q = (torch.arange(num, device=theta_NQ.device, dtype=theta_NQ.dtype) + 0.5) / num
    u_NQQ = target_NQ.unsqueeze(1) - theta_NQ.unsqueeze(2)  # quantile, then target
    weight_NQQ = (tau_Q.view(1, -1, 1) - (u_NQQ.detach() < 0).to(theta_NQ.dtype)).abs()
    return (weight_NQQ * huber(u_NQQ, kappa) / kappa).mean(dim=2).sum(dim=1)


def categorical_projection(
    prob_NQ: Tensor, return_N: Tensor, discount_N: Tensor, atoms_Q: Tensor
) -> Tensor:
    """The distribution of R + discount Z put back on the atoms; Bellemare et al. 2017, alg. 1.

    Each shifted atom shares its mass between its two neighbours in proportion to nearness.
    """
    last = len(atoms_Q) - 1
    low, per_unit = atoms_Q[0], last / (atoms_Q[-1] - atoms_Q[0])
    shifted_NQ = return_N.unsqueeze(1) + discount_N.unsqueeze(1) * atoms_Q
    place_NQ = ((shifted_NQ - low) * per_unit).clamp(0, last)
    below_NQ = place_NQ.floor().clamp(max=last - 1)
    above_NQ = (place_NQ - below_NQ) * prob_NQ  # the share of the atom above
    index_NQ = below_NQ.long()
    projected_NQ = torch.zeros_like(prob_NQ).scatter_add_(1, index_NQ, prob_NQ - above_NQ)
    return projected_NQ.scatter_add_(1, index_NQ + 1, above_NQ)


def categorical_loss(logits_NQ: Tensor, target_NQ: Tensor) -> Tensor:
    """Cross entropy of each row between the projected target and the predicted distribution."""
    return -(target_NQ * logits_NQ.log_softmax(dim=1)).sum(dim=1)


def deterministic_surrogate(
    q: Callable[[Tensor], Tensor], action_NA: Tensor, limit: float = math.inf
) -> Tensor:
    """-(dq/da) a of each row: its gradient is that of -q(s, pi(s)) through the action alone.

    Silver et al. 2014, eq. 9. The slope is a constant, so nothing reaches the critic's parameters;
    each of its entries is clipped to `limit`, as in Ape-X DPG (Horgan et al. 2018).
    """
    at_NA = action_NA.detach().requires_grad_()
    (slope_NA,) = torch.autograd.grad(q(at_NA).sum(), at_NA)
    return -(slope_NA.clamp(-limit, limit) * action_NA).sum(dim=1)


def policy_gradient(logp_N: Tensor, advantage_N: Tensor) -> Tensor:
    """-A log pi(a|s) of each row."""
    return -advantage_N * logp_N


def clipped_surrogate(
    logp_N: Tensor, old_logp_N: Tensor, advantage_N: Tensor, clip: float
) -> Tensor:
    """Schulman et al. 2017, eq. 7, as a loss of each row."""
    ratio_N = (logp_N - old_logp_N).exp()
    bounded_N = ratio_N.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio_N * advantage_N, bounded_N * advantage_N)


def scaled(advantage_N: Tensor) -> Tensor:
    """Centred, with deviation 1."""
    centred_N = advantage_N - advantage_N.mean()
    return centred_N / (centred_N.square().mean().sqrt() + 1e-8)
