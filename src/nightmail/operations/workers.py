"""The processes that consume messages, and what each of them holds."""

from __future__ import annotations

from dataclasses import dataclass

from nightmail.controls import LeasedMessage, WorkerRecord
from nightmail.operations.liveness import is_live
from nightmail.store import FullStore


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHoldings:
    """A process that consumes messages, and the messages that run there."""

    worker: WorkerRecord
    holds: tuple[LeasedMessage, ...]
    """The longest running first; of a thousand messages that run the longest, in all processes together."""


async def workers(store: FullStore) -> list[WorkerHoldings]:
    """The processes that reported within the last day, by host, pid and id."""
    found = await store.workers()
    leases = await store.leases()
    return [
        WorkerHoldings(worker=each, holds=tuple(lease for lease in leases if lease.worker_id == each.id))
        for each in found
    ]


async def live_workers(store: FullStore) -> list[WorkerRecord]:
    """Those that reported lately, by the store's clock."""
    # An id that no message has: what is asked for is the clock.
    now = (await store.facts(0)).now
    return [each for each in await store.workers() if is_live(each, now)]
