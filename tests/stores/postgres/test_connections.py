"""Few connections and few round trips, whatever the number of subscribers; and what becomes of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Postpone, Release, Retry, WriteResult
from nightmail.store import Extend, Settlement
from nightmail.stores.postgres import PostgresStore
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
        async with store.run_on_keeper_thread(keep):
            await ready.wait()
            await store.publish(message())
            await done(store, await claim(store))
            await asyncio.Event().wait()


# ------------------------------------------------------------------------------------ how many


async def test_twenty_subscribers_need_six_connections(postgres_url: str) -> None:
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

        assert watch.open == store.capabilities.connections == 6
        assert len(await backends(own)) == 6
        for role in ("claim", "settle", "publish", "timers", "listen", "keeper"):
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


class Slow:
    """Work beside the event loop that takes its time to end, until told to go on."""

    def __init__(self) -> None:
        self._runtime, self.begun, self.ending = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._there: asyncio.AbstractEventLoop | None = None
        self._enough = asyncio.Event()

    async def work(self, _: Extend) -> None:
        self._there = asyncio.get_running_loop()
        self._runtime.call_soon_threadsafe(self.begun.set)
        try:
            await asyncio.Event().wait()
        finally:
            self._runtime.call_soon_threadsafe(self.ending.set)
            await self._enough.wait()

    def go_on(self) -> None:
        assert self._there is not None
        self._there.call_soon_threadsafe(self._enough.set)


async def run_on_keeper_thread(store: PostgresStore, work: Slow, leave: asyncio.Event) -> None:
    async with store.run_on_keeper_thread(work.work):
        await leave.wait()


async def test_closing_waits_for_the_thread_though_somebody_else_is_already_stopping_it(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store:
        slow, leave, left = Slow(), asyncio.Event(), list[int]()
        leaving = asyncio.create_task(run_on_keeper_thread(store, slow, leave))
        await slow.begun.wait()
        leave.set()
        await slow.ending.wait()

        closing = asyncio.create_task(store.close())
        closing.add_done_callback(lambda _: left.append(keepers()))
        for _ in range(50):
            await asyncio.sleep(0)
        slow.go_on()
        async with asyncio.timeout(10):
            await asyncio.gather(leaving, closing)

    assert left == [0]


async def test_whoever_begins_or_ends_work_while_the_store_is_closed_is_not_left_waiting(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store:
        slow, leave = Slow(), asyncio.Event()
        leaving = asyncio.create_task(run_on_keeper_thread(store, slow, leave))
        await slow.begun.wait()
        late = store.run_on_keeper_thread(Slow().work)
        closing = asyncio.create_task(store.close())
        await slow.ending.wait()

        leave.set()
        beginning = asyncio.create_task(late.__aenter__())
        slow.go_on()
        async with asyncio.timeout(10):
            await asyncio.gather(leaving, closing)
            with pytest.raises(StoreUnavailable, match="closed"):
                await beginning

    assert keepers() == 0


def keepers() -> int:
    """How many of our threads there are."""
    return sum(thread.name == "nightmail-keeper" for thread in threading.enumerate())


async def _none_left(own: Any) -> bool:
    return not await backends(own)


async def test_whoever_stood_in_line_when_the_store_was_closed_opens_no_connection(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish(message())
        bell = store.listen([QUEUE])
        waiting = [asyncio.create_task(claim(store)) for _ in range(5)]
        published = [asyncio.create_task(store.publish(message(timer_id=f"t{n}"))) for n in range(5)]
        await asyncio.sleep(0)

        await store.close()
        with bell:
            results = await asyncio.gather(*waiting, *published, return_exceptions=True)

        refused = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(error, StoreUnavailable) for error in refused)
        await until(lambda: _none_left(own))


async def test_the_thread_beside_ends_with_the_last_who_uses_it(postgres_url: str) -> None:
    async def wait(_: Extend) -> None:
        await asyncio.Event().wait()

    async with open_store(postgres_url) as store:
        async with store.run_on_keeper_thread(wait):
            async with store.run_on_keeper_thread(wait):
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
            assert await extend(deliveries, LEASE) == [WriteResult.WRITTEN]
            renewed.set()
            await asyncio.Event().wait()

        async with store.run_on_keeper_thread(keep):
            begun.set()
            # No await: nothing else runs on this loop meanwhile.
            assert renewed.wait(20)


async def test_work_beside_ends_when_its_caller_is_cancelled_before_it_has_begun(postgres_url: str) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait(_: Extend) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def enter(store: PostgresStore) -> None:
        async with store.run_on_keeper_thread(wait):
            await asyncio.Event().wait()

    async with open_store(postgres_url) as store:
        task = asyncio.create_task(enter(store))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()
        assert begun.is_set() == ended.is_set()
        assert keepers() == 0


async def test_an_error_of_what_ran_beside_comes_out_with_the_block(postgres_url: str) -> None:
    async def fail(_: Extend) -> None:
        raise LookupError("beside")

    async with open_store(postgres_url) as store:
        with pytest.raises(LookupError, match="beside"):
            async with store.run_on_keeper_thread(fail):
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


async def test_one_that_the_server_refuses_does_not_fail_those_published_with_it(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute("alter table nightmail_messages add check (body <> 'bad')")

        results = await asyncio.gather(
            *(store.publish(message(body)) for body in (b"a", b"bad", b"c")), return_exceptions=True
        )

        assert [type(result).__name__ for result in results] == ["int", "Refused", "int"]
        assert [delivery.body for delivery in await claim(store)] == [b"a", b"c"]


async def test_one_that_the_server_refuses_does_not_fail_those_settled_with_it(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish_batch([message(b"%d" % n) for n in range(8)])
        deliveries = await claim(store)
        await own.execute("alter table nightmail_dead add check (body <> '5')")

        results = await store.settle([Settlement(delivery, Dead("rejected")) for delivery in deliveries])

        held, busy = WriteResult.WRITTEN, WriteResult.BUSY
        assert results == [held, held, held, held, held, busy, held, held]
