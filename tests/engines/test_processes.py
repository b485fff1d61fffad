"""Many processes: started from anywhere, watched, replaced, and ended together."""

import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import covey
from covey.engines import nursery, processes
from covey.engines.care import Care
from covey.engines.place import MemberError
from covey.errors import UserError

LIGHT = ("covey.team", "covey.task")  # what a program without torch needs
QUICK = Care(step=0.3, start=0.6, soon=0.0)  # hangs are seen at once, deaths always forgiven


class Heard(list):
    """What the supervisor told."""

    def __call__(self, kind, **what):
        self.append((kind, what))

    def of(self, kind):
        return [what for told, what in self if told == kind]


def run(main, care=None, hear=None, seed=1, **members):
    return processes.run(main, seed=seed, members=members, care=care, hear=hear, preload=LIGHT)


def wait_until_stopped(team):
    """Do nothing, but get on."""
    while team.stopped is None:
        team.pulse.beat()
        time.sleep(0.001)


# --- what a program may be, and where it may stand


def test_every_member_runs_the_same_program_in_its_own_place():
    found = run(
        lambda team: [team.role, team.index, team.rank, team.size, team.first, team.name],
        actor=2, learner=1, made_up=1,
    )  # fmt: skip
    assert found == [
        ["actor", 0, 0, 4, True, "actor 0"], ["actor", 1, 1, 4, False, "actor 1"],
        ["learner", 0, 2, 4, False, "learner 0"], ["made_up", 0, 3, 4, False, "made_up 0"],
    ]  # fmt: skip


def test_a_closure_brings_what_it_closes_over():
    table = np.arange(5)

    def square(x):
        return int(x * x)

    assert run(lambda team: square(table[team.rank + 2]), actor=3) == [4, 9, 16]


def at_module_level(team):
    return team.rank + CONSTANT


CONSTANT = 40


def test_a_function_of_a_test_module_is_a_program_too():
    assert run(at_module_level, actor=2) == [40, 41]


def test_a_team_can_be_started_from_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(run(lambda team: team.rank, actor=2)))
    thread.start()
    thread.join(30)
    assert found == [[0, 1]]


def test_two_teams_do_not_meddle():
    def main(team):
        count = team.count("n")
        count.add(1)
        return count.total >= 1

    found = []
    threads = [threading.Thread(target=lambda: found.append(run(main, actor=2))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [[True, True]] * 2


SCRIPT = """
import covey
K = 3

def twice(x):
    return 2 * x

def main(team):
    print("hello")
    return [team.role, team.index, twice(K)]

class Program:
    def __call__(self, team):
        return twice(K)

print(covey.run(main, actor=1, learner=1))
print(covey.run(lambda team: twice(team.rank), seed=2, player=2))
print(covey.run(Program(), player=1))
"""
EXPECTED = [
    "[actor 0] hello", "[learner 0] hello", "[['actor', 0, 6], ['learner', 0, 6]]", "[0, 2]", "[6]",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "stdin", "-c", "-m", "imported", "exec", "spaces"])
def test_a_program_without_a_main_guard_runs_from_anywhere(how, tmp_path):
    folder = tmp_path / ("a folder é" if how == "spaces" else "folder")
    folder.mkdir()
    (folder / "program.py").write_text(SCRIPT)
    (folder / "cells.py").write_text(
        "cells = open('program.py').read().split('\\n\\n')\n"
        "names = {'__name__': '__main__'}\n"
        "for cell in cells:\n    exec(cell, names)\n"
    )
    words = {
        "script": ["program.py"], "spaces": ["program.py"], "stdin": ["-"], "-c": ["-c", SCRIPT],
        "-m": ["-m", "program"], "imported": ["-c", "import program"], "exec": ["cells.py"],
    }[how]  # fmt: skip
    done = subprocess.run(
        [sys.executable, *words], input=SCRIPT if how == "stdin" else None, cwd=folder,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert sorted(lines[:2]) + lines[2:] == EXPECTED


def script(text, **more):
    """Run a program of a user's; how it ended."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60,
        **more,
    )  # fmt: skip


def test_a_failure_ends_a_script_with_the_members_name_and_traceback():
    done = script("""
        from covey.engines import processes

        def main(team):
            if team.name == "boss 0":
                raise RuntimeError("the motor is hot")
            team.waits.until(lambda: False, lambda: "nothing")

        processes.run(main, seed=1, members={"actor": 2, "boss": 1}, preload=("covey.team",))
    """)
    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("MemberError") :]
    assert last.startswith("MemberError: boss 0 failed: RuntimeError: the motor is hot\n")
    assert "in main\nRuntimeError: the motor is hot" in last


# --- what is refused


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"actor": 0}, "actor=0 must be a whole number of at least 1."),
        ({"actor": 2, "learner": -1}, "learner=-1 must be a whole number of at least 1."),
        ({"actor": 1.5}, "actor=1.5 must be a whole number of at least 1."),
        ({"actor": "3"}, "actor='3' must be a whole number of at least 1."),
        ({"actor": None}, "actor=None must be a whole number of at least 1."),
    ],
)
def test_a_wrong_number_of_members_is_refused_before_anything_starts(members, said):
    with pytest.raises(UserError) as caught:
        covey.run(lambda team: None, **members)
    assert str(caught.value) == said


def test_no_members_at_all_are_refused():
    with pytest.raises(UserError, match="needs to know its members, as actor=4, learner=1"):
        covey.run(lambda team: None, engine="processes")


def test_a_program_that_cannot_travel_is_refused_before_anything_starts():
    lock = threading.Lock()
    with pytest.raises(UserError, match="main cannot be sent to other processes: cannot pickle"):
        covey.run(lambda team: lock, actor=1)


LIMITED = """
    import resource, sys
    soft, hard, num = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    from covey.engines import processes
    from covey.errors import UserError
    try:
        found = processes.run(
            lambda team: team.rank, seed=1, members={"actor": num}, preload=("covey.team",)
        )
    except UserError as error:
        sys.exit(str(error))
    assert found == list(range(num))
"""


def limited(soft, hard, num):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(soft), str(hard), str(num)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_too_few_descriptors_are_told_before_the_start():
    done = limited(64, 200, 40)
    assert done.returncode == 1
    assert "file descriptors and this process may have 200. Raise it (ulimit -n " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_low_limit_that_may_be_raised_is_raised():
    done = limited(64, 4096, 12)
    assert done.returncode == 0, done.stderr


def test_eight_actors_run_with_256_descriptors():
    done = limited(256, 256, 8)
    assert done.returncode == 0, done.stderr


def test_the_limit_is_left_where_it_is_enough():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes.enough_descriptors(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


# --- threads


def test_threads_fit_the_cores():
    cores = len(os.sched_getaffinity(0))

    def main(team):
        return team.threads

    assert run(main, actor=1) == [cores]
    assert run(main, actor=cores) == [1] * cores
    assert run(main, actor=cores + 1) == [1] * (cores + 1)
    found = processes.run(main, seed=1, members={"actor": 1}, preload=LIGHT, threads=7)
    assert found == [7]


def test_torch_and_the_libraries_below_it_use_that_many():
    def main(team):
        import torch
        from threadpoolctl import threadpool_info

        torch.randn(600, 600) @ torch.randn(600, 600)
        blas = [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
        return [torch.get_num_threads(), team.threads, max(blas, default=1)]

    assert covey.run(main, actor=2) == [[1, 1, 1]] * 2


# --- memory


def test_memory_of_one_name_is_the_same_for_all_who_ask():
    def main(team):
        block = team.block("table", {"x": ((4,), "i8")})
        block["x"][team.rank] = team.rank + 1
        team.wake()
        team.waits.until(lambda: (block["x"] > 0).all(), lambda: "the others")
        return block["x"].tolist()

    assert run(main, actor=4) == [[1, 2, 3, 4]] * 4


def test_one_name_for_two_forms_is_refused_with_both():
    def main(team):
        team.block("table", {"x": ((4 + team.index,), "f4")})
        team.waits.until(lambda: False, lambda: "nothing")

    with pytest.raises(UserError) as caught:
        run(main, actor=2)
    said = str(caught.value)
    assert "'table' has the form x <f4[" in said
    assert "[4]" in said
    assert "[5]" in said
    assert said.endswith("Give all the same.")


def test_memory_can_be_looked_at_when_all_is_over():
    with processes.Launcher({"actor": 2}, Care()) as launcher:

        def main(team):
            team.block("table", {"x": ((2,), "i8")})["x"][team.rank] = 7 + team.rank

        launcher.run(main, 1, LIGHT)
        found = {name: block["x"].tolist() for name, block in launcher.blocks() if name == "table"}
    assert found == {"table": [7, 8]}


# --- deaths


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("kill", "killed by signal 9 (out of memory, if nobody else did it)"),
        ("segv", "killed by signal 11 (Segmentation fault)"),
        ("exit", "exited with status 3"),
        ("exit well", "exited with status 0"),  # but it has not returned
        ("sys.exit", "SystemExit: 4"),
        ("raise", "ValueError: hot"),
    ],
)
def test_a_dead_actor_has_a_successor(how, cause):
    def main(team):
        if team.role == "learner":
            other = team.ranks("actor")[0]
            team.waits.until(lambda: team.pulse_N[other, 3] == 1, lambda: "the successor")
            return None
        if team.generation == 1:
            return [team.generation, *team.seed.generate_state(1).tolist()]
        team.pulse.enter(1)  # set up
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how in ("exit", "exit well"):
            os._exit(3 if how == "exit" else 0)
        raise SystemExit(4) if how == "sys.exit" else ValueError("hot")

    heard = Heard()
    (generation, seed), _ = run(main, QUICK, heard, actor=1, learner=1)
    assert generation == 1
    assert seed != run(lambda team: team.seed.generate_state(1).tolist(), actor=1)[0][0]
    (died,) = heard.of("died")
    assert (died["member"], died["generation"], died["replaced"]) == ("actor 0", 0, True)
    assert died["cause"] == cause
    if how == "raise":
        assert died["trace"].endswith("ValueError: hot\n")
    started = [(s["member"], s["generation"]) for s in heard.of("started")]
    assert sorted(started) == [("actor 0", 0), ("actor 0", 1), ("learner 0", 0)]
    assert len({s["pid"] for s in heard.of("started")}) == 3


def test_a_member_that_nobody_replaces_ends_all():
    def main(team):
        if team.role == "learner":
            team.pulse.enter(1)
            raise ValueError("the learner is hot")
        wait_until_stopped(team)

    heard = Heard()
    with pytest.raises(MemberError) as caught:
        run(main, None, heard, actor=2, learner=1)
    assert str(caught.value).startswith(
        "learner 0 failed: ValueError: the learner is hot\nTraceback"
    )
    assert [d["replaced"] for d in heard.of("died")] == [False]


def test_a_set_up_that_fails_is_not_tried_again():
    def main(team):
        if team.name == "actor 1":
            raise ValueError("no such file")
        wait_until_stopped(team)

    heard = Heard()
    with pytest.raises(MemberError, match="actor 1 failed: ValueError: no such file"):
        run(main, None, heard, actor=3, learner=1)
    assert len(heard.of("died")) == 1


def test_an_environment_whose_constructor_raises_is_named_with_its_member():
    def main(team):
        def make():
            raise OSError("no display")

        covey.make_env(make, 1, team.seed)

    with pytest.raises(UserError) as caught:
        covey.run(main, actor=2, learner=1)
    assert "no display" in str(caught.value)
    assert str(caught.value).split(":")[0] in ("actor 0", "actor 1", "learner 0")
    assert "Traceback" not in str(caught.value)


CRASHES = Care(failures=3, first_delay=0.01, soon=60.0)


def test_a_crash_loop_is_left_out_and_the_run_goes_on():
    def main(team):
        if team.role == "learner":
            team.block("told", {"n": ((1,), "i8")})
            quarantined = team.count("dead")
            team.waits.until(lambda: quarantined.total == 3, lambda: "three deaths", 20)
            return "done"
        team.pulse.enter(1)
        if team.index == 0:
            team.count("dead").add(1)
            team.wake()
            raise ValueError(f"life {team.generation}")
        wait_until_stopped(team)
        return "well"

    heard = Heard()
    assert run(main, CRASHES, heard, actor=2, learner=1) == [None, "well", "done"]
    assert [d["cause"] for d in heard.of("died")] == [f"ValueError: life {i}" for i in range(3)]
    assert [d["replaced"] for d in heard.of("died")][:2] == [True, True]


def test_a_quarantine_is_told_with_its_causes():
    def main(team):
        team.pulse.enter(1)
        if team.name == "actor 0":
            raise ValueError(f"life {team.generation}")
        wait_until_stopped(team)

    heard = Heard()

    def hear(kind, **what):
        heard(kind, **what)
        if kind == "quarantined":
            launcher.signal.stop("seen enough")

    with processes.Launcher({"actor": 2}, CRASHES, hear) as launcher:
        launcher.run(main, 1, LIGHT)
    (quarantined,) = heard.of("quarantined")
    assert quarantined["member"] == "actor 0"
    assert quarantined["causes"] == [f"ValueError: life {i}" for i in range(3)]
    assert [d["replaced"] for d in heard.of("died")] == [True, True, False]


def test_when_all_of_a_role_crash_it_is_one_error_with_the_last_traceback():
    def main(team):
        team.pulse.enter(1)
        if team.role == "actor":
            raise ValueError(f"life {team.generation}")
        wait_until_stopped(team)

    with pytest.raises(MemberError) as caught:
        run(main, CRASHES, actor=2, learner=1)
    said = str(caught.value)
    assert " failed after 3 deaths: ValueError: life 2\nTraceback" in said
    assert said.count("Traceback") == 1


def until_replaced(team, before):
    """A program: the first generation does something that it does not survive, the next returns."""
    if team.role == "learner":
        rank, deadline = team.ranks("actor")[0], time.monotonic() + 60
        while team.pulse_N[rank, 3] == 0 or team.pulse_N[rank, 1] != 5:
            assert time.monotonic() < deadline, "the actor was not replaced"
            team.pulse.beat()
            time.sleep(0.001)
        return None
    if team.generation == 0:
        team.pulse.enter(1)
        before()
    return team.generation


@pytest.mark.parametrize("how", ["stopped", "hanging"])
def test_one_who_makes_no_progress_is_replaced(how):
    def stop():
        os.kill(os.getpid(), signal.SIGSTOP)

    def hang_here():
        import ctypes

        while True:  # being asked for its stacks ends a sleep
            ctypes.PyDLL(None).sleep(1000)  # and never lets go of the interpreter

    heard = Heard()
    before = stop if how == "stopped" else hang_here
    assert run(lambda team: until_replaced(team, before), QUICK, heard, actor=1, learner=1) == [
        1,
        None,
    ]
    (died,) = heard.of("died")
    assert died["cause"].startswith("no progress for 0.3")
    assert died["cause"].endswith("s while running")
    assert ("hang_here" in died["trace"]) == (how == "hanging")


def test_one_who_waits_or_resets_slowly_is_left_alone():
    def main(team):
        team.pulse.enter(1)
        if team.index == 0:
            with team.pulse.during(2):  # resetting
                time.sleep(0.8)
        else:
            team.waits.nap(0.8)
        return "well"

    heard = Heard()
    assert run(main, QUICK, heard, actor=2) == ["well", "well"]
    assert heard.of("died") == []


def test_one_who_closes_its_connection_is_replaced():
    def close(team):
        os.closerange(3, 100)  # as a program that turns itself into a daemon does
        while True:
            team.pulse.beat()

    heard = Heard()
    care = Care(mute=0.1, soon=0.0)
    found = run(
        lambda team: until_replaced(team, lambda: close(team)), care, heard, actor=1, learner=1
    )
    assert found == [1, None]
    assert heard.of("died")[0]["cause"] == "closed its connection to the launcher"


def test_one_who_speaks_nonsense_is_replaced():
    def babble(team):
        os.write(team.post._wire.fileno(), b"what?\n")
        while True:
            team.pulse.beat()

    heard = Heard()
    found = run(
        lambda team: until_replaced(team, lambda: babble(team)), QUICK, heard, actor=1, learner=1
    )
    assert found == [1, None]
    assert heard.of("died")[0]["cause"].startswith("said what nobody understands: ")


# --- the end


def test_when_those_that_nobody_replaces_have_returned_the_others_stop():
    def main(team):
        if team.role == "learner":
            return "learnt"
        wait_until_stopped(team)
        return team.stopped

    assert run(main, actor=2, learner=1) == ["done", "done", "learnt"]


def test_one_who_does_not_stop_is_ended_without_an_error():
    def main(team):
        if team.role == "learner":
            return "learnt"
        if team.index == 0:
            signal.pause()
        while True:  # gets on, but never looks
            team.pulse.beat()

    heard = Heard()
    assert run(main, Care(grace=0.2), heard, actor=2, learner=1) == [None, None, "learnt"]
    assert [d["cause"] for d in heard.of("died")] == ["did not end when all were asked to stop"] * 2


def test_a_learner_that_does_not_stop_is_an_error():
    def main(team):
        if team.role == "learner":
            signal.pause()
        team.stop("enough")

    with pytest.raises(MemberError, match="learner 0 failed: did not end when all were asked"):
        run(main, Care(grace=0.2), actor=1, learner=1)


def test_what_fails_while_saving_is_not_lost():
    def main(team):
        if team.role == "learner":
            team.pulse.enter(1)
            wait_until_stopped(team)
            raise OSError("the disk is gone")
        team.stop("enough")

    with pytest.raises(MemberError, match="learner 0 failed: OSError: the disk is gone"):
        run(main, actor=1, learner=1)


def test_a_learner_has_time_to_save_and_to_reset_what_it_evaluates_on():
    def main(team):
        if team.role == "learner":
            team.pulse.enter(1)
            wait_until_stopped(team)
            with team.pulse.during(2):
                time.sleep(0.5)
            with team.pulse.during(4):
                time.sleep(0.5)
            return "saved"
        team.stop("enough")
        return team.stopped

    assert run(main, Care(grace=0.2), actor=1, learner=1) == ["enough", "saved"]


def test_an_error_of_whoever_listens_ends_all():
    def hear(kind, **what):
        raise OSError("the log is full")

    with pytest.raises(OSError, match="the log is full"):
        run(wait_until_stopped, None, hear, actor=2)


def test_whoever_began_it_can_stop_it():
    stops = []

    def hear(kind, **what):
        stops[0]("seen enough")

    def main(team):
        wait_until_stopped(team)
        return team.stopped

    found = processes.run(
        main, seed=1, members={"actor": 2}, hear=hear, begun=stops.append, preload=LIGHT
    )
    assert set(found) <= {"seen enough", None}  # None: stopped before it was born


# --- signals


def signalled(number, times=1):
    """Send it to ourselves once all are there; who heard it."""
    heard = []

    def hear(kind, **what):
        heard.append(kind)
        if heard.count("here") == 2 and kind == "here":
            for _ in range(times):
                os.kill(os.getpid(), number)

    return hear


def says_here(team):
    team.post.tell("here")
    wait_until_stopped(team)
    team.post.tell("saved", reason=team.stopped)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_stops_all_and_comes_again_afterwards(number):
    saved, came = [], []
    hear = signalled(number)

    def listen(kind, **what):
        if kind == "saved":
            saved.append(what["reason"])
        hear(kind, **what)

    before = {n: signal.getsignal(n) for n in processes.SIGNALS}
    with processes.Launcher({"actor": 2}, Care(), listen) as launcher:
        assert all(signal.getsignal(n) == launcher._on_signal for n in processes.SIGNALS)
        launcher.run(says_here, 1, LIGHT)
        came.append(launcher.signalled)
    assert came == [number]
    assert saved == [processes.SIGNALS[number]] * 2
    assert {n: signal.getsignal(n) for n in processes.SIGNALS} == before


def test_ctrl_c_is_raised_once_all_have_ended():
    with pytest.raises(KeyboardInterrupt):
        run(says_here, None, signalled(signal.SIGINT), actor=2)


def test_one_ctrl_c_that_comes_twice_is_one():
    saved = []
    hear = signalled(signal.SIGINT, 2)

    def listen(kind, **what):
        if kind == "saved":
            saved.append(what["reason"])
        hear(kind, **what)

    with pytest.raises(KeyboardInterrupt):
        run(says_here, None, listen, actor=2)
    assert saved == ["interrupted"] * 2


def test_a_second_ctrl_c_does_not_wait(monkeypatch):
    monkeypatch.setattr(processes, "TWICE_SECONDS", 0)

    def never_stops(team):
        team.pulse.enter(1)
        team.post.tell("here")
        while True:
            team.pulse.beat()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(never_stops, Care(grace=60, last_grace=60), signalled(signal.SIGINT, 2), learner=2)
    assert time.monotonic() - began < 30


def test_a_handler_of_the_users_own_is_left_alone():
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        hear, stops = signalled(signal.SIGTERM), []

        def listen(kind, **what):
            hear(kind, **what)
            if came:
                stops[0]("told")

        processes.run(says_here, seed=1, members={"actor": 2}, hear=listen, begun=stops.append,
                      preload=LIGHT)  # fmt: skip
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_script_that_is_terminated_ends_as_if_by_the_signal():
    done = script("""
        import os, signal
        from covey.engines import processes

        def main(team):
            team.post.tell("here")
            team.waits.until(lambda: False, lambda: "nothing")

        def hear(kind, **what):
            if kind == "here":
                os.kill(os.getpid(), signal.SIGTERM)

        processes.run(main, seed=1, members={"a": 1}, hear=hear, preload=("covey.team",))
        print("went on")
    """)
    assert done.returncode == -signal.SIGTERM
    assert "went on" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_zygote_begins_does_not_wait_for_it(
    number, tmp_path, monkeypatch, wait_for
):
    began = tmp_path / "began"
    (tmp_path / "slow_preload.py").write_text(
        f"import pathlib, time; pathlib.Path({str(began)!r}).touch(); time.sleep(60)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(nursery, "END_SECONDS", 0.2)

    def send():
        wait_for(began.exists, "the zygote to begin", 20)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        processes.run(lambda team: None, seed=1, members={"a": 1}, preload=("slow_preload",))
    sender.join(20)


# --- many, and again and again


def test_the_wire_to_the_zygote_is_never_filled_from_both_ends(monkeypatch):
    """Sockets that hold a handful of messages stand for hundreds of members."""

    def tiny():
        both = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in both:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return both

    monkeypatch.setattr(nursery, "pair", tiny)
    monkeypatch.setattr(processes, "MOST_UNBORN", 2)
    assert run(lambda team: team.rank, actor=24) == list(range(24))


def resident(pid="self"):
    """Bytes of memory of its own."""
    with open(f"/proc/{pid}/statm") as statm:  # noqa: PTH123
        fields = statm.read().split()
    return (int(fields[1]) - int(fields[2])) * 4096


def look():
    return [len(os.listdir("/proc/self/fd")), threading.active_count(), resident()]  # noqa: PTH208


def test_a_hundred_respawns_leave_nothing_in_the_launcher():
    def main(team):
        if team.role == "learner":
            respawns = team.count("lives")
            team.waits.until(lambda: respawns.total >= 120, lambda: "120 lives", 60)
            return None
        team.pulse.enter(1)
        team.count("lives").add(1)
        team.wake()
        os._exit(1)

    looks, heard = [], Heard()

    def hear(kind, **what):
        heard(kind, **what)
        if kind == "died":
            looks.append(look())

    run(main, Care(soon=0.0), hear, actor=2, learner=1)
    assert len(heard.of("died")) >= 120
    descriptors, threads, memory = zip(*looks, strict=True)
    moving = 2 * processes.DESCRIPTORS  # each of two may just now be between two generations
    assert max(descriptors[20:]) - min(descriptors[20:]) <= moving
    assert set(threads) == {threads[0]}
    assert memory[-1] - memory[20] < 2**20
