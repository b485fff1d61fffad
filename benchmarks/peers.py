"""covey beside stable-baselines3, both learning, in turns: ours, peer, ours, peer...

    python benchmarks/peers.py [ppo dqn-256 dqn-64 cold] [--pairs 5] [--peer-python PATH]

Every measurement is a process of its own with one thread. The first three say env steps per second
of the training loop, `cold` the seconds of a whole process from its start to a solved CartPole-v1.
A ratio above 1 is covey ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEER_SCRIPT = ROOT / "benchmarks" / "peer_sb3.py"
PEER_PACKAGES = (("torch==2.13.0", "numpy"), ("stable-baselines3==2.9.2",))
NAMES = ("ppo", "dqn-256", "dqn-64", "cold")
SOLVED = 475.0
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

# The same work for both. PPO: 8 environments x 32 steps, 20 updates of all 256 rows, networks of
# 64-64 tanh. DQN: 128 updates of 64 rows every 256 env steps. covey takes these 256 steps in 8
# environments where the peer has 1 by default. The peer counts its target updates in env steps and
# takes none between the 128 updates, so that its target in fact moves once per 128 updates: covey's
# target_every. The peer's first 128 updates come at env step 1,024; `warmup` 768 is the same.
OURS: dict[str, dict[str, Any]] = {
    "ppo": {
        "algo": "ppo", "steps": 25_600, "unroll": 32, "minibatch": 256, "epochs": 20,
        "lr": 1e-3, "gamma": 0.98, "lambda_": 0.8, "hidden": [64, 64],
    },
    "dqn": {
        "algo": "dqn", "steps": 12_000, "unroll": 32, "capacity": 100_000, "batch": 64,
        "warmup": 768, "reuse": 32.0, "lr": 2.3e-3, "gamma": 0.99, "n_step": 1, "double": False,
        "dueling": False, "target_every": 128, "eps_steps": 8_000, "eps_end": 0.04,
    },
}  # fmt: skip


def settings(name: str) -> dict[str, Any]:
    """What `covey.train` is called with for one of the speed benchmarks."""
    algo, _, width = name.partition("-")
    hidden = {"hidden": [int(width)] * 2} if width else {}
    quiet = {"eval_every": 0, "eval_episodes": 1, "checkpoint_every": 0, "quiet": True}
    # said here although they are the defaults: covey's preset for CartPole-v1 must not change them
    plain = {"until": "none", "normalize": False, "scale_reward": False, "anneal_updates": 0,
             "max_norm": 10.0 if algo == "dqn" else 0.5}  # fmt: skip
    both = {"env": "CartPole-v1", "num_envs": 8}
    return {**OURS[algo], **hidden, **quiet, **plain, **both}


def inside(name: str, seed: int) -> dict[str, float]:
    """Train covey in this process and time its task loop.

    That is all of its rounds with metrics and TensorBoard files; not imports, construction, and
    the checkpoint, evaluation and curve at the very end.
    """
    import covey
    from covey.task import Task

    seconds = []
    run = Task.run

    def timed(task: Task, **limits: Any) -> str:
        began = perf_counter()
        reason = run(task, **limits)
        seconds.append(perf_counter() - began)
        return reason

    Task.run = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        result = covey.train(**settings(name), seed=seed, threads=1, out=folder)
        last = (Path(folder) / "metrics.jsonl").read_text().splitlines()[-1]
    # After each episode gymnasium's vector CartPole spends one step on nothing but the reset: covey
    # counts it, the peer does not take it.
    env_steps = result.env_steps - json.loads(last)["episodes"]
    return {"seconds": seconds[0], "env_steps": env_steps, "updates": result.updates}


def run(command: list[str], folder: str) -> tuple[float, dict[str, Any]]:
    """Wall time of a process, and the JSON on its last line if there is any."""
    began = perf_counter()
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **THREADS}, capture_output=True, text=True
    )
    seconds = perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    last = done.stdout.strip().splitlines()[-1]
    return seconds, json.loads(last) if last.startswith("{") else {}


def measure(name: str, side: str, peer: str, seed: int) -> dict[str, float]:
    """One measurement of one side; `value` is a rate, or seconds for `cold`."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "cold" and side == "ours":
            return ours_cold(seed, folder)
        ours = [sys.executable, __file__, "--inside", name, "--seed", str(seed)]
        theirs = [peer, str(PEER_SCRIPT), name, str(seed)]
        seconds, found = run(ours if side == "ours" else theirs, folder)
    value = seconds if name == "cold" else found["env_steps"] / found["seconds"]
    return {"value": value, **found}


def ours_cold(seed: int, folder: str) -> dict[str, float]:
    """The command that users type, and, outside of the timing, what its policy is worth."""
    covey = [sys.executable, "-m", "covey"]
    seconds, _ = run([*covey, "train", "ppo", "CartPole-v1", "--seed", str(seed)], folder)
    _, found = run([*covey, "eval", "--json", "--seed", "12345"], folder)
    if found["return_mean"] < SOLVED:
        print(f"  seed {seed}: NOT solved, return {found['return_mean']:.1f}", flush=True)
    return {"value": seconds, "env_steps": found["env_steps"], "return": found["return_mean"]}


def compare(name: str, pairs: int, peer: str) -> dict[str, Any]:
    """Measure both sides in turns; each pair has a seed of its own."""
    unit = "s" if name == "cold" else "env steps/s"
    rows = []
    for seed in range(1, pairs + 1):
        ours, theirs = (measure(name, side, peer, seed) for side in ("ours", "peer"))
        ratio = ours["value"] / theirs["value"]
        ratio = 1 / ratio if name == "cold" else ratio
        rows.append({"seed": seed, "ours": ours, "peer": theirs, "ratio": ratio})
        values = f"covey {ours['value']:9,.2f}   peer {theirs['value']:9,.2f} {unit}"
        print(f"{name:<8} {seed:>3}   {values}   ratio {ratio:.2f}", flush=True)
    ratios = [row["ratio"] for row in rows]
    summary = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    told = "   ".join(f"{key} {value:.2f}" for key, value in summary.items())
    print(f"{name:<8} {told}\n", flush=True)
    return {"unit": unit, **summary, "pairs": rows}


def peer_python(
    packages_in_turn: tuple[tuple[str, ...], ...] = PEER_PACKAGES, name: str = ".bench-venv"
) -> str:
    """The peers' own environment, made the first time."""
    folder = ROOT / name
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        print(f"making the peer's environment in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for packages in packages_in_turn:
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        ready.touch()
    return str(python)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    from importlib.metadata import version

    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("covey", "torch", "numpy", "gymnasium")},
        "peer": PEER_PACKAGES[1][0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(NAMES)} (all)")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each side (5)")
    parser.add_argument("--peer-python", help="interpreter with stable-baselines3")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/peers.json")
    parser.add_argument("--inside", help=argparse.SUPPRESS)  # covey's side, one process
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(inside(args.inside, args.seed)))
        return
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"unknown {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    peer = args.peer_python or peer_python()
    found = {name: compare(name, args.pairs, peer) for name in args.names or NAMES}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"machine": machine(), "benchmarks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
