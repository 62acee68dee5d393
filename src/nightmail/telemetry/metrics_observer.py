"""Turns events into numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from threading import Lock
from time import monotonic
from typing import Any, Final, TypeAlias

from nightmail.controls import PauseCause, QueueStatus
from nightmail.message import DeadDelivery, Delivery
from nightmail.observe import Observer
from nightmail.outcome import Dead, Done, Postpone, Release, Retry
from nightmail.store import Settlement
from nightmail.telemetry.counts import MOST_QUEUES, OTHER, Deliveries, Ending, Kind

Begin: TypeAlias = Callable[[str, Kind], Deliveries]
"""Makes the numbers of one queue, all at zero."""

_ENDINGS: Final[dict[type[Any], Ending]] = {
    Done: Ending.DONE,
    Retry: Ending.RETRIED,
    Postpone: Ending.POSTPONED,
    Dead: Ending.DEAD,
    Release: Ending.RELEASED,
}
RELEARN_SECONDS: Final = 60.0
"""For how long an estimate of the store's clock is used: it may be set back, or be another server's."""


class MetricsObserver(Observer):
    """Counts events. For one event loop: only `published` may be called from any thread."""

    def __init__(self, begin: Begin) -> None:
        self._messages = _ByQueue(begin, Kind.MESSAGE)
        self._letters = _ByQueue(begin, Kind.DEAD_LETTER)
        self._published: Counter[str] = Counter()
        self._publishing = Lock()
        self._pauses: Counter[tuple[str, PauseCause]] = Counter()
        self._resumed: Counter[str] = Counter()
        self.wakeups = 0
        self.times_unavailable = 0
        self.drain_timeouts = 0
        self.abandoned = 0
        self.queues: Mapping[str, QueueStatus] = {}
        """How the queues stood when last read. Replaced, never changed."""

    # ── what was counted ───────────────────────────────────────────────────────────────────────────────────

    @property
    def deliveries(self) -> list[Deliveries]:
        """The numbers of each queue that anything was claimed from."""
        # Copies: an exporter may read on its own thread while a queue is added.
        return [*self._messages.copy().values(), *self._letters.copy().values()]

    def published_by_queue(self) -> list[tuple[str, int]]:
        """How many were published to each queue."""
        with self._publishing:
            return list(self._published.items())

    def pauses(self) -> list[tuple[tuple[str, PauseCause], int]]:
        """How often each queue was paused from here, by cause."""
        return list(self._pauses.copy().items())

    def resumptions(self) -> list[tuple[str, int]]:
        """How often each queue was resumed from here."""
        return list(self._resumed.copy().items())

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────

    def published(self, queue: str, count: int) -> None:
        with self._publishing:
            known = queue in self._published or len(self._published) < MOST_QUEUES
            self._published[queue if known else OTHER] += count

    def claimed(self, deliveries: Sequence[Delivery]) -> None:
        now, last = monotonic(), None
        for delivery in deliveries:
            queue = self._of(delivery)
            queue.claimed += 1
            if queue is not last:
                last = queue
                _learn(queue, delivery, now)

    def started(self, delivery: Delivery) -> None:
        queue = self._of(delivery)
        queue.in_flight += 1
        # By the store's clock, which decides when it is due: ours may be minutes off.
        late = monotonic() + queue.store_ahead - delivery.due_at.timestamp()
        queue.late(late if late > 0 else 0.0)

    def ended(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        for delivery in deliveries:
            self._of(delivery).in_flight -= 1
        self._of(deliveries[0]).ran(seconds)

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        self._of(delivery).failures += 1

    def settled(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            delivery, outcome = settlement.delivery, settlement.outcome
            queue = self._of(delivery)
            ending = Ending.SUPERSEDED if delivery.superseded else _ENDINGS[type(outcome)]
            queue.endings[ending] += 1
            if isinstance(outcome, Dead):
                # A handler's own reason may be any text, and any text must not become a label.
                queue.reasons[outcome.reason if outcome.reason in queue.reasons else OTHER] += 1

    def acked_in_transaction(self, delivery: Delivery) -> None:
        self._of(delivery).endings[Ending.ACKED_IN_TRANSACTION] += 1

    def uncertain(self, settlement: Settlement) -> None:
        self._of(settlement.delivery).endings[Ending.UNCERTAIN] += 1

    def overdue(self, delivery: Delivery, seconds: float) -> None:
        self._of(delivery).overdue += 1

    def lease_lost(self, delivery: Delivery) -> None:
        self._of(delivery).lost_leases += 1

    def paused(
        self, queue: str, cause: PauseCause, by: str, delay: timedelta | None, reason: str | None
    ) -> None:
        self._pauses[self._known(queue), cause] += 1

    def resumed(self, queue: str, by: str) -> None:
        self._resumed[self._known(queue)] += 1

    def woken(self) -> None:
        self.wakeups += 1

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        self.times_unavailable += 1

    def drained(self, left: int) -> None:
        if left:
            self.drain_timeouts += 1
            self.abandoned += left

    def counted(self, queues: Sequence[QueueStatus] | None) -> None:
        if queues is None:
            # Stale numbers would look like a queue that is stuck.
            self.queues = {}
            return
        # Those with something in them first, for there may be too many.
        found = {each.queue: each for each in sorted(queues, key=_is_idle)}
        gone = {name: QueueStatus(queue=name) for name in self.queues.keys() - found.keys()}
        self.queues = dict(islice({**found, **gone}.items(), MOST_QUEUES))

    # ── within ─────────────────────────────────────────────────────────────────────────────────────────────

    def _known(self, queue: str) -> str:
        known = queue in self._resumed or len(self._resumed) < MOST_QUEUES
        name = queue if known else OTHER
        # From zero, not from the first event: that one would not show as an increase.
        self._resumed.setdefault(name, 0)
        for cause in PauseCause:
            self._pauses.setdefault((name, cause), 0)
        return name

    def _of(self, delivery: Delivery) -> Deliveries:
        return (self._letters if type(delivery) is DeadDelivery else self._messages)[delivery.queue]


class _ByQueue(dict[str, Deliveries]):
    """The numbers of each queue, begun when first asked for."""

    def __init__(self, begin: Begin, kind: Kind) -> None:
        super().__init__()
        self._begin = begin
        self._kind = kind

    def __missing__(self, queue: str) -> Deliveries:
        if len(self) < MOST_QUEUES or queue == OTHER:
            numbers = self[queue] = self._begin(queue, self._kind)
            return numbers
        return self[OTHER]


def _is_idle(status: QueueStatus) -> bool:
    return not (status.ready or status.scheduled or status.running or status.dead or status.pauses)


def _learn(queue: Deliveries, delivery: Delivery, now: float) -> None:
    """Estimate the store's clock from a claim whose answer has just arrived.

    It showed `claimed_at` some time ago, so the estimate is never ahead of it, and the greatest difference seen is the
    most accurate. That of a claim whose first answer was lost is far off.
    """
    ahead = delivery.claimed_at.timestamp() - now
    if ahead > queue.store_ahead or now - queue.learned_at > RELEARN_SECONDS:
        queue.store_ahead = ahead
        queue.learned_at = now
