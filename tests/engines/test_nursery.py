"""The launcher's end of the zygote: it begins, gives birth, tells deaths and leaves nobody."""

import os
import select
import signal
import sys
import textwrap
import time

import cloudpickle
import pytest

from covey.engines import nursery as nursery_module
from covey.engines.nursery import Nursery
from covey.engines.place import MemberError
from covey.engines.wire import Wire, pair


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that the zygote can import."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    return write


@pytest.fixture
def nursery():
    one = Nursery()
    yield one
    one.end()


def job(num=1, **more):
    members = [("actor", index) for index in range(num)]
    return {"members": members, "seed": 1, "threads": 1, "preload": [], **more}


def returns(value):
    return cloudpickle.dumps(lambda team: value)


class Born:
    """A member asked for; its wire and its last words."""

    def __init__(self, nursery, rank=0):
        ours, theirs = pair()
        self.wire, words = Wire(ours), os.memfd_create("words")
        nursery.ask({"rank": rank, "generation": 0}, (theirs.fileno(), words))
        theirs.close()
        os.close(words)

    def close(self):
        self.wire.close()


def births(nursery, num):
    """(rank, pid, pidfd) of the next so many."""
    found = []
    while len(found) < num:
        found += [(m["rank"], m["born"], fds[0]) for m, fds in nursery.lines()]
    return found


def dead(pidfd, seconds=10):
    return bool(select.select([pidfd], [], [], seconds)[0])


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_it_begins_gives_birth_and_tells_how_they_ended(nursery):
    assert not nursery.ready
    nursery.begin(job(3), cloudpickle.dumps(lambda team: __import__("os")._exit(team.rank)))
    assert nursery.ready
    asked = [Born(nursery, rank) for rank in range(3)]
    for rank, pid, pidfd in births(nursery, 3):
        assert not dead(pidfd, 0)
        os.kill(pid, (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV)[rank])
        assert dead(pidfd)
        assert list(nursery.status(pid)) == []
        assert nursery.ended(pid) == -(9, 6, 11)[rank]
        os.close(pidfd)
    for one in asked:
        one.close()


def test_births_that_come_while_a_death_is_waited_for_are_handed_on(nursery):
    nursery.begin(job(2), returns(1))
    first = Born(nursery, 0)
    ((_, pid, pidfd),) = births(nursery, 1)
    second = Born(nursery, 1)
    os.kill(pid, signal.SIGKILL)
    assert dead(pidfd)
    between = list(nursery.status(pid))
    if not between:  # the death was told before the birth
        between = list(nursery.lines())
    ((message, fds),) = between
    assert message["rank"] == 1
    for fd in (pidfd, *fds):
        os.close(fd)
    first.close()
    second.close()


def test_the_end_takes_all_members_along(nursery):
    nursery.begin(job(4), returns(1))
    asked = [Born(nursery, rank) for rank in range(4)]
    born = births(nursery, 4)
    nursery.end()
    for _, pid, pidfd in born:
        assert dead(pidfd, 0)
        assert gone(pid)  # buried too
        os.close(pidfd)
    for one in asked:
        one.close()
    nursery.end()  # again


def test_one_that_never_began_ends(nursery):
    nursery.end()


def test_a_zygote_that_is_killed_is_told_and_takes_all_members_along(nursery):
    nursery.begin(job(2), returns(1))
    asked = [Born(nursery, rank) for rank in range(2)]
    born = births(nursery, 2)
    nursery._zygote.kill()
    with pytest.raises(
        MemberError, match=r"has ended \(out of memory, or killed\), and all members"
    ):
        list(nursery.lines())
    for _, _, pidfd in born:
        assert dead(pidfd)
        os.close(pidfd)
    for one in asked:
        one.close()
    reap_orphans()


def reap_orphans():
    """Members of a zygote that was killed come to this process."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
        except ChildProcessError:
            return


def test_a_zygote_that_hangs_is_killed(nursery, monkeypatch):
    monkeypatch.setattr(nursery_module, "END_SECONDS", 0.1)
    nursery.begin(job(), returns(1))
    nursery._zygote.send_signal(signal.SIGSTOP)
    nursery.end()
    assert nursery._zygote.returncode == -signal.SIGKILL


def test_one_that_says_nothing_of_a_death_is_not_waited_for_for_ever(nursery, monkeypatch):
    monkeypatch.setattr(nursery_module, "STATUS_SECONDS", 0.05)
    nursery.begin(job(), returns(1))
    with pytest.raises(MemberError, match=r"has said nothing for 0.05 s"):
        list(nursery.status(pid=1))


def test_one_that_ends_before_it_is_ready_says_its_status(nursery, module, capfd):
    bad = module("exits_at_once", "import sys; print('no licence', file=sys.stderr); sys.exit(7)")
    with pytest.raises(MemberError, match="ended with status 7 before it was ready"):
        nursery.begin(job(preload=[bad]), returns(1))
    assert "no licence" in capfd.readouterr().err


def test_one_that_is_not_ready_in_time_is_given_up(nursery, module, monkeypatch):
    monkeypatch.setattr(nursery_module, "START_SECONDS", 0.3)
    slow = module("slow_to_import", "import time; time.sleep(60)")
    monkeypatch.setattr(nursery_module, "END_SECONDS", 0.1)
    with pytest.raises(MemberError, match=r"was not ready after 0.3 s"):
        nursery.begin(job(preload=[slow]), returns(1))
    nursery.end()


THREADED = """
import sys, threading, time
if sys.argv == ["-c"]:  # in a zygote
    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
"""


def test_a_preload_that_starts_threads_is_refused_by_its_name(nursery, module):
    name = module("starts_a_thread", THREADED)
    with pytest.raises(MemberError, match=r"one of starts_a_thread starts threads when imported"):
        nursery.begin(job(preload=[name]), returns(1))


def test_a_program_that_starts_threads_when_imported_is_imported_by_each_member(nursery, module):
    module("program_with_thread", THREADED + "def main(team): return 1")
    import program_with_thread

    try:
        nursery.begin(job(), cloudpickle.dumps(program_with_thread.main))
    finally:
        del sys.modules["program_with_thread"]
    assert nursery.ready
    tasks = len(list(os.scandir(f"/proc/{nursery._zygote.pid}/task")))
    assert tasks == 1


def test_a_module_that_is_not_there_is_not_missed_yet(nursery):
    nursery.begin(job(preload=["no_such_module_at_all"]), returns(1))
    assert nursery.ready


def test_signals_of_the_users_terminal_do_not_reach_it(nursery):
    nursery.begin(job(), returns(1))
    assert os.getsid(nursery._zygote.pid) == nursery._zygote.pid  # a session of its own
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        nursery._zygote.send_signal(number)
    one = Born(nursery)
    ((_, pid, pidfd),) = births(nursery, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(pid, number)
    assert not dead(pidfd, 0.1)
    assert os.getpgid(pid) == pid  # what it starts ends with it
    os.close(pidfd)
    one.close()
