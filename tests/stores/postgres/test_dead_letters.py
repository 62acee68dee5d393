"""Dead letters on Postgres when others are at work: locks, races, and what it costs to ask."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from nightmail.message import DeadDelivery
from nightmail.outcome import Dead, Done, Outcome, Retry
from nightmail.records import DeadFilter, Swept
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import AT_ONCE, HOUR, LEASE, QUEUE, bodies, message
from tests.stores.postgres.support import PostgresBackend, open_store, watched_store
from tests.stores.shared.dead_letters import LockedDeadLetters, RefusedDeadLetters
from tests.stores.support import EVERYTHING, bury, claim, until

pytestmark = pytest.mark.postgres


class TestLockedDeadLetters(LockedDeadLetters):
    """On this store."""


class TestRefusedDeadLetters(RefusedDeadLetters):
    """On this store."""


async def letters(store: PostgresStore, *queues: str, limit: int = 10) -> list[bytes]:
    claimed = await store.claim_dead(queues or (QUEUE,), limit=limit, lease=LEASE, token=uuid4())
    assert all(isinstance(delivery, DeadDelivery) for delivery in claimed.deliveries)
    return [delivery.body for delivery in claimed.deliveries]


# ------------------------------------------------------------------------------------------ claiming


async def test_letters_of_several_queues_come_in_one_order_and_only_what_is_taken_is_locked(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store, open_store(postgres_url) as other:
        for number in range(40):
            await bury(store, b"%02d" % number, queue="even" if number % 2 == 0 else "odd")

        assert await letters(store, "odd", "even", limit=3) == [b"00", b"01", b"02"]

        claims = [letters(each, "even", "odd", limit=3) for each in (store, other) * 6]
        taken = await asyncio.gather(*claims)

        # Had one locked more than it took, another would have come back short.
        assert [len(bodies) for bodies in taken] == [3] * 12
        assert sorted(body for bodies in taken for body in bodies) == [b"%02d" % n for n in range(3, 39)]


async def test_what_is_done_with_letters_takes_one_statement_however_many_there_are(
    postgres_url: str,
) -> None:
    async with watched_store(postgres_url) as (store, watch):
        buried = await bury(store, *[b"%d" % number for number in range(20)])
        # The driver asks for types of its own accord, once on each connection.
        await letters(store, limit=1)
        await store.redrive(buried[19:])
        await watch.sent()

        claimed = await store.claim_dead([QUEUE], limit=10, lease=LEASE, token=uuid4())
        assert len(await watch.sent()) == 1
        await store.extend(claimed.deliveries, LEASE * 2)
        assert len(await watch.sent()) == 1
        outcomes: list[Outcome] = [Done(), Retry(HOUR), Dead("given up")] * 3
        await store.settle([Settlement(*pair) for pair in zip(claimed.deliveries, outcomes, strict=False)])
        assert len(await watch.sent()) == 1
        assert len(await store.redrive(buried[11:19])) == 8
        assert len(await watch.sent()) == 1
        await store.sweep(older_than=AT_ONCE, limit=10)
        assert len(await watch.sent()) == 3


# --------------------------------------------------------------------------------------- redriving


async def test_a_letter_named_twice_moves_once_and_in_its_last_place(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        first, second = await bury(store, b"first", b"second")

        assert len(await store.redrive([first, second, first])) == 2

        assert [delivery.body for delivery in await claim(store)] == [b"second", b"first"]


# ---------------------------------------------------------------------------------------- sweeping


@pytest.mark.parametrize("age", [timedelta.max, timedelta.min])
async def test_every_age_can_be_asked_for(postgres_url: str, age: timedelta) -> None:
    async with open_store(postgres_url) as store:
        await bury(store, b"young")
        expected = 0 if age > AT_ONCE else 1

        assert len(await store.dead(DeadFilter(older_than=age))) == expected
        assert await store.purge(DeadFilter(older_than=age), limit=10) == expected
        assert await store.sweep(older_than=age, limit=10) == Swept()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_redrive_waits_until_a_publish_of_its_timer_id_is_decided(
    backend: PostgresBackend, commits: bool
) -> None:
    async with backend.opened() as store, backend.connection() as own:
        (letter,) = await bury(store, b"dead", timer_id="t")
        transaction = own.transaction()
        await transaction.start()
        await store.publish(message(b"alive", timer_id="t"), transaction=own)

        redriving = asyncio.create_task(store.redrive([letter]))
        await until(backend.waits_for_a_lock)
        await (transaction.commit() if commits else transaction.rollback())

        assert len(await redriving) == (0 if commits else 1)
        assert bodies(await store.peek()) == [b"alive" if commits else b"dead"]
        assert bodies(await store.dead(EVERYTHING)) == ([b"dead"] if commits else [])
