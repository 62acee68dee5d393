"""A lease is an id and a token together: which still hold, and what is done under them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Standing
from nightmail.stores.sqlite.moments import StoreTime, after
from nightmail.stores.sqlite.notice import ring
from nightmail.stores.sqlite.steps import Change, Queries, Steps, gathered


def leases(deliveries: Sequence[Delivery]) -> str:
    """These leases as the statement `held` takes them."""
    listed = []
    token, written = None, ""
    for delivery in deliveries:
        if delivery.token is not token:  # The same for all that were claimed together.
            token, written = delivery.token, delivery.token.hex.upper()
        listed.append((delivery.id, written))
    return json.dumps(listed)


class Leases:
    """The steps of `hold`, `ack` and `extend`, and of removing what was handled."""

    def __init__(self, sql: Queries, time: StoreTime, *, keep_delivered: bool) -> None:
        self._sql = sql
        self._time = time
        self._keep_delivered = keep_delivered

    def hold(self, deliveries: Sequence[Delivery]) -> Steps[Change[None]]:
        """Make sure that all these leases hold. The write lock is what keeps them as they are."""
        held: dict[int, int] = dict((yield from gathered(self._sql("held", leases=leases(deliveries)))))
        lost = [delivery.id for place, delivery in enumerate(deliveries) if place not in held]
        if lost:
            raise LeaseLost(lost)
        return Change(None)

    def ack(self, deliveries: Sequence[Delivery]) -> Steps[Change[None]]:
        """Remove these messages as handled: all of them, or none."""
        yield from self.hold(deliveries)
        yield from self.finish([delivery.id for delivery in deliveries])
        return Change(None, (yield from ring(self._sql, released(deliveries))))

    def finish(self, ids: Sequence[int]) -> Steps[None]:
        """Remove handled messages, into the history if that is kept."""
        listed = json.dumps(ids)
        if self._keep_delivered:
            yield self._sql("keep", ids=listed, now=self._time.stamp())
        yield self._sql("remove", ids=listed)

    def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Steps[list[Standing]]:
        """Let these leases run on; how each stood."""
        held: dict[int, int] = dict((yield from gathered(self._sql("held", leases=leases(deliveries)))))
        if held:
            ids = json.dumps([deliveries[place].id for place in held])
            yield self._sql("extend", ids=ids, until=after(self._time.stamp(), lease))
        return [Standing.HELD if place in held else Standing.LOST for place in range(len(deliveries))]


def released(ended: Sequence[Delivery]) -> frozenset[str]:
    """The queues in which the next of a line may go once these have ended."""
    return frozenset(delivery.queue for delivery in ended if delivery.ordering_key is not None)
