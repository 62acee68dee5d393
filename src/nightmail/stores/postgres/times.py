"""Times, durations and sizes, clamped to what Postgres and the driver accept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nightmail.message import Due

# The driver sends the last moment of the calendar as "infinity" and cannot read anything beyond it.
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
EARLIEST: Final = datetime(1, 1, 3, tzinfo=UTC)
LONGEST: Final = timedelta(days=2_900_000)
"""Nearly eight thousand years: added to any current time it stays within the calendar."""
LONGEST_AGO: Final = timedelta(days=1_000_000)
"""Nearly three thousand years: the calendar of Postgres begins in 4713 BC."""

MOST_BYTES: Final = 2**62
"""The largest size that a statement is given."""


def duration(length: timedelta | None) -> timedelta | None:
    """A duration that can be added to a time."""
    return None if length is None else min(max(length, -LONGEST_AGO), LONGEST)


def age(length: timedelta | None) -> timedelta | None:
    """A duration that can be subtracted from a time."""
    return None if length is None else min(max(length, -LONGEST), LONGEST_AGO)


def due_values(due: Due) -> dict[str, Any]:
    """When: at `due_at`, or `delay` after the statement."""
    if isinstance(due, datetime):
        return {"due_at": min(max(due, EARLIEST), LATEST).astimezone(UTC), "delay": None}
    return {"due_at": None, "delay": duration(due)}
