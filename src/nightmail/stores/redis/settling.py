"""Everything that is written under a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from struct import Struct
from typing import Final, TypeAlias, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.redis.ids import Ids, digits
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.link import Argument
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.scripts import Call
from nightmail.stores.redis.times import micros

T = TypeVar("T")
_Prepare: TypeAlias = Callable[[Sequence[str], Sequence[int], Sequence[T]], Call]
"""Makes a call from the tags of one slot, the index of each item's tag among them, and the items."""

# As in settle.lua: queue, kind, delay, id, token; and in extend.lua and held.lua: queue, id, token.
_SETTLEMENT: Final = Struct(">HBd16s16s")
_LEASE: Final = Struct(">H16s16s")
_HELD: Final = ord("h")


class Settling:
    """Settle and extend: one call for each slot, whatever the number of deliveries."""

    def __init__(self, calls: ScriptCalls, nodes: Nodes, *, keep_delivered: bool) -> None:
        self._calls = calls
        self._nodes = nodes
        self._keep_delivered = keep_delivered

    async def settle(self, lane: Lane, registry: Registry, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Store.settle`."""
        ids = await registry.ids()

        def prepare(tags: Sequence[str], places: Sequence[int], settlements: Sequence[Settlement]) -> Call:
            return self.prepared(tags, places, settlements, ids)

        held, failure = await self._each(
            lane, [(settlement.delivery.queue, settlement) for settlement in batch], prepare
        )
        if failure is not None:
            raise failure
        return [
            WriteResult.WRITTEN if yes else WriteResult.UNKNOWN if settlement.repeated else WriteResult.LOST
            for yes, settlement in zip(held, batch, strict=True)
        ]

    def prepared(
        self, tags: Sequence[str], places: Sequence[int], settlements: Sequence[Settlement], ids: Ids
    ) -> Call:
        """The call that settles these, all of one kind and in one slot, each with the index of its tag."""
        texts: list[Argument] = []
        parts: list[bytes] = []
        for place, settlement in zip(places, settlements, strict=True):
            delivery, outcome = settlement.delivery, settlement.outcome
            kind, delay = _kind(outcome)
            parts.append(_SETTLEMENT.pack(place, kind, delay, digits(delivery.id), delivery.token.bytes))
            if isinstance(outcome, Dead):
                texts += [outcome.reason, "" if outcome.error is None else f"!{outcome.error}"]
        if isinstance(settlements[0].delivery, DeadDelivery):
            return self._calls.call("settle_dead", tags, b"".join(parts))
        letter = ids.next(len(texts) // 2 + 1)
        return self._calls.call(
            "settle", tags, int(self._keep_delivered), b"".join(parts), *texts, letter=letter
        )

    async def extend(self, lane: Lane, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """See `Store.extend`. Leases of a node that does not answer are BUSY, as long as another node answers."""

        def prepare(tags: Sequence[str], places: Sequence[int], some: Sequence[Delivery]) -> Call:
            script = "extend_dead" if isinstance(some[0], DeadDelivery) else "extend"
            return self._calls.call(script, tags, micros(lease), leases(places, some))

        held, failure = await self._each(
            lane, [(delivery.queue, delivery) for delivery in deliveries], prepare
        )
        if failure is not None and not any(yes is not None for yes in held):
            raise failure
        # The renewed ones must be known to hold. The others are retried soon.
        return [
            WriteResult.BUSY if yes is None else WriteResult.WRITTEN if yes else WriteResult.LOST
            for yes in held
        ]

    async def _each(
        self, lane: Lane, items: Sequence[tuple[str, T]], prepare: _Prepare[T]
    ) -> tuple[list[bool | None], StoreUnavailable | None]:
        """Whether each lease held, by one call per slot; `None`, and the error, where a node did not answer."""
        tags = {queue: self._calls.keys.tag(queue) for queue in {queue for queue, _ in items}}
        groups = by_slot(self._nodes, ((tags[queue], at) for at, (queue, _) in enumerate(items)))
        calls = []
        for group in groups:
            keys = list(dict.fromkeys(tag for tag, _ in group))
            place_of = {tag: place for place, tag in enumerate(keys, 1)}
            calls.append(
                prepare(keys, [place_of[tag] for tag, _ in group], [items[at][1] for _, at in group])
            )
        # All concurrently, and each to its end: a node that is down must not hold up the others.
        answers = await asyncio.gather(*(lane.call(call) for call in calls), return_exceptions=True)
        held: dict[int, bool] = {}
        failure: StoreUnavailable | None = None
        for group, answer in zip(groups, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                failure = failure or answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                held.update((at, letter == _HELD) for (_, at), letter in zip(group, answer[0], strict=True))
        return [held.get(at) for at in range(len(items))], failure


def leases(places: Sequence[int], deliveries: Sequence[Delivery]) -> bytes:
    """Ids and tokens, each with the index of its queue's tag, packed for a script."""
    return b"".join(
        _LEASE.pack(place, digits(delivery.id), delivery.token.bytes)
        for place, delivery in zip(places, deliveries, strict=True)
    )


def _kind(outcome: Outcome) -> tuple[int, int]:
    match outcome:
        case Done():
            return 0, 0
        case Retry(delay):
            return 1, micros(delay)
        case Postpone(delay):
            return 2, micros(delay)
        case Release():
            return 3, 0
        case Dead():
            return 5 if outcome.ran else 4, 0
