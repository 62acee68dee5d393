"""What other processes do in the tests: `python -m tests.schema.process <dialect> <url> <part> [arguments]`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import pytest

from nightmail import Delivery, Message, Worker
from nightmail.engine.settings import WorkerSettings
from nightmail.observe import Observer
from nightmail.store import FullStore
from nightmail.stores.sqlite.connect import connect
from tests.schema.conftest import Database
from tests.schema.versions import opened, version_2

LAST: Final = 10
"""How many a publisher still publishes after it was told to come to an end."""


class Outages(Observer):
    """Counts how often the store could not be used."""

    failures = 0

    def store_unavailable(self, error: Exception, retry_in: object) -> None:
        self.failures += 1


class Party:
    """A worker and a publisher on one store."""

    def __init__(self, store: FullStore, name: str) -> None:
        self.published: list[str] = []
        self.handled: list[str] = []
        self.outages = Outages()
        self._store = store
        self._name = name
        self._changed = asyncio.Event()
        self._worker = Worker(
            store,
            self._handle,
            queues=["orders"],
            settings=WorkerSettings(max_workers=4),
            observer=self.outages,
        )
        self._running: asyncio.Task[None] | None = None

    async def start_worker(self) -> None:
        self._running = asyncio.create_task(self._worker.run())

    async def stop_worker(self) -> None:
        await self._worker.stop()
        if self._running is not None:
            await self._running

    async def publish(self, count: int) -> None:
        for _ in range(count):
            body = f"{self._name} {len(self.published)}"
            await self._store.publish(Message(queue="orders", body=body.encode()))
            self.published.append(body)

    async def publish_until(self, end: asyncio.Event) -> None:
        """One after the other, not much faster than they are handled."""
        while not end.is_set():
            await self.publish(1)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.05)
            self._changed.clear()

    async def _handle(self, delivery: Delivery) -> None:
        body = delivery.body.decode()
        self.handled.append(body)
        self._changed.set()
        print("handled", body, flush=True)


async def migrate(database: Database, step: str, mode: str = "") -> None:
    """Bring the tables to version 2 once told to."""
    with version_2(database, step):
        async with opened(database) as store:
            await go()
            await store.migrate(repair=mode == "repair")


async def die(database: Database, step: str, at: str) -> None:
    """The same on SQLite, but the process is killed when it comes to the statement with these words."""

    def doomed(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(
            lambda statement: os.kill(os.getpid(), signal.SIGKILL) if at in statement else None
        )
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nightmail.stores.sqlite.runtime.connect", doomed)
        await migrate(database, step)


async def work(database: Database) -> None:
    """Publish and handle until told to rest; then only publish some more. Tells at its end what it did."""
    async with opened(database) as store:
        party, rest = Party(store, "old"), asyncio.Event()
        publishing = asyncio.create_task(party.publish_until(rest))
        await party.start_worker()
        await go()
        await party.stop_worker()
        rest.set()
        await publishing
        await party.publish(LAST)
    print(json.dumps([party.published, party.handled, party.outages.failures]), flush=True)


async def go() -> None:
    """Say that we are ready, and wait for a line."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


PARTS: Final[dict[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    "migrate": migrate,
    "die": die,
    "work": work,
}


if __name__ == "__main__":
    dialect, url, part, *rest = sys.argv[1:]
    asyncio.run(PARTS[part](Database(dialect, url), *rest))
