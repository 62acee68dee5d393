"""A fair sample of what comes too fast to be recorded whole."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from nightmail.telemetry.counts import Observe

MOST_A_SECOND: Final = 100


class Sampled:
    """Passes on every value while they come slowly, and every n-th when they come faster than 100 a second.

    Every n-th and not the first hundred, which would be those that waited least: quantiles stay true, counts do not.
    Only in the first second of a burst, before it is detected, do the early ones weigh more.
    """

    __slots__ = ("_begun", "_every", "_now", "_record", "_recorded", "_seen")

    def __init__(self, record: Observe, now: Callable[[], float] = monotonic) -> None:
        self._record = record
        self._now = now
        self._begun = now()
        self._every = 1
        self._seen = 0
        self._recorded = 0

    def __call__(self, value: float) -> None:
        """Take this value, and pass it on if it is its turn."""
        elapsed = self._now() - self._begun
        if elapsed >= 1:
            self._every = int(self._seen / elapsed / MOST_A_SECOND) + 1
            self._begun += elapsed
            self._seen = self._recorded = 0
        if self._seen % self._every == 0:
            self._record(value)
            self._recorded += 1
            if self._recorded >= 2 * MOST_A_SECOND:
                # More than expected for this second: count as if only half had been recorded so far.
                self._every *= 2
                self._recorded = MOST_A_SECOND
        self._seen += 1
