"""The MySQL and MariaDB store: which connection each operation uses, and what it runs there.

    claim     one at a time, for all subscribers of the process; dead letters too
    settle    settlements, and renewals asked for on the event loop
    publish   publishes outside a caller's transaction, timers, and operator queries
    watch     polls for what others have made available; opened when something listens
    keeper    renewals, on a thread of its own; open while `run_on_keeper_thread` is in use

What runs in a caller's transaction uses none of these.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from nightmail.bell import Bell
from nightmail.clock import Clock, StoreClock
from nightmail.errors import LeaseLost, PublishUncertain, StoreUnavailable
from nightmail.limits import CLAIM_BYTES, MAX_BODY_BYTES, check_batch, check_max_body_bytes, check_size
from nightmail.message import DeadDelivery, Delivery, Message, check_due, check_name, check_queue
from nightmail.outcome import WriteResult
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats, Swept
from nightmail.store import Blocking, Capabilities, Claimed, Extend, Lingers, Settlement
from nightmail.stores.mysql import migrate
from nightmail.stores.mysql.blocking import BlockingCallers
from nightmail.stores.mysql.callers import CallersSession, Known
from nightmail.stores.mysql.check import LOOK_INTERVAL, check
from nightmail.stores.mysql.connect import connector
from nightmail.stores.mysql.inspecting import Inspecting
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.letters import LetterSettling
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.moments import is_soon
from nightmail.stores.mysql.publishing import Published, Publishing
from nightmail.stores.mysql.redriving import Redriving
from nightmail.stores.mysql.retries import Retries
from nightmail.stores.mysql.runtime import Runtime
from nightmail.stores.mysql.settling import Settling
from nightmail.stores.mysql.sweeping import Sweeping
from nightmail.stores.mysql.text import BacktickNames, Sql
from nightmail.stores.mysql.timers import Timers
from nightmail.stores.mysql.transaction import OneByOne, OwnTransaction, Session
from nightmail.stores.shared.opening import Opening
from nightmail.stores.sql.statements import Statement, load

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

FILES: Final = (
    "publish.sql",
    "timers.sql",
    "claim.sql",
    "settle.sql",
    "inspect.sql",
    "redrive.sql",
    "sweep.sql",
    "shape.sql",
)
WITHOUT_WAKEUPS: Final = timedelta(seconds=1)
STORE_CLOCK: Final = StoreClock()


class MySQLStore:
    """Messages in MariaDB or MySQL, in the tables `nightmail_...` or those that `tables` names.

    `tables` is a `prefix` or `database.prefix`. Tested on MariaDB 10.11; written for MySQL 8 too.
    """

    capabilities: Final = Capabilities(
        name="mysql",
        transactions=True,
        concurrent_writers=True,
        locks_rows=True,
        repeatable_read=True,
        blocking=True,
        pushes_wakeups=False,
        embedded=False,
        connections=5,
    )

    def __init__(
        self,
        source: str | AsyncEngine,
        *,
        tables: str | None = None,
        clock: Clock = STORE_CLOCK,
        keep_delivered: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._max_body_bytes = check_max_body_bytes(max_body_bytes)
        self._connect = connector(source)
        self._names = BacktickNames.parse(tables)
        self._clock = clock
        self._statements: dict[str, Statement] = {}
        for file in FILES:
            self._statements |= load(migrate.PACKAGE, file, self._names, numbered=False)
        self._letters = load(migrate.PACKAGE, "letters.sql", self._names, numbered=False)
        self._retries = Retries()
        self._known = Known()
        self._publishing = Publishing(self._statements, clock)
        self._timers = Timers(self._statements, clock)
        self._settling = Settling(
            self._statements, clock, self._ring, self._look_everywhere, keep_delivered=keep_delivered
        )
        self._letter_settling = LetterSettling(
            self._letters, clock, self._ring, lambda: None, keep_delivered=False
        )
        self._inspecting = Inspecting(self._statements, clock)
        self._redriving = Redriving(self._statements, clock)
        self._sweeping = Sweeping(self._statements, clock)
        self._opening = Opening(self._make)

    # ------------------------------------------------------------------------------------ lifecycle

    @property
    def max_body_bytes(self) -> int:
        """See `Store.max_body_bytes`."""
        return self._max_body_bytes

    @property
    def look_interval(self) -> timedelta:
        """See `Store.look_interval`."""
        deaf = self._opened is not None and self._opened.tower.deaf
        return WITHOUT_WAKEUPS if deaf else LOOK_INTERVAL

    @property
    def retried(self) -> Counter[int]:
        """How often a transient error was retried, by error number."""
        return Counter(self._retries.counted)

    async def open(self) -> None:
        """See `Store.open`. Connections are made when they are needed."""
        self._opening.open()

    async def close(self) -> None:
        """See `Store.close`."""
        opened = self._opening.end()
        if opened is not None:
            await opened.close()

    async def ping(self) -> None:
        """See `Store.ping`."""
        await self._runtime.publish.run(lambda link: link.ask("select 1"))

    def schema_sql(self) -> str:
        """See `Store.schema_sql`."""
        return migrate.script(self._names)

    async def migrate(self, *, repair: bool = False) -> None:
        """See `Store.migrate`."""
        await self._runtime.publish.run_patiently(lambda link: migrate.migrate(link, self._names))
        if repair:
            await self._runtime.publish.run_patiently(lambda link: migrate.repair(link, self._names))
        await self._runtime.callers.learn()

    async def check(self) -> None:
        """See `Store.check`. Also raises `NotAllowed` when the database user lacks a privilege."""
        await self._runtime.publish.run(lambda link: check(link, self._names, self._statements))
        await self._runtime.callers.learn()

    # ------------------------------------------------------------------------------------- publish

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """See `Store.publish`."""
        check_size(message, self._max_body_bytes)
        if transaction is not None:
            return await self._join(transaction, lambda session: self._publish_joined(session, message, own))
        if message.timer_id is None and own is None:
            published = Published(await self._runtime.coalescer.publish(message))
        else:
            published = await self._in_own_transaction(
                lambda session: self._publishing.publish(session, message, own, sees_all=True),
                lost=PublishUncertain,
            )
        if published.id is not None and (published.frees or is_soon(message.due, self._clock)):
            self._ring([message.queue])
        return published.id

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """See `Store.publish_batch`."""
        check_batch(messages, self._max_body_bytes)
        if not messages:
            return []
        if transaction is not None:
            return await self._join(
                transaction, lambda session: self._publish_batch_joined(session, messages)
            )
        stored = await self._runtime.publish.run_patiently(
            lambda link: self._publishing.publish_together(link, messages), lost=PublishUncertain
        )
        self._ring({message.queue for message in messages if is_soon(message.due, self._clock)})
        return stored

    async def _publish_joined(
        self, session: CallersSession, message: Message, own: Delivery | None
    ) -> int | None:
        if message.timer_id is None and own is None:
            return await self._publishing.publish_if_ours(session, message)
        sees_all = await session.look()
        published = await self._publishing.publish(session, message, own, sees_all=sees_all, says_so=True)
        return published.id

    async def _publish_batch_joined(self, session: CallersSession, messages: Sequence[Message]) -> list[int]:
        await session.look()
        return await self._publishing.publish_batch(session, messages, session.ours.dialect)

    # ---------------------------------------------------------------------------------- under a lease

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """See `Store.claim`."""
        here = self._runtime
        claimed = await here.claims.claim(queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes)
        here.tower.claimed(queues, found=bool(claimed.deliveries))
        return claimed

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall`."""
        return await self._settling.recall(self._runtime.claim, queues, token)

    async def claim_dead(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """See `Store.claim_dead`."""
        here = self._runtime
        claimed = await here.letters.claim(queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes)
        here.tower.claimed_dead(queues, found=bool(claimed.deliveries))
        return claimed

    async def recall_dead(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall_dead`."""
        return await self._letter_settling.recall(self._runtime.claim, queues, token)

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Store.settle`."""
        settling = self._settling_of(batch[0].delivery) if batch else self._settling
        return await settling.settle(self._runtime.settle, batch)

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """See `Store.extend`."""
        return await self._extend(self._runtime.settle, deliveries, lease)

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        """See `Store.run_on_keeper_thread`."""
        return self._runtime.keeper.run_on_keeper_thread(work, lingers=lingers)

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """See `Store.hold`."""
        await self._join(transaction, lambda session: self._hold(session, deliveries))

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """See `Store.ack`."""

        async def ack(session: CallersSession) -> None:
            await self._hold(session, deliveries)
            if deliveries:
                await self._settling_of(deliveries[0]).remove(session, deliveries)

        await self._join(transaction, ack)

    async def _hold(self, session: CallersSession, deliveries: Sequence[Delivery]) -> None:
        # Locked first: a caller's snapshot taken earlier could be older than the last renewal.
        try:
            if deliveries:
                await self._settling_of(deliveries[0]).hold(session, deliveries)
        except LeaseLost:
            await session.look()  # Or these were not our tables.
            raise
        await session.look()

    def _settling_of(self, first: Delivery) -> Settling:
        """For a batch that begins with this: a batch is all of one kind."""
        return self._letter_settling if isinstance(first, DeadDelivery) else self._settling

    async def _extend(
        self, lane: Lane, deliveries: Sequence[Delivery], lease: timedelta
    ) -> list[WriteResult]:
        settling = self._settling_of(deliveries[0]) if deliveries else self._settling
        return await settling.extend(lane, deliveries, lease)

    # -------------------------------------------------------------------------------------- timers

    async def cancel(self, queue: str, timer_id: str, *, transaction: object | None = None) -> bool:
        """See `Store.cancel`."""
        check_queue(queue)
        check_name("timer_id", timer_id)
        removed = await self._write(
            lambda session, sees_all: self._timers.cancel(session, queue, timer_id, sees_all=sees_all),
            transaction,
        )
        if removed.frees and transaction is None:
            self._ring([queue])
        return removed.count > 0

    async def cancel_all(self, queue: str, *, transaction: object | None = None) -> int:
        """See `Store.cancel_all`. Without `transaction` it commits in portions: an error may leave the rest."""
        check_queue(queue)
        if transaction is not None:
            return await self._write(
                lambda session, sees_all: self._timers.cancel_all(session, queue, sees_all=sees_all),
                transaction,
            )
        # If the caller is cancelled, this still runs to the end.
        return await asyncio.shield(asyncio.ensure_future(self._cancel_in_portions(queue)))

    async def _cancel_in_portions(self, queue: str) -> int:
        newest = await self._runtime.publish.run(lambda link: self._timers.newest(OneByOne(link)))
        removed = 0
        try:
            while some := await self._in_own_transaction(
                lambda session: self._timers.cancel_some(session, queue, newest, sees_all=True)
            ):
                removed += some
        finally:
            if removed:
                self._ring([queue])
        return removed

    async def reschedule(
        self, queue: str, timer_id: str, due: datetime | timedelta, *, transaction: object | None = None
    ) -> bool:
        """See `Store.reschedule`."""
        check_queue(queue)
        check_name("timer_id", timer_id)
        check_due(due)
        moved = await self._write(
            lambda session, sees_all: self._timers.reschedule(
                session, queue, timer_id, due, sees_all=sees_all
            ),
            transaction,
        )
        if moved.count and transaction is None and (moved.frees or is_soon(due, self._clock)):
            self._ring([queue])
        return moved.count > 0

    # -------------------------------------------------------------------------------------- looking

    def listen(self, queues: Sequence[str]) -> Bell:
        """See `Store.listen`."""
        return self._runtime.tower.bell(*queues)

    async def peek(
        self,
        queue: str | None = None,
        *,
        timer_id: str | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        transaction: object | None = None,
    ) -> list[PendingMessage]:
        """See `Inspection.peek`."""

        async def ask(session: Session, _: bool) -> list[PendingMessage]:
            return await self._inspecting.peek(
                session, queue=queue, timer_id=timer_id, due_before=due_before, limit=limit
            )

        return await self._write(ask, transaction)

    async def dead(
        self,
        which: DeadFilter,
        *,
        limit: int = 100,
        cursor: int | None = None,
        max_bytes: int = CLAIM_BYTES,
    ) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        return await self._runtime.publish.run(
            lambda link: self._inspecting.dead(link, which, limit=limit, cursor=cursor, max_bytes=max_bytes)
        )

    async def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None = None, keep_timer_ids: bool = True
    ) -> list[int]:
        """See `Inspection.redrive`."""
        if to is not None:
            check_queue(to)
        if not letters:
            return []
        redriven = await self._runtime.publish.run_patiently(
            lambda link: self._redriving.redrive(link, letters, to=to, keep_timer_ids=keep_timer_ids)
        )
        self._ring(redriven.queues)
        return redriven.ids

    async def purge(self, which: DeadFilter, *, limit: int) -> int:
        """See `Inspection.purge`."""
        return await self._runtime.publish.run_patiently(
            lambda link: self._sweeping.purge(link, which, limit=limit)
        )

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        """See `Inspection.sweep`."""
        return await self._runtime.publish.run_patiently(
            lambda link: self._sweeping.sweep(link, older_than=older_than, limit=limit)
        )

    async def stats(self) -> dict[str, QueueStats]:
        """See `Inspection.stats`."""
        return await self._runtime.publish.run(self._inspecting.stats)

    # ------------------------------------------------------------------------------------- inside

    def _make(self) -> Runtime:
        self._known.opened = True
        return Runtime(
            self._connect,
            self._statements,
            self._letters,
            self._clock,
            self._retries,
            self._known,
            max_body_bytes=self._max_body_bytes,
            send=self._publishing.publish_together,
            extend=self._extend,
        )

    @property
    def _opened(self) -> Runtime | None:
        return self._opening.now

    @property
    def _runtime(self) -> Runtime:
        return self._opening.here()

    def _ring(self, queues: Iterable[str]) -> None:
        if self._opened is not None:
            self._opened.tower.ring_each(queues)

    def _look_everywhere(self) -> None:
        if self._opened is not None:
            self._opened.claims.look_everywhere()

    async def _join(self, transaction: object, work: Callable[[CallersSession], Awaitable[T]]) -> T:
        """Run this in the caller's transaction, or refuse."""
        if isinstance(transaction, Blocking):
            identity = Sql(self._statements["identity"].text)
            callers = BlockingCallers(self._connect, identity, self._known, self._retries)
            return await callers.join(transaction, work)
        return await self._runtime.callers.join(transaction, work)

    async def _write(self, work: Callable[[Session, bool], Awaitable[T]], transaction: object | None) -> T:
        """Run this in the caller's transaction, which must be in our database, or in our own if there is none.

        `work` also gets whether its session sees what others have committed.
        """
        if transaction is None:
            return await self._in_own_transaction(lambda session: work(session, True))

        async def joined(session: CallersSession) -> T:
            return await work(session, await session.look())

        return await self._join(transaction, joined)

    async def _in_own_transaction(
        self, work: Callable[[Session], Awaitable[T]], *, lost: type[StoreUnavailable] = StoreUnavailable
    ) -> T:
        async def run(link: Link) -> T:
            transaction = OwnTransaction(link)
            result = await work(transaction)
            await transaction.commit()
            return result

        return await self._runtime.publish.run_patiently(run, lost=lost)
