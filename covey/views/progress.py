"""The live line: redrawn in place on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
from time import monotonic
from typing import Any, TextIO

PLAIN_EVERY_SECONDS = 5.0
DRAWN_EVERY_SECONDS = 0.2


class Progress:
    """Shows how far a run is; `quiet` shows nothing."""

    def __init__(self, total: int, stream: TextIO | None = None, quiet: bool = False) -> None:
        self.total, self.quiet = total, quiet
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self._began = monotonic()
        self._first: int | None = None
        self._shown = -float("inf")
        self._drawn = False

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        end = "\r\x1b[K" if self._drawn else ""
        print(f"{end}{text}", file=self.stream, flush=True)
        self._drawn = False

    def show(self, row: dict[str, Any], best: float | None) -> None:
        """The newest numbers, unless the last ones have not been read yet."""
        now = monotonic()
        if self._first is None:
            self._first = row["env_steps"]
        wait = DRAWN_EVERY_SECONDS if self.live else PLAIN_EVERY_SECONDS
        if self.quiet or now - self._shown < wait:
            return
        self._shown = now
        text = line(row, self.total, self._remaining(row["env_steps"], now), best)
        if not self.live:
            print(text, file=self.stream, flush=True)
            return
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", file=self.stream, flush=True)
        self._drawn = True

    def _remaining(self, env_steps: int, now: float) -> float | None:
        done = env_steps - (self._first or 0)
        if done <= 0:
            return None
        return (self.total - env_steps) * (now - self._began) / done

    def close(self) -> None:
        """Leave the line and go to the next."""
        if self._drawn:
            print(file=self.stream, flush=True)
            self._drawn = False


def line(row: dict[str, Any], total: int, remaining: float | None, best: float | None) -> str:
    """` 41%  41k/100k  ETA 0:35  return 187 +- 12  eval best 231  61k env steps/s ...`."""
    share = min(100, 100 * row["env_steps"] // total)
    parts = [f"{share:3d}%", f"{short(row['env_steps'])}/{short(total)}"]
    if remaining is not None:
        parts.append(f"ETA {clock(remaining)}")
    if "return_mean" in row:
        parts.append(f"return {row['return_mean']:.4g} +- {row['return_std']:.3g}")
    if best is not None:
        parts.append(f"best eval {best:.4g}")
    acting = f"{short(row['env_steps_per_second'])} env steps/s"
    learning = f"{short(row['updates_per_second'])} updates/s"
    if "replay.rows" in row and "weights.lag" in row:
        stored = f"replay {short(row['replay.rows'])}"
        parts.append(f"actors {acting} | {stored} | learner {learning}")
    else:
        parts += [acting, learning]
    return "  ".join(parts)


def short(number: float) -> str:
    """950, 41k, 2.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """0:35, 12:07, 3:00:00."""
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
