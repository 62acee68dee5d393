"""Messages taken by hand, one at a time, instead of being delivered to a handler.

No worker is involved: a verdict is written when it is given, and the lease is not renewed. A caller that takes longer
calls `extend`. Observers get the same events as from a worker, except those of a handler.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from uuid import uuid4

from nightmail.broker.received import Nacked, Promised, Received, Verdict
from nightmail.engine.attempt import Attempt, decide
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.shutdown import undisturbed
from nightmail.engine.worker import BUSY_SECONDS
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.outcome import Outcome, Release, WriteResult
from nightmail.store import Claimed, FullStore, Settlement, Source


async def take_one(
    source: Source,
    store: FullStore,
    queues: Sequence[str],
    attempt: Attempt,
    settings: WorkerSettings,
    timeout: float,
    observer: Observer,
) -> Received | None:
    """The next message of these queues, waiting for one as long as `timeout`; `None` if none came."""
    until = time.monotonic() + timeout
    with source.listen(queues) as bell:
        while True:
            bell.clear()
            claimed = await _claimed(source, queues, settings, observer)
            for delivery in claimed.deliveries:
                if (skipped := attempt.skip_outcome(delivery)) is None:
                    return Taken(
                        delivery,
                        store,
                        write=partial(_write, source, settings, observer, delivery),
                        observer=observer,
                    )
                await settle(source, observer, Settlement(delivery, skipped))
            left = until - time.monotonic()
            if left <= 0:
                return None
            if not claimed.deliveries:
                pause = min(left, source.look_interval.total_seconds())
                if claimed.next_in is not None:
                    pause = min(pause, claimed.next_in.total_seconds())
                await bell.wait(pause)


class Taken(Received):
    """A delivery that was taken by hand."""

    def __init__(
        self,
        delivery: Delivery,
        store: FullStore,
        *,
        write: Callable[[Verdict, bool], Awaitable[None]],
        observer: Observer,
    ) -> None:
        super().__init__(delivery, store, write=write)
        self._observer = observer

    def judge(self, verdict: Verdict) -> None:
        """See `Received`. `Promised` is reported at once: nothing will report the end of the work."""
        before = self.verdict
        super().judge(verdict)
        if isinstance(self.verdict, Promised) and not isinstance(before, Promised):
            self._observer.promised(self.delivery)


async def settle(source: Source, observer: Observer, settlement: Settlement) -> WriteResult:
    """Write the outcome of a taken message and report the result: every claim ends in one such event."""
    (result,) = await source.settle([settlement])
    match result:
        case WriteResult.WRITTEN:
            observer.settled([settlement])
        case WriteResult.LOST:
            observer.lease_lost(settlement.delivery)
        case WriteResult.UNKNOWN:
            observer.uncertain(settlement)
    return result


async def _claimed(
    source: Source, queues: Sequence[str], settings: WorkerSettings, observer: Observer
) -> Claimed:
    """A claim that is not cut off: what it took would have no holder until its lease ends."""
    claiming = asyncio.ensure_future(source.claim(queues, limit=1, lease=settings.lease, token=uuid4()))
    try:
        claimed = await asyncio.shield(claiming)
    except asyncio.CancelledError:
        # In a task of its own: anyio cancels again at every step, until we have left.
        await undisturbed(asyncio.create_task(_given_back(source, observer, claiming)))
        raise
    _told(claimed.deliveries, observer)
    return claimed


async def _given_back(source: Source, observer: Observer, claiming: Awaitable[Claimed]) -> None:
    for delivery in _told((await claiming).deliveries, observer):
        await settle(source, observer, Settlement(delivery, Release()))


def _told(deliveries: Sequence[Delivery], observer: Observer) -> Sequence[Delivery]:
    if deliveries:
        observer.claimed(deliveries)
    return deliveries


async def _write(
    source: Source,
    settings: WorkerSettings,
    observer: Observer,
    delivery: Delivery,
    verdict: Verdict,
    repeated: bool,
) -> None:
    outcome: Outcome
    match verdict:
        case Promised():
            return  # Its transaction has written it.
        case Nacked():
            outcome = verdict.outcome(decide(settings, observer, delivery, None))
        case _:
            outcome = verdict
    settlement = Settlement(delivery, outcome, repeated)
    result = await settle(source, observer, settlement)
    while result is WriteResult.BUSY:
        await asyncio.sleep(BUSY_SECONDS)
        result = await settle(source, observer, settlement)
    if result is WriteResult.LOST:
        raise LeaseLost([delivery.id])
