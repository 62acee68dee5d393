"""procrastinate, on psycopg. `best` runs thirty jobs at once and deletes them: see benchmarks/README.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector

from benchmarks.adapters.harness import Adapter, Send, Unsupported, serve
from benchmarks.adapters.payload import Order
from benchmarks.adapters.tally import Tally

BEST = {"concurrency": 30, "delete_jobs": "always", "fetch_job_polling_interval": 0.5}


class Procrastinate(Adapter):
    """One app publishes, another consumes. A queue's task has its name."""

    def __init__(self) -> None:
        self._publishing: Any = None
        self._consuming: tuple[Any, asyncio.Task[None]] | None = None

    async def open(self, url: str, profile: str) -> None:
        self._url, self._best = url, profile == "best"
        async with await psycopg.AsyncConnection.connect(url) as connection:
            found = await connection.execute("select to_regclass('procrastinate_jobs') is not null")
            row = await found.fetchone()
        if row is None or not row[0]:
            async with App(connector=PsycopgConnector(conninfo=url)).open_async() as app:
                await app.schema_manager.apply_schema_async()

    async def _publisher(self) -> Any:
        """Connected when it first publishes: a process that only consumes has no such pool."""
        if self._publishing is None:
            self._publishing = App(connector=PsycopgConnector(conninfo=self._url))
            await self._publishing.open_async()
        return self._publishing

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        if how == "session":
            raise Unsupported("publishing in an AsyncSession")
        app = await self._publisher()
        connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)

        async def send(body: dict[str, Any], queue: str, due: float | None, timer: str | None) -> object:
            if how == "own":
                return await _task(app, queue, due, timer).defer_async(**body)
            async with connection.transaction():
                return await _task(app, queue, due, timer, connection=connection).defer_async(**body)

        yield send
        await connection.close()

    async def publish_many(self, bodies: list[dict[str, Any]], queue: str, due: float | None) -> None:
        await _task(await self._publisher(), queue, due, None).batch_defer_async(*bodies)

    async def start(self, handlers: Mapping[str, str], tallies: Mapping[str, Tally]) -> None:
        app = App(connector=PsycopgConnector(conninfo=self._url))
        for queue, kind in handlers.items():
            _register(app, queue, kind, tallies[queue])
        await app.open_async()
        options = BEST if self._best else {}
        running = asyncio.create_task(
            app.run_worker_async(queues=list(handlers), install_signal_handlers=False, **options)
        )
        self._consuming = app, running

    async def stop(self) -> None:
        if self._consuming is not None:
            app, running = self._consuming
            self._consuming = None
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await app.close_async()

    async def close(self) -> None:
        await self.stop()
        if self._publishing is not None:
            await self._publishing.close_async()


def _task(app: Any, queue: str, due: float | None, timer: str | None, **options: Any) -> Any:
    return app.configure_task(queue, queue=queue, schedule_at=_date(due), queueing_lock=timer, **options)


def _register(app: Any, queue: str, kind: str, tally: Tally) -> None:
    match kind:
        case "typed":

            @app.task(name=queue, queue=queue)
            async def take(**body: Any) -> None:
                tally.one(Order.model_validate(body).total)

        case "plain":

            @app.task(name=queue, queue=queue)
            async def take_plain(**body: Any) -> None:
                tally.some(1)

        case "sync":

            @app.task(name=queue, queue=queue)
            def take_in_a_thread(**body: Any) -> None:
                tally.one_in_a_thread(Order.model_validate(body).total)

        case "hang":

            @app.task(name=queue, queue=queue)
            async def never_return(**body: Any) -> None:
                tally.some(1)
                await asyncio.Event().wait()

        case _:
            raise Unsupported(f"{kind} handler")


def _date(due: float | None) -> datetime | None:
    return None if due is None else datetime.fromtimestamp(due, UTC)


if __name__ == "__main__":
    serve(Procrastinate())
