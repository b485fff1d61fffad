"""Stop and resume equals never stopped: weights, optimizer, replay, random numbers, envs."""

import json
import os
import signal

import numpy as np
import pytest
from badenvs import Coin, Counting, Film, Sight

import covey
from covey import checkpoint
from covey.metrics import read_metrics

STEPS = 4000
CASES = {
    "dqn": ("CartPole-v1", {"replay.capacity": 1500, "warmup": 500, "n_step": 4}),
    "a2c": ("CartPole-v1", {"normalize": "true"}),
    "ppo": ("Pendulum-v1", {"normalize": "true", "scale_reward": "true", "unroll": 50}),
}
COMMON = {
    "steps": STEPS, "checkpoint_every": 500, "eval_every": 1500, "eval_episodes": 2,
    "until": "none", "keep": 2,
}  # fmt: skip


def events(folder, kind):
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == kind]


def same(one, two, where=""):
    """Two trees, leaf by leaf; clocks apart."""
    assert type(one) is type(two), where
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one.keys() - {"seconds"}:
            same(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, np.ndarray):
        assert one.tobytes() == two.tobytes(), where
    else:
        assert one == two, where


@pytest.mark.slow
@pytest.mark.parametrize("algo", CASES)
def test_killed_at_three_points_and_resumed_is_as_never_stopped(
    algo, start_cli, covey_cli, wait_for, tmp_path
):
    env, settings = CASES[algo]
    flags = [w for k, v in {**COMMON, **settings}.items() for w in ("--set", f"{k}={v}")]
    whole = covey_cli("train", algo, env, "--out", "whole", *flags)
    assert whole.returncode == 0, whole.stderr
    rng = np.random.default_rng(7)
    first = start_cli("train", algo, env, "--out", "cut", *flags)
    folder = tmp_path / "cut"
    for kill in range(3):
        newest = 500 * (1 + 2 * kill) + int(rng.integers(500))

        def passed(newest=newest, first=first):
            saved = checkpoint.steps(folder / "checkpoints")
            return first.poll() is not None or (saved and int(saved[0].name[5:]) >= newest - 500)

        wait_for(passed, "a checkpoint")
        first.send_signal(signal.SIGKILL)
        first.wait()
        if kill < 2:
            first = start_cli("resume", "cut")
    assert covey_cli("resume", "cut").returncode in (0, 2)  # 2: it was done before the last kill
    assert len(events(folder, "resume")) >= 2
    assert all(e["exact"] for e in events(folder, "resume"))
    one = checkpoint.newest_good(tmp_path / "whole" / "checkpoints")
    two = checkpoint.newest_good(folder / "checkpoints")
    assert one.manifest["step"] == two.manifest["step"] >= STEPS
    same(one.tree, two.tree)
    evaluated = [
        [(r["env_steps"], r["eval_return_mean"]) for r in read_metrics(f / "metrics.jsonl")
         if "eval_return_mean" in r]
        for f in (tmp_path / "whole", folder)
    ]  # fmt: skip
    assert set(evaluated[0]) == set(evaluated[1])


def quick(algo, env, out, **more):
    settings = {
        "steps": 600, "num_envs": 2, "unroll": 10, "eval_every": 0, "checkpoint_every": 0,
        "eval_episodes": 1, "until": None,
    }  # fmt: skip
    return covey.train(algo, env, out=out, quiet=True, **{**settings, **more})


def test_the_same_seed_trains_the_same_weights(tmp_path):
    runs = [
        quick("ppo", "CartPole-v1", tmp_path / str(i), seed=seed, steps=100)
        for i, seed in enumerate((5, 5, 6))
    ]
    assert runs[0].weights == runs[1].weights != runs[2].weights


def test_an_environment_that_cannot_come_back_is_said_and_goes_on(tmp_path):
    quick("dqn", Coin, tmp_path / "run", warmup=100)
    result = covey.resume(tmp_path / "run", steps=900, env=Coin, quiet=True)
    assert result.env_steps >= 900
    assert [e["exact"] for e in events(tmp_path / "run", "resume")] == [False]


def test_resume_prints_whether_it_is_exact(tmp_path, capsys):
    quick("dqn", Coin, tmp_path / "run")
    covey.resume(tmp_path / "run", steps=900, env=Coin)
    assert "but not bit for bit: the environments" in capsys.readouterr().out


def test_a_replay_that_was_not_saved_makes_resume_inexact(tmp_path):
    quick("dqn", "CartPole-v1", tmp_path / "run", save_replay=False, warmup=100)
    covey.resume(tmp_path / "run", steps=900, quiet=True)
    assert [e["exact"] for e in events(tmp_path / "run", "resume")] == [False]


@pytest.mark.parametrize(
    ("continuous", "threads"),
    [(False, 1), (True, 1), pytest.param(True, 2, marks=pytest.mark.slow)],
)
def test_dict_observations_with_images_resume_exactly(continuous, threads, tmp_path):
    def make():
        return Sight(continuous=continuous)

    algo = "ppo" if continuous else "dqn"
    more = {"normalize": True, "env_kwargs": {}, "threads": threads}
    if algo == "dqn":
        more |= {"warmup": 30, "reuse": 1, "batch": 10}
    quick(algo, make, tmp_path / "whole", steps=120, **more)
    quick(algo, make, tmp_path / "cut", steps=60, **more)
    covey.resume(tmp_path / "cut", steps=120, env=make, quiet=True)
    one = checkpoint.newest_good(tmp_path / "whole" / "checkpoints")
    two = checkpoint.newest_good(tmp_path / "cut" / "checkpoints")
    same(one.tree, two.tree)


def test_stacks_of_frames_resume_exactly(tmp_path):
    more = {"warmup": 30, "batch": 8, "capacity": 60, "n_step": 2, "reuse": 1, "threads": 1}
    quick("dqn", Film, tmp_path / "whole", steps=120, **more)
    quick("dqn", Film, tmp_path / "cut", steps=80, **more)
    covey.resume(tmp_path / "cut", steps=120, env=Film, quiet=True)
    one = checkpoint.newest_good(tmp_path / "whole" / "checkpoints")
    two = checkpoint.newest_good(tmp_path / "cut" / "checkpoints")
    same(one.tree, two.tree)
    images = one.tree["replay"]["images"]
    assert images["frames"].shape[1:] == (1, 36, 36)
    assert (
        60 < len(images["frames"]) < 120 + 120 / 23 + 4
    )  # one for each env step, one for each reset


def test_a_users_own_network_is_trained_saved_and_resumed(tmp_path):
    from torch import nn

    def network():
        return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 2))

    import torch

    torch.manual_seed(0)
    whole, cut = network(), network()
    cut.load_state_dict(whole.state_dict())
    one = quick("dqn", "CartPole-v1", tmp_path / "a", network=whole, warmup=100)
    quick("dqn", "CartPole-v1", tmp_path / "b", network=cut, warmup=100, steps=300)
    two = covey.resume(tmp_path / "b", steps=600, network=network(), quiet=True)
    assert one.weights == two.weights


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_go_on_and_exits_130(start_cli, covey_cli, wait_for, tmp_path):
    run = start_cli("train", "ppo", "CartPole-v1", "--steps", "10000000", "--set", "until=none",
                    "--set", "checkpoint_every=0", "--out", "run")  # fmt: skip
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, "training")
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "Traceback" not in told
    assert "interrupted: checkpoint saved at env step" in told
    assert "Go on with: covey resume run" in told
    saved = checkpoint.newest_good(tmp_path / "run" / "checkpoints").manifest["step"]
    done = covey_cli("resume", "run", "--steps", saved + 2000)
    assert done.returncode == 0
    assert f"resumed at env step {saved:,}, bit for bit" in done.stdout


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGUSR1, 75, marks=pytest.mark.slow)],
)
def test_other_signals_save_too(number, code, start_cli, wait_for, tmp_path):
    run = start_cli("train", "dqn", "CartPole-v1", "--steps", "10000000", "--set", "until=none",
                    "--out", "run")  # fmt: skip
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, "training")
    run.send_signal(number)
    run.communicate(timeout=30)
    assert run.returncode == code
    assert checkpoint.newest_good(tmp_path / "run" / "checkpoints")


def test_ctrl_c_in_python_raises_after_saving(tmp_path):
    steps = []

    class Interrupts(Counting):
        def step(self, action):
            steps.append(action)
            if len(steps) == 1000:  # trying it out takes 400
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    with pytest.raises(KeyboardInterrupt):
        quick("ppo", Interrupts, tmp_path / "run", steps=10**9)
    at = checkpoint.newest_good(tmp_path / "run" / "checkpoints").manifest["step"]
    assert 0 < at <= len(steps) < 1100
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_metrics_after_a_resume_go_on_without_doubled_rows(tmp_path):
    quick("ppo", "CartPole-v1", tmp_path / "run", checkpoint_every=200)
    folder = tmp_path / "run"
    newest, older = checkpoint.steps(folder / "checkpoints")[:2]
    (newest / "state.json").write_text("{")
    covey.resume(folder, quiet=True)
    rows = read_metrics(folder / "metrics.jsonl")
    for evaluated in (False, True):  # the last round may have a row of its own, too
        at = [r["env_steps"] for r in rows if ("eval_return_mean" in r) is evaluated]
        assert at == sorted(set(at))
    assert at == [600]
    (told,) = events(folder, "resume")
    assert told["env_steps"] == int(older.name[5:])
    assert "state.json has" in told["skipped"][0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("env", "is of env 'CartPole-v1', but"),
        ("algo", "is of algo 'ppo', but"),
        ("gone", "no checkpoint in"),
        ("space", "was saved with other spaces"),
        ("more", "Go further with: covey resume"),
        ("custom", "Give the function that makes it"),
    ],
)
def test_what_does_not_fit_is_refused(change, sentence, tmp_path):
    import shutil

    folder = tmp_path / "run"
    quick("ppo", Coin if change == "custom" else "CartPole-v1", folder, steps=20)
    config = folder / "config.toml"
    if change == "env":
        config.write_text(config.read_text().replace("CartPole-v1", "Acrobot-v1"))
    elif change == "algo":
        text = config.read_text().replace('"ppo"', '"a2c"')
        config.write_text(text[: text.index("[ppo]")])
    elif change == "gone":
        shutil.rmtree(folder / "checkpoints")
    elif change == "space":
        (path,) = checkpoint.steps(folder / "checkpoints")
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["spec"]["num_actions"] = 3
        manifest["sha256"] = checkpoint._own_digest(manifest)
        (path / "manifest.json").write_text(json.dumps(manifest))
    before = (folder / "metrics.jsonl").read_text()
    with pytest.raises(covey.UserError, match=sentence):
        covey.resume(folder, steps=20 if change == "more" else 900, quiet=True)
    assert (folder / "metrics.jsonl").read_text() == before or change == "space"
