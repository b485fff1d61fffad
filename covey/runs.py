"""A run is a folder: configuration, metrics, events, checkpoints, a curve and a trace."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from covey import checkpoint
from covey.config import TrainConfig, to_toml
from covey.errors import UserError
from covey.metrics import MetricsFile, TensorBoard
from covey.types import Spec, Tree
from covey.views.plot import save_curve

ROOT = Path("runs")


class Run:
    """An open run folder; one process at a time holds it."""

    def __init__(self, folder: Path, config: TrainConfig, resume_at: int | None = None) -> None:
        self.folder, self.config = folder, config
        self.checkpoints = folder / "checkpoints"
        self._lock = _take_lock(folder)
        checkpoint.prune(self.checkpoints, keep=1_000_000)  # only what an interrupted save left
        if resume_at is not None:
            checkpoint.set_aside(self.checkpoints, newer_than=resume_at)
        self._metrics = MetricsFile(folder / "metrics.jsonl", resume_at)
        self._tensorboard = TensorBoard(folder / "tensorboard", resume_at)
        self._events = (folder / "events.jsonl").open("a", encoding="utf-8")

    @classmethod
    def create(cls, config: TrainConfig, out: Path | None) -> Run:
        """A new folder: `out`, or the next free number below runs/<env>/."""
        text = to_toml(config, comments=True)
        folder = _new_folder(config) if out is None else _own_folder(out)
        try:
            (folder / "config.toml").write_text(text, encoding="utf-8")
            return cls(folder, config)
        except BaseException:  # Ctrl-C, while TensorBoard's writer is imported
            _remove(folder)
            raise

    def log(self, row: dict[str, Any]) -> None:
        """One line of metrics."""
        self._metrics.write(row)
        self._tensorboard.write(row, row["env_steps"])

    def event(self, kind: str, **what: Any) -> None:
        """One thing that happened: start, resume, checkpoint, stop..."""
        row = {"time": round(time.time(), 3), "event": kind, **what}
        self._events.write(json.dumps(row) + "\n")
        self._events.flush()

    def trace(self, spans: Mapping[str, list[tuple[str, float, float]]]) -> None:
        """The newest spans of every member's steps, to open in Perfetto or chrome://tracing."""
        events: list[dict[str, Any]] = []
        for number, (member, of) in enumerate(spans.items()):
            events.append({"name": "process_name", "ph": "M", "pid": number,
                           "args": {"name": member or "covey"}})  # fmt: skip
            events += [
                {"name": name, "ph": "X", "pid": number, "tid": 0,
                 "ts": began * 1e6, "dur": (ended - began) * 1e6}
                for name, began, ended in of
            ]  # fmt: skip
        (self.folder / "trace.json").write_text(json.dumps({"traceEvents": events}))

    def plot(self) -> None:
        """The curve so far."""
        c = self.config
        save_curve(self.folder, f"{c.algo} ({c.recipe}) on {c.env}, seed {c.seed}")

    def close(self) -> None:
        """Close all files and let others have the folder."""
        self._metrics.close()
        self._tensorboard.close()
        self._events.close()
        os.close(self._lock)

    def discard(self) -> None:
        """Close, and remove a folder that holds nothing worth keeping."""
        self.close()
        if not checkpoint.steps(self.checkpoints):
            _remove(self.folder)


def save(
    folder: Path, config: TrainConfig, tree: Tree, spec: Spec, env_steps: int,
    tell: Callable[..., None],
) -> Path | None:  # fmt: skip
    """A checkpoint of a run; a full disk is told and survived, the older ones stay."""
    about = {
        "version": version("covey"),
        "env": config.env,
        "algo": config.algo,
        "spec": spec.signature(),
    }
    checkpoints = folder / "checkpoints"
    before = checkpoint.steps(checkpoints)
    try:
        path = checkpoint.save(checkpoints, env_steps, tree, about)
    except OSError as error:
        tell("checkpoint_failed", env_steps=env_steps, error=str(error))
        return None
    if path not in before:
        tell("checkpoint", env_steps=env_steps, path=path.name)
    checkpoint.prune(checkpoints, config.keep)
    return path


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for parent in folder.parents:  # runs/<env> and runs, where they were made for this
        if folder.parts[0] != ROOT.name or parent == Path() or any(parent.iterdir()):
            break
        parent.rmdir()


def _new_folder(config: TrainConfig) -> Path:
    root = ROOT / config.env.replace("/", "-")
    name = f"{config.algo}-{config.recipe}"
    number = 1
    while True:
        folder = root / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise _unwritable(folder, error) from None


def _own_folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        holder = _holder(out)
        if holder is not None:
            raise UserError(
                f"{out} is in use by another run (process {holder}). Choose another --out."
            )
        if any(out.iterdir()):
            raise UserError(
                f"{out} is not empty. Choose another --out, or go on with: covey resume {out}"
            )
        probe = out / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _unwritable(out, error) from None
    return out


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write to {folder}: {error.strerror}. Choose another folder with --out."
    )


def _holder(folder: Path) -> int | None:
    """The process that holds the folder's lock."""
    lock = folder / "lock"
    if not lock.exists():
        return None
    with lock.open("r+") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return int(opened.read().strip() or 0)
    return None


def _take_lock(folder: Path) -> int:
    """The kernel frees it with the process that holds it, however that dies."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode().strip()
        os.close(descriptor)
        raise UserError(
            f"{folder} is in use by another run (process {holder}). Wait for it or stop it."
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def find(name: str | None, root: Path = ROOT) -> Path:
    """A run by its folder, by the end of its name (`ppo-serial-3`, `3`), or the newest one."""
    if name is not None and (Path(name) / "config.toml").exists():
        return Path(name)
    folders = sorted((c.parent for c in root.glob("*/*/config.toml")), key=_changed, reverse=True)
    if name is None or name == "latest":
        saved = [f for f in folders if checkpoint.steps(f / "checkpoints")]
        if not saved:
            raise UserError(
                f"no run with a checkpoint below {root}/. Train one: covey train dqn CartPole-v1"
            )
        return saved[0]
    found = [f for f in folders if f.name == name or f.name.endswith(f"-{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(str(f) for f in found[:6])
        raise UserError(f"'{name}' names {len(found)} runs: {listed}. Give the folder.")
    recent = ", ".join(str(f) for f in folders[:4]) or f"none below {root}/"
    raise UserError(f"no run '{name}'. Newest: {recent}. Give the folder of a run.")


def _changed(folder: Path) -> float:
    return max((p.stat().st_mtime for p in folder.glob("*")), default=0.0)
