"""What all tests share: the environments for tests, the command line, and tidiness."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


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
def tidy():
    """No thread, file descriptor or signal handler is left behind."""
    threads, before, handler = (
        threading.active_count(), _descriptors(), signal.getsignal(signal.SIGINT),
    )  # fmt: skip
    yield
    assert signal.getsignal(signal.SIGINT) is handler
    assert threading.active_count() <= threads, threading.enumerate()
    left = {d: t for d, t in _descriptors().items() if d not in before and "/runs/" in t}
    assert not left


def _descriptors():
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except OSError:
            continue
    return found
