"""What cannot carry a message is refused before anything is written, and what is refused stays secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail.errors import NightmailError, OtherDatabase
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.conformance.build import bodies, message
from tests.stores.shared.backend import Begin
from tests.stores.shared.refusals import Refusals
from tests.stores.sqlite.support import CALLERS

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
