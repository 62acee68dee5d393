"""What is known about a message: the same as in the memory store, wherever the keys of Redis have it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from nightmail.controls import MOST_AHEAD, MessageFacts
from nightmail.outcome import Dead, Retry
from nightmail.store import FullStore, Settlement
from nightmail.stores.memory import MemoryStore
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, MINUTE, QUEUE, SECOND, message
from tests.stores.redis.support import open_store
from tests.stores.support import bury, claim, done, opened, settle

pytestmark = pytest.mark.redis


async def a_queue_of_everything(store: FullStore, clock: ManualClock) -> list[int]:
    """Messages in every state and place; their ids, in order."""
    ids: list[int | None] = []

    async def add(**options: Any) -> None:
        ids.append(await store.publish(message(**options)))

    for key in ("held", "retried", "expired"):
        await add(ordering_key=key)
    await add(timer_id="replaced", priority=3)
    taken = await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())
    by_key = {each.ordering_key: each for each in taken.deliveries}
    await settle(store, [by_key["retried"]], Retry(MINUTE))
    await store.extend([by_key["held"], by_key[None]], HOUR)
    await add(timer_id="replaced", on_conflict="replace")
    for key in ("held", "retried", "expired", "new", "new"):
        await add(ordering_key=key)
        await add(ordering_key=key, due=2 * SECOND)
    await add(ordering_key="later", due=3 * SECOND)
    await add(ordering_key="later", due=SECOND)
    for priority in (0, 9, 4):
        await add(priority=priority)
        await add(priority=priority, due=timedelta(days=1))
    # What has become due meanwhile is not in line yet, and an expired lease not taken back.
    clock.advance(LEASE + SECOND)
    await add()
    return [id_ for id_ in ids if id_ is not None]


def told(facts: MessageFacts, ids: list[int]) -> tuple[Any, ...]:
    """What two stores can have in common."""
    return (
        facts.message is not None and (facts.message.running, facts.message.due_at, facts.message.deliveries),
        facts.worker_id is not None,
        facts.key_held_by and ids.index(facts.key_held_by.id),
        facts.superseded_by and ids.index(facts.superseded_by),
        facts.ahead,
    )


async def test_facts_are_those_of_the_memory_store(redis_url: str) -> None:
    found = []
    clocks = ManualClock(), ManualClock()
    async with (
        open_store(redis_url, clock=clocks[0]) as store,
        opened(MemoryStore(clock=clocks[1])) as memory,
    ):
        for each, clock in ((store, clocks[0]), (memory, clocks[1])):
            ids = await a_queue_of_everything(each, clock)
            found.append([told(await each.facts(id_), ids) for id_ in ids])

    assert found[0] == found[1]
    assert len({ahead for *_, ahead in found[0]}) > 5


async def test_no_more_than_a_thousand_are_counted(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        await store.publish_batch([message() for _ in range(MOST_AHEAD + 50)])
        last = await store.publish(message())

        assert (await store.facts(last or 0)).ahead == MOST_AHEAD


async def test_when_a_message_was_delivered_is_told_where_that_is_kept(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock, keep_delivered=True) as store:
        await store.publish(message(queue="another"))
        id_ = await store.publish(message())
        await done(store, await claim(store))
        at = clock.now()
        clock.advance(HOUR)

        facts = await store.facts(id_ or 0)

        assert (facts.message, facts.delivered_at, facts.now) == (None, at, clock.now())


async def test_the_dead_letter_of_a_message_is_found_among_thousands(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        (first,) = await bury(store, b"first")
        await store.publish_batch([message() for _ in range(2_100)])
        taken = await store.claim([QUEUE], limit=2_100, lease=LEASE, token=uuid4())
        await store.settle([Settlement(each, Dead("rejected")) for each in taken.deliveries])

        facts = await store.facts(first.message_id)

        assert facts.letter is not None
        assert (facts.letter.id, facts.letter.body) == (first.id, b"")
        assert (await store.facts(4711)).letter is None


async def test_the_longest_running_are_told_however_often_their_leases_were_extended(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        begun = await running(store, clock, 5)
        await store.extend(begun[:1], HOUR)

        held = await store.leases(limit=3)

        assert [each.id for each in held] == [each.id for each in begun[:3]]
        assert await store.leases(limit=0) == []


async def running(store: RedisStore, clock: ManualClock, count: int) -> list[Any]:
    """So many running messages, begun one after the other."""
    begun = []
    for _ in range(count):
        await store.publish(message())
        begun += await claim(store)
        clock.advance(SECOND)
    return begun
