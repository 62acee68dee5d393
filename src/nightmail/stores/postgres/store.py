"""The Postgres store: which connection each verb uses, and what it runs there.

    claim     one at a time, for all subscribers of the process
    settle    settlements, and lease renewals requested on the event loop
    publish   publishes outside a caller's transaction, and operators' queries
    timers    publishes with a timer id, and changes to those: they may wait for another open transaction
    listen    notifications; opened by the first `listen`
    keeper    lease renewals, on the keeper thread; open while work runs there

Work in a caller's transaction uses none of these.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from nightmail.bell import Bell
from nightmail.clock import Clock, StoreClock
from nightmail.errors import PublishUncertain
from nightmail.limits import CLAIM_BYTES, MAX_BODY_BYTES, check_batch, check_max_body_bytes, check_size
from nightmail.message import DeadDelivery, Delivery, Message, check_name, check_queue
from nightmail.outcome import Dead, Done, Release, WriteResult
from nightmail.store import Blocking, Capabilities, Claimed, Extend, Lingers, Settlement
from nightmail.stores.postgres import migrate
from nightmail.stores.postgres.blocking import join_blocking
from nightmail.stores.postgres.callers import Tables
from nightmail.stores.postgres.check import LOOK_INTERVAL, check
from nightmail.stores.postgres.connect import Connect, Connection, connector
from nightmail.stores.postgres.lane import MIGRATE, Lane
from nightmail.stores.postgres.leases import UnderLease
from nightmail.stores.postgres.letters import Letters
from nightmail.stores.postgres.moments import due_values
from nightmail.stores.postgres.operators import ForOperators
from nightmail.stores.postgres.publishing import Publishing, answer
from nightmail.stores.postgres.runtime import Runtime
from nightmail.stores.postgres.settling import Settling
from nightmail.stores.postgres.transaction import Direct, Joined, Session
from nightmail.stores.shared.opening import Opening
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import Statement, load

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

FILES: Final = (
    "publish.sql",
    "timers.sql",
    "claim.sql",
    "settle.sql",
    "letters.sql",
    "inspect.sql",
    "redrive.sql",
    "sweep.sql",
    "shape.sql",
)
CHANNEL: Final = """(
    select pg_catalog.concat('nightmail_', pg_catalog.replace(identity::text, '-', '')) from nightmail_meta limit 1
)"""
"""Replaces `:channel` in statements: wake-ups belong to the tables, whatever name a store knows them by."""
WITHOUT_WAKEUPS: Final = timedelta(seconds=1)
STORE_CLOCK: Final = StoreClock()


class PostgresStore(ForOperators):
    """Messages in Postgres, in the tables `nightmail_...` or as `tables` names them: `prefix` or `schema.prefix`."""

    capabilities: Final = Capabilities(
        name="postgres",
        transactions=True,
        concurrent_writers=True,
        locks_rows=True,
        repeatable_read=True,
        blocking=True,
        pushes_wakeups=True,
        embedded=False,
        connections=6,
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
        self._connect: Connect = connector(source)
        self._names = TableNames.parse(tables)
        self._clock = clock
        self._statements: dict[str, Statement] = {}
        for file in FILES:
            self._statements |= load(
                migrate.PACKAGE, file, self._names, numbered=True, parts={"channel": CHANNEL}
            )
        self._publishing = Publishing(self._statements, clock)
        self._settling = Settling(self._statements, clock, keep_delivered=keep_delivered)
        self._letters = Letters(self._statements, clock)
        super().__init__(self._statements, clock)
        self._tables = Tables(self._statements, self._names)
        self._opening = Opening(self._make)

    # ------------------------------------------------------------------------------------ its life

    @property
    def max_body_bytes(self) -> int:
        """See `Store.max_body_bytes`."""
        return self._max_body_bytes

    @property
    def look_interval(self) -> timedelta:
        """See `Store.look_interval`."""
        deaf = self._opened is not None and self._opened.listener.deaf
        return WITHOUT_WAKEUPS if deaf else LOOK_INTERVAL

    @property
    def listening(self) -> bool:
        """Whether wake-ups from other processes arrive."""
        return self._opened is not None and self._opened.listener.listening

    async def open(self) -> None:
        """See `Store.open`. Connections open when they are needed."""
        self._opening.open()

    async def close(self) -> None:
        """See `Store.close`."""
        opened = self._opening.end()
        if opened is not None:
            await opened.close()

    async def ping(self) -> None:
        """See `Store.ping`."""
        await self._runtime.publish.run(lambda connection: connection.execute("select 1", timeout=5))

    def schema_sql(self) -> str:
        """See `Store.schema_sql`."""
        return migrate.script(self._names)

    async def migrate(self, *, repair: bool = False) -> None:
        """See `Store.migrate`."""

        async def work(connection: Connection) -> None:
            await migrate.migrate(connection, self._names, self._tables.place)
            if repair:
                await migrate.repair(connection, self._names, self._tables.place)
            await self._tables.learn(connection)

        _ = self._runtime  # Refuses a store that is not open.
        lane = Lane(MIGRATE, self._connect, self._tables.place)
        try:
            await lane.run(work)
        finally:
            await lane.close()

    async def check(self) -> None:
        """See `Store.check`."""

        async def work(connection: Connection) -> None:
            await check(connection, self._names, self._statements, self._tables.place)
            await self._tables.learn(connection)

        await self._runtime.publish.run(work)

    # ------------------------------------------------------------------------------------- publish

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """See `Store.publish`."""
        check_size(message, self._max_body_bytes)
        if transaction is not None:
            return await self._join(
                transaction,
                lambda session, identity: self._publish_in(session, message, own, identity),
            )
        if message.timer_id is None and own is None:
            return await self._runtime.coalescer.publish(message)
        return await self._runtime.timers.run_patiently(
            lambda connection: self._publish_one(connection, message, own), lost=PublishUncertain
        )

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """See `Store.publish_batch`."""
        check_batch(messages, self._max_body_bytes)
        if not messages:
            return []
        if transaction is not None:
            return await self._join(
                transaction,
                lambda session, identity: self._publishing.publish_batch(session, messages, identity),
            )
        return await self._runtime.publish.run_patiently(
            lambda connection: self._publish_together(connection, messages), lost=PublishUncertain
        )

    async def _publish_one(
        self, connection: Connection, message: Message, own: Delivery | None
    ) -> int | None:
        # In one transaction: otherwise a lost connection could leave a dedup window without its message.
        several = message.dedup_for is not None or isinstance(own, DeadDelivery)
        async with connection.transaction() if several else nullcontext():
            return await self._publish_in(Direct(connection), message, own, None)

    async def _publish_in(
        self, session: Session, message: Message, own: Delivery | None, identity: UUID | None
    ) -> int | None:
        if isinstance(own, DeadDelivery):
            # A dead letter handler is fenced by its lease. A dead letter owns no timer id that could be taken over.
            await self._letters.hold(session, [own], identity)
            own = None
        return await self._publishing.publish(session, message, own, identity)

    async def _publish_together(self, connection: Connection, messages: Sequence[Message]) -> list[int]:
        return await self._publishing.publish_batch(Direct(connection), messages, None)

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
        return await self._runtime.claims.claim(
            queues, limit=limit, max_bytes=max_bytes, lease=lease, token=token
        )

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall`."""
        return await self._runtime.claims.recall(queues, token)

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
        return await self._letters.claim(
            self._runtime.claim, queues, limit=limit, max_bytes=max_bytes, lease=lease, token=token
        )

    async def recall_dead(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall_dead`."""
        return await self._letters.recall(self._runtime.claim, queues, token)

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Store.settle`."""
        if not batch:
            return []
        results = await self._kind([batch[0].delivery]).settle(self._runtime.settle, batch)
        released = [settlement.delivery for settlement in batch if isinstance(settlement.outcome, Release)]
        if released and not isinstance(released[0], DeadDelivery):
            self._runtime.claims.released(released)
        if not isinstance(batch[0].delivery, DeadDelivery):
            self._runtime.claims.ended(
                settlement.delivery
                for settlement in batch
                if settlement.delivery.ordering_key is not None
                and isinstance(settlement.outcome, Done | Dead)
            )
        return results

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
        await self._join_unasked(
            transaction,
            lambda session, identity: self._kind(deliveries).hold(session, deliveries, identity),
        )

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """See `Store.ack`."""
        await self._join_unasked(
            transaction,
            lambda session, identity: self._kind(deliveries).ack(session, deliveries, identity),
        )

    async def _extend(
        self, lane: Lane, deliveries: Sequence[Delivery], lease: timedelta
    ) -> list[WriteResult]:
        return await self._kind(deliveries).extend(lane, deliveries, lease)

    def _kind(self, deliveries: Sequence[Delivery]) -> UnderLease:
        """The writer for these deliveries, which are all of one kind."""
        return self._letters if deliveries and isinstance(deliveries[0], DeadDelivery) else self._settling

    # -------------------------------------------------------------------------------------- timers

    async def cancel(self, queue: str, timer_id: str, *, transaction: object | None = None) -> bool:
        """See `Store.cancel`."""
        row = await self._ask("cancel", {"queue": queue, "timer_id": timer_id}, transaction)
        return bool(row["removed"])

    async def cancel_all(self, queue: str, *, transaction: object | None = None) -> int:
        """See `Store.cancel_all`."""
        row = await self._ask("cancel_all", {"queue": queue}, transaction)
        return int(row["removed"])

    async def reschedule(
        self, queue: str, timer_id: str, due: datetime | timedelta, *, transaction: object | None = None
    ) -> bool:
        """See `Store.reschedule`."""
        values = {"queue": queue, "timer_id": timer_id, **due_values(due)}
        row = await self._ask("reschedule", values, transaction)
        return bool(row["moved"])

    # -------------------------------------------------------------------------------------- looking

    def listen(self, queues: Sequence[str]) -> Bell:
        """See `Store.listen`."""
        return self._runtime.listener.bell(*queues)

    # ------------------------------------------------------------------------------------- inside

    def _make(self) -> Runtime:
        return Runtime(
            self._connect,
            self._statements,
            self._clock,
            self._tables,
            send=self._publish_together,
            extend=self._extend,
            max_body_bytes=self._max_body_bytes,
        )

    @property
    def _opened(self) -> Runtime | None:
        return self._opening.now

    @property
    def _runtime(self) -> Runtime:
        return self._opening.here()

    async def _join(self, transaction: object, work: Callable[[Session, UUID | None], Awaitable[T]]) -> T:
        """Run `work` in the caller's transaction, which may be one in synchronous code."""

        async def work_if_seen(session: Joined, identity: UUID | None) -> T:
            await self._tables.refuse_unless_seen(session)
            return await work(session, identity)

        return await self._join_unasked(transaction, work_if_seen)

    async def _join_unasked(
        self, transaction: object, work: Callable[[Joined, UUID | None], Awaitable[T]]
    ) -> T:
        """Like `_join`, without a query before it: see `Tables.refuse_unless_seen`."""
        if isinstance(transaction, Blocking):
            session = join_blocking(transaction.session)
            if self._tables.identity is not None:
                session.place = self._tables.place
            return await work(session, self._tables.identity)
        return await self._runtime.callers.join(transaction, work)

    async def _ask(self, name: str, values: dict[str, Any], transaction: object | None) -> Any:
        """Run a statement, perhaps in a caller's transaction, and return its row."""
        check_queue(values["queue"])
        if "timer_id" in values:
            check_name("timer_id", values["timer_id"])
        statement = self._statements[name]
        values["now"] = self._clock.now()
        if transaction is not None:
            return await self._join(
                transaction,
                lambda session, identity: _answered(session, statement, {**values, "identity": identity}),
            )
        return await self._runtime.timers.run_patiently(
            lambda connection: _answered(Direct(connection), statement, {**values, "identity": None})
        )


async def _answered(session: Session, statement: Statement, values: dict[str, Any]) -> Any:
    return answer(await session.rows(statement, values))
