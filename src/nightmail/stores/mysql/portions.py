"""What one claim takes when others are faster: in portions, each committed by itself, and handed out together.

On a Galera cluster the first commit wins, and the longer a claim takes the more often it loses: a large claim would get
nothing next to small ones on other nodes. So each time it is refused it asks for less, and then goes on until it has
what is wanted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from nightmail.message import Delivery
from nightmail.stores.shared.fairness import FairShare

SMALLER: Final = 4
"""The divisor of the portion size after a refusal."""
LARGER: Final = 2
"""The factor of the portion size after a success."""

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
        """What is claimed already: if the lease is as short as this claim is long, it could be claimed again."""

    @property
    def size(self) -> int:
        """How much to ask for now; 0 when it has all that is wanted."""
        return min(self._size, self._limit - len(self.ids))

    def refused(self) -> None:
        """The last portion was refused."""
        self._size = max(self.size // SMALLER, 1)

    def add(self, taken: Sequence[Delivery], size: int) -> None:
        """The last portion was committed, with these messages and this many bytes."""
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
        # The sort is stable.
        return taken[:share] + sorted(taken[share:], key=_PRIORITY, reverse=True)
