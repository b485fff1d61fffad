import pytest

from covey.errors import UserError, nearest

KNOWN = ["CartPole-v1", "Pendulum-v1", "ppo", "dqn", "lr"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("pp", "Did you mean 'ppo'?"),
        ("PPO", "Did you mean 'ppo'?"),  # case alone: no other guesses
        ("cartpole-v1", "Did you mean 'CartPole-v1'?"),
        ("CartPole-v0", "Did you mean 'CartPole-v1'?"),
        ("Pendulm-v1", "Did you mean 'Pendulum-v1'?"),
        ("zzz", "Known: CartPole-v1, Pendulum-v1, dqn, lr, ppo."),
        ("", "Known: CartPole-v1, Pendulum-v1, dqn, lr, ppo."),
    ],
)
def test_the_nearest_name_or_all_of_them(name, sentence):
    assert nearest(name, KNOWN) == sentence


def test_several_near_names_are_all_said():
    said = nearest("Walker2d-v4", ["Walker2d-v5", "Walker2d-v3", "Ant-v5"])
    assert said.startswith("Did you mean 'Walker2d-v")
    assert "'Walker2d-v5'" in said
    assert "'Walker2d-v3'" in said
    assert " or " in said


def test_a_long_list_is_cut_at_twelve():
    said = nearest("?", [f"name{i:02d}" for i in range(30)])
    assert said.count(",") == 12
    assert said.endswith("name11, ....")
    assert nearest("?", []) == "Known: ."


def test_a_user_error_is_a_value_error():
    assert issubclass(UserError, ValueError)
