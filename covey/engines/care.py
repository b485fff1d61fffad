"""When a member counts as hung, and what follows a death: rules without clocks or processes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from covey.memory import pulse

REPLACEABLE = ("actor", "worker", "evaluator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """How much patience the supervisor has, in seconds, and whom it replaces."""

    step: float = 30.0  # without progress, while running
    reset: float = 120.0  # without progress, in the reset of an environment or a start
    save: float = 120.0  # without progress, while saving
    grace: float = 1.5  # without progress, once all were asked to stop
    last_grace: float = 25.0  # the same, of members that are not replaceable: they save
    replace: tuple[str, ...] = REPLACEABLE  # roles
    failures: int = 5  # deaths in a row, each soon after a start, until quarantine
    soon: float = 1.0  # a life shorter than this failed at once
    first_delay: float = 0.1  # before the second replacement in a row; doubled each time
    longest_delay: float = 30.0

    def patience(self, phase: int) -> float:
        """Seconds without progress that are allowed in a phase."""
        if phase == pulse.WAITING:
            return float("inf")  # every wait has a deadline of its own
        if phase in (pulse.RESETTING, pulse.STARTING):
            return self.reset
        return self.save if phase == pulse.SAVING else self.step

    def patience_at_stop(self, phase: int, replaceable: bool) -> float:
        """The same, once all were asked to stop."""
        if phase == pulse.SAVING or not replaceable:
            return self.last_grace
        return self.grace


@dataclass(slots=True)
class Health:
    """One place in the team, through all its generations."""

    care: Care
    beat: int = -1
    beat_at: float = 0.0
    born_at: float = 0.0
    short_lives: int = 0
    deaths: int = 0
    quarantined: bool = False
    causes: deque[str] = field(default_factory=lambda: deque(maxlen=8))

    def born(self, now: float) -> None:
        """A new generation begins."""
        self.born_at = self.beat_at = now

    def idle(self, beat: int, now: float) -> float:
        """Seconds since the last progress."""
        if beat != self.beat:
            self.beat, self.beat_at = beat, now
        return now - self.beat_at

    def died(self, now: float, cause: str) -> float | None:
        """Seconds to wait before the next generation; None: there will be none."""
        self.deaths += 1
        self.causes.append(cause)
        short = now - self.born_at < self.care.soon
        self.short_lives = self.short_lives + 1 if short else 0
        if self.short_lives >= self.care.failures:
            self.quarantined = True
            return None
        if self.short_lives <= 1:
            return 0.0
        return min(self.care.first_delay * 2.0 ** (self.short_lives - 2), self.care.longest_delay)
