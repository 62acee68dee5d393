"""Rows that the server refuses, by a constraint or a trigger of the user's: the others are written."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import pytest

from nightmail.errors import Refused
from nightmail.outcome import Dead, WriteResult
from nightmail.store import Settlement
from nightmail.testing.conformance.build import message
from tests.stores.postgres.support import CALLERS, connection, open_store
from tests.stores.shared.backend import Begin
from tests.stores.shared.refused_rows import RefusedRows, UntoldInTransactions
from tests.stores.support import claim

pytestmark = pytest.mark.postgres


class TestRefusedRows(RefusedRows):
    """On this store."""


class TestUntoldInTransactions(UntoldInTransactions):
    @pytest.fixture(params=CALLERS.values(), ids=list(CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> Begin:
        begin: Begin = request.param
        return begin


def trigger(table: str, body: str) -> str:
    """A trigger that does this with a row whose body is `bad`."""
    return f"""
        create function judge() returns trigger language plpgsql as $$
        begin if new.body = 'bad' then {body} end if; return new; end $$;
        create trigger judge before insert on {table} for each row execute function judge();
    """


RAISES_ODDLY = "raise exception 'no' using errcode = 'ZZ999';"
LEAVES_OUT = "return null;"


@pytest.mark.parametrize("body", [RAISES_ODDLY, LEAVES_OUT])
async def test_a_trigger_that_refuses_one_message_does_not_fail_those_published_with_it(
    postgres_url: str, body: str
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute(trigger("nightmail_messages", body))
        bodies = (b"a", b"bad", b"c", b"d", b"e")

        async with asyncio.timeout(20):
            results = await asyncio.gather(
                *(store.publish(message(each)) for each in bodies), return_exceptions=True
            )

        assert isinstance(results[1], Refused)
        assert isinstance(results[1].__cause__, asyncpg.PostgresError)
        found = {pending.body: pending.id for pending in await store.peek()}
        # Each has the id of its own message.
        assert [found.get(each) for each in bodies] == [
            None if isinstance(result, Refused) else result for result in results
        ]


async def test_a_batch_of_which_a_trigger_leaves_one_out_is_not_stored(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute(trigger("nightmail_messages", LEAVES_OUT))

        with pytest.raises(Refused):
            await store.publish_batch([message(b"a"), message(b"bad")])

        assert await store.peek() == []


async def test_one_refused_and_one_locked_row_do_not_fail_those_settled_with_them(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish_batch([message(b"bad" if n == 2 else b"%d" % n) for n in range(8)])
        deliveries = await claim(store)
        await own.execute(trigger("nightmail_dead", RAISES_ODDLY))
        async with own.transaction():
            await own.execute("select 1 from nightmail_messages where id = $1 for update", deliveries[5].id)
            with caplog.at_level(logging.ERROR, logger="nightmail"):
                results = await store.settle(
                    [Settlement(delivery, Dead("rejected")) for delivery in deliveries]
                )

        held, busy = WriteResult.WRITTEN, WriteResult.BUSY
        assert results == [held, held, busy, held, held, busy, held, held]
        assert len(caplog.records) == 1
