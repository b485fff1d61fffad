"""Where the members of a run report to: its folder, the terminal, and the signals of the user."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from covey.config import TrainConfig
from covey.evaluation import Evaluation
from covey.report import Report
from covey.runs import Run
from covey.views.progress import Progress

SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGUSR1: "requeue"}
TWICE_SECONDS = 0.2  # a Ctrl-C may come twice: from the terminal, and from what started this


class Result(NamedTuple):
    """How a stretch of training ended."""

    folder: Path
    reason: str  # env_steps, solved, interrupted...
    env_steps: int
    updates: int
    seconds: float
    evaluation: Evaluation | None  # greedy, at the end
    weights: str  # digest of the weights


class Desk:
    """Open for one stretch of training. `stop` asks the team to stop, once there is one."""

    def __init__(self, config: TrainConfig, run: Run, quiet: bool = False) -> None:
        self.config, self.run = config, run
        self.progress = Progress(config.steps, quiet=quiet)
        self.report = Report(run, self.progress)
        self.stop: Callable[[str], None] | None = None
        self.stopping: str | None = None
        self._signalled_at = 0.0
        self.spans: dict[str, list[tuple[str, float, float]]] = {}
        self._finished: dict[str, Any] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Desk:
        self._open.push(self._end_run)
        self._open.callback(self.progress.close)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.signal(number, self._on_signal)
                self._open.callback(signal.signal, number, before)
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

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first asks the team to stop; a second Ctrl-C does not wait."""
        again = self.stopping is not None and number == signal.SIGINT
        if self.stop is None or (again and monotonic() - self._signalled_at > TWICE_SECONDS):
            raise KeyboardInterrupt
        self._signalled_at = monotonic()
        self.stopping = SIGNALS[signal.Signals(number)]
        self.stop(self.stopping)

    def begin(self, stop: Callable[[str], None]) -> None:
        """There is a team, and this is how to stop it."""
        self.stop = stop

    def hear(self, kind: str, member: str = "", generation: int = 0, **what: Any) -> None:
        """What a member, or the engine about a member, has to tell."""
        match kind:
            case "report":
                self.report.hear(**what)
            case "say":
                self.progress.say(what["text"])
            case "spans":
                self.spans[member] = what["spans"]
            case "finished":
                self._finished = what
            case _:
                self._event(kind, member, generation, what)

    def _event(self, kind: str, member: str, generation: int, what: dict[str, Any]) -> None:
        about = {"member": member, "generation": generation} if member else {}
        self.run.event(kind, **about, **what)
        if kind == "quarantined" or (kind == "died" and not what["fatal"]):  # that is the error
            self.progress.say(_told(kind, member, what))

    def result(self) -> Result:
        """Draw the curve, write the trace and say how it ended."""
        told = self._finished
        if told is None and self.stopping:
            raise KeyboardInterrupt  # before anybody had begun
        assert told is not None, "nobody finished this run"
        evaluation = None if told["evaluation"] is None else Evaluation(*told["evaluation"])
        self.run.trace(self.spans)
        self.run.plot()
        result = Result(
            self.run.folder, told["reason"], told["env_steps"], told["updates"],
            self.report.seconds, evaluation, told["weights"],
        )  # fmt: skip
        self.run.event(
            "stop", reason=result.reason, env_steps=result.env_steps, weights=result.weights,
            checkpoint=told["checkpoint"], timings=told["timings"],
        )  # fmt: skip
        self.progress.close()
        return result


def _told(kind: str, member: str, what: dict[str, Any]) -> str:
    if kind == "quarantined":
        return f"warning: {member} is left out: it died {len(what['causes'])} times in a row"
    again = "; replaced" if what["replaced"] else ""
    return f"warning: {member} died: {what['cause']}{again}"
