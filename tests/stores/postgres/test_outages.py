"""A server that restarts, connections that die, replies that are lost: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.outcome import WriteResult
from nightmail.testing.conformance.build import message
from tests.stores.postgres.support import PostgresBackend, backends, connection, open_store
from tests.stores.shared.lost_replies import LostReplies, What
from tests.stores.shared.outages import Outages
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.postgres


class TestLostReplies(LostReplies):
    carried_out = False

    @asynccontextmanager
    async def reply_lost(self, backend: PostgresBackend, what: What) -> AsyncIterator[None]:
        role = "timers" if what == "timer" else what
        async with connection(backend.url) as own:
            await own.execute(DOZE)
            ended = asyncio.create_task(end_dozing(own, role))
            yield
            await ended
            await own.execute(WAKE)


class TestOutages(Outages):
    """On this store."""


DOZE = """
    create function public.doze() returns trigger language plpgsql as $$
    begin perform pg_sleep(60); return null; end $$;
    create trigger doze before insert or update or delete on nightmail_messages
        for each statement execute function public.doze();
"""
WAKE = "drop trigger doze on nightmail_messages; drop function public.doze"


async def dozing(own: Any, role: str) -> bool:
    """Whether a statement on the connection of this role is under way."""
    found = await own.fetchval(
        "select count(*) from pg_stat_activity where application_name = $1 and wait_event = 'PgSleep'",
        f"nightmail {role}",
    )
    return bool(found)


async def end_dozing(own: Any, role: str) -> None:
    """End the connection of this role once its statement is under way."""
    await until(lambda: dozing(own, role))
    (pid,) = await backends(own, role)
    await own.fetchval("select pg_terminate_backend($1)", pid)


# ----------------------------------------------------------------------------------------- restart


# ------------------------------------------------------------------------------------ lost replies


# ---------------------------------------------------------------------------------- whole tables


async def test_a_locked_table_makes_settlements_busy_and_claims_unavailable(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish(message())
        deliveries = await claim(store)
        async with own.transaction():
            await own.execute("lock table nightmail_messages in exclusive mode")

            assert await done(store, deliveries) == [WriteResult.BUSY]
            with pytest.raises(StoreUnavailable):
                await claim(store)

        assert await done(store, deliveries) == [WriteResult.WRITTEN]


async def test_a_read_only_server_is_unavailable_and_left(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish(message())
        database = await own.fetchval("select current_database()")
        await own.execute(f'alter database "{database}" set default_transaction_read_only to on')
        for pid in await backends(own):
            await own.fetchval("select pg_terminate_backend($1)", pid)
        try:
            with pytest.raises(StoreUnavailable):
                await claim(store)
        finally:
            await own.execute(f'alter database "{database}" reset default_transaction_read_only')

        # A connection to a server that may not write is not kept.
        assert len(await claim(store)) == 1
