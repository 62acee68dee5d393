"""Messages taken by hand, one at a time, instead of being delivered to a handler.

No worker is involved: a decision is written when it is made, and the lease is not renewed. A caller that takes longer
calls `extend`. Observers get the same events as from a worker, except those of a handler.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress

from nightmail.broker.received import Received
from nightmail.engine.attempt import Attempt
from nightmail.engine.presence import Presence
from nightmail.engine.result import Decision
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.settling import BUSY_SECONDS
from nightmail.engine.shutdown import undisturbed
from nightmail.errors import LeaseLost, NightmailError
from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.outcome import Done, Release, WriteResult
from nightmail.store import Claimed, FullStore, Settlement, Source


async def take_one(
    source: Source,
    store: FullStore,
    queues: Sequence[str],
    attempt: Attempt,
    settings: WorkerSettings,
    timeout: float,
    observer: Observer,
    presence: Presence,
) -> Taken | None:
    """The next message of these queues, waiting for one as long as `timeout`; `None` if none came."""
    until = time.monotonic() + timeout
    with source.listen(queues) as bell:
        while True:
            bell.clear()
            claimed = await _claimed(source, queues, settings, observer, presence)
            for delivery in claimed.deliveries:
                if (skipped := attempt.skip_outcome(delivery)) is None:
                    return Taken(delivery, store, source, attempt, observer, probe=claimed.probe)
                await settle(source, observer, Settlement(delivery, skipped))
                if claimed.probe:
                    await store.probe_again(delivery)
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
        source: Source,
        attempt: Attempt,
        observer: Observer,
        *,
        probe: bool = False,
    ) -> None:
        super().__init__(delivery, store, write=self._decide)
        self._probe = probe
        self._source = source
        self._attempt = attempt
        self._observer = observer
        self._written_perhaps = False
        """Whether a decision was sent and its reply was lost: if the message is gone, that may be why."""

    def acked(self, deliveries: Sequence[Delivery]) -> None:
        """See `Received`. It is reported at once: nothing will report the end of the work."""
        if not self.result.acked_in_transaction:
            self.result.acked_in_transaction = True
            self._observer.acked_in_transaction(self.delivery)

    async def _decide(self, decision: Decision) -> None:
        """Write this decision, unless there is one already."""
        result = self.result
        before = result.decision
        result.error = None  # The caller has seen it, and decides now.
        result.decide(decision)
        if result.decision is before:
            return
        try:
            if await self.settle() is WriteResult.LOST:
                raise LeaseLost([self.delivery.id])
        except BaseException:
            result.decision = before  # Perhaps nothing was written: the decision can be made again.
            raise

    async def settle(self) -> WriteResult | None:
        """Write its result, for as long as its row is locked again; `None` if there is nothing to write."""
        settlement = self._attempt.settlement(self.delivery, self.result)
        if settlement is None:
            return None
        settlement.repeated |= self._written_perhaps
        self._written_perhaps = True
        result = await settle(self._source, self._observer, settlement)
        while result is WriteResult.BUSY:
            await asyncio.sleep(BUSY_SECONDS)
            result = await settle(self._source, self._observer, settlement)
        self._written_perhaps = False
        if self._probe and result is WriteResult.WRITTEN and isinstance(settlement.outcome, Done):
            await self.store.resume(self.delivery.queue, automatic=True)
        return result


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
    source: Source,
    queues: Sequence[str],
    settings: WorkerSettings,
    observer: Observer,
    presence: Presence,
) -> Claimed:
    """A claim that is not cut off: what it took would have no holder until its lease ends."""
    claiming = asyncio.create_task(_claim(source, queues, settings, presence))
    try:
        claimed = await asyncio.shield(claiming)
    except asyncio.CancelledError:
        # In a task of its own: anyio cancels again at every step, until we have left.
        await undisturbed(asyncio.create_task(_given_back(source, observer, claiming)))
        raise
    _told(claimed.deliveries, observer)
    return claimed


async def _claim(
    source: Source, queues: Sequence[str], settings: WorkerSettings, presence: Presence
) -> Claimed:
    token = presence.new_token()
    try:
        return await source.claim(queues, limit=1, lease=settings.lease, token=token)
    except Exception:
        # Only the reply may have been lost: then a message is leased and no one has it.
        with suppress(NightmailError):
            await source.recall(queues, token)
        raise


async def _given_back(source: Source, observer: Observer, claiming: Awaitable[Claimed]) -> None:
    with suppress(NightmailError):
        for delivery in _told((await claiming).deliveries, observer):
            await settle(source, observer, Settlement(delivery, Release()))


def _told(deliveries: Sequence[Delivery], observer: Observer) -> Sequence[Delivery]:
    if deliveries:
        observer.claimed(deliveries)
    return deliveries
