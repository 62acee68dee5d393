"""How fast a worker gets its messages done: what `status` shows as going out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from nightmail.outcome import ENDS
from nightmail.store import Settlement

_SHORTEST_SECONDS: Final = 5.0
"""Over less than this a rate says little: it is taken from an earlier moment."""


class Pace:
    """Counts the messages that ended here, done or dead, by queue."""

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()
        self._since = time.monotonic()
        self._then: Counter[str] = Counter()

    def settled(self, settlements: Iterable[Settlement]) -> None:
        """The store has written these."""
        self._ended.update([each.delivery.queue for each in settlements if isinstance(each.outcome, ENDS)])

    def acked(self, queue: str) -> None:
        """A handler has ended one in its own transaction."""
        self._ended[queue] += 1

    def per_second(self) -> dict[str, float]:
        """How many ended each second since this was asked last, a few seconds ago or longer."""
        now = time.monotonic()
        seconds = max(now - self._since, 1.0)
        rates = {queue: round(count / seconds, 3) for queue, count in (self._ended - self._then).items()}
        if seconds >= _SHORTEST_SECONDS:
            self._since, self._then = now, self._ended.copy()
        return rates
