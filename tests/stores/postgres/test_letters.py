"""Dead letters on Postgres when others are at work: locks, races, and what it costs to ask."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from nightmail.message import DeadDelivery
from nightmail.outcome import Dead, Done, Outcome, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter, Swept
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore
from tests.stores.postgres.support import (
    HOUR,
    LEASE,
    QUEUE,
    claim,
    connection,
    done,
    message,
    open_store,
    raw_connection,
    until,
    watched_store,
)

pytestmark = pytest.mark.postgres

EVERYTHING = DeadFilter()
AT_ONCE = timedelta(0)


async def bury(store: PostgresStore, *bodies: bytes, **options: Any) -> list[DeadLetter]:
    """Letters with these bodies, in this order."""
    for body in bodies:
        await store.publish(message(body, **options))
        taken = await claim(store, queue=options.get("queue", QUEUE))
        await store.settle([Settlement(delivery, Dead("rejected")) for delivery in taken])
    return list(reversed(await store.dead(EVERYTHING, limit=len(bodies))))


async def letters(store: PostgresStore, *queues: str, limit: int = 10) -> list[bytes]:
    claimed = await store.claim_dead(queues or (QUEUE,), limit=limit, lease=LEASE, token=uuid4())
    assert all(isinstance(delivery, DeadDelivery) for delivery in claimed.deliveries)
    return [delivery.body for delivery in claimed.deliveries]


def lock(*found: DeadLetter) -> str:
    ids = ",".join(str(letter.id) for letter in found)
    return f"select 1 from nightmail_dead where id in ({ids}) for update"


# ------------------------------------------------------------------------------------------ claiming


async def test_a_claim_takes_the_next_letters_for_those_that_somebody_has_locked(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        first, second, *_ = await bury(store, b"1", b"2", b"3", b"4", b"5")

        async with raw_connection(postgres_url) as transaction:
            await transaction.execute(lock(first, second))
            assert await letters(store, limit=2) == [b"3", b"4"]

        assert await letters(store) == [b"1", b"2", b"5"]


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


async def test_a_message_that_dies_may_be_looked_after_by_whoever_held_a_letter_of_the_same_name(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store:
        await bury(store, b"first", b"second", timer_id="t")

        claimed = await store.claim_dead([QUEUE], limit=10, lease=LEASE, token=uuid4())
        held = await store.settle([Settlement(delivery, Done()) for delivery in claimed.deliveries])

        assert held == [WriteResult.WRITTEN, WriteResult.WRITTEN]
        assert await store.dead(EVERYTHING) == []


# --------------------------------------------------------------------------------------- redriving


@pytest.mark.parametrize("commits", [True, False])
async def test_a_redrive_waits_for_a_publish_of_its_name_to_be_decided(
    postgres_url: str, commits: bool
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        (letter,) = await bury(store, b"dead", timer_id="t")
        transaction = own.transaction()
        await transaction.start()
        await store.publish(message(b"alive", timer_id="t"), transaction=own)

        redriving = asyncio.create_task(store.redrive([letter]))
        await until(lambda: _waits(postgres_url))
        await (transaction.commit() if commits else transaction.rollback())

        assert len(await redriving) == (0 if commits else 1)
        assert [found.body for found in await store.peek()] == [b"alive" if commits else b"dead"]
        assert [found.body for found in await store.dead(EVERYTHING)] == ([b"dead"] if commits else [])


async def _waits(url: str) -> bool:
    async with connection(url) as own:
        return bool(
            await own.fetchval(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
                "and application_name = 'nightmail publish'"
            )
        )


async def test_two_redrives_that_want_each_others_names_both_end(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, open_store(postgres_url) as other:
        names = [f"timer {number}" for number in range(20)]
        first = [(await bury(store, b"first", timer_id=name))[0] for name in names]
        second = [(await bury(store, b"second", timer_id=name))[0] for name in names]

        moved = await asyncio.gather(store.redrive(first), other.redrive(second[::-1]))

        assert sum(len(ids) for ids in moved) == 20
        assert sorted(str(found.timer_id) for found in await store.peek()) == sorted(names)
        assert len(await store.dead(EVERYTHING)) == 20


async def test_letters_redriven_by_several_at_once_move_once(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, open_store(postgres_url) as other:
        buried = await bury(store, *[b"%d" % number for number in range(30)])

        moved = await asyncio.gather(
            store.redrive(buried), other.redrive(buried[::-1]), store.redrive(buried)
        )

        assert sum(len(ids) for ids in moved) == 30
        assert len({found.body for found in await store.peek()}) == 30
        assert await store.dead(EVERYTHING) == []


async def test_a_letter_that_somebody_has_locked_stays_and_holds_up_nobody(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        locked, free = await bury(store, b"locked", b"free")

        async with raw_connection(postgres_url) as transaction:
            await transaction.execute(lock(locked))
            assert len(await store.redrive([locked, free])) == 1
            assert await store.purge(EVERYTHING, limit=10) == 0

        assert [found.body for found in await store.dead(EVERYTHING)] == [b"locked"]
        assert [found.body for found in await store.peek()] == [b"free"]


async def test_a_letter_named_twice_moves_once_and_in_its_last_place(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        first, second = await bury(store, b"first", b"second")

        assert len(await store.redrive([first, second, first])) == 2

        assert [delivery.body for delivery in await claim(store)] == [b"second", b"first"]


# ---------------------------------------------------------------------------------------- sweeping


async def test_a_sweep_passes_over_what_somebody_has_locked(postgres_url: str) -> None:
    async with open_store(postgres_url, keep_delivered=True) as store:
        await bury(store, b"1", b"2")
        await store.publish_batch([message(), message()])
        await done(store, await claim(store))
        for name in ("a", "b"):
            await store.publish(message(timer_id=name, dedup_for=timedelta(microseconds=1)))

        async with raw_connection(postgres_url) as transaction:
            for table in ("dead", "delivered", "dedup"):
                await transaction.execute(f"select 1 from nightmail_{table} limit 1 for update")
            assert await store.sweep(older_than=AT_ONCE, limit=10) == Swept(1, 1, 1)

        assert await store.sweep(older_than=AT_ONCE, limit=10) == Swept(1, 1, 1)


@pytest.mark.parametrize("age", [timedelta.max, timedelta.min])
async def test_every_age_can_be_asked_for(postgres_url: str, age: timedelta) -> None:
    async with open_store(postgres_url) as store:
        await bury(store, b"young")
        expected = 0 if age > AT_ONCE else 1

        assert len(await store.dead(DeadFilter(older_than=age))) == expected
        assert await store.purge(DeadFilter(older_than=age), limit=10) == expected
        assert await store.sweep(older_than=age, limit=10) == Swept()
