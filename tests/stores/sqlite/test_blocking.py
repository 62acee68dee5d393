"""Synchronous code publishes in its own transaction, with all the ways in which such a transaction begins."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from nightmail.errors import (
    CannotJoin,
    NightmailError,
    NotInTransaction,
    OtherDatabase,
    SchemaMissing,
    StaleTransaction,
    StoreUnavailable,
)
from nightmail.store import Blocking
from nightmail.stores.sqlite import SQLiteStore, begin_immediate
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import AT_ONCE, HOUR, QUEUE, bodies, message
from tests.stores.shared.backend import BeginBlocking, ChangedMyMind
from tests.stores.shared.blocking import BlockingTransactions, LearningWhichTablesAreOurs
from tests.stores.sqlite.support import BLOCKING_CALLERS, SQLiteBackend, locked

pytestmark = pytest.mark.sqlite


class TestBlocking(BlockingTransactions, LearningWhichTablesAreOurs):
    @pytest.fixture(params=BLOCKING_CALLERS.values(), ids=list(BLOCKING_CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> BeginBlocking:
        begin: BeginBlocking = request.param
        return begin


@pytest.fixture
def blocking_engine(store: SQLiteStore, file: Path) -> Iterator[Engine]:
    """An engine as SQLAlchemy makes it: it begins late and without the write lock."""
    engine = create_engine(f"sqlite:///{file}")
    yield engine
    engine.dispose()


every_kind = pytest.mark.parametrize("begin", BLOCKING_CALLERS.values(), ids=list(BLOCKING_CALLERS))


def effects(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM effects")]


class TestTheCallersTransaction:
    async def test_may_have_a_savepoint_that_is_rolled_back_with_the_message(
        self, store: SQLiteStore, blocking_engine: Engine
    ) -> None:
        begin_immediate(blocking_engine)
        with Session(blocking_engine) as session, session.begin():
            at_once(store.publish(message(b"kept"), transaction=Blocking(session)))
            savepoint = session.begin_nested()
            at_once(store.publish(message(b"dropped"), transaction=Blocking(session)))
            savepoint.rollback()

        assert bodies(await store.peek()) == [b"kept"]

    async def test_may_be_pythons_own(self, store: SQLiteStore, file: Path) -> None:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("INSERT INTO effects VALUES ('effect')")
            at_once(store.publish(message(), transaction=Blocking(connection)))
            connection.rollback()

        assert (effects(file), await store.peek()) == ([], [])

    async def test_may_be_on_a_connection_with_rows_and_texts_of_its_own(
        self, store: SQLiteStore, file: Path
    ) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.row_factory = lambda cursor, row: {"row": row}
            connection.text_factory = bytes
            connection.execute("BEGIN IMMEDIATE")
            first = at_once(
                store.publish(message(timer_id="a", ordering_key="k"), transaction=Blocking(connection))
            )
            again = at_once(
                store.publish(
                    message(b"new", timer_id="a", ordering_key="k", on_conflict="replace"),
                    transaction=Blocking(connection),
                )
            )
            connection.commit()

        assert first == again
        assert bodies(await store.peek()) == [b"new"]

    async def test_may_be_of_a_store_that_was_never_opened_and_runs_no_thread_for_it(
        self, store: SQLiteStore, file: Path, clock: ManualClock
    ) -> None:
        threads = set(threading.enumerate())
        unopened = SQLiteStore(file, clock=clock)

        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            at_once(unopened.publish(message(), transaction=Blocking(connection)))
            connection.commit()

        assert set(threading.enumerate()) == threads
        assert bodies(await store.peek()) == [b"hello"]


class TestStaleTransactions:
    async def test_one_that_read_before_another_wrote_is_refused_with_advice(
        self, store: SQLiteStore, file: Path
    ) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT * FROM effects").fetchall()
            await store.publish(message(b"meanwhile"))

            with pytest.raises(StaleTransaction, match="begin_immediate"):
                at_once(store.publish(message(), transaction=Blocking(connection)))
            connection.rollback()

        assert bodies(await store.peek()) == [b"meanwhile"]

    async def test_one_that_has_not_read_yet_waits_for_its_turn(self, store: SQLiteStore, file: Path) -> None:
        begun, waited = threading.Event(), threading.Event()

        def publish() -> None:
            with closing(sqlite3.connect(file, isolation_level=None)) as connection:
                connection.execute("BEGIN")
                begun.set()
                # A timer is looked up before it is stored, and looking first would be refused when it is stored.
                at_once(store.publish(message(b"second", timer_id="a"), transaction=Blocking(connection)))
                waited.set()
                connection.commit()

        with locked(file):
            publishing = asyncio.create_task(asyncio.to_thread(publish))
            await asyncio.to_thread(begun.wait)
            assert not await asyncio.to_thread(waited.wait, 0.05)
        await publishing

        assert bodies(await store.peek()) == [b"second"]

    async def test_an_engine_that_begins_immediately_may_read_first(
        self, store: SQLiteStore, blocking_engine: Engine
    ) -> None:
        begin_immediate(blocking_engine)
        with Session(blocking_engine) as session, session.begin():
            session.execute(text("SELECT * FROM effects"))
            elsewhere = asyncio.create_task(store.publish(message(b"waits for its turn")))
            await asyncio.sleep(0)
            at_once(store.publish(message(b"in the session"), transaction=Blocking(session)))

        await elsewhere
        assert bodies(await store.peek()) == [b"in the session", b"waits for its turn"]

    async def test_a_lock_that_is_not_to_be_had_is_an_outage_and_not_a_loss(
        self, store: SQLiteStore, file: Path
    ) -> None:
        with closing(sqlite3.connect(file, isolation_level=None, timeout=0.02)) as connection:
            connection.execute("BEGIN")
            with locked(file), pytest.raises(StoreUnavailable, match="locked"):
                at_once(store.publish(message(b"again"), transaction=Blocking(connection)))
            at_once(store.publish(message(b"again"), transaction=Blocking(connection)))
            connection.commit()

        assert bodies(await store.peek()) == [b"again"]


class TestWhatIsRefused:
    async def refused(
        self, store: SQLiteStore, session: object, error: type[NightmailError], match: str
    ) -> None:
        with pytest.raises(error, match=match):
            at_once(store.publish(message(), transaction=Blocking(session)))
        assert await store.peek() == []

    async def test_a_connection_on_which_python_has_not_begun_yet(
        self, store: SQLiteStore, file: Path
    ) -> None:
        with closing(sqlite3.connect(file)) as connection:
            await self.refused(store, connection, NotInTransaction, "BEGIN IMMEDIATE")

    async def test_a_file_without_our_tables(self, tmp_path: Path) -> None:
        file = tmp_path / "empty.db"
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("CREATE TABLE effects (value TEXT)")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO effects VALUES ('effect')")

            with pytest.raises(SchemaMissing):
                at_once(SQLiteStore(file).publish(message(), transaction=Blocking(connection)))
            connection.commit()

        assert effects(file) == ["effect"]

    async def test_a_session_of_another_kind_of_database(self, store: SQLiteStore) -> None:
        class Elsewhere(Connection):
            closed = False
            dialect = PGDialect()  # type: ignore[no-untyped-call]

            def __init__(self) -> None:
                """Never connected."""

            def get_execution_options(self) -> Any:
                return {}

        await self.refused(store, Elsewhere(), OtherDatabase, "postgresql")

    async def test_an_asynchronous_session(self, store: SQLiteStore, engine: AsyncEngine, file: Path) -> None:
        async with AsyncSession(engine) as session, aiosqlite.connect(file) as connection:
            await self.refused(store, session, CannotJoin, "await")
            await self.refused(store, connection, CannotJoin, "await")

    async def test_what_stands_below_an_asynchronous_session(
        self, store: SQLiteStore, engine: AsyncEngine
    ) -> None:
        async with engine.connect() as connection:
            await self.refused(store, connection.sync_connection, CannotJoin, "aiosqlite")

    async def test_a_connection_of_another_thread(self, store: SQLiteStore, file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            publishing = asyncio.to_thread(
                lambda: at_once(store.publish(message(), transaction=Blocking(connection)))
            )
            with pytest.raises(StoreUnavailable, match="thread"):
                await publishing
            connection.rollback()


class TestSecrets:
    @every_kind
    async def test_an_error_does_not_show_the_message(
        self, store: SQLiteStore, backend: SQLiteBackend, begin: BeginBlocking
    ) -> None:
        await backend.refuse("s3cret body")

        with begin(backend.url) as session, pytest.raises(NightmailError) as raised:
            at_once(
                store.publish(
                    message(b"s3cret body", headers={"key": "s3cret header"}), transaction=Blocking(session)
                )
            )

        shown = repr(raised.value) + repr(raised.value.__cause__) + repr(raised.value.__context__)
        assert "s3cret" not in shown


class TestWhoIsWoken:
    @every_kind
    async def test_a_thread_of_this_process_wakes_its_workers_as_another_process_does(
        self, store: SQLiteStore, backend: SQLiteBackend, begin: BeginBlocking
    ) -> None:
        def publish() -> None:
            with begin(backend.url) as session:
                at_once(store.publish(message(), transaction=Blocking(session)))

        with store.listen([QUEUE]) as bell, store.listen(["other"]) as other:
            await watched(store)
            bell.clear()
            other.clear()

            await asyncio.to_thread(publish)

            assert await bell.wait(5)
            assert not await other.wait(0)

    async def test_a_timer_that_synchronous_code_moves_wakes_too(
        self, store: SQLiteStore, blocking_engine: Engine
    ) -> None:
        await store.publish(message(timer_id="a", due=HOUR))
        with store.listen([QUEUE]) as bell:
            await watched(store)
            bell.clear()
            with Session(blocking_engine) as session, session.begin():
                at_once(store.reschedule(QUEUE, "a", AT_ONCE, transaction=Blocking(session)))

            assert await bell.wait(5)

    async def test_no_worker_is_woken_before_the_commit(
        self, store: SQLiteStore, blocking_engine: Engine
    ) -> None:
        with store.listen([QUEUE]) as bell, store.listen(["last"]) as last:
            await watched(store)
            bell.clear()
            last.clear()
            with pytest.raises(ChangedMyMind), Session(blocking_engine) as session, session.begin():
                at_once(store.publish(message(), transaction=Blocking(session)))
                raise ChangedMyMind
            await store.publish(message(queue="last"))

            assert await last.wait(5)
            assert not await bell.wait(0)


class TestManyThreads:
    async def test_publish_through_one_store_at_once_and_nothing_is_lost(
        self, store: SQLiteStore, blocking_engine: Engine
    ) -> None:
        begin_immediate(blocking_engine)

        def publish(name: str) -> None:
            for number in range(20):
                with Session(blocking_engine) as session, session.begin():
                    at_once(
                        store.publish(message(f"{name} {number}".encode()), transaction=Blocking(session))
                    )

        await asyncio.gather(*(asyncio.to_thread(publish, name) for name in "abcd"))

        expected = {f"{name} {number}".encode() for name in "abcd" for number in range(20)}
        assert set(bodies(await store.peek(limit=1000))) == expected

    async def test_statements_go_through_sqlalchemy_so_that_its_listeners_see_them(
        self, store: SQLiteStore, blocking_engine: Engine
    ) -> None:
        seen: list[str] = []

        @event.listens_for(blocking_engine, "before_cursor_execute")
        def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            seen.append(statement)

        with Session(blocking_engine) as session, session.begin():
            at_once(store.publish(message(), transaction=Blocking(session)))

        assert any(statement.startswith("INSERT INTO") for statement in seen)


async def watched(store: SQLiteStore) -> None:
    """Until the thread watches: the first look after a bell was hung rings all, whatever was written."""
    await store._runtime.writer.read(lambda connection: None)
