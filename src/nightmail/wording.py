"""Numbers, times and durations as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_SHORTEST: Final = timedelta(milliseconds=1)


def count(number: float) -> str:
    """1,234,567."""
    return f"{number:,}"


def several(number: int, what: str) -> str:
    """1 dead letter, 1,234 dead letters."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def length(duration: timedelta) -> str:
    """The two largest units: `3 h 12 min`, `40 s`."""
    if abs(duration) < _SHORTEST:
        return "0 s"
    seconds = abs(duration).total_seconds()
    sign = "-" if duration < timedelta(0) else ""
    if seconds < 1:
        return f"{sign}{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{sign}{seconds:.0f} s"
    whole = int(seconds)
    for size, name, smaller_size, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{sign}{whole // size} {name}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError(seconds)


def moment(at: datetime) -> str:
    """In UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def when(at: datetime, now: datetime) -> str:
    """Both ways: `in 3 h 12 min (2026-11-17 04:05:06Z)`."""
    distance = at - now
    relative = f"in {length(distance)}" if distance > timedelta(0) else f"{length(-distance)} ago"
    return f"{relative} ({moment(at)})"
