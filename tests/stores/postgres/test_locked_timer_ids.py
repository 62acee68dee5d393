"""Publishes under timer ids that an open transaction holds: those without one are not held up."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import QUEUE, message
from tests.stores.postgres.support import connection, open_store
from tests.stores.support import until

pytestmark = pytest.mark.postgres


async def test_locked_timers_do_not_hold_up_plain_publishes(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        transaction = own.transaction()
        await transaction.start()
        for number in range(40):
            await store.publish(message(timer_id=f"t{number}"), transaction=own)
        waiting = [
            asyncio.create_task(store.publish(message(timer_id=f"t{number}", on_conflict="replace")))
            for number in range(40)
        ]
        await until(lambda: store._runtime.lanes.timers.link is not None)

        # Behind the others each would take as long as all of them wait together: seconds.
        async with asyncio.timeout(20):
            for _ in range(40):
                await store.publish(message(b"plain"))
        assert not any(task.done() for task in waiting)

        await transaction.commit()
        assert None not in await asyncio.gather(*waiting)


# A publisher of whom another one takes the name away between its look and its insert.
WAITING = """
    create table public.go (on_ boolean);
    create function public.wait() returns trigger language plpgsql as $$
    begin
        while not exists (select from public.go) loop perform pg_sleep(0.01); end loop;
        return new;
    end $$;
    create trigger wait before insert on nightmail_dedup for each row execute function public.wait();
"""


async def overtaken(store: PostgresStore, url: str) -> asyncio.Task[int | None]:
    """A publish with a window, overtaken by one without."""
    async with connection(url) as own:
        await own.execute(WAITING)
        publish = asyncio.create_task(
            store.publish(message(b"late", timer_id="t", dedup_for=timedelta(hours=1)))
        )
        await until(lambda: _is_waiting(url))
        async with own.transaction():
            await own.execute("set local session_replication_role to replica")
            await store.publish(message(b"first", timer_id="t"), transaction=own)
        await own.execute("insert into go values (true)")
    await asyncio.wait([publish])
    return publish


async def _is_waiting(url: str) -> bool:
    async with connection(url) as own:
        return bool(
            await own.fetchval(
                "select count(*) from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
            )
        )


async def test_a_window_of_a_publish_that_was_overtaken_is_taken_back(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        assert (await overtaken(store, postgres_url)).result() is None

        assert await own.fetchval("select count(*) from nightmail_dedup") == 0


async def test_a_window_of_a_publish_that_stored_nothing_does_not_survive_a_lost_connection(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        # The connection is lost just before the window would be taken back.
        await own.execute("""
            create function public.hang_up() returns trigger language plpgsql as $$
            begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(10); return old; end $$;
            create trigger hang_up before delete on nightmail_dedup for each row execute function public.hang_up();
        """)

        publish = await overtaken(store, postgres_url)

        assert isinstance(publish.exception(), StoreUnavailable)
        assert await own.fetchval("select count(*) from nightmail_dedup") == 0
        assert await store.cancel(QUEUE, "t")
        assert await store.publish(message(b"again", timer_id="t")) is not None
