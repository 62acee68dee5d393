"""A lease is an id and a token: which leases are still held, and what messages and dead letters share under them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.stores.sql.verbs import Change, Verb
from nightmail.stores.sqlite.queries import Queries, gathered
from nightmail.stores.sqlite.times import StoreTime, after


class Leases:
    """The verbs `hold` and `extend`. The write lock is held, so a lease that is not found is lost."""

    suffix: ClassVar[str] = ""
    """At the end of the names of the statements."""
    asked_to_stop: ClassVar[str] = "still_wanted"
    """The statement that tells which leases are held, and which of them an operator wants stopped."""

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time

    def held(self, deliveries: Sequence[Delivery]) -> Verb[dict[int, int]]:
        """The positions of deliveries whose leases are held, and whether each is superseded."""
        return (yield from self._held(f"still_leased{self.suffix}", deliveries))

    def hold(self, deliveries: Sequence[Delivery]) -> Verb[Change[None]]:
        """Make sure that all these leases are held. The write lock keeps them so."""
        held = yield from self.held(deliveries)
        lost = [delivery.id for place, delivery in enumerate(deliveries) if place not in held]
        if lost:
            raise LeaseLost(lost)
        return Change(None)

    def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Verb[list[WriteResult]]:
        """Extend these leases. Returns the write result of each."""
        held = yield from self._held(self.asked_to_stop, deliveries)
        if held:
            ids = json.dumps([deliveries[place].id for place in held])
            yield self._sql(f"extend{self.suffix}", ids=ids, until=after(self._time.stamp(), lease))
        return [
            (WriteResult.STOP if held[place] else WriteResult.WRITTEN) if place in held else WriteResult.LOST
            for place in range(len(deliveries))
        ]

    def _held(self, statement: str, deliveries: Sequence[Delivery]) -> Verb[dict[int, Any]]:
        found = yield from gathered(self._sql(statement, leases=_listed(deliveries)))
        held: dict[int, Any] = dict(found)
        return held


def _listed(deliveries: Sequence[Delivery]) -> str:
    """These leases as a parameter of `still_leased`."""
    listed = []
    token, written = None, ""
    for delivery in deliveries:
        if delivery.token is not token:  # Messages claimed together share it.
            token, written = delivery.token, delivery.token.hex.upper()
        listed.append((delivery.id, written))
    return json.dumps(listed)
