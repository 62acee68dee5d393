"""What the thread makes of a disk that fails, and of being stopped."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.stores.sqlite import SQLiteStore, runtime
from nightmail.stores.sqlite.errors import CommitInDoubt
from nightmail.stores.sqlite.thread import ConnectionThread
from nightmail.testing.conformance.build import message
from tests.stores.sqlite.support import Connections, locked, note, noted

pytestmark = pytest.mark.sqlite


every_publish = pytest.mark.parametrize(
    "publish",
    [
        pytest.param(lambda store: store.publish(message(b"once")), id="one"),
        pytest.param(lambda store: store.publish(message(b"once", timer_id="t")), id="timer"),
        pytest.param(lambda store: store.publish_batch([message(b"once")]), id="batch"),
    ],
)


class TestFailures:
    async def test_a_failed_disk_at_the_commit_leaves_it_open_whether_it_was_written(
        self, thread: ConnectionThread, connections: Connections
    ) -> None:
        connections.faults["COMMIT"] = sqlite3.SQLITE_IOERR_FSYNC

        with pytest.raises(CommitInDoubt):
            await thread.write(note("a"))

    async def test_a_full_disk_at_the_commit_has_written_nothing(
        self, thread: ConnectionThread, connections: Connections, file: Path
    ) -> None:
        connections.faults["COMMIT"] = sqlite3.SQLITE_FULL

        with pytest.raises(StoreUnavailable) as raised:
            await thread.write(note("a"))

        assert not isinstance(raised.value, CommitInDoubt)
        assert noted(file) == []

    @pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "COMMIT"])
    async def test_a_connection_in_doubt_is_replaced(
        self, thread: ConnectionThread, connections: Connections, file: Path, statement: str
    ) -> None:
        connections.faults[statement] = sqlite3.SQLITE_IOERR

        with pytest.raises(StoreUnavailable):
            await thread.write(note("lost"))

        assert await thread.write(note("next")) == "next"
        assert noted(file) == ["next"]
        assert connections.made == 2

    @pytest.mark.parametrize("statement", ["ROLLBACK", "SAVEPOINT work", "ROLLBACK TO work", "RELEASE work"])
    async def test_a_connection_in_doubt_while_a_failure_is_undone_is_replaced_too(
        self, thread: ConnectionThread, connections: Connections, file: Path, statement: str
    ) -> None:
        def mistaken(connection: sqlite3.Connection) -> None:
            raise LookupError("on purpose")

        connections.faults[statement] = sqlite3.SQLITE_IOERR

        with pytest.raises(StoreUnavailable):
            await thread.write(mistaken)

        assert await thread.write(note("next")) == "next"
        assert noted(file) == ["next"]
        assert connections.made == 2

    async def test_a_failed_read_throws_the_connection_away_too(
        self, thread: ConnectionThread, connections: Connections
    ) -> None:
        connections.faults["SELECT 1"] = sqlite3.SQLITE_IOERR

        with pytest.raises(StoreUnavailable):
            await thread.read(lambda connection: connection.execute("SELECT 1").fetchall())

        assert await thread.read(lambda connection: connection.execute("SELECT 1").fetchall()) == [(1,)]
        assert connections.made == 2

    async def test_a_mistake_in_a_read_is_the_callers_and_the_thread_lives_on(
        self, thread: ConnectionThread
    ) -> None:
        def mistaken(connection: sqlite3.Connection) -> None:
            raise LookupError("on purpose")

        with pytest.raises(LookupError, match="on purpose"):
            await thread.read(mistaken)
        assert await thread.write(note("next")) == "next"

    async def test_a_lock_met_while_reading_is_waited_for(
        self, thread: ConnectionThread, connections: Connections
    ) -> None:
        connections.faults["SELECT 1"] = sqlite3.SQLITE_BUSY_RECOVERY

        assert await thread.read(lambda connection: connection.execute("SELECT 1").fetchall()) == [(1,)]
        assert connections.made == 1


class TestStopping:
    async def test_what_was_asked_for_is_finished_first(self, connections: Connections, file: Path) -> None:
        thread = ConnectionThread("test", connections)
        with locked(file):
            waiting = asyncio.create_task(thread.write(note("a")))
            await asyncio.sleep(0)
            stopping = asyncio.create_task(thread.stop())
            await asyncio.sleep(0)

        await stopping
        assert await waiting == "a"
        assert noted(file) == ["a"]

    async def test_what_still_waits_for_the_lock_after_a_while_fails(
        self, connections: Connections, file: Path
    ) -> None:
        thread = ConnectionThread("test", connections)
        with locked(file):
            waiting = asyncio.create_task(thread.write(note("a"), patience=3600))
            await asyncio.sleep(0)
            await thread.stop(within=0.05)

            with pytest.raises(StoreUnavailable, match="locked"):
                await waiting

    async def test_a_statement_that_takes_too_long_is_interrupted(self, connections: Connections) -> None:
        thread = ConnectionThread("test", connections)
        endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        reading = asyncio.create_task(thread.read(lambda connection: connection.execute(endless).fetchall()))
        await asyncio.sleep(0)

        async with asyncio.timeout(30):
            await thread.stop(within=0.05)
            with pytest.raises(StoreUnavailable):
                await reading

    async def test_a_stopped_thread_takes_nothing_more(self, thread: ConnectionThread) -> None:
        await thread.stop()

        with pytest.raises(StoreUnavailable, match="open it first"):
            await thread.write(note("a"))
        await thread.stop()


class TestUncertainty:
    @pytest.fixture
    async def faulty(
        self, store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Connections]:
        """The connections of the store, whose commits can fail."""
        connections = Connections(file)
        monkeypatch.setattr(runtime, "connect", connections)
        await store.close()
        await store.open()
        yield connections
        assert connections.faults == connections.late_faults == {}, "nothing has failed"

    async def test_a_publish_whose_commit_failed_is_uncertain_and_was_sent_once(
        self, store: SQLiteStore, faulty: Connections
    ) -> None:
        faulty.faults["COMMIT"] = sqlite3.SQLITE_IOERR_FSYNC
        with pytest.raises(PublishUncertain):
            await store.publish(message(b"lost"))

        assert await store.peek() == []
        assert await store.publish(message(b"after")) is not None
        assert [found.body for found in await store.peek()] == [b"after"]

    @every_publish
    async def test_a_publish_whose_commit_failed_late_is_uncertain_and_was_sent_once(
        self, store: SQLiteStore, faulty: Connections, publish: Callable[[SQLiteStore], Awaitable[object]]
    ) -> None:
        faulty.late_faults["COMMIT"] = sqlite3.SQLITE_IOERR_FSYNC
        with pytest.raises(PublishUncertain):
            await publish(store)

        assert [found.body for found in await store.peek()] == [b"once"]

    @pytest.mark.parametrize("stored", [False, True], ids=["nothing was stored", "it was stored"])
    async def test_an_uncertain_publish_is_safe_to_repeat_with_its_timer_id(
        self, store: SQLiteStore, faulty: Connections, stored: bool
    ) -> None:
        faults = faulty.late_faults if stored else faulty.faults
        faults["COMMIT"] = sqlite3.SQLITE_IOERR_FSYNC
        with pytest.raises(PublishUncertain):
            await store.publish(message(b"first", timer_id="t"))
        before = [found.body for found in await store.peek()]

        repeated = await store.publish(message(b"again", timer_id="t"))

        assert before == ([b"first"] if stored else [])
        assert (repeated is None) == stored
        assert [(found.timer_id, found.body) for found in await store.peek()] == [
            ("t", b"first" if stored else b"again")
        ]

    async def test_an_uncertain_publish_without_a_timer_id_is_there_twice_when_it_is_repeated(
        self, store: SQLiteStore, faulty: Connections
    ) -> None:
        faulty.late_faults["COMMIT"] = sqlite3.SQLITE_IOERR_FSYNC
        with pytest.raises(PublishUncertain):
            await store.publish(message())

        await store.publish(message())

        assert len(await store.peek()) == 2
