"""The Postgres store: which connection each verb uses, and what it asks there.

    claim     one at a time, for all subscribers of the process
    settle    settlements, and renewals asked for on the event loop
    publish   publishes by their own commit, timers, and what an operator asks
    listen    notifications; opened when somebody listens
    keeper    renewals, on a thread of its own; open while anybody works beside the event loop

What runs in a caller's transaction uses none of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from nightmail.bell import Bell
from nightmail.clock import Clock, StoreClock
from nightmail.errors import OtherDatabase, PublishUncertain, SchemaMissing, StoreUnavailable
from nightmail.message import Delivery, Message, check_name, check_queue
from nightmail.outcome import Standing
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats
from nightmail.store import Capabilities, Claimed, Extend, Settlement
from nightmail.stores._names import TableNames
from nightmail.stores._sql import Statement, load
from nightmail.stores.postgres import migrate
from nightmail.stores.postgres.check import LOOK_INTERVAL, check
from nightmail.stores.postgres.claiming import Claims
from nightmail.stores.postgres.connect import Connection, connector
from nightmail.stores.postgres.inspecting import AsAsked, Inspecting
from nightmail.stores.postgres.keeper_thread import KeeperThread
from nightmail.stores.postgres.lane import CLAIM, PUBLISH, SETTLE, Lane
from nightmail.stores.postgres.listen import Listener
from nightmail.stores.postgres.moments import due_values
from nightmail.stores.postgres.publishing import Publishing, answer
from nightmail.stores.postgres.settling import Settling
from nightmail.stores.postgres.together import Together
from nightmail.stores.postgres.transaction import Direct, Session, join

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

FILES: Final = ("publish.sql", "timers.sql", "claim.sql", "settle.sql", "inspect.sql", "shape.sql")
WITHOUT_WAKEUPS: Final = timedelta(seconds=1)
STORE_CLOCK: Final = StoreClock()


@dataclass(frozen=True, slots=True)
class _Open:
    """What exists while the store is open, on one event loop."""

    settle: Lane
    publish: Lane
    claims: Claims
    together: Together
    listener: Listener
    keeper: KeeperThread
    lanes: tuple[Lane, ...]


class PostgresStore:
    """Messages in Postgres, in the tables `nightmail_...` or as `tables` names them: `prefix` or `schema.prefix`."""

    capabilities: Final = Capabilities(
        name="postgres",
        transactions=True,
        concurrent_writers=True,
        repeatable_read=True,
        pushes_wakeups=True,
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
    ) -> None:
        self._connect = connector(source)
        self._names = TableNames.parse(tables)
        self._clock = clock
        self._statements: dict[str, Statement] = {}
        for file in FILES:
            self._statements |= load(migrate.PACKAGE, file, self._names, numbered=True)
        self._channel = _channel(self._names)
        self._publishing = Publishing(self._statements, self._channel, clock)
        self._settling = Settling(self._statements, self._channel, clock, keep_delivered=keep_delivered)
        self._inspecting = Inspecting(self._statements, clock)
        self._identity: UUID | None = None
        self._opened: _Open | None = None

    # ------------------------------------------------------------------------------------ its life

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
        """See `Store.open`. Connections are made when they are needed."""
        if self._opened is not None:
            return
        claim, settle, publish = (Lane(role, self._connect) for role in (CLAIM, SETTLE, PUBLISH))
        self._identity = None
        self._opened = _Open(
            settle=settle,
            publish=publish,
            claims=Claims(claim, self._statements, self._clock),
            together=Together(publish, self._publish_together),
            listener=Listener(self._connect, self._channel, self._ring),
            keeper=KeeperThread(self._connect, self._settling.extend),
            lanes=(claim, settle, publish),
        )

    async def close(self) -> None:
        """See `Store.close`."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        await opened.listener.close()
        await opened.keeper.close()
        for lane in opened.lanes:
            await lane.close()

    async def ping(self) -> None:
        """See `Store.ping`."""
        await self._here.publish.run(lambda connection: connection.execute("select 1", timeout=5))

    async def migrate(self) -> None:
        """See `Store.migrate`."""
        await self._here.publish.run(lambda connection: migrate.migrate(connection, self._names))

    async def check(self) -> None:
        """See `Store.check`."""
        await self._here.publish.run(lambda connection: check(connection, self._names, self._statements))

    # ------------------------------------------------------------------------------------- publish

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """See `Store.publish`."""
        if transaction is not None:
            return await self._joined(
                transaction,
                lambda session, identity: self._publishing.publish(session, message, own, identity),
            )
        if message.timer_id is None and own is None:
            return await self._here.together.publish(message)
        return await self._here.publish.run_patiently(
            lambda connection: self._publishing.publish(Direct(connection), message, own, None),
            lost=PublishUncertain,
        )

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """See `Store.publish_batch`."""
        if any(message.timer_id is not None for message in messages):
            raise ValueError("a batch takes no messages with a timer id: publish them one by one")
        if not messages:
            return []
        if transaction is not None:
            return await self._joined(
                transaction,
                lambda session, identity: self._publishing.publish_batch(session, messages, identity),
            )
        return await self._here.publish.run_patiently(
            lambda connection: self._publish_together(connection, messages), lost=PublishUncertain
        )

    async def _publish_together(self, connection: Connection, messages: Sequence[Message]) -> list[int]:
        return await self._publishing.publish_batch(Direct(connection), messages, None)

    # ---------------------------------------------------------------------------------- under a lease

    async def claim(self, queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID) -> Claimed:
        """See `Store.claim`."""
        return await self._here.claims.claim(queues, limit=limit, lease=lease, token=token)

    async def recall(self, queues: Sequence[str], token: UUID) -> Sequence[Delivery]:
        """See `Store.recall`."""
        return await self._here.claims.recall(queues, token)

    async def settle(self, batch: Sequence[Settlement]) -> list[Standing]:
        """See `Store.settle`."""
        return await self._settling.settle(self._here.settle, batch)

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[Standing]:
        """See `Store.extend`."""
        return await self._settling.extend(self._here.settle, deliveries, lease)

    def beside(self, work: Callable[[Extend], Awaitable[None]]) -> AbstractAsyncContextManager[None]:
        """See `Store.beside`."""
        return self._here.keeper.beside(work)

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """See `Store.hold`."""
        await self._joined(
            transaction, lambda session, identity: self._settling.hold(session, deliveries, identity)
        )

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """See `Store.ack`."""
        await self._joined(
            transaction, lambda session, identity: self._settling.ack(session, deliveries, identity)
        )

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
        return self._here.listener.bell(*queues)

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

        async def ask(session: Session) -> list[PendingMessage]:
            return await self._inspecting.peek(
                session, queue=queue, timer_id=timer_id, due_before=due_before, limit=limit
            )

        async def ask_if_ours(session: Session, identity: UUID) -> list[PendingMessage]:
            found = await session.rows(self._statements["identity"], {})
            if not found or found[0]["identity"] != identity:
                raise OtherDatabase
            return await ask(session)

        if transaction is not None:
            return await self._joined(transaction, ask_if_ours)
        return await self._here.publish.run(lambda connection: ask(AsAsked(connection)))

    async def dead(
        self, which: DeadFilter, *, limit: int = 100, cursor: int | None = None
    ) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        return await self._here.publish.run(
            lambda connection: self._inspecting.dead(AsAsked(connection), which, limit=limit, cursor=cursor)
        )

    async def stats(self) -> dict[str, QueueStats]:
        """See `Inspection.stats`."""
        return await self._here.publish.run(lambda connection: self._inspecting.stats(AsAsked(connection)))

    # ------------------------------------------------------------------------------------- inside

    @property
    def _here(self) -> _Open:
        if self._opened is None:
            raise StoreUnavailable("the store is not open: call `open` first")
        return self._opened

    async def _ask(self, name: str, values: dict[str, Any], transaction: object | None) -> Any:
        """The answer of a statement that may run in a caller's transaction."""
        check_queue(values["queue"])
        if "timer_id" in values:
            check_name("timer_id", values["timer_id"])
        statement = self._statements[name]
        values |= {"now": self._clock.now(), "channel": self._channel}
        if transaction is not None:
            return await self._joined(
                transaction,
                lambda session, identity: _answered(session, statement, {**values, "identity": identity}),
            )
        return await self._here.publish.run_patiently(
            lambda connection: _answered(Direct(connection), statement, {**values, "identity": None})
        )

    async def _joined(self, transaction: object, work: Callable[[Session, UUID], Awaitable[T]]) -> T:
        """Do this in the caller's transaction, if it is one in the database that has our tables."""
        session = await join(transaction)
        identity = self._identity
        try:
            return await work(session, identity or await self._read_identity())
        except OtherDatabase:
            # Unless the tables were made anew since we learned which they are.
            if identity is None or await self._read_identity() == identity:
                raise
            return await work(session, await self._read_identity())

    async def _read_identity(self) -> UUID:
        found = await self._here.publish.run(
            lambda connection: Direct(connection).rows(self._statements["identity"], {})
        )
        if not found:
            raise SchemaMissing
        self._identity = found[0]["identity"]
        return self._identity

    async def _ring(self, channel: str) -> None:
        values = {"channel": channel, "queue": ""}
        await self._here.publish.run(
            lambda connection: Direct(connection).rows(self._statements["ring"], values)
        )


async def _answered(session: Session, statement: Statement, values: dict[str, Any]) -> Any:
    return answer(await session.rows(statement, values))


def _channel(names: TableNames) -> str:
    """The channel of these tables: as long as a channel may be, and no two tables' alike."""
    digest = hashlib.sha256(names.quoted("messages").encode()).hexdigest()
    return f"nightmail_{digest[:16]}"
