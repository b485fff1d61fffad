"""What there is to choose from: literals, and what other packages add by entry points.

Nothing here imports torch: a wrong name is answered at once.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

from covey.config import (
    GradientsConfig,
    ReplayConfig,
    TrainConfig,
    check_together,
    flatten,
    is_replay,
    override,
)
from covey.errors import UserError, nearest
from covey.recipes import Recipe

ALGORITHMS = {
    "a2c": "covey.algos.a2c:A2C",
    "d4pg": "covey.algos.d4pg:D4PG",
    "ddpg": "covey.algos.ddpg:DDPG",
    "dqn": "covey.algos.dqn:DQN",
    "ppo": "covey.algos.ppo:PPO",
    "qrdqn": "covey.algos.qrdqn:QRDQN",
}
RECIPES = {
    "serial": "covey.recipes.serial:serial",
    "hogwild": "covey.recipes.hogwild:hogwild",
    "a3c": "covey.recipes.a3c:a3c",
    "apex": "covey.recipes.apex:apex",
}
PLANNED = ("impala", "gather", "allreduce")  # recipes that are to come
ENGINES = {
    "inline": "covey.engines.inline:run",
    "processes": "covey.engines.processes:run",
}
COUNTED = ("workers", "actors", "learners")  # settings that say how many processes play a role
CHOICES = ("algo", "env", "recipe", "engine")


def find(kind: str, name: str, known: Mapping[str, str]) -> Any:
    """The thing of that name, ours or another package's (entry point group `covey.<kind>s`)."""
    path = known.get(name)
    if path is None:
        others = {e.name: e for e in entry_points(group=f"covey.{kind}s")}
        if name not in others:
            hint = nearest(name, [*known, *others])
            raise UserError(f"unknown {kind} '{name}'. {hint} (covey list shows all)")
        try:
            return others[name].load()
        except Exception as error:  # code that is not ours
            raise UserError(
                f"{kind} '{name}' ({others[name].value}) cannot be loaded: "
                f"{type(error).__name__}: {error}. Mend or remove that package."
            ) from error
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def names(kind: str, known: Mapping[str, str]) -> list[str]:
    """All names of a kind, ours first."""
    return [*known, *sorted(e.name for e in entry_points(group=f"covey.{kind}s"))]


def algorithm(name: str) -> Any:
    """The class of an algorithm."""
    return find("algorithm", name, ALGORITHMS)


def recipe(name: str) -> Recipe:
    """A recipe; another package may give just the function that builds its task."""
    found = find("recipe", name, RECIPES)
    return found if isinstance(found, Recipe) else Recipe(found, replays=True)


def engine(name: str) -> Any:
    """The function that runs a program on an engine."""
    return find("engine", name, ENGINES)


def preset(env: str) -> dict[str, Any]:
    """The settings that are known to work on an environment, by algorithm."""
    file = files("covey") / "presets" / f"{env.replace('/', '-')}.toml"
    return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}


def presets() -> dict[str, list[str]]:
    """For each environment, what its preset is for: `dqn`, or `dqn-hogwild` for one recipe."""
    folder = files("covey") / "presets"
    names = sorted(
        f.name.removesuffix(".toml").replace("ALE-", "ALE/")  # a file's name has no slash
        for f in folder.iterdir()
        if f.name.endswith(".toml")
    )
    return {name: sorted(preset(name)) for name in names if name != "defaults"}


def configure(
    algo: str | None, env: str | None, recipe_: str | None = None, engine: str | None = None,
    settings: Mapping[str, Any] | None = None, file: Mapping[str, Any] | None = None,
    use_presets: bool = True,
) -> TrainConfig:  # fmt: skip
    """The whole configuration: defaults, then the preset, then the file, then the settings."""
    file = dict(file or {})
    said = dict(zip(CHOICES, (algo, env, recipe_, engine), strict=True))
    chosen = {name: said[name] or file.pop(name, None) for name in CHOICES}
    for name in CHOICES:
        file.pop(name, None)
        if name in (settings or {}):
            raise UserError(f"{name} is not set with --set; give it as `covey train --help` shows.")
    for name in ("algo", "env"):
        if not isinstance(chosen[name], str):
            raise UserError(f"{name} is missing. Example: covey train ppo CartPole-v1")
    wanted = algorithm(chosen["algo"])
    name = check_recipe(chosen["recipe"] or "serial", chosen["algo"], wanted)
    how = recipe(name)
    base = TrainConfig(
        algo=chosen["algo"],
        env=chosen["env"],
        recipe=name,
        engine=check_engine(chosen["engine"] or ("processes" if how.members else "inline"), how),
        algorithm=wanted.Config(),
        replay=ReplayConfig() if wanted.replayed and how.replays else None,
        gradients=GradientsConfig() if how.pushes else None,
    )
    if use_presets:
        for layer in (preset("defaults"), preset(base.env)):
            base = override(base, _known(base, layer.get(base.algo, {})))
            base = override(base, layer.get(f"{base.algo}-{base.recipe}", {}))
    for layer in (file, dict(flatten(settings or {}))):
        base = override(base, layer)
    check_together(base)
    check_members(base, how)
    return base


def _known(base: TrainConfig, layer: Mapping[str, Any]) -> dict[str, Any]:
    """A preset of an algorithm is for all recipes: what it says of a replay is not for all."""
    return {k: v for k, v in flatten(layer) if base.replay is not None or not is_replay(k)}


def check_recipe(name: str, algo: str, wanted: Any) -> str:
    """The recipe's name, if it exists and fits."""
    fits = f"{algo} runs on: {', '.join(wanted.recipes)}."
    if name in PLANNED and name not in names("recipe", RECIPES):
        raise UserError(f"the recipe {name} is planned and not here yet. {fits}")
    recipe(name)
    if name not in wanted.recipes:
        raise UserError(f"{algo} does not run on the recipe {name}. {fits}")
    return name


def check_engine(name: str, how: Recipe) -> str:
    """The engine's name, if it exists and has something to do."""
    engine(name)
    if name != "inline" and not how.members:
        raise UserError(
            f"this recipe is one process, so the engine {name} has nothing to start. "
            "Use --engine inline, or a recipe of several processes: a3c, apex, hogwild."
        )
    return name


def check_members(config: TrainConfig, how: Recipe) -> None:
    """What a recipe of several processes cannot do, in one sentence."""
    for name in COUNTED:
        num, here = getattr(config, name), [n for n in how.members.values() if isinstance(n, str)]
        if num > (name == "learners") and (config.engine == "inline" or name not in here):
            has = f"is set by {' and '.join(here)}" if here else "is one process"
            raise UserError(
                f"{name} = {num} has no meaning on the recipe {config.recipe} with the engine "
                f"{config.engine}, which {has if config.engine != 'inline' else 'is one process'}. "
                "Leave it out; a3c and hogwild have workers, apex has actors and learners."
            )
    if config.learners > 1:
        check_learners(config, num_members(config, how))
    if getattr(config.algorithm, "normalize", False) and not how.normalizes:
        raise UserError(
            f"normalize has no meaning on the recipe {config.recipe}, whose workers would each "
            "scale observations differently. Set normalize=false, or use --recipe serial."
        )
    gradients, workers = config.gradients, num_members(config, how).get("worker", 1)
    if gradients is not None and gradients.max_lag == 0 and gradients.every > workers:
        raise UserError(
            f"gradients.max_lag = 0 needs as many workers as gradients.every = "
            f"{gradients.every}: raise max_lag or workers."
        )


def check_learners(config: TrainConfig, members: dict[str, int]) -> None:
    """What several learners need, each with its share of the replay."""
    if members["actor"] < config.learners:
        raise UserError(
            f"learners = {config.learners} need as many actors, and there are {members['actor']}: "
            "each draws from the rows of its own. Raise actors."
        )
    if config.replay is not None and config.replay.batch < config.learners:
        raise UserError(
            f"replay.batch = {config.replay.batch} is too small for learners = {config.learners}: "
            "each draws its part of a batch. Raise replay.batch."
        )
    if getattr(config.algorithm, "normalize", False):
        raise UserError(
            "normalize has no meaning with several learners, each of which would scale "
            "observations differently. Set normalize=false, or learners=1."
        )


def num_members(config: TrainConfig, how: Recipe) -> dict[str, int]:
    """How many processes play each role; none when one plays all."""
    if config.engine == "inline":
        return {}
    several = max(2, len(os.sched_getaffinity(0)))
    return {
        role: num if isinstance(num, int) else getattr(config, num) or several
        for role, num in how.members.items()
    }
