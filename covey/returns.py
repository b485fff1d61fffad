"""Returns and advantages, in numpy over time-first arrays; `discount` is 0 where an episode
terminated and 1 elsewhere, `last` where it ended either way: nothing flows back across `last`.

`value_TB` is the value of the observation acted on and `next_value_TB` of the one that truly
followed it, so that a truncated episode is worth what its last observation promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from covey.types import Array, Unroll


class NStep(NamedTuple):
    """The n-step target R + discount * V(obs[t + length]) of each of the first T - n + 1 steps."""

    return_TB: Array
    discount_TB: Array
    length_TB: Array  # steps in the window: n, fewer where the episode ended


def n_step(reward_TB: Array, discount_TB: Array, last_TB: Array, gamma: float, n: int) -> NStep:
    """Sum of gamma^k r_{t+k} for k < n, or up to the end of the episode.

    Only whole windows: T - n + 1 rows come out of T.
    """
    num = len(reward_TB) - n + 1
    assert num > 0, f"{len(reward_TB)} steps hold no window of {n}"
    return_TB = reward_TB[:num].astype(np.float64)
    weight_TB = gamma * discount_TB[:num].astype(np.float64)
    alive_TB = ~last_TB[:num]
    length_TB = np.ones(return_TB.shape, np.int64)
    for k in range(1, n):
        return_TB += np.where(alive_TB, weight_TB * reward_TB[k : k + num], 0)
        weight_TB *= np.where(alive_TB, gamma * discount_TB[k : k + num], 1)
        length_TB += alive_TB
        alive_TB = alive_TB & ~last_TB[k : k + num]
    return NStep(return_TB.astype(np.float32), weight_TB.astype(np.float32), length_TB)


def n_step_rows(unroll: Unroll, gamma: float, n: int) -> dict[str, Array]:
    """One row (s, a, R, discount, s') for each valid step whose n-step window is whole."""
    u, window = unroll, n_step(unroll.reward_TB, unroll.discount_TB, unroll.last_TB, gamma, n)
    num_steps, num_envs = window.return_TB.shape
    end_TB = np.arange(num_steps)[:, None] + window.length_TB
    next_obs_TB = u.obs_TB[end_TB, np.arange(num_envs)]
    for final in u.finals:  # a window that ends with the episode looks at its true last sight
        next_obs_TB[end_TB[:, final.b] == final.t + 1, final.b] = final.obs
    keep_TB = u.valid_TB[:num_steps]
    return {
        "obs": u.obs_TB[:num_steps][keep_TB],
        "action": u.action_TB[:num_steps][keep_TB],
        "return": window.return_TB[keep_TB],
        "discount": window.discount_TB[keep_TB],
        "next_obs": next_obs_TB[keep_TB],
    }


def n_step_errors(unroll: Unroll, gamma: float, n: int, q: Callable[[Array], Array]) -> Array:
    """|R + discount max_a Q(s', a) - Q(s, a)| of each of `n_step_rows`, by the Q that acted.

    `q` is asked only about what nobody acted on: the last sights, and those of cut episodes.
    """
    u, window = unroll, n_step(unroll.reward_TB, unroll.discount_TB, unroll.last_TB, gamma, n)
    num_steps, num_envs = window.return_TB.shape
    best_TB = np.concatenate([u.extra["q"].max(axis=2), q(u.obs_TB[-1]).max(axis=1)[None]])
    end_TB = np.arange(num_steps)[:, None] + window.length_TB
    next_TB = best_TB[end_TB, np.arange(num_envs)]
    for final in u.finals:
        ends_T = end_TB[:, final.b] == final.t + 1
        next_TB[ends_T, final.b] = q(final.obs[None]).max()
    q_TBA, action_TB1 = u.extra["q"][:num_steps], u.action_TB[:num_steps, :, None]
    taken_TB = np.take_along_axis(q_TBA, action_TB1, axis=2)[:, :, 0]
    error_TB: Array = np.abs(window.return_TB + window.discount_TB * next_TB - taken_TB)
    return error_TB[u.valid_TB[:num_steps]]


def double_q_target(
    return_N: Array, discount_N: Array, chooser_NA: Array, next_target_NA: Array
) -> Array:
    """R + discount Q_target(s', argmax_a Q_chooser(s', a)), in numpy.

    The online network chooses in van Hasselt et al. 2016, eq. 4; the target network itself in
    Mnih et al. 2015.
    """
    best_N = chooser_NA.argmax(axis=1)
    target_N: Array = return_N + discount_N * next_target_NA[np.arange(len(best_N)), best_N]
    return target_N


def gae(
    reward_TB: Array, discount_TB: Array, last_TB: Array, value_TB: Array, next_value_TB: Array,
    gamma: float, lambda_: float,
) -> Array:  # fmt: skip
    """Advantages of Schulman et al. 2016, eq. 16: the sum of (gamma lambda)^k delta_{t+k}."""
    delta_TB = reward_TB + gamma * discount_TB * next_value_TB - value_TB
    decay_TB = gamma * lambda_ * np.where(last_TB, 0, discount_TB)
    return _backwards(delta_TB, decay_TB)


def lambda_returns(
    reward_TB: Array, discount_TB: Array, last_TB: Array, next_value_TB: Array,
    gamma: float, lambda_: float,
) -> Array:  # fmt: skip
    """G_t = r_t + gamma d_t ((1 - lambda) V(s_{t+1}) + lambda G_{t+1}); Sutton and Barto, ch. 12.

    Where an episode is cut, and after the last step, G_{t+1} is the value itself.
    """
    ends_TB = np.array(last_TB)
    ends_TB[-1] = True
    lambda_TB = np.where(ends_TB, 0, lambda_).astype(reward_TB.dtype)
    now_TB = reward_TB + gamma * discount_TB * (1 - lambda_TB) * next_value_TB
    return _backwards(now_TB, gamma * discount_TB * lambda_TB)


class VTrace(NamedTuple):
    """Targets for the value and advantages for the policy gradient."""

    value_TB: Array
    advantage_TB: Array


def vtrace(
    log_rho_TB: Array, reward_TB: Array, discount_TB: Array, last_TB: Array,
    value_TB: Array, next_value_TB: Array, gamma: float,
    lambda_: float = 1.0, rho_max: float = 1.0, c_max: float = 1.0,
) -> VTrace:  # fmt: skip
    """Espeholt et al. 2018, eq. 1: off-policy targets with truncated importance weights.

    `log_rho` is log pi(a|s) - log mu(a|s), of the learner's policy and the one that acted.
    """
    rho_TB = np.exp(log_rho_TB)
    clipped_TB, c_TB = np.minimum(rho_max, rho_TB), lambda_ * np.minimum(c_max, rho_TB)
    future_TB = gamma * discount_TB
    delta_TB = clipped_TB * (reward_TB + future_TB * next_value_TB - value_TB)
    surplus_TB = _backwards(delta_TB, np.where(last_TB, 0, future_TB) * c_TB)
    target_TB = value_TB + surplus_TB
    # v_{s+1}: the target of the next step, but the plain value where the episode or the data ends
    next_target_TB = np.concatenate([target_TB[1:], next_value_TB[-1:]])
    next_target_TB = np.where(last_TB, next_value_TB, next_target_TB)
    advantage_TB = clipped_TB * (reward_TB + future_TB * next_target_TB - value_TB)
    return VTrace(target_TB, advantage_TB)


def _backwards(now_TB: Array, decay_TB: Array) -> Array:
    """x_t = now_t + decay_t x_{t+1}, from zero after the end."""
    out_TB = np.empty_like(now_TB)
    next_B = np.zeros_like(now_TB[0])
    for t in range(len(now_TB) - 1, -1, -1):
        next_B = now_TB[t] + decay_TB[t] * next_B
        out_TB[t] = next_B
    return out_TB
