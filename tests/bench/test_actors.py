from math import isfinite
from time import perf_counter

import numpy as np
import pytest

from covey.bench import actors
from covey.envs import make_env


def test_the_figures_are_there_and_make_sense():
    figures = actors.measure(seconds=0.5, crowds=((4, 0.01),))
    assert all(isfinite(value) and value > 0 for value in figures.values())
    ideal = 4 / 0.01
    rate = figures["4_actors_of_10_ms_steps_per_second"]
    assert rate <= 1.1 * ideal  # an actor never steps before its environment has waited
    assert np.isclose(figures["4_actors_of_10_ms_of_ideal"], rate / ideal)
    assert figures["4_actors_of_10_ms_cpu_microseconds_per_step"] < 10_000
    for name in ("bare", "gymnasium"):
        shared = figures["cartpole_actor_steps_per_second"]
        shared /= figures[f"cartpole_{name}_steps_per_second"]
        assert np.isclose(figures[f"cartpole_actor_of_{name}"], shared)
    assert figures["cartpole_actor_of_bare"] < 1.2  # acting includes the environment


def test_the_crowds_are_those_that_were_promised():
    assert actors.CROWDS == ((128, 0.010), (360, 0.0288))


@pytest.mark.parametrize("step_seconds", [0.0, 0.02])
def test_an_environment_waits_as_long_as_it_says(step_seconds):
    env = make_env(lambda: actors.Waiting(step_seconds), 1)
    obs_B = env.empty(2)
    env.reset(obs_B[:1])
    began = perf_counter()
    for _ in range(5):
        step = env.step(np.zeros(1, np.int64), obs_B[:1])
    assert perf_counter() - began >= 5 * step_seconds
    assert (step.reward_B == 1).all()
    env.close()


def test_an_episode_has_200_steps():
    env = actors.Waiting(0.0)
    env.reset(seed=1)
    ends = [env.step(0)[2:4] for _ in range(200)]
    assert ends == [(False, False)] * 199 + [(False, True)]
