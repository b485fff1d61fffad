import json
import os
import signal
from contextlib import closing, contextmanager

import numpy as np
import pytest
import torch
from badenvs import Counting

import covey
from covey import catalog, checkpoint, desk
from covey.desk import SIGNALS, Desk
from covey.metrics import read_metrics
from covey.runs import Run
from covey.session import Job, Session, digest
from covey.team import Alone, Team

TINY = {
    "num_envs": 2, "unroll": 8, "eval_every": 0, "checkpoint_every": 0, "eval_episodes": 2,
    "until": None, "hidden": [8], "steps": 64,
}  # fmt: skip


@contextmanager
def opened(folder, algo="ppo", env=Counting, quiet=True, **settings):
    """A session and its desk in this process; `done` is what a finished one says."""
    config = catalog.configure(algo, "Counting", settings={**TINY, **settings})
    with Desk(config, Run.create(config, folder), quiet) as desk:
        team = Team(config.seed, post=Alone(desk.hear))
        with closing(team), Session(Job(config, folder, env), team, report=desk.report) as session:
            desk.begin(session.task.stop)
            session.done = lambda: (session.finish(), desk.result())[1]
            yield session


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_the_story_of_a_stretch_is_in_its_folder(tmp_path):
    with opened(tmp_path / "run", checkpoint_every=32) as session:
        session.task.run(env_steps=64)
        result = session.done()
    kinds = [e["event"] for e in events(tmp_path / "run")]
    assert kinds == ["start", "checkpoint", "checkpoint", "stop"]  # at the end: saved already
    stop = events(tmp_path / "run")[-1]
    assert (stop["reason"], stop["env_steps"]) == ("env_steps", 64)
    assert stop["weights"] == result.weights == digest(session.agent)
    assert stop["checkpoint"] == "step_000000000064"
    assert list(stop["timings"]) == list(session.task.timings())
    assert (result.folder, result.reason, result.env_steps) == (tmp_path / "run", "env_steps", 64)
    assert len(result.evaluation.returns) == 2
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["eval_return_mean"] == 15
    assert (tmp_path / "run" / "curve.png").exists()
    assert json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]


def test_a_checkpoint_holds_every_part(tmp_path):
    with opened(tmp_path / "run", "dqn", warmup=10, batch=4) as session:
        session.task.run(env_steps=64)
        session.done()
    saved = checkpoint.newest_good(tmp_path / "run" / "checkpoints")
    assert set(saved.tree) == {"agent", "collector", "replay", "task", "report", "torch_rng"}
    assert saved.manifest["spec"] == session.spec.signature()
    assert (saved.manifest["env"], saved.manifest["algo"]) == ("Counting", "dqn")


def test_a_checkpoint_counts_every_episode_up_to_it(tmp_path):
    seen = []
    with opened(tmp_path / "run") as session:
        session.task.use(lambda ctx: seen.extend(ctx.episodes))
        session.task.run(env_steps=64)
        session.done()
    saved = checkpoint.newest_good(tmp_path / "run" / "checkpoints")
    assert saved.tree["report"]["returns"]["count"] == len(seen) > 0


def test_the_first_weights_are_the_same_whatever_was_computed_before(tmp_path):
    def first(threads):
        torch.set_num_threads(threads)
        with opened(tmp_path / str(threads), hidden=[64, 64]) as session:
            return digest(session.agent)

    assert first(2) == first(1)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_after_the_round_without_an_evaluation(number, tmp_path):
    with opened(tmp_path / "run", steps=10**6) as session:
        session.task.use(lambda ctx: os.kill(os.getpid(), number) if ctx.rounds == 2 else None)
        session.task.run(env_steps=10**6)
        result = session.done()
    assert (result.reason, result.env_steps) == (SIGNALS[number], 48)
    assert result.evaluation is None
    assert checkpoint.newest_good(tmp_path / "run" / "checkpoints").manifest["step"] == 48


def test_a_second_ctrl_c_does_not_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(desk, "TWICE_SECONDS", 0)

    def twice(ctx):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("waited")

    with pytest.raises(KeyboardInterrupt), opened(tmp_path / "run") as session:  # noqa: PT012
        session.task.use(twice)
        session.task.run(env_steps=64)


def test_handlers_are_given_back(tmp_path):
    before = {n: signal.getsignal(n) for n in SIGNALS}
    with opened(tmp_path / "run"):
        assert all(signal.getsignal(n) != before[n] for n in SIGNALS)
    assert {n: signal.getsignal(n) for n in SIGNALS} == before
    with pytest.raises(ZeroDivisionError), opened(tmp_path / "two"):
        _ = 1 / 0
    assert {n: signal.getsignal(n) for n in SIGNALS} == before


def test_a_failure_before_the_first_checkpoint_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), opened(tmp_path / "run"):
        _ = 1 / 0
    assert not (tmp_path / "run").exists()


def test_a_failure_after_a_checkpoint_is_written_down_and_keeps_it(tmp_path):
    with pytest.raises(RuntimeError), opened(tmp_path / "run") as session:  # noqa: PT012
        session.task.run(rounds=1)
        session.save()
        raise RuntimeError("the motor is hot")
    told = events(tmp_path / "run")[-1]
    assert (told["event"], told["error"]) == ("failed", "RuntimeError: the motor is hot")
    assert checkpoint.newest_good(tmp_path / "run" / "checkpoints")
    Run(tmp_path / "run", session.config, 16).close()  # and the lock is free


def test_everything_is_closed_also_when_the_recipe_fails(tmp_path):
    made = []

    class Closes(Counting):
        def __init__(self):
            super().__init__()
            made.append(self)
            self.closed = False

        def close(self):
            self.closed = True

    with opened(tmp_path / "run", env=Closes) as session:
        session.task.run(rounds=1)
        session.evaluator.evaluate(1)
    assert len(made) == 4
    assert all(env.closed for env in made)


def test_the_process_is_as_before_when_a_recipe_cannot_be_set_up(tmp_path):
    before = {n: signal.getsignal(n) for n in SIGNALS}
    with pytest.raises(covey.UserError), opened(tmp_path / "run", env="Nowhere-v0"):
        pass
    assert {n: signal.getsignal(n) for n in SIGNALS} == before
    assert not (tmp_path / "run").exists()


def test_a_disk_that_is_full_is_said_and_survived(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write_arrays", full)
    with opened(tmp_path / "run", quiet=False, checkpoint_every=32) as session:
        session.task.run(env_steps=64)
        assert session.done().env_steps == 64
    assert "warning: a checkpoint could not be written" in capsys.readouterr().out
    assert [e["event"] for e in events(tmp_path / "run")].count("checkpoint_failed") == 3


def test_a_digest_tells_weights_apart(tmp_path):
    with opened(tmp_path / "run") as session:
        one = digest(session.agent)
        assert len(one) == 16
        assert int(one, 16) >= 0
        parameter = next(session.agent.module.parameters())
        value = parameter.data.flatten()[0].item()
        parameter.data.view(-1)[0] = float(np.nextafter(np.float32(value), np.float32(9)))
        assert digest(session.agent) != one
        parameter.data.view(-1)[0] = value
        assert digest(session.agent) == one


def test_evaluations_do_not_change_what_is_learnt(tmp_path):
    def weights(every):
        with opened(tmp_path / str(every), eval_every=every) as session:
            session.task.run(env_steps=64)
            return session.done().weights

    assert weights(0) == weights(16)


def test_solved_ends_early(tmp_path):
    with opened(tmp_path / "run", steps=10**6, eval_every=16, until=15) as session:
        session.task.run(env_steps=10**6)
        assert session.done().reason == "solved"  # every first episode returns 15
