"""Advantages of unrolls made by hand, beside the definition in plain Python."""

import numpy as np
import pytest
import torch
from torch import nn

from covey.onpolicy import Actor, advantage_rows
from covey.types import Final, Leaf, Spec, Unroll

GAMMA, LAMBDA = 0.9, 0.8
SPEC = Spec({"": Leaf((1,), np.dtype(np.float32))}, num_actions=2, action_dim=0)


class Itself(nn.Module):
    """The value of an observation is its first number."""

    def forward(self, obs):
        return obs, obs[:, 0]


def unroll(rewards, ends, finals=(), valid=None):
    """One environment; `ends` of each step: "", "terminated" or "truncated"; obs are 100 + t."""
    num = len(rewards)
    return Unroll(
        obs_TB=(100 + np.arange(num + 1, dtype=np.float32)).reshape(-1, 1, 1),
        action_TB=np.arange(num).reshape(-1, 1) % 2,
        reward_TB=np.array(rewards, np.float32).reshape(-1, 1),
        discount_TB=np.array([e != "terminated" for e in ends], np.float32).reshape(-1, 1),
        last_TB=np.array([e != "" for e in ends]).reshape(-1, 1),
        valid_TB=np.array(valid or [True] * num).reshape(-1, 1),
        extra={"logp": -np.arange(num, dtype=np.float32).reshape(-1, 1)},
        finals=[Final(t, 0, np.array([value], np.float32)) for t, value in finals],
    )


def by_definition(rewards, ends, finals=()):
    values = [100 + t for t in range(len(rewards) + 1)]
    after, advantages = 0.0, []
    for t in reversed(range(len(rewards))):
        following = dict(finals).get(t, values[t + 1])
        alive = ends[t] != "terminated"
        delta = rewards[t] + GAMMA * following * alive - values[t]
        after = delta + GAMMA * LAMBDA * after * (ends[t] == "")
        advantages.insert(0, after)
    return advantages


def rows(made):
    return advantage_rows(Itself(), made, GAMMA, LAMBDA, "cpu")


@pytest.mark.parametrize(
    ("ends", "finals"),
    [
        (["", "", "", ""], []),
        (["", "terminated", "", ""], []),
        (["", "truncated", "", ""], [(1, 7.0)]),  # the true last sight, not the reset's
        (["", "truncated", "", "truncated"], [(3, 9.0), (1, 7.0)]),
        (["terminated", "truncated", "terminated", ""], [(1, 3.0)]),
    ],
)
def test_advantages_are_as_defined(ends, finals):
    rewards = [1.0, -2.0, 3.0, 0.5]
    found = rows(unroll(rewards, ends, finals))
    wanted = by_definition(rewards, ends, finals)
    assert found["advantage"] == pytest.approx(np.array(wanted), rel=1e-5)
    assert found["return"] == pytest.approx(np.array(wanted) + 100 + np.arange(4), rel=1e-5)
    assert found["obs"][:, 0].tolist() == [100, 101, 102, 103]
    assert found["action"].tolist() == [0, 1, 0, 1]
    assert found["logp"].tolist() == [0, -1, -2, -3]


def test_a_step_that_only_reset_is_no_row_and_leaks_nothing():
    made = unroll([1.0, 2.0, 0.0, 4.0], ["", "terminated", "", ""], valid=[True, True, False, True])
    found = rows(made)
    assert len(found["advantage"]) == 3
    assert found["obs"][:, 0].tolist() == [100, 101, 103]
    assert found["advantage"][1] == pytest.approx(2 - 101)
    assert found["advantage"][2] == pytest.approx(4 + GAMMA * 104 - 103)


def test_rows_are_single_precision_and_gradients_stay_out():
    found = rows(unroll([1.0], [""]))
    assert {v.dtype.str for k, v in found.items() if k != "action"} == {"<f4"}


def actor(seed=0, spec=SPEC):
    torch.manual_seed(0)
    return Actor(spec, np.random.default_rng(seed), "cpu", None, (8,), "tanh", False, 0.0)


def test_an_actor_samples_and_says_how_likely_it_was():
    one = actor()
    obs_B = np.full((4000, 1), 0.5, np.float32)
    action_B, extra = one.act(obs_B, greedy=False)
    share = action_B.mean()
    likely = np.exp(extra["logp"])
    assert set(extra) == {"logp"}
    assert likely[action_B == 1][0] == pytest.approx(share, abs=0.04)
    assert likely[action_B == 1][0] + likely[action_B == 0][0] == pytest.approx(1, abs=1e-5)


def test_greedy_is_the_likeliest_and_draws_no_random_number():
    one = actor()
    before = one.rng.bit_generator.state
    action_B, extra = one.act(np.zeros((50, 1), np.float32), greedy=True)
    assert (len(set(action_B.tolist())), extra) == (1, {})
    assert one.rng.bit_generator.state == before


def test_the_actors_own_random_numbers_decide():
    obs_B = np.zeros((64, 1), np.float32)
    one, two, three = (actor(seed).act(obs_B, greedy=False)[0].tolist() for seed in (1, 1, 2))
    assert one == two != three


def test_continuous_actions_have_their_dimension():
    spec = Spec(SPEC.leaves, num_actions=0, action_dim=3)
    action_B, extra = actor(spec=spec).act(np.zeros((5, 1), np.float32), greedy=False)
    assert (action_B.shape, extra["logp"].shape) == ((5, 3), (5,))
