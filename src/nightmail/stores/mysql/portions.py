"""What one claim takes when others are quicker: in portions, each committed by itself, and handed out together.

On a Galera cluster whoever commits first wins, and the longer a claim takes the more often it loses: a large one would
get nothing beside small ones on other nodes. So each time it is refused it asks for less, and then goes on until it has
what is wanted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from nightmail.message import Delivery
from nightmail.stores._fairness import FairShare

SMALLER: Final = 4
"""By how much less is asked for after a refusal."""
LARGER: Final = 2
"""By how much more after one that got through."""

_AGE: Final = attrgetter("due_at", "id")
_PRIORITY: Final = attrgetter("priority")


class Portions:
    """What a claim has taken so far, and how much to ask for next."""

    def __init__(self, queues: Sequence[str], limit: int, shares: FairShare) -> None:
        self._queues = queues
        self._limit = limit
        self._shares = shares
        self._size = limit
        self._taken: defaultdict[str, list[Delivery]] = defaultdict(list)
        self._oldest: Counter[str] = Counter()
        self.bytes = 0
        self.ids: set[int] = set()
        """What is in hand: with a lease as short as this claim is long, it could be claimed once more."""

    @property
    def size(self) -> int:
        """How much to ask for now; 0 when it has all that was wanted."""
        return min(self._size, self._limit - len(self.ids))

    def refused(self) -> None:
        """The last one was refused."""
        self._size = max(self.size // SMALLER, 1)

    def add(self, taken: Sequence[Delivery], size: int) -> None:
        """The last one got through, with these, so many bytes."""
        self.bytes += size
        self._size *= LARGER
        self.ids.update(delivery.id for delivery in taken)
        for delivery in taken:
            self._taken[delivery.queue].append(delivery)
        for queue, count in Counter(delivery.queue for delivery in taken).items():
            self._oldest[queue] += self._shares.reserved(queue, count)
            self._shares.claimed(queue, count)

    def in_order(self) -> list[Delivery]:
        """All of it: queue by queue, the share of the oldest first, then by priority."""
        return [delivery for queue in self._queues for delivery in self._in_order(queue)]

    def _in_order(self, queue: str) -> list[Delivery]:
        taken = sorted(self._taken[queue], key=_AGE)
        share = self._oldest[queue]
        # A sort keeps the order of equals.
        return taken[:share] + sorted(taken[share:], key=_PRIORITY, reverse=True)
