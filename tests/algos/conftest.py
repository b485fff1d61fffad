"""Unrolls made by hand, and the story they tell in plain Python."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from covey.types import Final, Leaf, Spec, Unroll


@dataclass
class Story:
    """What one environment went through: a list of episodes' steps, each with its true next obs."""

    unroll: Unroll
    steps: list = field(default_factory=list)  # (t, b, next_obs) of every real step

    def windows(self, n, gamma):
        """(s, a, R, discount, s') of every window that is whole, or as far as its episode goes."""
        u, after = self.unroll, {(t, b): obs for t, b, obs in self.steps}
        for t in range(u.num_steps - n + 1):
            for b in range(u.reward_TB.shape[1]):
                if (t, b) not in after:
                    continue
                total, weight, s = 0.0, 1.0, t
                for s in range(t, t + n):
                    total += weight * u.reward_TB[s, b]
                    weight *= gamma * u.discount_TB[s, b]
                    if u.last_TB[s, b]:
                        break
                yield u.obs_TB[t, b], u.action_TB[t, b], total, weight, after[s, b]


def make(spec, steps=12, envs=3, same_step=True, seed=0):
    """Episodes end at random; then a reset takes the next obs, or the whole next step."""
    rng = np.random.default_rng(seed)
    lead = (steps, envs)
    if spec.discrete:
        action = rng.integers(spec.num_actions, size=lead)
    else:
        action = rng.normal(size=(*lead, spec.action_dim)).astype(np.float32)
    unroll = Unroll(
        obs_TB=rng.normal(size=(steps + 1, envs, *spec.obs_shape)).astype(np.float32),
        action_TB=action,
        reward_TB=rng.normal(size=lead).astype(np.float32),
        discount_TB=np.ones(lead, np.float32),
        last_TB=np.zeros(lead, bool),
        valid_TB=np.ones(lead, bool),
        extra={"logp": rng.normal(-1, 0.3, lead).astype(np.float32)},
    )
    story = Story(unroll)
    for b in range(envs):
        resetting = False
        for t in range(steps):
            if resetting:
                unroll.valid_TB[t, b], unroll.reward_TB[t, b] = False, 0
                resetting = False
                continue
            fate = rng.choice(["on", "on", "on", "on", "terminated", "truncated"])
            after = unroll.obs_TB[t + 1, b]
            unroll.last_TB[t, b] = fate != "on"
            unroll.discount_TB[t, b] = fate != "terminated"
            if fate == "truncated" and same_step:
                after = rng.normal(size=spec.obs_shape).astype(np.float32)
                unroll.finals.append(Final(t, b, after))
            resetting = fate != "on" and not same_step
            story.steps.append((t, b, after))
    rng.shuffle(unroll.finals)  # their order means nothing
    return story


@pytest.fixture
def tell():
    return make


@pytest.fixture
def discrete():
    return Spec({"": Leaf((4,), np.dtype(np.float32))}, num_actions=3, action_dim=0)


@pytest.fixture
def continuous():
    return Spec({"": Leaf((4,), np.dtype(np.float32))}, num_actions=0, action_dim=2)
