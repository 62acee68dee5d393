"""Times as SQLite keeps them: whole microseconds since 1970, UTC.

SQLite's own clock has only milliseconds, so the process supplies the time: all processes that use a file run on one
machine and share its clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from nightmail.clock import Clock
from nightmail.message import Due

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def in_microseconds(length: timedelta) -> int:
    """A duration in microseconds."""
    return length // _MICROSECOND


@lru_cache(maxsize=4096)
def moment_of(microseconds: int) -> datetime:
    """The datetime of a stored time. Cached: messages published, due or claimed together share their times."""
    return _EPOCH + timedelta(microseconds=microseconds)


def readable_moment(stored: object) -> datetime:
    """The datetime of a stored time; the end of the calendar for an invalid value that other software stored."""
    if isinstance(stored, int) and BEGINNING_OF_TIME <= stored <= END_OF_TIME:
        return moment_of(stored)
    return moment_of(END_OF_TIME)


def stored_moment(moment: datetime) -> int:
    """A datetime as it is stored."""
    return in_microseconds(moment - _EPOCH)


BEGINNING_OF_TIME: Final = stored_moment(datetime.min.replace(tzinfo=UTC))
END_OF_TIME: Final = stored_moment(datetime.max.replace(tzinfo=UTC))


def after(now: int, delay: timedelta) -> int:
    """The time `delay` from now, at most the end of the calendar."""
    return min(now + in_microseconds(delay), END_OF_TIME)


def before(now: int, age: timedelta) -> int:
    """The time `age` ago, at least the beginning of the calendar."""
    return max(now - in_microseconds(age), BEGINNING_OF_TIME)


def due_moment(due: Due, now: int) -> int:
    """When a message is due. A time in the past means now."""
    if due is None:
        return now
    moment = after(now, due) if isinstance(due, timedelta) else min(stored_moment(due), END_OF_TIME)
    return max(moment, now)


class StoreTime:
    """The current time, by the store's configured clock or else by the machine's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> int:
        """For comparisons: rounded down, so that nothing is due a fraction of a microsecond early."""
        given = self._clock.now()
        return time.time_ns() // 1000 if given is None else stored_moment(given)

    def stamp(self) -> int:
        """For storing and as the start of delays: rounded up, so that no delay is cut short."""
        given = self._clock.now()
        return -(-time.time_ns() // 1000) if given is None else stored_moment(given)
