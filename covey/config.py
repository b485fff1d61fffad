"""Frozen dataclasses to TOML, the command line and back; an unknown key names the nearest one."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.errors import UserError, nearest


def option(
    default: Any, doc: str, *, above: float = -math.inf, least: float = -math.inf,
    most: float = math.inf, choices: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """A dataclass field with its meaning and its range (`above` is open, the others closed)."""
    meta = {"doc": doc, "above": above, "least": least, "most": most, "choices": choices}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """How rows are kept and drawn; only for algorithms that learn from a replay."""

    capacity: int = option(100_000, "rows kept; the oldest go first", least=1)
    batch: int = option(64, "rows in a batch", least=1)
    reuse: float | None = option(8.0, "rows drawn for each row added; none = nobody waits", above=0)
    warmup: int = option(1_000, "rows to have before learning starts", least=0)
    ahead: int = option(0, "rows that actors may be ahead by, at least two batches' worth", least=0)
    alpha: float = option(0.0, "rows are drawn by |error|^alpha; 0 = all alike", least=0, most=2)
    beta: float = option(0.4, "how far importance weights undo it at first", least=0, most=1)
    anneal: int = option(0, "batches over which beta rises to 1; 0 = it stays", least=0)
    save_replay: bool = option(True, "put the rows into checkpoints; exact resume needs them")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsConfig:
    """How an owner applies what workers push; only for recipes with an owner."""

    every: int = option(1, "gradients whose mean is one update", least=1, most=1024)
    max_lag: int = option(100, "versions that a gradient may be old; older is refused", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run; the algorithm's own settings and the replay's hang below it."""

    algo: str = option("", "algorithm, a name of `covey list`")
    env: str = option("", "gymnasium environment id")
    recipe: str = option("serial", "what flows between processes, and who applies it")
    engine: str = option("inline", "where the processes are")
    workers: int = option(0, "processes that act and learn; 0 = one per core, at least 2", least=0)
    actors: int = option(0, "processes that only act; 0 = one per core, at least 2", least=0)
    learners: int = option(1, "processes that learn together, the mean of their gradients", least=1)
    seed: int = option(1, "root of all random numbers", least=0)
    steps: int = option(100_000, "env steps to take at most", least=1)
    until: float | None = option(None, "stop when greedy evaluation reaches this mean return")
    num_envs: int = option(8, "environments stepped side by side", least=1, most=65_536)
    unroll: int = option(32, "env steps of each environment in one round", least=1)
    scale_reward: bool = option(False, "divide rewards by the running deviation of the return")
    env_kwargs: dict[str, Any] = option({}, "passed to the environment's constructor")
    eval_every: int = option(10_000, "env steps between evaluations; 0 = at the end", least=0)
    eval_episodes: int = option(20, "episodes of one evaluation", least=1)
    checkpoint_every: int = option(25_000, "env steps between saves; 0 = at the end", least=0)
    keep: int = option(3, "checkpoints kept, newest first", least=1)
    threads: int = option(0, "of torch; 0 = 1, or all cores for images", least=0)
    device: str = option("cpu", "torch device of the learner")
    replay: ReplayConfig | None = None
    gradients: GradientsConfig | None = None
    algorithm: Any = None


SECTIONS = ("algorithm", "replay", "gradients")


def parts(config: TrainConfig) -> dict[str, Any]:
    """The dataclasses that make up a run's configuration, by section; "" is the run itself."""
    found = {"": config, config.algo: config.algorithm, "replay": config.replay,
             "gradients": config.gradients}  # fmt: skip
    return {name: part for name, part in found.items() if part is not None}


def own_fields(part: Any) -> Iterator[dataclasses.Field[Any]]:
    """The settings of one part, without the sections below it."""
    return (f for f in dataclasses.fields(part) if f.name not in SECTIONS)


def override(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """The configuration with some values changed; `lr`, `dqn.lr` and nested tables all name one."""
    for key, value in flatten(settings):
        section, _, name = key.rpartition(".")
        config = _set(config, section, name, key, value)
    return config


def is_replay(key: str) -> bool:
    """Whether a setting is one of the replay's."""
    name = key.rpartition(".")[2]
    return any(f.name == name for f in dataclasses.fields(ReplayConfig))


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted keys."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and not key.startswith("env_kwargs"):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _set(config: TrainConfig, section: str, name: str, key: str, value: Any) -> TrainConfig:
    if section == "env_kwargs":
        merged = {**config.env_kwargs, name: value}
        return dataclasses.replace(config, env_kwargs=merged)
    homes = parts(config)
    if section in ("replay", "gradients") and section not in homes:
        raise UserError(
            f"{config.algo} on the recipe {config.recipe} has no {section}: leave '{key}' out."
        )
    for home, part in homes.items():
        found = {f.name: f for f in own_fields(part)}
        if name in found and section in ("", home):
            value = checked(key, value, _types(type(part))[name], found[name].metadata)
            part = dataclasses.replace(part, **{name: value})
            field = home if home in ("", "replay", "gradients") else "algorithm"
            return dataclasses.replace(config, **{field: part}) if field else part
    raise UserError(f"unknown configuration key '{key}'. {nearest(key, names(config))}")


def _types(part: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(part)


def names(config: TrainConfig) -> list[str]:
    """Every key, short and dotted."""
    return [
        name
        for section, part in parts(config).items()
        for f in own_fields(part)
        for name in ([f.name, f"{section}.{f.name}"] if section else [f.name])
    ]


def checked(key: str, value: Any, kind: Any, meta: Mapping[str, Any]) -> Any:
    """The value in its field's type and range, or an error that says both."""
    value = converted(key, value, kind)
    above, least, most = meta["above"], meta["least"], meta["most"]
    for number in value if isinstance(value, tuple) else (value,):
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        if not (number > above and least <= number <= most and math.isfinite(number)):
            low = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
            high = f" and at most {most:g}" if most < math.inf else ""
            raise UserError(f"{key} = {number:g} is out of range: it must be {low}{high}.")
    if meta["choices"] and value not in meta["choices"]:
        raise UserError(f"{key} = {value!r} is unknown. {nearest(str(value), meta['choices'])}")
    return value


def converted(key: str, value: Any, kind: Any) -> Any:
    """TOML's value as the field's type: 1e5 may be a whole number, 3 a float, a list a tuple."""
    if hasattr(value, "item"):  # a number of numpy's
        value = value.item()
    if isinstance(kind, types.UnionType):
        if value is None or value == "none":
            return None
        kind = next(k for k in kind.__args__ if k is not types.NoneType)
    origin = typing.get_origin(kind) or kind
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if origin is float and number and not math.isnan(value):
        return float(value)
    if origin is int and number and math.isfinite(value) and value == int(value):
        return int(value)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(converted(key, item, typing.get_args(kind)[0]) for item in value)
    if origin in (bool, str, dict) and isinstance(value, origin):
        return value
    whole = typing.get_args(kind)[:1] == (int,)
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text",
              dict: "a table",
              tuple: "a list of whole numbers" if whole else "a list of numbers"}  # fmt: skip
    raise UserError(f"{key} = {value!r} must be {wanted[origin]}.")


def check_together(config: TrainConfig) -> None:
    """What no single field can know."""
    if hasattr(config.algorithm, "check"):
        config.algorithm.check()
    replay = config.replay
    if replay is None:
        return
    if replay.batch > replay.capacity:
        raise UserError(
            f"replay.batch = {replay.batch} is larger than replay.capacity = {replay.capacity}: "
            "lower the one or raise the other."
        )
    if replay.warmup > replay.capacity:
        raise UserError(
            f"replay.warmup = {replay.warmup} is larger than replay.capacity = {replay.capacity}: "
            "learning would never start."
        )


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`name=value` words from a command line; a value that is not TOML is a text."""
    settings: dict[str, Any] = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"'{word}' is not name=value. Example: --set lr=0.001")
        try:
            settings[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key.strip()] = _number_or_text(text)
    return settings


def _number_or_text(text: str) -> float | str:
    """`.98` and `1e-3` as people write them; TOML wants `0.98`."""
    try:
        return float(text)
    except ValueError:
        return text


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file, or one sentence about why not."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}. Give a readable file.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}. Mend that line.") from None


def to_toml(config: TrainConfig, comments: bool = False) -> str:
    """The whole configuration; with comments, what each value means."""
    lines: list[str] = []
    for section, part in parts(config).items():
        if section:
            lines += ["", f"[{section}]"]
        tables = []
        for f in own_fields(part):
            value = getattr(part, f.name)
            if isinstance(value, dict):
                tables.append((f.name, value))
                continue
            text = literal("none" if value is None else value)
            unset = value is None and f.default is None
            line = f"# {f.name} is not set" if unset else f"{f.name} = {text}"
            lines.append(f"{line:<32}  # {f.metadata['doc']}" if comments else line)
        for name, table in tables:
            inner = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in table.items())
            lines.append(f"{name} = {{{inner}}}")
    return "\n".join(lines) + "\n"


def literal(value: Any) -> str:
    """One TOML value."""
    if hasattr(value, "item"):  # a number of numpy's
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(literal(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(k)} = {literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise UserError(f"{value!r} cannot be written to a configuration file; pass plain values.")
