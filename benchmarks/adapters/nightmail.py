"""Ours, at its defaults. The profile `quiet` turns the logger off, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.adapters.harness import Adapter, Send, SendMany, Unsupported, serve
from benchmarks.adapters.payload import Order
from benchmarks.adapters.tally import Tally
from nightmail import Delivery, OutboxBroker, Worker, open_store
from nightmail.broker.options import BrokerOptions
from nightmail.stores.sqlite import begin_immediate

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

_ASYNC_DRIVERS = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy", "sqlite": "sqlite+aiosqlite"}


class Nightmail(Adapter):
    """The broker for typed, batch and sync handlers; the engine alone for plain ones."""

    def __init__(self) -> None:
        self._options: BrokerOptions = {}
        self._publishing: OutboxBroker | None = None
        self._running = AsyncExitStack()

    async def open(self, url: str, profile: str) -> None:
        self._url, self._scheme = url, urlsplit(url).scheme
        self._options = {} if profile == "default" else {"logger": None}
        store = open_store(url)
        await store.open()
        await store.migrate()
        await store.close()

    async def _broker(self) -> OutboxBroker:
        if self._publishing is None:
            self._publishing = OutboxBroker(self._url, **self._options)
            await self._publishing.connect()
        return self._publishing

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        broker = await self._broker()
        match how, self._scheme:
            case ("own", _) | ("session", "redis"):

                async def send(
                    body: dict[str, Any], queue: str, due: float | None, timer: str | None
                ) -> object:
                    return await broker.publish(body, queue, activate_at=_date(due), timer_id=timer)

                yield send
            case "session", _:
                async with self._sessions() as sessions:

                    async def send(
                        body: dict[str, Any], queue: str, due: float | None, timer: str | None
                    ) -> object:
                        async with sessions() as session, session.begin():
                            return await broker.publish(
                                body, queue, activate_at=_date(due), timer_id=timer, session=session
                            )

                    yield send
            case "driver", "postgresql":
                import asyncpg

                connection = await asyncpg.connect(self._url)

                async def send(
                    body: dict[str, Any], queue: str, due: float | None, timer: str | None
                ) -> object:
                    async with connection.transaction():
                        return await broker.publish(
                            body, queue, activate_at=_date(due), timer_id=timer, session=connection
                        )

                yield send
                await connection.close()
            case "driver", "mysql":
                import asyncmy

                own = await asyncmy.connect(**_address(self._url))

                async def send(
                    body: dict[str, Any], queue: str, due: float | None, timer: str | None
                ) -> object:
                    # Autocommit is off: the statement begins the transaction.
                    id_ = await broker.publish(
                        body, queue, activate_at=_date(due), timer_id=timer, session=own
                    )
                    await own.commit()
                    return id_

                yield send
                own.close()
            case "driver", "sqlite":
                import aiosqlite

                async with aiosqlite.connect(
                    self._url.removeprefix("sqlite:///"), isolation_level=None
                ) as file:

                    async def send(
                        body: dict[str, Any], queue: str, due: float | None, timer: str | None
                    ) -> object:
                        await file.execute("begin immediate")
                        id_ = await broker.publish(
                            body, queue, activate_at=_date(due), timer_id=timer, session=file
                        )
                        await file.commit()
                        return id_

                    yield send
            case "driver", "redis":
                from redis.asyncio import Redis

                client = Redis.from_url(self._url)

                async def send(
                    body: dict[str, Any], queue: str, due: float | None, timer: str | None
                ) -> object:
                    async with client.pipeline(transaction=True) as pipe:
                        await broker.publish(
                            body, queue, activate_at=_date(due), timer_id=timer, session=pipe
                        )
                        return await pipe.execute()

                yield send
                await client.aclose()
            case _:
                raise Unsupported(f"{how} on {self._scheme}")

    @asynccontextmanager
    async def _sessions(self) -> AsyncIterator[async_sessionmaker[AsyncSession]]:
        """Sessions of an engine of the caller's."""
        from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

        engine = create_async_engine(self._url.replace(self._scheme, _ASYNC_DRIVERS[self._scheme], 1))
        if self._scheme == "sqlite":
            begin_immediate(engine)
        yield async_sessionmaker(engine, expire_on_commit=False)
        await engine.dispose()

    @asynccontextmanager
    async def publisher_of_many(self, how: str) -> AsyncIterator[SendMany]:
        if how == "own":
            yield self.publish_many
            return
        broker = await self._broker()
        async with self._sessions() as sessions:

            async def send(bodies: list[dict[str, Any]], queue: str, due: float | None) -> None:
                async with sessions() as session, session.begin():
                    await broker.publish_batch(*bodies, queue=queue, activate_at=_date(due), session=session)

            yield send

    async def publish_many(self, bodies: list[dict[str, Any]], queue: str, due: float | None) -> None:
        broker = await self._broker()
        await broker.publish_batch(*bodies, queue=queue, activate_at=_date(due))

    async def start(self, handlers: Mapping[str, str], tallies: Mapping[str, Tally]) -> None:
        if set(handlers.values()) == {"plain"}:
            await self._start_engine(handlers, tallies)
            return
        broker = OutboxBroker(self._url, **self._options)
        for queue, kind in handlers.items():
            _subscribe(broker, queue, kind, tallies[queue])
        await broker.start()
        self._running.push_async_callback(broker.stop)

    async def _start_engine(self, handlers: Mapping[str, str], tallies: Mapping[str, Tally]) -> None:
        store = open_store(self._url)
        await store.open()
        self._running.push_async_callback(store.close)

        async def handle(delivery: Delivery) -> None:
            tallies[delivery.queue].some(1)

        worker = Worker(store, handle, queues=list(handlers))
        running = asyncio.create_task(worker.run())

        async def end() -> None:
            await worker.stop()
            await running

        self._running.push_async_callback(end)

    async def stop(self) -> None:
        await self._running.aclose()

    async def close(self) -> None:
        await self._running.aclose()
        if self._publishing is not None:
            await self._publishing.stop()


def _address(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": parts.password or "",
        "db": parts.path[1:],
    }


def _subscribe(broker: OutboxBroker, queue: str, kind: str, tally: Tally) -> None:
    match kind:
        case "typed":

            @broker.subscriber(queue)
            async def take(order: Order) -> None:
                tally.one(order.total)

        case "batch":

            @broker.subscriber(queue, batch=True, max_batch=100)
            async def take_many(orders: list[Order]) -> None:
                tally.some(len(orders))

        case "sync":

            @broker.subscriber(queue)
            def take_in_a_thread(order: Order) -> None:
                tally.one_in_a_thread(order.total)

        case "hang":

            @broker.subscriber(queue)
            async def never_return(order: Order) -> None:
                tally.one(order.total)
                await asyncio.Event().wait()

        case _:
            raise Unsupported(f"{kind} handler")


def _date(due: float | None) -> datetime | None:
    return None if due is None else datetime.fromtimestamp(due, UTC)


if __name__ == "__main__":
    serve(Nightmail())
