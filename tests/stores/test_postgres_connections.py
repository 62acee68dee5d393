"""Few connections and few round trips, whatever the number of subscribers; and what becomes of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Postpone, Release, Retry, Standing
from nightmail.store import Extend, Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.stores.postgres.connect import connector
from nightmail.stores.postgres.lane import Lane, Role
from tests.stores.postgres_support import (
    LEASE,
    QUEUE,
    backends,
    claim,
    connection,
    done,
    message,
    open_store,
    sqlalchemy_url,
    until,
    watched_store,
)

pytestmark = pytest.mark.postgres


async def at_work(store: PostgresStore, deliveries: Sequence[Delivery], ready: asyncio.Event) -> None:
    """A subscriber: listens, claims, settles, publishes, and has its leases renewed beside."""
    loop = asyncio.get_running_loop()

    async def keep(extend: Extend) -> None:
        await extend(deliveries, LEASE)
        loop.call_soon_threadsafe(ready.set)
        await asyncio.Event().wait()

    with store.listen([QUEUE]):
        async with store.beside(keep):
            await ready.wait()
            await store.publish(message())
            await done(store, await claim(store))
            await asyncio.Event().wait()


# ------------------------------------------------------------------------------------ how many


async def test_twenty_subscribers_need_five_connections(postgres_url: str) -> None:
    async with watched_store(postgres_url) as (store, watch), connection(postgres_url) as own:
        await store.publish_batch([message() for _ in range(20)])
        events = [asyncio.Event() for _ in range(20)]
        workers = [
            asyncio.create_task(at_work(store, [delivery], ready))
            for delivery, ready in zip(await claim(store, limit=20), events, strict=True)
        ]
        await asyncio.gather(*(ready.wait() for ready in events))
        await until(lambda: store.listening)
        await asyncio.gather(*(store.publish(message(timer_id=f"t{n}")) for n in range(20)))
        await asyncio.gather(*(store.stats() for _ in range(5)))

        assert watch.open == store.capabilities.connections == 5
        assert len(await backends(own)) == 5
        for role in ("claim", "settle", "publish", "listen", "keeper"):
            assert len(await backends(own, role)) == 1

        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def test_nothing_is_connected_before_it_is_needed(postgres_url: str) -> None:
    async with open_store(postgres_url):
        pass
    async with connection(postgres_url) as own:
        store = PostgresStore(postgres_url)
        await store.open()
        assert await backends(own) == []

        await store.publish(message())

        assert len(await backends(own)) == 1
        await store.close()


async def test_a_closed_store_leaves_no_connection_and_no_thread_behind(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish(message())
        ready = asyncio.Event()
        worker = asyncio.create_task(at_work(store, await claim(store), ready))
        await ready.wait()

        # Though somebody still works beside it.
        await store.close()

        assert keepers() == 0
        await until(lambda: _none_left(own))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.ping()


def keepers() -> int:
    """How many of our threads there are."""
    return sum(thread.name == "nightmail-keeper" for thread in threading.enumerate())


async def _none_left(own: Any) -> bool:
    return not await backends(own)


async def test_the_thread_beside_ends_with_the_last_who_uses_it(postgres_url: str) -> None:
    async def wait(_: Extend) -> None:
        await asyncio.Event().wait()

    async with open_store(postgres_url) as store:
        async with store.beside(wait):
            async with store.beside(wait):
                assert keepers() == 1
            assert keepers() == 1
        assert keepers() == 0


async def test_leases_are_renewed_while_the_event_loop_is_blocked(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        await store.publish(message())
        deliveries = await claim(store)
        begun, renewed = threading.Event(), threading.Event()

        async def keep(extend: Extend) -> None:
            await asyncio.to_thread(begun.wait)
            assert await extend(deliveries, LEASE) == [Standing.HELD]
            renewed.set()
            await asyncio.Event().wait()

        async with store.beside(keep):
            begun.set()
            # No await: nothing else runs on this loop meanwhile.
            assert renewed.wait(20)


async def test_an_error_of_what_ran_beside_comes_out_with_the_block(postgres_url: str) -> None:
    async def fail(_: Extend) -> None:
        raise LookupError("beside")

    async with open_store(postgres_url) as store:
        with pytest.raises(LookupError, match="beside"):
            async with store.beside(fail):
                pass


# -------------------------------------------------------------------------------- round trips


async def test_every_verb_is_one_statement(postgres_url: str) -> None:
    async with watched_store(postgres_url) as (store, watch):

        async def statements() -> int:
            return len(await watch.sent())

        # The first of each opens a connection and prepares its statement.
        await store.publish_batch([message() for _ in range(60)])
        await store.publish(message(timer_id="t"))
        deliveries = await claim(store, limit=30)
        await done(store, deliveries[:5])
        await store.settle([Settlement(delivery, Retry()) for delivery in deliveries[5:10]])
        await store.extend(deliveries[10:], LEASE)
        await statements()

        await store.publish(message())
        assert await statements() == 1
        await store.publish(message(timer_id="u"))
        assert await statements() == 1
        await store.publish_batch([message() for _ in range(300)])
        assert await statements() == 1
        taken = await claim(store, limit=300)
        assert len(taken) == 300
        assert await statements() == 1
        # One that comes back short tells in the same breath when to look again.
        await claim(store, limit=1000)
        assert await statements() == 1
        assert set(await done(store, taken[:250])) == {Standing.HELD}
        assert await statements() == 1
        outcomes = (Done(), Retry(), Postpone(LEASE), Dead("rejected"), Release())
        mixed = [Settlement(delivery, outcomes[n % 5]) for n, delivery in enumerate(taken[250:])]
        assert set(await store.settle(mixed)) == {Standing.HELD}
        assert await statements() == 1
        await store.extend(deliveries[10:], LEASE)
        assert await statements() == 1


async def test_publishers_at_the_same_time_share_their_commits(postgres_url: str) -> None:
    async with watched_store(postgres_url) as (store, watch):
        await store.publish(message())
        await watch.sent()

        ids = await asyncio.gather(*(store.publish(message(b"%d" % n)) for n in range(200)))

        assert len(await watch.sent()) <= 5
        pending = {found.id: found.body for found in await store.peek(limit=300)}
        assert [pending[id_] for id_ in ids if id_] == [b"%d" % n for n in range(200)]


async def test_one_that_the_server_refuses_does_not_fail_those_published_with_it(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute("alter table nightmail_messages add check (body <> 'bad')")

        results = await asyncio.gather(
            *(store.publish(message(body)) for body in (b"a", b"bad", b"c")), return_exceptions=True
        )

        assert [type(result).__name__ for result in results] == ["int", "CheckViolationError", "int"]
        assert [delivery.body for delivery in await claim(store)] == [b"a", b"c"]


async def test_one_that_the_server_refuses_does_not_fail_those_settled_with_it(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish_batch([message(b"%d" % n) for n in range(8)])
        deliveries = await claim(store)
        await own.execute("alter table nightmail_dead add check (body <> '5')")

        standings = await store.settle([Settlement(delivery, Dead("rejected")) for delivery in deliveries])

        held, busy = Standing.HELD, Standing.BUSY
        assert standings == [held, held, held, held, held, busy, held, held]


# ------------------------------------------------------------------------------- cancelled, late


async def test_a_publisher_cancelled_before_its_turn_stores_nothing(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.ping()
        async with own.transaction():
            await own.execute("lock table nightmail_messages in exclusive mode")
            first = asyncio.create_task(store.publish(message(b"sent")))
            await until(lambda: _waits(own, "publish"))
            second = asyncio.create_task(store.publish(message(b"not sent")))
            await asyncio.sleep(0)
            first.cancel()
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)

        # The first was under way, and is carried out though nobody waits for it.
        await store.ping()
        assert [found.body for found in await store.peek()] == [b"sent"]


async def test_a_connection_that_took_too_long_is_thrown_away_and_made_anew(postgres_url: str) -> None:
    lane = Lane(Role("impatient", statement_seconds=-5), connector(postgres_url))
    lane._role = _Impatient("impatient")
    with pytest.raises(PublishUncertain):
        await lane.run(lambda own: own.execute("select pg_sleep(30)"), lost=PublishUncertain)
    assert lane.connection is None

    lane._role = Role("patient")
    assert await lane.run(lambda own: own.fetchval("select 1")) == 1
    await lane.close()


class _Impatient(Role):
    """Waits for the server less long than the server takes."""

    @property
    def patience(self) -> float:
        return 0.1


async def test_a_statement_that_the_server_gave_up_was_not_carried_out(postgres_url: str) -> None:
    lane = Lane(Role("hasty", statement_seconds=1), connector(postgres_url))
    with pytest.raises(StoreUnavailable) as raised:
        await lane.run(lambda own: own.execute("select pg_sleep(30)"), lost=PublishUncertain)

    assert not isinstance(raised.value, PublishUncertain)
    assert lane.connection is not None
    await lane.close()


async def _waits(own: Any, role: str) -> bool:
    (pid,) = await backends(own, role)
    waits = await own.fetchval("select wait_event_type = 'Lock' from pg_stat_activity where pid = $1", pid)
    return bool(waits)


# ------------------------------------------------------------------------ an engine of the caller's


async def test_an_engine_lends_its_way_of_connecting_and_stays_the_callers(postgres_url: str) -> None:
    engine = create_async_engine(
        sqlalchemy_url(postgres_url), connect_args={"server_settings": {"search_path": "elsewhere, public"}}
    )
    asked: list[Any] = []
    event.listen(engine.sync_engine, "do_connect", lambda *arguments: asked.append(arguments))
    async with connection(postgres_url) as own:
        await own.execute("create schema elsewhere")
    async with open_store(engine) as store:
        await store.publish(message())
        ready = asyncio.Event()
        worker = asyncio.create_task(at_work(store, await claim(store), ready))
        await ready.wait()
        async with connection(postgres_url) as own:
            assert await own.fetchval("select to_regclass('elsewhere.nightmail_messages')") is not None
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    assert len(asked) >= 4
    async with engine.connect() as theirs:
        assert (await theirs.exec_driver_sql("select 1")).scalar() == 1
    await engine.dispose()


async def test_an_engine_with_another_driver_is_refused() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")

    with pytest.raises(ValueError, match="asyncpg"):
        PostgresStore(engine)

    await engine.dispose()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg", "postgres+asyncpg"])
async def test_every_way_to_write_the_scheme_is_understood(postgres_url: str, scheme: str) -> None:
    url = postgres_url.replace("postgresql://", f"{scheme}://")

    async with open_store(f"{url}?prepared_statement_cache_size=0&statement_cache_size=0") as store:
        await store.publish(message())
        assert len(await claim(store)) == 1


@pytest.mark.parametrize(
    "url",
    [
        "mysql://shop:hunter2@localhost/shop",
        "postgresql://shop:hunter2@[localhost/shop",
        "hunter2",
    ],
)
def test_a_wrong_url_is_refused_without_telling_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql://") as raised:
        PostgresStore(url)

    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:hunter2@localhost:none/shop",
        "postgresql://shop:hunter2@localhost:1/shop",
        "postgresql://shop:hunter2@nowhere.invalid/shop",
        "postgresql://shop:hunter2@localhost/shop?sslmode=hunter2",
    ],
)
async def test_a_server_that_cannot_be_reached_is_told_without_telling_the_password(url: str) -> None:
    store = PostgresStore(url)
    await store.open()

    with pytest.raises(StoreUnavailable) as raised:
        await store.ping()

    assert "hunter2" not in f"{raised.value!r} {raised.value.__cause__!r}"
    await store.close()


async def test_two_event_loops_one_after_the_other_may_open_one_store(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)

    def use() -> None:
        asyncio.run(once())

    async def once() -> None:
        await store.open()
        await store.migrate()
        await store.publish(message())
        await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())
        await store.close()

    for _ in range(2):
        await asyncio.to_thread(use)
