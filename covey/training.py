"""Train, resume, evaluate and load from Python; the command line calls these."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from covey import catalog, checkpoint
from covey.check import check, unfit
from covey.config import TrainConfig, override, read_toml
from covey.engines.care import REPLACEABLE, Care
from covey.envs import EnvLike, env_name, make_env, registered
from covey.errors import UserError
from covey.runs import Run, find
from covey.types import Array

if TYPE_CHECKING:
    from covey.desk import Desk, Result
    from covey.session import Job
    from covey.team import Team


def configured(
    algo: str | None, env: EnvLike | None, recipe: str | None = None, engine: str | None = None,
    settings: Mapping[str, Any] | None = None, file: Mapping[str, Any] | None = None,
) -> TrainConfig:  # fmt: skip
    """The configuration, with the environment tried and found to fit."""
    name = env if isinstance(env, str) or env is None else env_name(env)
    config = catalog.configure(algo, name, recipe, engine, settings, file)
    envs = check(config.env if env is None else env, config.env_kwargs)
    envs.close()
    wrong = unfit(config.algo, envs)
    if wrong is not None:
        raise UserError(wrong)
    return config


def train(
    algo: str, env: EnvLike, *, recipe: str | None = None, engine: str | None = None,
    network: Any = None, config: str | Path | None = None, out: str | Path | None = None,
    quiet: bool = False, **settings: Any,
) -> Result:  # fmt: skip
    """Train an algorithm on an environment (an id, or a function that makes one).

    Settings are any keys of the configuration: `covey.train("dqn", "CartPole-v1", lr=1e-3)`.
    """
    file = read_toml(Path(config)) if config is not None else None
    whole = configured(algo, env, recipe, engine, settings, file)
    check_device(whole.device)
    run = Run.create(whole, None if out is None else Path(out))
    return raised(run_all(Start(whole, run, env, network), quiet))


def resume(
    run: str | Path | None = None, *, steps: int | None = None, until: float | None = None,
    env: EnvLike | None = None, network: Any = None, quiet: bool = False,
) -> Result:  # fmt: skip
    """Go on with a run from its newest good checkpoint; raises KeyboardInterrupt on Ctrl-C."""
    folder = find(None if run is None else str(run))
    return raised(run_all(reopened(folder, steps, until, env, network), quiet))


class Start(NamedTuple):
    """A checked run, ready to go, and the checkpoint it goes on from."""

    config: TrainConfig
    run: Run
    env: EnvLike
    network: Any = None
    saved: checkpoint.Checkpoint | None = None


def run_all(start: Start, quiet: bool = False) -> Result:
    """Train until a limit or a signal ends it, in as many processes as the configuration says."""
    try:
        from covey.desk import Desk  # torch is for those who train
        from covey.session import Job, Session
        from covey.team import Alone, Team
    except BaseException:
        start.run.discard()
        raise
    config, run, env, network, saved = start
    job = Job(config, run.folder, env, network, saved is not None)
    with Desk(config, run, quiet) as desk:
        members = catalog.num_members(config, catalog.recipe(config.recipe))
        if members:
            run_members(job, desk, members)
            return desk.result()
        team = Team(config.seed, post=Alone(desk.hear), threads=config.threads)
        with closing(team), Session(job, team, saved, report=desk.report) as session:
            desk.stop = session.task.stop
            session.task.run(env_steps=config.steps)
            session.finish()
        return desk.result()


def run_members(job: Job, desk: Desk, members: dict[str, int]) -> None:
    """The same, each member in its own process."""
    from covey.engines.processes import run as run_processes

    if job.resumed:
        desk.report.resume()
    # of several learners none can go on without the others, nor a new one with them
    replace = (*REPLACEABLE, "learner") if job.config.learners == 1 else REPLACEABLE
    care = Care(replace=replace, keepers=(catalog.recipe(job.config.recipe).keeper,))

    def main(team: Team) -> None:
        from covey.session import Session

        with Session(job, team) as session:
            session.task.run(env_steps=job.config.steps)
            session.finish()

    run_processes(
        main, seed=job.config.seed, members=members, care=care, hear=desk.hear, begun=desk.begin,
        threads=job.config.threads,
    )  # fmt: skip


def raised(result: Result) -> Result:
    """The result; Ctrl-C goes on as what it is, now that the run is saved."""
    if result.reason == "interrupted":
        raise KeyboardInterrupt
    return result


def reopened(
    folder: Path, steps: int | None, until: float | None, env: EnvLike | None = None,
    network: Any = None,
) -> Start:  # fmt: skip
    """A run that goes on where its newest good checkpoint stands."""
    config = saved_config(folder)
    wanted = {"steps": steps, "until": until}
    config = override(config, {k: v for k, v in wanted.items() if v is not None})
    saved = matching_checkpoint(folder, config)
    at = saved.manifest["step"]
    if at >= config.steps:
        raise UserError(
            f"{folder} is at env step {at} of {config.steps} already. "
            f"Go further with: covey resume {folder} --steps {2 * max(at, config.steps)}"
        )
    check_device(config.device)
    env = known_env(config, env)
    check(env, config.env_kwargs).close()
    return Start(config, Run(folder, config, at), env, network, saved)


def check_device(device: str) -> None:
    """A device that torch has here."""
    if device == "cpu":
        return
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device '{device}' cannot be used: {reason}. Use --device cpu.") from None


def saved_config(folder: Path) -> TrainConfig:
    """The configuration that a run was started with."""
    # without presets: they may have changed since, and what is not set was meant not to be set
    file = read_toml(folder / "config.toml")
    return catalog.configure(None, None, file=file, use_presets=False)


def known_env(config: TrainConfig, env: EnvLike | None) -> EnvLike:
    """The environment given, or the one that the run names."""
    if env is not None:
        return env
    try:
        registered(config.env)
    except UserError as error:
        raise UserError(
            f"{error} If it was made by a function: Give the function that makes it, as env=..., "
            "from Python."
        ) from None
    return config.env


def matching_checkpoint(folder: Path, config: TrainConfig) -> checkpoint.Checkpoint:
    """The newest good checkpoint, if it is of the same algorithm and environment."""
    saved = checkpoint.newest_good(folder / "checkpoints")
    for key in ("env", "algo"):
        of, now = saved.manifest[key], getattr(config, key)
        if of != now:
            raise UserError(
                f"{saved.path} is of {key} '{of}', but {folder / 'config.toml'} says '{now}'. "
                "Set it back, or train a new run."
            )
    return saved


class Policy:
    """A trained agent: call it with one observation and it says what to do."""

    def __init__(self, folder: Path, agent: Any, env: Any, config: TrainConfig, step: int) -> None:
        self.folder, self.agent, self.config, self.env_steps = folder, agent, config, step
        self._env = env

    def __call__(self, obs: Any, greedy: bool = True) -> Any:
        """An action as the environment takes it."""
        row = self._env.empty(1)
        from covey.vector import write_obs

        stepper = self._env.stepper
        write_obs(stepper.obs_space, obs, row[0, ...])
        action_B: Array = stepper.to_env(self.agent.act(row, self.env_steps, greedy)[0])
        return action_B[0]


def load(
    run: str | Path | None = None, *, env: EnvLike | None = None, network: Any = None
) -> Policy:
    """The newest good weights of a run, ready to act."""
    from covey.team import Team

    folder = find(None if run is None else str(run))
    config = saved_config(folder)
    saved = matching_checkpoint(folder, config)
    envs = make_env(known_env(config, env), 1, env_kwargs=config.env_kwargs, exact=False)
    envs.close()  # only its spaces are wanted
    if saved.manifest["spec"] != envs.spec.signature():
        raise UserError(f"{saved.path} was saved with other spaces than {envs.name} has now.")
    team = Team(config.seed)
    agent = team.agent(
        catalog.algorithm(config.algo), envs, config.algorithm, network, config.device
    )
    agent.restore(saved.tree["agent"])
    return Policy(folder, agent, envs, config, saved.manifest["step"])


def evaluate(
    run: str | Path | None = None, *, episodes: int = 20, seed: int | None = None,
    env: EnvLike | None = None, network: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Greedy episodes of a run's newest good weights."""
    from covey.evaluation import Evaluator

    if episodes < 1 or (seed is not None and seed < 0):
        raise UserError(f"episodes={episodes}, seed={seed}: give at least one, and a seed from 0.")
    policy = load(run, env=env, network=network)
    c = policy.config
    evaluator = Evaluator(
        policy.agent, env or c.env, episodes, c.seed if seed is None else seed, c.env_kwargs
    )
    found = evaluator.evaluate(number=2**31 if seed is None else seed)
    evaluator.close()
    return {
        "run": str(policy.folder),
        "algo": c.algo,
        "env": c.env,
        "env_steps": policy.env_steps,
        "episodes": len(found.returns),
        "return_mean": found.return_mean,
        "return_std": found.return_std,
        "return_min": float(np.min(found.returns)),
        "return_max": float(np.max(found.returns)),
        "length_mean": float(np.mean(found.lengths)),
    }
