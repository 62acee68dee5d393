"""Times as SQLite keeps them: whole microseconds since 1970, UTC.

SQLite's own clock knows only milliseconds, so the process gives the time: all processes of one file run on one
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
    """A length of time."""
    return length // _MICROSECOND


@lru_cache(maxsize=4096)
def moment_of(microseconds: int) -> datetime:
    """The moment a stored time means. Cached: what was published, is due or was claimed together shares its times."""
    return _EPOCH + timedelta(microseconds=microseconds)


def readable_moment(stored: object) -> datetime:
    """The moment a stored time means; the end of the calendar for what other software stored and is none."""
    if isinstance(stored, int) and BEGINNING_OF_TIME <= stored <= END_OF_TIME:
        return moment_of(stored)
    return moment_of(END_OF_TIME)


def stored_moment(moment: datetime) -> int:
    """A moment as it is stored."""
    return in_microseconds(moment - _EPOCH)


BEGINNING_OF_TIME: Final = stored_moment(datetime.min.replace(tzinfo=UTC))
END_OF_TIME: Final = stored_moment(datetime.max.replace(tzinfo=UTC))


def after(now: int, delay: timedelta) -> int:
    """The moment `delay` from now; the end of the calendar when that lies beyond it."""
    return min(now + in_microseconds(delay), END_OF_TIME)


def before(now: int, age: timedelta) -> int:
    """The moment that was `age` ago; the beginning of the calendar when that lies before it."""
    return max(now - in_microseconds(age), BEGINNING_OF_TIME)


def due_moment(due: Due, now: int) -> int:
    """When a message is due. What lies in the past is due now."""
    if due is None:
        return now
    moment = after(now, due) if isinstance(due, timedelta) else min(stored_moment(due), END_OF_TIME)
    return max(moment, now)


class StoreTime:
    """What time it is, by the clock the store was given or else by the machine's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> int:
        """To compare with: rounded down, so that nothing counts as due a fraction of a microsecond early."""
        given = self._clock.now()
        return time.time_ns() // 1000 if given is None else stored_moment(given)

    def stamp(self) -> int:
        """To store, and to count delays from: rounded up, so that no delay is cut short."""
        given = self._clock.now()
        return -(-time.time_ns() // 1000) if given is None else stored_moment(given)
