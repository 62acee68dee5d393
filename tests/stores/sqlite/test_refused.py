"""What cannot carry a message is refused before anything is written, and what is refused stays secret."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import aiosqlite
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from nightmail.errors import CannotJoin, NightmailError, NotInTransaction, OtherDatabase
from nightmail.stores.sqlite import SQLiteStore
from nightmail.stores.sqlite.errors import Refused
from tests.stores.sqlite.support import bodies, has_arrived, locked, message

pytestmark = pytest.mark.sqlite


class TestWhatIsRefused:
    async def refused(self, store: SQLiteStore, transaction: object, error: type[NightmailError]) -> None:
        with pytest.raises(error):
            await store.publish(message(), transaction=transaction)
        assert await store.peek() == []

    async def test_a_session_of_another_file(self, store: SQLiteStore, tmp_path: Path) -> None:
        other = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'other.db'}")
        async with AsyncSession(other) as session:
            await self.refused(store, session, OtherDatabase)
        await other.dispose()

    async def test_a_session_of_a_file_that_is_gone(self, store: SQLiteStore, tmp_path: Path) -> None:
        gone = tmp_path / "gone.db"
        other = create_async_engine(f"sqlite+aiosqlite:///{gone}")
        async with AsyncSession(other) as session:
            _ = await session.connection()
            gone.unlink()
            await self.refused(store, session, OtherDatabase)
        await other.dispose()

    async def test_a_session_of_another_kind_of_database(self, store: SQLiteStore) -> None:
        class Elsewhere(AsyncConnection):
            closed = False
            sync_connection = None
            dialect = create_async_engine("postgresql+asyncpg://localhost/shop").dialect

            def __init__(self) -> None:
                """Never connected."""

        with pytest.raises(OtherDatabase, match="postgresql"):
            await store.publish(message(), transaction=Elsewhere())

    async def test_a_session_in_memory(self, store: SQLiteStore) -> None:
        other = create_async_engine("sqlite+aiosqlite://")
        async with AsyncSession(other) as session:
            await self.refused(store, session, OtherDatabase)
        await other.dispose()

    async def test_the_same_file_by_another_path_is_not_refused(
        self, store: SQLiteStore, file: Path, tmp_path: Path
    ) -> None:
        link = tmp_path / "link.db"
        link.symlink_to(file)
        # SQLite keeps the log beside the file that the link leads to, so both are one database.
        engine = create_async_engine(f"sqlite+aiosqlite:///{link}")
        async with AsyncSession(engine) as session, session.begin():
            await store.publish(message(), transaction=session)
        await engine.dispose()

        assert bodies(await store.peek()) == [b"hello"]

    async def test_an_engine_that_commits_by_itself(self, store: SQLiteStore, file: Path) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{file}", isolation_level="AUTOCOMMIT")
        async with AsyncSession(engine) as session:
            await self.refused(store, session, NotInTransaction)
        await engine.dispose()

    async def test_a_connection_set_to_commit_by_itself(
        self, store: SQLiteStore, engine: AsyncEngine
    ) -> None:
        async with engine.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            await self.refused(store, connection, NotInTransaction)

    async def test_a_connection_of_the_driver_that_is_closed(self, store: SQLiteStore, file: Path) -> None:
        async with aiosqlite.connect(file) as connection:
            pass
        await self.refused(store, connection, NotInTransaction)

    async def test_a_synchronous_connection(self, store: SQLiteStore, file: Path) -> None:
        connection = sqlite3.connect(file)
        await self.refused(store, connection, CannotJoin)
        connection.close()

    async def test_an_engine(self, store: SQLiteStore, engine: AsyncEngine) -> None:
        await self.refused(store, engine, CannotJoin)


class TestSecrets:
    async def test_an_error_in_a_session_does_not_show_the_message(
        self, store: SQLiteStore, engine: AsyncEngine, file: Path
    ) -> None:
        connection = sqlite3.connect(file)
        connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON nightmail_messages BEGIN SELECT raise(ABORT, 'no'); END"
        )
        connection.close()

        async with AsyncSession(engine) as session:
            with pytest.raises(NightmailError) as raised:
                await store.publish(
                    message(b"s3cret body", headers={"key": "s3cret header"}), transaction=session
                )

        shown = repr(raised.value) + repr(raised.value.__cause__) + repr(raised.value.__context__)
        assert "s3cret" not in shown


class TestOthersInTheSameCommit:
    @pytest.mark.parametrize("how", ["ABORT", "FAIL", "ROLLBACK"])
    async def test_a_refused_message_fails_alone(self, store: SQLiteStore, file: Path, how: str) -> None:
        connection = sqlite3.connect(file)
        connection.execute(
            f"CREATE TRIGGER refuse BEFORE INSERT ON nightmail_messages WHEN new.body = x'00'"
            f" BEGIN SELECT raise({how}, 'no'); END"
        )
        connection.close()

        with locked(file):
            publishing = [
                asyncio.create_task(store.publish(message(body))) for body in (b"a", b"\0", b"b", b"\0", b"c")
            ]
            await asyncio.sleep(0)
            await has_arrived(store._runtime.writer)

        answers = await asyncio.gather(*publishing, return_exceptions=True)
        assert [isinstance(answer, Refused) for answer in answers] == [False, True, False, True, False]
        assert bodies(await store.peek()) == [b"a", b"b", b"c"]


class TestAPoolWhoseListenersBeginTransactions:
    async def test_a_store_of_such_an_engine_has_connections_of_its_own(
        self, store: SQLiteStore, file: Path
    ) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
        event.listen(engine.sync_engine, "connect", lambda connection, _: connection.execute("BEGIN"))
        own = SQLiteStore(engine)
        await own.open()
        await own.publish(message(b"stored"))
        await own.close()
        await engine.dispose()

        assert bodies(await store.peek()) == [b"stored"]

    @pytest.mark.parametrize("moment", ["connect", "checkout"])
    async def test_a_session_of_such_an_engine_carries_messages_to_its_commit(
        self, store: SQLiteStore, file: Path, moment: str
    ) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
        event.listen(engine.sync_engine, moment, lambda connection, *_: connection.execute("BEGIN"))

        async with AsyncSession(engine) as session:
            await store.publish(message(b"stored"), transaction=session)
            assert await store.peek() == []
            await session.commit()
        await engine.dispose()

        assert bodies(await store.peek()) == [b"stored"]
