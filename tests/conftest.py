"""What all tests share: the environments for tests, the command line, and tidiness."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from apart import become_subreaper

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# Folders and files whose tests start processes or train; `make check` leaves them to `make test`.
LONG = {
    "bench", "conform", "engines", "faults", "links", "recipes", "test_apply.py",
    "test_examples.py", "test_frames.py", "test_resume.py", "test_ring.py", "test_session.py",
    "test_training.py",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if not LONG.isdisjoint(item.path.relative_to(HERE).parts):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def covey_cli(tmp_path):
    """Run the command line as a user does: a process of its own, in an empty folder."""

    def run(*words, **more):
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        command = [sys.executable, "-m", "covey", *map(str, words)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
            **more,
        )  # fmt: skip

    return run


@pytest.fixture
def start_cli(tmp_path):
    """Start the command line and leave it running; ended with the test."""
    started = []

    def run(*words, **more):
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        process = subprocess.Popen(
            [sys.executable, "-m", "covey", *map(str, words)],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, **more,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def wait_for():
    """Wait for a condition, with a deadline."""

    def wait(condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
            time.sleep(0.01)

    return wait


@pytest.fixture(autouse=True)
def hygiene():
    """Nothing is left behind: process, zombie, thread, descriptor, shared memory, handler."""
    if "torch" in sys.modules:  # begin as the first test did; threads that wait for work burn cores
        sys.modules["torch"].set_num_threads(1)
    before = Left()
    yield
    more = Left().beyond(before)
    if more:
        gc.collect()  # a mapping holds a descriptor until its last array is gone
    deadline = time.monotonic() + SETTLE_SECONDS
    while more and (more := Left().beyond(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not more


class Left:
    """What this process holds now, and its children; orphans of theirs come to it."""

    def __init__(self):
        self.children = set(children())
        self.threads = set(threading.enumerate())
        self.descriptors = set(descriptors())
        self.shared = {p.name for p in Path("/dev/shm").iterdir()}
        self.handlers = {(n, signal.getsignal(n)) for n in HANDLED}

    def beyond(self, other):
        """What came since."""
        found = {name: mine - getattr(other, name) for name, mine in vars(self).items()}
        if found["shared"]:
            found["shared"] -= used_by_others()
        return {name: more for name, more in found.items() if more}


SETTLE_SECONDS = 1.0
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)


def children():
    """(pid, command, state) of the processes whose parent is this one, zombies too."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # none at all: nothing to look for in a long list
        return
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, parent = after.split()[:2]
        pid, _, command = before.partition(" (")
        if int(parent) == os.getpid():
            yield int(pid), command, state if state == "Z" else ""


def descriptors():
    """(number, target) of what is open: files, sockets, memory, pidfds."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            yield entry.name, str(entry.readlink())
        except OSError:  # the one that lists this folder
            continue


def used_by_others():
    """Names of shared memory that other programs of this machine have just now."""
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if int(maps.parent.name) != os.getpid():
            with suppress(OSError):
                words = (line.split(maxsplit=5) for line in maps.read_text().splitlines())
                used |= {Path(w[5]).name for w in words if w[5:] and "/dev/shm/" in w[5]}
    return used


become_subreaper()
