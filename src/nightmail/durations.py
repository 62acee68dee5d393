"""A duration is a `timedelta` or a number of seconds wherever the API takes one."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeAlias

Duration: TypeAlias = timedelta | float


def as_timedelta(name: str, value: Duration) -> timedelta:
    """`value` as a `timedelta`; `name` is what an error calls it."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a timedelta or a number of seconds, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value}")
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise ValueError(f"{name} is too long: {value} seconds") from None


def as_positive(name: str, value: Duration) -> timedelta:
    """The same for a duration that must be positive."""
    duration = as_timedelta(name, value)
    if duration <= timedelta(0):
        raise ValueError(f"{name} must be positive, not {spoken(duration)}")
    return duration


def spoken(duration: timedelta) -> str:
    """As an error shows it: `timedelta` itself shows minus one second as "-1 day, 23:59:59"."""
    return f"{duration.total_seconds():g} s"
