"""What each outcome does to its messages."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from uuid import UUID

from nightmail.errors import Refused
from nightmail.json_log import about
from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import Dead, Done, Release, WriteResult
from nightmail.store import Settlement
from nightmail.stores.sql.verbs import Change, Verb
from nightmail.stores.sqlite.group_commit import in_savepoint
from nightmail.stores.sqlite.jobs import Failed, Succeeded
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.outcome_groups import OutcomeGroups, due_again
from nightmail.stores.sqlite.queries import Queries, carry_out_on
from nightmail.stores.sqlite.ringing import NO_QUEUES, if_soon, ring
from nightmail.stores.sqlite.times import StoreTime

logger = logging.getLogger(__name__)


class Settling(Leases):
    """What is written under a lease on a message."""

    def __init__(
        self,
        sql: Queries,
        time: StoreTime,
        *,
        keep_delivered: bool,
        handed_back: Callable[[Iterable[str]], None],
    ) -> None:
        super().__init__(sql, time)
        self._keep_delivered = keep_delivered
        self._handed_back = handed_back

    def settle(self, batch: Sequence[Settlement]) -> Verb[Change[list[WriteResult]]]:
        """Write the outcomes of these deliveries. Returns the write result of each."""
        done = [one.delivery for one in batch if isinstance(one.outcome, Done)]
        if len(done) == len(batch) and (yield from self._all_hold(done)):
            # By far the most common case: everything was handled, and every lease is held.
            yield from self._finish([delivery.id for delivery in done])
            rings = _released(done)
            return Change([WriteResult.WRITTEN] * len(batch), (yield from ring(self._sql, rings)))
        superseded = yield from self.held([one.delivery for one in batch])
        groups = OutcomeGroups(batch, superseded, self._time.stamp())
        yield from self._write(groups)
        if groups.handed_back:
            self._handed_back({one.delivery.queue for one in batch if isinstance(one.outcome, Release)})
        return Change(groups.results, (yield from ring(self._sql, _woken(groups, batch, superseded))))

    def ack(self, deliveries: Sequence[Delivery]) -> Verb[Change[None]]:
        """Remove these as handled: all or none."""
        yield from self.hold(deliveries)
        yield from self._finish([delivery.id for delivery in deliveries])
        return Change(None, (yield from ring(self._sql, _released(deliveries))))

    def recall(self, queues: Sequence[str], token: UUID) -> Verb[Change[int]]:
        """Hand back what is leased under this token. Returns how many."""
        found = yield self._sql("recall", queues=json.dumps(queues), token=token.bytes)
        handed_back = frozenset(queue for (queue,) in found)
        self._handed_back(handed_back)
        return Change(len(found), (yield from ring(self._sql, handed_back)))

    def _all_hold(self, deliveries: Sequence[Delivery]) -> Verb[bool]:
        """Whether these are distinct messages whose leases are all held. Cheaper than `held`."""
        if len({delivery.id for delivery in deliveries}) < len(deliveries):
            return False
        claims: dict[str, list[int]] = {}
        token, ids = None, list[int]()
        for delivery in deliveries:
            if delivery.token is not token:  # Messages claimed together share it.
                token = delivery.token
                ids = claims.setdefault(token.hex.upper(), [])
            ids.append(delivery.id)
        ((count,),) = yield self._sql("count_still_leased", claims=json.dumps(claims))
        return bool(count == len(deliveries))

    def _finish(self, ids: Sequence[int]) -> Verb[None]:
        """Remove handled messages; copy them to the delivered history if it is kept."""
        listed = json.dumps(ids)
        if self._keep_delivered:
            yield self._sql("keep", ids=listed, now=self._time.stamp())
        yield self._sql("remove", ids=listed)

    def _write(self, groups: OutcomeGroups) -> Verb[None]:
        if groups.done:
            yield from self._finish(groups.done)
        if groups.given_up:
            yield self._sql("bury", letters=json.dumps(groups.given_up), now=groups.now)
            yield self._sql("remove", ids=json.dumps([id_ for id_, *_ in groups.given_up]))
        if groups.retried:
            yield self._sql("retry", returned=json.dumps(groups.retried), now=groups.now)
        if groups.postponed:
            yield self._sql("postpone", returned=json.dumps(groups.postponed), now=groups.now)
        if groups.handed_back:
            yield self._sql("release", ids=json.dumps(groups.handed_back))


def settle_apart(
    connection: sqlite3.Connection,
    *,
    settle: Callable[[Sequence[Settlement]], Verb[Change[list[WriteResult]]]],
    batch: Sequence[Settlement],
) -> Change[list[WriteResult]]:
    """Settle these one by one, because SQLite refused a row among them: it must not fail the others."""
    results: list[WriteResult] = []
    rings: frozenset[str] = NO_QUEUES
    for one in batch:
        answer = in_savepoint(connection, partial(carry_out_on, verb=settle([one])))
        match answer:
            case Succeeded(change):
                results += change.result
                rings |= change.rings
            case Failed(Refused() as error):
                kind = "dead letter" if isinstance(one.delivery, DeadDelivery) else "message"
                logger.error(
                    "%s %d cannot be settled: %s", kind, one.delivery.id, error, extra=about(one.delivery)
                )
                results.append(WriteResult.BUSY)
            case Failed(error):
                raise error
    return Change(results, rings)


def _released(ended: Sequence[Delivery]) -> frozenset[str]:
    """The queues in which the next message of an ordering key may run once these have ended."""
    return frozenset(delivery.queue for delivery in ended if delivery.ordering_key is not None)


def _woken(
    groups: OutcomeGroups, batch: Sequence[Settlement], superseded: Mapping[int, int]
) -> frozenset[str]:
    """The queues that have something now: a message that came back, the next of an ordering key, a dead letter."""
    rings: set[str] = set()
    for place in groups.places:
        delivery, outcome = batch[place].delivery, batch[place].outcome
        if delivery.queue in rings:
            continue
        if isinstance(outcome, Dead):
            # Dead letter handlers listen to the queue in which messages die.
            rings.add(delivery.queue)
        elif (due_at := due_again(outcome, groups.now)) is None:
            rings |= _released([delivery])
        else:
            rings |= if_soon(delivery.queue, groups.now if superseded[place] else due_at, groups.now)
    return frozenset(rings)
