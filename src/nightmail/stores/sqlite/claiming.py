"""What a claim takes, and in which order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from operator import itemgetter
from typing import Any, Final, TypeAlias
from uuid import UUID

from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores._fairness import FairShare
from nightmail.stores._marks import Marks, Range
from nightmail.stores.sqlite import rows
from nightmail.stores.sqlite.moments import StoreTime, after
from nightmail.stores.sqlite.steps import Queries, Steps, gathered

SMALL: Final = 4096
"""How many bytes a body may have to be read together with its row. Larger ones are read once they are chosen."""
MOST_GATHERED: Final = 1_000_000
"""How many bytes of larger bodies are read at once."""

Found: TypeAlias = list[Any]
"""An available message, as `available` gives it. Not a class of its own: one is made for every message."""
_ID: Final = 0
_BODY: Final = 2
_SIZE: Final = 16
_LEVEL: Final = 6
_DUE: Final = 7
_AGE: Final = itemgetter(_DUE, _ID)
_EVER: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one claim asks for."""

    queues: Sequence[str]
    limit: int
    lease: timedelta
    token: UUID


def _order(found: Found) -> tuple[int, int, int]:
    return -found[_LEVEL], found[_DUE], found[_ID]


class Claiming:
    """The steps of `claim` and `recall`.

    A claim looks before it takes, so that one which finds nothing never asks for the write lock: idle workers
    must not stand in the way of whoever writes.
    """

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time
        self._share = FairShare()
        self._marks: Marks[int] = Marks()
        self._claims = count(1)
        self._served: Counter[str] = Counter()
        self.is_busy = False
        """Whether the last claim was full: then the next need not look before it takes."""

    def look(self, wanted: Wanted) -> Steps[Claimed | None]:
        """What the claim answers when there is nothing to take; `None` when there is something."""
        now = self._time.now()
        for queue in wanted.queues:
            for level in (yield from self._levels(queue, now)):
                if (yield from self._available(Range(queue, level), 1, now)):
                    return None
        return Claimed((), (yield from self._next_in(wanted.queues, now)))

    def take(self, wanted: Wanted) -> Steps[Claimed]:
        """Lease what there is, up to the limit."""
        now = self._time.now()
        claim = next(self._claims)
        taken: list[Found] = []
        # Whichever queue has gone longest without giving anything comes first.
        for queue in sorted(wanted.queues, key=self._served.__getitem__):
            found = yield from self._choose(queue, wanted.limit - len(taken), now)
            if found:
                self._share.claimed(queue, len(found))
                self._served[queue] = claim
                taken += found
            if len(taken) == wanted.limit:
                break
        deliveries = (yield from self._lease(taken, wanted, now)) if taken else []
        self.is_busy = len(taken) >= wanted.limit
        return Claimed(deliveries, None if self.is_busy else (yield from self._next_in(wanted.queues, now)))

    def _lease(self, taken: Sequence[Found], wanted: Wanted, now: int) -> Steps[list[Delivery]]:
        ids, lease_until = json.dumps([found[_ID] for found in taken]), after(now, wanted.lease)
        yield self._sql("lease", ids=ids, token=wanted.token.bytes, lease_until=lease_until, now=now)
        large = [found for found in taken if found[_BODY] is None]
        for handful in _handfuls(large):
            bodies = yield from gathered(
                self._sql("bodies", ids=json.dumps([found[_ID] for found in handful]))
            )
            for found in handful:
                found[_BODY] = bodies[str(found[_ID])]
        return [rows.leased(found, wanted.token) for found in taken]

    def recall(self, queues: Sequence[str], token: UUID) -> Steps[list[Delivery]]:
        """What is leased under this token."""
        found = yield self._sql("recall", queues=json.dumps(queues), token=token.bytes)
        return [rows.leased(row, token) for row in found]

    def _choose(self, queue: str, room: int, now: int) -> Steps[list[Found]]:
        """Up to `room` available messages: the share of the oldest, then by priority."""
        levels = yield from self._levels(queue, now)
        chosen: list[Found] = yield from self._in(self._marks.forward(queue, now / 1e6), levels, room, now)
        if len(chosen) < room:
            behind = yield from self._in(self._marks.behind(queue), levels, room - len(chosen), now)
            if behind:
                chosen = sorted(chosen + behind, key=_order)
        share = self._share.reserved(queue, len(chosen))
        if share and len(levels) > 1:
            firsts: list[Found] = []
            for level in levels:
                firsts += yield from self._available(Range(queue, level), share, now)
            oldest = sorted(firsts, key=_AGE)[:share]
            chosen = list({found[_ID]: found for found in oldest + chosen}.values())[: len(chosen)]
        self._marks.found((queue, found[_LEVEL], found[_DUE]) for found in chosen)
        return chosen

    def _in(
        self, ranges: Iterable[Range[int]], levels: Collection[int], room: int, now: int
    ) -> Steps[list[Found]]:
        found: list[Found] = []
        for each in ranges:
            if each.level in levels and len(found) < room:
                found += yield from self._available(each, room - len(found), now)
        return found

    def _levels(self, queue: str, now: int) -> Steps[list[int]]:
        """The priorities at which something of this queue is due, highest first."""
        found = yield self._sql("levels", queue=queue, now=now)
        return sorted((level for (level,) in found), reverse=True)

    def _available(self, within: Range[int], limit: int, now: int) -> Steps[list[Found]]:
        ask = self._sql(
            "available",
            queue=within.queue,
            priority=within.level,
            first=_EVER if within.start is None else within.start,
            last=now if within.end is None else min(now, within.end - 1),
            limit=limit,
            now=now,
            small=SMALL,
        )
        found: list[Found] = yield from gathered(ask)
        return found

    def _next_in(self, queues: Sequence[str], now: int) -> Steps[timedelta | None]:
        ((moment,),) = yield self._sql("upcoming", queues=json.dumps(queues), now=now)
        return None if moment is None else timedelta(microseconds=moment - now)


def _handfuls(large: Sequence[Found]) -> Iterator[list[Found]]:
    """These in parts whose bodies fit into one value: SQLite makes none larger than a gigabyte."""
    handful: list[Found] = []
    size = 0
    for found in large:
        if handful and size + found[_SIZE] > MOST_GATHERED:
            yield handful
            handful, size = [], 0
        handful.append(found)
        size += found[_SIZE]
    if handful:
        yield handful
