"""Progress and phases, as the supervisor reads them."""

import threading

import numpy as np
import pytest
from apart import apart, kill, start

from covey.memory import pulse
from covey.memory.block import Block
from covey.memory.pulse import ENDED, RESETTING, RUNNING, SAVING, STARTING, WAITING, Pulse


def lines(num=2):
    return Block(pulse.layout(num))["pulse"]


def test_beats_and_steps_are_counted_in_their_own_line():
    pulse_N = lines()
    one = Pulse(pulse_N[1])
    for _ in range(5):
        one.beat(env_steps=16)
    one.beat()
    assert pulse_N[1, pulse.BEAT] == 6
    assert one.stepped == pulse_N[1, pulse.STEPPED] == 80
    assert not pulse_N[0].any()


def test_a_successor_goes_on_counting():
    pulse_N = lines()
    Pulse(pulse_N[0]).beat(7)
    successor = Pulse(pulse_N[0])
    successor.beat(3)
    assert successor.stepped == 10


def test_phases_nest_and_each_end_is_progress():
    one = Pulse()
    assert one.phase == STARTING
    one.enter(RUNNING)
    with one.during(RESETTING):
        assert one.phase == RESETTING
        with one.during(WAITING):
            assert one.phase == WAITING
        assert one.phase == RESETTING
    assert one.phase == RUNNING
    assert one.line[pulse.BEAT] == 3
    with pytest.raises(KeyError), one.during(SAVING):
        raise KeyError
    assert one.phase == RUNNING
    one.enter(ENDED)
    assert pulse.PHASES[one.phase] == "ended"


def test_a_phase_begins_with_what_the_supervisor_wrote():
    line = np.zeros(8, np.int64)
    one = Pulse(line)
    line[pulse.PHASE] = RUNNING
    with one.during(WAITING):
        pass
    assert one.phase == RUNNING


def test_threads_leave_no_phase_behind():
    """One waits and ends after the other has begun to wait: nobody waits at the end."""
    one, both, first = Pulse(), threading.Barrier(2), threading.Event()
    one.enter(RUNNING)

    def wait(ends_first):
        with one.during(WAITING):
            both.wait()
            if not ends_first:
                first.wait()
        first.set()

    threads = [threading.Thread(target=wait, args=(ends,)) for ends in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.phase == RUNNING


def test_the_beat_of_another_thread_undoes_no_steps():
    one, stop = Pulse(), threading.Event()

    def beat():
        while not stop.is_set():
            one.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    for _ in range(20_000):
        one.beat(3)
    stop.set()
    thread.join()
    assert one.stepped == 60_000


def killed_in_a_phase():
    pulse_N = lines()

    def work():
        one = Pulse(pulse_N[0])
        one.enter(RUNNING)
        while True:
            with one.during(RESETTING):
                one.beat(2)

    for _ in range(10):
        pid = start(work)
        before = int(pulse_N[0, pulse.BEAT])
        while pulse_N[0, pulse.BEAT] < before + 50:
            pass
        kill(pid)
        assert pulse_N[0, pulse.STEPPED] % 2 == 0
        assert pulse_N[0, pulse.PHASE] in (RUNNING, RESETTING)
    return not pulse_N[1].any()


def test_a_killed_member_leaves_whole_numbers():
    assert apart(killed_in_a_phase)
