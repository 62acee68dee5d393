"""A server that restarts, connections that die, replies that are lost: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore
from testkit.servers import Postgres
from tests.stores.postgres.support import (
    LEASE,
    QUEUE,
    backends,
    claim,
    connection,
    done,
    message,
    open_store,
    until,
)

pytestmark = pytest.mark.postgres


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


async def works(store: PostgresStore) -> bool:
    """Whether the server answers again."""
    try:
        await store.ping()
    except StoreUnavailable:
        return False
    return True


# ----------------------------------------------------------------------------------------- restart


async def test_a_server_that_was_killed_and_started_again_is_used_again(
    postgres_server: Postgres, postgres_url: str
) -> None:
    async with open_store(postgres_url) as store:
        await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
        held = await claim(store, limit=2)
        with store.listen([QUEUE]) as bell:
            await until(lambda: store.listening)

            await asyncio.to_thread(postgres_server.kill)
            for verb in (
                lambda: store.publish(message()),
                lambda: store.publish(message(timer_id="t")),
                lambda: claim(store),
                lambda: done(store, held),
                lambda: store.extend(held, LEASE),
                store.ping,
                store.stats,
            ):
                with pytest.raises(StoreUnavailable):
                    await verb()
            await until(lambda: not store.listening)
            assert store.look_interval.total_seconds() == 1
            bell.clear()
            await asyncio.to_thread(postgres_server.start)

            await until(lambda: works(store))
            assert await bell.wait(40)
            assert store.listening
            assert store.look_interval.total_seconds() == 5
        assert await done(store, held) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
        assert [delivery.body for delivery in await claim(store)] == [b"c"]


async def test_a_server_that_was_restarted_while_nobody_asked_is_not_noticed(
    postgres_server: Postgres, postgres_url: str
) -> None:
    async with open_store(postgres_url) as store:
        await store.publish(message(b"before"))
        await claim(store, queue="other")

        await asyncio.to_thread(postgres_server.restart)

        assert await store.publish(message(b"after")) is not None
        deliveries = await claim(store)
        assert [delivery.body for delivery in deliveries] == [b"before", b"after"]
        assert await done(store, deliveries) == [WriteResult.WRITTEN, WriteResult.WRITTEN]


async def test_a_frozen_server_is_waited_for_no_longer_than_our_patience(
    postgres_server: Postgres, postgres_url: str
) -> None:
    async with open_store(postgres_url) as store:
        await store.ping()
        await asyncio.to_thread(postgres_server.pause)
        try:
            async with asyncio.timeout(30):
                with pytest.raises(StoreUnavailable):
                    await store.ping()
        finally:
            await asyncio.to_thread(postgres_server.resume)

        await store.ping()


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


async def test_a_publish_that_was_never_sent_is_not_uncertain(
    postgres_server: Postgres, postgres_url: str
) -> None:
    async with open_store(postgres_url) as store:
        await asyncio.to_thread(postgres_server.stop)
        try:
            for attempt in (message(), message(timer_id="t")):
                with pytest.raises(StoreUnavailable) as raised:
                    await store.publish(attempt)
                assert not isinstance(raised.value, PublishUncertain)
        finally:
            await asyncio.to_thread(postgres_server.start)


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


async def test_a_publish_waits_for_an_open_transaction_and_lets_others_go_first(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        transaction = own.transaction()
        await transaction.start()
        await store.publish(message(b"first", timer_id="t"), transaction=own)
        replacement = message(b"second", timer_id="t", on_conflict="replace")
        waiting = [
            asyncio.create_task(store.publish(message(timer_id="t"))),
            asyncio.create_task(store.publish(replacement)),
        ]
        async with asyncio.timeout(10):
            for _ in range(5):
                assert await store.publish(message(b"others")) is not None
        assert not any(task.done() for task in waiting)

        await transaction.commit()

        skipped, replaced = await asyncio.gather(*waiting)
        assert skipped is None
        assert [(found.id, found.body) for found in await store.peek(timer_id="t")] == [(replaced, b"second")]


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


async def test_a_deadlock_is_the_callers_error_and_not_ours(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        for name in ("a", "b"):
            await store.publish(message(timer_id=name))

        async def replace_both(*names: str) -> None:
            async with connection(postgres_url) as own, own.transaction():
                for name in names:
                    await store.publish(message(timer_id=name, on_conflict="replace"), transaction=own)
                    await asyncio.sleep(0.05)

        results = await asyncio.gather(replace_both("a", "b"), replace_both("b", "a"), return_exceptions=True)

        assert sorted(type(result).__name__ for result in results) in (
            ["DeadlockDetectedError", "NoneType"],
            ["NoneType", "NoneType"],
        )
        assert all(result is None or isinstance(result, asyncpg.PostgresError) for result in results)
