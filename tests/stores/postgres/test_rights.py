"""Users with no more rights than the documentation gives them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import pytest

from nightmail.errors import StoreError
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, message
from tests.stores.postgres.support import open_store, raw_connection, user
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.postgres


@asynccontextmanager
async def store_of(url: str) -> AsyncIterator[PostgresStore]:
    """A store that was made by somebody else."""
    store = PostgresStore(url)
    await store.open()
    try:
        # There is nothing to make, so this takes no rights.
        await store.migrate()
        await store.check()
        yield store
    finally:
        await store.close()


async def test_a_publisher_publishes_and_does_nothing_else(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, user(postgres_url, "publisher") as url:
        async with store_of(url) as publisher:
            await publisher.publish(message())
            await publisher.publish_batch([message(), message(ordering_key="k")])
            for policy in ("skip", "replace", "earliest", "latest"):
                await publisher.publish(message(timer_id="t", on_conflict=policy))
            await publisher.publish(message(timer_id="u", dedup_for=HOUR))
            assert await publisher.reschedule(QUEUE, "t", HOUR)
            assert await publisher.cancel(QUEUE, "t")
            async with raw_connection(url) as transaction:
                await publisher.publish(message(), transaction=transaction)
                await publisher.publish(message(timer_id="v"), transaction=transaction)
            assert await publisher.cancel_all("others") == 0

            deliveries = await claim(store, limit=1)
            with pytest.raises(StoreError, match="permission denied"):
                await publisher.settle([Settlement(deliveries[0], Dead("rejected"))])
            with pytest.raises(StoreError, match="permission denied"):
                await publisher.dead(DeadFilter())
        assert (await store.stats())[QUEUE].ready == 5


async def test_a_worker_works_and_publishes_nothing(postgres_url: str) -> None:
    async with (
        open_store(postgres_url) as store,
        user(postgres_url, "worker") as url,
        store_of(url) as worker,
    ):
        await store.publish_batch([message(b"%d" % number) for number in range(6)])
        with worker.listen([QUEUE]):
            await until(lambda: worker.listening)
            deliveries = await claim(worker)
        assert set(await worker.extend(deliveries, LEASE)) == {WriteResult.WRITTEN}
        outcomes: tuple[Outcome, ...] = (Done(), Retry(), Postpone(HOUR), Dead("rejected"), Release())
        ended = [Settlement(*each) for each in zip(deliveries[:5], outcomes, strict=True)]
        assert set(await worker.settle(ended)) == {WriteResult.WRITTEN}
        async with raw_connection(url) as transaction:
            await worker.hold([deliveries[5]], transaction=transaction)
            await worker.ack([deliveries[5]], transaction=transaction)
        await worker.recall([QUEUE], uuid4())
        letters = await worker.claim_dead([QUEUE], limit=1, lease=LEASE, token=uuid4())
        assert await done(worker, list(letters.deliveries)) == [WriteResult.WRITTEN]

        with pytest.raises(StoreError, match="permission denied"):
            await worker.publish(message())


async def test_a_worker_whose_handlers_publish_has_both(postgres_url: str) -> None:
    async with (
        open_store(postgres_url),
        user(postgres_url, "publisher", "worker") as url,
        store_of(url) as store,
    ):
        await store.publish(message(timer_id="t"))
        (running,) = await claim(store)
        await store.publish(message(timer_id="t", due=HOUR), own=running)
        assert await done(store, [running]) == [WriteResult.WRITTEN]


async def test_an_operator_looks_and_cleans_up(postgres_url: str) -> None:
    async with open_store(postgres_url, keep_delivered=True) as store, user(postgres_url, "operator") as url:
        await store.publish_batch([message(), message(), message()])
        first, second, third = await claim(store)
        await store.settle(
            [
                Settlement(first, Done()),
                Settlement(second, Dead("rejected")),
                Settlement(third, Dead("rejected")),
            ]
        )
        async with store_of(url) as operator:
            await operator.peek()
            await operator.stats()
            letters = await operator.dead(DeadFilter())
            assert len(await operator.redrive(letters[:1])) == 1
            assert await operator.purge(DeadFilter(), limit=10) == 1
            assert (await operator.sweep(older_than=timedelta(0), limit=10)).delivered == 1
            assert await operator.cancel_all(QUEUE) == 1
            await operator.ping()
