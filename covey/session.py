"""One member's part in a training run: what surrounds the steps of its recipe."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from covey import catalog, checkpoint, steps
from covey.checkpoint import Checkpoint
from covey.config import TrainConfig
from covey.desk import SIGNALS
from covey.envs import EnvLike, Envs, make_env
from covey.errors import UserError
from covey.evaluation import Evaluation, Evaluator
from covey.links.latest import Latest
from covey.links.replay import Replay
from covey.memory.pulse import SAVING
from covey.report import LOG_EVERY_SECONDS, Reporter
from covey.runs import save
from covey.task import Task
from covey.team import Team
from covey.types import Algorithm, Tree


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be trained; the same for every member."""

    config: TrainConfig
    folder: Path
    env: EnvLike
    network: Any = None
    resumed: bool = False  # go on from the newest good checkpoint


class Session:
    """Evaluates, reports, saves and restores. Inside `with`, `task` is ready to run."""

    task: Task

    def __init__(self, job: Job, team: Team, saved: Checkpoint | None = None, **also: Any) -> None:
        """`also` is what else to put into checkpoints."""
        self.job, self.team, self.config = job, team, job.config
        self.env, self.network = job.env, job.network
        self.algorithm = catalog.algorithm(job.config.algo)
        self.parts: dict[str, Any] = also
        self.keeper = catalog.recipe(job.config.recipe).keeper
        self.keeps = team.plays(self.keeper) and team.index == 0  # the first of several learners
        self._saved = saved
        self._open = ExitStack()

    def __enter__(self) -> Session:
        try:
            # numpy multiplies small matrices here: one thread is fastest and gives the same bits
            self._open.enter_context(threadpool_limits(limits=1, user_api="blas"))
            self.task = catalog.recipe(self.config.recipe)(self.team, self)
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

    def make_env(self, acts: bool = True) -> Envs:
        """This member's environments; one, only to be looked at, where it does not act."""
        c = self.config
        env = make_env(
            self.env, c.num_envs if acts else 1, self.team.seed, c.env_kwargs, c.scale_reward,
            c.algorithm.gamma, exact=acts,
        )  # fmt: skip
        self._open.callback(env.close)
        return env

    def make_agent(self, env: Envs, apply: Any = None) -> Any:
        """This member's agent."""
        c = self.config
        return self.team.agent(self.algorithm, env, c.algorithm, self.network, c.device, apply)

    def make_replay(self, agent: Algorithm) -> Replay:
        """This member's end of the replay."""
        r = self.config.replay
        assert r is not None
        return self.team.replay(
            "replay", agent, r.capacity, r.save_replay, alpha=r.alpha, beta=r.beta, anneal=r.anneal
        )

    def attach(
        self, task: Task, agent: Algorithm, env: Envs, parts: dict[str, Any],
        links: tuple[Any, ...] = (), weights: Latest | None = None,
        evaluated: Algorithm | None = None,
    ) -> None:  # fmt: skip
        """Append evaluation, report and checkpoint to the task; go on where a checkpoint stands.

        The recipe's keeper saves `agent` and finishes. If that one stands in shared memory, another
        one is `evaluated`, which has a copy of its weights.
        """
        c = self.config
        self.task, self.agent, self.spec = task, agent, env.spec
        self.evaluated, self.outlives = evaluated or agent, evaluated is not None
        self.evaluator = Evaluator(
            self.evaluated, self.env, c.eval_episodes, c.seed, c.env_kwargs,
            stopping=lambda: task.stopped in SIGNALS.values(),
        )  # fmt: skip
        self._open.callback(self.evaluator.close)
        self.links = links
        self.reporter = Reporter(
            self.team.post.tell, [link.gauges for link in links],
            max(LOG_EVERY_SECONDS, 0.01 * self.team.size),
        )  # fmt: skip
        self.solution = self.team.latest("solution", self.evaluated, "evaluator", publish=False)
        task.use(
            steps.evaluate(task, self.evaluator, c.eval_every, c.until, self._solved),
            on="evaluator",
        )
        task.use(steps.report(self.reporter))
        if self.keeps:
            task.use(steps.checkpoint(task, self.save, c.checkpoint_every))
        self.parts |= {**parts, "task": task}
        self._open_for_all(weights)
        if self.team.first and not self.team.generation:
            self._say_start(env)

    def _solved(self) -> None:
        self.solution.publish(self.evaluated.weights())

    def _open_for_all(self, weights: Latest | None) -> None:
        """Nobody begins before the keeper has restored, and published what it restored."""
        opened = self.team.count("opened")
        if not self.keeps:
            self.team.waits.until(lambda: opened.total > 0, lambda: f"the {self.keeper} to begin")
            if self.team.plays(self.keeper) and (saved := self._newest()) is not None:
                self.agent.restore(saved.tree["agent"])
            return
        if not (self.outlives and self.team.generation):
            self._restore()
        if weights is not None:
            weights.publish(self.agent.weights())
        opened.add(1)
        self.team.wake()

    def _say_start(self, env: Envs) -> None:
        c, size = self.config, sum(p.numel() for p in self.agent.module.parameters())
        self._say(f"run    {self.job.folder}   seed {c.seed}")
        self._say(
            f"       {c.algo} on {env.name}: {c.num_envs} environments {env.how}, {size:,} weights,"
            f" acting in {self.agent.inference}"
        )
        if self.team.size > 1:
            roles = Counter(role for role, _ in self.team.members)
            told = ", ".join(f"{num} {role}{'s' * (num > 1)}" for role, num in roles.items())
            threads = self.team.threads
            self._say(f"       {told}; {threads} thread{'s' * (threads > 1)} each")
        if self.outlives:
            self._say("       evaluations and checkpoints are of weights in motion: approximate")
        self.team.post.tell("start", env_steps=self.task.state()["env_steps"], seed=c.seed)

    def _say(self, text: str) -> None:
        self.team.post.tell("say", text=text)

    def save(self) -> Path | None:
        """A checkpoint of all parts."""
        kept = self.task.state()
        self.reporter.tell(kept["env_steps"], self.agent.updates, {})  # the report is one of them
        tree: Tree = {name: part.state() for name, part in self.parts.items()}
        tree["torch_rng"] = torch.get_rng_state()
        with self.team.pulse.during(SAVING):
            path = save(
                self.job.folder, self.config, tree, self.spec, kept["env_steps"],
                self.team.post.tell,
            )  # fmt: skip
        if path is None:
            self._say("warning: a checkpoint could not be written; training goes on.")
        return path

    def _newest(self) -> Checkpoint | None:
        if self._saved is not None or not (self.job.resumed or self.team.generation):
            return self._saved
        try:
            return checkpoint.newest_good(self.job.folder / "checkpoints")
        except UserError:
            if self.job.resumed:
                raise
            return None  # its predecessor died before the first: it begins as that one did

    def _restore(self) -> None:
        """From the checkpoint that the run goes on from, or that a dead keeper left."""
        saved = self._newest()
        if saved is None:
            return
        if saved.manifest["spec"] != self.spec.signature():
            raise UserError(
                f"{saved.path} was saved with other spaces than {self.config.env} has now. "
                "Resume it with the environment that it was trained on."
            )
        missing = self.parts.keys() - saved.tree.keys()
        exact = not missing and all(
            [part.restore(saved.tree[name]) is not False for name, part in self.parts.items()]
        )
        torch.set_rng_state(torch.tensor(saved.tree["torch_rng"]))
        self._say_resumed(saved, exact and self.team.size == 1)

    def _say_resumed(self, saved: Checkpoint, exact: bool) -> None:
        at = saved.manifest["step"]
        for error in saved.skipped:
            self._say(f"warning: {error}")
        self.team.post.tell(
            "resume", env_steps=at, exact=exact, skipped=[str(s) for s in saved.skipped]
        )
        how = "bit for bit" if exact else (
            "but not bit for bit: several processes do not repeat themselves" if self.team.size > 1
            else "but not bit for bit: the environments (or the replay) could not be brought back "
            "exactly, so they begin anew"
        )  # fmt: skip
        self._say(f"       resumed at env step {at:,}, {how}")

    def finish(self) -> None:
        """The trace, and by the keeper the last checkpoint and evaluation."""
        self.team.post.tell("spans", spans=self.task.spans())
        if not self.keeps:
            return
        kept = self.task.state()
        reason = self.task.reason or "stopped"
        if self.team.await_others():
            for link in self.links:
                link.check()
        self._settle()
        path = self.save()
        evaluation: Evaluation | None = None
        if reason not in SIGNALS.values():
            found = self.evaluator.evaluate(kept["env_steps"] + 2)
            evaluation = found if found.returns else None  # None: interrupted only now
        updates = self.agent.updates  # others may have gone on since this member's last round
        self.reporter.tell(kept["env_steps"], updates, {}, evaluation)
        self.team.post.tell(
            "finished", reason=reason, env_steps=kept["env_steps"], updates=updates,
            evaluation=None if evaluation is None else [evaluation.returns, evaluation.lengths],
            weights=digest(self.agent), checkpoint=path.name if path else None,
            timings=self.task.timings(),
        )  # fmt: skip

    def _settle(self) -> None:
        """The learners have gone on a little since the weights were found to solve it."""
        weights, updates = self.agent.weights(), self.agent.updates
        if self.solution.version and self.team.size > 1:
            self.solution.read_again(weights)
            self.agent.load({**weights, "updates": np.array(updates)})
        elif self.evaluated is not self.agent:
            for name, values in self.evaluated.weights().items():
                values[...] = weights[name]


def digest(agent: Algorithm) -> str:
    """Sixteen hex digits that say whether two agents have the same weights."""
    found = hashlib.sha256()
    for _, value in sorted(agent.module.state_dict().items()):
        found.update(value.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]
