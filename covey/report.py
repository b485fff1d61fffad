"""One row of numbers every now and then: to the run folder and to whoever watches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from covey.envs import Episode
from covey.evaluation import Evaluation
from covey.metrics import Returns, read_metrics
from covey.runs import Run
from covey.task import Ctx
from covey.types import Metrics, Tree
from covey.views.progress import Progress

LOG_EVERY_SECONDS = 0.25


class Reporter:
    """A member's side: gathers what the steps of many rounds said and tells it now and then."""

    def __init__(
        self, tell: Callable[..., None], gauges: Sequence[Callable[[], Metrics]] = (),
        every: float = LOG_EVERY_SECONDS,
    ) -> None:  # fmt: skip
        self._tell, self._gauges, self._every = tell, gauges, every
        self._episodes: list[Episode] = []
        self._last = -math.inf  # the first round tells what it began from

    def __call__(self, ctx: Ctx) -> None:
        """After a round: tell, if it is time or there is an evaluation to tell."""
        self._episodes += ctx.get("episodes", [])
        evaluation: Evaluation | None = ctx.get("evaluation")
        if evaluation is not None or monotonic() - self._last >= self._every:
            self.tell(ctx.env_steps, ctx.updates, ctx.get("losses", {}), evaluation)

    def tell(
        self, env_steps: int, updates: int, losses: Metrics, evaluation: Evaluation | None = None
    ) -> None:
        """Tell now."""
        gauges = {name: value for gauge in self._gauges for name, value in gauge().items()}
        episodes, self._episodes = self._episodes, []
        self._last = monotonic()
        self._tell(
            "report", env_steps=env_steps, updates=updates, losses={**losses, **gauges},
            episodes=[list(e) for e in episodes],
            evaluation=None if evaluation is None else [evaluation.returns, evaluation.lengths],
        )  # fmt: skip


class Report:
    """The run's side: what all members told, as rows."""

    def __init__(self, run: Run, progress: Progress) -> None:
        self.run, self.progress = run, progress
        self.returns = Returns()
        self.best: float | None = None
        self.env_steps, self.updates = 0, 0
        self._losses: Metrics = {}
        self._began = monotonic()
        self._logged = self._began
        self._logged_env_steps: int | None = None
        self._logged_updates = 0
        self._rates = {"env_steps_per_second": 0.0, "updates_per_second": 0.0}
        self._seconds_before = 0.0  # of the stretches before a resume

    @property
    def seconds(self) -> float:
        """Time spent in this run, earlier stretches included."""
        return self._seconds_before + monotonic() - self._began

    def hear(
        self, env_steps: int, updates: int, losses: Metrics, episodes: list[Any],
        evaluation: Any = None,
    ) -> None:  # fmt: skip
        """What a member told: a row, if it is time for one or there is an evaluation."""
        self.returns.add([Episode(*episode) for episode in episodes])
        self._losses |= losses
        self.env_steps = max(self.env_steps, env_steps)
        self.updates = max(self.updates, updates)
        if self._logged_env_steps is None:  # rates are of what comes from now on
            self._logged_env_steps, self._logged_updates = env_steps, updates
            self._logged = monotonic()
        if evaluation is not None or monotonic() - self._logged >= LOG_EVERY_SECONDS:
            self._write(None if evaluation is None else Evaluation(*evaluation))

    def _write(self, evaluation: Evaluation | None) -> None:
        now = monotonic()
        if self.env_steps != self._logged_env_steps:  # else the last rates stand
            spent = max(now - self._logged, 1e-9)
            self._rates = {
                "env_steps_per_second": (self.env_steps - (self._logged_env_steps or 0)) / spent,
                "updates_per_second": (self.updates - self._logged_updates) / spent,
            }
        row: dict[str, Any] = {
            "env_steps": self.env_steps,
            "updates": self.updates,
            "seconds": round(self.seconds, 3),
            **self._rates,
            **self.returns.summary(),
            **self._losses,
        }
        if evaluation is not None and evaluation.returns:
            row["eval_return_mean"] = evaluation.return_mean
            row["eval_return_std"] = evaluation.return_std
            best = evaluation.return_mean if self.best is None else self.best
            self.best = max(evaluation.return_mean, best)
        self._logged = now
        self._logged_env_steps, self._logged_updates = self.env_steps, self.updates
        self.run.log(row)
        self.progress.show(row, self.best)

    def state(self) -> Tree:
        """Returns, the best evaluation and the time spent."""
        return {"returns": self.returns.state(), "best": self.best, "seconds": self.seconds}

    def restore(self, state: Tree) -> None:
        """Take them back."""
        self.returns.restore(state["returns"])
        self.best, self._seconds_before = state["best"], state["seconds"]

    def resume(self) -> None:
        """Go on from what the run's own metrics say, where no checkpoint holds this state."""
        rows = read_metrics(self.run.folder / "metrics.jsonl")
        if rows:
            self.returns.count = rows[-1].get("episodes", 0)
            self._seconds_before = rows[-1]["seconds"]
            seen = [r["eval_return_mean"] for r in rows if r.get("eval_return_mean") is not None]
            self.best = max(seen, default=None)
