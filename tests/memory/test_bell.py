"""Sleeping until rung: promptly, across processes, whoever dies."""

import os
import signal
import threading
import time

import pytest
from apart import KILLED, all_end, apart, become_subreaper, dies, end, kill, start

from covey.memory.bell import ASLEEP, LINE, LONGEST_NAP, Bells, die_with_parent
from covey.memory.block import Block

NEVER = 30.0  # seconds; a wait that takes so long has failed


def make(num):
    block = Block({"word": ((num, LINE), "i4"), "n": ((8,), "i8")})
    return block["n"], block["word"], [Bells(block["word"], rank) for rank in range(num)]


def test_what_is_ready_is_not_waited_for():
    _, words, (bell,) = make(1)
    assert bell.wait(lambda: True, 0)
    assert not words.any()


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.12])
def test_a_wait_ends_with_its_time(seconds):
    _, words, (bell,) = make(1)
    began = time.monotonic()
    assert not bell.wait(lambda: False, seconds)
    assert seconds <= time.monotonic() - began < seconds + 1
    assert words[0, ASLEEP] == 0


def test_something_becomes_ready_without_a_ring():
    _, _, (bell,) = make(1)
    until = time.monotonic() + 0.01
    began = time.monotonic()
    assert bell.wait(lambda: time.monotonic() > until, NEVER)
    assert time.monotonic() - began < LONGEST_NAP + 1


def test_whoever_is_awake_after_an_error_does_not_count_as_asleep():
    _, words, (bell,) = make(1)
    looks = iter([False])
    with pytest.raises(StopIteration):
        bell.wait(lambda: next(looks), NEVER)
    assert words[0, ASLEEP] == 0


def test_two_rings_are_never_the_same():
    _, words, (bell,) = make(1)
    seen = set()
    for _ in range(1000):
        bell.ring(0)
        seen.add(int(words[0, 0]))
    assert len(seen) > 990
    assert min(seen) >= 0


def test_all_threads_of_a_member_are_woken():
    _, words, (bell,) = make(1)
    came, slept = [], []

    def wait(number):
        began = time.monotonic()
        bell.wait(lambda: number in came, NEVER)
        slept.append(time.monotonic() - began)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while words[0, ASLEEP] < 3:
        time.sleep(0.001)
    for number in range(3):
        came.append(number)
        bell.ring(0)
        threads[number].join()
        assert words[0, ASLEEP] == 2 - number
    assert max(slept) < 5


def ping_pong(rounds):
    n, _, bells = make(2)

    def pong():
        for number in range(1, rounds + 1):
            assert bells[1].wait(lambda number=number: n[0] == number, NEVER)
            n[1] = number
            bells[1].ring(0)

    pid, slow = start(pong), 0
    for number in range(1, rounds + 1):
        began = time.monotonic()
        n[0] = number
        bells[0].ring(1)
        assert bells[0].wait(lambda number=number: n[1] == number, NEVER)
        slow += time.monotonic() - began > LONGEST_NAP
    all_end([pid])
    return slow


def test_no_ring_is_lost():
    assert apart(ping_pong, 3000) < 60  # a lost one costs a nap; so does a busy machine


def many_ringers(rounds):
    """Three ring one at the same time, each for its own news."""
    n, _, bells = make(4)

    def ring(rank):
        for number in range(1, rounds + 1):
            assert bells[rank].wait(lambda number=number: n[0] >= number - 1, NEVER)
            n[rank] = number
            bells[rank].ring(0)

    pids, slow = [start(ring, rank) for rank in (1, 2, 3)], 0
    for number in range(1, rounds + 1):
        began = time.monotonic()
        assert bells[0].wait(lambda number=number: (n[1:4] >= number).all(), NEVER)
        slow += time.monotonic() - began > LONGEST_NAP
        n[0] = number
        bells[0].ring_all()
    all_end(pids)
    return slow


def test_no_ring_of_several_is_lost():
    assert apart(many_ringers, 1000) < 40


def killed_asleep():
    n, words, bells = make(2)
    pid = start(bells[1].wait, lambda: False, NEVER)
    while not words[1, ASLEEP]:
        time.sleep(0.001)
    kill(pid)
    bells[0].ring(1)  # nobody is there
    successor = Bells(words, 1)
    pid = start(successor.wait, lambda: n[0] == 1, NEVER)
    time.sleep(0.01)
    n[0] = 1
    bells[0].ring(1)
    assert end(pid) == 0
    return int(words[1, ASLEEP])


def test_a_successor_sleeps_where_its_predecessor_was_killed():
    assert apart(killed_asleep) == 0


def orphan():
    """A child dies with the process that started it, also when that has gone before."""
    become_subreaper()
    reader, writer = os.pipe()

    def parent():
        me = os.getpid()

        def child():
            die_with_parent(me)
            os.write(writer, b"x")
            time.sleep(NEVER)

        pid = start(child)
        os.read(reader, 1)
        os.write(writer, pid.to_bytes(4))
        os.kill(me, signal.SIGKILL)

    assert dies(parent) == KILLED
    os.close(writer)
    began = time.monotonic()
    pid = int.from_bytes(os.read(reader, 4))
    assert os.read(reader, 1) == b""  # the last who could write has gone
    assert time.monotonic() - began < 1
    assert end(pid) == KILLED
    return dies(die_with_parent, 1)


def test_a_child_dies_with_its_parent():
    assert apart(orphan) == 1
