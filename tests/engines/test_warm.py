"""What is prepared before members are forked: enough, and nothing that a fork would break."""

import json
import subprocess
import sys

import pytest

LOOK = """
import json, os, sys
import covey.engines.warm
import torch
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")), "cuda": torch.cuda.is_initialized(),
    "modules": [name for name in sys.modules if name.startswith("covey.")],
    "compiler": "torch._dynamo" in sys.modules,
    "sockets": [l for n in os.listdir("/proc/self/fd") if "socket" in (l := link(n))],
}))
""".replace(
    "link(n)", "os.readlink(f'/proc/self/fd/{n}') if os.path.islink(f'/proc/self/fd/{n}') else ''"
)


@pytest.fixture(scope="module")
def warmed():
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=120,
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_fork_of_it_works(warmed):
    assert warmed["threads"] == 1
    assert not warmed["cuda"]
    assert warmed["sockets"] == []


def test_what_members_use_is_imported_and_no_more(warmed):
    assert {"covey.algos.dqn", "covey.algos.a2c", "covey.steps", "covey.engines.member",
            "covey.infer", "covey.vector"} <= set(warmed["modules"])  # fmt: skip
    assert not warmed["compiler"]


@pytest.mark.slow
def test_a_member_imports_next_to_nothing():
    """What it needs is there: else 128 members would each do it again."""
    from covey.engines import processes

    def main(team):
        import sys

        before = set(sys.modules)
        import covey
        from covey import steps

        env = covey.make_env("CartPole-v1", 2, team.seed)
        agent = team.agent(covey.DQN, env)
        steps.Collector(env, agent, 4).collect(0)
        env.close()
        return sorted(set(sys.modules) - before)

    (new,) = processes.run(main, seed=1, members={"actor": 1})
    assert len(new) <= 3, new
