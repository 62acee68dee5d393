"""Leases are kept on a thread and a connection of their own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from nightmail.errors import SchemaMissing
from nightmail.limits import CLAIM_BYTES
from nightmail.outcome import WriteResult
from nightmail.store import Claimed, Extend
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sqlite import SQLiteStore, keeper, link
from nightmail.stores.sqlite.claiming import GRACE, LONG_LOCKED_OUT
from nightmail.stores.sqlite.queries import carry_out_on
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, SECOND, claim_all, message
from tests.stores.shared.event_loops import EventLoops
from tests.stores.shared.keeper import KeeperThread
from tests.stores.sqlite.support import has_arrived, locked

pytestmark = pytest.mark.sqlite


class TestKeeperThread(KeeperThread):
    """On this store."""


class TestEventLoops(EventLoops):
    """On this store."""


class TestKeeper:
    async def test_while_another_writes_the_keeper_is_told_so(self, store: SQLiteStore, file: Path) -> None:
        await store.publish(message())
        deliveries = await claim_all(store)
        told: list[WriteResult] = []
        answered = threading.Event()

        async def keep(extend: Extend) -> None:
            told.extend(await extend(deliveries, HOUR))
            answered.set()

        with locked(file):
            async with store.run_on_keeper_thread(keep):
                assert answered.wait(5)

        assert told == [WriteResult.BUSY]

    async def test_a_renewal_goes_before_the_claims_of_its_own_process(
        self, store: SQLiteStore, file: Path, clock: ManualClock
    ) -> None:
        await store.publish(message())
        deliveries = await claim_all(store)
        writer = store._runtime.writer
        clock.advance(LEASE)

        with locked(file):
            claiming = asyncio.create_task(claim_all(store))
            await asyncio.sleep(0)
            renewing = asyncio.create_task(
                writer.write(
                    lambda connection: carry_out_on(
                        connection, store._verbs.messages.extend(deliveries, HOUR)
                    ),
                    urgent=True,
                )
            )
            await asyncio.sleep(0)
            await has_arrived(writer)

        assert await renewing == [WriteResult.WRITTEN]
        assert await claiming == []

    async def test_a_renewal_that_was_kept_out_still_goes_before_the_claims_of_its_own_process(
        self, store: SQLiteStore, file: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keeper, "RENEW_AGAIN_SECONDS", 60.0)
        await store.publish(message())
        deliveries = await claim_all(store)
        clock.advance(LEASE + GRACE)
        told: list[WriteResult] = []
        answered = threading.Event()

        async def keep(extend: Extend) -> None:
            told.extend(await extend(deliveries, HOUR))
            answered.set()

        with locked(file):
            claiming = asyncio.create_task(claim_all(store))
            await asyncio.sleep(0)
            async with store.run_on_keeper_thread(keep):
                assert answered.wait(5)
            assert told == [WriteResult.BUSY]

        assert await claiming == []
        assert await store.extend(deliveries, HOUR) == [WriteResult.WRITTEN]

    async def test_the_keeper_has_no_connection_of_its_own_to_compete_with(self, store: SQLiteStore) -> None:
        await store.publish(message())
        deliveries = await claim_all(store)
        before = len(link._open)
        extended = threading.Event()

        async def keep(extend: Extend) -> None:
            await extend(deliveries, HOUR)
            extended.set()

        async with store.run_on_keeper_thread(keep):
            assert extended.wait(5)
            assert len(link._open) == before

    async def test_extending_nothing_asks_nothing(self, store: SQLiteStore, file: Path) -> None:
        told: list[list[WriteResult]] = []
        answered = threading.Event()

        async def keep(extend: Extend) -> None:
            told.append(list(await extend([], HOUR)))
            answered.set()

        with locked(file):
            async with store.run_on_keeper_thread(keep):
                assert answered.wait(5)

        assert told == [[]]

    async def test_a_store_that_fails_is_unavailable_to_the_keeper_too(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish(message())
        deliveries = await claim_all(store)
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

        async with store.run_on_keeper_thread(keep):
            assert answered.wait(5)

        assert len(failed) == 1


class TestLeasesThatCouldNotBeRenewed:
    """Others had the lock, so the lease holder could not renew it, and must get a chance to."""

    async def take(self, store: SQLiteStore, locked_out: float, waited_lately: float = 0.0) -> Claimed:
        wanted = Wanted(("orders",), 10, LEASE, uuid4(), CLAIM_BYTES)
        return await store._runtime.writer.write(
            lambda connection: carry_out_on(
                connection, store._runtime._verbs.claims.take(wanted, locked_out, waited_lately)
            )
        )

    async def test_a_claim_that_was_locked_out_leaves_leases_alone_that_have_just_ended(
        self, store: SQLiteStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"running"), message(b"waiting")])
        await claim_all(store, limit=1)
        clock.advance(LEASE)

        first = await self.take(store, LONG_LOCKED_OUT)

        assert [delivery.body for delivery in first.deliveries] == [b"waiting"]
        assert first.next_in is not None
        assert first.next_in < SECOND
        second = await self.take(store, 0)
        assert [delivery.body for delivery in second.deliveries] == [b"running"]

    async def test_a_claim_that_often_waited_for_the_lock_lately_leaves_them_alone_too(
        self, store: SQLiteStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"running"))
        await claim_all(store)
        clock.advance(LEASE)

        assert not (await self.take(store, 0, LONG_LOCKED_OUT)).deliveries
        clock.advance(GRACE)
        assert len((await self.take(store, 0, LONG_LOCKED_OUT)).deliveries) == 1

    async def test_a_lease_that_ended_long_ago_is_taken_over(
        self, store: SQLiteStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"running"))
        await claim_all(store)
        clock.advance(LEASE + GRACE)

        assert len((await self.take(store, LONG_LOCKED_OUT)).deliveries) == 1
