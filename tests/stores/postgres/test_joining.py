"""A caller's transaction on Postgres, in everything it may live in."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from nightmail.stores.postgres import PostgresStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, QUEUE, message
from tests.stores.postgres.support import CALLERS, connection, open_store, raw_connection, watched_store
from tests.stores.shared.backend import Begin
from tests.stores.shared.joining import Joining
from tests.stores.shared.overtaking import Overtaking

pytestmark = pytest.mark.postgres


class TestJoining(Joining):
    @pytest.fixture(params=CALLERS.values(), ids=list(CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> Begin:
        begin: Begin = request.param
        return begin


class TestOvertaking(Overtaking):
    """On this store."""


# ------------------------------------------------------------------------------------ what is joined


async def test_publishing_in_a_transaction_needs_no_connection_of_ours_and_one_statement(
    postgres_url: str,
) -> None:
    async with watched_store(postgres_url) as (store, watch), raw_connection(postgres_url) as transaction:
        await store.publish(message(), transaction=transaction)
        # The driver asks the server once for each type of array.
        await store.publish_batch([message(), message()], transaction=transaction)
        await watch.sent()
        theirs: list[str] = []
        transaction.add_query_logger(lambda record: theirs.append(record.query))

        await store.publish(message(), transaction=transaction)
        await store.publish(message(timer_id="t"), transaction=transaction)
        await store.publish(message(timer_id="t", on_conflict="replace"), transaction=transaction)
        await store.publish_batch([message(), message()], transaction=transaction)

        assert await watch.sent() == []
        assert len(theirs) == 4


async def test_a_connection_that_a_pool_lends_again_is_not_asked_again_whether_it_sees_our_tables(
    postgres_url: str,
) -> None:
    theirs: list[str] = []
    async with (
        open_store(postgres_url) as store,
        asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool,
    ):
        for _ in range(2):
            async with pool.acquire() as own, own.transaction():
                await store.publish(message(), transaction=own)

        async with pool.acquire() as own, own.transaction():
            own.add_query_logger(lambda record: theirs.append(record.query))
            await store.publish(message(), transaction=own)
            await asyncio.sleep(0)
            assert len(theirs) == 1


async def test_a_day_has_twenty_four_hours_whatever_the_time_zone_of_the_session(postgres_url: str) -> None:
    clock = ManualClock()
    # Summer time begins in between: by the calendar of the session this would be an hour less.
    half_a_year = timedelta(days=182)
    async with open_store(postgres_url, clock=clock) as store, connection(postgres_url) as own:
        await own.execute("set timezone to 'Europe/Berlin'")
        async with own.transaction():
            batched = message(due=half_a_year, expires_in=half_a_year * 2)
            await store.publish(batched, transaction=own)
            await store.publish(message(due=half_a_year, timer_id="t"), transaction=own)
            await store.publish(
                message(due=half_a_year, timer_id="u", on_conflict="replace"), transaction=own
            )
            await store.publish(message(due=HOUR, timer_id="moved"), transaction=own)
            await store.reschedule(QUEUE, "moved", half_a_year, transaction=own)

        pending = await store.peek()
        assert [found.due_at - clock.now() for found in pending] == [half_a_year] * 4
        assert pending[0].expires_at == clock.now() + half_a_year * 2


# ------------------------------------------------------------------------------------- on our own


async def test_a_cancel_of_all_commits_portion_by_portion_so_that_no_time_out_ends_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresStore, "_cancels_at_once", 10)
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish_batch([message() for _ in range(25)])
        await store.publish_batch([message(ordering_key="k") for _ in range(10)])
        await own.execute(
            """
            create table gone (xid bigint);
            create function note() returns trigger language plpgsql as
                'begin insert into public.gone values (txid_current()); return old; end';
            create trigger note before delete on nightmail_messages for each row execute function note();
            """
        )

        assert await store.cancel_all(QUEUE) == 35

        portions = await own.fetch("select count(*) as many from gone group by xid order by many")
        assert [each["many"] for each in portions] == [5, 10, 10, 10]


# ------------------------------------------------------------------------------ two at the same time
