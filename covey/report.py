"""One row of numbers every now and then: to the run folder and to whoever watches."""

from __future__ import annotations

from time import monotonic
from typing import Any

from covey.evaluation import Evaluation
from covey.metrics import Returns
from covey.runs import Run
from covey.task import Ctx
from covey.types import Tree
from covey.views.progress import Progress

LOG_EVERY_SECONDS = 0.25


class Report:
    """Gathers what the steps of many rounds said and writes it as rows."""

    def __init__(self, run: Run, progress: Progress) -> None:
        self.run, self.progress = run, progress
        self.returns = Returns()
        self.best: float | None = None
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

    def __call__(self, ctx: Ctx) -> None:
        """After a round: a row, if it is time for one or there is an evaluation to tell."""
        self.returns.add(ctx.get("episodes", []))
        evaluation: Evaluation | None = ctx.get("evaluation")
        if self._logged_env_steps is None:
            self._logged_env_steps, self._logged_updates = ctx.env_steps, ctx.updates
        if evaluation is None and monotonic() - self._logged < LOG_EVERY_SECONDS:
            return
        self.write(ctx.env_steps, ctx.updates, ctx.get("losses", {}), evaluation)

    def write(
        self, env_steps: int, updates: int, losses: dict[str, float],
        evaluation: Evaluation | None,
    ) -> None:  # fmt: skip
        """Write a row now."""
        now = monotonic()
        if env_steps != self._logged_env_steps:  # else the last rates stand
            spent = max(now - self._logged, 1e-9)
            self._rates = {
                "env_steps_per_second": (env_steps - (self._logged_env_steps or 0)) / spent,
                "updates_per_second": (updates - self._logged_updates) / spent,
            }
        row: dict[str, Any] = {
            "env_steps": env_steps,
            "updates": updates,
            "seconds": round(self.seconds, 3),
            **self._rates,
            **self.returns.summary(),
            **losses,
        }
        if evaluation is not None and evaluation.returns:
            row["eval_return_mean"] = evaluation.return_mean
            row["eval_return_std"] = evaluation.return_std
            best = evaluation.return_mean if self.best is None else self.best
            self.best = max(evaluation.return_mean, best)
        self._logged, self._logged_env_steps, self._logged_updates = now, env_steps, updates
        self.run.log(row)
        self.progress.show(row, self.best)

    def state(self) -> Tree:
        """Returns, the best evaluation and the time spent."""
        return {"returns": self.returns.state(), "best": self.best, "seconds": self.seconds}

    def restore(self, state: Tree) -> None:
        """Take them back."""
        self.returns.restore(state["returns"])
        self.best, self._seconds_before = state["best"], state["seconds"]
