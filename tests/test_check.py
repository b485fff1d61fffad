import numpy as np
import pytest
from badenvs import Broken, Coin, Counting, Sight

from covey import catalog
from covey.check import check, explore, unfit
from covey.vector import EnvError


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ("CartPole-v1", ("float32[4]", "2 choices", True, True)),
        ("Pendulum-v1", ("float32[3]", "1 continuous", True, True)),
        ("FrozenLake-v1", ("one-hot of [16]", "4 choices", True, True)),
        (Coin, ("float32[2]", "2 choices", False, False)),
        (Sight, ("camera: uint8[36, 36, 3] image, gear: one-hot of [4], hands: one-hot of [2, 3], "
                 "speed: float32[2]", "3 choices", True, True)),
    ],
)  # fmt: skip
def test_what_trying_an_environment_shows(env, wanted):
    found = explore(env)
    assert (found.observations, found.actions, found.deterministic, found.restorable) == wanted


def test_how_it_is_stepped_and_how_many_episodes_ended():
    found = explore(Counting)
    assert (found.name, found.how, found.episodes) == ("Counting", "one after the other", 40)
    assert explore("CartPole-v1").how == "as one vector environment"
    assert explore(Counting, {"length": 50}).episodes == 4


@pytest.mark.parametrize(("at", "found"), [(1, True), (200, True), (201, False)])
def test_a_broken_contract_is_found_within_200_steps(at, found):
    def make():
        return Broken("nan-obs", at)

    if found:
        with pytest.raises(EnvError, match=f"environment 0, step {at}: field obs holds NaN"):
            check(make)
    else:
        check(make).close()


def test_trying_does_not_touch_numpys_global_random_numbers():
    np.random.seed(3)
    before = np.random.get_state()[1].tobytes()
    check("CartPole-v1").close()
    assert np.random.get_state()[1].tobytes() == before


@pytest.mark.parametrize(
    ("algo", "env", "sentence"),
    [
        ("dqn", "CartPole-v1", None),
        ("ppo", "Pendulum-v1", None),
        ("dqn", "Pendulum-v1", "dqn needs discrete actions; Pendulum-v1 has 1 continuous actions. "
                               "Try: a2c, d4pg, ddpg, ppo."),
    ],
)  # fmt: skip
def test_whether_an_algorithm_fits(algo, env, sentence):
    envs = check(env, steps=1)
    assert unfit(algo, envs) == sentence
    envs.close()


class Continuous:
    actions = ("continuous",)


def test_one_that_needs_continuous_actions_is_told_of_choices(monkeypatch):
    monkeypatch.setitem(catalog.ALGORITHMS, "sac", f"{__name__}:Continuous")
    envs = check("CartPole-v1", steps=1)
    wanted = "sac needs continuous actions; CartPole-v1 has 2 choices. Try: a2c, dqn, ppo, qrdqn."
    assert unfit("sac", envs) == wanted
    envs.close()
