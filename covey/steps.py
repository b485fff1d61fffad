"""The verbs: what a round is made of. Each takes what it works on and returns a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from covey.collect import Collector
from covey.envs import Envs
from covey.evaluation import Evaluator
from covey.links.replay import Replay
from covey.task import Ctx, StepFunction, Task, declare
from covey.types import Algorithm, Array

if TYPE_CHECKING:
    from covey.report import Report


def collect(env: Envs | Collector, agent: Algorithm, unroll: int = 32) -> StepFunction:
    """Act for `unroll` env steps of each environment: writes ctx.unroll, counts ctx.env_steps."""
    collector = env if isinstance(env, Collector) else Collector(env, agent, unroll)

    def collect(ctx: Ctx) -> None:
        ctx.unroll = collector.collect(ctx.env_steps)
        ctx.env_steps += collector.num_steps * collector.envs.num_envs
        ctx.episodes = collector.envs.finished()

    return declare(collect, reads=["env_steps"], writes=["unroll", "env_steps", "episodes"])


def store(agent: Algorithm, replay: Replay) -> StepFunction:
    """Put the rows of ctx.unroll into the replay: writes ctx.stored, how many."""

    def store(ctx: Ctx) -> None:
        ctx.stored = replay.add(agent.rows(ctx.unroll))

    return declare(store, reads=["unroll"], writes=["stored"])


def sample(replay: Replay, batch: int, reuse: float = 1.0, warmup: int = 0) -> StepFunction:
    """Draw batches until every row stored has been drawn `reuse` times on average.

    Writes ctx.batches, which draws each one only when it is asked for. Rows stored before `warmup`
    rows are there call for no draws.
    """

    def sample(ctx: Ctx) -> None:
        ctx.batches = draw() if len(replay) >= max(warmup, 1) else iter(())

    def draw() -> Iterator[dict[str, Array]]:
        due = (replay.added - min(warmup, replay.added)) * reuse
        while replay.drawn + batch <= due:
            yield replay.sample(batch)

    return declare(sample, reads=["stored"], writes=["batches"])


def rows(agent: Algorithm) -> StepFunction:
    """The rows of the newest unroll as the one batch: writes ctx.batches."""

    def rows(ctx: Ctx) -> None:
        ctx.batches = [agent.rows(ctx.unroll)]

    return declare(rows, reads=["unroll"], writes=["batches"])


def learn(agent: Algorithm) -> StepFunction:
    """Learn every batch: writes ctx.losses, the mean of what `learn` said; counts ctx.updates."""

    def learn(ctx: Ctx) -> None:
        sums: dict[str, list[float]] = {}
        for batch in ctx.batches:
            for name, value in agent.learn(batch).items():
                sums.setdefault(name, []).append(value)
        ctx.losses = {name: float(np.mean(values)) for name, values in sums.items()}
        ctx.updates = agent.updates

    return declare(learn, reads=["batches"], writes=["losses", "updates"])


def crossed(every: int, before: int, now: int) -> bool:
    """Whether a count went over a multiple of `every`; never if `every` is 0."""
    return every > 0 and before // every != now // every


def evaluate(
    task: Task, evaluator: Evaluator, every: int, until: float | None = None
) -> StepFunction:
    """Greedy episodes each `every` env steps: writes ctx.evaluation.

    `until` ends the task once two evaluations in a row, on different episodes, reach it.
    """

    def evaluate(ctx: Ctx) -> None:
        if crossed(every, ctx.evaluated_at, ctx.env_steps):
            ctx.evaluation = evaluator.evaluate(ctx.env_steps)
            if until is not None and ctx.evaluation.return_mean >= until:
                ctx.evaluation = evaluator.evaluate(ctx.env_steps + 1)
                if ctx.evaluation.return_mean >= until:
                    task.stop("solved")
        ctx.evaluated_at = ctx.env_steps

    task.keep("evaluated_at", 0)
    return declare(evaluate, reads=["env_steps"], writes=["evaluation"])


def report(report: Report) -> StepFunction:
    """Tell what happened to the run folder and the terminal."""

    def tell(ctx: Ctx) -> None:
        report(ctx)

    tell.__name__ = "report"
    return declare(tell, reads=["env_steps", "updates"], writes=[])


def checkpoint(task: Task, save: Callable[[], object], every: int) -> StepFunction:
    """Call `save` each `every` env steps, between two rounds: what it sees is whole."""
    task.keep("saved_at", 0)

    def checkpoint(ctx: Ctx) -> None:
        if crossed(every, ctx.saved_at, ctx.env_steps):
            task.after_round(save)
        ctx.saved_at = ctx.env_steps

    return declare(checkpoint, reads=["env_steps"], writes=[])
