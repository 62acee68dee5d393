"""Messages taken by hand, one at a time, instead of being delivered to a handler.

No worker stands behind them: a verdict is written when it is given, and nobody renews the lease. Whoever takes longer
than that lasts calls `extend`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from uuid import uuid4

from nightmail.attempt import Attempt, decide
from nightmail.broker.received import Nacked, Promised, Received, Verdict
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.outcome import Outcome, Release, Standing
from nightmail.settings import WorkerSettings
from nightmail.store import Claimed, FullStore, Settlement, Source
from nightmail.worker import BUSY_SECONDS


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
            claimed = await _claimed(source, queues, settings)
            for delivery in claimed.deliveries:
                if (unrun := attempt.without_running(delivery)) is None:
                    return Received(
                        delivery, store, write=partial(_write, source, settings, observer, delivery)
                    )
                await source.settle([Settlement(delivery, unrun)])
            left = until - time.monotonic()
            if left <= 0:
                return None
            if not claimed.deliveries:
                pause = min(left, source.look_interval.total_seconds())
                if claimed.next_in is not None:
                    pause = min(pause, claimed.next_in.total_seconds())
                await bell.wait(pause)


async def _claimed(source: Source, queues: Sequence[str], settings: WorkerSettings) -> Claimed:
    """A claim that is not cut off: what it took would be nobody's until its lease ends."""
    claiming = asyncio.ensure_future(source.claim(queues, limit=1, lease=settings.lease, token=uuid4()))
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        taken = (await claiming).deliveries
        await source.settle([Settlement(delivery, Release()) for delivery in taken])
        raise


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
    (standing,) = await source.settle([Settlement(delivery, outcome, repeated)])
    while standing is Standing.BUSY:
        await asyncio.sleep(BUSY_SECONDS)
        (standing,) = await source.settle([Settlement(delivery, outcome, repeated)])
    if standing is Standing.LOST:
        raise LeaseLost([delivery.id])
