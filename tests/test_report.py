import io
import json
import math

import pytest

from covey import report as module
from covey.config import TrainConfig
from covey.envs import Episode
from covey.evaluation import Evaluation
from covey.metrics import read_metrics
from covey.report import LOG_EVERY_SECONDS, Report, Reporter
from covey.runs import Run
from covey.task import Ctx, Shared
from covey.views.progress import Progress


@pytest.fixture
def now(monkeypatch):
    """A clock to be set."""
    hand = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: hand[0])
    return hand


class Told:
    """A report that hears what one member's reporter tells, as the engines connect them."""

    def __init__(self, report):
        self.report = report
        self.reporter = Reporter(lambda kind, **what: self.hear(kind, what))
        self.write = self.reporter.tell

    def hear(self, kind, what):
        assert kind == "report"
        self.report.hear(**json.loads(json.dumps(what)))  # it may have crossed processes

    def __call__(self, ctx):
        self.reporter(ctx)

    def __getattr__(self, name):
        return getattr(self.report, name)


@pytest.fixture
def report(tmp_path, now):
    run = Run.create(TrainConfig(algo="dqn", env="E-v0"), tmp_path / "run")
    yield Told(Report(run, Progress(1000, io.StringIO())))
    run.close()


def rows(report):
    return read_metrics(report.run.folder / "metrics.jsonl")


def ctx(env_steps, updates=0, **more):
    made = Ctx(Shared(), {"env_steps": env_steps, "updates": updates})
    made.__dict__.update(more)
    return made


def test_a_row_now_and_then_with_rates_between_rows(report, now):
    for i in range(1, 11):  # a round each 0.1 s
        now[0] += 0.1
        report(ctx(100 * i, 7 * i))
    found = rows(report)
    assert [r["env_steps"] for r in found] == [400, 700, 1000]  # the first round is the start
    assert [r["seconds"] for r in found] == pytest.approx([0.4, 0.7, 1.0])
    assert all(r["env_steps_per_second"] == pytest.approx(1000) for r in found)
    assert all(r["updates_per_second"] == pytest.approx(70) for r in found)


def test_every_episode_counts_also_those_between_rows(report, now):
    for i in range(5):
        report(ctx(i, episodes=[Episode(float(i), 1)]))
    now[0] += LOG_EVERY_SECONDS
    report(ctx(5, losses={"loss": 0.5}))
    (row,) = rows(report)
    assert (row["episodes"], row["return_mean"], row["loss"]) == (5, 2.0, 0.5)


def test_an_evaluation_is_told_at_once_and_the_best_is_kept(report, now):
    for i, mean in enumerate((-50.0, -20.0, -90.0)):
        now[0] += 0.01
        report(ctx(i, evaluation=Evaluation([mean, mean - 2], [1, 1])))
    found = rows(report)
    assert [r["eval_return_mean"] for r in found] == [-51, -21, -91]
    assert {r["eval_return_std"] for r in found} == {1.0}
    assert report.best == -21


def test_a_best_of_zero_stays_the_best(report):
    report.write(1, 0, {}, Evaluation([0.0], [1]))
    report.write(2, 0, {}, Evaluation([-5.0], [1]))
    assert report.best == 0


def test_an_evaluation_that_was_stopped_is_no_evaluation(report):
    report.write(1, 0, {}, Evaluation([], []))
    assert report.best is None
    assert "eval_return_mean" not in rows(report)[0]


def test_losses_that_are_none_do_not_break_the_row(report, now):
    report(ctx(1))
    now[0] += 1
    report.write(1, 0, {"loss": math.nan}, None)
    assert rows(report)[0]["loss"] is None


def test_the_time_goes_on_where_it_stood(report, now, tmp_path):
    now[0] += 40
    report.write(100, 1, {}, Evaluation([3.0], [1]))
    report.returns.add([Episode(1.0, 2)])
    state = report.state()
    now[0] += 1e6  # nobody trains
    again = Report(report.run, report.progress)
    again.restore(state)
    now[0] += 2
    assert again.seconds == pytest.approx(42)
    assert (again.best, again.returns.count) == (3.0, 1)


def test_the_first_rate_after_a_resume_does_not_count_what_was_before(report, now):
    report(ctx(50_000))  # the first round of this stretch
    now[0] += 1
    report(ctx(50_500))
    assert rows(report)[0]["env_steps_per_second"] == pytest.approx(500)


def test_several_members_make_one_row(report, now):
    actor, learner = Told(report.report), Told(report.report)
    actor(ctx(10, episodes=[Episode(3.0, 1)], losses={"lag": 1.0}))
    learner(ctx(10, 7, losses={"loss": 0.5}))
    now[0] += 1
    actor(ctx(40, 0, episodes=[Episode(5.0, 1)]))
    (row,) = rows(report)
    assert (row["env_steps"], row["updates"], row["episodes"]) == (40, 7, 2)
    assert (row["lag"], row["loss"], row["return_mean"]) == (1.0, 0.5, 4.0)


def test_a_run_of_several_processes_goes_on_from_its_metrics(report, now):
    now[0] += 40
    report(ctx(100, episodes=[Episode(1.0, 2)]))
    report.write(100, 1, {}, Evaluation([3.0], [1]))
    report.write(200, 1, {}, Evaluation([2.0], [1]))
    now[0] += 1e6
    again = Report(report.run, report.progress)
    again.resume()
    assert again.seconds == pytest.approx(40)
    assert (again.best, again.returns.count) == (3.0, 1)
