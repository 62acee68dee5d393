"""What only the SQLite store does: its history, its lock, its bells and its lease keeper."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from nightmail.errors import PublishUncertain
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Postpone, Retry, Standing
from nightmail.records import DeadFilter
from nightmail.store import Extend, Settlement
from nightmail.stores.sqlite import SQLiteStore
from nightmail.stores.sqlite import threads as threads_module
from nightmail.testing.clock import START, ManualClock
from tests.stores.sqlite.support import HOUR, LEASE, QUEUE, SECOND, bodies, claim, message, settle

pytestmark = pytest.mark.sqlite


@contextmanager
def locked(file: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else holds the write lock."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("ROLLBACK")


def rows(file: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


class TestHistory:
    async def test_what_is_done_goes_into_the_history_when_that_is_kept(
        self, store: SQLiteStore, engine: AsyncEngine, file: Path, clock: ManualClock
    ) -> None:
        keeping = SQLiteStore(file, clock=clock, keep_delivered=True)
        await keeping.open()
        await keeping.publish_batch([message(b"settled"), message(b"acked"), message(b"dead")])
        settled, acked, dead = await claim(keeping)
        clock.advance(SECOND)

        await settle(keeping, [settled], Done())
        async with AsyncSession(engine) as session, session.begin():
            await keeping.ack([acked], transaction=session)
        await settle(keeping, [dead], Dead("rejected"))
        await keeping.close()

        micros = int(START.timestamp()) * 1_000_000
        assert rows(file, "SELECT message_id, body, published_at, delivered_at FROM nightmail_delivered") == [
            (settled.id, b"settled", micros, micros + 1_000_000),
            (acked.id, b"acked", micros, micros + 1_000_000),
        ]

    async def test_nothing_is_kept_unless_asked_for(self, store: SQLiteStore, file: Path) -> None:
        await store.publish(message())
        await settle(store, await claim(store), Done())

        assert rows(file, "SELECT * FROM nightmail_delivered") == []


class TestTheLock:
    async def test_a_claim_that_finds_nothing_neither_waits_nor_writes(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish(message(due=HOUR))
        with closing(sqlite3.connect(file)) as observer:
            before = observer.execute("PRAGMA data_version").fetchall()

            with locked(file):
                claimed = await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())

            assert (list(claimed.deliveries), claimed.next_in) == ([], HOUR)
            assert observer.execute("PRAGMA data_version").fetchall() == before

    async def test_a_lease_cannot_be_extended_while_somebody_else_writes(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish_batch([message(), message()])
        deliveries = await claim(store)

        with locked(file):
            assert await store.extend(deliveries, LEASE) == [Standing.BUSY, Standing.BUSY]

        assert await store.extend(deliveries, LEASE) == [Standing.HELD, Standing.HELD]

    async def test_operators_read_while_somebody_else_writes(self, store: SQLiteStore, file: Path) -> None:
        await store.publish(message(b"waits"))

        with locked(file):
            assert bodies(await store.peek()) == [b"waits"]
            assert (await store.stats())[QUEUE].ready == 1
            assert await store.dead(DeadFilter()) == []
            await store.ping()


class TestRefusedRows:
    async def test_one_that_is_refused_does_not_fail_its_neighbours(
        self, store: SQLiteStore, file: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON nightmail_dead WHEN new.reason = 'refused'"
                " BEGIN SELECT raise(ABORT, 'no such reason'); END"
            )
        await store.publish_batch([message(b"%d s3cret" % number) for number in range(4)])
        one, two, three, four = await claim(store)

        with caplog.at_level(logging.ERROR):
            standings = await store.settle(
                [
                    Settlement(one, Done()),
                    Settlement(two, Dead("refused", "s3cret error")),
                    Settlement(three, Dead("rejected")),
                    Settlement(four, Retry(SECOND)),
                ]
            )

        assert standings == [Standing.HELD, Standing.BUSY, Standing.HELD, Standing.HELD]
        assert [letter.message_id for letter in await store.dead(DeadFilter())] == [three.id]
        assert await store.extend([one, two, four], LEASE) == [Standing.LOST, Standing.HELD, Standing.LOST]
        assert f"message {two.id}" in caplog.text
        assert "s3cret" not in caplog.text


class TestUncertainty:
    async def test_a_publish_whose_commit_failed_is_uncertain(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failing = {"COMMIT": False}

        class Faulty(sqlite3.Connection):
            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                if failing.get(sql):
                    error = sqlite3.OperationalError("disk I/O error")
                    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
                    raise error
                return super().execute(sql, *args)

        def connect(file: str, **_: Any) -> sqlite3.Connection:
            return sqlite3.connect(file, isolation_level=None, check_same_thread=False, factory=Faulty)

        monkeypatch.setattr(threads_module, "connect", connect)
        store = SQLiteStore(file)
        await store.open()
        await store.migrate()

        failing["COMMIT"] = True
        with pytest.raises(PublishUncertain):
            await store.publish(message(b"s3cret"))
        failing["COMMIT"] = False

        assert await store.publish(message(b"after")) is not None
        await store.close()


class TestWindows:
    async def test_windows_that_ended_are_cleared_away_by_those_that_are_opened(
        self, store: SQLiteStore, file: Path, clock: ManualClock
    ) -> None:
        for number in range(20):
            await store.publish(message(timer_id=f"short {number}", dedup_for=SECOND))
        clock.advance(SECOND)

        for number in range(20):
            await store.publish(message(timer_id=f"long {number}", dedup_for=HOUR))

        assert rows(file, "SELECT count(*) FROM nightmail_dedup") == [(20,)]
        assert rows(file, "SELECT count(*) FROM nightmail_dedup WHERE timer_id LIKE 'short%'") == [(0,)]


class TestTimes:
    async def test_a_delay_without_end_is_due_at_the_end_of_the_calendar(self, store: SQLiteStore) -> None:
        await store.publish(message(b"published", due=timedelta.max))
        await store.publish(message(b"postponed"))
        await settle(store, await claim(store), Postpone(timedelta.max))

        assert [(pending.due_at.year, pending.body) for pending in await store.peek()] == [
            (9999, b"published"),
            (9999, b"postponed"),
        ]

    async def test_by_its_own_clock_a_message_is_never_claimed_early(self, file: Path) -> None:
        store = SQLiteStore(file)
        await store.open()
        await store.migrate()
        for _ in range(50):
            await store.publish(message(due=SECOND / 1000))
            deliveries: list[Delivery] = []
            while not deliveries:
                deliveries = await claim(store)

            assert deliveries[0].due_at <= deliveries[0].claimed_at
            assert deliveries[0].due_at - deliveries[0].published_at >= SECOND / 1000
            await settle(store, deliveries, Done())
        await store.close()


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

    async def test_what_others_do_with_messages_rings_nobody(self, store: SQLiteStore, file: Path) -> None:
        other = SQLiteStore(file, clock=ManualClock())
        await other.open()
        await store.publish_batch([message(), message()])
        with store.listen([QUEUE]) as bell, store.listen(["last"]) as last:
            await hears_others(store)
            bell.clear()
            last.clear()

            deliveries = await claim(other)
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

    async def test_nobody_asks_for_changes_while_nobody_listens(self, store: SQLiteStore) -> None:
        asked: list[str] = []
        await store.publish(message())
        writer = store._threads.writer
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

        assert [thread.name for thread in threading.enumerate() if "keeper" in thread.name] == []


async def hears_others(store: SQLiteStore) -> None:
    """Until the thread watches: the first look after a bell was hung rings all, whatever was written."""
    await store._threads.writer.read(lambda connection: None)
