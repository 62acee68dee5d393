"""The memory store in synchronous code: on the thread of the event loop, and on threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase, StoreUnavailable
from nightmail.outcome import Dead, Done, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Blocking, Settlement
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import LEASE, claim_all, claim_bodies, message

pytestmark = pytest.mark.memory

PATIENCE = 60.0


def publish_now(store: MemoryStore, body: bytes = b"hello") -> int | None:
    """Publish as synchronous code does, in a transaction of its own."""
    with store.data.sync_transaction() as transaction:
        return at_once(store.publish(message(body), transaction=Blocking(transaction)))


async def came(event: threading.Event) -> None:
    """Wait for what happens on a thread."""
    assert await asyncio.to_thread(event.wait, PATIENCE)


@contextmanager
def thread_with_a_transaction(store: MemoryStore, body: bytes) -> Iterator[threading.Event]:
    """A thread that has published in its transaction, and commits when the event is set."""
    opened, commit = threading.Event(), threading.Event()

    def work() -> None:
        with store.data.sync_transaction() as transaction:
            at_once(store.publish(message(body), transaction=Blocking(transaction)))
            opened.set()
            commit.wait(PATIENCE)

    thread = threading.Thread(target=work)
    thread.start()
    assert opened.wait(PATIENCE)
    try:
        yield commit
    finally:
        commit.set()
        thread.join(PATIENCE)


class TestJoining:
    def test_no_event_loop_is_needed_to_publish(self) -> None:
        store = MemoryStore()

        publish_now(store, b"without a loop")

        assert asyncio.run(claim_bodies(store)) == [b"without a loop"]

    async def test_a_transaction_of_asynchronous_code_is_not_for_blocking(self) -> None:
        store = MemoryStore()

        async with store.data.transaction() as transaction:
            with pytest.raises(CannotJoin, match="no synchronous session"):
                await store.publish(message(), transaction=Blocking(transaction))

    def test_what_is_no_transaction_cannot_be_joined(self) -> None:
        store = MemoryStore()

        with pytest.raises(CannotJoin, match="a str is not a transaction"):
            at_once(store.publish(message(), transaction=Blocking("a session")))

    def test_a_transaction_over_other_data_cannot_be_joined(self) -> None:
        store = MemoryStore()

        with MemoryData().sync_transaction() as transaction, pytest.raises(OtherDatabase):
            at_once(store.publish(message(), transaction=Blocking(transaction)))

    def test_a_transaction_that_has_ended_cannot_be_joined(self) -> None:
        store = MemoryStore()
        with store.data.sync_transaction() as transaction:
            pass

        with pytest.raises(NotInTransaction):
            at_once(store.publish(message(), transaction=Blocking(transaction)))

    def test_every_waiting_message_can_be_cancelled(self) -> None:
        store = MemoryStore()
        publish_now(store)

        with store.data.sync_transaction() as transaction:
            assert at_once(store.cancel_all("orders", transaction=Blocking(transaction))) == 1

        assert asyncio.run(store.stats()) == {}


class TestTurns:
    async def test_on_the_event_loop_synchronous_code_does_not_wait_for_a_transaction(self) -> None:
        store = MemoryStore()
        opened, close = asyncio.Event(), asyncio.Event()

        async def hold_a_transaction() -> None:
            async with store.data.transaction():
                opened.set()
                await close.wait()

        task = asyncio.create_task(hold_a_transaction())
        await opened.wait()
        with pytest.raises(StoreUnavailable, match="a thread of its own"):
            publish_now(store)
        close.set()
        await task

        publish_now(store, b"now it can")
        assert await claim_bodies(store) == [b"now it can"]

    async def test_a_task_is_told_that_it_would_wait_for_its_own_synchronous_transaction(self) -> None:
        store = MemoryStore()

        with store.data.sync_transaction(), pytest.raises(StoreUnavailable, match="wait for itself"):
            await store.publish(message())

    def test_a_thread_is_told_that_it_would_wait_for_its_own_transaction(self) -> None:
        data = MemoryData()

        with (
            data.sync_transaction(),
            pytest.raises(StoreUnavailable, match="wait for itself"),
            data.sync_transaction(),
        ):
            pass

    async def test_a_thread_waits_until_the_transaction_of_a_task_ends(self) -> None:
        store = MemoryStore()

        async with store.data.transaction() as transaction:
            await store.publish(message(b"first"), transaction=transaction)
            thread = asyncio.create_task(asyncio.to_thread(publish_now, store, b"second"))
            await asyncio.sleep(0)
            assert not thread.done()
        await asyncio.wait_for(thread, PATIENCE)

        assert await claim_bodies(store) == [b"first", b"second"]

    async def test_a_task_waits_until_the_transaction_of_a_thread_ends(self) -> None:
        store = MemoryStore()

        with thread_with_a_transaction(store, b"first") as commit:
            claiming = asyncio.create_task(claim_bodies(store))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not claiming.done()
            assert await store.peek() == []
            commit.set()

            assert await asyncio.wait_for(claiming, PATIENCE) == [b"first"]

    async def test_who_gives_up_waiting_for_a_thread_keeps_no_other_waiting(self) -> None:
        store = MemoryStore()

        with thread_with_a_transaction(store, b"first") as commit:
            giving_up = asyncio.create_task(claim_all(store))
            claiming = asyncio.create_task(claim_bodies(store))
            await asyncio.sleep(0)
            giving_up.cancel()
            commit.set()

            assert await asyncio.wait_for(claiming, PATIENCE) == [b"first"]
        assert giving_up.cancelled()

    async def test_who_gives_up_as_its_turn_comes_passes_it_on(self) -> None:
        store = MemoryStore()

        async with store.data.transaction():
            giving_up = asyncio.create_task(claim_all(store))
            await asyncio.sleep(0)
        # It has the turn now, but has not run since.
        giving_up.cancel()
        await asyncio.wait([giving_up])

        assert giving_up.cancelled()
        assert await asyncio.wait_for(store.publish(message()), PATIENCE) is not None

    def test_who_waited_on_a_loop_that_is_no_more_keeps_no_other_waiting(self) -> None:
        store = MemoryStore()
        loop = asyncio.new_event_loop()

        with store.data.sync_transaction():
            waiting = loop.create_task(claim_all(store))
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        waiting.get_coro().close()

        assert publish_now(store) is not None


class TestThreads:
    async def test_a_publish_on_a_thread_wakes_who_waits_on_the_event_loop(self) -> None:
        store = MemoryStore()

        with store.listen(["orders"]) as bell:
            waiting = asyncio.create_task(bell.wait(PATIENCE))
            await asyncio.sleep(0)
            thread = threading.Thread(target=publish_now, args=(store,))
            thread.start()

            assert await waiting
        thread.join(PATIENCE)

    async def test_leases_are_settled_and_renewed_around_the_transaction_of_a_thread(self) -> None:
        store = MemoryStore()
        await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
        a, b, c = await claim_all(store)

        with thread_with_a_transaction(store, b"d"):
            assert await store.extend([a, b, c], LEASE) == [WriteResult.WRITTEN] * 3
            settled = await store.settle(
                [Settlement(a, Done()), Settlement(b, Retry()), Settlement(c, Dead("rejected"))]
            )

        assert settled == [WriteResult.WRITTEN] * 3
        assert sorted(await claim_bodies(store)) == [b"b", b"d"]
        assert [letter.body for letter in await store.dead(DeadFilter())] == [b"c"]

    async def test_threads_and_tasks_that_write_at_once_lose_nothing(self) -> None:
        store = MemoryStore()
        published = threading.Event()

        def publish_many(number: int) -> None:
            for each in range(100):
                publish_now(store, b"%d-%d" % (number, each))

        def publish_all() -> None:
            threads = [threading.Thread(target=publish_many, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE * 2)
            published.set()

        threading.Thread(target=publish_all).start()
        seen: list[bytes] = []
        async with asyncio.timeout(PATIENCE * 4):
            while len(seen) < 400:
                deliveries = await claim_all(store, limit=7)
                await store.stats()
                await store.settle([Settlement(delivery, Done()) for delivery in deliveries])
                seen += [delivery.body for delivery in deliveries]
                await asyncio.sleep(0)
        await came(published)

        assert sorted(seen) == sorted(b"%d-%d" % (one, two) for one in range(4) for two in range(100))
        assert await store.stats() == {}
