"""Leases are kept on a thread and a connection of their own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from nightmail.errors import SchemaMissing
from nightmail.outcome import Standing
from nightmail.store import Extend
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.clock import ManualClock
from tests.stores.sqlite.support import HOUR, LEASE, claim, locked, message

pytestmark = pytest.mark.sqlite


class TestKeeper:
    async def test_leases_are_kept_while_the_event_loop_is_blocked(
        self, store: SQLiteStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        deliveries = await claim(store)
        extended = threading.Event()

        async def keep(extend: Extend) -> None:
            while True:
                if await extend(deliveries, HOUR) == [Standing.HELD]:
                    extended.set()
                await asyncio.sleep(0.01)

        async with store.beside(keep):
            # Blocks the loop on purpose: nothing that runs on it could keep the lease.
            assert extended.wait(5)
            clock.advance(LEASE)

        assert await claim(store) == []

    async def test_while_somebody_else_writes_the_keeper_is_told_so(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish(message())
        deliveries = await claim(store)
        told: list[Standing] = []
        answered = threading.Event()

        async def keep(extend: Extend) -> None:
            told.extend(await extend(deliveries, HOUR))
            answered.set()

        with locked(file):
            async with store.beside(keep):
                assert answered.wait(5)

        assert told == [Standing.BUSY]

    async def test_extending_nothing_asks_nobody(self, store: SQLiteStore, file: Path) -> None:
        told: list[list[Standing]] = []
        answered = threading.Event()

        async def keep(extend: Extend) -> None:
            told.append(list(await extend([], HOUR)))
            answered.set()

        with locked(file):
            async with store.beside(keep):
                assert answered.wait(5)

        assert told == [[]]

    async def test_a_store_that_fails_is_unavailable_to_the_keeper_too(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish(message())
        deliveries = await claim(store)
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("DROP TABLE nightmail_messages")
        failed: list[Exception] = []
        answered = threading.Event()

        async def keep(extend: Extend) -> None:
            try:
                await extend(deliveries, HOUR)
            except SchemaMissing as error:
                failed.append(error)
            answered.set()

        async with store.beside(keep):
            assert answered.wait(5)

        assert len(failed) == 1

    async def test_the_failure_of_its_work_is_raised_where_the_block_is_left(
        self, store: SQLiteStore
    ) -> None:
        failing = threading.Event()

        async def fails(extend: Extend) -> None:
            failing.set()
            raise LookupError("on purpose")

        with pytest.raises(LookupError, match="on purpose"):
            async with store.beside(fails):
                assert failing.wait(5)

        assert [thread.name for thread in threading.enumerate() if thread.name == "nightmail-keeper"] == []
