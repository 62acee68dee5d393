"""The share of a claim that goes to the oldest due messages, whatever their priority."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from nightmail.message import Delivery

ONE_IN: Final = 8

_AGE: Final = attrgetter("due_at", "id")
_PRIORITY: Final = attrgetter("priority")


class FairShare:
    """Of every eight messages claimed from a queue, one is the oldest due, whatever its priority.

    Counted per queue and across claims, so that this also holds for a worker that claims one at a time.
    A low-priority message therefore waits for at most eight times as many messages as were due before it.
    """

    def __init__(self) -> None:
        self._claimed: Counter[str] = Counter()

    def reserved(self, queue: str, limit: int) -> int:
        """How many of the next `limit` messages of this queue must be the oldest due.

        Messages handed out count, not those asked for: a claim that comes back short asks again with its size.
        """
        before = self._claimed[queue]
        return (before + limit) // ONE_IN - before // ONE_IN

    def claimed(self, queue: str, count: int) -> None:
        """Record that `count` messages were claimed from this queue."""
        self._claimed[queue] += count

    def put_in_order(self, claimed: list[Delivery], queues: Sequence[str]) -> None:
        """Sort what was claimed: queue by queue, of each the share of the oldest first, then by priority."""
        by_queue: defaultdict[str, list[Delivery]] = defaultdict(list)
        for delivery in claimed:
            by_queue[delivery.queue].append(delivery)
        claimed.clear()
        for queue in queues:
            if taken := by_queue.get(queue):
                # The sort is stable.
                taken.sort(key=_AGE)
                share = self.reserved(queue, len(taken))
                self.claimed(queue, len(taken))
                claimed += taken[:share]
                claimed += sorted(taken[share:], key=_PRIORITY, reverse=True)
