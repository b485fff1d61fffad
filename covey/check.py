"""Does an environment keep its contract? Asked before anything starts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from covey import catalog
from covey.envs import EnvLike, Envs, make_env
from covey.types import Array, Tree
from covey.vector import random_actions

STEPS = 200


class Findings(NamedTuple):
    """What trying an environment showed."""

    name: str
    how: str
    observations: str
    actions: str
    episodes: int
    deterministic: bool
    restorable: bool  # exact resume is possible


def check(env: EnvLike, env_kwargs: dict[str, Any] | None = None, steps: int = STEPS) -> Envs:
    """Step it with random actions; raises EnvError where it breaks its contract."""
    envs = make_env(env, 1, seed=0, env_kwargs=env_kwargs, exact=False)
    _play(envs, steps)
    return envs


def explore(env: EnvLike, env_kwargs: dict[str, Any] | None = None) -> Findings:
    """All that `covey check-env` tells."""
    first = check(env, env_kwargs)
    second, third = (make_env(env, 2, 0, env_kwargs, exact=False) for _ in range(2))
    same = _play(second, STEPS) == _play(third, STEPS)
    findings = Findings(
        first.name, first.how, _observations(first), _actions(first), len(first.episodes), same,
        restorable=_restorable(env, env_kwargs or {}),
    )  # fmt: skip
    for envs in (first, second, third):
        envs.close()
    return findings


def _play(envs: Envs, steps: int, obs_B: Array | None = None) -> list[bytes]:
    rng = np.random.default_rng(0)
    if obs_B is None:
        obs_B = envs.empty(envs.num_envs)
        envs.reset(obs_B)
    seen = [obs_B.tobytes()]
    for _ in range(steps):
        step = envs.step(random_actions(envs.spec, envs.num_envs, rng), obs_B)
        seen.append(obs_B.tobytes() + step.reward_B.tobytes() + step.last_B.tobytes())
    return seen


def _restorable(env: EnvLike, env_kwargs: dict[str, Any]) -> bool:
    first = make_env(env, 2, 1, env_kwargs, exact=False)
    obs_B = first.empty(first.num_envs)
    first.reset(obs_B)
    _play(first, STEPS // 2, obs_B)
    state: Tree = first.state()
    second, again_B = make_env(env, 2, 2, env_kwargs, exact=False), obs_B.copy()
    second.reset(again_B.copy())
    exact = second.restore(state, again_B) and _play(first, STEPS, obs_B) == _play(
        second, STEPS, again_B
    )
    first.close()
    second.close()
    return exact


def _observations(envs: Envs) -> str:
    parts = []
    for name, leaf in envs.spec.leaves.items():
        kind = f"one-hot of {list(leaf.sizes)}" if leaf.sizes else f"{leaf.dtype}{list(leaf.shape)}"
        image = " image" if leaf.is_image else ""
        parts.append(f"{name + ': ' if name else ''}{kind}{image}")
    return ", ".join(parts)


def _actions(envs: Envs) -> str:
    spec = envs.spec
    return f"{spec.num_actions} choices" if spec.discrete else f"{spec.action_dim} continuous"


def unfit(algo: str, envs: Envs) -> str | None:
    """The sentence that says why an algorithm cannot act there and which can; None if it can."""
    kind, wanted = "discrete" if envs.spec.discrete else "continuous", catalog.algorithm(algo)
    if kind in wanted.actions:
        return None
    can = ", ".join(n for n in catalog.ALGORITHMS if kind in catalog.algorithm(n).actions)
    return (
        f"{algo} needs {' or '.join(wanted.actions)} actions; {envs.name} has "
        f"{_actions(envs)}{' actions' if kind == 'continuous' else ''}. Try: {can}."
    )
