"""Where numbers go: lines of JSON, and TensorBoard's event files."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from covey.envs import Episode
from covey.types import Metrics, Tree


class Returns:
    """The newest training episodes, and how many there ever were."""

    def __init__(self, window: int = 100) -> None:
        self.window = window
        self.newest: list[Episode] = []
        self.count = 0

    def add(self, episodes: list[Episode]) -> None:
        """More finished episodes."""
        self.count += len(episodes)
        self.newest = (self.newest + episodes)[-self.window :]

    def summary(self) -> Metrics:
        """Mean, deviation and length over the newest; empty before the first."""
        if not self.newest:
            return {"episodes": 0}
        returns = [episode.undiscounted_return for episode in self.newest]
        return {
            "episodes": self.count,
            "return_mean": float(np.mean(returns)),
            "return_std": float(np.std(returns)),
            "length_mean": float(np.mean([episode.length for episode in self.newest])),
        }

    def state(self) -> Tree:
        """The window and the count."""
        return {"newest": [list(episode) for episode in self.newest], "count": self.count}

    def restore(self, state: Tree) -> None:
        """Take them back."""
        self.newest = [Episode(float(r), int(n)) for r, n in state["newest"]]
        self.count = state["count"]


class MetricsFile:
    """`metrics.jsonl`: one line of numbers a time, flushed."""

    def __init__(self, path: Path, resume_at: int | None = None) -> None:
        if resume_at is not None:  # what was written after the checkpoint will be written again
            kept = [row for row in read_metrics(path) if row.get("env_steps", 0) <= resume_at]
            path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        """Append a line; numbers that are not finite become null."""
        plain = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
        }
        self._file.write(json.dumps(plain) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows so far; a last line that was cut off by a kill is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


class TensorBoard:
    """TensorBoard's event file, one scalar per number; written here and now, without a thread."""

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        folder.mkdir(exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}.{time.time_ns()}")
        if purge_step is not None:  # hides what was written after the checkpoint
            log = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(step=purge_step + 1, session_log=log))

    def write(self, row: dict[str, Any], env_steps: int) -> None:
        """All numbers of a row."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if isinstance(value, int | float) and math.isfinite(value) and name != "env_steps"
        ]
        summary = self._summary(value=values)
        self._writer.write_event(
            self._event(wall_time=time.time(), step=env_steps, summary=summary)
        )
        self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
