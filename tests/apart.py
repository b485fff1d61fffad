"""Functions run in a fresh process, without torch or threads, where a bare fork is safe.

There, `members` forks what a test wants beside each other, and `Deadly` ends a process half-way.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np

from covey.memory.bell import die_with_parent

HERE = Path(__file__).parent
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KILLED = -signal.SIGKILL
BEGIN = "import sys, apart; apart._begin(sys.stdin.buffer.read())"


def apart(function, *args, seconds=60):
    """What it returns, as JSON has it; its assertions are ours."""
    module = sys.modules[function.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        program = cloudpickle.dumps(partial(function, *args))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    done = subprocess.run(
        [sys.executable, "-c", BEGIN], input=program, capture_output=True, timeout=seconds,
        env={**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def become_subreaper():
    """Orphans of our children become children of this process, where they are seen."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _begin(program):
    value = cloudpickle.loads(program)()
    assert "torch" not in sys.modules
    print(json.dumps(value))


def start(action, *args):
    """A process that does it; its pid."""
    assert len(list(Path("/proc/self/task").iterdir())) == 1
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            die_with_parent(parent)  # else a failure there would leave it waiting for what we print
            action(*args)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def end(pid):
    """How it ended: its status, or -9 if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dies(action, *args):
    """Do it in a process of its own; how that ended."""
    return end(start(action, *args))


def kill(pid):
    """End it in the middle of whatever it does."""
    os.kill(pid, signal.SIGKILL)
    assert end(pid) == KILLED


def all_end(pids):
    """Everybody ends well."""
    assert [end(pid) for pid in pids] == [0] * len(pids)


class Deadly(dict):
    """An item that kills whoever looks at its fields for the `at`-th time."""

    def __init__(self, item, at):
        super().__init__(item)
        self.left = at

    def __getitem__(self, key):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(key)


class DeadlyWord:
    """In the place of a `Word`: kills whoever stores when `left`, common to all, comes to 0."""

    left = 0

    def __init__(self, word):
        self.word = word

    @property
    def value(self):
        return self.word.value

    @value.setter
    def value(self, value):
        DeadlyWord.left -= 1
        if DeadlyWord.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.word.value = value


def full_of(number, *shape, dtype=np.int64):
    """An array of one number: a mixture of two of them is seen at once."""
    return np.full(shape, number, dtype)


def whole(array):
    """The one number that it is full of."""
    first = array.reshape(-1)[0]
    assert (array == first).all(), np.unique(array)
    return int(first)
