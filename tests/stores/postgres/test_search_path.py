"""Functions and tables of the same names in other schemas: ours are named so that they are found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import uuid4

import asyncpg
import pytest

from nightmail.outcome import Dead, Done, Outcome, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, message
from tests.stores.postgres.support import CALLERS, connection, open_store
from tests.stores.support import claim, done

pytestmark = pytest.mark.postgres

Begin: TypeAlias = Callable[[str], AbstractAsyncContextManager[Any]]

# For exactly the types that our statements use, which wins against the server's own for any type.
SHADOWS = """
    create table public.stolen (by text default current_query());
    create function public.unnest(text[]) returns setof text language sql as
        $$ insert into public.stolen default values; select pg_catalog.unnest($1) $$;
    create function public.width_bucket(bigint, bigint[]) returns integer language sql as
        $$ insert into public.stolen default values; select pg_catalog.width_bucket($1, $2) $$;
    create function public.cardinality(bigint[]) returns integer language sql as
        $$ insert into public.stolen default values; select pg_catalog.cardinality($1) $$;
    create function public.cardinality(text[]) returns integer language sql as
        $$ insert into public.stolen default values; select pg_catalog.cardinality($1) $$;
    create function public.substr(name, integer) returns text language sql as
        $$ insert into public.stolen default values; select pg_catalog.substr($1::text, $2) $$;
    create function public.concat(text, text) returns text language sql as
        $$ insert into public.stolen default values; select pg_catalog.concat($1, $2) $$;
"""


async def test_functions_that_others_put_into_a_schema_are_not_run_by_ours(postgres_url: str) -> None:
    async with open_store(postgres_url), connection(postgres_url) as own:
        await own.execute(SHADOWS)
        async with open_store(postgres_url) as store:
            await store.check()
            await store.publish_batch([message(b"%d" % number) for number in range(6)])
            await store.publish(message(timer_id="t", dedup_for=HOUR))
            await store.publish(message(timer_id="t", on_conflict="replace"))
            await store.reschedule(QUEUE, "t", HOUR)
            await store.cancel(QUEUE, "t")
            deliveries = await claim(store)
            await store.extend(deliveries, LEASE)
            outcomes: tuple[Outcome, ...] = (Done(), Retry(), Dead("rejected"), Dead("rejected"), Release())
            await store.settle(
                [
                    Settlement(delivery, outcome)
                    for delivery, outcome in zip(deliveries, outcomes, strict=False)
                ]
            )
            (letter, *_) = (await store.claim_dead([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries
            await store.settle([Settlement(letter, Done())])
            await store.redrive(await store.dead(DeadFilter()))
            await store.peek()
            await store.stats()
            await store.sweep(older_than=timedelta(0), limit=10)

        assert await own.fetch("select * from stolen") == []


@pytest.mark.parametrize("begin", CALLERS.values(), ids=list(CALLERS))
async def test_functions_that_others_put_into_a_schema_are_not_run_in_a_callers_transaction(
    postgres_url: str, begin: Begin
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish_batch([message(b"one"), message(b"two")])
        one, two = await claim(store)
        await own.execute(SHADOWS)
        async with begin(postgres_url) as transaction:
            await store.publish_batch([message()], transaction=transaction)
            await store.publish(message(timer_id="t", dedup_for=HOUR), transaction=transaction)
            await store.publish(message(timer_id="t", on_conflict="replace"), transaction=transaction)
            await store.reschedule(QUEUE, "t", HOUR, transaction=transaction)
            await store.cancel(QUEUE, "t", transaction=transaction)
            await store.hold([one, two], transaction=transaction)
            await store.ack([one], transaction=transaction)
            await store.peek(transaction=transaction)

        assert await own.fetch("select * from stolen") == []
        assert await done(store, [two]) == [WriteResult.WRITTEN]


async def test_a_pooled_connection_whose_search_path_has_changed_is_joined_all_the_same(
    postgres_url: str,
) -> None:
    async with (
        open_store(postgres_url) as store,
        asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool,
    ):
        async with pool.acquire() as own, own.transaction():
            await store.publish(message(b"first"), transaction=own)
        async with pool.acquire() as own, own.transaction():
            await own.execute("create schema elsewhere; set local search_path to elsewhere")
            await store.publish(message(b"second"), transaction=own)
            await store.publish(message(b"third", timer_id="t"), transaction=own)
            (held,) = await claim(store)
            await store.ack([held], transaction=own)
            assert await own.fetchval("select 1") == 1

        assert [found.body for found in await store.peek()] == [b"second", b"third"]


async def test_tables_created_again_in_another_schema_are_found(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish(message(b"before"))
        await claim(store)
        await own.execute("create schema postgres")
        for table in ("meta", "messages", "dead", "delivered", "dedup"):
            # The default search path begins with the schema of the user's name.
            await own.execute(f"alter table nightmail_{table} set schema postgres")

        with pytest.raises(Exception, match="migrate"):
            await store.publish(message())
        await store.publish(message(b"after"))

        assert [found.body for found in await store.peek(due_before=None)] == [b"after"]
