"""From "at", "after" and "now" to a time, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from nightmail.message import Due

BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
END: Final = datetime.max.replace(tzinfo=UTC)
_NOTHING: Final = timedelta(0)


def after(now: datetime, delay: timedelta) -> datetime:
    """The time `delay` from now, capped at the end of the calendar."""
    try:
        return now + delay
    except OverflowError:
        return END


def due_time(due: Due, now: datetime) -> datetime:
    """When a message is due. A past due time means now."""
    if due is None:
        return now
    if isinstance(due, timedelta):
        return after(now, max(due, _NOTHING))
    if due <= now:
        return now
    try:
        return due.astimezone(UTC)
    except OverflowError:
        return END
