"""An engine of the caller's whose pool has listeners that run statements and commit nothing.

With most drivers such a statement begins a transaction. A connection that a store takes from the engine must not stay
in it: what is published there would never be committed. For every store that takes an `AsyncEngine`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
import pytest_asyncio
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from nightmail.outcome import Done, WriteResult
from nightmail.store import FullStore
from nightmail.stores import open_store
from nightmail.testing.conformance.build import (
    LEASE,
    QUEUE,
    bury,
    claim_all,
    claim_one,
    message,
    settle_one,
    stored,
    timer,
)

When = Literal["connect", "checkout"]


class EngineListeners:
    """Inherit from this and override `engine` (and `statement`, if the database wants another one)."""

    statement = "select 1"

    @pytest.fixture
    def engine(self) -> AsyncEngine:
        raise NotImplementedError

    @pytest_asyncio.fixture(params=["connect", "checkout"])
    async def store(self, engine: AsyncEngine, request: pytest.FixtureRequest) -> AsyncIterator[FullStore]:
        """A store on an engine with such a listener."""

        def listener(connection: Any, *_: Any) -> None:
            cursor = connection.cursor()
            cursor.execute(self.statement)
            cursor.close()

        store = open_store(engine)
        await store.open()
        await store.migrate()
        await store.close()
        event.listen(engine.sync_engine, request.param, listener)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @pytest_asyncio.fixture
    async def witness(self, engine: AsyncEngine) -> AsyncIterator[FullStore]:
        """Another process, on an engine without listeners: it sees what was committed."""
        from sqlalchemy.ext.asyncio import create_async_engine

        other = create_async_engine(engine.url)
        store = open_store(other)
        await store.open()
        try:
            yield store
        finally:
            await store.close()
            await other.dispose()

    async def test_what_is_published_is_committed(self, store: FullStore, witness: FullStore) -> None:
        ids = [await stored(store, message(b"%d" % number)) for number in range(3)]
        ids.append(await stored(store, timer("t", b"named")))
        ids += await store.publish_batch([message(b"batch")])

        assert sorted(found.id for found in await witness.peek()) == sorted(ids)

    async def test_what_is_claimed_and_settled_is_committed(
        self, store: FullStore, witness: FullStore
    ) -> None:
        await stored(store, message(b"first"))
        delivery = await claim_one(store)
        assert await claim_all(witness) == []
        assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]
        assert await settle_one(store, delivery, Done()) is WriteResult.WRITTEN

        assert (await witness.stats()).get(QUEUE) is None

    async def test_what_an_operator_does_is_committed(self, store: FullStore, witness: FullStore) -> None:
        await stored(store, timer("t", b"cancelled"))
        assert await store.cancel(QUEUE, "t")
        letter = await bury(store, message(b"dead"))
        await store.redrive([letter])

        assert [found.body for found in await witness.peek()] == [b"dead"]
