"""Times and durations in microseconds, times since 1970, as the scripts use them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from nightmail.clock import Clock

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Scores are floats. This one is exact, and a day before the end of the calendar.
LATEST: Final = 253_402_128_000_000_000
_MICROSECOND: Final = timedelta(microseconds=1)


def micros(length: timedelta) -> int:
    """A duration in microseconds, capped at the calendar."""
    return min(max(length // _MICROSECOND, -LATEST), LATEST)


def time_micros(time: datetime) -> int:
    """A time in microseconds; anything before 1970 counts as 1970."""
    return max(micros(time - EPOCH), 0)


@lru_cache(maxsize=1024)
def time_of(number: float) -> datetime:
    """A time from a script's reply. Cached: messages published or claimed together share them."""
    return EPOCH + timedelta(microseconds=number)


def time_or_none(number: float) -> datetime | None:
    """The same, where 0 means that there is none."""
    return time_of(number) if number else None


def now_argument(clock: Clock) -> bytes:
    """The time argument of a script: empty to use the server's clock."""
    now = clock.now()
    return b"" if now is None else b"%d" % time_micros(now)
