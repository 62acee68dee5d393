"""Claims: which ranges to look through, and in which order what was found is handed out."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, TypeAlias
from uuid import UUID

from nightmail.clock import Clock
from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores._fairness import FairShare
from nightmail.stores._marks import Marks, Range
from nightmail.stores._sql import Statement
from nightmail.stores.postgres import rows
from nightmail.stores.postgres.connect import Connection
from nightmail.stores.postgres.errors import LOOK_AGAIN
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.moments import duration

LOOKS: Final = 5
"""How often a claim looks again because another one took the ordering key that it was about to take."""
NOTHING: Final = Claimed((), None)

_AGE: Final = attrgetter("due_at", "id")
_PRIORITY: Final = attrgetter("priority")


Place: TypeAlias = tuple[datetime, int]
"""A due time and an id: settled messages stay in the index until they are vacuumed, many of one due time among them."""
BEGINNING: Final[Place] = (datetime.min.replace(tzinfo=UTC), 0)
END: Final[Place] = (datetime.max.replace(tzinfo=UTC), 0)


class Claims:
    """What claims of one process remember from one to the next: marks, shares, whose turn it is."""

    def __init__(self, lane: Lane, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._lane = lane
        self._claim = statements["claim"]
        self._recall = statements["recall"]
        self._clock = clock
        self._marks: Marks[Place] = Marks()
        self._shares = FairShare()
        self._turns: defaultdict[frozenset[str], int] = defaultdict(int)

    async def claim(self, queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID) -> Claimed:
        """See `Store.claim`."""
        wanted = tuple(dict.fromkeys(queues))
        if not wanted or limit <= 0:
            return NOTHING

        async def look(connection: Connection) -> Claimed:
            return await self._look(connection, self._in_turn(wanted), limit, lease, token)

        return await self._lane.run(look)

    async def recall(self, queues: Sequence[str], token: UUID) -> Sequence[Delivery]:
        """See `Store.recall`."""
        values = {"queues": list(queues), "token": token, "now": self._clock.now()}
        found = await self._lane.run(
            lambda connection: connection.fetch(self._recall.text, *self._recall.arguments(values))
        )
        return [rows.delivery(row, token) for row in found]

    async def _look(
        self, connection: Connection, queues: Sequence[str], limit: int, lease: timedelta, token: UUID
    ) -> Claimed:
        try:
            for _ in range(LOOKS):
                started = self._seconds()
                values = self._values(queues, started, limit, lease, token)
                try:
                    found = await connection.fetch(self._claim.text, *self._claim.arguments(values))
                except LOOK_AGAIN:
                    continue
                self._marks.took(queues, started, self._seconds())
                return self._handed_out(found, queues, limit, lease, token)
            raise StoreUnavailable("other claims were quicker each time: look again")
        except BaseException:
            self._marks.forget()
            raise

    def _in_turn(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """These queues, beginning with another one each time."""
        key = frozenset(queues)
        first = self._turns[key] % len(queues)
        self._turns[key] += 1
        return queues[first:] + queues[:first]

    def _values(
        self, queues: Sequence[str], started: float, limit: int, lease: timedelta, token: UUID
    ) -> dict[str, Any]:
        shares: list[tuple[Range[Place], int]] = []
        ranges: list[Range[Place] | str] = []
        for queue in queues:
            forward = self._marks.forward(queue, started)
            if share := self._shares.reserved(queue, limit):
                shares += [(level, share) for level in forward]
                ranges.append(queue)
            ranges += forward
            ranges += self._marks.behind(queue)
        return {
            "now": self._clock.now(),
            "wanted": list(queues),
            "limit": limit,
            "lease": duration(lease),
            "token": token,
            **_columns(ranges),
            "share_queues": [level.queue for level, _ in shares],
            "share_levels": [level.level for level, _ in shares],
            "share_from_at": [(level.start or BEGINNING)[0] for level, _ in shares],
            "share_from_id": [(level.start or BEGINNING)[1] for level, _ in shares],
            "shares": [share for _, share in shares],
        }

    def _handed_out(
        self, found: Sequence[Any], queues: Sequence[str], limit: int, lease: timedelta, token: UUID
    ) -> Claimed:
        next_in: timedelta | None = found[0]["next_in"]
        if found[0]["id"] is None:
            return Claimed((), next_in)
        by_queue: defaultdict[str, list[Delivery]] = defaultdict(list)
        for row in found:
            delivery = rows.delivery(row, token)
            by_queue[delivery.queue].append(delivery)
        handed_out: list[Delivery] = []
        for queue in queues:
            if taken := by_queue.get(queue):
                handed_out += self._in_order(queue, taken)
        self._marks.found((taken.queue, taken.priority, (taken.due_at, taken.id)) for taken in handed_out)
        if len(handed_out) >= limit:
            return Claimed(handed_out, None)
        # The statement does not see the leases it takes itself.
        return Claimed(handed_out, lease if next_in is None else min(next_in, lease))

    def _in_order(self, queue: str, taken: list[Delivery]) -> list[Delivery]:
        """The share of the oldest first, then by priority."""
        taken.sort(key=_AGE)
        share = self._shares.reserved(queue, len(taken))
        self._shares.claimed(queue, len(taken))
        # A sort keeps the order of equals.
        return taken[:share] + sorted(taken[share:], key=_PRIORITY, reverse=True)

    def _seconds(self) -> float:
        now = self._clock.now()
        return time.monotonic() if now is None else now.timestamp()


def _columns(ranges: Sequence[Range[Place] | str]) -> dict[str, list[Any]]:
    """Ranges as arrays. A queue alone stands for the share of its oldest messages."""
    whole: list[Range[Place]] = [entry if isinstance(entry, Range) else Range(entry, -1) for entry in ranges]
    return {
        "queues": [entry.queue for entry in whole],
        "levels": [entry.level if entry.level >= 0 else None for entry in whole],
        "from_at": [(entry.start or BEGINNING)[0] for entry in whole],
        "from_id": [(entry.start or BEGINNING)[1] for entry in whole],
        "to_at": [(entry.end or END)[0] for entry in whole],
        "to_id": [(entry.end or END)[1] for entry in whole],
    }
