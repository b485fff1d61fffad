"""A training program as a list of steps, run round after round.

A step is a function of `ctx`. With one `yield` it has a front and a back half: backs run in reverse
order after all fronts and see the exception of what they wrap, like a context manager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from types import GeneratorType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from covey.errors import Stopped, UserError, nearest
from covey.links.count import Count
from covey.links.shared import Shared
from covey.links.waits import Waits
from covey.memory.pulse import RUNNING, Pulse
from covey.types import Tree

StepFunction = Callable[["Ctx"], Any]
Half = Generator[None, None, None]


class Ctx:
    """What the steps of one round tell each other; new every round.

    `ctx.shared` holds what other roles shared last.
    """

    def __init__(self, shared: Shared, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self.shared = shared

    if TYPE_CHECKING:  # any name may be written

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        known = sorted(k for k in self.__dict__ if k != "shared")
        raise AttributeError(
            f"ctx.{name} has not been written in this round. {nearest(name, known)} A value that "
            f"lives on is declared with task.keep('{name}', first)."
        )

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or a default if no step wrote it in this round."""
        return self.__dict__.get(name, default)


class Timing:
    """How long a step took, on a clock that never jumps; percentiles are of the newest spans."""

    KEPT = 2048

    def __init__(self) -> None:
        self.newest: deque[tuple[float, float]] = deque(maxlen=self.KEPT)
        self.count = 0
        self.total = 0.0

    def add(self, began: float, ended: float) -> None:
        """One more span."""
        self.newest.append((began, ended))
        self.count += 1
        self.total += ended - began

    def summary(self) -> dict[str, float]:
        """Count, total and mean of all, percentiles of the newest."""
        spans = [ended - began for began, ended in self.newest] or [0.0]
        p50, p95, p99 = (float(p) for p in np.percentile(spans, [50, 95, 99]))
        mean = self.total / max(1, self.count)
        counts = {"count": self.count, "total": self.total, "mean": mean}
        return {**counts, "p50": p50, "p95": p95, "p99": p99}


class Use(NamedTuple):
    """A step in its place."""

    step: StepFunction
    name: str
    timing: Timing


class Running(NamedTuple):
    """An overlapped step in its thread."""

    front: Future[Half | None]
    own: Ctx
    before: dict[str, Any]


class Task:
    """Steps in order, for the roles that this process plays. Two tasks can live side by side."""

    def __init__(
        self, roles: Iterable[str] | None = None, shared: Shared | None = None,
        waits: Waits | None = None, env_steps: Count | None = None,
    ) -> None:  # fmt: skip
        self.roles = None if roles is None else frozenset(roles)  # None plays every role
        self.reason: str | None = None  # why the last `run` ended
        self._shared, self._waits = shared or Shared(), waits or Waits()
        self.pulse: Pulse | None = None if self._waits.alone else self._waits.pulse
        self._env_steps = env_steps  # of the whole team
        self._uses: list[Use] = []
        self._other_roles: set[str] = set()
        self._kept: dict[str, Any] = {"rounds": 0, "env_steps": 0, "updates": 0, "version": 0}
        self._shared_names: list[str] = []
        self._needs: list[tuple[str, frozenset[str], frozenset[str]]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._running: list[Running] = []
        self._after: list[Callable[[], object]] = []
        self._void = False  # the round was cut short by a stop elsewhere

    def use(self, step: StepFunction, on: str | None = None) -> Task:
        """Append a step; `on` names the role that runs it, none means every role."""
        if on is not None and self.roles is not None and on not in self.roles:
            self._other_roles.add(on)
            return self
        name = getattr(step, "__name__", type(step).__name__)
        if not callable(step):
            raise UserError(f"task.use wants a function of ctx, not {step!r}.")
        reads, writes = getattr(step, "reads", ()), getattr(step, "writes", ())
        self._needs.append((name, frozenset(reads), frozenset(writes)))
        same = sum(use.name.partition("#")[0] == name for use in self._uses)
        self._uses.append(Use(step, f"{name}#{same + 1}" if same else name, Timing()))
        return self

    def keep(self, name: str, first: Any = None) -> None:
        """Declare, once, a value that lives from round to round for ever."""
        self._kept.setdefault(name, first)

    def share(self, *names: str) -> None:
        """Declare ctx values that all roles may read as ctx.shared.<name>."""
        self._shared_names += names

    def overlap(self, step: StepFunction, on: str | None = None) -> Task:
        """Append a step that runs in a thread beside those after it, until the backs begin.

        It works on its own copy of ctx; what it writes is merged at that barrier.
        """
        overlapped = partial(self._overlapped, step)
        overlapped.__name__ = getattr(step, "__name__", "overlap")  # type: ignore[attr-defined]
        overlapped.reads, overlapped.writes = (  # type: ignore[attr-defined]
            getattr(step, "reads", ()), getattr(step, "writes", ()),
        )  # fmt: skip
        return self.use(overlapped, on)

    def stop(self, reason: str) -> None:
        """End after this round, in every process; the first reason stays."""
        self._waits.signal.stop(reason)

    @property
    def stopped(self) -> str | None:
        """The first reason that `stop` was given, anywhere."""
        return self._waits.signal.reason

    def after_round(self, action: Callable[[], object]) -> None:
        """Call something once this round is over and what it kept is carried on."""
        self._after.append(action)

    def run(
        self, *, rounds: int | None = None, updates: int | None = None,
        env_steps: int | None = None, until: Callable[[Ctx], bool] | None = None,
    ) -> str:  # fmt: skip
        """Go round until a limit is reached or a step says stop; the reason comes back.

        Limits count from the beginning of the task, not of this call.
        """
        limits = {"rounds": rounds, "updates": updates, "env_steps": env_steps}
        self._check_flow()
        self._take_in()
        while (reason := self.stopped or self._limit_reached(limits)) is None:
            ctx, fronts, self._running = Ctx(self._shared, self._kept), [], []
            with ExitStack() as backs:
                backs.push(self._void_if_stopped)
                for use in self._uses:
                    began = perf_counter()
                    half = use.step(ctx)
                    if isinstance(half, GeneratorType):
                        next(half, None)
                        backs.push(partial(_back, half, use))
                    fronts.append((use.timing, began, perf_counter()))
                    if self.pulse is not None:
                        self.pulse.beat()
                self._join(ctx)
            for timing, began, ended in fronts:
                timing.add(began, ended)
            if not self._void:
                self._end_round(ctx)
                if until is not None and until(ctx):
                    self.stop("until")
            self._take_in()
        if reason != "rounds" and not self._waits.alone:
            self.stop(reason)  # the limit of one is the limit of all
        self.reason = reason
        return reason

    def _void_if_stopped(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:  # fmt: skip
        """Whether a step waited for what will not come: the team stops, and nothing is wrong."""
        self._void = isinstance(error, Stopped)
        return self._void

    def _take_in(self) -> None:
        """What the others have done since: their env steps, what they shared."""
        if self._env_steps is not None:
            self._shared.refresh()
            self._kept["env_steps"] = self._env_steps.total

    def _limit_reached(self, limits: dict[str, int | None]) -> str | None:
        for name, limit in limits.items():
            if limit is not None and self._kept[name] >= limit:
                return name
        return None

    def _end_round(self, ctx: Ctx) -> None:
        ctx.rounds += 1
        if self.pulse is not None:  # until its first round is over, it is being set up
            self.pulse.enter(RUNNING)
        if self._env_steps is not None:
            self._env_steps.add(ctx.env_steps - self._kept["env_steps"])
        for name in self._kept:
            self._kept[name] = ctx.__dict__[name]
        told = {name: ctx.__dict__[name] for name in self._shared_names if name in ctx.__dict__}
        if told:
            self._shared.publish(**told)
        after, self._after = self._after, []
        for action in after:
            action()

    def _overlapped(self, step: StepFunction, ctx: Ctx) -> Half:
        self._threads = self._threads or ThreadPoolExecutor(thread_name_prefix="overlap")
        before = {k: v for k, v in ctx.__dict__.items() if k != "shared"}
        running = Running(
            self._threads.submit(_front, step, own := Ctx(self._shared, before)), own, before
        )
        self._running.append(running)
        use = Use(step, getattr(step, "__name__", "overlap"), Timing())
        try:
            yield  # the barrier, `_join`, comes before any back half
        except BaseException as error:
            half = running.front.result()
            if half is None or not _back(half, use, type(error), error, error.__traceback__):
                raise
        else:
            half = running.front.result()
            if half is not None:
                _back(half, use, None, None, None)

    def _join(self, ctx: Ctx) -> None:
        running, self._running = self._running, []
        for front, own, before in running:
            front.result()
            for name, value in own.__dict__.items():
                if name == "shared" or (name in before and before[name] is value):
                    continue
                if ctx.__dict__.get(name, before.get(name)) is not before.get(name):
                    raise UserError(
                        f"ctx.{name} was written by an overlapped step and by another one in the "
                        "same round; give one of them another name."
                    )
                ctx.__dict__[name] = value

    def _check_flow(self) -> None:
        """Every declared read has a writer before it in the round, or is kept."""
        written = set(self._kept)
        every = written.union(*(writes for _, _, writes in self._needs))
        for name, reads, writes in self._needs:
            for missing in sorted(reads - written):
                late = "a later step writes it" if missing in every else "no step writes it"
                away = f" Steps on {sorted(self._other_roles)} run elsewhere." * bool(
                    self._other_roles
                )
                raise UserError(
                    f"step {name} reads ctx.{missing}, but {late}. Put its writer before it, keep "
                    f"it, or share it.{away}"
                )
            written |= writes

    def timings(self) -> dict[str, dict[str, float]]:
        """For each step: how often it ran and, in seconds, mean, percentiles and total."""
        return {use.name: use.timing.summary() for use in self._uses}

    def spans(self) -> list[tuple[str, float, float]]:
        """The newest (step, begin, end) in seconds, for a trace."""
        spans = [(u.name, *span) for u in self._uses for span in u.timing.newest]
        return sorted(spans, key=lambda span: span[1])

    def state(self) -> Tree:
        """What is kept, as far as it can be written down."""
        plain = (bool, int, float, str, type(None))
        return {name: value for name, value in self._kept.items() if isinstance(value, plain)}

    def restore(self, state: Tree) -> None:
        """Take it back."""
        self._kept.update(state)
        if self._env_steps is not None and self._env_steps.total < state["env_steps"]:
            self._env_steps.begin_at(state["env_steps"])  # else others have gone on meanwhile

    def __enter__(self) -> Task:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)


def _back(
    half: Half, use: Use, kind: type[BaseException] | None,
    error: BaseException | None, trace: TracebackType | None,
) -> bool:  # fmt: skip
    """Run a back half; True if it dealt with the exception of what it wraps."""
    began = perf_counter()
    try:
        if error is None:
            next(half)
        else:
            half.throw(error)
    except StopIteration:
        return error is not None
    except BaseException as raised:
        if raised is error:
            return False  # let the exception go on with its own traceback
        raise
    finally:
        use.timing.add(began, perf_counter())
    half.close()
    raise UserError(f"step {use.name} yields more than once; a step has one back half.")


def _front(step: StepFunction, ctx: Ctx) -> Half | None:
    half = step(ctx)
    if not isinstance(half, GeneratorType):
        return None
    next(half, None)
    return half


def serial(*steps: StepFunction) -> StepFunction:
    """Several steps as one that owns their back halves."""

    def group(ctx: Ctx) -> Half:
        with ExitStack() as backs:
            for step in steps:
                half = _front(step, ctx)
                if half is not None:
                    use = Use(step, getattr(step, "__name__", "step"), Timing())
                    backs.push(partial(_back, half, use))
            yield

    group.__name__ = "+".join(getattr(s, "__name__", type(s).__name__) for s in steps)
    return declare(group, _union(steps, "reads") - _union(steps, "writes"), _union(steps, "writes"))


def _union(steps: Iterable[StepFunction], kind: str) -> frozenset[str]:
    return frozenset(name for step in steps for name in getattr(step, kind, ()))


def declare(step: StepFunction, reads: Iterable[str], writes: Iterable[str]) -> StepFunction:
    """Say which ctx values a step reads and writes; the task checks it before the first round."""
    step.reads, step.writes = frozenset(reads), frozenset(writes)  # type: ignore[attr-defined]
    return step
