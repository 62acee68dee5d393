"""Rows that the server refuses, by a constraint or a trigger of the user's: the others are written."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import asyncpg
import pytest

from nightmail.errors import NightmailError, Refused
from nightmail.outcome import Dead, WriteResult
from nightmail.store import Settlement
from nightmail.testing.conformance.build import message
from tests.stores.postgres.support import CALLERS, connection, open_store
from tests.stores.support import claim

pytestmark = pytest.mark.postgres

Begin: TypeAlias = Callable[[str], AbstractAsyncContextManager[Any]]

SECRET = "4711-secret"


def trigger(table: str, body: str) -> str:
    """A trigger that does this with a row whose body is `bad`."""
    return f"""
        create function judge() returns trigger language plpgsql as $$
        begin if new.body = 'bad' then {body} end if; return new; end $$;
        create trigger judge before insert on {table} for each row execute function judge();
    """


RAISES = "raise exception 'no such customer';"
RAISES_ODDLY = "raise exception 'no' using errcode = 'ZZ999';"
LEAVES_OUT = "return null;"


@pytest.mark.parametrize("body", [RAISES, RAISES_ODDLY, LEAVES_OUT])
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


@pytest.mark.parametrize("body", [RAISES, RAISES_ODDLY])
async def test_one_refused_and_one_locked_row_do_not_fail_those_settled_with_them(
    postgres_url: str, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish_batch([message(b"bad" if n == 2 else b"%d" % n) for n in range(8)])
        deliveries = await claim(store)
        await own.execute(trigger("nightmail_dead", body))
        async with own.transaction():
            await own.execute("select 1 from nightmail_messages where id = $1 for update", deliveries[5].id)
            with caplog.at_level(logging.ERROR, logger="nightmail"):
                results = await store.settle(
                    [Settlement(delivery, Dead("rejected")) for delivery in deliveries]
                )

        held, busy = WriteResult.WRITTEN, WriteResult.BUSY
        assert results == [held, held, busy, held, held, busy, held, held]
        assert len(caplog.records) == 1


# ------------------------------------------------------------------------------ what errors must not tell


async def test_a_refused_row_is_not_told_in_the_error(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute("alter table nightmail_messages add constraint small check (length(body) < 3)")
        for attempt in (
            store.publish(message(SECRET.encode(), headers={"token": SECRET})),
            store.publish(message(SECRET.encode(), timer_id=SECRET)),
            store.publish_batch([message(SECRET.encode(), ordering_key=SECRET)]),
        ):
            with pytest.raises(Refused, match="small") as raised:
                await attempt
            assert SECRET not in told(raised.value)
            assert SECRET.encode().hex() not in told(raised.value)


@pytest.mark.parametrize("begin", CALLERS.values(), ids=list(CALLERS))
async def test_a_row_refused_in_a_callers_transaction_is_not_told_in_the_error(
    postgres_url: str, begin: Begin
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute("alter table nightmail_messages add constraint small check (length(body) < 3)")

        with pytest.raises(Exception, match="small") as raised:
            async with begin(postgres_url) as transaction:
                await store.publish(
                    message(SECRET.encode(), headers={"token": SECRET}), transaction=transaction
                )

        # The caller's own error, as their driver raises it.
        assert not isinstance(raised.value, NightmailError)
        assert SECRET not in told(raised.value)
        assert SECRET.encode().hex() not in told(raised.value)


def told(error: BaseException) -> str:
    """All that a log would show of it."""
    return repr(error) + "".join(traceback.format_exception(error))
