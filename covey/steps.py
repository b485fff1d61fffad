"""The verbs: what a round is made of. Each takes what it works on and returns a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from covey.envs import Envs
from covey.evaluation import Evaluator
from covey.links.latest import Latest
from covey.links.replay import Pace, Replay
from covey.links.waits import Waits
from covey.memory.pulse import RUNNING
from covey.task import Ctx, StepFunction, Task, declare
from covey.types import Algorithm, Array, Final, Replayed, Tree, Unroll

if TYPE_CHECKING:
    from covey.apply import ToOwner
    from covey.report import Reporter


class Collector:
    """Acts and writes down what happened.

    An unroll begins with the last `overlap` steps of the one before, so that whoever looks n steps
    ahead finds them whole; at the very start these steps are not valid.
    """

    def __init__(self, envs: Envs, agent: Algorithm, num_steps: int) -> None:
        self.envs, self.agent, self.num_steps = envs, agent, num_steps
        self.overlap = agent.overlap
        lead = (self.overlap + num_steps, envs.num_envs)
        spec = envs.spec
        self.unroll = Unroll(
            obs_TB=envs.empty(lead[0] + 1, lead[1]),
            action_TB=np.zeros((*lead, *spec.action_shape), spec.action_dtype),
            reward_TB=np.zeros(lead, np.float32),
            discount_TB=np.ones(lead, np.float32),
            last_TB=np.zeros(lead, bool),
            valid_TB=np.zeros(lead, bool),
            extra={name: np.zeros(lead, dtype) for name, dtype in agent.extra.items()},
        )
        self._started = False

    def collect(self, env_step: int) -> Unroll:
        """The next unroll; its arrays are overwritten by the one after it."""
        u, envs = self.unroll, self.envs
        if self._started:
            self._carry_over()
        else:
            envs.reset(u.obs_TB[self.overlap])
            self._started = True
            if envs.pulse is not None:
                envs.pulse.enter(RUNNING)
        for t in range(self.overlap, self.overlap + self.num_steps):
            u.action_TB[t], extra = self.agent.act(u.obs_TB[t], env_step)
            step = envs.step(u.action_TB[t], u.obs_TB[t + 1])
            u.reward_TB[t], u.discount_TB[t] = step.reward_B, step.discount_B
            u.last_TB[t], u.valid_TB[t] = step.last_B, step.valid_B
            for name, column_B in extra.items():
                u.extra[name][t] = column_B
            for b, obs in step.finals:
                u.finals.append(Final(t, b, obs))
            env_step += envs.num_envs
        return u

    def _carry_over(self) -> None:
        u, n, k = self.unroll, self.num_steps, self.overlap
        u.finals = [Final(f.t - n, f.b, f.obs) for f in u.finals if f.t >= n]
        u.obs_TB[: k + 1] = u.obs_TB[n:].copy()
        for column in self._columns().values():
            column[:k] = column[n:].copy()

    def _columns(self) -> Tree:
        u = self.unroll
        return {
            "action": u.action_TB, "reward": u.reward_TB, "discount": u.discount_TB,
            "last": u.last_TB, "valid": u.valid_TB, **u.extra,
        }  # fmt: skip

    def state(self) -> Tree:
        """What the next unroll begins with, and the environments."""
        u, n = self.unroll, self.num_steps
        return {
            "obs": u.obs_TB[n:].copy(),
            "columns": {name: column[n:].copy() for name, column in self._columns().items()},
            "finals": {str(i): f._asdict() for i, f in enumerate(u.finals) if f.t >= n},
            "envs": self.envs.state(),
        }

    def restore(self, state: Tree) -> bool:
        """Go on from there; False where the environments begin new episodes instead."""
        u, n = self.unroll, self.num_steps
        if state["obs"].shape != u.obs_TB[n:].shape:
            return False  # the unroll was given another form
        if not self.envs.restore(state["envs"], state["obs"][-1]):
            return False
        u.obs_TB[n:] = state["obs"]
        for name, column in self._columns().items():
            column[n:] = state["columns"][name]
        u.finals = [Final(f["t"], f["b"], f["obs"]) for f in state["finals"].values()]
        self._started = True
        return True


def example_rows(agent: Algorithm) -> dict[str, Array]:
    """Rows of the form that this agent makes of unrolls, for laying out memory."""
    spec, lead = agent.spec, (agent.overlap + 1, 1)
    return agent.rows(
        Unroll(
            obs_TB=np.zeros((lead[0] + 1, 1, *spec.obs_shape), spec.obs_dtype),
            action_TB=np.zeros((*lead, *spec.action_shape), spec.action_dtype),
            reward_TB=np.zeros(lead, np.float32),
            discount_TB=np.ones(lead, np.float32),
            last_TB=np.zeros(lead, bool),
            valid_TB=np.ones(lead, bool),
            extra={name: np.zeros(lead, dtype) for name, dtype in agent.extra.items()},
        )
    )


def collect(env: Envs | Collector, agent: Algorithm, unroll: int = 32) -> StepFunction:
    """Act for `unroll` env steps of each environment: writes ctx.unroll, counts ctx.env_steps."""
    collector = env if isinstance(env, Collector) else Collector(env, agent, unroll)

    def collect(ctx: Ctx) -> None:
        ctx.unroll = collector.collect(ctx.env_steps)
        ctx.unroll.version = ctx.version
        ctx.env_steps += collector.num_steps * collector.envs.num_envs
        ctx.episodes = collector.envs.finished()

    return declare(collect, reads=["env_steps"], writes=["unroll", "env_steps", "episodes"])


def store(agent: Replayed, replay: Replay) -> StepFunction:
    """Put the rows of ctx.unroll into the replay: writes ctx.stored, how many."""

    def store(ctx: Ctx) -> None:
        rows = agent.rows(ctx.unroll)
        priority_N = agent.priorities(ctx.unroll, rows) if replay.draw.alpha else None
        ctx.stored = replay.add(rows, priority_N)

    return declare(store, reads=["unroll"], writes=["stored"])


def sample(
    replay: Replay, batch: int, reuse: float | None = 1.0, warmup: int = 0, ahead: int = 0,
    most: int | None = None,
) -> StepFunction:  # fmt: skip
    """Draw batches until every row stored has been drawn `reuse` times on average.

    Writes ctx.batches, which draws each one only when it is asked for; `most` bounds them. Rows
    stored before `warmup` rows are there call for no draws. Where others store, this waits for
    them, and they for this when they are more than `ahead` rows ahead; without `reuse` nobody
    waits, and each round draws a batch.
    """
    share = replay.keep_pace(Pace(batch, reuse, warmup, ahead))

    def sample(ctx: Ctx) -> None:
        due = replay.due() if replay.alone else replay.wait()
        num = int(due // batch)
        ctx.batches = draw(num if most is None else min(num, most))

    def draw(num: int) -> Iterator[dict[str, Array]]:
        for _ in range(num):
            yield replay.sample(share)

    return declare(sample, reads=[], writes=["batches"])


def rows(agent: Algorithm) -> StepFunction:
    """The rows of the newest unroll as the one batch: writes ctx.batches."""

    def rows(ctx: Ctx) -> None:
        ctx.batches = [agent.rows(ctx.unroll)]

    return declare(rows, reads=["unroll"], writes=["batches"])


def learn(agent: Algorithm) -> StepFunction:
    """Learn every batch: writes ctx.losses, the mean of what `learn` said; counts ctx.updates.

    Of rows that were drawn by priority it writes ctx.errors, their ids and how wrong they were.
    """

    def learn(ctx: Ctx) -> None:
        sums: dict[str, list[float]] = {}
        ctx.errors = []
        for batch in ctx.batches:
            learnt = agent.learn(batch)
            for name, value in learnt.metrics.items():
                sums.setdefault(name, []).append(value)
            if "id" in batch:
                ctx.errors.append((batch["id"], learnt.priority_N))
        ctx.losses = {name: sum(values) / len(values) for name, values in sums.items()}
        ctx.updates = agent.updates

    return declare(learn, reads=["batches"], writes=["losses", "updates", "errors"])


def revise(replay: Replay) -> StepFunction:
    """Tell the replay how wrong the rows were that have been learnt."""

    def revise(ctx: Ctx) -> None:
        for id_N, error_N in ctx.errors:
            replay.revise(id_N, error_N)

    return declare(revise, reads=["errors"], writes=[])


def refresh(agent: Algorithm, weights: Latest) -> StepFunction:
    """Take in the newest weights, if there are newer ones: writes ctx.version."""
    into = agent.weights()

    def refresh(ctx: Ctx) -> None:
        weights.wait()
        if weights.refresh(into) is not None:
            agent.load(into)
        ctx.version = weights.seen

    return declare(refresh, reads=[], writes=["version"])


def publish(agent: Algorithm, weights: Latest) -> StepFunction:
    """Make this agent's weights the newest, if it has updated them."""
    published = -1

    def publish(ctx: Ctx) -> None:
        nonlocal published
        if agent.updates != published:
            weights.publish(agent.weights())
            published = agent.updates

    return declare(publish, reads=["updates"], writes=[])


def apply_pushed(agent: Algorithm, gradients: ToOwner) -> StepFunction:
    """At the owner: one update with gradients that workers pushed; counts ctx.updates."""

    def apply_pushed(ctx: Ctx) -> None:
        gradients.apply_pushed(agent.optimizer)
        ctx.updates = agent.updates

    return declare(apply_pushed, reads=[], writes=["updates"])


def copy_weights(source: Algorithm, into: Algorithm) -> StepFunction:
    """A still picture of weights that others are writing: approximate, and so is what it shows."""
    to = into.weights()

    def copy_weights(ctx: Ctx) -> None:
        for name, values in source.weights().items():
            to[name][...] = values
        into.load(to)
        ctx.updates = source.updates

    return declare(copy_weights, reads=[], writes=["updates"])


def rest(waits: Waits, seconds: float = 0.02) -> StepFunction:
    """Sleep a little; for members that only look on. Not where one process plays every role."""

    def rest(ctx: Ctx) -> None:
        waits.nap(seconds)

    return declare(rest, reads=[], writes=[])


def crossed(every: int, before: int, now: int) -> bool:
    """Whether a count went over a multiple of `every`; never if `every` is 0."""
    return every > 0 and before // every != now // every


def evaluate(
    task: Task, evaluator: Evaluator, every: int, until: float | None = None,
    solved: Callable[[], object] = lambda: None,
) -> StepFunction:  # fmt: skip
    """Greedy episodes each `every` env steps: writes ctx.evaluation.

    `until` ends the task once two evaluations in a row, on different episodes, reach it; `solved`
    is called just before.
    """

    def evaluate(ctx: Ctx) -> None:
        if crossed(every, ctx.evaluated_at, ctx.env_steps):
            ctx.evaluation = evaluator.evaluate(ctx.env_steps)
            if until is not None and ctx.evaluation.return_mean >= until:
                ctx.evaluation = evaluator.evaluate(ctx.env_steps + 1)
                if ctx.evaluation.return_mean >= until:
                    solved()
                    task.stop("solved")
        ctx.evaluated_at = ctx.env_steps

    task.keep("evaluated_at", 0)
    evaluator.pulse = task.pulse
    return declare(evaluate, reads=["env_steps"], writes=["evaluation"])


def report(reporter: Reporter) -> StepFunction:
    """Tell what happened in this round."""

    def report(ctx: Ctx) -> None:
        reporter(ctx)

    return declare(report, reads=["env_steps", "updates"], writes=[])


def checkpoint(task: Task, save: Callable[[], object], every: int) -> StepFunction:
    """Call `save` each `every` env steps, between two rounds: what it sees is whole."""
    task.keep("saved_at", 0)

    def checkpoint(ctx: Ctx) -> None:
        if crossed(every, ctx.saved_at, ctx.env_steps):
            task.after_round(save)
        ctx.saved_at = ctx.env_steps

    return declare(checkpoint, reads=["env_steps"], writes=[])
