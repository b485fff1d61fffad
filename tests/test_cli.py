"""The command line as a user meets it: every mistake costs a second and one sentence."""

import json
import subprocess
import sys
import time

import pytest

USAGE = [
    ("train pp CartPole-v1", "unknown algorithm 'pp'. Did you mean 'ppo'?"),
    ("train dnq CartPole-v1", "Did you mean 'dqn'?"),
    ("train ppo CartPole-v1 --recipe seral", "unknown recipe 'seral'. Did you mean 'serial'?"),
    ("train ppo CartPole-v1 --engine inlin", "unknown engine 'inlin'. Did you mean 'inline'?"),
    ("train ppo CartPol-v1", "Did you mean 'CartPole-v1'"),
    ("train ppo CartPole-v1 --stpes 10", "unknown option '--stpes'. Did you mean '--steps'"),
    ("train ppo CartPole-v1 --set lrr=1", "unknown configuration key 'lrr'. Did you mean 'lr'?"),
    ("train ppo CartPole-v1 --set ppo.lrr=1", "Did you mean 'ppo.lr'"),
    ("train ppo CartPole-v1 --set dqn.lr=1", "unknown configuration key 'dqn.lr'"),
    ("train ppo CartPole-v1 --set replay.batch=1", 
     "ppo on the recipe serial has no replay: leave 'replay.batch' out"),
    ("train a2c CartPole-v1 --recipe hogwild --set gradients.every=2",
     "a2c on the recipe hogwild has no gradients: leave 'gradients.every' out"),
    ("train ppo CartPole-v1 --recipe hogwild", "ppo does not run on the recipe hogwild."),
    ("train ppo CartPole-v1 --workers 3", "workers = 3 has no meaning on the recipe serial"),
    ("train a2c CartPole-v1 --recipe a3c --workers -1", "workers = -1 is out of range"),
    ("train ppo CartPole-v1 --engine processes", "the engine processes has nothing to start"),
    ("train a2c CartPole-v1 --recipe a3c --set normalize=true", "Set normalize=false, or use"),
    ("train dqn Pendulum-v1", "dqn needs discrete actions; Pendulum-v1 has 1 continuous actions."
                              " Try: a2c, d4pg, ddpg, ppo."),
    ("train ppo Blackjack-v1", "Wrap the environment"),
    ("train dqn CartPole-v1 --steps 0", "steps = 0 is out of range: it must be at least 1"),
    ("train dqn CartPole-v1 --num-envs -3", "num_envs = -3 is out of range"),
    ("train dqn CartPole-v1 --seed -1", "seed = -1 is out of range"),
    ("train dqn CartPole-v1 --set lr=0", "lr = 0 is out of range: it must be above 0"),
    ("train dqn CartPole-v1 --set lr=-1e-3", "lr = -0.001 is out of range"),
    ("train dqn CartPole-v1 --set lr=nan", "must be a number"),
    ("train dqn CartPole-v1 --set lr=-.5", "lr = -0.5 is out of range"),
    ("train dqn CartPole-v1 --set lr=fast", "lr = 'fast' must be a number"),
    ("train dqn CartPole-v1 --set double=2", "double = 2 must be true or false"),
    ("train dqn CartPole-v1 --set hidden=[0]", "hidden = 0 is out of range"),
    ("train dqn CartPole-v1 --set unroll=1.5", "unroll = 1.5 must be a whole number"),
    ("train ppo CartPole-v1 --set activation=rely", "Did you mean 'relu'?"),
    ("train dqn CartPole-v1 --set replay.batch=99 --set replay.capacity=9 --set warmup=1",
     "replay.batch = 99 is larger than replay.capacity = 9"),
    ("train dqn CartPole-v1 --set warmup=99 --set capacity=70", "learning would never start"),
    ("train ppo CartPole-v1 --set lr", "'lr' is not name=value"),
    ("train ppo CartPole-v1 --set env=Foo", "env is not set with --set"),
    ("train", "algo is missing"),
    ("train ppo", "env is missing"),
    ("train ppo CartPole-v1 more", "unknown argument 'more'"),
    ("trian ppo CartPole-v1", "unknown command 'trian'. Did you mean 'train'?"),
    ("--versoin", "unknown option '--versoin'"),
    ("train ppo CartPole-v1 --config nofile.toml", "cannot read nofile.toml: No such file"),
    ("train ppo CartPole-v1 --config broken.toml", "broken.toml is not valid TOML"),
    ("train ppo CartPole-v1 --config latin.toml", "latin.toml is not UTF-8"),
    ("train ppo CartPole-v1 --config .", "cannot read .: Is a directory"),
    ("train ppo CartPole-v1 --config typo.toml", "unknown configuration key 'ppo.lrr'"),
    ("train ppo CartPole-v1 --config double.toml", "double.toml is not valid TOML"),
    ("train ppo CartPole-v1 --set env_kwargs.foo=3", "CartPole-v1 cannot be made"),
    ("train ppo badenvs:Broken-four-v0", "environment 0, step 3: step returned 4 values"),
    ("train ppo badenvs:Broken-shape-v0", "environment 0, step 3: field obs has shape (1,)"),
    ("train ppo badenvs:Broken-dtype-v0", "environment 0, step 3: field obs is float64"),
    ("train ppo badenvs:Broken-nan-obs-v0", "environment 0, step 3: field obs holds NaN"),
    ("train ppo badenvs:Broken-nan-reward-v0", "environment 0, step 3: field reward holds NaN"),
    ("train ppo badenvs:Broken-reset-v0", "environment 0, step 0: reset must return"),
    ("train ppo badenvs:Broken-raise-v0", "step 3: step raised RuntimeError: the motor is hot"),
    ("check-env Foo-v1", "unknown environment 'Foo-v1'"),
    ("resume", "no run with a checkpoint below runs/"),
    ("resume 77", "no run '77'"),
    ("resume --steps 0", "'0' is not a whole number of at least 1"),
    ("eval nothing", "no run 'nothing'"),
    ("eval --episodes x", "'x' is not a whole number of at least 1"),
    ("plot nothing", "no run 'nothing'"),
    ("bench fast", "unknown bench 'fast'"),
]  # fmt: skip


@pytest.fixture
def files(tmp_path):
    (tmp_path / "broken.toml").write_text("a = [1,\n")
    (tmp_path / "latin.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "typo.toml").write_text("[ppo]\nlrr = 1\n")
    (tmp_path / "double.toml").write_text("lr = 1\nlr = 2\n")
    return sorted(p.name for p in tmp_path.iterdir())


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Run the command line in this process, where a thousand mistakes cost little."""
    from covey.cli import main

    def run(words):
        status = main(words.split())
        told = capsys.readouterr()
        return status, told.out, told.err

    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize(("words", "sentence"), USAGE)
def test_a_mistake_is_one_sentence(words, sentence, files, here, tmp_path):
    status, out, told = here(words)
    assert status == 2
    assert sentence in told
    assert out == ""
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert len(told) < 400
    assert sorted(p.name for p in tmp_path.iterdir()) == files


# and as a process: quick, no torch, no traceback
@pytest.mark.parametrize("number", range(0, len(USAGE), 15))
def test_a_mistake_costs_a_second_and_no_torch(number, covey_cli, files):
    words, sentence = USAGE[number]
    began = time.monotonic()
    done = covey_cli(*words.split())
    seconds = time.monotonic() - began
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert seconds < 5  # a loaded machine; torch alone takes longer than the rest together


SPY = """
import sys
from covey.cli import main

for words in sys.argv[1:]:
    try:
        main(words.split())
    except SystemExit as ended:  # after its help
        assert ended.code == 0, words
    assert "torch" not in sys.modules, words
"""


def test_help_and_usage_do_not_import_torch(tmp_path):
    words = ("--help", "train --help", "train pp x", "list", "--version", "train dqn Pendulum-v1",
             "show-config ppo CartPole-v1", "show-config a2c CartPole-v1 --recipe a3c",
             "check-env CartPole-v1", "resume")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SPY, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_output_folder_that_cannot_be_used(covey_cli, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("")
    for out, sentence in (("taken", "taken is not empty"), ("file", "cannot write to file"),
                          ("/proc/nowhere", "cannot write to /proc/nowhere")):  # fmt: skip
        done = covey_cli("train", "ppo", "CartPole-v1", "--out", out)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert sentence in done.stderr
    assert (tmp_path / "taken" / "thesis.tex").read_text() == "years of work"


@pytest.mark.slow
def test_a_folder_in_use_is_refused_with_the_process_that_has_it(
    start_cli, covey_cli, wait_for, tmp_path
):
    first = start_cli("train", "ppo", "CartPole-v1", "--out", "mine", "--steps", "10000000",
                      "--set", "until=none", "--set", "checkpoint_every=2000")  # fmt: skip
    wait_for(lambda: list(tmp_path.glob("mine/checkpoints/step_*")), "a checkpoint")
    for words in (["train", "ppo", "CartPole-v1", "--out", "mine"], ["resume", "mine"]):
        done = covey_cli(*words)
        assert done.returncode == 2
        assert f"mine is in use by another run (process {first.pid})" in done.stderr
    assert first.poll() is None


def test_nan_late_in_training_is_named_and_leaves_no_folder(here, tmp_path):
    status, _, told = here(
        "train dqn badenvs:LateNan-v0 --num-envs 2 --set warmup=100 --set checkpoint_every=0"
    )
    assert status == 2
    assert "environment 0, step 700: field obs holds NaN" in told
    assert (told[:7], told.count("\n")) == ("error: ", 1)
    assert not (tmp_path / "runs").exists()


def test_cuda_without_a_gpu_is_refused(here, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    status, _, told = here("train ppo CartPole-v1 --device cuda")
    assert status == 2
    assert "device 'cuda' cannot be used" in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_whole_life_train_eval_plot_resume_list(covey_cli, tmp_path):
    done = covey_cli("train", "ppo", "CartPole-v1", "--steps", "3000", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout  # plain lines in a pipe
    assert "as one vector environment" in done.stdout
    assert "done" in done.stdout
    folder = tmp_path / "runs" / "CartPole-v1" / "ppo-serial-1"
    names = {p.name for p in folder.iterdir()}
    assert {"config.toml", "metrics.jsonl", "events.jsonl", "tensorboard", "checkpoints",
            "curve.png", "trace.json"} <= names  # fmt: skip
    found = json.loads(covey_cli("eval", "--json", "--episodes", "5").stdout)
    assert found["episodes"] == 5
    assert found["env_steps"] >= 3000
    assert 8 <= found["return_min"] <= found["return_mean"] <= found["return_max"] <= 500
    again = json.loads(covey_cli("eval", "1", "--json", "--episodes", "5").stdout)
    assert again == found
    (folder / "curve.png").unlink()
    assert covey_cli("plot", "ppo-serial-1").returncode == 0
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    refused = covey_cli("resume")
    assert refused.returncode == 2
    assert "Go further with" in refused.stderr
    resumed = covey_cli("resume", "1", "--steps", "5000")
    assert resumed.returncode == 0, resumed.stderr
    assert "bit for bit" in resumed.stdout
    assert "ppo-serial-1" in covey_cli("list").stdout
    assert covey_cli("train", "ppo", "--config", folder / "config.toml", "--steps", "100",
                     "--quiet").returncode == 0  # fmt: skip
    assert (tmp_path / "runs" / "CartPole-v1" / "ppo-serial-2" / "config.toml").exists()


def test_check_env_doctor_and_show_config(here):
    def said(words):
        status, out, _ = here(words)
        assert status == 0
        return out

    told = said("check-env Pendulum-v1")
    assert "1 continuous" in told
    assert "exact resume   yes" in told
    coin = json.loads(said("check-env badenvs:Coin-v0 --json"))
    assert (coin["deterministic"], coin["restorable"]) == (False, False)
    assert json.loads(said("doctor --json"))["ok"] is True
    shown = said("show-config dqn CartPole-v1 --set lr=0.5")
    assert "lr = 0.5 " in shown
    assert "[replay]" in shown
    shown = said("show-config a2c CartPole-v1 --recipe a3c --workers 3")
    assert "workers = 3 " in shown
    assert 'engine = "processes"' in shown
    assert "[gradients]" in shown
