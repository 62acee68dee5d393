"""What was sent, by which connection, and after which answers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

OTHERS: Final = "others"
ANOTHER: Final = "another store"


@dataclass(frozen=True, slots=True)
class Sent:
    """One statement or command."""

    text: str
    how: str = ""
    """What is asked for, where that is not simply to run it."""
    on: str = ""
    """What it is about, where that says how large it is."""


@dataclass(slots=True)
class RoundTrip:
    """What one connection sent before it was answered."""

    connection: str
    sent: list[Sent] = field(default_factory=list)


class Line:
    """One connection. It is known by what it was opened for."""

    def __init__(self, record: Record, name: str = "") -> None:
        self._record = record
        self._name = name or record.opening
        self._trip: RoundTrip | None = None

    def sends(self, *sent: Sent) -> None:
        """It sends this, in the round trip that is under way or in a new one."""
        with self._record.lock:
            if self._trip is None:
                self._trip = RoundTrip(self._name)
                self._record.trips.append(self._trip)
            self._trip.sent += sent

    @contextmanager
    def open(self) -> Iterator[None]:
        """It is open in this block: what it sends may be noticed only later."""
        with self._record.lock:
            self._record.open[self._name] += 1
        try:
            yield
        finally:
            with self._record.lock:
                self._record.open[self._name] -= 1

    def is_answered(self) -> None:
        """Something came back: what is sent from now on was sent after waiting."""
        with self._record.lock:
            self._trip = None


class Record:
    """Everything that is sent, by every connection."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.trips: list[RoundTrip] = []
        self.opening = OTHERS
        self.open: Counter[str] = Counter()
        """How many connections of each name are open."""

    @contextmanager
    def connections_for(self, name: str) -> Iterator[None]:
        """Connections that are opened in this block have this name."""
        before, self.opening = self.opening, name
        try:
            yield
        finally:
            self.opening = before

    async def hung_up(self, *names: str) -> None:
        """Until no connection of these names is open: some take leave without waiting for an answer."""
        while any(self.open[name] for name in names):  # noqa: ASYNC110 - another thread knows it
            await asyncio.sleep(0.005)

    def clear(self) -> None:
        """Forget what was sent so far."""
        with self.lock:
            self.trips = []

    def taken(self) -> list[RoundTrip]:
        """What was sent since the last time."""
        with self.lock:
            trips, self.trips = self.trips, []
            return trips
