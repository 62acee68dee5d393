"""What cannot carry a message is refused before anything is written, and what is refused stays secret."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from nightmail.errors import NightmailError, OtherDatabase
from nightmail.stores.sqlite import SQLiteStore
from nightmail.stores.sqlite.errors import Refused
from nightmail.testing.conformance.build import bodies, message
from tests.stores.shared.backend import Begin
from tests.stores.shared.refusals import Refusals
from tests.stores.sqlite.support import CALLERS, has_arrived, locked

pytestmark = pytest.mark.sqlite


class TestRefusals(Refusals):
    @pytest.fixture(params=CALLERS.values(), ids=list(CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> Begin:
        begin: Begin = request.param
        return begin


class TestWhatIsRefused:
    async def refused(self, store: SQLiteStore, transaction: object, error: type[NightmailError]) -> None:
        with pytest.raises(error):
            await store.publish(message(), transaction=transaction)
        assert await store.peek() == []

    async def test_a_session_of_a_file_that_is_gone(self, store: SQLiteStore, tmp_path: Path) -> None:
        gone = tmp_path / "gone.db"
        other = create_async_engine(f"sqlite+aiosqlite:///{gone}")
        async with AsyncSession(other) as session:
            _ = await session.connection()
            gone.unlink()
            await self.refused(store, session, OtherDatabase)
        await other.dispose()

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
