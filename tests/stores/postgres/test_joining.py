"""A caller's transaction on Postgres, in everything it may live in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, TypeAlias

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail.message import Message, OnConflict
from nightmail.outcome import WriteResult
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.clock import ManualClock
from tests.stores.postgres.support import (
    EVERY_KIND,
    HOUR,
    LEASE,
    QUEUE,
    claim,
    connection,
    done,
    message,
    open_store,
    raw_connection,
    sqlalchemy_url,
    until,
    watched_store,
)

pytestmark = pytest.mark.postgres

Begin: TypeAlias = Callable[[str], AbstractAsyncContextManager[Any]]


every_kind = pytest.mark.parametrize("begin", EVERY_KIND)


class _ChangedMyMind(Exception):
    """Rolls a test's transaction back."""


# ------------------------------------------------------------------------------------ what is joined


@every_kind
async def test_what_was_published_commits_with_the_transaction(postgres_url: str, begin: Begin) -> None:
    async with open_store(postgres_url) as store:
        async with begin(postgres_url) as transaction:
            id_ = await store.publish(message(b"one"), transaction=transaction)
            ids = await store.publish_batch([message(b"two"), message(b"three")], transaction=transaction)
            assert await store.publish(message(b"four", timer_id="t"), transaction=transaction)
            assert await store.publish(message(b"five", timer_id="t"), transaction=transaction) is None
            assert await claim(store) == []

        deliveries = await claim(store)
        assert [delivery.body for delivery in deliveries] == [b"one", b"two", b"three", b"four"]
        assert [delivery.id for delivery in deliveries[:3]] == [id_, *ids]


@every_kind
async def test_what_was_published_rolls_back_with_the_transaction(postgres_url: str, begin: Begin) -> None:
    async with open_store(postgres_url) as store:
        with pytest.raises(_ChangedMyMind):
            async with begin(postgres_url) as transaction:
                await store.publish(message(), transaction=transaction)
                await store.publish(message(timer_id="t", on_conflict="replace"), transaction=transaction)
                raise _ChangedMyMind

        assert await claim(store) == []
        assert await store.publish(message(timer_id="t")) is not None


@every_kind
async def test_an_ack_commits_and_rolls_back_with_the_transaction(postgres_url: str, begin: Begin) -> None:
    async with open_store(postgres_url) as store:
        await store.publish(message())
        deliveries = await claim(store)
        with pytest.raises(_ChangedMyMind):
            async with begin(postgres_url) as transaction:
                await store.hold(deliveries, transaction=transaction)
                await store.ack(deliveries, transaction=transaction)
                raise _ChangedMyMind
        assert await store.extend(deliveries, LEASE) == [WriteResult.WRITTEN]

        async with begin(postgres_url) as transaction:
            await store.ack(deliveries, transaction=transaction)

        assert await store.extend(deliveries, LEASE) == [WriteResult.LOST]


async def test_a_session_that_was_not_begun_is_in_a_transaction_once_it_is_used(postgres_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_url))
    async with open_store(postgres_url) as store, AsyncSession(engine) as session:
        await store.publish(message(b"dropped"), transaction=session)
        await session.rollback()
        await store.publish(message(b"kept"), transaction=session)
        assert await claim(store) == []
        await session.commit()

        assert [delivery.body for delivery in await claim(store)] == [b"kept"]
    await engine.dispose()


async def test_a_savepoint_of_the_caller_is_honoured(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        async with raw_connection(postgres_url) as transaction:
            await store.publish(message(b"kept"), transaction=transaction)
            with pytest.raises(_ChangedMyMind):
                async with transaction.transaction():
                    await store.publish(message(b"dropped"), transaction=transaction)
                    raise _ChangedMyMind

        assert [delivery.body for delivery in await claim(store)] == [b"kept"]


async def test_publishing_in_a_transaction_needs_no_connection_of_ours_and_one_statement(
    postgres_url: str,
) -> None:
    async with watched_store(postgres_url) as (store, watch), raw_connection(postgres_url) as transaction:
        await store.publish(message(), transaction=transaction)
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


# ------------------------------------------------------------------------------ two at the same time


async def overtaken(
    store: PostgresStore, url: str, first: Message, second: Message
) -> tuple[int | None, int | None]:
    """What two publishes of one name give when the second begins before the first commits, and sees it only then."""
    async with connection(url) as one, connection(url) as two, connection(url) as own:
        transaction = one.transaction()
        await transaction.start()
        stored = await store.publish(first, transaction=one)

        async def publish() -> int | None:
            async with two.transaction():
                return await store.publish(second, transaction=two)

        waiting = asyncio.create_task(publish())
        pid = two.get_server_pid()
        await until(lambda: _waits(own, pid))
        await transaction.commit()
        return stored, await waiting


async def _waits(own: Any, pid: int) -> bool:
    return bool(
        await own.fetchval("select wait_event_type = 'Lock' from pg_stat_activity where pid = $1", pid)
    )


@pytest.mark.parametrize(("policy", "kept"), [("replace", b"second"), ("earliest", b"first")])
async def test_a_name_that_appears_under_a_replacement_is_replaced_or_kept_by_the_rules(
    postgres_url: str, policy: OnConflict, kept: bytes
) -> None:
    async with open_store(postgres_url) as store:
        first, second = await overtaken(
            store,
            postgres_url,
            message(b"first", timer_id="t", due=HOUR),
            message(b"second", timer_id="t", due=HOUR * 2, on_conflict=policy),
        )

        assert second == (first if kept == b"second" else None)
        assert [(found.id, found.body) for found in await store.peek()] == [(first, kept)]


async def test_a_publish_with_a_window_that_was_overtaken_by_one_without_leaves_no_window(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store:
        first, second = await overtaken(
            store,
            postgres_url,
            message(b"first", timer_id="t"),
            message(b"second", timer_id="t", dedup_for=HOUR),
        )

        assert (first is not None, second) == (True, None)
        await done(store, await claim(store))
        assert await store.publish(message(b"third", timer_id="t")) is not None


async def test_of_two_publishes_with_a_window_one_is_stored_even_if_it_is_done_at_once(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store:
        first, second = await overtaken(
            store,
            postgres_url,
            message(b"first", timer_id="t", dedup_for=HOUR),
            message(b"second", timer_id="t", dedup_for=HOUR),
        )

        assert (first is not None, second) == (True, None)
        await done(store, await claim(store))
        assert await store.publish(message(b"third", timer_id="t")) is None
