"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

START: Final = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


class ManualClock:
    """Shows the time it was set to; `advance` moves it on."""

    def __init__(self, start: datetime = START) -> None:
        self._now = start

    def now(self) -> datetime:
        """The time shown."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Move on (or, with a negative `by`, step back) and return the new time."""
        self._now += by
        return self._now

    def move_to(self, moment: datetime) -> None:
        """Set the time shown."""
        self._now = moment
