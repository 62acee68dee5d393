"""What each outcome does to its messages."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from nightmail.message import DeadDelivery
from nightmail.outcome import Dead, Done, Release, WriteResult
from nightmail.store import Settlement
from nightmail.stores.sqlite.errors import Refused
from nightmail.stores.sqlite.jobs import Failed, Succeeded
from nightmail.stores.sqlite.leases import Leases, released
from nightmail.stores.sqlite.moments import StoreTime
from nightmail.stores.sqlite.notice import NOBODY, if_soon, ring
from nightmail.stores.sqlite.outcome_groups import OutcomeGroups, due_again
from nightmail.stores.sqlite.steps import Change, Queries, Steps, carry_out
from nightmail.stores.sqlite.together import in_savepoint

logger = logging.getLogger(__name__)


class Settling:
    """The steps of `settle`, for messages."""

    def __init__(
        self,
        sql: Queries,
        time: StoreTime,
        leases: Leases,
        *,
        handed_back: Callable[[Iterable[str]], None],
    ) -> None:
        self._sql = sql
        self._time = time
        self._leases = leases
        self._handed_back = handed_back

    def settle(self, batch: Sequence[Settlement]) -> Steps[Change[list[WriteResult]]]:
        """Write the outcomes of these deliveries. Returns the write result of each.

        Nothing else writes meanwhile, so a lease that is not found is lost: there is no need to check twice.
        """
        done = [one.delivery for one in batch if isinstance(one.outcome, Done)]
        if len(done) == len(batch) and (yield from self._leases.all_hold(done)):
            # By far the most common case: everything was handled, and every lease is held.
            yield from self._leases.finish([delivery.id for delivery in done])
            rings = released(done)
            return Change([WriteResult.WRITTEN] * len(batch), (yield from ring(self._sql, rings)))
        superseded = yield from self._leases.held([one.delivery for one in batch])
        groups = OutcomeGroups(batch, superseded, self._time.stamp())
        yield from self._write(groups)
        if groups.handed_back:
            self._handed_back({one.delivery.queue for one in batch if isinstance(one.outcome, Release)})
        return Change(groups.results, (yield from ring(self._sql, _woken(groups, batch, superseded))))

    def _write(self, groups: OutcomeGroups) -> Steps[None]:
        if groups.done:
            yield from self._leases.finish(groups.done)
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
    settle: Callable[[Sequence[Settlement]], Steps[Change[list[WriteResult]]]],
    batch: Sequence[Settlement],
) -> Change[list[WriteResult]]:
    """Settle these one by one, because SQLite refused a row among them: it must not fail the others."""
    results: list[WriteResult] = []
    rings: frozenset[str] = NOBODY
    for one in batch:
        answer = in_savepoint(connection, partial(carry_out, steps=settle([one])))
        match answer:
            case Succeeded(change):
                results += change.result
                rings |= change.rings
            case Failed(Refused() as error):
                kind = "dead letter" if isinstance(one.delivery, DeadDelivery) else "message"
                logger.error("%s %d cannot be settled: %s", kind, one.delivery.id, error)
                results.append(WriteResult.BUSY)
            case Failed(error):
                raise error
    return Change(results, rings)


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
            rings |= released([delivery])
        else:
            rings |= if_soon(delivery.queue, groups.now if superseded[place] else due_at, groups.now)
    return frozenset(rings)
