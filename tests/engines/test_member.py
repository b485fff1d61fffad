"""One member: what it is given, what it says, what it leaves behind."""

import os
import socket
import sys
import threading

import numpy as np
import pytest
from apart import apart, dies

from covey.engines import processes
from covey.engines.care import Care
from covey.engines.member import Control, Tagged, plain
from covey.engines.place import MemberError
from covey.engines.wire import Wire, pair
from covey.engines.zygote import Births
from covey.errors import UserError

LIGHT = ("covey.team", "covey.task")  # what a program without torch needs


def run(main, seed=1, hear=None, **members):
    """What each member returned; nobody is replaced."""
    care = Care(replace=())
    return processes.run(
        main, seed=seed, members=members or {"actor": 1}, care=care, hear=hear, preload=LIGHT
    )


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (None, None), (True, True), (3, 3), (2.5, 2.5), ("é", "é"), ([1, (2, 3)], [1, [2, 3]]),
        ({"a": {1: 2}}, {"a": {"1": 2}}), (np.float32(0.5), 0.5), (np.int64(7), 7),
        (np.bool_(True), True), (np.arange(6).reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
        (np.array(3.0), 3.0), ([np.zeros(0)], [[]]),
    ],
)  # fmt: skip
def test_plain_values_stay_what_they_are(value, arrives):
    assert plain(value) == arrives
    assert type(plain(value)) is type(arrives)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), 1j, lambda: 0, [[object()]]])
def test_what_is_not_plain_is_refused_by_its_name(value):
    inner = value[0][0] if isinstance(value, list) else value
    with pytest.raises(UserError, match=f"main returned {type(inner).__name__}, which does not"):
        plain(value)


@pytest.fixture
def spoken():
    """A control, and what has been said over it."""
    ours, theirs = (Wire(end) for end in pair())

    def heard():
        try:
            return [message for message, _ in theirs.lines(socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return []

    heard.wire = theirs
    yield Control(ours), heard
    ours.close()
    theirs.close()


def test_what_is_printed_is_said_line_by_line(spoken):
    control, heard = spoken
    out = Tagged(control, "stdout")
    print("one", 2, file=out)
    print("three\nfour", file=out)
    print("fi", end="", file=out)
    assert [(m["kind"], m["stream"], m["line"]) for m in heard()] == [
        ("print", "stdout", line) for line in ("one 2", "three", "four")
    ]
    print("ve", file=out)
    assert [m["line"] for m in heard()] == ["five"]
    print("no end", end="", file=out)
    assert heard() == []
    out.flush()
    assert [m["line"] for m in heard()] == ["no end"]
    out.flush()
    assert heard() == []


def test_a_stream_says_which_it_is(spoken):
    control, heard = spoken
    err = Tagged(control, "stderr")
    assert err.write("x\n") == 2
    assert [m["stream"] for m in heard()] == ["stderr"]
    assert (err.fileno(), Tagged(control, "stdout").fileno()) == (2, 1)
    assert err.writable()
    assert not err.isatty()


def test_threads_that_print_lose_nothing(spoken):
    control, heard = spoken
    out = Tagged(control, "stdout")

    def talk(name):
        for i in range(100):
            print(f"<{name}{i}>", file=out)

    threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    said = ""
    while any(thread.is_alive() for thread in threads):
        said += "".join(message["line"] for message in heard())
    said += "".join(message["line"] for message in heard())
    expected = [f"{name}{i}" for name in "abcd" for i in range(100)]
    assert sorted(said.strip("<>").split("><")) == sorted(expected)


def answers(wire, message, *fds):
    """Answer the next question."""
    (question, _), *_ = wire.lines()
    wire.send(message, fds)
    for fd in fds:
        os.close(fd)
    return question


def test_memory_is_asked_for_by_name_size_and_form(spoken):
    control, heard = spoken
    asked = []
    there = os.memfd_create("there")
    os.write(there, b"here")
    thread = threading.Thread(target=lambda: asked.append(answers(heard.wire, {}, there)))
    thread.start()
    fd = control.memory("weights", 64, [["w", [2], "<f4"]])
    thread.join(10)
    assert asked == [
        {"kind": "memory", "name": "weights", "size": 64, "signature": [["w", [2], "<f4"]]}
    ]
    assert os.pread(fd, 4, 0) == b"here"
    os.close(fd)


def test_memory_of_another_form_is_refused(spoken):
    control, heard = spoken
    thread = threading.Thread(target=answers, args=(heard.wire, {"error": "another form"}))
    thread.start()
    with pytest.raises(UserError, match="another form"):
        control.memory("weights", 64, [])
    thread.join(10)


def test_a_launcher_that_has_gone_gives_no_memory(spoken):
    control, heard = spoken
    heard.wire.close()
    with pytest.raises(ConnectionError):
        control.memory("weights", 64, [])
    control.tell("print", stream="stdout", line="into the void")  # nobody hears


def test_members_print_with_their_name(capsys):
    def main(team):
        print("hello", team.size)
        print("trouble", file=sys.stderr)
        print("no end", end="")

    run(main, actor=2, boss=1)
    told = capsys.readouterr()
    names = ["actor 0", "actor 1", "boss 0"]
    assert sorted(told.out.splitlines()) == sorted(
        f"[{name}] {line}" for name in names for line in ("hello 3", "no end")
    )
    assert sorted(told.err.splitlines()) == [f"[{name}] trouble" for name in names]


def test_what_a_terminal_cannot_show_ends_nobody(capsys):
    def main(team):
        print("half a character: \udcff")
        return "\udcff"

    assert run(main) == ["\udcff"]
    assert capsys.readouterr().out == "[actor 0] half a character: \\udcff\n"


def test_lines_of_one_who_is_killed_in_the_middle_are_whole(capsys):
    def main(team):
        import signal

        print("whole")
        print("flushed", end="", flush=True)
        print("half", end="")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(MemberError, match="actor 0 failed: killed by signal 9"):
        run(main)
    assert capsys.readouterr().out == "[actor 0] whole\n[actor 0] flushed\n"


def test_what_a_child_of_a_member_prints_is_not_lost(capfd):
    def main(team):
        import subprocess

        subprocess.run(["echo", "from a child"], stdout=sys.stdout, check=True)

    run(main)
    assert capfd.readouterr().out == "from a child\n"


def test_global_random_numbers_differ_by_member_and_repeat_by_seed():
    def main(team):
        import random

        return [random.random(), np.random.random(), float(team.rng("own").random())]

    one, again, other = (run(main, seed=s, actor=2, boss=1) for s in (1, 1, 2))
    assert one == again
    numbers = {number for member in one + other for number in member}
    assert len(numbers) == 2 * 3 * 3


def test_environment_seeds_differ_by_role_and_index_and_repeat():
    def main(team):
        return [int(n) for n in team.seed.generate_state(2)]

    one, again = (run(main, actor=3, boss=2) for _ in range(2))
    assert one == again
    assert len({tuple(seeds) for seeds in one}) == 5


@pytest.mark.parametrize("value", ["set", "object"])
def test_a_result_that_does_not_cross_is_refused_with_the_name(value):
    def main(team):
        return {1} if value == "set" else np.array([object()])

    with pytest.raises((UserError, MemberError), match="actor 0") as caught:
        run(main)
    assert "Return numbers" in str(caught.value) or "not JSON serializable" in str(caught.value)


def test_a_result_that_is_too_large_is_refused_with_the_name():
    def main(team):
        return "x" * (65 * 2**20)

    with pytest.raises(UserError, match=r"actor 0: 68157.* bytes are more than the 67108864"):
        run(main)


def test_a_large_result_comes_back():
    assert [len(found) for found in run(lambda team: "x" * 2**22, actor=2)] == [2**22] * 2


def test_one_who_is_stopped_in_a_wait_returns_nothing():
    def main(team):
        if team.role == "boss":
            team.stop("enough")
            return "boss"
        team.waits.until(lambda: False, lambda: "what never comes")

    assert run(main, actor=2, boss=1) == [None, None, "boss"]


def test_a_crash_of_python_says_where():
    def main(team):
        import ctypes

        ctypes.string_at(0)

    with pytest.raises(MemberError) as caught:
        run(main)
    said = str(caught.value)
    assert said.startswith("actor 0 failed: killed by signal 11 (Segmentation fault)\n")
    assert "string_at" in said


def without_a_seat():
    """How one ends that is given a job without its threads, and what stays of it."""
    words = os.memfd_create("words")
    ours, theirs = pair()
    births = Births(Wire(ours), {"members": [["actor", 0]], "seed": 1}, b"")
    seat = {"rank": 0, "generation": 0}
    status = dies(births._live, os.getpid(), seat, [theirs.fileno(), words], ())
    return status, os.pread(words, 4096, 0).decode()


def test_one_who_cannot_even_take_its_seat_says_why():
    status, words = apart(without_a_seat)
    assert status == 1
    assert words.endswith("KeyError: 'threads'\n")
