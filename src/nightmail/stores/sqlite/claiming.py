"""What a claim takes, and in which order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from uuid import UUID

from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores._fairness import FairShare
from nightmail.stores.sqlite import rows
from nightmail.stores.sqlite.moments import StoreTime, after
from nightmail.stores.sqlite.steps import Ask, Queries, Row, Steps


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one claim asks for."""

    queues: Sequence[str]
    limit: int
    lease: timedelta
    token: UUID


class Claiming:
    """The steps of `claim` and `recall`.

    A claim looks before it takes, so that one which finds nothing never asks for the write lock: idle workers
    must not stand in the way of whoever writes.
    """

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time
        self._share = FairShare()
        self._claims = count(1)
        self._served: Counter[str] = Counter()

    def look(self, wanted: Wanted) -> Steps[Claimed | None]:
        """What the claim answers when there is nothing to take; `None` when there is something."""
        now = self._time.now()
        for queue in wanted.queues:
            for level in (yield from self._levels(queue, now)):
                if (yield self._available(queue, level, 1, now)):
                    return None
        return Claimed((), (yield from self._next_in(wanted.queues, now)))

    def take(self, wanted: Wanted) -> Steps[Claimed]:
        """Lease what there is, up to the limit."""
        now = self._time.now()
        claim = next(self._claims)
        ids: list[int] = []
        # Whichever queue has gone longest without giving anything comes first.
        for queue in sorted(wanted.queues, key=self._served.__getitem__):
            found = yield from self._choose(queue, wanted.limit - len(ids), now)
            if found:
                self._share.claimed(queue, len(found))
                self._served[queue] = claim
                ids += found
            if len(ids) == wanted.limit:
                break
        deliveries = (yield from self._lease(ids, wanted, now)) if ids else []
        full = len(ids) >= wanted.limit
        return Claimed(deliveries, None if full else (yield from self._next_in(wanted.queues, now)))

    def _lease(self, ids: Sequence[int], wanted: Wanted, now: int) -> Steps[list[Delivery]]:
        listed, lease_until = json.dumps(ids), after(now, wanted.lease)
        yield self._sql("lease", ids=listed, token=wanted.token.bytes, lease_until=lease_until, now=now)
        leased = {row[0]: row for row in (yield self._sql("leased", ids=listed))}
        return [rows.delivery(leased[id_]) for id_ in ids]

    def recall(self, queues: Sequence[str], token: UUID) -> Steps[list[Delivery]]:
        """What is leased under this token."""
        found = yield self._sql("recall", queues=json.dumps(queues), token=token.bytes)
        return [rows.delivery(row) for row in found]

    def _choose(self, queue: str, room: int, now: int) -> Steps[list[int]]:
        """The ids of up to `room` available messages: the share of the oldest, then by priority."""
        levels = yield from self._levels(queue, now)
        chosen: list[int] = []
        for level in levels:
            if len(chosen) < room:
                found = yield self._available(queue, level, room - len(chosen), now)
                chosen += [id_ for id_, _ in found]
        share = self._share.reserved(queue, len(chosen))
        if share == 0 or len(levels) == 1:
            return chosen
        firsts: list[Row] = []
        for level in levels:
            firsts += yield self._available(queue, level, share, now)
        oldest = [id_ for id_, _ in sorted(firsts, key=_by_age)[:share]]
        return list(dict.fromkeys(oldest + chosen))[: len(chosen)]

    def _levels(self, queue: str, now: int) -> Steps[list[int]]:
        """The priorities at which something of this queue is due, highest first."""
        found = yield self._sql("levels", queue=queue, now=now)
        return sorted((level for (level,) in found), reverse=True)

    def _available(self, queue: str, level: int, limit: int, now: int) -> Ask:
        return self._sql("available", queue=queue, priority=level, limit=limit, now=now)

    def _next_in(self, queues: Sequence[str], now: int) -> Steps[timedelta | None]:
        ((moment,),) = yield self._sql("upcoming", queues=json.dumps(queues), now=now)
        return None if moment is None else timedelta(microseconds=moment - now)


def _by_age(row: Row) -> tuple[int, int]:
    id_, due_at = row
    return due_at, id_
