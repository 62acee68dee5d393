"""Looking after dead letters: what a claim of them takes, and what each outcome does to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from nightmail.message import DeadDelivery
from nightmail.outcome import Standing
from nightmail.store import Claimed, Settlement
from nightmail.stores.sqlite import rows
from nightmail.stores.sqlite.claiming import Wanted
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.moments import StoreTime, after
from nightmail.stores.sqlite.notice import NOBODY, if_soon, ring
from nightmail.stores.sqlite.pile import Pile, due_again
from nightmail.stores.sqlite.steps import Change, Queries, Steps


class Letters:
    """The steps of `claim_dead` and `recall_dead`, and of `settle` for dead letters."""

    def __init__(self, sql: Queries, time: StoreTime, leases: Leases) -> None:
        self._sql = sql
        self._time = time
        self._leases = leases

    def look(self, wanted: Wanted) -> Steps[Claimed | None]:
        """What the claim answers when there is nothing to take; `None` when there is something."""
        now = self._time.now()
        if (yield from self._longest_due(wanted.queues, 1, now)):
            return None
        return Claimed((), (yield from self._next_in(wanted.queues, now)))

    def take(self, wanted: Wanted) -> Steps[Claimed]:
        """Lease what there is, up to the limit."""
        now = self._time.now()
        ids = yield from self._longest_due(wanted.queues, wanted.limit, now)
        deliveries = (yield from self._lease(ids, wanted, now)) if ids else []
        full = len(ids) == wanted.limit
        return Claimed(deliveries, None if full else (yield from self._next_in(wanted.queues, now)))

    def recall(self, queues: Sequence[str], token: UUID) -> Steps[list[DeadDelivery]]:
        """The letters that are leased under this token."""
        found = yield self._sql("recall_letters", queues=json.dumps(queues), token=token.bytes)
        return [rows.leased_letter(row, token) for row in found]

    def settle(self, batch: Sequence[Settlement]) -> Steps[Change[list[Standing]]]:
        """Write how looking after these letters ended; how each lease stood."""
        held = yield from self._leases.held([one.delivery for one in batch])
        pile = Pile(batch, held, self._time.stamp())
        if pile.done:
            yield self._sql("remove_letters", ids=json.dumps(pile.done))
        if pile.given_up:
            yield self._sql("give_up_letters", ids=json.dumps([id_ for id_, *_ in pile.given_up]))
        if pile.retried:
            yield self._sql("retry_letters", returned=json.dumps(pile.retried))
        if pile.postponed:
            yield self._sql("postpone_letters", returned=json.dumps(pile.postponed))
        if pile.handed_back:
            yield self._sql("release_letters", ids=json.dumps(pile.handed_back), now=pile.now)
        return Change(pile.standings, (yield from ring(self._sql, _woken(pile, batch))))

    def _longest_due(self, queues: Sequence[str], limit: int, now: int) -> Steps[list[int]]:
        """The ids of up to so many letters that may be taken, of all these queues together."""
        offered: list[tuple[int, int]] = []
        for queue in queues:
            found = yield self._sql("letters_offered", queue=queue, limit=limit, now=now)
            offered += [(moment, id_) for moment, id_ in found]
        return [id_ for _, id_ in sorted(offered)[:limit]]

    def _lease(self, ids: Sequence[int], wanted: Wanted, now: int) -> Steps[list[DeadDelivery]]:
        found = yield self._sql(
            "lease_letters",
            ids=json.dumps(ids),
            token=wanted.token.bytes,
            lease_until=after(now, wanted.lease),
            now=now,
        )
        leased = {row[0]: rows.leased_letter(row, wanted.token) for row in found}
        return [leased[id_] for id_ in ids]

    def _next_in(self, queues: Sequence[str], now: int) -> Steps[timedelta | None]:
        ((moment,),) = yield self._sql("letters_upcoming", queues=json.dumps(queues), now=now)
        return None if moment is None else timedelta(microseconds=moment - now)


def _woken(pile: Pile, batch: Sequence[Settlement]) -> frozenset[str]:
    """The queues whose letters are soon offered again."""
    rings = NOBODY
    for place in pile.places:
        due_at = due_again(batch[place].outcome, pile.now)
        if due_at is not None:
            rings |= if_soon(batch[place].delivery.queue, due_at, pile.now)
    return rings
