"""What there is to choose from, also when another package brings it."""

import sys

import numpy as np
import pytest

import covey
from covey import catalog
from covey.config import option, parts
from covey.errors import UserError
from covey.recipes import Recipe
from covey.recipes.serial import serial
from covey.training import configured

MODULE = '''
from covey.algos.dqn import DQN, DQNConfig
from covey.recipes.serial import serial

CALLS = []


class Toy:
    """Delegates to DQN."""

    Config = DQNConfig
    actions = ("discrete",)
    recipes = ("serial", "twice")
    replayed = True

    def __init__(self, spec, config, rng, network=None, device="cpu", apply=None, **more):
        self.inner = DQN(spec, config, rng, network, device, apply, **more)

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)


def twice(team, session):
    """The serial recipe, counted."""
    CALLS.append(session.config.algo)
    return serial(team, session)
'''
TINY = {
    "steps": 256, "num_envs": 2, "unroll": 16, "eval_every": 0, "eval_episodes": 1, "warmup": 32,
    "hidden": [8], "quiet": True,
}  # fmt: skip


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Another package with an algorithm and a recipe, as pip would have installed it."""
    site = tmp_path / "site"
    about = site / "toy_rl-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "toy_rl.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-rl\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[covey.algorithms]\ntoy = toy_rl:Toy\n[covey.recipes]\ntwice = toy_rl:twice\n"
    )
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("toy_rl", None)


def test_what_is_ours_is_found():
    assert catalog.algorithm("dqn") is covey.DQN
    assert catalog.recipe("serial") is serial
    for name in catalog.RECIPES:
        assert isinstance(catalog.recipe(name), Recipe)
        assert catalog.recipe(name).what
    for name in catalog.ENGINES:
        assert callable(catalog.engine(name))
    for name in catalog.ALGORITHMS:
        assert set(catalog.algorithm(name).recipes) <= set(catalog.RECIPES)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        (("pp", "E"), "unknown algorithm 'pp'. Did you mean 'ppo'?"),
        (("zzz", "E"), "Known: a2c, d4pg, ddpg, dqn, ppo, qrdqn."),
        (("ppo", "E", "seral"), "unknown recipe 'seral'. Did you mean 'serial'?"),
        (("ppo", "E", None, "inlnie"), "unknown engine 'inlnie'. Did you mean 'inline'?"),
        ((None, "E"), "algo is missing. Example: covey train ppo CartPole-v1"),
        (("ppo", None), "env is missing."),
    ],
)
def test_a_wrong_choice_is_one_sentence(choices, sentence):
    with pytest.raises(UserError) as caught:
        catalog.configure(*choices)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", catalog.CHOICES)
def test_the_choices_are_no_settings(name):
    with pytest.raises(UserError, match=f"{name} is not set with --set"):
        catalog.configure("ppo", "E", settings={name: "x"})


PRESETS = [(env, case) for env, cases in catalog.presets().items() for case in cases]


@pytest.mark.parametrize(("env", "case"), PRESETS)
def test_every_preset_configures_and_says_what_it_says(env, case):
    algo, _, recipe = case.partition("-")  # for one recipe only: over the one for all
    assert algo in catalog.ALGORITHMS
    config = catalog.configure(algo, env, recipe or None)
    leaves = {k: v for part in parts(config).values() for k, v in values(part).items()}
    said = catalog.preset(env)[case]
    for key, value in {**said, **said.get("replay", {})}.items():
        if key != "replay":
            assert leaves[key] == (tuple(value) if isinstance(value, list) else value), key


def values(part):
    return {name: getattr(part, name) for name in part.__dataclass_fields__}


@pytest.mark.parametrize(("env", "case"), PRESETS)
def test_every_preset_fits_its_environment(env, case):
    algo, _, recipe = case.partition("-")
    config = configured(algo, env, recipe or None)
    assert (config.algo, config.recipe) == (algo, recipe or "serial")


def test_every_environment_that_an_algorithm_fits_has_a_preset_for_it():
    have = catalog.presets()
    cases = (("CartPole-v1", "discrete", set()), ("Pendulum-v1", "continuous", {"a2c"}))
    for env, kind, without in cases:
        fit = {n for n in catalog.ALGORITHMS if kind in catalog.algorithm(n).actions}
        assert set(have[env]) & set(catalog.ALGORITHMS) == fit - without
    assert "defaults" not in have


def test_an_environment_without_a_preset_has_none():
    assert catalog.preset("Nowhere-v0") == {}
    assert catalog.preset("../config") == {}


def test_layers_come_default_preset_file_settings():
    said = catalog.preset("CartPole-v1")["dqn"]
    default = covey.DQN.Config()
    assert default.lr != said["lr"]

    def lr(**more):
        return catalog.configure("dqn", "CartPole-v1", **more).algorithm.lr

    assert catalog.configure("dqn", "Nowhere-v0", use_presets=False).algorithm.lr == default.lr
    assert lr() == said["lr"]
    assert lr(file={"lr": 0.3}) == 0.3
    assert lr(file={"dqn": {"lr": 0.3}}, settings={"lr": 0.2}) == 0.2
    assert lr(use_presets=False) == default.lr


def test_a_file_may_choose_and_words_win():
    file = {"algo": "ppo", "env": "CartPole-v1", "recipe": "serial", "seed": 9}
    config = catalog.configure(None, None, file=file)
    assert (config.algo, config.env, config.seed) == ("ppo", "CartPole-v1", 9)
    assert catalog.configure("a2c", None, file=file).algo == "a2c"
    assert file["algo"] == "ppo"  # the caller's own


def test_a_replay_is_configured_for_those_that_have_one():
    assert catalog.configure("dqn", "E").replay is not None
    assert catalog.configure("ppo", "E").replay is None


def test_gradients_are_configured_for_those_that_push_them():
    assert catalog.configure("a2c", "E", "a3c").gradients is not None
    assert catalog.configure("a2c", "E", "hogwild").gradients is None
    assert catalog.configure("dqn", "E", "hogwild").replay is None  # learns what it just did


def test_a_preset_for_a_recipe_comes_over_the_one_for_all_and_below_the_settings():
    said = catalog.preset("CartPole-v1")
    assert said["a2c"]["unroll"] != said["a2c-a3c"]["unroll"]
    config = catalog.configure("a2c", "CartPole-v1", "a3c", settings={"num_envs": 7})
    assert (config.unroll, config.num_envs) == (said["a2c-a3c"]["unroll"], 7)
    assert config.algorithm.lr == said["a2c"]["lr"]
    assert catalog.configure("a2c", "CartPole-v1").unroll == said["a2c"]["unroll"]


def test_what_a_preset_says_of_a_replay_is_only_for_recipes_that_have_one():
    said, config = catalog.preset("CartPole-v1")["dqn"], catalog.configure(
        "dqn", "CartPole-v1", "hogwild"
    )  # fmt: skip
    assert "replay" in said
    assert (config.replay, config.algorithm.gamma) == (None, said["gamma"])


@pytest.mark.parametrize(
    ("choices", "settings", "members"),
    [
        (("ppo", "E"), {}, {}),
        (("a2c", "E", "a3c"), {"workers": 5}, {"worker": 5, "learner": 1, "evaluator": 1}),
        (("a2c", "E", "hogwild"), {"workers": 3}, {"worker": 3, "evaluator": 1}),
        (("a2c", "E", "a3c", "inline"), {}, {}),
    ],
)
def test_members_are_as_the_recipe_and_the_workers_say(choices, settings, members):
    config = catalog.configure(*choices, settings=settings)
    assert catalog.num_members(config, catalog.recipe(config.recipe)) == members
    assert config.engine == ("processes" if members else "inline")


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (2, 2), (7, 7)])
def test_without_a_number_there_is_a_worker_for_each_core(cores, workers, monkeypatch):
    monkeypatch.setattr(catalog.os, "sched_getaffinity", lambda pid: set(range(cores)))
    config = catalog.configure("a2c", "E", "hogwild")
    assert catalog.num_members(config, catalog.recipe("hogwild"))["worker"] == workers


@pytest.mark.parametrize(
    ("choices", "settings", "sentence"),
    [
        (
            ("ppo", "E"),
            {"workers": 3},
            "recipe serial with the engine inline, which is one process",
        ),
        (("a2c", "E", "a3c", "inline"), {"workers": 2}, "recipe a3c with the engine inline"),
        (("ppo", "E", None, "processes"), {}, "the engine processes has nothing to start"),
        (("a2c", "E", "a3c"), {"actors": 2}, "engine processes, which is set by workers. Leave it"),
        (("dqn", "E", "apex"), {"workers": 2}, "which is set by actors and learners. Leave it out"),
        (("a2c", "E", "a3c"), {"normalize": True}, "normalize has no meaning on the recipe a3c"),
        (("dqn", "E", "hogwild"), {"normalize": True}, "normalize has no meaning on the recipe ho"),
        (("a2c", "E", "a3c"), {"max_lag": 0, "every": 3, "workers": 2}, "raise max_lag or workers"),
        (("d4pg", "E", "apex"), {"v_min": 5, "v_max": 5}, "v_min = 5 must be below v_max = 5."),
        (("dqn", "E", "hogwild"), {"eps_ends": [0.1]}, "one chance for each of eps_ends = [0.1]"),
        (("qrdqn", "E"), {"eps_ends": [0.1], "eps_chances": [0.5]}, "= [0.1], and sum to 1."),
        (("dqn", "E", "a3c"), {}, "dqn does not run on the recipe a3c. dqn runs on: serial, hog"),
        (
            ("dqn", "E", "allreduce"),
            {},
            "planned and not here yet. dqn runs on: serial, hog",
        ),
    ],
)
def test_what_several_processes_cannot_do_is_one_sentence(choices, settings, sentence):
    with pytest.raises(UserError) as caught:
        catalog.configure(*choices, settings=settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_algorithm_from_another_package_is_trained_resumed_and_loaded(outside, tmp_path):
    result = covey.train("toy", "CartPole-v1", out=tmp_path / "run", **TINY)
    assert (result.reason, result.env_steps) == ("env_steps", 256)
    assert result.updates > 0
    assert covey.resume(tmp_path / "run", steps=320, quiet=True).env_steps == 320
    assert covey.load(tmp_path / "run")(np.zeros(4, np.float32)) in (0, 1)


def test_a_recipe_of_another_package_may_be_just_a_function(outside):
    found = catalog.recipe("twice")
    assert (found.members, found.replays, found.what) == ({}, True, "The serial recipe, counted.")


def test_a_recipe_from_another_package_runs(outside, tmp_path):
    result = covey.train("toy", "CartPole-v1", recipe="twice", out=tmp_path / "run", **TINY)
    assert result.env_steps == 256
    assert sys.modules["toy_rl"].CALLS == ["toy"]


def test_a_recipe_that_does_not_fit_is_refused_in_a_sentence(outside):
    with pytest.raises(UserError) as caught:
        covey.train("dqn", "CartPole-v1", recipe="twice")
    assert (
        str(caught.value)
        == "dqn does not run on the recipe twice. dqn runs on: serial, hogwild, apex."
    )


def test_names_from_another_package_are_guessed_too(outside):
    with pytest.raises(UserError, match=r"unknown algorithm 'tooy'\. Did you mean 'toy'"):
        catalog.algorithm("tooy")
    with pytest.raises(UserError, match=r"toy needs discrete actions.*Try: a2c, d4pg, ddpg, ppo\."):
        covey.train("toy", "Pendulum-v1")


def test_the_list_shows_what_another_package_brings(outside, capsys):
    from covey.cli import main

    with pytest.raises(UserError, match="covey list shows all"):
        catalog.algorithm("zzz")
    assert main(["list"]) == 0
    told = capsys.readouterr().out
    assert "  toy " in told
    assert "  twice " in told


def test_a_broken_package_breaks_only_what_it_brings(outside, tmp_path):
    (tmp_path / "site" / "toy_rl.py").write_text("import no_such_module")
    assert configured("dqn", "CartPole-v1").algo == "dqn"
    with pytest.raises(UserError, match=r"'toy' \(toy_rl:Toy\) cannot be loaded: ModuleNotFound"):
        configured("toy", "CartPole-v1")


def test_options_need_a_meaning():
    assert option(3, "what it is").metadata["doc"] == "what it is"
