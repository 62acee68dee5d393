"""Which clock a store goes by."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The time that a store goes by.

    Production uses the store's own clock, at the statement: that is what `None` means. A test gives a
    clock it can move, and every statement runs unchanged at the time that clock shows.
    """

    def now(self) -> datetime | None:
        """The moment to use, aware; or `None`: ask the store."""
        ...


class StoreClock:
    """The store's own clock: workers may disagree about the time, the store decides."""

    def now(self) -> None:
        """None: use the store's clock."""
        return
