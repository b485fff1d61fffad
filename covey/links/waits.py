"""How a member waits for others: with a deadline, rung awake, and gone when the team stops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from covey.errors import Stopped, UserError
from covey.links.signal import Flag, Signal
from covey.memory.bell import Bells
from covey.memory.pulse import WAITING, Pulse

PATIENCE = 60.0  # seconds


class Waits:
    """One member's way to wait; without bells it is alone, and nobody will come."""

    def __init__(
        self, bells: Bells | None = None, signal: Signal | None = None,
        pulse: Pulse | None = None, who: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._bells, self.pulse = bells, pulse or Pulse()
        self.signal: Signal | Flag = signal or Flag()
        self._who = who
        self.seconds = 0.0  # spent waiting, ever

    @property
    def alone(self) -> bool:
        """Whether there is nobody else: what is not there now will never come."""
        return self._bells is None

    def names(self, ranks: Iterable[int]) -> str:
        """Members as people read them."""
        return ", ".join(self._who[r] if r < len(self._who) else f"rank {r}" for r in ranks)

    def until(
        self, ready: Callable[[], bool], what: Callable[[], str], seconds: float = PATIENCE
    ) -> bool:
        """Sleep until `ready()`; False at once where nobody could make it so.

        Raises `Stopped` when the team stops, and an error that says `what` when the time is over.
        """
        if ready():
            return True
        if self._bells is None:
            return False
        began = monotonic()
        with self.pulse.during(WAITING):
            came = self._bells.wait(lambda: ready() or self.signal.reason is not None, seconds)
        self.seconds += monotonic() - began
        if ready() or (came and self.signal.reason is None):  # it may have been ready for a moment
            return True
        if self.signal.reason is not None:
            raise Stopped(self.signal.reason)
        raise UserError(f"waited {seconds:g} s for {what()}.")

    def nap(self, seconds: float) -> None:
        """Sleep, or until the team stops."""
        if self._bells is not None:
            with self.pulse.during(WAITING):
                self._bells.wait(lambda: self.signal.reason is not None, seconds)

    def ring(self, rank: int) -> None:
        """Tell another member that there is something new."""
        if self._bells is not None:
            self._bells.ring(rank)

    def ring_all(self) -> None:
        """Tell everybody."""
        if self._bells is not None:
            self._bells.ring_all()
