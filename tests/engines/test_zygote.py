"""The process that all members are born from, and what becomes of theirs."""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading

import cloudpickle
import pytest
from apart import apart

from covey.engines import processes, zygote
from covey.engines.care import Care
from covey.engines.place import MemberError
from covey.engines.wire import Wire, pair

LIGHT = ("covey.team", "covey.task")


def run(main, care=Care(replace=()), hear=None, **members):  # noqa: B008  frozen
    return processes.run(main, seed=1, members=members, care=care, hear=hear, preload=LIGHT)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_job_is_read_in_pieces_of_any_size(size):
    ours, theirs = pair()
    job, program = {"size": 700, "text": "a\u2028b"}, bytes(range(250)) * 2 + bytes(200)
    data = json.dumps(job).encode() + b"\n" + program

    def send():
        for at in range(0, len(data), size):
            ours.sendall(data[at : at + size])

    thread = threading.Thread(target=send)
    thread.start()
    with ours, theirs:
        assert zygote.read_job(theirs.fileno()) == (job, program)
        thread.join(10)


@pytest.mark.parametrize("data", [b"", b'{"size": 9', b'{"size": 9}\n', b'{"size": 9}\n12345678'])
def test_a_launcher_that_goes_before_the_job_is_told_leaves_nobody(data):
    ours, theirs = pair()
    ours.sendall(data)
    ours.close()
    with theirs, pytest.raises(SystemExit) as caught:
        zygote.read_job(theirs.fileno())
    assert caught.value.code == 1


def test_clean_is_one_thread():
    def look():
        import threading

        alone = zygote.clean()
        over = threading.Event()
        thread = threading.Thread(target=over.wait)
        thread.start()
        accompanied = zygote.clean()
        over.set()
        thread.join()
        return alone, accompanied

    assert apart(look) == [True, False]


def test_what_is_wrong_with_a_program_is_not_said_here():
    zygote.load(b"no pickle at all")
    zygote.load(cloudpickle.dumps(None))


def test_a_program_is_imported_once_for_all(tmp_path, monkeypatch, capfd):
    (tmp_path / "heavy_program.py").write_text(
        textwrap.dedent("""
        import os
        import sys

        print("imported by a zygote" if sys.argv == ["-c"] else "imported here")
        PID = os.getpid()

        def main(team):
            return [PID, os.getppid()]
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    import heavy_program

    try:
        found = run(heavy_program.main, actor=5)
    finally:
        del sys.modules["heavy_program"]
    assert len({imported for imported, _ in found}) == 1
    assert all(imported == parent for imported, parent in found)
    told = capfd.readouterr().out
    assert told.splitlines() == ["imported here", "imported by a zygote"]


def test_a_fork_that_fails_is_told_and_nothing_is_kept():
    def refuse():
        def no_more():
            raise BlockingIOError(11, "Resource temporarily unavailable")

        os.fork = no_more
        ours, theirs = (Wire(end_) for end_ in pair())
        fds = [os.memfd_create("a"), os.memfd_create("b")]
        zygote.Births(ours, {}, b"")._bear({"rank": 4, "generation": 0}, fds, ())
        closed = not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds)  # noqa: PTH110
        return [message for message, _ in theirs.lines()], closed

    (told,), closed = apart(refuse)
    assert told == {"unborn": 4, "error": "[Errno 11] Resource temporarily unavailable"}
    assert closed


def sleeps(team):
    """Start a process of one's own that would sleep for ever, and say its number."""
    import subprocess

    return subprocess.Popen(["sleep", "1000"]).pid


def gone(pid):
    """It has ended; as an orphan it came to this process, which buries it."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not os.path.exists(f"/proc/{pid}")  # noqa: PTH110


def test_what_a_member_started_ends_with_it(wait_for):
    def main(team):
        return sleeps(team)

    for pid in run(main, actor=2):
        wait_for(lambda pid=pid: gone(pid), "its child to end", 5)


@pytest.mark.parametrize("how", ["killed", "fails", "forks"])
def test_what_a_member_started_ends_with_it_however_that_was(how, wait_for):
    def main(team):
        if how == "forks":
            child = os.fork()
            if child == 0:
                signal.pause()
        else:
            child = sleeps(team)
        team.post.tell("child", pid=child)
        if how == "fails":
            raise ZeroDivisionError
        os.kill(os.getpid(), signal.SIGKILL)

    children = []
    with pytest.raises(MemberError):
        run(main, actor=1, hear=lambda kind, **what: kind == "child" and children.append(what))
    wait_for(lambda: gone(children[0]["pid"]), "its child to end", 5)


def test_a_child_that_holds_on_to_everything_holds_up_nobody(wait_for):
    """It has inherited its parent's wire, so nobody sees the end of that."""

    def main(team):
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)  # on purpose
            signal.pause()
        team.post.tell("child", pid=child)
        if team.index == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    heard = []
    with pytest.raises(MemberError, match="actor 0 failed: killed by signal 9"):
        run(main, actor=1, hear=lambda kind, **what: heard.append((kind, what)))
    child = dict(heard)["child"]["pid"]
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: gone(child), "the child to end", 5)


LAUNCHER = """
import os, signal, sys
from covey.engines import processes
from covey.engines.care import Care

def main(team):
    import subprocess
    child = subprocess.Popen(["sleep", "1000"]).pid
    team.post.tell("here", pids=[os.getpid(), os.getppid(), child])
    team.waits.until(lambda: False, lambda: "nothing", 1000)

def hear(kind, pids=(), **what):
    if kind == "here":
        print(*pids, flush=True)

processes.run(main, seed=1, members={"actor": 3}, hear=hear, preload=("covey.team", "covey.task"))
"""


@pytest.mark.parametrize("also_copied", [False, True])
def test_a_launcher_that_is_killed_leaves_no_process(also_copied, wait_for):
    """Not the zygote, no member, and nothing that members started."""
    text = LAUNCHER
    if also_copied:  # a process that has a copy of the launcher's end of every wire
        fork = (
            "if not hasattr(hear, 'copy'):\n        hear.copy = os.fork() or signal.pause()\n    "
        )
        text = text.replace("if kind", f"{fork}if kind")
    launcher = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    lines = [launcher.stdout.readline().split() for _ in range(3)]
    pids = {int(pid) for line in lines for pid in line}
    assert len(pids) == 3 + 1 + 3
    watched = [os.pidfd_open(pid) for pid in pids]
    launcher.kill()
    for pidfd in watched:
        assert select.select([pidfd], [], [], 1.0)[0], "it lives on"
        os.close(pidfd)
    if also_copied:
        os.killpg(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    wait_for(bury_all, "the orphans", 5)


def bury_all():
    """Orphans come to this process."""
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return False
    except ChildProcessError:
        return True


def test_members_have_nothing_open_but_their_own():
    def main(team):
        from pathlib import Path

        found = [(int(p.name), str(p.readlink())) for p in Path("/proc/self/fd").iterdir()
                 if p.is_symlink() and p.exists()]  # fmt: skip
        return sorted(what for number, what in found if number > 2 and "/fd" not in what)

    for mine in run(main, actor=3):
        kinds = {what.partition(":[")[0].partition(" ")[0] for what in mine}
        assert kinds == {"/memfd:covey", "/memfd:covey-words", "socket"}, mine
        assert len(mine) == 4  # of memory, one is the mapping's own


def test_nothing_listens():
    """Of all its sockets each is one end of a pair without a name."""

    def main(team):
        from pathlib import Path

        links = [str(p.readlink()) for p in Path("/proc/self/fd").iterdir() if p.is_symlink()]
        inodes = [link[8:-1] for link in links if link.startswith("socket:")]

        def table(name):
            rows = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
            return [row.split() for row in rows]

        unix = [row for row in table("unix") if row[6] in inodes]
        named = [row for row in unix if len(row) > 7 or row[3] != "00000000"]  # or they listen
        network = [row for name in ("tcp", "tcp6", "udp", "udp6") for row in table(name)
                   if row[9] in inodes]  # fmt: skip
        return [len(inodes), named, network]

    assert run(main, actor=2) == [[1, [], []]] * 2
