"""faststream-outbox. `best` is what its documentation offers for throughput: see benchmarks/README.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.autovacuum import outbox_autovacuum_ddl
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from benchmarks.adapters.harness import Adapter, Send, SendMany, Unsupported, serve
from benchmarks.adapters.payload import Order
from benchmarks.adapters.tally import Tally

BEST = {
    "max_workers": 2,
    "fetch_batch_size": 1000,
    "terminal_flush_batch_size": 500,
    "min_fetch_interval": 0.05,
    "max_fetch_interval": 0.5,
}


class FastStreamOutbox(Adapter):
    """A table of its own, and an engine for publishing and one for consuming."""

    def __init__(self) -> None:
        self._metadata = MetaData()
        self._table = make_outbox_table(self._metadata, table_name="outbox")
        self._consuming: tuple[Any, AsyncEngine] | None = None

    async def open(self, url: str, profile: str) -> None:
        self._url = url.replace("postgresql", "postgresql+asyncpg", 1)
        self._best = profile == "best"
        self._engine = create_async_engine(self._url)
        async with self._engine.begin() as connection:
            await connection.run_sync(self._metadata.create_all)
            if self._best:
                await connection.execute(text(outbox_autovacuum_ddl("outbox")))
        # Its pool keeps the connection, which a process that only consumes would not have.
        await self._engine.dispose()
        self._publishing = self._broker(self._engine)
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)

    def _broker(self, engine: AsyncEngine) -> Any:
        options = {"logger": None} if self._best else {}
        return OutboxBroker(engine, outbox_table=self._table, **options)

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        if how == "driver":
            raise Unsupported("publishing on a bare connection")
        if how == "own":
            raise Unsupported("commit of its own")
        engine = create_async_engine(self._url)
        sessions = async_sessionmaker(engine, expire_on_commit=False)

        async def send(body: dict[str, Any], queue: str, due: float | None, timer: str | None) -> object:
            async with sessions() as session, session.begin():
                return await self._publishing.publish(
                    body, queue=queue, session=session, activate_at=_date(due), timer_id=timer
                )

        yield send
        await engine.dispose()

    @asynccontextmanager
    async def publisher_of_many(self, how: str) -> AsyncIterator[SendMany]:
        if how == "own":
            raise Unsupported("commit of its own")
        yield self.publish_many

    async def publish_many(self, bodies: list[dict[str, Any]], queue: str, due: float | None) -> None:
        async with self._sessions() as session, session.begin():
            await self._publishing.publish_batch(
                *bodies, queue=queue, session=session, activate_at=_date(due)
            )

    async def start(self, handlers: Mapping[str, str], tallies: Mapping[str, Tally]) -> None:
        # It refuses to start with fewer: a connection for each subscriber, and one for each of its workers.
        needed = len(handlers) * (1 + (BEST["max_workers"] if self._best else 1))
        engine = create_async_engine(self._url, pool_size=max(5, int(needed)))
        broker = self._broker(engine)
        for queue, kind in handlers.items():
            self._subscribe(broker, queue, kind, tallies[queue])
        self._consuming = broker, engine
        await broker.start()

    def _subscribe(self, broker: Any, queue: str, kind: str, tally: Tally) -> None:
        subscriber = broker.subscriber(queue, **(BEST if self._best else {}))
        match kind:
            case "typed":

                @subscriber
                async def take(order: Order) -> None:
                    tally.one(order.total)

            case "sync":

                @subscriber
                def take_in_a_thread(order: Order) -> None:
                    tally.one_in_a_thread(order.total)

            case "hang":

                @subscriber
                async def never_return(order: Order) -> None:
                    tally.one(order.total)
                    await asyncio.Event().wait()

            case _:
                raise Unsupported(f"{kind} handler")

    async def stop(self) -> None:
        if self._consuming is not None:
            broker, engine = self._consuming
            self._consuming = None
            await broker.stop()
            await engine.dispose()

    async def close(self) -> None:
        await self.stop()
        await self._engine.dispose()


def _date(due: float | None) -> datetime | None:
    return None if due is None else datetime.fromtimestamp(due, UTC)


if __name__ == "__main__":
    serve(FastStreamOutbox())
