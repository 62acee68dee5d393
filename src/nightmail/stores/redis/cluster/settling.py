"""Settlements and renewals in a cluster: one call for each slot, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.store import Settlement
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Call
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.settling import Settling, results_of, settled
from nightmail.stores.shared.to_the_end import ToTheEnd


class ClusterSettling(Settling):
    """See `Settling`."""

    def __init__(
        self, calls: ScriptCalls, nodes: Nodes, to_the_end: ToTheEnd, *, keep_delivered: bool
    ) -> None:
        super().__init__(calls, keep_delivered=keep_delivered)
        self._nodes = nodes
        self._to_the_end = to_the_end

    async def settle(self, lane: Lane, registry: Registry, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Store.settle`."""
        ids = await registry.ids()
        groups = self._groups([settlement.delivery for settlement in batch])
        calls = [self.prepared([batch[at] for at in group], ids) for group in groups]
        results, failure = await self._to_the_end.run(_each(lane, groups, calls))
        if failure is not None:
            raise failure
        return [settled(settlement, results[at]) for at, settlement in enumerate(batch)]

    async def extend(self, lane: Lane, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """See `Store.extend`. Leases of a node that does not answer are BUSY, as long as another node answers."""
        groups = self._groups(deliveries)
        calls = [self.prepared_extension([deliveries[at] for at in group], lease) for group in groups]
        results, failure = await _each(lane, groups, calls)
        if failure is not None and not results:
            raise failure
        # The renewed ones must be known to hold. The others are retried soon.
        return [results.get(at, WriteResult.BUSY) for at in range(len(deliveries))]

    def _groups(self, deliveries: Sequence[Delivery]) -> list[list[int]]:
        """The indices of those in each slot."""
        keyed = ((self._calls.keys.tag(delivery.queue), at) for at, delivery in enumerate(deliveries))
        return [[at for _, at in group] for group in by_slot(self._nodes, keyed)]


async def _each(
    lane: Lane, groups: Sequence[Sequence[int]], calls: Sequence[Call]
) -> tuple[dict[int, WriteResult], StoreUnavailable | None]:
    """What became of each delivery, as far as its node answered; and the first error."""
    # All concurrently, and each to its end: a node that is down must not hold up the others.
    answers = await asyncio.gather(*(lane.run(call) for call in calls), return_exceptions=True)
    results: dict[int, WriteResult] = {}
    failure: StoreUnavailable | None = None
    for group, answer in zip(groups, answers, strict=True):
        if isinstance(answer, StoreUnavailable):
            failure = failure or answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            results.update(zip(group, results_of(answer[0]), strict=True))
    return results, failure
