"""How often handlers have failed of late, by queue: what a `Breaker` goes by."""

from __future__ import annotations

from collections import deque

from nightmail.breaker import Breaker


class FailureCounts:
    """The recent failures of one worker that its breaker counts. They outlive a run of the worker."""

    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker
        self._within = breaker.window.total_seconds()
        self._times: dict[str, deque[float]] = {}

    def counts(self, error: BaseException) -> bool:
        """Whether this is an error that counts."""
        return isinstance(error, self.breaker.on)

    def count(self, queue: str, at: float) -> float | None:
        """One more, at that moment; if that is too many, within how many seconds they were, and the count restarts."""
        times = self._times.setdefault(queue, deque(maxlen=self.breaker.failures))
        times.append(at)
        took = at - times[0]
        if len(times) < self.breaker.failures or took > self._within:
            return None
        times.clear()
        return max(took, 0.0)
