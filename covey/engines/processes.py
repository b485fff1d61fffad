"""Many processes on one machine: starts them, watches them, replaces them, ends them."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from covey.engines.care import Care, Health
from covey.engines.wire import Wire, pair
from covey.errors import UserError
from covey.links.signal import Signal
from covey.memory import pulse
from covey.memory.bell import Bells
from covey.memory.block import Block, layout_of, new_memory, signature
from covey.team import ROSTER, Main, Seat, roster, section

PRELOAD = ("torch", "cloudpickle", "covey.steps", "covey.apply", "covey.engines.warm")
LOOK_EVERY = 0.02  # seconds between two looks at the pulses
START_SECONDS = 120.0
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class MemberError(RuntimeError):
    """A member failed and nobody can take its place: its name and its own traceback."""


@dataclass(slots=True)
class Memory:
    """A piece of the team's memory, by name."""

    fd: int
    size: int
    signature: list[Any]


@dataclass(slots=True)
class Member:
    """A place in the team and the process that sits there."""

    rank: int
    role: str
    index: int
    health: Health
    generation: int = -1
    pid: int = 0
    pidfd: int = -1
    wire: Wire | None = None
    returned: bool = False
    failure: dict[str, Any] | None = None
    due: float | None = 0.0  # when to start the next generation
    value: Any = None
    why: str | None = None  # why it is being killed

    @property
    def name(self) -> str:
        """Role and index, as people read it."""
        return f"{self.role} {self.index}"

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        return self.pidfd >= 0


def run(
    main: Main, *, seed: int, members: Mapping[str, int], care: Care | None = None,
    hear: Callable[..., None] | None = None, preload: tuple[str, ...] = PRELOAD,
    threads: int | None = None, begun: Callable[[Callable[[str], None]], None] | None = None,
) -> list[Any]:  # fmt: skip
    """What `main` returned in each member, by rank."""
    if not members:
        raise UserError("the engine processes needs to know its members, as actor=4, learner=1.")
    for role, num in members.items():
        if not isinstance(num, int) or num < 1:
            raise UserError(f"{role}={num!r} must be a whole number of at least 1.")
    with Launcher(main, seed, members, care or Care(), hear, preload, threads) as launcher:
        if begun is not None:
            begun(launcher.signal.stop)
        return launcher.run()


class Launcher:
    """Owns the team's memory and its processes, and outlives them all."""

    def __init__(
        self, main: Main, seed: int, members: Mapping[str, int], care: Care,
        hear: Callable[..., None] | None, preload: tuple[str, ...], threads: int | None,
    ) -> None:  # fmt: skip
        seats = [(role, index) for role, num in members.items() for index in range(num)]
        self.members = [
            Member(rank, role, index, Health(care)) for rank, (role, index) in enumerate(seats)
        ]
        self.care, self._hear, self._seats = care, hear, seats
        self.essential = {role for role in members if role not in care.replace}
        cores = len(os.sched_getaffinity(0))
        self.threads = threads or max(1, cores // len(seats))
        self._job = {"members": seats, "seed": seed, "threads": self.threads,
                     "path": [p or os.getcwd() for p in sys.path], "preload": preload}  # fmt: skip
        self._main = main
        self._memories: dict[str, Memory] = {}
        self._statuses: dict[int, int] = {}
        self._stop_at: float | None = None
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Launcher:
        import cloudpickle

        enough_descriptors(len(self.members))
        program = cloudpickle.dumps(self._main)
        self.roster = Block(roster(len(self.members)))
        self._memories[ROSTER] = Memory(
            self.roster.fd, self.roster.size, signature(self.roster.layout)
        )
        bells = Bells(section(self.roster, "bells")["word"], 0)
        self.signal = Signal(section(self.roster, "signal"), 0, bells.ring_all)
        self.pulse_N = section(self.roster, "pulse")["pulse"]
        self._begin_zygote(program)
        return self

    def _begin_zygote(self, program: bytes) -> None:
        ours, theirs = pair()
        words = f"from covey.engines.zygote import main; main({theirs.fileno()}, {os.getpid()})"
        self._zygote = subprocess.Popen(
            [sys.executable, "-c", words], pass_fds=[theirs.fileno()], start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(ONE_THREAD, "1")},
        )  # fmt: skip
        theirs.close()
        ours.sendall(json.dumps({**self._job, "size": len(program)}).encode() + b"\n" + program)
        self._births = Wire(ours)
        self._selector.register(self._births, selectors.EVENT_READ, self._on_birth)

    def run(self) -> list[Any]:
        """Until every member has ended."""
        self._await_zygote()
        while any(m.alive or m.due is not None for m in self.members):
            for key, _ in self._selector.select(LOOK_EVERY):
                key.data(key.fileobj)
            self._look(monotonic())
        return [member.value for member in self.members]

    def _await_zygote(self) -> None:
        ready, _ = self._births.answer(START_SECONDS)
        assert ready["threads"] == 1, f"{ready['threads']} threads ran before the first fork"

    def _look(self, now: float) -> None:
        reason = self.signal.reason
        if reason is not None and self._stop_at is None:
            self._stop_at = now
        for member in self.members:
            if member.due is not None and self._stop_at is not None:
                member.due = None
            if member.due is not None and now >= member.due:
                self._begin(member, now)
            elif member.alive and member.why is None:
                self._feel(member, now)

    def _feel(self, member: Member, now: float) -> None:
        """Kill a member that makes no progress."""
        line = self.pulse_N[member.rank]
        idle, phase = member.health.idle(int(line[pulse.BEAT]), now), int(line[pulse.PHASE])
        patience = self.care.patience(phase)
        if self._stop_at is not None:
            replaceable = member.role not in self.essential
            patience = min(patience, self.care.patience_at_stop(phase, replaceable))
            idle = min(idle, now - self._stop_at)
        if idle > patience:
            self._kill(member, f"no progress for {idle:.1f} s while {pulse.PHASES[phase]}")

    def _begin(self, member: Member, now: float) -> None:
        member.due, member.generation = None, member.generation + 1
        member.failure, member.why = None, None
        self.pulse_N[member.rank, pulse.PHASE] = pulse.STARTING
        self.pulse_N[member.rank, pulse.GENERATION] = member.generation
        member.health.born(now)
        ours, theirs = pair()
        seat = {"rank": member.rank, "generation": member.generation}
        self._births.send(seat, (theirs.fileno(),))
        theirs.close()
        member.wire = Wire(ours)
        self._selector.register(
            member.wire, selectors.EVENT_READ, lambda wire: self._on_words(member, wire)
        )
        while not member.alive:
            self._on_birth(self._births)

    def _on_birth(self, wire: Wire) -> None:
        for message, fds in wire.lines():
            if "born" in message:
                member = self.members[message["rank"]]
                member.pid, member.pidfd = message["born"], fds[0]
                self._selector.register(
                    member.pidfd, selectors.EVENT_READ, lambda _, m=member: self._on_death(m)
                )
                self._tell("started", member, pid=member.pid)
            else:
                self._statuses[message["died"]] = message["status"]
        if not wire.open:
            raise MemberError(
                "the process that starts members has ended (out of memory, or killed); "
                "the run cannot go on."
            )

    def _on_words(self, member: Member, wire: Wire) -> None:
        """What a member says."""
        for message, _ in wire.lines():
            kind = message.pop("kind")
            if kind == "memory":
                self._give_memory(wire, **message)
            elif kind == "print":
                stream = sys.stderr if message["stream"] == "stderr" else sys.stdout
                print(f"[{member.name}] {message['line']}", file=stream, flush=True)
            elif kind == "returned":
                member.returned, member.value = True, message["value"]
            elif kind == "failed":
                member.failure = message
            else:
                self._tell(kind, member, **message)
        if not wire.open:
            self._selector.unregister(wire)
            wire.close()
            member.wire = None

    def _give_memory(self, wire: Wire, name: str, size: int, signature: list[Any]) -> None:
        found = self._memories.get(name)
        if found is None:
            found = self._memories[name] = Memory(new_memory(size), size, signature)
        if found.signature != signature:
            wire.send({"error": f"'{name}' has the form {_short(found.signature)} for one member "
                       f"and {_short(signature)} for another. Give all the same."})  # fmt: skip
        else:
            wire.send({}, (found.fd,))

    def _on_death(self, member: Member) -> None:
        self._selector.unregister(member.pidfd)
        os.close(member.pidfd)
        member.pidfd = -1
        while member.wire is not None:  # its last words
            self._on_words(member, member.wire)
        while member.pid not in self._statuses:
            self._on_birth(self._births)
        status = self._statuses.pop(member.pid)
        if member.returned or (self._stop_at is not None and status == 0):
            self._ended(member)
            return
        now = monotonic()
        cause = member.why or _cause(status, member.failure)
        unborn = member.failure is not None and int(self.pulse_N[member.rank, pulse.BEAT]) <= 1
        delay = None if unborn else member.health.died(now, cause)
        replaceable = member.role not in self.essential and self._stop_at is None
        self._tell("died", member, cause=cause, replaced=replaceable and delay is not None,
                   trace=(member.failure or {}).get("trace"))  # fmt: skip
        if self._stop_at is not None:
            return  # it was leaving anyway
        if replaceable and delay is not None:
            member.due = now + delay
        elif not replaceable or unborn or not self._others_like(member):
            raise _failure(member, cause)
        else:
            self._tell("quarantined", member, causes=list(member.health.causes))

    def _ended(self, member: Member) -> None:
        """Once the members that nobody replaces have returned, the others have nothing to do."""
        last = self.essential or {m.role for m in self.members}
        if all(m.returned or not m.alive for m in self.members if m.role in last):
            if self.signal.reason is None and any(m.alive for m in self.members):
                self.signal.stop("done")

    def _others_like(self, member: Member) -> bool:
        return any(
            m.role == member.role and not m.health.quarantined
            for m in self.members
            if m is not member
        )

    def _kill(self, member: Member, why: str) -> None:
        member.why = why
        signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)

    def _tell(self, kind: str, member: Member, **what: Any) -> None:
        if self._hear is not None:
            seat = Seat(member.rank, member.generation, tuple(self._seats))
            self._hear(kind, member=member.name, generation=seat.generation, **what)

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """The team's memory, to look at when all is over."""
        for name, memory in self._memories.items():
            if memory.signature:
                yield name, Block(layout_of(memory.signature), os.dup(memory.fd))

    def __exit__(self, *_: object) -> None:
        """Nothing outlives the launcher."""
        for member in self.members:
            if member.alive:
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)
        self._births.end.shutdown(socket.SHUT_RDWR)
        self._births.close()
        self._zygote.wait(timeout=10)
        for member in self.members:
            if member.alive:
                os.close(member.pidfd)
            if member.wire is not None:
                member.wire.close()
        self._selector.close()
        self.roster.close()
        for name, memory in self._memories.items():
            if name != ROSTER:
                os.close(memory.fd)


def _short(signature: list[Any]) -> str:
    return ", ".join(f"{name} {kind}{shape}" for name, shape, kind in signature)[:300]


def _cause(status: int, failure: dict[str, Any] | None) -> str:
    if failure is not None:
        return f"{failure['type']}: {failure['error']}"
    if status == -signal.SIGKILL:
        return "killed by signal 9 (out of memory, if nobody else did it)"
    return f"killed by signal {-status}" if status < 0 else f"exited with status {status}"


def _failure(member: Member, cause: str) -> Exception:
    if member.failure is not None and member.failure["user"]:
        return UserError(f"{member.name}: {member.failure['error']}")
    trace = (member.failure or {}).get("trace", "")
    again = f" after {member.health.deaths} deaths" if member.health.deaths > 1 else ""
    return MemberError(f"{member.name} failed{again}: {cause}\n{trace}".rstrip())


def enough_descriptors(num_members: int) -> None:
    """Each member takes two here; raise the limit, or say before the start that it is too low."""
    wanted = 2 * num_members + 128
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted <= soft:
        return
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise UserError(
            f"{num_members} members need {wanted} file descriptors and this process may have "
            f"{hard}. Raise it (ulimit -n {wanted}) or start fewer."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
