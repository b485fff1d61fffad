"""Where members report to: what reaches the folder and the terminal, and the user's signals."""

import io
import json
import os
import signal

import pytest

from covey import desk as module
from covey.config import TrainConfig
from covey.desk import SIGNALS, Desk
from covey.runs import Run

FINISHED = {
    "reason": "solved", "env_steps": 640, "updates": 20, "evaluation": [[3.0, 5.0], [4, 4]],
    "weights": "abcd", "checkpoint": "step_000000000640", "timings": {"collect": {"count": 20}},
}  # fmt: skip
REPORT = {"env_steps": 640, "updates": 20, "losses": {"loss": 0.5}, "episodes": [],
          "evaluation": [[3.0, 5.0], [4, 4]]}  # fmt: skip


@pytest.fixture
def config():
    return TrainConfig(algo="dqn", env="E-v0", steps=1000)


@pytest.fixture
def desk(config, tmp_path):
    with Desk(config, Run.create(config, tmp_path / "run")) as opened:
        yield opened


def events(desk):
    lines = (desk.run.folder / "events.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def test_the_result_is_what_the_keeper_finished_with(desk):
    desk.hear("report", "learner 0", **REPORT)
    desk.hear("spans", "worker 1", 0, spans=[["collect", 0.25, 0.5]])
    desk.hear("finished", "learner 0", **FINISHED)
    result = desk.result()
    assert (result.folder, result.reason) == (desk.run.folder, "solved")
    assert (result.env_steps, result.updates, result.weights) == (640, 20, "abcd")
    assert (result.evaluation.return_mean, result.evaluation.lengths) == (4.0, [4, 4])
    assert result.seconds >= 0
    assert (desk.run.folder / "curve.png").exists()
    name, span = json.loads((desk.run.folder / "trace.json").read_text())["traceEvents"]
    assert name["args"] == {"name": "worker 1"}
    assert (span["name"], span["ts"], span["dur"]) == ("collect", 250_000, 250_000)
    assert events(desk) == [
        {"event": "stop", "reason": "solved", "env_steps": 640, "weights": "abcd",
         "checkpoint": "step_000000000640", "timings": {"collect": {"count": 20}}}
    ]  # fmt: skip


def test_a_run_without_evaluation_says_so(desk):
    desk.hear("finished", **{**FINISHED, "evaluation": None})
    assert desk.result().evaluation is None


def test_events_have_who_and_which_generation(desk):
    desk.hear("started", "worker 1", 2, pid=77)
    desk.hear("checkpoint", path="here")
    assert events(desk) == [
        {"event": "started", "member": "worker 1", "generation": 2, "pid": 77},
        {"event": "checkpoint", "path": "here"},
    ]


def test_deaths_are_said_as_well_as_written(desk):
    desk.progress.stream = said = io.StringIO()
    desk.hear("say", "worker 0", text="       2 workers")
    died = {"kind": "died", "member": "worker 1", "trace": ""}
    left = {"cause": "exited with status 3", "replaced": False}
    desk.hear(**died, generation=0, cause="killed by signal 9", replaced=True, fatal=False)
    desk.hear(**died, generation=1, **left, fatal=False)
    desk.hear(**died, generation=1, **left, fatal=True)  # is the error that follows
    desk.hear("quarantined", "worker 1", 1, causes=["one", "two"])
    assert said.getvalue().splitlines() == [
        "       2 workers",
        "warning: worker 1 died: killed by signal 9; replaced",
        "warning: worker 1 died: exited with status 3",
        "warning: worker 1 is left out: it died 2 times in a row",
    ]
    assert [e["event"] for e in events(desk)] == ["died", "died", "died", "quarantined"]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_the_first_signal_asks_the_team_to_stop(number, desk):
    asked = []
    desk.begin(asked.append)
    os.kill(os.getpid(), number)
    assert asked == [SIGNALS[number]] == [desk.stopping]


def test_one_ctrl_c_that_comes_twice_is_one(desk):
    asked = []
    desk.begin(asked.append)
    for _ in range(2):  # as from a terminal and from whoever passes signals on
        os.kill(os.getpid(), signal.SIGINT)
    assert set(asked) == {"interrupted"}


def test_a_second_ctrl_c_does_not_wait_but_a_second_sigterm_does(desk, monkeypatch):
    monkeypatch.setattr(module, "TWICE_SECONDS", 0)
    asked = []
    desk.begin(asked.append)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert asked == ["terminated", "terminated"]


def test_ctrl_c_before_there_is_a_team_is_just_that(desk):
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_stopped_before_anybody_finished_is_ctrl_c_not_a_fault(desk):
    desk.begin(lambda reason: None)
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        desk.result()


def test_handlers_are_put_back_and_the_folder_is_free(config, tmp_path):
    before = [signal.getsignal(number) for number in SIGNALS]
    with Desk(config, Run.create(config, tmp_path / "run"), quiet=True) as desk:
        assert [signal.getsignal(number) for number in SIGNALS] == [desk._on_signal] * 3
    assert [signal.getsignal(number) for number in SIGNALS] == before
    Run(tmp_path / "run", config).close()  # nobody holds its lock


def test_a_failure_leaves_no_folder_without_a_checkpoint(config, tmp_path):
    with (
        pytest.raises(ValueError, match="broken"),
        Desk(config, Run.create(config, tmp_path / "run")),
    ):
        raise ValueError("broken")
    assert not (tmp_path / "run").exists()


def test_a_failure_is_written_where_there_is_a_checkpoint(config, tmp_path):
    (tmp_path / "run" / "checkpoints" / "step_000000000064").mkdir(parents=True)
    run = Run(tmp_path / "run", config)
    with pytest.raises(ValueError, match="broken"), Desk(config, run) as desk:
        raise ValueError("broken")
    assert events(desk) == [{"event": "failed", "error": "ValueError: broken"}]
