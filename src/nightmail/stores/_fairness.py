"""Which share of a claim goes to the oldest due message of all priorities."""

from __future__ import annotations

from collections import Counter
from typing import Final

ONE_IN: Final = 8


class FairShare:
    """Of every eight messages claimed from a queue, one is the oldest due, whatever its priority.

    Counted per queue and across claims, so that a worker which claims one at a time keeps the promise too.
    A low message therefore waits for at most eight times as many messages as were due before it.
    """

    def __init__(self) -> None:
        self._claimed: Counter[str] = Counter()

    def reserved(self, queue: str, limit: int) -> int:
        """How many of the next `limit` messages of this queue are to be the oldest due.

        What is handed out counts, not what was asked for: a claim that comes back short asks again with that.
        """
        before = self._claimed[queue]
        return (before + limit) // ONE_IN - before // ONE_IN

    def claimed(self, queue: str, count: int) -> None:
        """So many were claimed from this queue."""
        self._claimed[queue] += count
