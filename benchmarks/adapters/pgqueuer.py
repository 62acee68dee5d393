"""pgqueuer, on asyncpg. `best` is what a sweep kept of its tuning guide: see benchmarks/README.md."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.adapters.persistence.qb import DBSettings, Durability, QueryBuilderEnvironment
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.adapters.harness import Adapter, Send, Unsupported, serve
from benchmarks.adapters.payload import Order
from benchmarks.adapters.tally import Tally

BEST = {"batch_size": 500}


class PgQueuerAdapter(Adapter):
    """A connection for publishing; one, or a pool, for consuming."""

    def __init__(self) -> None:
        self._publishing: tuple[Any, Queries] | None = None
        self._consuming: tuple[Any, asyncio.Task[None], Any] | None = None

    async def open(self, url: str, profile: str) -> None:
        self._url, self._best = url, profile == "best"
        connection = await asyncpg.connect(url)
        if not await connection.fetchval("select to_regclass('pgqueuer') is not null"):
            await self._install(AsyncpgDriver(connection))
        await connection.close()

    async def _install(self, driver: AsyncpgDriver) -> None:
        if not self._best:
            await Queries(driver).install()
            return
        # The log of finished jobs and the statistics are not durable then; jobs are as before.
        queries = Queries(driver, QueryBuilderEnvironment(DBSettings(durability=Durability.balanced)))
        await queries.install()
        await queries.optimize_autovacuum()

    async def _publisher(self) -> Queries:
        """Connected when it first publishes: a process that only consumes has no such connection."""
        if self._publishing is None:
            connection = await asyncpg.connect(self._url)
            self._publishing = connection, Queries(AsyncpgDriver(connection))
        return self._publishing[1]

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        if how == "session":
            raise Unsupported("publishing in an AsyncSession")
        connection = await asyncpg.connect(self._url)
        queries = Queries(AsyncpgDriver(connection))

        async def send(body: dict[str, Any], queue: str, due: float | None, timer: str | None) -> object:
            payload, after = json.dumps(body).encode(), _after(due)
            if how == "own":
                return await queries.enqueue(queue, payload, execute_after=after, dedupe_key=timer)
            async with connection.transaction():
                return await queries.enqueue(queue, payload, execute_after=after, dedupe_key=timer)

        yield send
        await connection.close()

    async def publish_many(self, bodies: list[dict[str, Any]], queue: str, due: float | None) -> None:
        count = len(bodies)
        queries = await self._publisher()
        await queries.enqueue(
            [queue] * count,
            [json.dumps(body).encode() for body in bodies],
            [0] * count,
            execute_after=[_after(due)] * count,
        )

    async def start(self, handlers: Mapping[str, str], tallies: Mapping[str, Tally]) -> None:
        if self._best:
            source: Any = await asyncpg.create_pool(self._url)
            worker = PgQueuer(AsyncpgPoolDriver(source))
        else:
            source = await asyncpg.connect(self._url)
            worker = PgQueuer(AsyncpgDriver(source))
        for queue, kind in handlers.items():
            _register(worker, queue, kind, tallies[queue])
        running = asyncio.create_task(worker.run(**(BEST if self._best else {})))
        self._consuming = worker, running, source

    async def stop(self) -> None:
        if self._consuming is not None:
            worker, running, source = self._consuming
            self._consuming = None
            worker.shutdown.set()
            await running
            await source.close()

    async def close(self) -> None:
        await self.stop()
        if self._publishing is not None:
            await self._publishing[0].close()


def _register(worker: Any, queue: str, kind: str, tally: Tally) -> None:
    match kind:
        case "typed":

            @worker.entrypoint(queue)
            async def take(job: Any) -> None:
                tally.one(Order.model_validate_json(job.payload).total)

        case "plain":

            @worker.entrypoint(queue)
            async def take_bytes(job: Any) -> None:
                tally.some(1)

        case "hang":

            @worker.entrypoint(queue)
            async def never_return(job: Any) -> None:
                tally.some(1)
                await asyncio.Event().wait()

        case _:
            raise Unsupported(f"{kind} handler")


def _after(due: float | None) -> timedelta | None:
    """It takes a delay only, counted from when the statement runs: a little later than from now."""
    return None if due is None else timedelta(seconds=max(0.0, due - time.time()))


if __name__ == "__main__":
    serve(PgQueuerAdapter())
