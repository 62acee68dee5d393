"""What the handlers of one queue have seen."""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Sequence
from typing import Any, Final

MARK_EVERY: Final = 1000


class Tally:
    """Counts messages and, where each has a time stamp, how late it came.

    One clock for everything, `time.time`: publisher, handler and server run on one machine, and due times are dates.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = 0.0
        self.with_first = 0
        """How many were seen at the first time: one, or a batch."""
        self.marks: list[float] = []
        """When each thousandth message was seen."""
        self._late, self._at = array("d"), array("d")
        self._lock = threading.Lock()

    def one(self, stamp: float | None = None) -> None:
        """A message was seen, sent or due at `stamp`."""
        now = time.time()
        self.some(1, now)
        if stamp is not None:
            self._late.append(now - stamp)
            self._at.append(now)

    def some(self, number: int, now: float | None = None) -> None:
        """Several were seen at once."""
        now = time.time() if now is None else now
        if not self.count:
            self.first, self.with_first = now, number
        before = self.count // MARK_EVERY
        self.count += number
        if self.count // MARK_EVERY != before:
            self.marks.append(now)
        self.last = now

    def one_in_a_thread(self, stamp: float | None = None) -> None:
        """Like `one`, from any thread."""
        with self._lock:
            self.one(stamp)

    def summary(self, since: float, until: float) -> dict[str, Any]:
        """All of it, the lateness of what was seen between two moments, and the lateness of every second."""
        return {
            "count": self.count,
            "first": self.first,
            "last": self.last,
            "marks": self.marks,
            "late": summarize(
                [late for at, late in zip(self._at, self._late, strict=True) if since <= at < until]
            ),
            "seconds": self._by_second(),
        }

    def _by_second(self) -> list[dict[str, float]]:
        seconds: dict[int, list[float]] = {}
        for at, late in zip(self._at, self._late, strict=True):
            seconds.setdefault(int(at), []).append(late)
        return [{"at": at, **summarize(values)} for at, values in sorted(seconds.items())]


def summarize(values: Sequence[float]) -> dict[str, float]:
    """How many, the least, the most, and what lies between."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "min": ordered[0],
        "p50": percentile(ordered, 0.5),
        "p95": percentile(ordered, 0.95),
        "p99": percentile(ordered, 0.99),
        "max": ordered[-1],
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least of these sorted values that this share of them does not exceed."""
    return ordered[math.ceil(len(ordered) * share) - 1]
