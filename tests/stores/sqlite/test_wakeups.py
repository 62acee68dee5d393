"""Bells are rung by what others write, and by nothing else they do."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from nightmail.outcome import Done
from nightmail.stores.sqlite import SQLiteStore, runtime
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import LEASE, QUEUE, claim_all, message
from tests.stores.sqlite.support import Connections
from tests.stores.support import settle

pytestmark = pytest.mark.sqlite


class TestBells:
    async def test_a_commit_of_a_callers_transaction_rings(
        self, store: SQLiteStore, engine: AsyncEngine
    ) -> None:
        with store.listen([QUEUE]) as bell:
            await hears_others(store)
            bell.clear()
            async with AsyncSession(engine) as session, session.begin():
                await store.publish(message(), transaction=session)

            assert await bell.wait(5)

    async def test_what_others_do_with_messages_rings_no_bell(self, store: SQLiteStore, file: Path) -> None:
        other = SQLiteStore(file, clock=ManualClock())
        await other.open()
        await store.publish_batch([message(), message()])
        with store.listen([QUEUE]) as bell, store.listen(["last"]) as last:
            await hears_others(store)
            bell.clear()
            last.clear()

            deliveries = await claim_all(other)
            await other.extend(deliveries, LEASE)
            await settle(other, deliveries, Done())
            await other.publish(message(queue="last"))

            assert await last.wait(5)
            assert not await bell.wait(0)
        await other.close()

    async def test_a_store_that_was_opened_again_rings_at_once(self, store: SQLiteStore) -> None:
        with store.listen([QUEUE]) as bell:
            await hears_others(store)
            bell.clear()
            await store.close()
            await store.open()

            assert await bell.wait(5)

    async def test_a_connection_that_was_lost_and_reopened_rings_at_once(
        self, store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        connections = Connections(file)
        monkeypatch.setattr(runtime, "connect", connections)
        await store.close()
        await store.open()
        with store.listen([QUEUE]) as bell:
            assert await bell.wait(5)
            bell.clear()
            made = connections.made
            connections.faults["PRAGMA data_version"] = sqlite3.SQLITE_IOERR

            assert await bell.wait(5)
        assert connections.made == made + 1

    async def test_changes_are_not_asked_for_without_listeners(self, store: SQLiteStore) -> None:
        asked: list[str] = []
        await store.publish(message())
        writer = store._runtime.writer
        await writer.read(
            lambda connection: connection.set_trace_callback(
                lambda statement: asked.append(statement) if "data_version" in statement else None
            )
        )

        await asyncio.sleep(0.1)
        assert asked == []

        with store.listen([QUEUE]) as bell:
            assert await bell.wait(5)
            await asyncio.sleep(0.1)
            assert asked
        await writer.read(lambda connection: None)
        asked.clear()

        await asyncio.sleep(0.1)
        assert asked == []


async def hears_others(store: SQLiteStore) -> None:
    """Until the thread watches: the first look after a bell was hung rings all, whatever was written."""
    await store._runtime.writer.read(lambda connection: None)
