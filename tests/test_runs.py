"""A run's folder: its name, its lock, what is written into it, and how it is found again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from covey import catalog, checkpoint
from covey.config import TrainConfig
from covey.errors import UserError
from covey.runs import Run, find, save
from covey.task import Task
from covey.types import Leaf, Spec

CONFIG = TrainConfig(algo="dqn", env="CartPole-v1")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(config=CONFIG, out=None, saved=False):
    """A closed run; its folder."""
    run = Run.create(config, out)
    if saved:
        checkpoint.save(run.checkpoints, 1, {"x": 1}, {})
    run.close()
    return run.folder


def test_runs_are_numbered_below_their_environment():
    assert [str(made()) for _ in range(3)] == [
        f"runs/CartPole-v1/dqn-serial-{n}" for n in (1, 2, 3)
    ]
    assert made(TrainConfig(algo="ppo", env="ALE/Pong-v5")) == Path("runs/ALE-Pong-v5/ppo-serial-1")


def test_a_number_that_is_free_again_is_not_mixed_with_another_run():
    made()
    two = made()
    (Path("runs/CartPole-v1/dqn-serial-1") / "config.toml").unlink()  # not empty: stays taken
    assert made() == two.with_name("dqn-serial-3")


def test_a_new_folder_holds_the_configuration():
    config = catalog.configure("dqn", "CartPole-v1", settings={"lr": 0.25})
    folder = made(config, Path("mine/deep"))
    text = (folder / "config.toml").read_text()
    assert "lr = 0.25" in text
    assert "# step size" in text


@pytest.mark.parametrize("value", [None, object(), {1, 2}])
def test_a_configuration_that_cannot_be_written_leaves_no_folder(value):
    config = TrainConfig(algo="dqn", env="E-v0", env_kwargs={"x": value})
    for out in (None, Path("mine")):
        with pytest.raises(UserError, match="cannot be written to a configuration file"):
            Run.create(config, out)
    assert list(Path().iterdir()) == []


def test_an_output_folder_must_be_new_or_empty():
    Path("empty").mkdir()
    assert made(out=Path("empty")) == Path("empty")
    with pytest.raises(UserError, match=r"empty is not empty. Choose another --out, or go on with"):
        Run.create(CONFIG, Path("empty"))
    Path("file").touch()
    with pytest.raises(UserError, match="cannot write to file"):
        Run.create(CONFIG, Path("file"))
    assert Path("file").read_bytes() == b""


# the lock


def test_one_process_at_a_time_holds_a_run():
    run = Run.create(CONFIG, Path("mine"))
    for again in (lambda: Run(run.folder, CONFIG, 0), lambda: Run.create(CONFIG, run.folder)):
        with pytest.raises(
            UserError, match=rf"mine is in use by another run \(process {os.getpid()}"
        ):
            again()
    run.close()
    Run(run.folder, CONFIG, 0).close()


def test_a_refused_run_leaves_no_descriptor_open():
    run = Run.create(CONFIG, Path("mine"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(UserError):
            Run(run.folder, CONFIG, 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    run.close()


def test_a_killed_process_gives_its_lock_back():
    script = (
        "import os, signal; from pathlib import Path\n"
        "from covey.config import TrainConfig; from covey.runs import Run\n"
        "run = Run.create(TrainConfig(algo='dqn', env='E'), Path('mine'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == -9
    Run(Path("mine"), CONFIG, 0).close()


# what is written


def test_metrics_and_events_are_lines():
    run = Run.create(CONFIG, Path("mine"))
    run.log({"env_steps": 10, "loss": float("nan")})
    run.event("start", seed=3)
    run.event("stop", reason="solved")
    assert (run.folder / "metrics.jsonl").read_text() == '{"env_steps": 10, "loss": null}\n'
    told = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    assert [(e["event"], e.get("seed"), e.get("reason")) for e in told] == [
        ("start", 3, None), ("stop", None, "solved"),
    ]  # fmt: skip
    assert all(e["time"] > 1.6e9 for e in told)
    run.close()


def test_a_trace_is_what_chrome_opens():
    task = Task()

    def fast(ctx):
        pass

    def slow(ctx):
        yield

    task.use(fast).use(slow)
    task.run(rounds=3)
    run = Run.create(CONFIG, Path("mine"))
    run.trace({"learner 0": task.spans(), "worker 0": [("act", 2.0, 2.5)]})
    run.close()
    events = json.loads((run.folder / "trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert list(names.values()) == ["learner 0", "worker 0"]
    one, two = ([e for e in events if e["ph"] == "X" and e["pid"] == pid] for pid in names)
    assert len(one) == 3 + 6  # front and back halves
    assert {e["name"] for e in one} == {"fast", "slow"}
    assert all((e["tid"], e["dur"] >= 0) == (0, True) for e in one)
    assert [e["ts"] for e in one] == sorted(e["ts"] for e in one)
    assert [(e["name"], e["ts"], e["dur"]) for e in two] == [("act", 2e6, 0.5e6)]  # microseconds


def test_one_process_has_a_trace_too():
    run = Run.create(CONFIG, Path("mine"))
    run.trace({"": [("act", 2.0, 2.5)]})
    run.close()
    named, _ = json.loads((run.folder / "trace.json").read_text())["traceEvents"]
    assert named["args"] == {"name": "covey"}


def test_a_checkpoint_is_told_once_and_old_ones_go():
    told = []
    spec = Spec({"": Leaf((4,), np.dtype(np.float32))}, num_actions=2, action_dim=0)
    config = TrainConfig(algo="dqn", env="E-v0", keep=2)

    def tell(kind, **what):
        told.append((kind, what["env_steps"], what["path"]))

    for step in (1, 2, 2, 3):
        path = save(Path("mine"), config, {"x": step}, spec, step, tell)
        assert path == Path("mine") / "checkpoints" / f"step_{step:012d}"
    assert told == [("checkpoint", step, f"step_{step:012d}") for step in (1, 2, 3)]
    assert [p.name for p in checkpoint.steps(Path("mine/checkpoints"))] == [
        "step_000000000003", "step_000000000002",
    ]  # fmt: skip
    about = checkpoint.newest_good(Path("mine/checkpoints")).manifest
    assert (about["env"], about["algo"], about["spec"]) == ("E-v0", "dqn", spec.signature())


def test_a_plot_is_a_picture():
    run = Run.create(CONFIG, Path("mine"))
    run.log({"env_steps": 10, "return_mean": 1.0, "return_std": 0.1})
    run.plot()
    run.close()
    assert (run.folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_checkpoint_is_discarded_with_the_folders_made_for_it():
    Run.create(CONFIG, None).discard()
    assert not Path("runs").exists()


def test_what_others_put_beside_it_stays():
    other = made()
    Run.create(CONFIG, None).discard()
    assert [p.name for p in other.parent.iterdir()] == ["dqn-serial-1"]


def test_a_run_with_a_checkpoint_is_never_discarded():
    run = Run.create(CONFIG, None)
    checkpoint.save(run.checkpoints, 1, {"x": 1}, {})
    run.discard()
    assert checkpoint.steps(run.checkpoints)
    Run(run.folder, CONFIG, 1).close()  # and is free


def test_discarding_leaves_the_users_own_folders(tmp_path):
    (tmp_path / "results" / "paper").mkdir(parents=True)
    Run.create(CONFIG, tmp_path / "results" / "paper" / "run").discard()
    assert (tmp_path / "results" / "paper").is_dir()
    assert not (tmp_path / "results" / "paper" / "run").exists()


# finding


def test_found_by_folder_name_number_and_latest():
    one, two = made(saved=True), made(saved=True)
    three = made(TrainConfig(algo="ppo", env="Acrobot-v1"), saved=True)
    assert find(str(one)) == one
    assert find("dqn-serial-2") == find("2") == find("serial-2") == two
    for i, folder in enumerate((three, two, one)):  # the newest change decides
        for file in folder.glob("*"):
            os.utime(file, (2e9 + i, 2e9 + i))
        assert find(None) == find("latest") == folder
    elsewhere = made(out=Path("elsewhere"))
    assert find("elsewhere") == elsewhere


def test_the_latest_is_one_with_a_checkpoint():
    saved = made(saved=True)
    made()
    assert find(None) == saved


def test_a_number_is_the_whole_number():
    for _ in range(12):
        made()
    assert find("2").name == "dqn-serial-2"
    assert find("12").name == "dqn-serial-12"


def test_a_name_of_several_runs_lists_them():
    made()
    made(TrainConfig(algo="ppo", env="CartPole-v1"))
    with pytest.raises(UserError) as caught:
        find("1")
    assert "'1' names 2 runs: " in str(caught.value)
    assert "runs/CartPole-v1/dqn-serial-1" in str(caught.value)
    assert str(caught.value).endswith("Give the folder.")


def test_nothing_found_says_what_there_is():
    with pytest.raises(UserError, match=r"no run with a checkpoint below runs/. Train one: covey"):
        find(None)
    with pytest.raises(UserError, match=r"no run '7'. Newest: none below runs/"):
        find("7")
    made()
    with pytest.raises(UserError, match=r"no run '7'. Newest: runs/CartPole-v1/dqn-serial-1\."):
        find("7")
