"""Times and durations in the server's form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from nightmail.clock import Clock
from nightmail.message import Due
from nightmail.stores.mysql.text import Sql, literal
from nightmail.stores.shared.meta import NOTICE_HORIZON

EARLIEST: Final = datetime(1000, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
LONGEST: Final = timedelta(days=2_900_000)
"""Nearly eight thousand years: added to any time of our era it stays within the calendar."""
_MICROSECOND: Final = timedelta(microseconds=1)
_SERVERS_CLOCK: Final = Sql("utc_timestamp(6)")


def now(clock: Clock) -> Sql:
    """The time of the statement: the server's own, or what the clock shows."""
    moment = clock.now()
    return _SERVERS_CLOCK if moment is None else Sql(literal(moment))


def microseconds(length: timedelta) -> int:
    """A duration that can be added to a time."""
    return min(max(length, -LONGEST), LONGEST) // _MICROSECOND


def later(moment: Sql, length: timedelta) -> Sql:
    """This long after that time."""
    return Sql(f"({moment} + interval {microseconds(length)} microsecond)")


def due(when: Due, moment: Sql) -> Sql:
    """When it is due, never before this moment."""
    if isinstance(when, datetime):
        return Sql(f"greatest({literal(min(max(when, EARLIEST), LATEST))}, {moment})")
    return moment if when is None or when <= timedelta(0) else later(moment, when)


def is_soon(when: Due, clock: Clock) -> bool:
    """Whether it is due within the notice horizon, as far as this process knows the time."""
    if isinstance(when, datetime):
        when = when - (clock.now() or datetime.now(UTC))
    return when is None or when < NOTICE_HORIZON


def aware(moment: datetime) -> datetime:
    """A time as the driver returns it, in UTC without a time zone, made aware."""
    return moment.replace(tzinfo=UTC)


def aware_if_any(moment: datetime | None) -> datetime | None:
    """The same for one that may be missing."""
    return None if moment is None else moment.replace(tzinfo=UTC)


def shown(moment: object) -> datetime:
    """A time for display. An invalid date, written by others, is shown as long ago."""
    return aware(moment) if isinstance(moment, datetime) else EARLIEST


def shown_if_any(moment: object) -> datetime | None:
    """The same for one that may be missing."""
    return aware(moment) if isinstance(moment, datetime) else None
