"""Pauses, stops, workers and questions on SQLite: what they cost those who hold the write lock, or wait for it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nightmail.outcome import Done, WriteResult
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.verbs import Verb
from nightmail.stores.sqlite import SQLiteStore
from nightmail.stores.sqlite.queries import Queries
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    claim_all,
    claim_bodies,
    claim_one,
    message,
    stored,
)
from nightmail.testing.conformance.workers import FIRST, SECOND_ID, a_report
from tests.stores.sqlite.support import has_arrived, locked, unchecked
from tests.stores.support import settle

pytestmark = pytest.mark.sqlite

FULL, NORMAL = 2, 1
NOTED = """
    CREATE TRIGGER renewed AFTER UPDATE OF lease_until ON nightmail_messages
    BEGIN INSERT INTO effects VALUES ('renewed'); END;
    CREATE TRIGGER reported AFTER INSERT ON nightmail_workers
    BEGIN INSERT INTO effects VALUES ('reported'); END;
"""
CONSUMERS = "SELECT queue, pid FROM nightmail_consumers ORDER BY queue"
PAUSED = "SELECT queue, ordering_key FROM nightmail_controls ORDER BY queue, ordering_key"


def rows(file: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


async def turn_of(store: SQLiteStore) -> None:
    """Until the writer has seen what the tasks started so far ask of it."""
    await asyncio.sleep(0)
    await has_arrived(store._runtime.writer)


async def synchronous(store: SQLiteStore) -> int:
    """How long the last commit waited for the disk."""
    ((level,),) = await store._runtime.writer.read(
        lambda connection: connection.execute("PRAGMA synchronous").fetchall()
    )
    return int(level)


async def test_who_consumed_a_queue_last_is_noted_only_when_a_worker_leaves_it(
    store: SQLiteStore, file: Path
) -> None:
    for _ in range(3):
        await store.report(a_report(queues=("mail", "refunds")))
        await store.report(a_report(SECOND_ID, queues=("orders",)))
    assert rows(file, CONSUMERS) == []

    await store.report(a_report(queues=("mail",)))
    await store.sign_off(FIRST)

    assert rows(file, CONSUMERS) == [("mail", 77), ("refunds", 77)]


class TestTheLock:
    async def test_what_operators_ask_is_answered_while_another_writes(
        self, store: SQLiteStore, file: Path
    ) -> None:
        id_ = await stored(store, message())
        await claim_one(store)
        await store.pause(QUEUE, by="ann")
        await store.report(a_report())

        with locked(file):
            assert [each.by for each in await store.pauses()] == ["ann"]
            assert len(await store.workers()) == 1
            assert QUEUE in await store.last_consumers()
            assert [each.id for each in await store.leases()] == [id_]
            assert (await store.facts(id_)).message is not None

    async def test_a_claim_of_what_is_paused_neither_waits_nor_writes(
        self, store: SQLiteStore, file: Path, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await store.publish(message(queue="refunds", ordering_key="a"))
        await store.pause(QUEUE, by="ann", until=HOUR)
        await store.pause("refunds", ordering_key="a", by="ann")
        await store.pause("empty", by="ann", until=MINUTE)
        clock.advance(MINUTE)

        with locked(file):
            claimed = await store.claim([QUEUE, "refunds", "empty"], limit=10, lease=LEASE, token=uuid4())

        assert (list(claimed.deliveries), claimed.next_in) == ([], HOUR - MINUTE)

    async def test_a_renewal_goes_before_a_report_that_waited_longer(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript(NOTED)

        with locked(file):
            report = asyncio.create_task(store.report(a_report()))
            await turn_of(store)
            extend = asyncio.create_task(store.extend([delivery], HOUR))
            await turn_of(store)
        await report

        assert await extend == [WriteResult.WRITTEN]
        assert rows(file, "SELECT value FROM effects") == [("renewed",), ("reported",)]

    async def test_a_report_does_not_wait_for_the_disk_and_a_pause_does(self, store: SQLiteStore) -> None:
        await store.pause(QUEUE, by="ann")
        assert await synchronous(store) == FULL

        await store.report(a_report())

        assert await synchronous(store) == NORMAL


class TestWhatIsStored:
    async def test_a_pause_that_is_over_is_removed_by_the_next_claim_that_takes_something(
        self, store: SQLiteStore, file: Path, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"a"), message(b"b", ordering_key="key")])
        await store.pause(QUEUE, by="ann", until=MINUTE)
        await store.pause(QUEUE, ordering_key="key", by="ann", until=MINUTE)
        await store.pause(QUEUE, ordering_key="another", by="ann")
        await store.pause("refunds", by="ann", until=MINUTE)
        clock.advance(MINUTE)

        assert sorted(await claim_bodies(store)) == [b"a", b"b"]

        assert rows(file, PAUSED) == [(QUEUE, "another"), ("refunds", "")]

    async def test_a_pause_survives_its_store(self, store: SQLiteStore) -> None:
        await store.publish(message())
        await store.pause(QUEUE, by="ann", until=HOUR)
        (before,) = await store.pauses()

        await store.close()
        await store.open()

        assert await store.pauses() == [before]
        assert await claim_all(store) == []

    async def test_a_pause_whose_end_cannot_be_read_lasts_until_it_is_resumed(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await store.publish(message())
        await store.pause(QUEUE, by="ann", until=MINUTE)
        with closing(unchecked(file)) as connection, connection:
            connection.execute("UPDATE nightmail_controls SET until = 'tomorrow'")

        assert await claim_all(store) == []
        assert await store.resume(QUEUE) is True
        await claim_one(store)

    @pytest.mark.parametrize(
        "assignment",
        [
            "until = 'tomorrow'",
            "since = x'00'",
            "automatic = 2",
            "automatic = 1",
            "length = 0",
            "reason = x'00'",
        ],
    )
    async def test_the_table_refuses_what_no_pause_can_have(
        self, store: SQLiteStore, file: Path, assignment: str
    ) -> None:
        await store.pause(QUEUE, by="ann")

        with (
            closing(sqlite3.connect(file)) as connection,
            pytest.raises(sqlite3.IntegrityError, match="CHECK"),
        ):
            connection.execute(f"UPDATE nightmail_controls SET {assignment}")

    async def test_when_a_message_was_delivered_is_known_where_a_history_is_kept(
        self, store: SQLiteStore, file: Path, clock: ManualClock
    ) -> None:
        keeping = SQLiteStore(file, clock=clock, keep_delivered=True)
        await keeping.open()
        await keeping.publish(message())
        delivery = await claim_one(keeping)
        clock.advance(MINUTE)
        await settle(keeping, [delivery], Done())
        await keeping.close()

        facts = await store.facts(delivery.id)

        assert (facts.message, facts.letter, facts.delivered_at) == (None, None, clock.now())

    async def test_what_is_read_at_one_moment_does_not_see_what_is_written_meanwhile(
        self, store: SQLiteStore, file: Path
    ) -> None:
        sql = Queries(TableNames())

        def twice() -> Verb[tuple[list[Any], list[Any]]]:
            first = yield sql("pauses", now=0)
            with closing(sqlite3.connect(file)) as other, other:
                other.execute(
                    "INSERT INTO nightmail_controls (queue, since, paused_by) VALUES ('q', 0, 'ann')"
                )
            second = yield sql("pauses", now=0)
            return first, second

        assert await store._runtime.read_at_one_moment(twice) == ([], [])
        assert len(await store.pauses()) == 1
