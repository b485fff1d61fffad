"""Does every preset learn? Trains and evaluates through the command line, as a user would.

    python benchmarks/learning.py [--only ppo/CartPole-v1]

Each run is `covey train ALGO ENV --seed S`, then `covey eval` on 20 episodes it has never seen.
Wall seconds are those of the whole train command, from the start of the process to its end.
The rows of a complete run are written to benchmarks/results/learning.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results" / "learning.json"
COVEY = [sys.executable, "-m", "covey"]
EPISODES = 20
EVAL_SEED = 12345


class Goal(NamedTuple):
    """What one algorithm must reach on one environment, on every seed."""

    algo: str
    env: str
    threshold: float
    seeds: range

    @property
    def name(self) -> str:
        """As --only takes it."""
        return f"{self.algo}/{self.env}"


GOALS = [
    Goal("dqn", "CartPole-v1", 475, range(1, 6)),
    Goal("a2c", "CartPole-v1", 475, range(1, 6)),
    Goal("ppo", "CartPole-v1", 475, range(1, 6)),
    Goal("dqn", "Acrobot-v1", -100, range(1, 4)),
    Goal("a2c", "Acrobot-v1", -100, range(1, 4)),
    Goal("ppo", "Acrobot-v1", -100, range(1, 4)),
    Goal("ppo", "Pendulum-v1", -250, range(1, 4)),
]


def covey(*words: str) -> str:
    """Run one command; what it printed comes back."""
    done = subprocess.run([*COVEY, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"covey {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def run(goal: Goal, seed: int, folder: Path) -> dict[str, Any]:
    """Train on one seed, then look at fresh episodes."""
    began = time.perf_counter()
    covey("train", goal.algo, goal.env, "--seed", str(seed), "--out", str(folder), "--quiet")
    seconds = time.perf_counter() - began
    words = ("--episodes", str(EPISODES), "--seed", str(EVAL_SEED), "--json")
    found = json.loads(covey("eval", str(folder), *words))
    return {
        "algo": goal.algo,
        "env": goal.env,
        "seed": seed,
        "return": found["return_mean"],
        "env_steps": found["env_steps"],
        "seconds": round(seconds, 2),
        "threshold": goal.threshold,
        "ok": found["return_mean"] >= goal.threshold,
    }


def chosen(only: str | None) -> list[Goal]:
    """All goals, or the one of that name."""
    goals = [goal for goal in GOALS if only in (None, goal.name)]
    if not goals:
        sys.exit(f"no goal {only!r}; there are: {', '.join(goal.name for goal in GOALS)}")
    return goals


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    print(
        f"{row['algo']:<5} {row['env']:<12} {row['seed']:>4} {row['return']:>8.1f} "
        f"{row['env_steps']:>9,} {row['seconds']:>7.2f}  {'ok' if row['ok'] else 'FAILED'}",
        flush=True,
    )


def main() -> int:
    """Run the goals, print the table, write it; 1 if any run fell short."""
    options = argparse.ArgumentParser(description="train and evaluate every preset")
    options.add_argument("--only", metavar="ALGO/ENV", help="one goal, e.g. ppo/CartPole-v1")
    goals = chosen(options.parse_args().only)
    print(f"{'algo':<5} {'env':<12} {'seed':>4} {'return':>8} {'env steps':>9} {'seconds':>7}")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for goal in goals:
            for seed in goal.seeds:
                folder = Path(temporary) / f"{goal.algo}-{goal.env}-{seed}"
                rows.append(run(goal, seed, folder))
                show(rows[-1])
    good = sum(row["ok"] for row in rows)
    print(f"{good} of {len(rows)} runs reached their threshold")
    if len(goals) == len(GOALS):  # a part does not replace the whole table
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
