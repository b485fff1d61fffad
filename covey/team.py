"""The same `main` in every process, and what it asks of its place in the team."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from covey.errors import UserError
from covey.links import count as count_link
from covey.links import shared as shared_link
from covey.links import signal as signal_link
from covey.links.count import Count
from covey.links.gather import Gather
from covey.links.gather import layout as gather_layout
from covey.links.gradients import Gradients
from covey.links.gradients import layout as gradients_layout
from covey.links.latest import Latest, fields_of
from covey.links.replay import Replay, Share
from covey.links.replay import layout as replay_layout
from covey.links.shared import Shared
from covey.links.signal import Signal
from covey.links.stream import Stream
from covey.links.waits import Waits
from covey.memory import pulse as pulse_memory
from covey.memory import ring, snapshot
from covey.memory.bell import Bells
from covey.memory.block import Block, Layout, new_memory, signature, size_of
from covey.memory.priorities import Draw
from covey.memory.pulse import Pulse
from covey.task import Task
from covey.types import Algorithm, Array, Spec

if TYPE_CHECKING:
    from covey.apply import Averaged, Everyone, InPlace, ToOwner
    from covey.optim import Apply

Main = Callable[["Team"], Any]
ROSTER = "roster"  # the memory that every member has: bells, pulses, the stop signal, shared values


class Seat(NamedTuple):
    """A place in the team. `generation` counts the members that sat here before."""

    rank: int = 0
    generation: int = 0
    members: tuple[tuple[str, int], ...] = (("all", 0),)  # role and index, by rank


class Post(Protocol):
    """What an engine does for its members."""

    def memory(self, name: str, size: int, signature: list[Any]) -> int:
        """A descriptor of the team's memory of that name; the first to ask makes it."""

    def tell(self, kind: str, **what: Any) -> None:
        """Say something to whoever started the team."""


class Alone:
    """The post of a process that is the whole team."""

    def __init__(self, hear: Callable[..., None] = lambda kind, **what: None) -> None:
        self._hear = hear

    def memory(self, name: str, size: int, signature: list[Any]) -> int:
        """New memory: there is nobody to share it with."""
        return new_memory(size)

    def tell(self, kind: str, **what: Any) -> None:
        """Say it here."""
        self._hear(kind, **what)


def roster(num_members: int) -> Layout:
    """What every member has."""
    parts = {
        "signal": signal_link.layout(num_members),
        "shared": shared_link.layout(num_members),
        "pulse": pulse_memory.layout(num_members),
        "bells": {"word": ((num_members, 16), "i4")},
    }
    return {f"{part}.{name}": form for part, of in parts.items() for name, form in of.items()}


def section(block: Block, part: str) -> dict[str, Array]:
    """The arrays of one part of the roster."""
    return {
        name.removeprefix(f"{part}."): array
        for name, array in block.arrays.items()
        if name.startswith(f"{part}.")
    }


class Team:
    """This process: its roles, its random numbers, and the links to the others.

    `roles` None plays them all. Random numbers are children of one `SeedSequence`, by role, index
    and use: no two parts ever share a stream, and adding one changes no other.
    """

    def __init__(
        self, seed: int, roles: frozenset[str] | None = None,
        seat: Seat | None = None, post: Post | None = None, threads: int = 0,
    ) -> None:  # fmt: skip
        self.seat, self.post = seat or Seat(), post or Alone()
        self.rank, self.generation, self.members = self.seat
        self.role, self.index = self.members[self.rank]
        self.roles = roles if seat is None else frozenset({self.role})
        self.size, self.root_seed, self.threads = len(self.members), seed, threads
        self._blocks: dict[str, Block] = {}
        if seat is None:
            self._shared, self._waits = Shared(), Waits()
        else:
            self._take_seat()

    def _take_seat(self) -> None:
        block = self.block(ROSTER, roster(self.size))
        bells = Bells(section(block, "bells")["word"], self.rank)
        self.pulse_N = section(block, "pulse")["pulse"]
        signal = Signal(section(block, "signal"), self.rank, bells.ring_all)
        who = [f"{role} {index}" for role, index in self.members]
        self._waits = Waits(bells, signal, Pulse(self.pulse_N[self.rank]), who)
        self._shared = Shared(section(block, "shared"), self.rank)

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """Role and index, as people read it."""
        return f"{self.role} {self.index}"

    @property
    def pulse(self) -> Pulse:
        """What tells the supervisor that this member gets on."""
        return self._waits.pulse

    @property
    def waits(self) -> Waits:
        """How this member waits for others."""
        return self._waits

    @property
    def stopped(self) -> str | None:
        """Why the team stops, once it does."""
        return self._waits.signal.reason

    def stop(self, reason: str) -> None:
        """End everywhere, after the round; the first reason stays."""
        self._waits.signal.stop(reason)

    def wake(self) -> None:
        """Everybody who waits looks again."""
        for rank in range(self.size):
            self._waits.ring(rank)

    def await_others(self, seconds: float = 2.0) -> bool:
        """Once all stop: until the others have ended; False when that time is over before."""
        deadline = monotonic() + seconds
        while self.size > 1 and monotonic() < deadline:
            phase_N = self.pulse_N[:, pulse_memory.PHASE]
            if np.delete(phase_N == pulse_memory.ENDED, self.rank).all():
                return True
            sleep(0.005)
        return self.size == 1

    def plays(self, role: str) -> bool:
        """Whether a step of this role runs here."""
        return self.roles is None or role in self.roles

    def ranks(self, role: str) -> list[int]:
        """Who plays a role."""
        if self.roles is None:
            return [0]
        found = [rank for rank, (name, _) in enumerate(self.members) if name == role]
        if not found:
            known = sorted({name for name, _ in self.members})
            raise UserError(
                f"nobody in this team is {role}; its roles are {', '.join(known)}. "
                f"Start it with {role}=1, or name another role."
            )
        return found

    @property
    def seed(self) -> np.random.SeedSequence:
        """For this member's environments."""
        return self.child("env")

    def child(self, use: str) -> np.random.SeedSequence:
        """The seed of one use in this member; a successor has another."""
        key = [self.root_seed, *f"{self.role}/{use}".encode(), self.index]
        # a word of 0 before the generation keeps it apart from an index after a longer use
        return np.random.SeedSequence(key + [self.generation << 32] * (self.generation > 0))

    def common(self, use: str) -> np.random.SeedSequence:
        """The seed of a use that is the same in every member."""
        return np.random.SeedSequence([self.root_seed, *f"all/{use}".encode(), 0])

    def rng(self, use: str) -> np.random.Generator:
        """The random numbers of one use in this member."""
        return np.random.default_rng(self.child(use))

    def agent(
        self, algorithm: type[Any], env: Any, config: Any = None,
        network: Any = None, device: str = "cpu", apply: Apply | None = None,
    ) -> Algorithm:  # fmt: skip
        """An agent for an environment: the same first weights in every member, its own exploration.

        `apply` says who applies its gradients: `team.in_place`, `team.gradients`, `team.everyone`;
        without it, itself.
        """
        import torch

        spec: Spec = env.spec
        kind = "discrete" if spec.discrete else "continuous"
        if kind not in algorithm.actions:
            raise UserError(
                f"{algorithm.__name__} needs {' or '.join(algorithm.actions)} actions; "
                f"{env.name} has {kind} ones."
            )
        if not self.waits.alone:
            env.pulse = self.pulse
        # before the first weights are drawn: they too depend on how many threads compute them
        torch.set_num_threads(self.threads or threads_for(spec))
        seed_torch(first_number(self.common("weights")))
        agent: Algorithm = algorithm(
            spec, config or algorithm.Config(), self.rng("act"), network=network, device=device,
            apply=apply, place=(self.index, sum(role == self.role for role, _ in self.members)),
        )  # fmt: skip
        seed_torch(first_number(self.child("torch")))  # else all would drop out alike
        return agent

    def block(self, name: str, layout: Layout) -> Block:
        """Memory of that name, the same in all members that ask for it."""
        known = self._blocks.get(name)
        if known is None:
            fd = self.post.memory(name, size_of(layout), signature(layout))
            known = self._blocks[name] = Block(layout, fd)
        elif signature(known.layout) != signature(layout):
            raise UserError(f"'{name}' is the name of something else here; give each link its own.")
        return known

    def count(self, name: str) -> Count:
        """A total over all members."""
        return Count(name, self.block(name, count_link.layout(self.size)), self.rank)

    def latest(
        self, name: str, values: Algorithm | Mapping[str, Array], writer: str = "learner",
        publish: bool = True,
    ) -> Latest:  # fmt: skip
        """The newest weights of an agent, or other arrays, from one member to all.

        The first member of the writing role publishes what it has now: nobody acts before that.
        """
        arrays = values if isinstance(values, Mapping) else values.weights()
        write = self.ranks(writer)
        block = self.block(name, snapshot.layout(fields_of(arrays)))
        link = Latest(name, block, self._waits, self.rank, write)
        if publish and self.rank == write[0]:
            link.publish(arrays)
        return link

    def stream(
        self, name: str, fields: Layout, slots: int = 2, when_full: str = "wait",
        writers: str = "actor", readers: str = "learner",
    ) -> Stream:  # fmt: skip
        """Items from each writer to one of the readers; each writer has room for `slots`."""
        if when_full not in ("wait", "drop"):
            raise UserError(f"when_full='{when_full}' is unknown. Known: wait, drop.")
        if slots < 1 or not fields:
            raise UserError(f"'{name}' needs at least one slot, and items of at least one array.")
        write, read = self.ranks(writers), self.ranks(readers)
        slots += when_full == "drop"  # one is always being written
        block = self.block(name, ring.layout(fields, slots, len(write)))
        return Stream(name, block, self._waits, self.rank, write, read, when_full)

    def gather(self, name: str, everyone: bool = True) -> Gather:
        """In lockstep: an item of each member, in rank order, to everyone or to rank 0."""

        def memory(rank: int, place: int) -> int:
            return self.post.memory(f"{name}/{rank}/{place}", 0, [])

        who = [f"{role} {index}" for role, index in self.members]
        block = self.block(name, gather_layout(self.size))
        return Gather(name, block, self._waits, self.rank, who, memory, everyone)

    def gradient_link(
        self, name: str, size: int, every: int, max_lag: int | None, writers: str, owner: str
    ) -> Gradients:
        """Flat gradients of `size` numbers from each writer to one owner."""
        if every < 1 or (max_lag is not None and max_lag < 0):
            raise UserError(
                f"'{name}' with every={every}, max_lag={max_lag}: the owner applies the mean of at "
                "least one gradient, which may be 0 or more versions old."
            )
        write, read = self.ranks(writers), self.ranks(owner)[:1]
        slots = max(2, -(-every // len(write)) + 1)
        block = self.block(name, gradients_layout(size, slots, len(write)))
        stream = Stream(name, block, self._waits, self.rank, write, read)
        return Gradients(block, stream, write, every, max_lag)

    def replay(
        self, name: str, agent: Algorithm | None = None, capacity: int = 100_000,
        save_rows: bool = True, writers: str = "actor", readers: str = "learner",
        alpha: float = 0.0, beta: float = 0.4, anneal: int = 0,
    ) -> Replay:  # fmt: skip
        """Rows to learn from again and again, kept where they are written.

        With `alpha` they are drawn by priority, and weighted by `beta`, which rises to 1 over
        `anneal` batches.
        """
        rng, draw = self.rng(f"replay/{name}"), Draw(alpha, beta, anneal)
        alone = self.roles is None or self.size == 1
        if agent is None:
            if alone:
                return Replay(capacity, rng, save_rows, draw, name=name)
            raise UserError(
                f"team.replay('{name}', agent) needs the agent: rows of its form cross processes."
            )
        from covey.steps import example_rows

        write, read = ([0], [0]) if alone else (self.ranks(writers), self.ranks(readers))
        form = replay_layout(example_rows(agent), capacity, len(write), len(read))
        enough_memory(name, size_of(form), capacity)
        share = None if alone else Share(self._waits, self.rank, write, read)
        return Replay(capacity, rng, save_rows, draw, self.block(name, form), share, name)

    def in_place(self, name: str = "network") -> InPlace:
        """All workers apply their gradients to the same memory, without a lock (Hogwild!)."""
        from covey.apply import InPlace

        return InPlace(self, name)

    def gradients(
        self, name: str = "gradients", every: int = 1, max_lag: int | None = None,
        writers: str = "worker", owner: str = "learner",
    ) -> ToOwner:  # fmt: skip
        """Workers push gradients; the owner applies the mean of `every`."""
        from covey.apply import ToOwner

        return ToOwner(self, name, every, max_lag, writers, owner)

    def averaged(self, role: str = "learner") -> Averaged:
        """The members of a role apply the mean of their gradients, all the same updates."""
        from covey.apply import Averaged

        return Averaged(self, role)

    def everyone(self, name: str = "everyone") -> Everyone:
        """All members apply the mean of their gradients, in lockstep."""
        from covey.apply import Everyone

        return Everyone(self.gather(name))

    def task(self) -> Task:
        """A task for the roles that this process plays."""
        if self.roles is None:
            return Task(None, self._shared, self._waits)
        return Task(self.roles, self._shared, self._waits, self.count("env_steps"))

    def close(self) -> None:
        """Give the descriptors back."""
        for block in self._blocks.values():
            block.close()


def enough_memory(name: str, wanted: int, capacity: int) -> None:
    """Say before the start that a replay will not fit, once it is full."""
    with open("/proc/meminfo") as info:  # noqa: PTH123
        free = 1024 * next(int(line.split()[1]) for line in info if line.startswith("MemAvailable"))
    if wanted > free:
        fits = int(capacity * 0.8 * free / wanted)
        raise UserError(
            f"'{name}' with capacity = {capacity:,} takes {wanted / 2**30:.1f} GiB and "
            f"{free / 2**30:.1f} GiB are free. Set capacity to {fits:,} or less."
        )


def first_number(seed: np.random.SeedSequence) -> int:
    """For generators that want a number."""
    return int(seed.generate_state(1)[0])


def seed_torch(seed: int) -> None:
    """As `torch.manual_seed`, which notes down for a GPU who asked: a millisecond, even without."""
    import torch

    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def threads_for(spec: Spec) -> int:
    """Small networks are fastest on one thread; convolutions use what there is."""
    images = any(leaf.is_image for leaf in spec.leaves.values())
    return len(os.sched_getaffinity(0)) if images else 1


def run(
    main: Main, *, seed: int = 1, engine: str | None = None, care: Any = None, **members: int
) -> Any:
    """Run `main(team)` in every member: `run(main, actor=4, learner=1)`; alone it plays all roles.

    With members, a list of what each returned comes back, by rank.
    """
    from covey.catalog import engine as find_engine

    return find_engine(engine or ("processes" if members else "inline"))(
        main, seed=seed, members=members, care=care
    )
