"""What only the SQLite store does: its history, its one write lock, and what it makes of errors."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Postpone, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.clock import START, ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, SECOND, bodies, claim_all, message
from tests.stores.sqlite.support import locked, unchecked
from tests.stores.support import settle

pytestmark = pytest.mark.sqlite


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
        settled, acked, dead = await claim_all(keeping)
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
        await settle(store, await claim_all(store), Done())

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

    async def test_a_lease_cannot_be_extended_while_another_writes(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish_batch([message(), message()])
        deliveries = await claim_all(store)

        with locked(file):
            assert await store.extend(deliveries, LEASE) == [WriteResult.BUSY, WriteResult.BUSY]

        assert await store.extend(deliveries, LEASE) == [WriteResult.WRITTEN, WriteResult.WRITTEN]

    async def test_operators_read_while_another_writes(self, store: SQLiteStore, file: Path) -> None:
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
        one, two, three, four = await claim_all(store)

        with caplog.at_level(logging.ERROR):
            results = await store.settle(
                [
                    Settlement(one, Done()),
                    Settlement(two, Dead("refused", "s3cret error")),
                    Settlement(three, Dead("rejected")),
                    Settlement(four, Retry(SECOND)),
                ]
            )

        assert results == [WriteResult.WRITTEN, WriteResult.BUSY, WriteResult.WRITTEN, WriteResult.WRITTEN]
        assert [letter.message_id for letter in await store.dead(DeadFilter())] == [three.id]
        assert await store.extend([one, two, four], LEASE) == [
            WriteResult.LOST,
            WriteResult.WRITTEN,
            WriteResult.LOST,
        ]
        assert f"message {two.id}" in caplog.text
        assert "s3cret" not in caplog.text


class TestBodies:
    async def test_large_and_small_ones_are_claimed_together_and_in_order(self, store: SQLiteStore) -> None:
        sizes = [4_000_000, 1, 900_000, 900_000, 0]
        await store.publish_batch([message(b"x" * size) for size in sizes])

        assert [len(body) for body in bodies(await claim_all(store))] == sizes

    async def test_what_was_put_there_by_hand_does_not_stop_the_queue(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish_batch([message(b"before"), message(b"tampered"), message(b"after")])
        with closing(unchecked(file)) as connection, connection:
            connection.execute(
                "UPDATE nightmail_messages SET headers = x'ff00', body = 'text', ordering_key = x'01' WHERE id = 2"
            )

        claimed = await claim_all(store)

        assert bodies(claimed) == [b"before", b"text", b"after"]
        with pytest.raises(ValueError, match="Expecting value"):
            _ = claimed[1].headers


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
        await store.publish(message(b"postponed"))
        await settle(store, await claim_all(store), Postpone(timedelta.max))

        assert [pending.due_at.year for pending in await store.peek()] == [9999]

    async def test_by_its_own_clock_a_message_is_never_claimed_early(self, file: Path) -> None:
        store = SQLiteStore(file)
        await store.open()
        await store.migrate()
        for _ in range(50):
            await store.publish(message(due=SECOND / 1000))
            deliveries: list[Delivery] = []
            while not deliveries:
                deliveries = await claim_all(store)

            assert deliveries[0].due_at <= deliveries[0].claimed_at
            assert deliveries[0].due_at - deliveries[0].published_at >= SECOND / 1000
            await settle(store, deliveries, Done())
        await store.close()
