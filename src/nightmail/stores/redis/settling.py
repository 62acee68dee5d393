"""Everything that is written under a lease."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from struct import Struct
from typing import Final

from nightmail.describing import last_error
from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.redis.ids import Ids, digits
from nightmail.stores.redis.keys import LETTER, MESSAGE
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Argument, Call, Reply
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros

# As in settle.lua: queue, kind, delay, id, token; and in extend.lua and held.lua: queue, id, token.
_SETTLEMENT: Final = Struct(">HBd16s16s")
_LEASE: Final = Struct(">H16s16s")
_DONE: Final = 0
_RESULTS: Final = {ord("h"): WriteResult.WRITTEN, ord("s"): WriteResult.STOP, ord("l"): WriteResult.LOST}


class Settling:
    """Settle and extend: one call, whatever the number of deliveries."""

    def __init__(self, calls: ScriptCalls, *, keep_delivered: bool) -> None:
        self._calls = calls
        self._keep_delivered = keep_delivered

    async def settle(self, lane: Lane, registry: Registry, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Store.settle`."""
        call = self.prepared(batch, await registry.ids())
        (answer,) = await lane.run(call)
        return [settled(each, result) for each, result in zip(batch, results_of(answer), strict=True)]

    async def extend(self, lane: Lane, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """See `Store.extend`."""
        if not deliveries:
            return []
        (answer,) = await lane.run(self.prepared_extension(deliveries, lease))
        return results_of(answer)

    def prepared(self, batch: Sequence[Settlement], ids: Ids) -> Call:
        """The call that settles these, all of one kind and in one slot."""
        tags, places = self.tags([settlement.delivery for settlement in batch])
        texts: list[Argument] = []
        parts: list[bytes] = []
        letters = 0
        for place, settlement in zip(places, batch, strict=True):
            delivery, outcome = settlement.delivery, settlement.outcome
            kind, delay = _kind(outcome)
            parts.append(_SETTLEMENT.pack(place, kind, delay, digits(delivery.id), delivery.token.bytes))
            if kind == _DONE:
                continue  # The common case, which has no texts.
            if isinstance(outcome, Dead):
                letters += 1
                texts += [outcome.reason, "" if outcome.error is None else f"!{outcome.error}"]
            elif isinstance(outcome, Retry):
                texts.append(last_error(outcome) or "")
        if isinstance(batch[0].delivery, DeadDelivery):
            return self._calls.call("settle_dead", tags, b"".join(parts))
        letter = ids.next(letters + 1)
        return self._calls.call(
            "settle", tags, int(self._keep_delivered), b"".join(parts), *texts, letter=letter
        )

    def prepared_extension(self, deliveries: Sequence[Delivery], lease: timedelta) -> Call:
        """The call that extends these leases, all of one kind and in one slot."""
        script = "extend_dead" if isinstance(deliveries[0], DeadDelivery) else "extend"
        tags, places = self.tags(deliveries)
        return self._calls.call(script, tags, micros(lease), _leases(places, deliveries))

    def prepared_check(self, deliveries: Sequence[Delivery]) -> Call:
        """The call that says which of these leases hold."""
        kind = LETTER if isinstance(deliveries[0], DeadDelivery) else MESSAGE
        tags, places = self.tags(deliveries)
        return self._calls.call("held", tags, kind, _leases(places, deliveries))

    def tags(self, deliveries: Sequence[Delivery]) -> tuple[list[str], list[int]]:
        """The tags of their queues, and for each delivery the index of its tag, from 1."""
        place_of: dict[str, int] = {}
        places = [place_of.setdefault(delivery.queue, len(place_of) + 1) for delivery in deliveries]
        return [self._calls.keys.tag(queue) for queue in place_of], places


def results_of(answer: Reply) -> list[WriteResult]:
    """What became of each delivery."""
    return [_RESULTS[letter] for letter in answer]


def settled(settlement: Settlement, result: WriteResult) -> WriteResult:
    """The result of writing this one."""
    lost_again = settlement.repeated and result is WriteResult.LOST
    return WriteResult.UNKNOWN if lost_again else result


def _leases(places: Sequence[int], deliveries: Sequence[Delivery]) -> bytes:
    """Ids and tokens, each with the index of its queue's tag, packed for a script."""
    return b"".join(
        _LEASE.pack(place, digits(delivery.id), delivery.token.bytes)
        for place, delivery in zip(places, deliveries, strict=True)
    )


def _kind(outcome: Outcome) -> tuple[int, int]:
    match outcome:
        case Done():
            return _DONE, 0
        case Retry(delay):
            return 1, micros(delay)
        case Postpone(delay):
            return 2, micros(delay)
        case Release():
            return 3, 0
        case Dead():
            return 5 if outcome.ran else 4, 0
