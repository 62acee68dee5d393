"""Rows that the server refuses, by a constraint or a trigger of the user's: the others are written."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import asyncpg
import pytest

from nightmail.errors import Refused
from nightmail.message import Message
from nightmail.outcome import Dead, WriteResult
from nightmail.store import Blocking, Settlement
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import message
from tests.stores.postgres.support import CALLERS, connection, open_store
from tests.stores.postgres.sync import BLOCKING_CALLERS
from tests.stores.shared.backend import Begin, BeginBlocking
from tests.stores.shared.refused_rows import SECRET, RefusedRows, UntoldInTransactions, assert_untold
from tests.stores.support import bury, claim

pytestmark = pytest.mark.postgres


class TestRefusedRows(RefusedRows):
    """On this store."""


class TestUntoldInTransactions(UntoldInTransactions):
    @pytest.fixture(params=CALLERS.values(), ids=list(CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> Begin:
        begin: Begin = request.param
        return begin


async def refuse_every_row(url: str, *tables: str) -> None:
    """By a constraint. Unlike the error of a trigger, the server's error then quotes the whole row, as its DETAIL."""
    async with connection(url) as own:
        for table in tables or ("nightmail_messages",):
            await own.execute(f"alter table {table} add constraint refused check (false) not valid")


def assert_refused_and_untold(error: BaseException) -> None:
    assert '"refused"' in str(error)
    assert_untold(error)


IN_THE_BODY = message(SECRET.encode())
IN_ITS_NAMES = message(b"", timer_id=SECRET, ordering_key=SECRET, headers={"token": SECRET})
# A name may have several lines, and so may a DETAIL.
BEHIND_A_NEW_LINE = message(b"", timer_id=f"timer\n{SECRET}", ordering_key=f"key\n\nDETAIL: {SECRET}")


@pytest.fixture(
    params=[IN_THE_BODY, IN_ITS_NAMES, BEHIND_A_NEW_LINE], ids=["body", "names", "names of several lines"]
)
def secret(request: pytest.FixtureRequest) -> Message:
    """A message with the secret somewhere in it."""
    secret: Message = request.param
    return secret


class TestRowsThatAConstraintRefuses:
    async def test_a_publish_tells_nothing_of_the_row(
        self, postgres_url: str, caplog: pytest.LogCaptureFixture, secret: Message
    ) -> None:
        async with open_store(postgres_url) as store:
            await refuse_every_row(postgres_url)
            with pytest.raises(Refused) as alone:
                await store.publish(secret)
            with pytest.raises(Refused) as batch:
                await store.publish_batch([replace(secret, timer_id=None)])

        for raised in (alone, batch):
            assert_refused_and_untold(raised.value)
            assert isinstance(raised.value.__cause__, asyncpg.CheckViolationError)
        assert SECRET not in caplog.text

    async def test_a_settlement_and_a_redrive_tell_nothing_of_the_row(
        self, postgres_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with open_store(postgres_url) as store:
            letters = await bury(store, SECRET.encode())
            await store.publish(IN_ITS_NAMES)
            deliveries = await claim(store)
            await refuse_every_row(postgres_url, "nightmail_messages", "nightmail_dead")

            results = await store.settle([Settlement(each, Dead("rejected")) for each in deliveries])
            with pytest.raises(Refused) as raised:
                await store.redrive(letters)

        assert results == [WriteResult.BUSY]
        assert "refuses to settle" in caplog.text
        assert SECRET not in caplog.text
        assert SECRET.encode().hex() not in caplog.text
        assert_refused_and_untold(raised.value)

    @pytest.mark.parametrize("begin", CALLERS.values(), ids=list(CALLERS))
    async def test_a_publish_in_a_callers_transaction_tells_nothing_of_the_row(
        self, postgres_url: str, begin: Begin, secret: Message
    ) -> None:
        async with open_store(postgres_url) as store:
            await refuse_every_row(postgres_url)
            with pytest.raises(Exception, match="refused") as raised:
                async with begin(postgres_url) as transaction:
                    await store.publish(secret, transaction=transaction)

            assert_refused_and_untold(raised.value)

    @pytest.mark.parametrize("begin", BLOCKING_CALLERS.values(), ids=list(BLOCKING_CALLERS))
    async def test_a_publish_in_a_transaction_of_synchronous_code_tells_nothing_of_the_row(
        self, postgres_url: str, begin: BeginBlocking, secret: Message
    ) -> None:
        async with open_store(postgres_url) as store:
            await refuse_every_row(postgres_url)
            with (
                pytest.raises(Exception, match="refused") as raised,
                begin(postgres_url) as session,
            ):
                at_once(store.publish(secret, transaction=Blocking(session)))

            assert_refused_and_untold(raised.value)


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
