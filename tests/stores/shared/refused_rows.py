"""Rows that the server refuses, by a constraint or a trigger of the user's: the others are written, none is told."""

from __future__ import annotations

import asyncio
import traceback
from typing import Final

import pytest

from nightmail.errors import NightmailError
from nightmail.outcome import Dead, Done, Outcome, WriteResult
from nightmail.testing.conformance.build import message
from tests.stores.shared.backend import Begin, SqlBackend
from tests.stores.support import claim, settle

SECRET: Final = "4711-secret"


def assert_untold(error: BaseException) -> None:
    """Nothing that a log would show of it has the secret in it."""
    told = repr(error) + "".join(traceback.format_exception(error))
    assert SECRET not in told
    assert SECRET.encode().hex() not in told


class RefusedRows:
    """For stores in which users may have triggers."""

    async def test_a_message_that_the_server_refuses_does_not_fail_those_published_with_it(
        self, backend: SqlBackend
    ) -> None:
        async with backend.opened() as store:
            await backend.refuse("bad")
            published = (b"a", b"bad", b"c", b"d", b"e")

            results = await asyncio.gather(
                *(store.publish(message(body)) for body in published), return_exceptions=True
            )

            assert isinstance(results[1], backend.refused)
            assert results[1].__cause__ is not None
            found = {pending.body: pending.id for pending in await store.peek()}
            # Each has the id of its own message.
            assert [found.get(body) for body in published] == [
                None if isinstance(result, BaseException) else result for result in results
            ]

    async def test_a_batch_of_which_the_server_refuses_one_is_not_stored(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            await backend.refuse("bad")

            with pytest.raises(backend.refused):
                await store.publish_batch([message(b"a"), message(b"bad")])

            assert await store.peek() == []

    @pytest.mark.parametrize(
        ("outcome", "on", "table"), [(Done(), "delete", "messages"), (Dead("rejected"), "insert", "dead")]
    )
    async def test_a_settlement_that_the_server_refuses_does_not_fail_its_neighbours(
        self, backend: SqlBackend, outcome: Outcome, on: str, table: str
    ) -> None:
        async with backend.opened() as store:
            await store.publish_batch([message(b"%d" % n) for n in range(8)])
            deliveries = await claim(store)
            await backend.refuse("3", on=on, table=table)

            results = await settle(store, deliveries, outcome)

            assert [n for n, result in enumerate(results) if result is not WriteResult.WRITTEN] == [3]
            assert results[3] is WriteResult.BUSY

    async def test_a_row_that_the_server_refuses_is_not_told_in_the_error(self, backend: SqlBackend) -> None:
        async with backend.opened() as store:
            await backend.refuse(SECRET)
            for attempt in (
                store.publish(message(SECRET.encode(), headers={"token": SECRET})),
                store.publish(message(SECRET.encode(), timer_id=SECRET)),
                store.publish_batch([message(SECRET.encode(), ordering_key=SECRET)]),
            ):
                with pytest.raises(backend.refused) as raised:
                    await attempt
                assert_untold(raised.value)


class UntoldInTransactions:
    """Override `begin`, with a parameter for each kind of transaction."""

    @pytest.fixture
    def begin(self) -> Begin:
        raise NotImplementedError

    async def test_a_row_refused_in_a_callers_transaction_is_not_told_in_the_error(
        self, backend: SqlBackend, begin: Begin
    ) -> None:
        async with backend.opened() as store:
            await backend.refuse(SECRET)
            refused = message(SECRET.encode(), headers={"token": SECRET})

            with pytest.raises(Exception, match="no") as raised:
                async with begin(backend.url) as transaction:
                    await store.publish(refused, transaction=transaction)

            assert_untold(raised.value)
            assert isinstance(raised.value, NightmailError) == backend.own_errors_in_transactions
