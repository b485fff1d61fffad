"""Runs of an hour: their curves, and what every member's memory did meanwhile.

    python benchmarks/long.py halfcheetah FOLDER [--peer ROWS]
    python benchmarks/long.py pong FOLDER

Trains by the preset through the command line, or goes on with FOLDER where it stopped: Ctrl-C is
passed on, and the same command again resumes. When the run is over, its curve and memory go to
benchmarks/results/long.json, beside what `peer_td3.py` printed, if a file of that is given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "long.json"
COVEY = [sys.executable, "-m", "covey"]
EVERY_SECONDS = 30.0
APEX = ["--recipe", "apex", "--actors", "2"]
RUNS = {
    "halfcheetah": ["d4pg", "HalfCheetah-v5", *APEX],
    "pong": ["dqn", "ALE/Pong-v5", *APEX, "--set", "half=true"],  # the processor has bfloat16
}


def lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line[:1] == "{"]


def private_mib(pid: int) -> float | None:
    """What a process has that no other shares; None once it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8")
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in rollup.splitlines() if "Private_" in line) / 1024


def members(folder: Path) -> dict[str, int]:
    """The newest process of each member."""
    started = [row for row in lines(folder / "events.jsonl") if row["event"] == "started"]
    return {row["member"]: row["pid"] for row in started}


def train(words: list[str], folder: Path) -> int:
    """Until the command ends, a line of memory every now and then; its exit status."""
    resumes = (folder / "checkpoints").is_dir()
    command = ["resume", str(folder)] if resumes else ["train", *words, "--out", str(folder)]
    running = subprocess.Popen([*COVEY, *command])
    while True:
        try:
            return running.wait(EVERY_SECONDS)
        except subprocess.TimeoutExpired:
            found = {name: private_mib(pid) for name, pid in members(folder).items()}
            found["launcher"] = private_mib(running.pid)
            row = {name: round(mib, 1) for name, mib in found.items() if mib is not None}
            with (folder / "memory.jsonl").open("a") as file:
                print(json.dumps({"time": round(time.time()), **row}), file=file)
        except KeyboardInterrupt:
            pass  # the command has it too, and saves


def result(name: str, folder: Path, peer: Path | None) -> dict[str, Any]:
    """The curve of all greedy evaluations, and each member's memory: first, half-way, last."""
    rows, memory = lines(folder / "metrics.jsonl"), lines(folder / "memory.jsonl")
    curve = [row for row in rows if row.get("eval_return_mean") is not None]
    kept = ("env_steps", "updates", "seconds", "eval_return_mean", "eval_return_std")
    events = lines(folder / "events.jsonl")
    found = {
        "command": " ".join(["covey", "train", *RUNS[name]]),
        "curve": [{key: round(row[key], 1) for key in kept} for row in curve],
        "resumed_at": [row["env_steps"] for row in events if row["event"] == "resume"],
        "died": [row for row in events if row["event"] == "died"],
        "memory_mib": {
            member: [memory[i].get(member) for i in (0, len(memory) // 2, -1)]
            for member in (memory[-1] if memory else {})
            if member != "time"
        },
    }
    return {**found, "peer": lines(peer)} if peer else found


def main() -> int:
    options = argparse.ArgumentParser(description="a run of an hour, recorded")
    options.add_argument("name", choices=RUNS)
    options.add_argument("folder", type=Path)
    options.add_argument("--peer", type=Path, help="what peer_td3.py printed")
    chosen = options.parse_args()
    status = train(RUNS[chosen.name], chosen.folder)
    if not (chosen.folder / "metrics.jsonl").exists():
        return status
    found = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    found[chosen.name] = result(chosen.name, chosen.folder, chosen.peer)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
