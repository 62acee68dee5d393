"""The SQLite store: which thread runs which operation, and in whose transaction."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from nightmail.bell import Bell
from nightmail.clock import Clock, StoreClock
from nightmail.errors import NotOpen, PublishUncertain, SchemaMissing, StoreUnavailable
from nightmail.limits import CLAIM_BYTES, MAX_BODY_BYTES, check_batch, check_max_body_bytes, check_size
from nightmail.message import Delivery, Message, check_due, check_queue
from nightmail.outcome import WriteResult
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats, Swept
from nightmail.store import Blocking, Capabilities, Claimed, Extend, Lingers, Settlement
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sqlite.check import Schema
from nightmail.stores.sqlite.claiming import Claiming, Wanted
from nightmail.stores.sqlite.errors import CommitInDoubt, Refused
from nightmail.stores.sqlite.inspecting import Inspecting
from nightmail.stores.sqlite.jobs import Work
from nightmail.stores.sqlite.leases import Leases, are_letters
from nightmail.stores.sqlite.letters import Letters
from nightmail.stores.sqlite.moments import StoreTime
from nightmail.stores.sqlite.notice import LOOK_INTERVAL
from nightmail.stores.sqlite.publishing import Publishing
from nightmail.stores.sqlite.redriving import Redriving
from nightmail.stores.sqlite.settling import Settling, settle_apart
from nightmail.stores.sqlite.source import database_file
from nightmail.stores.sqlite.steps import Change, Queries, Steps, carry_out
from nightmail.stores.sqlite.sweeping import Sweeping
from nightmail.stores.sqlite.threads import Threads
from nightmail.stores.sqlite.timers import Timers
from nightmail.stores.sqlite.transaction import CallersTransactions
from nightmail.stores.sqlite.watch import WakeupPoller

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
_EXTEND_SECONDS: Final = 0.2
"""How long `extend` waits for the lock: long enough for another commit, too short for a whole transaction."""
_OWN_CLOCK: Final = StoreClock()
_CAPABILITIES: Final = Capabilities(
    name="sqlite",
    transactions=True,
    concurrent_writers=False,
    locks_rows=True,
    repeatable_read=False,
    blocking=True,
    pushes_wakeups=True,
    embedded=True,
    connections=2,
)


class SQLiteStore:
    """Messages in an SQLite file, shared by any number of processes on one machine.

    Two connections, each on its own thread: one writes, claims and renews leases, one serves operators' reads.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | AsyncEngine,
        *,
        tables: str | None = None,
        clock: Clock = _OWN_CLOCK,
        keep_delivered: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._max_body_bytes = check_max_body_bytes(max_body_bytes)
        names = TableNames.parse(tables)
        if names.schema is not None:
            raise ValueError(f"SQLite has no schemas: give a prefix for the tables, not {tables!r}")
        self.file = database_file(source)
        self._sql = sql = Queries(names)
        time = StoreTime(clock)
        self._schema = Schema(names, sql)
        self._leases = Leases(sql, time, keep_delivered=keep_delivered)
        self._publishing = Publishing(sql, time, self._leases)
        self._claiming = Claiming(sql, time, self._max_body_bytes)
        self._settling = Settling(sql, time, self._leases, handed_back=self._claiming.look_from_the_start)
        self._letters = Letters(sql, time, self._leases)
        self._timers = Timers(sql, time)
        self._inspecting = Inspecting(sql, time)
        self._redriving = Redriving(sql, time)
        self._sweeping = Sweeping(sql, time)
        self._callers = CallersTransactions(self.file, sql)
        self._tower = WakeupPoller(sql, f"{names.prefix}_messages", self._watch)
        self._opened: Threads | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return _CAPABILITIES

    @property
    def max_body_bytes(self) -> int:
        """See `Store.max_body_bytes`."""
        return self._max_body_bytes

    @property
    def look_interval(self) -> timedelta:
        """The longest an idle worker goes without looking."""
        return LOOK_INTERVAL

    # ----------------------------------------------------------------------------------------- life

    async def open(self) -> None:
        """Connect to the file, if it exists. If not, `migrate` creates it."""
        if self._opened is not None and self._opened.usable:
            return
        self._opened = threads = Threads(self.file, self._tower, self._leases)
        try:
            await threads.connect()
        except BaseException:
            await self.close()
            raise
        self._watch()

    async def close(self) -> None:
        """Finish pending work, close every connection and end every thread."""
        threads, self._opened = self._opened, None
        if threads is not None:
            await threads.stop()

    async def ping(self) -> None:
        """Read something from the file."""
        try:
            _ = await self._threads.writer.read(_read_something)
        except SchemaMissing as error:
            raise StoreUnavailable(str(error)) from error

    def schema_sql(self) -> str:
        """See `Store.schema_sql`."""
        return self._schema.script

    async def migrate(self, *, repair: bool = False) -> None:
        """Create the file and the tables, or what is missing of them. A missing index is always recreated."""
        self._threads.create_file()
        _ = await self._threads.writer.write(self._schema.migrate, look=self._schema.current)

    async def check(self) -> None:
        """Compare the tables with this version's schema.

        Tables that Alembic created are completed first: see `Schema.is_adoptable`.
        """
        if await self._threads.reader.read(self._schema.is_adoptable):
            await self.migrate()
        problem = await self._threads.reader.read(self._schema.problem)
        if problem is not None:
            raise problem

    # -------------------------------------------------------------------------------------- publish

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """Store a message."""
        check_size(message, self._max_body_bytes)
        return await self._publish(lambda: self._publishing.publish(message, own), transaction)

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """Store messages without timer ids, all or none."""
        check_batch(messages, self._max_body_bytes)
        if not messages:
            return []
        return await self._publish(lambda: self._publishing.publish_batch(messages), transaction)

    async def _publish(self, steps: Callable[[], Steps[Change[T]]], transaction: object | None) -> T:
        try:
            return await self._write(steps, transaction)
        except CommitInDoubt as error:
            raise PublishUncertain from error

    # ------------------------------------------------------------------------------ claim and settle

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
        wanted = Wanted(tuple(dict.fromkeys(queues)), limit, lease, token, max_bytes)
        if not wanted.queues or limit <= 0:
            return Claimed((), None)
        writer = self._threads.writer
        # A lease need not survive a power cut, which leaves no holder.
        return await writer.write(
            lambda connection: carry_out(
                connection, self._claiming.take(wanted, writer.locked_out, writer.waited_lately)
            ),
            look=None
            if self._claiming.is_busy
            else lambda connection: carry_out(connection, self._claiming.look(wanted)),
            lasting=False,
        )

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """Hand back what a claim under this token leased."""
        named = tuple(dict.fromkeys(queues))
        return await self._write(lambda: self._claiming.recall(named, token), transaction=None)

    async def claim_dead(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """Lease dead letters."""
        wanted = Wanted(tuple(dict.fromkeys(queues)), limit, lease, token, max_bytes)
        if not wanted.queues or limit <= 0:
            return Claimed((), None)
        writer = self._threads.writer
        return await writer.write(
            lambda connection: carry_out(
                connection, self._letters.take(wanted, writer.locked_out, writer.waited_lately)
            ),
            look=lambda connection: carry_out(connection, self._letters.look(wanted)),
            lasting=False,
        )

    async def recall_dead(self, queues: Sequence[str], token: UUID) -> int:
        """Hand back the dead letters that a claim under this token leased."""
        named = tuple(dict.fromkeys(queues))
        return await self._write(lambda: self._letters.recall(named, token), transaction=None)

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        """Write the outcomes of these deliveries."""
        if not batch:
            return []
        verb = self._letters if are_letters([batch[0].delivery]) else self._settling
        try:
            return await self._settle(
                lambda connection: carry_out(connection, verb.settle(batch)), len(batch)
            )
        except Refused:
            return await self._settle(partial(settle_apart, settle=verb.settle, batch=batch), len(batch))

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """Extend these leases."""
        if not deliveries:
            return []
        return await self._threads.writer.write(
            lambda connection: carry_out(connection, self._leases.extend(deliveries, lease)),
            when_locked_out=lambda: [WriteResult.BUSY] * len(deliveries),
            patience=_EXTEND_SECONDS,
            lasting=False,
            urgent=True,
        )

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Run `work` on a thread and a connection of its own."""
        return self._threads.keeper.run_on_keeper_thread(work, lingers=lingers)

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Check these leases in the caller's transaction, whose write lock, taken here, keeps them held."""
        await self._write_joined(transaction, self._leases.hold(deliveries))

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Settle these as done in the caller's transaction."""
        await self._write_joined(transaction, self._leases.ack(deliveries))

    # --------------------------------------------------------------------------------------- timers

    async def cancel(self, queue: str, timer_id: str, *, transaction: object | None = None) -> bool:
        """Remove the owner of this timer id, if it waits."""
        return await self._write(lambda: self._timers.cancel(queue, timer_id), transaction)

    async def cancel_all(self, queue: str, *, transaction: object | None = None) -> int:
        """Remove every waiting message of this queue."""
        return await self._write(lambda: self._timers.cancel_all(queue), transaction)

    async def reschedule(
        self, queue: str, timer_id: str, due: datetime | timedelta, *, transaction: object | None = None
    ) -> bool:
        """Move the owner of this timer id to another due time, if it waits."""
        check_due(due)
        return await self._write(lambda: self._timers.reschedule(queue, timer_id, due), transaction)

    def listen(self, queues: Sequence[str]) -> Bell:
        """A bell for these queues."""
        return self._tower.bell(*queues)

    # ----------------------------------------------------------------------------------- inspection

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
        peek = partial(self._inspecting.peek, queue, timer_id=timer_id, due_before=due_before, limit=limit)
        return await (self._read(peek) if transaction is None else self._callers.read(transaction, peek()))

    async def dead(
        self,
        which: DeadFilter,
        *,
        limit: int = 100,
        cursor: int | None = None,
        max_bytes: int = CLAIM_BYTES,
    ) -> list[DeadLetter]:
        """Dead letters, newest first."""
        return await self._read(
            lambda: self._inspecting.dead(which, limit=limit, cursor=cursor, max_bytes=max_bytes)
        )

    async def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None = None, keep_timer_ids: bool = True
    ) -> list[int]:
        """Turn dead letters into messages again."""
        if to is not None:
            check_queue(to)
        if not letters:
            return []
        return await self._write(
            lambda: self._redriving.redrive(letters, to=to, keep_timer_ids=keep_timer_ids), transaction=None
        )

    async def purge(self, which: DeadFilter, *, limit: int) -> int:
        """Delete dead letters, oldest first."""
        return await self._threads.writer.write(
            lambda connection: carry_out(connection, self._sweeping.purge(which, limit=limit))
        )

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        """Delete old delivered messages, old dead letters, and windows that have ended."""
        # Need not survive a power cut: what comes back is swept again.
        return await self._threads.writer.write(
            lambda connection: carry_out(
                connection, self._sweeping.sweep(older_than=older_than, limit=limit)
            ),
            look=lambda connection: carry_out(connection, self._sweeping.is_clean(older_than)),
            lasting=False,
        )

    async def stats(self) -> dict[str, QueueStats]:
        """Statistics for each queue that is not empty."""
        return await self._read(self._inspecting.stats)

    # ------------------------------------------------------------------------- on whose connection

    @property
    def _threads(self) -> Threads:
        if self._opened is None:
            raise NotOpen
        return self._opened

    async def _write(self, steps: Callable[[], Steps[Change[T]]], transaction: object | None) -> T:
        # Rings nothing: workers that watch the file notice the write once the caller commits.
        if transaction is not None:
            return await self._write_joined(transaction, steps())
        change = await self._threads.writer.write(
            lambda connection: carry_out(connection, steps()), then=self._ring
        )
        return change.result

    async def _write_joined(self, transaction: object, steps: Steps[Change[T]]) -> T:
        if isinstance(transaction, Blocking):
            return (await self._callers.write_blocking(transaction, steps)).result
        return (await self._callers.write(transaction, steps)).result

    async def _settle(self, work: Work[Change[list[WriteResult]]], count: int) -> list[WriteResult]:
        change = await self._threads.writer.write(
            work, then=self._ring, when_locked_out=lambda: Change([WriteResult.BUSY] * count)
        )
        return change.result

    async def _read(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._threads.reader.read(lambda connection: carry_out(connection, steps()))

    def _ring(self, change: Change[T]) -> None:
        self._tower.ring_each(*change.rings)

    def _watch(self) -> None:
        if self._opened is not None and not self._tower.empty:
            self._opened.writer.run_errand(self._tower.look)


def _read_something(connection: sqlite3.Connection) -> int:
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    return int(pages)
