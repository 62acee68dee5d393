"""How long a handler may ask to wait."""

from __future__ import annotations

from datetime import timedelta

from nightmail.durations import Duration, as_timedelta
from nightmail.message import check_not_too_far


def as_delay(delay: Duration) -> timedelta:
    """`delay` as a `timedelta`. One of centuries is a mistake in the unit: the message would never come back."""
    duration = as_timedelta("delay", delay)
    check_not_too_far("delay", duration)
    return duration
