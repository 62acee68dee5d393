"""A message that is replaced by one with another ordering key, after a claim has chosen it and before it is locked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from nightmail.stores.postgres import PostgresStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import LEASE, QUEUE, SECOND, message
from tests.stores.postgres.support import connection, open_store
from tests.stores.support import until

pytestmark = pytest.mark.postgres

LOCKING = 'from "nightmail_messages" as m\nwhere m.id = any(share.ids)'
PAUSE = "from (select public.pause() offset 0) as pause cross join"
HELD_UP = """
    create table public.go (on_ boolean);
    create function public.pause() returns void volatile language plpgsql as $$
    begin
        while not exists (select from public.go) loop perform pg_sleep(0.01); end loop;
    end $$;
"""


async def is_pausing(url: str) -> bool:
    async with connection(url) as own:
        return bool(
            await own.fetchval(
                "select count(*) from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
            )
        )


def pause_before_locking(store: PostgresStore) -> None:
    """Have claims pause between choosing the oldest messages and locking them."""
    claim = store._statements["claim"]
    assert claim.text.count(LOCKING) == 1
    store._statements["claim"] = replace(
        claim, text=claim.text.replace(LOCKING, LOCKING.replace("from", PAUSE, 1))
    )


async def test_the_share_of_the_oldest_does_not_take_one_that_is_not_the_first_of_its_new_key(
    postgres_url: str,
) -> None:
    # It stands still: otherwise what replaces another is due after the claim began, and not taken for that.
    clock = ManualClock()
    async with (
        open_store(postgres_url, clock=clock) as store,
        open_store(postgres_url, clock=clock) as other,
        connection(postgres_url) as own,
    ):
        await own.execute(HELD_UP)
        # The first of its key, and due a little later than the oldest of all.
        await store.publish(message(b"first", ordering_key="another", due=SECOND))
        await store.publish(message(b"oldest", timer_id="t", ordering_key="a key"))
        clock.advance(SECOND)
        await store.publish_batch([message(b"high", priority=9) for _ in range(8)])
        pause_before_locking(store)

        claiming = asyncio.create_task(store.claim([QUEUE], limit=8, lease=LEASE, token=uuid4()))
        await until(lambda: is_pausing(postgres_url))
        await other.publish(message(b"replaced", timer_id="t", ordering_key="another", on_conflict="replace"))
        await own.execute("insert into public.go values (true)")

        assert b"replaced" not in [delivery.body for delivery in (await claiming).deliveries]
