"""covey's prioritized replay beside those of other libraries, in turns, in one run.

    python benchmarks/replays.py [--capacity 1048576] [--turns 30] [--peer-python PATH]

Each library is a process of its own with one thread, filled to the brim; they take turns of LOOPS
loops (64 rows in, 512 out, 512 revised). CPU microseconds of a loop, and how many times covey's is
contained in it. The rows are written to benchmarks/results/replays.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers import THREADS, peer_python

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "replays.json"
PACKAGES = (
    ("torch==2.13.0", "numpy"),
    ("cpprb==11.0.0", "tianshou==2.0.1", "stable-baselines3==2.9.2"),
)
PEERS = ("cpprb", "tianshou", "stable-baselines3")
LOOPS = 200


class Side:
    """A library in a process of its own."""

    def __init__(self, python: str, name: str, capacity: int) -> None:
        command = [python, str(HERE / "peer_replay.py"), name, str(capacity), str(LOOPS)]
        environ = {**os.environ, **THREADS}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )
        while (line := self._line()) != "ready":
            print(f"{name}: {line}", file=sys.stderr)

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return line.strip() if line else sys.exit("a library's process ended")

    def turn(self) -> float:
        """CPU microseconds of a loop."""
        assert self.process.stdin is not None
        print("go", file=self.process.stdin, flush=True)
        return 1e6 * float(self._line()) / LOOPS

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> int:
    options = argparse.ArgumentParser(description="replay buffers in turns")
    options.add_argument("--capacity", type=int, default=2**20)
    options.add_argument("--turns", type=int, default=30)
    options.add_argument("--peer-python", help="an environment that has the peers")
    given = options.parse_args()
    peer = given.peer_python or peer_python(PACKAGES, ".bench-venv-replay")
    sides = {"covey": Side(sys.executable, "covey", given.capacity)}
    sides |= {name: Side(peer, name, given.capacity) for name in PEERS}
    found: dict[str, list[float]] = {name: [] for name in sides}
    try:
        for _ in range(given.turns):
            for name, side in sides.items():
                found[name].append(side.turn())
    finally:
        for side in sides.values():
            side.end()
    rows = [row(name, found) for name in sides]
    for each in rows:
        print("{name:<18} {microseconds:8.1f} us   best {best:8.1f}   {of_covey:5.2f} x "
              "({low:.2f} to {high:.2f})".format(**each))  # fmt: skip
    RESULTS.write_text(
        json.dumps({"python": platform.python_version(), "capacity": given.capacity, "rows": rows},
                   indent=1) + "\n", encoding="utf-8",
    )  # fmt: skip
    return 0


def row(name: str, found: dict[str, list[float]]) -> dict[str, Any]:
    """What is typical of a library, turn by turn beside covey."""
    ratios = sorted(theirs / ours for theirs, ours in zip(found[name], found["covey"], strict=True))
    tenth = len(ratios) // 10
    return {
        "name": name, "microseconds": statistics.median(found[name]), "best": min(found[name]),
        "of_covey": statistics.median(ratios), "low": ratios[tenth], "high": ratios[-1 - tenth],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
