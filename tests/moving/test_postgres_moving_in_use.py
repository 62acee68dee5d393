"""Moving while the old system is in use, and when the process that moves is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.moving import Moved
from tests.moving.old_outbox import Old, both, moving, old_process

pytestmark = pytest.mark.postgres


async def test_with_old_publishers_and_old_workers_each_row_is_handled_there_or_moved_here_and_once(
    postgres_url: str,
) -> None:
    handled: list[bytes] = []
    published: list[bytes] = []
    all_published = asyncio.Event()

    async def publish(old: Old, name: str) -> None:
        for number in range(300):
            body = f"{name}-{number}".encode()
            # Several in a transaction, so that ids become visible late and not in their order.
            async with old.connection.transaction():
                await old.publish(body)
                await old.publish(body + b"-timer", timer_id=f"{name}-{number}")
            published.extend([body, body + b"-timer"])

    async def work(old: Old) -> None:
        while True:
            token, rows = await old.claim(limit=5)
            for row in rows:
                if len(handled) % 7 == 3:
                    # Fails, and is due again at once.
                    await old.connection.execute(
                        "update outbox set acquired_token = null, acquired_at = null, next_attempt_at = now() "
                        "where id = $1 and acquired_token = $2",
                        *(row["id"], token),
                    )
                    handled.append(b"")
                else:
                    assert await old.done(row["id"], token)
                    handled.append(row["payload"])
            if not rows and all_published.is_set():
                return
            await asyncio.sleep(0.002)

    async with (
        both(postgres_url) as (old, store),
        old_process(postgres_url) as first,
        old_process(postgres_url) as second,
        old_process(postgres_url) as third,
        moving(postgres_url, store, batch=20) as mover,
        moving(postgres_url, store, batch=7) as another,
    ):
        workers = [asyncio.create_task(work(process)) for process in (old, first)]
        movers = [asyncio.create_task(each.move_all(pause=0.01)) for each in (mover, another)]
        await asyncio.gather(publish(second, "a"), publish(third, "b"))
        all_published.set()
        await asyncio.gather(*workers, *movers)
        # They may have ended while the table happened to be empty.
        await mover.move_all(pause=0.01)

        assert await old.ids() == []
        here = [message.body for message in await store.peek("orders", limit=10_000)]
        there = [body for body in handled if body]
        assert here
        assert there
        assert Counter(here + there) == Counter(published)


async def test_it_goes_on_until_the_last_old_worker_is_done(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        await old.publish(b"held")
        token, (held,) = await old.claim()
        await old.publish(b"free")
        some_moved = asyncio.Event()

        moving_all = asyncio.create_task(mover.move_all(lambda _: some_moved.set(), pause=0.01))
        await some_moved.wait()
        assert not moving_all.done()
        assert await old.done(held["id"], token)

        assert await moving_all == Moved(messages=1)


async def test_killed_in_the_middle_it_has_moved_whole_batches_and_the_next_run_moves_the_rest(
    postgres_url: str,
) -> None:
    command = [sys.executable, "-m", "nightmail.cli", "move-outbox", postgres_url]
    async with both(postgres_url) as (old, store):
        await old.connection.execute(
            "insert into outbox (queue, payload) select 'orders', n::text::bytea from generate_series(1, 1200) as n"
        )
        await old.connection.execute("""
            create function dawdle() returns trigger language plpgsql as
                'begin if old.id = 700 then perform pg_sleep(600); end if; return old; end';
            create trigger dawdle before delete on outbox for each row execute function dawdle();
        """)
        asleep = (
            "select pid from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
        )

        process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.DEVNULL)
        try:
            # A later batch is published and half deleted.
            while (backend := await old.connection.fetchval(asleep)) is None:
                assert process.poll() is None
                await asyncio.sleep(0.02)
        finally:
            process.kill()
            process.wait()
        # A server notices only at its next write that the client is gone.
        await old.connection.execute("select pg_terminate_backend($1, 10000)", backend)

        assert await old.ids() == list(range(601, 1201))
        assert len(await store.peek("orders", limit=10_000)) == 600

        await old.connection.execute("drop trigger dawdle on outbox")
        async with moving(postgres_url, store) as mover:
            assert await mover.move() == Moved(messages=600)
        here = sorted(int(message.body) for message in await store.peek("orders", limit=10_000))
        assert here == list(range(1, 1201))


async def test_when_the_connection_is_lost_it_says_so_and_may_be_run_again(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store, batch=2) as mover:
        for _ in range(6):
            await old.publish()
        await old.connection.execute("""
            create function leave() returns trigger language plpgsql as
                'begin if old.id = 4 then perform pg_terminate_backend(pg_backend_pid()); end if; return old; end';
            create trigger leave before delete on outbox for each row execute function leave();
        """)

        with pytest.raises(StoreUnavailable):
            await mover.move()
        assert len(await old.ids()) == 4

        await old.connection.execute("drop trigger leave on outbox")
        assert await mover.move() == Moved(messages=4)
        assert len(await store.peek("orders")) == 6
