"""What a second publish of a timer id does to the waiting message that owns it."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from nightmail.message import OnConflict

Moment = TypeVar("Moment", int, datetime)


def replaces(policy: OnConflict, due_at: Moment, waiting_due_at: Moment) -> bool:
    """Whether a message due at `due_at` takes the place of one that waits. `skip` and `raise` were decided before."""
    match policy:
        case "earliest":
            return due_at < waiting_due_at
        case "latest":
            return due_at > waiting_due_at
        case _:
            return True
