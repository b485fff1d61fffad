"""Many processes on one machine: starts them, watches them, replaces them, ends them."""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from time import monotonic
from types import FrameType
from typing import Any

from covey.engines.care import Care, Health
from covey.engines.nursery import Nursery
from covey.engines.place import MemberError as MemberError
from covey.engines.place import Place
from covey.engines.program import pickled
from covey.engines.wire import Wire, pair
from covey.errors import UserError
from covey.links.signal import Signal
from covey.memory import pulse
from covey.memory.bell import Bells
from covey.memory.block import Block, layout_of, new_memory, signature
from covey.team import ROSTER, Main, roster, section

PRELOAD = ("torch", "cloudpickle", "covey.steps", "covey.apply", "covey.engines.warm")
LOOK_EVERY = 0.02  # seconds between two looks at the pulses
BIRTH_SECONDS = 120.0  # a crowd that acts may leave the zygote little of the processor
MOST_UNBORN = 32  # asked for at once: the wire has room for what both ends say of so many
DESCRIPTORS = 3  # of the launcher, for each member
SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGUSR1: "requeue"}
TWICE_SECONDS = 0.2  # a Ctrl-C may come twice: from the terminal, and from what started this
WORDS, BIRTHS, DEATHS = range(3)  # the order in which events are dealt with


def run(
    main: Main, *, seed: int, members: Mapping[str, int], care: Care | None = None,
    hear: Callable[..., None] | None = None, preload: tuple[str, ...] = PRELOAD,
    threads: int = 0, raise_signals: bool = True,
    begun: Callable[[Callable[[str], None]], None] | None = None,
) -> list[Any]:  # fmt: skip
    """What `main` returned in each member, by rank.

    The first SIGINT, SIGTERM or SIGUSR1 asks all to stop and is raised again once they have
    (unless not `raise_signals`); a second SIGINT does not wait.
    """
    if not members:
        raise UserError("the engine processes needs to know its members, as actor=4, learner=1.")
    for role, num in members.items():
        if not isinstance(num, int) or num < 1:
            raise UserError(f"{role}={num!r} must be a whole number of at least 1.")
    with Launcher(members, care or Care(), hear) as launcher:
        if begun is not None:
            begun(launcher.signal.stop)
        found = launcher.run(main, seed, preload, threads)
        number = launcher.signalled
    if number is not None and raise_signals:
        signal.raise_signal(number)  # by now whoever handled it before does so again
    return found


class Launcher:
    """Owns the team's memory and its processes, and outlives them all."""

    def __init__(
        self, members: Mapping[str, int], care: Care, hear: Callable[..., None] | None = None
    ) -> None:
        self.care, self._hear = care, hear
        self.seats = [(role, index) for role, num in members.items() for index in range(num)]
        self.places = [
            Place(rank, role, index, role in care.replace, care.keeps(role), Health(care))
            for rank, (role, index) in enumerate(self.seats)
        ]
        self.essential = {role for role in members if care.keeps(role)}
        self.signalled: int | None = None
        self._signalled_at = 0.0
        self._memories: dict[str, tuple[int, list[Any]]] = {}  # descriptor, signature
        self._stop_at: float | None = None
        self._over_at: float | None = None  # when those that nobody replaces had all returned
        self._error: Exception | None = None
        self._closing = False
        self._nursery = Nursery()
        self._selector = selectors.DefaultSelector()
        self._handlers = ExitStack()

    def __enter__(self) -> Launcher:
        self._take_signals()
        num = len(self.places)
        self.roster = Block(roster(num))
        self._memories[ROSTER] = self.roster.fd, signature(self.roster.layout)
        bells = Bells(section(self.roster, "bells")["word"], 0)
        self.signal = Signal(section(self.roster, "signal"), num, bells.ring_all)
        self.pulse_N = section(self.roster, "pulse")["pulse"]
        return self

    def _take_signals(self) -> None:
        """Those that nobody else handles."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    before = signal.signal(number, self._on_signal)
                    self._handlers.callback(signal.signal, number, before)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._closing:
            return
        again = self.signalled is not None and number == signal.SIGINT
        if not self._nursery.ready or (again and monotonic() - self._signalled_at > TWICE_SECONDS):
            raise KeyboardInterrupt
        self.signalled, self._signalled_at = self.signalled or number, monotonic()
        self.signal.stop(SIGNALS[signal.Signals(number)])

    def run(
        self, main: Main, seed: int, preload: tuple[str, ...] = PRELOAD, threads: int = 0
    ) -> list[Any]:
        """Until every member has ended."""
        program = pickled(main)
        enough_descriptors(DESCRIPTORS * len(self.places))
        cores = len(os.sched_getaffinity(0))
        threads = threads or max(1, cores // len(self.places))
        job = {"members": self.seats, "seed": seed, "threads": threads, "preload": preload}
        self._nursery.begin(job, program)
        self._selector.register(self._nursery.wire, selectors.EVENT_READ, (BIRTHS, self._on_births))
        while any(place.busy for place in self.places):
            self._deal(self._selector.select(LOOK_EVERY))
            self._look(monotonic())
        if self._error is not None:
            raise self._error
        return [place.value for place in self.places]

    def _deal(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        """What members say comes before their deaths, which close what they said it on."""
        for key, _ in sorted(events, key=lambda event: event[0].data[0]):
            key.data[1]()

    def _look(self, now: float) -> None:
        reason = self.signal.reason
        if reason is not None and self._stop_at is None:
            self._stop_at = now
        beats, phases = self.pulse_N[:, pulse.BEAT].tolist(), self.pulse_N[:, pulse.PHASE].tolist()
        unborn = sum(place.asked_at is not None for place in self.places)
        for place in self.places:
            if self._stop_at is not None:
                place.due = None
            if place.due is not None and now >= place.due and unborn < MOST_UNBORN:
                self._ask(place, now)
                unborn += 1
            if place.asked_at is not None and now - place.asked_at > BIRTH_SECONDS:
                raise MemberError(f"{place.name} was not born in {BIRTH_SECONDS:g} s.")
            if place.pidfd >= 0 and place.killed is None:
                self._feel(place, beats[place.rank], phases[place.rank], now)

    def _feel(self, place: Place, beat: int, phase: int, now: float) -> None:
        """Kill a member that makes no progress, or that nobody waits for any more."""
        idle = place.health.look(beat, now)
        patience = self.care.patience(phase, place.keeps)
        if self._stop_at is not None:
            at_stop = self.care.patience_at_stop(phase, place.keeps)
            over = self._over_at is not None and now - self._over_at > at_stop
            if over or min(idle, now - self._stop_at) > min(at_stop, patience):
                place.kill("did not end when all were asked to stop")
        elif place.wire is None and now - place.mute_at > self.care.mute:
            place.kill("closed its connection to the launcher")
        elif idle > patience or (idle > self.care.step and place.stopped()):
            if not place.stopped():
                place.show_stacks()
            place.kill(f"no progress for {idle:.1f} s while {pulse.PHASES[phase]}")

    def _ask(self, place: Place, now: float) -> None:
        """Have the next generation born."""
        place.due, place.asked_at, place.generation = None, now, place.generation + 1
        place.failure = place.killed = None
        self.pulse_N[place.rank, pulse.PHASE] = pulse.STARTING
        self.pulse_N[place.rank, pulse.GENERATION] = place.generation
        place.health.born(now)
        ours, theirs = pair()
        place.wire, place.words = Wire(ours), os.memfd_create("covey-words")
        self._selector.register(
            place.wire, selectors.EVENT_READ, (WORDS, lambda: self._on_words(place))
        )
        with theirs:
            seat = {"rank": place.rank, "generation": place.generation}
            self._nursery.ask(seat, (theirs.fileno(), place.words))

    def _on_births(self) -> None:
        for message, fds in self._nursery.lines():
            self._on_birth(message, fds)

    def _on_birth(self, message: dict[str, Any], fds: list[int]) -> None:
        place = self.places[message["rank"]]
        place.asked_at = None
        if "unborn" in message:
            self._lose(place, f"could not be started: {message['error']}")
            return
        place.pid, place.pidfd = message["born"], fds[0]
        self._selector.register(
            place.pidfd, selectors.EVENT_READ, (DEATHS, lambda: self._on_death(place))
        )
        self._tell("started", place, pid=place.pid)

    def _on_words(self, place: Place, flags: int = 0) -> None:
        """What a member says."""
        wire = place.wire
        assert wire is not None
        try:
            for message, _ in wire.lines(flags):
                self._on_word(place, wire, **message)
        except ValueError as error:  # not JSON, or too long
            place.kill(f"said what nobody understands: {error}")
            wire.open = False
        if not wire.open:
            self._selector.unregister(wire)
            wire.close()
            place.wire, place.mute_at = None, monotonic()

    def _on_word(self, place: Place, wire: Wire, kind: str, **what: Any) -> None:
        if kind == "memory":
            self._give_memory(wire, **what)
        elif kind == "print":
            stream = sys.stderr if what["stream"] == "stderr" else sys.stdout
            code = getattr(stream, "encoding", None) or "utf-8"
            line = what["line"].encode(code, "backslashreplace").decode(code)
            print(f"[{place.name}] {line}", file=stream, flush=True)
        elif kind == "returned":
            place.returned, place.value = True, what["value"]
        elif kind == "failed":
            place.failure = what
        else:
            self._tell(kind, place, **what)

    def _give_memory(self, wire: Wire, name: str, size: int, signature: list[Any]) -> None:
        if name not in self._memories:
            self._memories[name] = new_memory(size), signature
        fd, first = self._memories[name]
        if first == signature:
            wire.send({}, (fd,))
            return
        wire.send({"error": f"'{name}' has the form {_short(first)} for one member and "
                   f"{_short(signature)} for another. Give all the same."})  # fmt: skip

    def _on_death(self, place: Place) -> None:
        try:
            while place.wire is not None:  # its last words; a process of its own may hold the wire
                self._on_words(place, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        for message, fds in self._nursery.status(place.pid):
            self._on_birth(message, fds)
        status, words = self._nursery.ended(place.pid), place.last_words()
        place.clear(self._selector)
        if place.returned or (self._stop_at is not None and status == 0):
            self._end(place)
        else:
            trace = (place.failure or {}).get("trace") or words
            self._lose(place, place.cause(status), trace)

    def _lose(self, place: Place, cause: str, trace: str = "") -> None:
        """A generation has ended before its time: another, or none, or the end of all."""
        place.clear(self._selector)
        now = monotonic()
        delay = place.health.died(now, cause)
        again = place.replaceable and delay is not None and not place.hopeless
        again = again and self._stop_at is None
        fatal = self._stop_at is None and not again and not self._spares(place)
        self._tell("died", place, cause=cause, replaced=again, fatal=fatal, trace=trace)
        if again and delay is not None:
            place.due = now + delay
        elif self._stop_at is not None:
            if place.keeps or place.hopeless:  # what it was to leave behind is missing
                self._error = self._error or place.error(cause, trace)
        elif fatal:
            raise place.error(cause, trace)
        else:
            self._tell("quarantined", place, causes=list(place.health.causes))

    def _end(self, place: Place) -> None:
        """Once the members that nobody replaces have returned, the others have nothing to do."""
        last = self.essential or {p.role for p in self.places}
        if any(p.busy for p in self.places if p.role in last):
            return
        self._over_at = monotonic()
        if self.signal.reason is None:
            self.signal.stop("done")

    def _spares(self, place: Place) -> bool:
        """Whether the team can do without whoever was here, because others do the same."""
        same = (p for p in self.places if p.role == place.role and p is not place)
        others = any(not p.health.quarantined for p in same)
        return others and place.replaceable and not place.hopeless

    def _tell(self, kind: str, place: Place, **what: Any) -> None:
        if self._hear is not None:
            self._hear(kind, member=place.name, generation=place.generation, **what)

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """The team's memory, to look at when all is over."""
        for name, (fd, form) in self._memories.items():
            if form:
                yield name, Block(layout_of(form), os.dup(fd))

    def __exit__(self, *_: object) -> None:
        """Nothing outlives the launcher."""
        self._closing = True  # another Ctrl-C would leave something behind
        with self._handlers:
            for place in self.places:
                place.kill()
            self._nursery.end()
            for place in self.places:
                place.clear(self._selector)
            self._selector.close()
            self.roster.close()
            del self.pulse_N, self.signal  # the memory goes with its last array
            for name, memory in self._memories.items():
                if name != ROSTER:
                    os.close(memory[0])


def _short(signature: list[Any]) -> str:
    return ", ".join(f"{name} {kind}{shape}" for name, shape, kind in signature)[:300]


def enough_descriptors(wanted: int, others: int = 128) -> None:
    """Raise the limit to what will be needed here, or say before the start that it is too low."""
    wanted += others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted <= soft:
        return
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise UserError(
            f"these members need {wanted} file descriptors and this process may have {hard}. "
            f"Raise it (ulimit -n {wanted}) or start fewer."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
