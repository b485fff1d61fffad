"""When a member counts as hung, and what follows a death: rules without clocks or processes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from covey.memory import pulse

REPLACEABLE = ("actor", "worker", "evaluator")
LONGEST_LOOK = 0.5  # seconds between two looks that count: a launcher that slept saw nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """How much patience the supervisor has, in seconds, and whom it replaces."""

    step: float = 30.0  # without progress, while running
    reset: float = 120.0  # without progress, in the reset of an environment
    start: float = 600.0  # without progress, outside of a task: before its first round, or after
    save: float = 120.0  # without progress, while saving
    learn: float = 600.0  # without progress, of members that keep something: all would end
    grace: float = 1.5  # without progress, once all were asked to stop
    last_grace: float = 25.0  # the same, of members that keep something: they save
    mute: float = 1.0  # of a member that closed its connection
    replace: tuple[str, ...] = REPLACEABLE  # roles whose dead get a successor
    keepers: tuple[str, ...] = ()  # of these, roles that have something to leave behind
    failures: int = 5  # deaths in a row, each soon after a start, until quarantine
    soon: float = 1.0  # a life shorter than this failed at once
    first_delay: float = 0.1  # before the second replacement in a row; doubled each time
    longest_delay: float = 30.0

    def keeps(self, role: str) -> bool:
        """Whether all wait for this role in the end: nobody replaces it, or it keeps something."""
        return role not in self.replace or role in self.keepers

    def patience(self, phase: int, keeps: bool = False) -> float:
        """Seconds without progress that are allowed in a phase."""
        if phase == pulse.WAITING:
            return float("inf")  # every wait has a deadline of its own
        by_phase = {
            pulse.RESETTING: self.reset, pulse.STARTING: self.start,
            pulse.SAVING: self.save, pulse.ENDED: self.grace,
        }  # fmt: skip
        patience = by_phase.get(phase, self.step)
        return max(patience, self.learn) if keeps else patience

    def patience_at_stop(self, phase: int, keeps: bool) -> float:
        """The same, once all were asked to stop."""
        if phase == pulse.RESETTING and keeps:
            return self.reset  # of the environments that it evaluates on
        if phase == pulse.SAVING or (phase == pulse.RUNNING and keeps):
            return self.last_grace
        return self.grace


@dataclass(slots=True)
class Health:
    """One place in the team, through all its generations."""

    care: Care
    idle: float = 0.0  # seconds without progress
    short_lives: int = 0
    deaths: int = 0
    quarantined: bool = False
    causes: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    _beat: int = -1
    _looked_at: float = 0.0
    _born_at: float = 0.0

    def born(self, now: float) -> None:
        """A new generation begins."""
        self._born_at = self._looked_at = now
        self.idle = 0.0

    def look(self, beat: int, now: float) -> float:
        """Seconds without progress, as far as somebody looked."""
        passed, self._looked_at = now - self._looked_at, now
        if beat != self._beat:
            self._beat, self.idle = beat, 0.0
        else:
            self.idle += min(passed, LONGEST_LOOK)
        return self.idle

    def died(self, now: float, cause: str) -> float | None:
        """Seconds to wait before the next generation; None: there will be none."""
        self.deaths += 1
        self.causes.append(cause)
        short = now - self._born_at < self.care.soon
        self.short_lives = self.short_lives + 1 if short else 0
        if self.short_lives >= self.care.failures:
            self.quarantined = True
            return None
        if self.short_lives <= 1:
            return 0.0
        doubled = 2.0 ** min(self.short_lives - 2, 100)
        return min(self.care.first_delay * doubled, self.care.longest_delay)
