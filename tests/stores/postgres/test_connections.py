"""Few connections and few round trips, whatever the number of subscribers; and what becomes of them."""

from __future__ import annotations

import asyncio

import pytest

from nightmail.outcome import Dead, Done, Postpone, Release, Retry, WriteResult
from nightmail.store import Extend, Settlement
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.stores.postgres.support import backends, connection, open_store, watched_store
from tests.stores.shared.connections import Connections
from tests.stores.shared.event_loops import OneEventLoop
from tests.stores.shared.keeper import KeeperThread
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.postgres


class TestConnections(Connections):
    """On this store."""


class TestKeeperThread(KeeperThread):
    """On this store."""


class TestEventLoops(OneEventLoop):
    """On this store."""


# ------------------------------------------------------------------------------------ how many


async def test_each_connection_has_its_role_in_its_name(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish(message())
        await store.publish(message(timer_id="t"))
        (delivery, _) = await claim(store)
        renewed = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def keep(extend: Extend) -> None:
            await extend([delivery], LEASE)
            loop.call_soon_threadsafe(renewed.set)
            await asyncio.Event().wait()

        async with store.run_on_keeper_thread(keep):
            await renewed.wait()
            await done(store, [delivery])
            with store.listen([QUEUE]):
                await until(lambda: store.listening)
                for role in ("claim", "settle", "publish", "timers", "listen", "keeper"):
                    assert len(await backends(own, role)) == 1


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
        assert set(await done(store, taken[:250])) == {WriteResult.WRITTEN}
        assert await statements() == 1
        outcomes = (Done(), Retry(), Postpone(LEASE), Dead("rejected"), Release())
        mixed = [Settlement(delivery, outcomes[n % 5]) for n, delivery in enumerate(taken[250:])]
        assert set(await store.settle(mixed)) == {WriteResult.WRITTEN}
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
