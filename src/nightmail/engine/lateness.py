"""How late the handlers of a worker start: what `status` shows as lateness."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from nightmail.message import Delivery

_SHORTEST_SECONDS: Final = 5.0
"""What was seen is forgotten in steps of at least this, however often it is asked for."""
_MOST_SAMPLED: Final = 1000


class Lateness:
    """Measures one message of each queue in each claim, the one that waits longest: a message costs nothing by itself.

    The store says how long it had been due when it was claimed, from there on the monotonic clock counts: that the
    clocks of two machines differ does not matter.
    """

    def __init__(self) -> None:
        self.sampled: dict[int, float] = {}
        """The ids of those that are measured, and when each was due by the monotonic clock, until they start."""
        self._since = time.monotonic()
        self._latest: dict[str, float] = {}
        self._latest_before: dict[str, float] = {}

    def claimed(self, deliveries: Iterable[Delivery], now: float) -> None:
        """These will start, in this order."""
        if len(self.sampled) > _MOST_SAMPLED:
            self.sampled.clear()  # Some were handed back and never started here.
        last_of_each = {delivery.queue: delivery for delivery in deliveries}
        for each in last_of_each.values():
            self.sampled[each.id] = now - (each.claimed_at - each.due_at).total_seconds()

    def started(self, delivery: Delivery, now: float) -> None:
        """The handler of this one, which is `sampled`, starts."""
        late = now - self.sampled.pop(delivery.id)
        self._latest[delivery.queue] = max(late, self._latest.get(delivery.queue, 0.0))

    def seconds(self) -> dict[str, float]:
        """How late the latest of each queue was, of those that started since this was asked the time before last."""
        latest = dict(self._latest_before)
        for queue, late in self._latest.items():
            latest[queue] = max(late, latest.get(queue, 0.0))
        now = time.monotonic()
        if now - self._since >= _SHORTEST_SECONDS:
            self._since, self._latest_before, self._latest = now, self._latest, {}
        return {queue: round(late, 3) for queue, late in latest.items()}
