"""The library from Python: train, load, evaluate, as a user writes it."""

import json
import shutil

import gymnasium as gym
import numpy as np
import pytest
from badenvs import Counting, Sight
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import covey
from covey import checkpoint
from covey.training import check_device, configured, saved_config

TINY = {
    "steps": 64, "num_envs": 2, "unroll": 8, "eval_every": 0, "checkpoint_every": 0,
    "eval_episodes": 2, "until": None, "quiet": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trained(algo="ppo", env="CartPole-v1", **more):
    return covey.train(algo, env, **{**TINY, "hidden": [8], **more})


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return trained(out=tmp_path_factory.mktemp("once") / "run").folder


@pytest.fixture
def folder(once, tmp_path):
    """A trained run, to be spoilt."""
    return shutil.copytree(once, tmp_path / "run")


def test_train_gives_a_result_and_a_folder(tmp_path):
    result = trained(lr=0.01)
    assert (str(result.folder), result.reason) == ("runs/CartPole-v1/ppo-serial-1", "env_steps")
    assert (result.env_steps, result.seconds > 0) == (64, True)
    assert result.updates > 0
    assert len(result.evaluation.returns) == 2
    assert result.evaluation.return_mean >= 8
    assert saved_config(result.folder).algorithm.lr == 0.01
    assert covey.resume(steps=128, quiet=True).env_steps == 128


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"lrr": 1}, "unknown configuration key 'lrr'. Did you mean 'lr'?"),
        ({"num_env": 1}, "Did you mean 'num_envs'?"),
        ({"lr": -1}, "lr = -1 is out of range: it must be above 0"),
        ({"steps": 0}, "steps = 0 is out of range"),
        ({"recipe": "seral"}, "unknown recipe 'seral'"),
        ({"engine": "inlin"}, "unknown engine 'inlin'"),
        ({"device": "tpu9"}, "device 'tpu9' cannot be used"),
        ({"config": "nowhere.toml"}, "cannot read nowhere.toml"),
        ({"env_kwargs": {"gravity": 3}}, "CartPole-v1 cannot be made"),
        ({"env_kwargs": {"render_mode": None}}, "cannot be written to a configuration file"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing(words, sentence, tmp_path):
    with pytest.raises(covey.UserError) as caught:
        trained(**words)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_settings_come_over_those_of_a_file(tmp_path):
    (tmp_path / "mine.toml").write_text("lr = 0.5\n[ppo]\nclip = 0.3\n")
    config = saved_config(trained(config="mine.toml", lr=0.25).folder)
    assert (config.algorithm.lr, config.algorithm.clip) == (0.25, 0.3)


def test_settings_may_be_dotted_or_nested():
    result = trained("dqn", **{"replay.batch": 9}, replay={"warmup": 8}, dqn={"n_step": 1})
    config = saved_config(result.folder)
    assert (config.replay.batch, config.replay.warmup, config.algorithm.n_step) == (9, 8, 1)
    assert result.updates > 0


def test_values_of_numpy_are_settings_too():
    result = trained(steps=np.int64(32), lr=np.float32(0.5), seed=np.int64(3))
    config = saved_config(result.folder)
    assert (result.env_steps, config.seed, config.algorithm.lr) == (32, 3, 0.5)


def loop(policy, env, steps=40):
    """A user's own loop, with nothing of ours but the policy."""
    obs, _ = env.reset(seed=0)
    actions = []
    for _ in range(steps):
        action = policy(obs)
        assert env.action_space.contains(action), action
        actions.append(np.asarray(action).tolist())
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
    return actions


@pytest.mark.parametrize(
    ("algo", "env"),
    [("dqn", "CartPole-v1"), ("ppo", "CartPole-v1"), ("a2c", "Pendulum-v1"), ("ppo", "Pendulum-v1"),
     ("dqn", "FrozenLake-v1"), ("ppo", "MountainCarContinuous-v0")],
)  # fmt: skip
def test_a_policy_acts_in_a_plain_loop(algo, env):
    folder = trained(algo, env).folder
    policy = covey.load(folder)
    assert policy.env_steps == 64
    assert policy.config.env == env
    assert loop(policy, gym.make(env)) == loop(covey.load(folder), gym.make(env))


@pytest.mark.parametrize(("algo", "continuous"), [("dqn", False), ("a2c", True)])
def test_a_policy_of_dict_observations_acts_in_a_plain_loop(algo, continuous, tmp_path):
    def make():
        return Sight(continuous)

    folder = trained(algo, make, steps=16, hidden=[4], threads=1).folder
    assert loop(covey.load(folder, env=make), make(), 10)
    with pytest.raises(covey.UserError, match="Give the function that makes it, as env="):
        covey.load(folder)


def test_a_policy_also_samples(once):
    policy = covey.load(once)
    obs = np.zeros(4, np.float32)
    assert len({int(policy(obs, greedy=False)) for _ in range(50)}) == 2
    assert len({int(policy(obs)) for _ in range(50)}) == 1


def test_a_wrong_observation_is_named(once):
    policy = covey.load(once)
    with pytest.raises(covey.UserError, match=r"field obs has shape \(3,\), its space says \(4,\)"):
        policy(np.zeros(3, np.float32))


def test_evaluate_plays_greedy_episodes_and_repeats(folder):
    found = covey.evaluate(folder, episodes=5)
    assert found["episodes"] == 5
    assert found["env_steps"] == 64
    assert found["return_min"] <= found["return_mean"] <= found["return_max"]
    assert found["length_mean"] == found["return_mean"]  # a reward of 1 each step
    assert covey.evaluate(folder, episodes=5) == found
    assert covey.evaluate(str(folder), episodes=5, seed=9) != found
    assert json.loads(json.dumps(found)) == found


def test_evaluate_closes_every_environment_it_made():
    made = []

    class Closes(Counting):
        def __init__(self):
            super().__init__()
            made.append(self)
            self.closed = False

        def close(self):
            self.closed = True

    folder = trained(env=Closes).folder
    made.clear()
    covey.evaluate(folder, episodes=3, env=Closes)
    assert len(made) == 4
    assert all(env.closed for env in made)


def test_evaluate_gives_what_training_said():
    """Greedy play of CountingEnv returns 15 whatever is done."""
    result = trained(env=Counting)
    assert result.evaluation.returns == [15, 15]
    assert covey.evaluate(result.folder, episodes=3, env=Counting)["return_mean"] == 15


def test_a_network_of_ones_own_is_trained_and_loaded():
    from torch import nn

    def network():
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))

    result = covey.train("dqn", "CartPole-v1", network=network(), warmup=16, **TINY)
    policy = covey.load(result.folder, network=network())
    assert sum(p.numel() for p in policy.agent.module.parameters()) == 25 + 12
    assert covey.evaluate(result.folder, episodes=2, network=network())["episodes"] == 2


@pytest.mark.parametrize(
    ("network", "sentence"), [((4, 3), "2"), ((3, 2), "4|shape|observation")]
)  # fmt: skip
def test_a_network_that_does_not_fit_is_refused_and_leaves_nothing(network, sentence, tmp_path):
    from torch import nn

    with pytest.raises(covey.UserError, match=sentence):
        covey.train("dqn", "CartPole-v1", network=nn.Linear(*network), **TINY)
    assert not (tmp_path / "runs").exists()


def test_a_function_may_make_a_whole_vector_environment():
    def make():
        return SyncVectorEnv([Counting] * 2, autoreset_mode=AutoresetMode.SAME_STEP)

    result = trained(env=make)
    assert result.env_steps == 64
    assert result.evaluation.returns == [15, 15]


def test_what_was_not_saved_cannot_be_loaded(folder):
    with pytest.raises(covey.UserError, match="no run with a checkpoint"):
        covey.load()
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(covey.UserError, match="no checkpoint in"):
        covey.load(folder)


def test_load_takes_the_newest_good_checkpoint():
    folder = trained(checkpoint_every=16).folder
    newest, older, *_ = checkpoint.steps(folder / "checkpoints")
    (newest / "arrays.safetensors").write_bytes(b"")
    assert covey.load(folder).env_steps == int(older.name[5:]) < 64


@pytest.mark.parametrize("key", ["step", "env", "algo", "spec"])
def test_a_manifest_without_a_name_is_a_sentence(key, folder):
    (path,) = checkpoint.steps(folder / "checkpoints")
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest[key]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(covey.UserError):
        covey.resume(folder, steps=128, quiet=True)
    with pytest.raises(covey.UserError):
        covey.load(folder)


@pytest.mark.parametrize("forgotten", ["network", "other width", "setting"])
def test_weights_that_do_not_fit_are_refused_in_a_sentence(forgotten):
    from torch import nn

    def network(width=5):
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    own = None if forgotten == "setting" else network()
    folder = covey.train("dqn", "CartPole-v1", network=own, **TINY).folder
    given = network(6) if forgotten == "other width" else None
    if forgotten == "setting":
        config = folder / "config.toml"
        config.write_text(config.read_text().replace("normalize = false", "normalize = true"))
    before = (folder / "metrics.jsonl").read_text()
    for again in (
        lambda: covey.load(folder, network=given),
        lambda: covey.evaluate(folder, episodes=1, network=given),
        lambda: covey.resume(folder, steps=128, network=given, quiet=True),
    ):
        with pytest.raises(covey.UserError):
            again()
    assert (folder / "metrics.jsonl").read_text() == before
    assert checkpoint.newest_good(folder / "checkpoints").manifest["step"] == 64


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("n_step = 1", "n_step = 4"), ("hidden = [8]", "hidden = [9]"),
        ("num_envs = 2", "num_envs = 3"), ("unroll = 8", "unroll = 16"),
        ("capacity = 50000", "capacity = 500"),
    ],
)  # fmt: skip
def test_a_configuration_edited_before_a_resume_works_or_is_a_sentence(key, other):
    folder = trained("dqn", n_step=1, capacity=50_000, batch=8, warmup=16).folder
    config = folder / "config.toml"
    assert key in config.read_text()
    config.write_text(config.read_text().replace(key, other))
    try:
        assert covey.resume(folder, steps=128, quiet=True).env_steps >= 128
    except covey.UserError as error:
        assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("words", [{"episodes": 0}, {"episodes": -1}, {"seed": -1}])
def test_evaluate_refuses_what_makes_no_sense(words, once):
    with pytest.raises(covey.UserError, match="give at least one, and a seed from 0"):
        covey.evaluate(once, **words)


def test_configured_tries_the_environment_first():
    with pytest.raises(covey.UserError, match="dqn needs discrete actions"):
        configured("dqn", "Pendulum-v1")
    assert configured("ppo", Counting).env == "Counting"


def test_the_processor_is_always_there():
    check_device("cpu")
