"""The memory store: the whole contract, without a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Final, TypeVar
from uuid import UUID

from nightmail.bell import Bell, Bells
from nightmail.clock import Clock, StoreClock
from nightmail.errors import LeaseLost
from nightmail.limits import (
    CLAIM_BYTES,
    MAX_BODY_BYTES,
    ByteBudget,
    check_batch,
    check_max_body_bytes,
    check_size,
)
from nightmail.message import DeadDelivery, Delivery, Message, check_due, check_queue
from nightmail.outcome import Dead, Reason, Release, WriteResult
from nightmail.records import (
    DeadFilter,
    DeadLetter,
    DeadSummary,
    PendingMessage,
    QueueStats,
    StoredMessage,
    Swept,
)
from nightmail.store import Capabilities, Claimed, Extend, Lingers, Settlement
from nightmail.stores.memory import inspecting, letters, sweeping
from nightmail.stores.memory.admission import Admission
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.claiming import Claiming
from nightmail.stores.memory.controlling import MemoryControl
from nightmail.stores.memory.data import MemoryData
from nightmail.stores.memory.fair_lock import running_loop
from nightmail.stores.memory.publishing import publish
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.redriving import redrive
from nightmail.stores.memory.rows import Row
from nightmail.stores.memory.settling import finish, settle, settle_letter
from nightmail.stores.memory.times import after, due_time
from nightmail.stores.shared.meta import LOOK_INTERVAL

_OWN_CLOCK: Final = StoreClock()
_NOTHING: Final = timedelta(0)
_TOO_LARGE: Final = Dead(Reason.TOO_LARGE, ran=False)
_Leased = TypeVar("_Leased")
_lingering: Final[set[asyncio.Future[None]]] = set()
"""Work that outlives its block: an event loop keeps no strong reference to its tasks."""
_CAPABILITIES: Final = Capabilities(
    name="memory",
    transactions=True,
    concurrent_writers=False,
    locks_rows=True,
    repeatable_read=False,
    blocking=True,
    pushes_wakeups=True,
    embedded=True,
    connections=0,
)


class MemoryStore(MemoryControl):
    """Messages in memory, gone with the process. Stores given the same `data` are like processes over one database.

    A verb cannot be interrupted halfway: it waits for its turn, if it needs one, and then does all its work before
    anything else runs.
    """

    def __init__(
        self,
        data: MemoryData | None = None,
        *,
        clock: Clock = _OWN_CLOCK,
        keep_delivered: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.data = MemoryData() if data is None else data
        self._clock = clock
        self._keep_delivered = keep_delivered
        self._max_body_bytes = check_max_body_bytes(max_body_bytes)
        self._bells = Bells()
        self.data.tables.listeners[self._bells] = None
        self._claiming = Claiming()

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return _CAPABILITIES

    @property
    def max_body_bytes(self) -> int:
        """The largest body that this store takes."""
        return self._max_body_bytes

    @property
    def look_interval(self) -> timedelta:
        """How long an idle worker may go without polling."""
        return LOOK_INTERVAL

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close: the messages belong to the data."""

    async def ping(self) -> None:
        """It always answers."""

    async def migrate(self, *, repair: bool = False) -> None:
        """There are no tables to create."""

    def schema_sql(self, *, found: int | None = None) -> str:
        """There are no tables to create."""
        return "-- Messages in memory need no tables."

    async def check(self, *, adopt: bool = True) -> None:
        """There are no tables that could differ."""

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """Store a message."""
        check_size(message, self._max_body_bytes)
        async with self.data.writing(transaction) as changes:
            return publish(changes, message, own, self._now())

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """Store messages without timer ids, all or none."""
        check_batch(messages, self._max_body_bytes)
        if not messages:
            return []
        async with self.data.writing(transaction) as changes:
            now = self._now()
            return [changes.add(message, now).id for message in messages]

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """Lease available messages."""
        async with self.data.turn():
            now = self._now()
            controls = self.data.tables.controls
            free, probed = controls.open_queues(dict.fromkeys(queues), now)
            budget = ByteBudget(max_bytes)
            changes = Changes(self.data.tables)
            admission = Admission(
                budget,
                self._max_body_bytes,
                bury=lambda row: changes.bury(row, _TOO_LARGE, now, given_up=True),
            )

            def take(names: Sequence[str], limit: int) -> list[Row]:
                known = self._known(names)
                for queue in known:
                    queue.pause_keys(controls.paused_keys(queue.name, now))
                return self._claiming.claim(
                    known, limit=limit, admission=admission, token=token, until=after(now, lease), now=now
                )

            probes = (name for name in probed if limit > 0)
            rows = next((taken for name in probes if (taken := take([name], 1))), None)
            if rows is not None:
                controls.probed(rows[0].queue, now)
                changes.commit()
                return Claimed([row.delivery() for row in rows], None, full=True, probe=True)
            rows = take(free, limit)
            changes.commit()
            full = len(rows) >= limit or budget.spent
            next_in = None if full else self._until_next_look([*free, *probed], queues, now)
            return Claimed([row.delivery() for row in rows], next_in, full)

    def _until_next_look(
        self, open_queues: Sequence[str], queues: Sequence[str], now: datetime
    ) -> timedelta | None:
        times = [time for queue in self._known(open_queues) if (time := queue.next_time()) is not None]
        if (ends := self.data.tables.controls.next_end(queues, now)) is not None:
            times.append(ends)
        return max(min(times) - now, _NOTHING) if times else None

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """Hand back what the claim under this token leased."""
        return await self._hand_back(
            row.delivery()
            for queue in self._known(queues)
            for row in self.data.committed(queue)
            if row.token == token
        )

    async def _hand_back(self, leased: Iterable[Delivery]) -> int:
        results = await self.settle([Settlement(delivery, Release()) for delivery in leased])
        return results.count(WriteResult.WRITTEN)

    async def claim_dead(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """Lease dead letters, longest due first."""
        async with self.data.turn():
            now = self._now()
            known = [queue.letters for queue in self._known(queues)]
            budget = ByteBudget(max_bytes)
            taken = list(
                letters.take(
                    known,
                    limit=limit,
                    budget=budget,
                    max_body_bytes=self._max_body_bytes,
                    token=token,
                    until=after(now, lease),
                    now=now,
                )
            )
            full = len(taken) >= limit or budget.spent
            times = [time for each in known if (time := each.next_time()) is not None]
            next_in = max(min(times) - now, _NOTHING) if times and not full else None
            return Claimed([letter.delivery() for letter in taken], next_in, full)

    async def recall_dead(self, queues: Sequence[str], token: UUID) -> int:
        """Hand back the dead letters that the claim under this token leased."""
        return await self._hand_back(
            letter.delivery()
            for queue in self._known(queues)
            for letter in queue.letters.by_id.values()
            if letter.token == token
        )

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        """Write the outcomes of these deliveries, around what an open transaction has locked."""
        of_letters = bool(batch) and isinstance(batch[0].delivery, DeadDelivery)
        settle_one = self._settle_letter if of_letters else self._settle
        with self.data.step:
            now = self._now()
            changes = Changes(self.data.tables)
            results = [settle_one(changes, settlement, now) for settlement in batch]
            changes.commit()
        return results

    def _settle(self, changes: Changes, settlement: Settlement, now: datetime) -> WriteResult:
        row = self.data.leased(settlement.delivery)
        if isinstance(row, WriteResult):
            return WriteResult.UNKNOWN if row is WriteResult.LOST and settlement.repeated else row
        settle(changes, row, settlement.outcome, now, keep_delivered=self._keep_delivered)
        return WriteResult.WRITTEN

    def _settle_letter(self, changes: Changes, settlement: Settlement, now: datetime) -> WriteResult:
        letter = self.data.leased_letter(settlement.delivery)
        if isinstance(letter, WriteResult):
            return WriteResult.UNKNOWN if letter is WriteResult.LOST and settlement.repeated else letter
        settle_letter(changes, letter, settlement.outcome, now)
        return WriteResult.WRITTEN

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """Extend these leases, around what an open transaction has locked."""
        extend_one = self._extend_letter if _of_letters(deliveries) else self._extend
        with self.data.step:
            now = self._now()
            changes = Changes(self.data.tables)
            return [extend_one(changes, delivery, after(now, lease), now) for delivery in deliveries]

    def _extend(self, changes: Changes, delivery: Delivery, until: datetime, now: datetime) -> WriteResult:
        row = self.data.leased(delivery)
        if isinstance(row, WriteResult):
            return row
        with changes.editing(row):
            row.lease_until = max(row.lease_until or until, until)
        return WriteResult.WRITTEN if row.stop_requested_by is None else WriteResult.STOP

    def _extend_letter(
        self, changes: Changes, delivery: Delivery, until: datetime, now: datetime
    ) -> WriteResult:
        letter = self.data.leased_letter(delivery)
        if isinstance(letter, WriteResult):
            return letter
        with changes.queue(letter.queue).letters.editing(letter):
            letter.lease_until = max(letter.lease_until or until, until)
        return WriteResult.WRITTEN

    @asynccontextmanager
    async def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AsyncIterator[None]:
        """Run `work` on this event loop: whatever blocks the loop stops the store too."""
        task = asyncio.ensure_future(work(self.extend))
        try:
            yield
        finally:
            if lingers is not None and lingers():
                _lingering.add(task)
                task.add_done_callback(_lingering.discard)
            else:
                task.cancel()
                await asyncio.wait([task])
        if task in _lingering:
            return
        if not task.cancelled():
            # Its failure is raised in the block: it would be lost otherwise.
            task.result()

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Lock these messages in the caller's transaction."""
        with self.data.step:
            changes = self.data.either_joined(transaction).changes
            if _of_letters(deliveries):
                for letter in _all_leased(changes.leased_letter, deliveries):
                    changes.touch_letter(letter)
            else:
                for row in _all_leased(changes.leased, deliveries):
                    changes.touch(row)

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Settle these as done in the caller's transaction."""
        with self.data.step:
            changes = self.data.either_joined(transaction).changes
            if _of_letters(deliveries):
                for letter in _all_leased(changes.leased_letter, deliveries):
                    changes.remove_letter(letter)
            else:
                now = self._now()
                for row in _all_leased(changes.leased, deliveries):
                    finish(changes, row, now, keep_delivered=self._keep_delivered)

    async def cancel(self, queue: str, timer_id: str, *, transaction: object | None = None) -> bool:
        """Remove the waiting owner of this timer id."""
        async with self.data.writing(transaction) as changes:
            now = self._now()
            owner = changes.queue(queue).owner_of(timer_id)
            if owner is None or owner.running(now):
                return False
            _cancel(changes, owner, now)
            return True

    async def cancel_all(
        self, queue: str, *, limit: int | None = None, transaction: object | None = None
    ) -> int:
        """Remove every waiting message of this queue, or some."""
        async with self.data.writing(transaction) as changes:
            now = self._now()
            rows = (row for row in changes.queue(queue).rows.values() if not row.running(now))
            waiting = list(islice(rows, limit))
            for row in waiting:
                _cancel(changes, row, now)
            return len(waiting)

    async def reschedule(
        self, queue: str, timer_id: str, due: datetime | timedelta, *, transaction: object | None = None
    ) -> bool:
        """Move the waiting owner of this timer id to another due time."""
        check_due(due)
        async with self.data.writing(transaction) as changes:
            now = self._now()
            owner = changes.queue(queue).owner_of(timer_id)
            if owner is None or owner.running(now):
                return False
            with changes.editing(owner):
                owner.due_at = due_time(due, now)
                # A late holder must not settle what the caller was just told will run.
                owner.end_lease()
            changes.ring_if_soon(owner.queue, owner.due_at, now)
            return True

    def listen(self, queues: Sequence[str]) -> Bell:
        """A bell for these queues."""
        self.data.tables.listeners[self._bells] = running_loop()
        return self._bells.bell(*queues)

    async def peek(
        self,
        queue: str | None = None,
        *,
        timer_id: str | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        cursor: tuple[datetime, int] | None = None,
        transaction: object | None = None,
    ) -> list[PendingMessage]:
        """Waiting messages by due time."""
        with self.data.step:
            if transaction is not None:
                self.data.joined(transaction)
            queues = self.data.tables.queues.values() if queue is None else self._known([queue])
            rows = (
                row
                for each in queues
                for row in (each.rows.values() if transaction is not None else self.data.committed(each))
            )
            return inspecting.pending(
                rows,
                timer_id=timer_id,
                due_before=due_before,
                limit=limit,
                cursor=cursor,
                now=self._now(),
            )

    async def find(self, ids: Sequence[int]) -> list[StoredMessage]:
        """The messages with these ids."""
        wanted = set(ids)
        with self.data.step:
            now = self._now()
            found = [
                row.stored(now)
                for queue in self.data.tables.queues.values()
                for row in self.data.committed(queue)
                if row.id in wanted
            ]
        return sorted(found, key=lambda message: message.id)

    async def dead(
        self,
        which: DeadFilter,
        *,
        limit: int = 100,
        cursor: int | None = None,
        max_bytes: int = CLAIM_BYTES,
    ) -> list[DeadLetter]:
        """Dead letters, newest first."""
        with self.data.step:
            found = self.data.tables.letters()
            page = inspecting.letters(found, which, limit=limit, cursor=cursor, now=self._now())
        budget = ByteBudget(max_bytes)
        return list(
            takewhile(lambda letter: budget.take(len(letter.body) + len(letter.encoded_headers)), page)
        )

    async def summarize_dead(self, which: DeadFilter, *, limit: int = 100) -> DeadSummary:
        """Dead letters, counted by group."""
        with self.data.step:
            return inspecting.summary(self.data.tables.letters(), which, limit=limit, now=self._now())

    async def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None = None, keep_timer_ids: bool = True
    ) -> list[int]:
        """Move dead letters back to queues."""
        if to is not None:
            check_queue(to)
        async with self.data.writing(None) as changes:
            return redrive(changes, letters, to=to, keep_timer_ids=keep_timer_ids, now=self._now())

    async def purge(self, which: DeadFilter, *, limit: int) -> int:
        """Delete dead letters, oldest first."""
        async with self.data.turn():
            return sweeping.purge(self.data.tables, which, limit=limit, now=self._now())

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        """Delete old history, old dead letters and expired dedup windows."""
        async with self.data.turn():
            return sweeping.sweep(self.data.tables, older_than=older_than, limit=limit, now=self._now())

    async def stats(self) -> dict[str, QueueStats]:
        """Counts of each queue that has anything."""
        with self.data.step:
            now = self._now()
            stats = {
                queue.name: inspecting.stats(
                    self.data.committed(queue), dead=len(queue.letters.by_id), now=now
                )
                for queue in self.data.tables.queues.values()
            }
        return {name: result for name, result in stats.items() if result != QueueStats()}

    def _now(self) -> datetime:
        return self._clock.now() or datetime.now(UTC)

    def _known(self, names: Iterable[str]) -> list[Queue]:
        """Those of these queues that have ever had a message, each once."""
        queues = self.data.tables.queues
        return [queues[name] for name in dict.fromkeys(names) if name in queues]


def _of_letters(deliveries: Sequence[Delivery]) -> bool:
    """Whether these are dead letters: the deliveries of one call are all of one kind."""
    return bool(deliveries) and isinstance(deliveries[0], DeadDelivery)


def _all_leased(find: Callable[[Delivery], _Leased | None], deliveries: Sequence[Delivery]) -> list[_Leased]:
    # The same message may be among them twice, under a lease that was lost and under the one that holds.
    held: dict[int, _Leased] = {}
    lost: list[int] = []
    for delivery in deliveries:
        leased = find(delivery)
        if leased is None:
            lost.append(delivery.id)
        else:
            held[delivery.id] = leased
    if lost:
        raise LeaseLost(lost)
    return list(held.values())


def _cancel(changes: Changes, row: Row, now: datetime) -> None:
    if row.timer_key is not None:
        changes.close_window(row.queue, row.timer_key)
    changes.remove(row)
