"""A lease is an id and a token: which leases are still held, and the writes made under them.

Leases are on messages or on dead letters. A batch is all of one kind, so its first delivery decides for all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from nightmail.errors import LeaseLost
from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import WriteResult
from nightmail.stores.sqlite.moments import StoreTime, after
from nightmail.stores.sqlite.notice import NOBODY, ring
from nightmail.stores.sqlite.steps import Change, Queries, Steps, gathered


def are_letters(deliveries: Sequence[Delivery]) -> bool:
    """Whether these are dead letters."""
    return bool(deliveries) and isinstance(deliveries[0], DeadDelivery)


class Leases:
    """The steps of `hold`, `ack` and `extend`, and of removing handled messages."""

    def __init__(self, sql: Queries, time: StoreTime, *, keep_delivered: bool) -> None:
        self._sql = sql
        self._time = time
        self._keep_delivered = keep_delivered

    def held(self, deliveries: Sequence[Delivery]) -> Steps[dict[int, int]]:
        """The positions of deliveries whose leases are held, and whether each is superseded."""
        statement = "letters_held" if are_letters(deliveries) else "held"
        held: dict[int, int] = dict((yield from gathered(self._sql(statement, leases=_listed(deliveries)))))
        return held

    def all_hold(self, deliveries: Sequence[Delivery]) -> Steps[bool]:
        """Whether these are distinct messages, claimed together, whose leases are all held. Cheaper than `held`."""
        ids = {delivery.id for delivery in deliveries}
        tokens = {delivery.token for delivery in deliveries}
        if len(ids) < len(deliveries) or len(tokens) != 1:
            return False
        ((count,),) = yield self._sql("count_held", ids=json.dumps([*ids]), token=tokens.pop().bytes)
        return bool(count == len(ids))

    def hold(self, deliveries: Sequence[Delivery]) -> Steps[Change[None]]:
        """Make sure that all these leases are held. The write lock keeps them so."""
        held = yield from self.held(deliveries)
        lost = [delivery.id for place, delivery in enumerate(deliveries) if place not in held]
        if lost:
            raise LeaseLost(lost)
        return Change(None)

    def ack(self, deliveries: Sequence[Delivery]) -> Steps[Change[None]]:
        """Remove these as handled: all or none."""
        yield from self.hold(deliveries)
        ids = [delivery.id for delivery in deliveries]
        if are_letters(deliveries):
            yield self._sql("remove_letters", ids=json.dumps(ids))
            return Change(None, NOBODY)
        yield from self.finish(ids)
        return Change(None, (yield from ring(self._sql, released(deliveries))))

    def finish(self, ids: Sequence[int]) -> Steps[None]:
        """Remove handled messages; copy them to the delivered history if it is kept."""
        listed = json.dumps(ids)
        if self._keep_delivered:
            yield self._sql("keep", ids=listed, now=self._time.stamp())
        yield self._sql("remove", ids=listed)

    def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Steps[list[WriteResult]]:
        """Extend these leases. Returns the write result of each."""
        held = yield from self.held(deliveries)
        if held:
            statement = "extend_letters" if are_letters(deliveries) else "extend"
            ids = json.dumps([deliveries[place].id for place in held])
            yield self._sql(statement, ids=ids, until=after(self._time.stamp(), lease))
        return [
            WriteResult.WRITTEN if place in held else WriteResult.LOST for place in range(len(deliveries))
        ]


def released(ended: Sequence[Delivery]) -> frozenset[str]:
    """The queues in which the next message of an ordering key may run once these have ended."""
    return frozenset(delivery.queue for delivery in ended if delivery.ordering_key is not None)


def _listed(deliveries: Sequence[Delivery]) -> str:
    """These leases as a parameter of `held` and `letters_held`."""
    listed = []
    token, written = None, ""
    for delivery in deliveries:
        if delivery.token is not token:  # Messages claimed together share it.
            token, written = delivery.token, delivery.token.hex.upper()
        listed.append((delivery.id, written))
    return json.dumps(listed)
