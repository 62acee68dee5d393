"""The memory store: the whole contract, without a database."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from operator import attrgetter
from typing import Final
from uuid import UUID

from nightmail.bell import Bell, BellTower
from nightmail.clock import Clock, StoreClock
from nightmail.errors import LeaseLost
from nightmail.message import Delivery, Message, check_due
from nightmail.outcome import Standing
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats
from nightmail.store import Capabilities, Claimed, Extend, Settlement
from nightmail.stores._fairness import FairShare
from nightmail.stores.memory import inspection
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.data import MemoryData
from nightmail.stores.memory.moments import after, due_moment
from nightmail.stores.memory.publishing import publish
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Row
from nightmail.stores.memory.settling import finish, settle

_OWN_CLOCK: Final = StoreClock()
_LOOK_INTERVAL: Final = timedelta(seconds=5)
_NOTHING: Final = timedelta(0)
_CAPABILITIES: Final = Capabilities(
    name="memory",
    transactions=True,
    concurrent_writers=False,
    repeatable_read=False,
    pushes_wakeups=True,
    embedded=True,
    connections=0,
)


class MemoryStore:
    """Messages in memory, gone with the process. Stores given the same `data` are like processes over one database.

    A verb has no moment at which it could be torn in half: it waits for its turn, if it needs one, and then
    does all it does before anybody else runs.
    """

    def __init__(
        self, data: MemoryData | None = None, *, clock: Clock = _OWN_CLOCK, keep_delivered: bool = False
    ) -> None:
        self.data = MemoryData() if data is None else data
        self._clock = clock
        self._keep_delivered = keep_delivered
        self._tower = BellTower()
        self.data.tables.towers.add(self._tower)
        self._share = FairShare()
        self._claims = count(1)
        self._served: Counter[str] = Counter()

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return _CAPABILITIES

    @property
    def look_interval(self) -> timedelta:
        """How long an idle worker may go without looking."""
        return _LOOK_INTERVAL

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to give back: the messages are the data's."""

    async def ping(self) -> None:
        """It always answers."""

    async def migrate(self) -> None:
        """There are no tables to create."""

    async def check(self) -> None:
        """There are no tables that could differ."""

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """Store a message."""
        async with self.data.writing(transaction) as changes:
            return publish(changes, message, own, self._now())

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """Store messages without timer ids, all or none."""
        if any(message.timer_id is not None for message in messages):
            raise ValueError("a batch cannot have timer ids: publish timers one by one")
        if not messages:
            return []
        async with self.data.writing(transaction) as changes:
            now = self._now()
            return [changes.add(message, now).id for message in messages]

    async def claim(self, queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID) -> Claimed:
        """Lease available messages."""
        async with self.data.turn():
            now = self._now()
            known = self._known(queues)
            rows = self._claim(known, limit, token, after(now, lease), now)
            next_in = None if len(rows) >= limit else _until_next(known, now)
            return Claimed([row.delivery() for row in rows], next_in)

    def _claim(
        self, queues: Iterable[Queue], limit: int, token: UUID, until: datetime, now: datetime
    ) -> list[Row]:
        claim = next(self._claims)
        rows: list[Row] = []
        # Whichever queue has gone longest without giving anything comes first.
        for queue in sorted(queues, key=lambda queue: self._served[queue.name]):
            room = limit - len(rows)
            oldest = self._share.reserved(queue.name, room)
            taken = list(queue.claim(room, oldest=oldest, token=token, until=until, now=now))
            if taken:
                rows += taken if len(taken) == room else self._in_order(queue.name, taken)
                self._share.claimed(queue.name, len(taken))
                self._served[queue.name] = claim
        return rows

    def _in_order(self, queue: str, taken: list[Row]) -> list[Row]:
        """All there was, in order: the share of the oldest is one of so many claimed, not of so many asked for."""
        by_age = sorted(taken, key=attrgetter("due_at", "id"))
        share = self._share.reserved(queue, len(taken))
        return by_age[:share] + sorted(by_age[share:], key=attrgetter("priority"), reverse=True)

    async def recall(self, queues: Sequence[str], token: UUID) -> Sequence[Delivery]:
        """What a claim under this token leased."""
        return [
            row.delivery()
            for queue in self._known(queues)
            for row in self.data.committed(queue)
            if row.token == token
        ]

    async def settle(self, batch: Sequence[Settlement]) -> list[Standing]:
        """Write how these deliveries ended, around what an open transaction has locked."""
        now = self._now()
        changes = Changes(self.data.tables)
        standings = [self._settle(changes, settlement, now) for settlement in batch]
        changes.commit()
        return standings

    def _settle(self, changes: Changes, settlement: Settlement, now: datetime) -> Standing:
        row = self.data.leased(settlement.delivery)
        if isinstance(row, Standing):
            return Standing.UNKNOWN if row is Standing.LOST and settlement.repeated else row
        settle(changes, row, settlement.outcome, now, keep_delivered=self._keep_delivered)
        return Standing.HELD

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[Standing]:
        """Let these leases run on, around what an open transaction has locked."""
        now = self._now()
        changes = Changes(self.data.tables)
        return [self._extend(changes, delivery, after(now, lease), now) for delivery in deliveries]

    def _extend(self, changes: Changes, delivery: Delivery, until: datetime, now: datetime) -> Standing:
        row = self.data.leased(delivery)
        if isinstance(row, Standing):
            return row
        with changes.editing(row, now):
            row.lease_until = max(row.lease_until or until, until)
        return Standing.HELD

    @asynccontextmanager
    async def beside(self, work: Callable[[Extend], Awaitable[None]]) -> AsyncIterator[None]:
        """Run `work` on this event loop: whatever blocks the loop stops the store too."""
        task = asyncio.ensure_future(work(self.extend))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            # Its failure is the block's: nobody else would hear of it.
            task.result()

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Lock these messages in the caller's transaction."""
        changes = self.data.joined(transaction).changes
        for row in _all_leased(changes, deliveries):
            changes.touch(row)

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Settle these as done in the caller's transaction."""
        changes = self.data.joined(transaction).changes
        now = self._now()
        for row in _all_leased(changes, deliveries):
            finish(changes, row, now, keep_delivered=self._keep_delivered)

    async def cancel(self, queue: str, timer_id: str, *, transaction: object | None = None) -> bool:
        """Remove the waiting bearer of this name."""
        async with self.data.writing(transaction) as changes:
            now = self._now()
            bearer = changes.queue(queue).bearer(timer_id)
            if bearer is None or bearer.running(now):
                return False
            _cancel(changes, bearer, now)
            return True

    async def cancel_all(self, queue: str, *, transaction: object | None = None) -> int:
        """Remove every waiting message of this queue."""
        async with self.data.writing(transaction) as changes:
            now = self._now()
            waiting = [row for row in changes.queue(queue).rows.values() if not row.running(now)]
            for row in waiting:
                _cancel(changes, row, now)
            return len(waiting)

    async def reschedule(
        self, queue: str, timer_id: str, due: datetime | timedelta, *, transaction: object | None = None
    ) -> bool:
        """Move the waiting bearer of this name to another due time."""
        check_due(due)
        async with self.data.writing(transaction) as changes:
            now = self._now()
            bearer = changes.queue(queue).bearer(timer_id)
            if bearer is None or bearer.running(now):
                return False
            with changes.editing(bearer, now):
                bearer.due_at = due_moment(due, now)
                # A late holder must not end what its owner was just told will come.
                bearer.end_lease()
            changes.ring_if_soon(bearer, now)
            return True

    def listen(self, queues: Sequence[str]) -> Bell:
        """A bell for these queues."""
        return self._tower.bell(*queues)

    async def peek(
        self,
        queue: str | None = None,
        *,
        timer_id: str | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        transaction: object | None = None,
    ) -> list[PendingMessage]:
        """Waiting messages by due time."""
        if transaction is not None:
            self.data.joined(transaction)
        queues = self.data.tables.queues.values() if queue is None else self._known([queue])
        rows = (
            row
            for each in queues
            for row in (each.rows.values() if transaction is not None else self.data.committed(each))
        )
        return inspection.pending(
            rows, timer_id=timer_id, due_before=due_before, limit=limit, now=self._now()
        )

    async def dead(
        self, which: DeadFilter, *, limit: int = 100, cursor: int | None = None
    ) -> list[DeadLetter]:
        """Dead letters, newest first."""
        letters = self.data.tables.dead.values()
        return inspection.letters(letters, which, limit=limit, cursor=cursor, now=self._now())

    async def stats(self) -> dict[str, QueueStats]:
        """How each queue that has anything stands."""
        now = self._now()
        dead = Counter(letter.queue for letter in self.data.tables.dead.values())
        stats = {
            queue.name: inspection.stats(self.data.committed(queue), dead=dead[queue.name], now=now)
            for queue in self.data.tables.queues.values()
        }
        return {name: standing for name, standing in stats.items() if standing != QueueStats()}

    def _now(self) -> datetime:
        return self._clock.now() or datetime.now(UTC)

    def _known(self, names: Iterable[str]) -> list[Queue]:
        """Those of these queues that ever had a message, each once."""
        queues = self.data.tables.queues
        return [queues[name] for name in dict.fromkeys(names) if name in queues]


def _all_leased(changes: Changes, deliveries: Sequence[Delivery]) -> list[Row]:
    rows = {delivery.id: changes.leased(delivery) for delivery in deliveries}
    held = [row for row in rows.values() if row is not None]
    if len(held) < len(rows):
        raise LeaseLost([id_ for id_, row in rows.items() if row is None])
    return held


def _cancel(changes: Changes, row: Row, now: datetime) -> None:
    if row.timer_key is not None:
        changes.close_window(row.queue, row.timer_key)
    changes.remove(row, now)


def _until_next(queues: Iterable[Queue], now: datetime) -> timedelta | None:
    moments = [moment for queue in queues if (moment := queue.next_moment()) is not None]
    return max(min(moments) - now, _NOTHING) if moments else None
