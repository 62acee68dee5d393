"""A caller's transaction, in everything it may live in: what is done in it commits and rolls back with it."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from nightmail.errors import TimerExists
from nightmail.outcome import WriteResult
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, bodies, message
from tests.stores.shared.backend import Begin, ChangedMyMind, SqlBackend
from tests.stores.support import claim, done


class Joining:
    """Override `begin`, with a parameter for each kind of transaction."""

    @pytest.fixture
    def begin(self) -> Begin:
        raise NotImplementedError

    async def test_what_was_published_commits_with_the_transaction(
        self, backend: SqlBackend, begin: Begin
    ) -> None:
        async with backend.opened() as store:
            async with begin(backend.url) as transaction:
                id_ = await store.publish(message(b"one"), transaction=transaction)
                ids = await store.publish_batch([message(b"two"), message(b"three")], transaction=transaction)
                assert await store.publish(message(b"four", timer_id="t"), transaction=transaction)
                assert await store.publish(message(b"five", timer_id="t"), transaction=transaction) is None
                with pytest.raises(TimerExists):
                    await store.publish(
                        message(b"six", timer_id="t", on_conflict="raise"), transaction=transaction
                    )
                assert await claim(store) == []

            deliveries = await claim(store)
            assert bodies(deliveries) == [b"one", b"two", b"three", b"four"]
            assert [delivery.id for delivery in deliveries[:3]] == [id_, *ids]

    async def test_what_was_published_rolls_back_with_the_transaction(
        self, backend: SqlBackend, begin: Begin
    ) -> None:
        async with backend.opened() as store:
            with pytest.raises(ChangedMyMind):
                async with begin(backend.url) as transaction:
                    await store.publish(message(), transaction=transaction)
                    await store.publish(message(timer_id="t", on_conflict="replace"), transaction=transaction)
                    raise ChangedMyMind

            assert await claim(store) == []
            assert await store.publish(message(timer_id="t")) is not None

    async def test_an_ack_commits_and_rolls_back_with_the_transaction(
        self, backend: SqlBackend, begin: Begin
    ) -> None:
        async with backend.opened() as store:
            await store.publish(message())
            deliveries = await claim(store)
            with pytest.raises(ChangedMyMind):
                async with begin(backend.url) as transaction:
                    await store.hold(deliveries, transaction=transaction)
                    await store.ack(deliveries, transaction=transaction)
                    raise ChangedMyMind
            assert await store.extend(deliveries, LEASE) == [WriteResult.WRITTEN]

            async with begin(backend.url) as transaction:
                await store.ack(deliveries, transaction=transaction)

            assert await store.extend(deliveries, LEASE) == [WriteResult.LOST]

    async def test_a_timer_id_that_is_taken_or_kept_by_a_window_is_skipped_in_a_transaction(
        self, backend: SqlBackend, begin: Begin
    ) -> None:
        async with backend.opened() as store:
            await store.publish(message(timer_id="taken"))
            await store.publish(message(queue="other", timer_id="kept", dedup_for=HOUR))
            await done(store, await claim(store, queue="other"))

            async with begin(backend.url) as transaction:
                assert await store.publish(message(queue="third"), transaction=transaction) is not None
                assert await store.publish(message(timer_id="taken"), transaction=transaction) is None
                kept = message(queue="other", timer_id="kept")
                assert await store.publish(kept, transaction=transaction) is None
                assert await store.publish(message(timer_id="free"), transaction=transaction) is not None

            assert [found.timer_id for found in await store.peek()] == ["taken", None, "free"]

    async def test_a_session_that_was_not_begun_is_in_a_transaction_once_it_is_used(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store, AsyncSession(backend.engine()) as session:
            await store.publish(message(b"dropped"), transaction=session)
            await session.rollback()
            await store.publish(message(b"kept"), transaction=session)
            assert session.in_transaction()
            assert await claim(store) == []
            await session.commit()

            assert bodies(await claim(store)) == [b"kept"]

    async def test_a_connection_that_was_not_begun_is_in_a_transaction_once_it_is_used(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store, backend.engine().connect() as connection:
            await store.publish(message(b"dropped"), transaction=connection)
            await connection.rollback()
            await store.publish(message(b"kept"), transaction=connection)
            await connection.commit()

            assert bodies(await claim(store)) == [b"kept"]

    async def test_a_savepoint_of_the_caller_is_honoured(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            async with backend.transaction() as transaction:
                await store.publish(message(b"kept"), transaction=transaction)
                await backend.execute(transaction, "savepoint mine")
                await store.publish(message(b"dropped"), transaction=transaction)
                await backend.execute(transaction, "rollback to savepoint mine")

            assert bodies(await claim(store)) == [b"kept"]

    async def test_what_is_not_committed_is_seen_in_its_own_transaction_only(
        self, backend: SqlBackend, begin: Begin
    ) -> None:
        async with backend.opened() as store, begin(backend.url) as transaction:
            await store.publish(message(b"mine"), transaction=transaction)

            assert bodies(await store.peek(QUEUE, transaction=transaction)) == [b"mine"]
            assert await store.peek(QUEUE) == []
