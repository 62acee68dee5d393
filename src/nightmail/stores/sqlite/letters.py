"""Handling dead letters: what a claim takes, and what each outcome does to them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from nightmail.limits import MAX_STORED_HEADERS_BYTES, ByteBudget
from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import WriteResult
from nightmail.store import Claimed, Settlement
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.verbs import Change, Verb
from nightmail.stores.sqlite import rows
from nightmail.stores.sqlite.claiming import Moment
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.outcome_groups import OutcomeGroups, due_again
from nightmail.stores.sqlite.queries import Queries
from nightmail.stores.sqlite.ringing import NO_QUEUES, if_soon, ring
from nightmail.stores.sqlite.times import END_OF_TIME, StoreTime, after

logger = logging.getLogger(__name__)


class Letters(Leases):
    """Claiming dead letters, and what is written under a lease on one."""

    suffix = "_dead"
    asked_to_stop = "still_leased_dead"  # None ever is.

    def __init__(self, sql: Queries, time: StoreTime, max_body_bytes: int) -> None:
        super().__init__(sql, time)
        self._max_body_bytes = max_body_bytes

    def look(self, wanted: Wanted) -> Verb[Claimed | None]:
        """The result of a claim that finds nothing to take; `None` when there is something."""
        at = Moment(now := self._time.now(), now)
        if (yield from self._longest_due(wanted.queues, 1, at)):
            return None
        return Claimed((), (yield from self._next_in(wanted.queues, at)))

    def take(self, wanted: Wanted, locked_out: float = 0.0, waited_lately: float = 0.0) -> Verb[Claimed]:
        """Lease what is available, up to the limits, after waiting for the lock for so many seconds."""
        at = Moment.after_lock_out(self._time.now(), locked_out, waited_lately, wanted.lease)
        budget = ByteBudget(wanted.max_bytes)
        offered = yield from self._longest_due(wanted.queues, wanted.limit, at)
        too_large = [id_ for id_, _, is_too_large in offered if is_too_large]
        if too_large:
            yield from self._give_up(too_large, "are larger than this store reads (max_body_bytes)")
        ids = [id_ for id_, size, is_too_large in offered if not is_too_large and budget.take(size)]
        deliveries = (yield from self._lease(ids, wanted, at)) if ids else []
        full = len(offered) == wanted.limit or budget.spent or len(deliveries) < len(offered)
        return Claimed(deliveries, None if full else (yield from self._next_in(wanted.queues, at)), full)

    def recall(self, queues: Sequence[str], token: UUID) -> Verb[Change[int]]:
        """Hand back the dead letters leased under this token. Returns how many."""
        found = yield self._sql("recall_dead", queues=json.dumps(queues), token=token.bytes)
        rings = frozenset(queue for (queue,) in found)
        return Change(len(found), (yield from ring(self._sql, rings)))

    def settle(self, batch: Sequence[Settlement]) -> Verb[Change[list[WriteResult]]]:
        """Write the outcomes of these dead letters. Returns the write result of each."""
        held = yield from self.held([one.delivery for one in batch])
        groups = OutcomeGroups(batch, held, self._time.stamp())
        if groups.done:
            yield self._sql("remove_dead", ids=json.dumps(groups.done))
        if groups.given_up:
            yield self._sql("give_up_dead", ids=json.dumps([id_ for id_, *_ in groups.given_up]))
        if groups.retried:
            yield self._sql("retry_dead", returned=json.dumps(groups.retried))
        if groups.postponed:
            yield self._sql("postpone_dead", returned=json.dumps(groups.postponed))
        if groups.handed_back:
            yield self._sql("release_dead", ids=json.dumps(groups.handed_back))
        return Change(groups.results, (yield from ring(self._sql, _woken(groups, batch))))

    def ack(self, deliveries: Sequence[Delivery]) -> Verb[Change[None]]:
        """Remove these as handled: all or none."""
        yield from self.hold(deliveries)
        yield self._sql("remove_dead", ids=json.dumps([delivery.id for delivery in deliveries]))
        return Change(None)

    def _longest_due(self, queues: Sequence[str], limit: int, at: Moment) -> Verb[list[tuple[int, int, int]]]:
        """Up to `limit` claimable dead letters, over all these queues: id, size, and whether it is too large."""
        offered: list[tuple[int, int, int, int]] = []
        for queue in queues:
            offered += yield self._sql(
                "candidates_dead",
                queue=queue,
                limit=limit,
                now=at.now,
                expired=at.expired,
                max_body=self._max_body_bytes,
                max_headers=MAX_STORED_HEADERS_BYTES,
            )
        return [(id_, size, too_large) for _, id_, size, too_large in sorted(offered)[:limit]]

    def _lease(self, ids: Sequence[int], wanted: Wanted, at: Moment) -> Verb[list[DeadDelivery]]:
        found = yield self._sql(
            "lease_dead",
            ids=json.dumps(ids),
            token=wanted.token.bytes,
            lease_until=after(at.now, wanted.lease),
            now=at.now,
        )
        leased: dict[int, DeadDelivery] = {}
        unreadable: list[int] = []
        for row in found:
            try:
                leased[row[0]] = rows.leased_letter(row, wanted.token)
            except (TypeError, ValueError, OverflowError):
                unreadable.append(row[0])
        if unreadable:
            yield from self._give_up(unreadable, "cannot be read")
        return [leased[id_] for id_ in ids if id_ in leased]

    def _give_up(self, ids: Sequence[int], why: str) -> Verb[None]:
        logger.warning("dead letters %s %s and are offered no more", ids, why)
        yield self._sql("give_up_dead", ids=json.dumps(ids))

    def _next_in(self, queues: Sequence[str], at: Moment) -> Verb[timedelta | None]:
        ((moment,),) = yield self._sql(
            "upcoming_dead", queues=json.dumps(queues), now=at.now, expired=at.expired, end=END_OF_TIME
        )
        return at.until(moment)


def _woken(groups: OutcomeGroups, batch: Sequence[Settlement]) -> frozenset[str]:
    """The queues whose dead letters are offered again soon."""
    rings = NO_QUEUES
    for place in groups.places:
        due_at = due_again(batch[place].outcome, groups.now)
        if due_at is not None:
            rings |= if_soon(batch[place].delivery.queue, due_at, groups.now)
    return rings
