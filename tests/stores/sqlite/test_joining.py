"""Taking part in a caller's transaction, with all the ways in which SQLAlchemy and the driver put off beginning it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from nightmail.errors import Refused, StaleTransaction, TimerExists
from nightmail.outcome import Retry, WriteResult
from nightmail.store import Blocking
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.conformance.build import AT_ONCE, QUEUE, bodies, claim_all, message
from tests.stores.shared.backend import Begin
from tests.stores.shared.joining import Joining
from tests.stores.sqlite.support import CALLERS
from tests.stores.support import settle

pytestmark = pytest.mark.sqlite


class TestJoining(Joining):
    @pytest.fixture(params=CALLERS.values(), ids=list(CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> Begin:
        begin: Begin = request.param
        return begin


async def write(session: AsyncSession, value: str = "effect") -> None:
    await session.execute(text("INSERT INTO effects VALUES (:value)"), {"value": value})


async def effects(store: SQLiteStore) -> list[str]:
    async with aiosqlite.connect(store.file) as connection:
        return [value for (value,) in await connection.execute_fetchall("SELECT value FROM effects")]


class TestSQLAlchemy:
    async def test_a_savepoint_that_is_rolled_back_takes_the_message_along(
        self, store: SQLiteStore, eager: AsyncEngine
    ) -> None:
        async with AsyncSession(eager) as session, session.begin():
            await store.publish(message(b"kept"), transaction=session)
            savepoint = await session.begin_nested()
            await store.publish(message(b"dropped"), transaction=session)
            await savepoint.rollback()

        assert bodies(await store.peek()) == [b"kept"]

    async def test_looking_in_a_session_does_not_take_the_write_lock(
        self, store: SQLiteStore, engine: AsyncEngine
    ) -> None:
        async with AsyncSession(engine) as session:
            assert await store.peek(transaction=session) == []

            await store.publish(message(b"meanwhile"))


class TestStaleTransactions:
    async def test_a_transaction_that_read_before_another_wrote_is_refused_with_advice(
        self, store: SQLiteStore, file: Path
    ) -> None:
        async with aiosqlite.connect(file, isolation_level=None) as connection:
            await connection.execute("BEGIN")
            await connection.execute_fetchall("SELECT * FROM effects")
            await store.publish(message(b"meanwhile"))

            with pytest.raises(StaleTransaction, match="begin_immediate"):
                await store.publish(message(), transaction=connection)
            await connection.rollback()

        assert bodies(await store.peek()) == [b"meanwhile"]

    async def test_a_transaction_that_has_not_read_yet_waits_for_its_turn(
        self, store: SQLiteStore, file: Path
    ) -> None:
        async with (
            aiosqlite.connect(file, isolation_level=None) as first,
            aiosqlite.connect(file, isolation_level=None) as second,
        ):
            await first.execute("BEGIN IMMEDIATE")
            await second.execute("BEGIN")
            # A timer is looked up before it is stored, and looking first would be refused when it is stored.
            publishing = asyncio.create_task(
                store.publish(message(b"second", timer_id="a"), transaction=second)
            )
            await store.publish(message(b"first"), transaction=first)
            await first.commit()
            await publishing
            await second.commit()

        assert bodies(await store.peek()) == [b"first", b"second"]

    async def test_an_engine_that_begins_immediately_may_read_first(
        self, store: SQLiteStore, eager: AsyncEngine
    ) -> None:
        async with AsyncSession(eager) as session, session.begin():
            await session.execute(text("SELECT * FROM effects"))
            elsewhere = asyncio.create_task(store.publish(message(b"waits for its turn")))
            await store.publish(message(b"in the session"), transaction=session)

        await elsewhere
        assert bodies(await store.peek()) == [b"in the session", b"waits for its turn"]

    async def test_an_engine_that_begins_immediately_leaves_autocommit_alone(
        self, store: SQLiteStore, eager: AsyncEngine
    ) -> None:
        async with eager.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            await connection.exec_driver_sql("INSERT INTO effects VALUES ('at once')")
            assert await effects(store) == ["at once"]

        async with AsyncSession(eager) as session, session.begin():
            await write(session, "in a transaction")
        assert await effects(store) == ["at once", "in a transaction"]


class TestTheDriver:
    async def test_a_connection_that_makes_dictionaries_of_its_rows_is_no_obstacle(
        self, store: SQLiteStore, file: Path
    ) -> None:
        async with aiosqlite.connect(file, isolation_level=None) as connection:
            connection.row_factory = lambda cursor, row: {  # type: ignore[assignment]
                column[0]: value for column, value in zip(cursor.description, row, strict=True)
            }
            await connection.execute("BEGIN IMMEDIATE")
            first = await store.publish(message(timer_id="a"), transaction=connection)
            again = await store.publish(
                message(b"new", timer_id="a", on_conflict="replace"), transaction=connection
            )
            assert bodies(await store.peek(transaction=connection)) == [b"new"]
            await connection.commit()

        assert again == first

    async def test_a_connection_in_pythons_own_transaction_is_joined(
        self, store: SQLiteStore, file: Path
    ) -> None:
        async with aiosqlite.connect(file) as connection:
            await connection.execute("INSERT INTO effects VALUES ('effect')")
            await store.publish(message(), transaction=connection)
            await connection.rollback()

        assert (await effects(store), await store.peek()) == ([], [])

    async def test_each_statement_is_one_call_to_the_connections_thread(
        self, store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = 0
        execute: Any = aiosqlite.Connection._execute

        async def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            return await execute(*arguments, **named)

        async with aiosqlite.connect(file, isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            await store.publish(message(), transaction=connection)
            monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
            await store.publish(message(), transaction=connection)
            assert calls == 1
            await store.publish_batch([message(), message()], transaction=connection)
            assert calls == 2
            await store.publish(message(timer_id="a"), transaction=connection)
            # The savepoint, the lock, three statements, and the end of the savepoint.
            assert calls == 8
            await connection.commit()

    async def test_neither_is_one_with_pythons_rows(self, store: SQLiteStore, file: Path) -> None:
        async with aiosqlite.connect(file, isolation_level=None) as connection:
            connection.row_factory = sqlite3.Row
            await connection.execute("BEGIN IMMEDIATE")
            first = await store.publish(message(timer_id="a"), transaction=connection)
            again = await store.publish(
                message(b"new", timer_id="a", on_conflict="replace"), transaction=connection
            )
            await connection.commit()

        assert (again, bodies(await store.peek())) == (first, [b"new"])


class TestHalves:
    """A verb of one statement has no savepoint, unless the statement would not undo itself."""

    @pytest.mark.parametrize(
        "application",
        [
            "CREATE TRIGGER t AFTER INSERT ON nightmail_messages WHEN new.queue = 'refused' "
            "BEGIN SELECT RAISE(FAIL, 'no'); END",
            "CREATE TABLE audit (queue UNIQUE ON CONFLICT FAIL); INSERT INTO audit VALUES ('refused'); "
            "CREATE TRIGGER t AFTER INSERT ON nightmail_messages BEGIN INSERT INTO audit VALUES (new.queue); END",
            "CREATE TABLE audit (queue UNIQUE); INSERT INTO audit VALUES ('refused'); "
            "CREATE TRIGGER t AFTER INSERT ON nightmail_messages "
            "BEGIN INSERT OR FAIL INTO audit VALUES (new.queue); END",
        ],
        ids=["raise", "constraint", "or"],
    )
    async def test_a_refused_message_is_not_left_in_the_transaction_whatever_the_application_says(
        self, store: SQLiteStore, file: Path, application: str
    ) -> None:
        with closing(sqlite3.connect(file)) as other:
            other.executescript(application)
        async with aiosqlite.connect(file, isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            await store.publish(message(b"first"), transaction=connection)
            with pytest.raises(Refused):
                await store.publish(message(b"refused", queue="refused"), transaction=connection)
            await connection.commit()

        assert bodies(await store.peek()) == [b"first"]

    async def test_a_refused_message_without_a_savepoint_leaves_the_transaction_as_it_was(
        self, store: SQLiteStore, file: Path
    ) -> None:
        with closing(sqlite3.connect(file)) as other:
            other.execute(
                "CREATE TRIGGER t AFTER INSERT ON nightmail_messages WHEN new.queue = 'refused' "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
        async with aiosqlite.connect(file, isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            for name in (b"first", b"second"):
                await store.publish(message(name), transaction=connection)
                with pytest.raises(Refused):
                    await store.publish(message(b"refused", queue="refused"), transaction=connection)
            await connection.commit()

        assert bodies(await store.peek()) == [b"first", b"second"]

    async def test_after_an_error_a_connection_is_asked_again(self, store: SQLiteStore, file: Path) -> None:
        async with aiosqlite.connect(file, isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            await store.publish(message(timer_id="a"), transaction=connection)
            await store.publish(message(), transaction=connection)
            assert connection in store._callers._undoing
            with pytest.raises(TimerExists):
                await store.publish(message(timer_id="a", on_conflict="raise"), transaction=connection)
            assert connection not in store._callers._undoing

            await store.publish(message(), transaction=connection)

            assert connection in store._callers._undoing
            await connection.commit()


class TestCancellation:
    @pytest.mark.parametrize(
        "moment", ["database_list", "BEGIN", "SELECT id, due_at", "UPDATE", "INSERT"], ids=str
    )
    async def test_a_verb_cancelled_at_any_of_its_statements_is_carried_out_whole(
        self, store: SQLiteStore, engine: AsyncEngine, moment: str
    ) -> None:
        # Replacing what runs takes two writes: the name is taken away, then the new message gets it.
        await store.publish(message(b"old", timer_id="a"))
        await claim_all(store)
        cancelled_at: list[str] = []

        async with AsyncSession(engine) as session, session.begin():
            publishing = asyncio.create_task(
                store.publish(message(b"new", timer_id="a", on_conflict="replace"), transaction=session)
            )

            @event.listens_for(engine.sync_engine, "before_cursor_execute")
            def cancel(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
                if moment in statement and not cancelled_at:
                    cancelled_at.append(statement)
                    publishing.cancel()

            with pytest.raises(asyncio.CancelledError):
                await publishing
            await write(session)

        assert len(cancelled_at) == 1
        stats = (await store.stats())[QUEUE]
        assert (stats.running, stats.superseded, stats.ready) == (0, 1, 1)
        assert await effects(store) == ["effect"]

    async def test_a_failure_after_the_caller_was_cancelled_stays_a_cancellation(
        self, store: SQLiteStore, engine: AsyncEngine
    ) -> None:
        await store.publish(message(timer_id="a"))
        async with AsyncSession(engine) as session:
            publishing = asyncio.create_task(
                store.publish(message(timer_id="a", on_conflict="raise"), transaction=session)
            )

            @event.listens_for(engine.sync_engine, "before_cursor_execute")
            def cancel(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
                if statement.startswith("SELECT id, due_at"):
                    publishing.cancel()

            with pytest.raises(asyncio.CancelledError):
                await publishing


class TestARefusedVerb:
    async def test_nothing_of_a_refused_verb_stays_in_the_callers_transaction(
        self, store: SQLiteStore, engine: AsyncEngine, file: Path
    ) -> None:
        await store.publish(message(b"running", timer_id="a"))
        (running,) = await claim_all(store)
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON nightmail_messages WHEN new.body = x'00'"
                " BEGIN SELECT raise(ABORT, 'no'); END"
            )

        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(Refused):
                # It takes the name from the running message first, and is refused then.
                await store.publish(message(b"\0", timer_id="a", on_conflict="replace"), transaction=session)
            await store.publish(message(b"other"), transaction=session)

        assert await settle(store, [running], Retry(AT_ONCE)) == [WriteResult.WRITTEN]
        (other, back) = sorted(await claim_all(store), key=lambda delivery: -delivery.id)
        assert (other.body, back.body, back.superseded) == (b"other", b"running", False)

    async def test_the_same_for_synchronous_callers(self, store: SQLiteStore, file: Path) -> None:
        await store.publish(message(b"running", timer_id="a"))
        await claim_all(store)
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute(
                "CREATE TEMP TRIGGER refuse BEFORE INSERT ON nightmail_messages BEGIN SELECT raise(ABORT, 'no'); END"
            )
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(Refused):
                await store.publish(
                    message(timer_id="a", on_conflict="replace"), transaction=Blocking(connection)
                )
            connection.execute("COMMIT")
            found = connection.execute("SELECT timer_key, superseded FROM nightmail_messages").fetchall()

        assert found == [("a", 0)]
