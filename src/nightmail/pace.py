"""How far ahead to fetch: by time, not by count.

What is fetched and not yet started is out of every other process's reach. So a worker fetches only as much as it
expects to handle within a fraction of a second, from the rate at which it has lately been finishing.
"""

from __future__ import annotations

from typing import Final

AHEAD_SECONDS: Final = 0.2
MOST_AHEAD: Final = 500
_NEWEST_COUNTS: Final = 0.5
# Over a shorter time than this, a rate is mostly noise.
_SHORTEST_SAMPLE: Final = 0.002


class Pace:
    """The lately seen rate of finishing, and what to fetch ahead because of it."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._finished = 0
        self._since: float | None = None

    def busy(self, now: float) -> None:
        """There is work in hand: the time counts from now, unless it counts already."""
        if self._since is None:
            self._since = now

    def idle(self, now: float) -> None:
        """Nothing in hand any more: time spent waiting for work says nothing about the rate."""
        if self._finished:
            self._sample(now)
        self._since = None

    def finished(self) -> None:
        """One more is finished."""
        self._finished += 1

    def ahead(self, now: float) -> int:
        """How many messages to have waiting in memory."""
        if self._finished and self._since is not None and now - self._since >= _SHORTEST_SAMPLE:
            self._sample(now)
        return min(int(self._rate * AHEAD_SECONDS), MOST_AHEAD)

    def _sample(self, now: float) -> None:
        if self._since is None:
            return
        seen = self._finished / max(now - self._since, _SHORTEST_SAMPLE)
        self._rate = seen if not self._rate else self._rate + _NEWEST_COUNTS * (seen - self._rate)
        self._since = now
        self._finished = 0
