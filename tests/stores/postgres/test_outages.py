"""A server that restarts, connections that die, replies that are lost: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.stores.postgres.support import backends, connection, open_store
from tests.stores.shared.outages import Outages
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.postgres


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


async def cut_off(url: str, role: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """What comes of this when its connection dies after it was sent and before it was answered."""
    async with connection(url) as own:
        await own.execute(DOZE)
        task = asyncio.ensure_future(work())
        await until(lambda: dozing(own, role))
        (pid,) = await backends(own, role)
        await own.fetchval("select pg_terminate_backend($1)", pid)
        await asyncio.wait([task])
        await own.execute(WAKE)
    return task.exception() or task.result()


# ----------------------------------------------------------------------------------------- restart


# ------------------------------------------------------------------------------------ lost replies


@pytest.mark.parametrize(
    ("role", "verb"),
    [
        pytest.param("publish", lambda store: store.publish(message()), id="publish"),
        pytest.param("timers", lambda store: store.publish(message(timer_id="t")), id="timer"),
        pytest.param(
            "timers",
            lambda store: store.publish(message(timer_id="t", on_conflict="replace")),
            id="replacement",
        ),
        pytest.param("publish", lambda store: store.publish_batch([message()]), id="batch"),
    ],
)
async def test_a_publish_whose_reply_was_lost_is_uncertain(
    postgres_url: str, role: str, verb: Callable[[PostgresStore], Awaitable[Any]]
) -> None:
    async with open_store(postgres_url) as store:
        assert isinstance(await cut_off(postgres_url, role, lambda: verb(store)), PublishUncertain)

        assert await store.publish(message(b"and on")) is not None


async def test_publishers_that_shared_a_commit_are_each_told_that_it_is_uncertain(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:

        async def all_of_them() -> list[Any]:
            publishers = (store.publish(message()) for _ in range(5))
            return await asyncio.gather(*publishers, return_exceptions=True)

        results = await cut_off(postgres_url, "publish", all_of_them)

        assert [type(result) for result in results] == [PublishUncertain] * 5
        assert len({id(result) for result in results}) == 5


async def test_a_claim_whose_reply_was_lost_can_be_recalled(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        await store.publish_batch([message(b"a"), message(b"b")])
        await claim(store, queue="other")
        token = uuid4()

        async def take() -> Any:
            return await store.claim([QUEUE], limit=2, lease=LEASE, token=token)

        assert isinstance(await cut_off(postgres_url, "claim", take), StoreUnavailable)
        assert await store.recall([QUEUE], token) == 0
        assert len((await take()).deliveries) == 2
        assert await store.recall([QUEUE], token) == 2


async def test_a_settlement_repeated_after_a_lost_reply_is_unknown_and_not_lost(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        await store.publish_batch([message(b"a"), message(b"b")])
        a, b = await claim(store)
        await done(store, [a])

        again = [Settlement(a, Done(), repeated=True), Settlement(b, Retry(), repeated=True)]

        assert await store.settle(again) == [WriteResult.UNKNOWN, WriteResult.WRITTEN]


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


async def test_a_batch_with_a_locked_row_settles_the_others(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish_batch([message(b"%d" % n) for n in range(20)])
        deliveries: list[Delivery] = await claim(store, limit=20)
        async with own.transaction():
            await own.execute("select 1 from nightmail_messages where id = $1 for update", deliveries[7].id)

            results = await store.settle(
                [Settlement(delivery, Done() if n % 2 else Retry()) for n, delivery in enumerate(deliveries)]
            )

        assert [n for n, result in enumerate(results) if result is not WriteResult.WRITTEN] == [7]
        assert results[7] is WriteResult.BUSY
        assert await store.settle([Settlement(deliveries[7], Done())]) == [WriteResult.WRITTEN]


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
