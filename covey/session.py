"""One stretch of training in a run folder: what surrounds a recipe's own steps."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_limits

from covey import catalog, steps
from covey.checkpoint import Checkpoint
from covey.config import TrainConfig
from covey.envs import EnvLike, Envs
from covey.errors import UserError
from covey.evaluation import Evaluation, Evaluator
from covey.report import Report
from covey.runs import Run
from covey.task import Task
from covey.team import Team
from covey.types import Algorithm, Spec, Tree
from covey.views.progress import Progress

SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGUSR1: "requeue"}


class Result(NamedTuple):
    """How a stretch of training ended."""

    folder: Path
    reason: str  # env_steps, solved, interrupted...
    env_steps: int
    updates: int
    seconds: float
    evaluation: Evaluation | None  # greedy, at the end
    weights: str  # digest of the weights


class Session:
    """Evaluates, reports, saves, restores and stops. Inside `with`, `task` is ready to run."""

    task: Task

    def __init__(
        self, config: TrainConfig, run: Run, env: EnvLike | None = None, network: Any = None,
        saved: Checkpoint | None = None, quiet: bool = False,
    ) -> None:  # fmt: skip
        self.config, self.run, self.network = config, run, network
        self.env: EnvLike = config.env if env is None else env
        self.algorithm = catalog.algorithm(config.algo)
        self.progress = Progress(config.steps, quiet=quiet)
        self.report = Report(run, self.progress)
        self.parts: dict[str, Any] = {}
        self._saved = saved
        self._open = ExitStack()

    def __enter__(self) -> Session:
        self._open.push(self._end_run)
        self._open.callback(self.progress.close)
        try:
            self._take_signals()
            # numpy multiplies small matrices here: one thread is fastest and gives the same bits
            self._open.enter_context(threadpool_limits(limits=1, user_api="blas"))
            self.task = catalog.recipe(self.config.recipe)(Team(self.config.seed), self)
            self._open.enter_context(self.task)
        except BaseException as error:
            self._open.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._open.__exit__(kind, error, trace)

    def _end_run(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if error is None:
            self.run.close()
        else:
            self.run.event("failed", error=f"{type(error).__name__}: {error}")
            self.run.discard()

    def _take_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.signal(number, self._on_signal)
                self._open.callback(signal.signal, number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first asks the task to stop; a second Ctrl-C does not wait."""
        if not hasattr(self, "task") or (self.task.stopped and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.task.stop(SIGNALS[signal.Signals(number)])

    def attach(self, task: Task, agent: Algorithm, env: Envs, parts: dict[str, Any]) -> None:
        """Append evaluation, report and checkpoint to the task; go on where a checkpoint stands."""
        c = self.config
        self.task, self.agent, self.spec = task, agent, env.spec
        torch.set_num_threads(c.threads or _threads(env.spec))
        self.evaluator = Evaluator(
            agent, self.env, c.eval_episodes, c.seed, c.env_kwargs,
            stopping=lambda: task.stopped in SIGNALS.values(),
        )  # fmt: skip
        self._open.callback(env.close)
        self._open.callback(self.evaluator.close)
        task.use(steps.evaluate(task, self.evaluator, c.eval_every, c.until))
        task.use(steps.report(self.report))
        task.use(steps.checkpoint(task, self.save, c.checkpoint_every))
        self.parts = {**parts, "task": task, "report": self.report}
        self._say_start(env)
        if self._saved is not None:
            self._restore(self._saved)
        self.run.event("start", env_steps=task.state()["env_steps"], seed=c.seed)

    def _say_start(self, env: Envs) -> None:
        c, size = self.config, sum(p.numel() for p in self.agent.module.parameters())
        self.progress.say(f"run    {self.run.folder}   seed {c.seed}")
        self.progress.say(
            f"       {c.algo} on {env.name}: {c.num_envs} environments {env.how}, {size:,} weights,"
            f" acting in {self.agent.inference}"
        )

    def save(self) -> Path | None:
        """A checkpoint of all parts."""
        tree: Tree = {name: part.state() for name, part in self.parts.items()}
        tree["torch_rng"] = torch.get_rng_state()
        path = self.run.save(tree, self.spec, self.task.state()["env_steps"])
        if path is None:
            self.progress.say("warning: a checkpoint could not be written; training goes on.")
        return path

    def _restore(self, saved: Checkpoint) -> None:
        if saved.manifest["spec"] != self.spec.signature():
            raise UserError(
                f"{saved.path} was saved with other spaces than {self.config.env} has now. "
                "Resume it with the environment that it was trained on."
            )
        exact = all(
            [part.restore(saved.tree[name]) is not False for name, part in self.parts.items()]
        )
        torch.set_rng_state(torch.tensor(saved.tree["torch_rng"]))
        at = saved.manifest["step"]
        for error in saved.skipped:
            self.progress.say(f"warning: {error}")
        self.run.event("resume", env_steps=at, exact=exact, skipped=[str(s) for s in saved.skipped])
        how = "bit for bit" if exact else (
            "but not bit for bit: the environments (or the replay) could not be brought back "
            "exactly, so they begin anew"
        )  # fmt: skip
        self.progress.say(f"       resumed at env step {at:,}, {how}")

    def finish(self) -> Result:
        """The last evaluation and checkpoint, the curve and the trace."""
        kept = self.task.state()
        reason = self.task.reason or "stopped"
        evaluation = None
        path = self.save()
        if reason not in SIGNALS.values():
            found = self.evaluator.evaluate(kept["env_steps"] + 2)
            evaluation = found if found.returns else None  # None: interrupted only now
            self.report.write(kept["env_steps"], kept["updates"], {}, evaluation)
        self.run.trace(self.task)
        self.run.plot()
        result = Result(
            self.run.folder, reason, kept["env_steps"], kept["updates"], self.report.seconds,
            evaluation, digest(self.agent),
        )  # fmt: skip
        self.run.event(
            "stop", reason=reason, env_steps=result.env_steps, weights=result.weights,
            checkpoint=path.name if path else None, timings=self.task.timings(),
        )  # fmt: skip
        self.progress.close()
        return result


def _threads(spec: Spec) -> int:
    """Small networks are fastest on one thread; convolutions use what there is."""
    images = any(leaf.is_image for leaf in spec.leaves.values())
    return len(os.sched_getaffinity(0)) if images else 1


def digest(agent: Algorithm) -> str:
    """Sixteen hex digits that say whether two agents have the same weights."""
    found = hashlib.sha256()
    for _, value in sorted(agent.module.state_dict().items()):
        found.update(value.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]
