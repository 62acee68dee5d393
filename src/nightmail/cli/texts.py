"""What people type as values, and texts of messages that cannot move the cursor."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Final

from nightmail.cli.exit_codes import Refusal
from nightmail.describing import one_line

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|w)?")


def safe(text: object, limit: int = 200) -> str:
    """A text of a message, in one line, with its control characters spelled out."""
    return one_line(str(text), limit)


def duration(text: str) -> timedelta:
    """What was typed as a duration: `90`, `90s`, `5m`, `2h30m`, `7d`."""
    compact = text.replace(" ", "").lower()
    found = list(_LENGTH.finditer(compact))
    if not found or "".join(each.group() for each in found) != compact:
        raise Refusal(f"a duration looks like 90s, 5m, 2h30m or 7d, not {safe(text)}")
    seconds = math.fsum(float(each[1]) * _UNITS[each[2] or "s"] for each in found)
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise Refusal(f"{safe(text)} is too long") from None


def positive_duration(text: str) -> timedelta:
    """The same, and not nothing."""
    found = duration(text)
    if found <= timedelta(0):
        raise Refusal(f"{safe(text)} is no time at all: give a positive duration")
    return found


def time(text: str) -> datetime:
    """What was typed as a moment, with its time zone: `2026-11-17T10:00:00Z`."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal(f"a time looks like 2026-11-17T10:00:00Z, not {safe(text)}") from None
    if found.tzinfo is None:
        raise Refusal(f"{safe(text)} has no time zone: write 2026-11-17T10:00:00Z, or +01:00 at the end")
    return found
