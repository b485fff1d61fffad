"""Does every preset learn? Trains and evaluates through the command line, as a user would.

    python benchmarks/learning.py [--only ppo/CartPole-v1]

Each run is `covey train ALGO ENV --seed S`, then `covey eval` on 20 episodes it has never seen.
Wall seconds are those of the whole train command, from the start of the process to its end.
The rows are written to benchmarks/results/learning.json, in the place of older ones of that name.
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
    recipe: str = "serial"
    workers: int = 1  # or actors
    words: tuple[str, ...] = ()  # more of the command line

    @property
    def name(self) -> str:
        """As --only takes it."""
        parts = (self.algo, self.env, *(() if self.recipe == "serial" else (self.recipe,)))
        return "/".join((*parts, *(word for word in self.words if word != "--set")))

    def command(self, seed: int, folder: Path) -> list[str]:
        """What trains it."""
        flag = "--actors" if self.recipe == "apex" else "--workers"
        team = [] if self.recipe == "serial" else [flag, str(self.workers)]
        return [
            "train", self.algo, self.env, "--recipe", self.recipe, *team, *self.words,
            "--seed", str(seed), "--out", str(folder), "--quiet",
        ]  # fmt: skip


GOALS = [
    Goal("dqn", "CartPole-v1", 475, range(1, 6)),
    Goal("a2c", "CartPole-v1", 475, range(1, 6)),
    Goal("ppo", "CartPole-v1", 475, range(1, 6)),
    Goal("dqn", "Acrobot-v1", -100, range(1, 4)),
    Goal("a2c", "Acrobot-v1", -100, range(1, 4)),
    Goal("ppo", "Acrobot-v1", -100, range(1, 4)),
    Goal("ppo", "Pendulum-v1", -250, range(1, 4)),
    Goal("qrdqn", "CartPole-v1", 475, range(1, 6)),
    Goal("qrdqn", "LunarLander-v3", 200, range(1, 4)),
    Goal("ddpg", "Pendulum-v1", -200, range(1, 6)),
    Goal("d4pg", "Pendulum-v1", -200, range(1, 6)),
    Goal("a2c", "CartPole-v1", 475, range(1, 6), "a3c", 3),
    Goal("dqn", "CartPole-v1", 475, range(1, 6), "hogwild", 4),
    Goal("dqn", "CartPole-v1", 475, range(1, 6), "hogwild", 4, ("--set", "n_step=1")),
    Goal("dqn", "CartPole-v1", 475, range(1, 6), "apex", 2),
    Goal("qrdqn", "CartPole-v1", 475, range(1, 4), "apex", 2),
    Goal("qrdqn", "LunarLander-v3", 200, range(1, 4), "apex", 2),
    Goal("ddpg", "Pendulum-v1", -200, range(1, 6), "apex", 2),
    Goal("d4pg", "Pendulum-v1", -200, range(1, 6), "apex", 2),
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
    covey(*goal.command(seed, folder))
    seconds = time.perf_counter() - began
    words = ("--episodes", str(EPISODES), "--seed", str(EVAL_SEED), "--json")
    found = json.loads(covey("eval", str(folder), *words))
    *_, newest = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return {
        "name": goal.name,
        "seed": seed,
        "return": found["return_mean"],
        "env_steps": found["env_steps"],
        "episodes_per_worker": json.loads(newest)["episodes"] // goal.workers,
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
        f"{row['name']:<36} {row['seed']:>4} {row['return']:>8.1f} {row['env_steps']:>9,} "
        f"{row['episodes_per_worker']:>8,} {row['seconds']:>7.2f}  "
        f"{'ok' if row['ok'] else 'FAILED'}",
        flush=True,
    )


def main() -> int:
    """Run the goals, print the table, write it; 1 if any run fell short."""
    options = argparse.ArgumentParser(description="train and evaluate every preset")
    options.add_argument("--only", metavar="ALGO/ENV", help="one goal, e.g. ppo/CartPole-v1")
    goals = chosen(options.parse_args().only)
    print(f"{'goal':<36} {'seed':>4} {'return':>8} {'env steps':>9} {'episodes':>8} {'seconds':>7}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for goal in goals:
            for seed in goal.seeds:
                folder = Path(temporary) / f"{goals.index(goal)}-{seed}"
                rows.append(run(goal, seed, folder))
                show(rows[-1])
            write([row for row in rows if row["name"] == goal.name])
    good = sum(row["ok"] for row in rows)
    print(f"{good} of {len(rows)} runs reached their threshold")
    return 0 if good == len(rows) else 1


def write(rows: list[dict[str, Any]]) -> None:
    """The rows of one goal, in the place of its older ones."""
    RESULTS.parent.mkdir(exist_ok=True)
    older = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    order = [goal.name for goal in GOALS]
    kept = [row for row in older if row["name"] in set(order) - {rows[0]["name"]}]
    rows = sorted([*kept, *rows], key=lambda row: (order.index(row["name"]), row["seed"]))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
