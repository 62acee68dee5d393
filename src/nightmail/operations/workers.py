"""The processes that consume messages, and what each of them holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from nightmail.controls import LastConsumer, LeasedMessage, WorkerRecord
from nightmail.operations.liveness import is_live
from nightmail.store import FullStore


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHoldings:
    """A process that consumes messages, and the messages that run there."""

    worker: WorkerRecord
    live: bool
    """Whether it has reported within the last 30 seconds."""
    holds: tuple[LeasedMessage, ...]
    """The longest running first; of a thousand messages that run the longest, in all processes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workforce:
    """Who works on a store, at one moment."""

    now: datetime
    """The store's clock then."""
    workers: tuple[WorkerHoldings, ...]
    last_consumers: Mapping[str, LastConsumer]
    """For each queue the process that was last seen to consume it, within 90 days: also one that is gone."""
    unregistered: tuple[LeasedMessage, ...]
    """What is held by processes that do not report themselves."""


async def workforce(store: FullStore) -> Workforce:
    """The processes that reported within the last day, by host, pid and id; and who consumed each queue last."""
    now = await clock_of(store)
    found = await store.workers()
    leases = await store.leases()
    known = {each.id for each in found}
    return Workforce(
        now=now,
        workers=tuple(
            WorkerHoldings(
                worker=each,
                live=is_live(each, now),
                holds=tuple(lease for lease in leases if lease.worker_id == each.id),
            )
            for each in found
        ),
        last_consumers=await store.last_consumers(),
        unregistered=tuple(lease for lease in leases if lease.worker_id not in known),
    )


async def clock_of(store: FullStore) -> datetime:
    """What the store's clock shows."""
    # No message has this id: what is asked for is the clock.
    return (await store.facts(0)).now
