"""Times and durations as microseconds since 1970, in which the scripts count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from nightmail.clock import Clock

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Scores are floating point numbers. This one is exact, and a day before the end of the calendar.
LATEST: Final = 253_402_128_000_000_000
_MICROSECOND: Final = timedelta(microseconds=1)


def micros(length: timedelta) -> int:
    """A duration in microseconds, none longer than the calendar."""
    return min(max(length // _MICROSECOND, -LATEST), LATEST)


def moment_micros(moment: datetime) -> int:
    """A moment in microseconds; what was before 1970 counts as then."""
    return max(micros(moment - EPOCH), 0)


@lru_cache(maxsize=1024)
def moment(number: float) -> datetime:
    """A moment of which the script has told. Remembered: what was published or claimed together shares them."""
    return EPOCH + timedelta(microseconds=number)


def moment_or_none(number: float) -> datetime | None:
    """The same, where 0 means that there is none."""
    return moment(number) if number else None


def now_argument(clock: Clock) -> bytes:
    """What a script is told about the time: nothing when it is to ask the server."""
    now = clock.now()
    return b"" if now is None else b"%d" % moment_micros(now)
