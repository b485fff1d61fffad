"""A seat as the launcher sees it, over processes that really live and die."""

import os
import selectors
import signal
import subprocess
import sys

import pytest

from covey.engines.care import Care, Health
from covey.engines.place import MemberError, Place
from covey.engines.wire import Wire, pair
from covey.errors import UserError
from covey.memory import pulse


def place(**more):
    return Place(**{
        "rank": 3, "role": "actor", "index": 2, "replaceable": True, "keeps": False,
        "health": Health(Care()), **more,
    })  # fmt: skip


@pytest.fixture
def lived_in():
    """A place with a process that waits for the end of its input."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    one = place(pid=process.pid, pidfd=os.pidfd_open(process.pid))
    one.words = os.memfd_create("words")
    yield one, process
    process.kill()
    process.communicate()
    one.clear(selectors.DefaultSelector())


def test_a_place_has_the_name_that_people_read():
    assert place().name == "actor 2"


def test_a_place_is_busy_until_nobody_is_due_or_there():
    one = place()
    assert one.busy  # its first generation is due
    assert not one.alive
    one.due, one.asked_at = None, 1.0
    assert one.alive
    one.asked_at = None
    assert not one.busy


def test_a_killed_process_dies_and_the_reason_stays(lived_in):
    one, process = lived_in
    one.kill("was late")
    assert process.wait(10) == -signal.SIGKILL
    assert one.cause(-signal.SIGKILL) == "was late"
    one.kill()  # it is gone, or even another's number: the pidfd knows
    assert one.killed == "was late"


def test_nobody_is_killed_where_nobody_sits():
    one = place()
    one.kill("anyway")
    assert one.killed is None


def test_a_stopped_process_is_seen(lived_in, wait_for):
    one, process = lived_in
    assert not one.stopped()
    process.send_signal(signal.SIGSTOP)
    wait_for(one.stopped, "the process to stop", 10)
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: not one.stopped(), "the process to go on", 10)
    process.kill()
    process.wait()
    assert not one.stopped()


def test_a_hanging_process_shows_its_stacks(wait_for):
    program = (
        "import faulthandler, signal, sys\n"
        "from covey.engines.member import SHOW_STACKS\n"
        "faulthandler.register(SHOW_STACKS, file=int(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "def deep_inside():\n"
        "    while True:\n"
        "        signal.pause()\n"
        "deep_inside()\n"
    )
    words = os.memfd_create("words")
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(words)], stdout=subprocess.PIPE, pass_fds=[words]
    )
    one = place(pid=process.pid, pidfd=os.pidfd_open(process.pid), words=words)
    assert process.stdout.readline() == b"ready\n"

    def shown():  # asked again: it may not have been inside yet
        one.show_stacks()
        return "deep_inside" in one.last_words()

    try:
        wait_for(shown, "its stacks")
    finally:
        process.kill()
    process.communicate()
    one.clear(selectors.DefaultSelector())


def test_last_words_are_short_and_readable():
    one = place(words=os.memfd_create("words"))
    assert one.last_words() == ""
    os.write(one.words, b"Fatal Python error: \xff\n  File x\n\nExtension modules: a, b\n")
    assert one.last_words() == "Fatal Python error: \ufffd\n  File x"
    os.write(one.words, b"x" * 100_000)
    assert len(one.last_words()) < 5000
    os.close(one.words)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (-9, "killed by signal 9 (out of memory, if nobody else did it)"),
        (-11, "killed by signal 11 (Segmentation fault)"),
        (-6, "killed by signal 6 (Aborted)"),
        (0, "exited with status 0"),
        (3, "exited with status 3"),
    ],
)
def test_every_end_has_a_cause(status, said):
    assert place().cause(status) == said


def failed(user=False, phase=pulse.RUNNING, generation=0, **more):
    failure = {"type": "ValueError", "error": "too hot", "user": user, "phase": phase}
    return place(failure=failure, generation=generation, **more)


def test_what_a_member_said_is_the_cause_and_why_we_killed_it_more_so():
    assert failed().cause(1) == "ValueError: too hot"
    assert failed(killed="hung").cause(-9) == "hung"


@pytest.mark.parametrize(
    ("phase", "generation", "hopeless"),
    [
        (pulse.STARTING, 0, True), (pulse.STARTING, 1, False), (pulse.RUNNING, 0, False),
        (pulse.RESETTING, 0, False), (pulse.ENDED, 0, True), (pulse.ENDED, 5, True),
    ],
)  # fmt: skip
def test_who_fails_in_its_set_up_or_in_what_it_returns_is_hopeless(phase, generation, hopeless):
    assert failed(phase=phase, generation=generation).hopeless is hopeless


def test_who_just_died_is_not_hopeless():
    assert not place().hopeless


def test_a_mistake_of_the_users_is_told_as_such():
    error = failed(user=True).error("whatever", "Traceback ...")
    assert type(error) is UserError
    assert str(error) == "actor 2: too hot"


def test_another_error_has_the_name_and_the_traceback():
    error = failed().error("ValueError: too hot", "Traceback\n  line\n")
    assert type(error) is MemberError
    assert str(error) == "actor 2 failed: ValueError: too hot\nTraceback\n  line"
    one = failed()
    one.health.deaths = 5
    assert str(one.error("x", "")) == "actor 2 failed after 5 deaths: x"


def test_everything_is_given_back():
    before = os.dup(0)
    os.close(before)
    ours, theirs = pair()
    selector = selectors.DefaultSelector()
    one = place(wire=Wire(ours), words=os.memfd_create("words"), pidfd=os.pidfd_open(os.getpid()))
    selector.register(one.wire, selectors.EVENT_READ)
    selector.register(one.pidfd, selectors.EVENT_READ)
    one.asked_at = 1.0
    one.clear(selector)
    assert len(selector.get_map()) == 0
    assert (one.wire, one.pidfd, one.words, one.asked_at) == (None, -1, -1, None)
    assert theirs.recv(1) == b""
    one.clear(selector)  # again
    theirs.close()
    selector.close()
    after = os.dup(0)
    os.close(after)
    assert after == before
