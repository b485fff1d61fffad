"""What a user did wrong, said in at most three lines with the way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake that the user can mend: printed without a traceback, status 2."""


class Stopped(Exception):
    """The team stops, so what waits is over. Not an error: the task ends its round with it."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known name, or with all of them when none is near."""
    known = sorted(known)
    exact_but_for_case = [k for k in known if k.lower() == name.lower()]
    close = exact_but_for_case or get_close_matches(name, known, n=3, cutoff=0.65)
    if close:
        return f"Did you mean {' or '.join(repr(k) for k in close)}?"
    listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"Known: {listed}."
