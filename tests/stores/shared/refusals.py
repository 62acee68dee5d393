"""What cannot be a caller's transaction, and what a refusal does to one that can: nothing."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase, SchemaMissing, TimerExists
from nightmail.outcome import WriteResult
from nightmail.testing.conformance.build import HOUR, QUEUE, bodies, message
from tests.stores.shared.backend import Begin, SqlBackend
from tests.stores.support import claim, done, opened


class Refusals:
    """Override `begin`, with a parameter for each kind of transaction."""

    @pytest.fixture
    def begin(self) -> Begin:
        raise NotImplementedError

    async def test_a_connection_outside_a_transaction_is_refused_with_what_to_do(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            for connect, words in backend.outside.values():
                async with connect(backend.url) as connection:
                    with pytest.raises(NotInTransaction, match=words):
                        await store.publish(message(), transaction=connection)
                # Closed.
                with pytest.raises(NotInTransaction):
                    await store.publish(message(), transaction=connection)
            assert await store.peek() == []

    @pytest.mark.parametrize("where", ["engine", "connection"])
    async def test_autocommit_is_refused(self, backend: SqlBackend, where: str) -> None:
        options = {"isolation_level": "AUTOCOMMIT"}
        async with backend.opened() as store:
            for driver in backend.async_drivers:
                engine = backend.engine(driver, **(options if where == "engine" else {}))
                async with engine.connect() as connection:
                    if where == "connection":
                        connection = await connection.execution_options(**options)
                    with pytest.raises(NotInTransaction, match=r"AUTOCOMMIT|by itself"):
                        await store.publish(message(), transaction=connection)
                async with AsyncSession(engine) as session:
                    if where == "connection":
                        _ = await session.connection(execution_options=options)
                    with pytest.raises(NotInTransaction, match=r"AUTOCOMMIT|by itself"):
                        await store.publish(message(), transaction=session)
            assert await store.peek() == []

    async def test_what_is_no_transaction_is_refused(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            for wrong in (backend.engine(), object(), "a transaction", backend.url):
                with pytest.raises(CannotJoin):
                    await store.publish(message(), transaction=wrong)

    async def test_a_session_of_another_kind_of_database_is_refused(self, backend: SqlBackend) -> None:
        async with backend.opened() as store, backend.foreign_session() as session:
            with pytest.raises(OtherDatabase, match=r"sqlite|postgresql"):
                await store.publish(message(), transaction=session)

    async def test_a_transaction_in_a_database_without_our_tables_is_refused(
        self, backend: SqlBackend, begin: Begin
    ) -> None:
        with backend.elsewhere() as elsewhere:
            async with backend.opened() as store, begin(elsewhere.url) as transaction:
                for _ in range(2):
                    # Refused, and yet the transaction goes on: the second time is no other than the first.
                    with pytest.raises(OtherDatabase):
                        await store.publish(message(), transaction=transaction)

    async def test_a_transaction_in_another_database_with_such_tables_is_refused_and_goes_on(
        self, backend: SqlBackend, begin: Begin
    ) -> None:
        with backend.elsewhere() as elsewhere:
            async with backend.opened() as store, elsewhere.opened() as other:
                async with begin(elsewhere.url) as transaction:
                    with pytest.raises(OtherDatabase):
                        await store.publish(message(), transaction=transaction)
                    await other.publish(message(b"first", timer_id="t"), transaction=transaction)
                    with pytest.raises(TimerExists):
                        await other.publish(
                            message(timer_id="t", on_conflict="raise"), transaction=transaction
                        )
                    with pytest.raises(OtherDatabase):
                        await store.publish(message(), transaction=transaction)
                    await other.publish(message(b"second"), transaction=transaction)

                assert bodies(await other.peek()) == [b"first", b"second"]
                assert await store.peek() == []

    async def test_no_verb_writes_into_another_database_that_has_tables_like_ours(
        self, backend: SqlBackend
    ) -> None:
        with backend.elsewhere() as elsewhere:
            async with backend.opened() as store, elsewhere.opened() as other:
                await store.publish(message())
                await other.publish(message(b"theirs", timer_id="t"))
                deliveries = await claim(store)
                async with elsewhere.transaction() as transaction:
                    for attempt in (
                        store.publish(message(), transaction=transaction),
                        store.publish(message(timer_id="new"), transaction=transaction),
                        store.publish(message(timer_id="t", on_conflict="replace"), transaction=transaction),
                        store.publish_batch([message()], transaction=transaction),
                        store.hold(deliveries, transaction=transaction),
                        store.ack(deliveries, transaction=transaction),
                        store.cancel(QUEUE, "t", transaction=transaction),
                        store.cancel_all(QUEUE, transaction=transaction),
                        store.reschedule(QUEUE, "t", HOUR, transaction=transaction),
                        store.peek(transaction=transaction),
                    ):
                        with pytest.raises(OtherDatabase):
                            await attempt
                    # Refused, and yet the caller's transaction goes on.
                    await backend.execute(transaction, "select 1")

                assert bodies(await claim(other)) == [b"theirs"]
                assert await done(store, deliveries) == [WriteResult.WRITTEN]

    async def test_tables_that_were_made_again_are_recognised(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            async with backend.transaction() as transaction:
                await store.publish(message(b"before"), transaction=transaction)
            await backend.run(backend.new_identity)

            async with backend.transaction() as transaction:
                await store.publish(message(b"after"), transaction=transaction)

            assert bodies(await claim(store)) == [b"before", b"after"]

    async def test_without_tables_a_transaction_is_told_so_and_goes_on(self, backend: SqlBackend) -> None:
        async with (
            opened(backend.store(), migrate=False) as store,
            backend.transaction() as transaction,
        ):
            with pytest.raises(SchemaMissing):
                await store.publish(message(), transaction=transaction)
            await backend.execute(transaction, "select 1")
