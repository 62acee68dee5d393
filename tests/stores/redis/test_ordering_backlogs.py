"""Ordering keys when thousands of messages become due at once: in order, and one portion for each call."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Done, WriteResult
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore, script_calls
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, MINUTE, QUEUE, SECOND, message
from tests.stores.redis.backlogs import PORTION, TAG, copy_the_last, counted
from tests.stores.redis.support import client, open_store

pytestmark = pytest.mark.redis

LONG = 200_000
T = TypeVar("T")


async def everything(own: Any) -> dict[bytes, Any]:
    """What the queue consists of, with numbers in place of its ids."""
    ids = sorted(key[-16:] for key in await own.keys(f"{TAG}:m:*"))
    numbers = {id_: b"%d" % place for place, id_ in enumerate(ids)}

    def told(value: Any) -> Any:
        if isinstance(value, bytes):
            for id_, number in numbers.items():
                value = value.replace(id_, number)
            return value
        if isinstance(value, dict):
            return {told(name): told(each) for name, each in value.items()}
        return value

    found = {}
    for key in await own.keys(f"{TAG}*"):
        match await own.type(key):
            case b"hash":
                value: Any = await own.hgetall(key)
            case b"zset":
                value = dict(await own.zrange(key, 0, -1, withscores=True))
            case _:
                value = await own.get(key)
        found[told(key)] = told(value)
    return found


async def drained(store: RedisStore, limit: int = 100) -> list[list[Delivery]]:
    """Everything that is due, each claim as it came, until one says that this was all."""
    claims: list[list[Delivery]] = []
    while True:
        claimed = await store.claim([QUEUE], limit=limit, lease=LEASE, token=uuid4())
        claims.append(list(claimed.deliveries))
        await store.settle([Settlement(each, Done()) for each in claimed.deliveries])
        if not claimed.full and not claimed.deliveries:
            return claims


async def commands(own: object) -> int:
    """How many commands the server has carried out, those of scripts included."""
    found = await own.info("commandstats")  # type: ignore[attr-defined]  # redis-py's types are not ours to mend
    return sum(each["calls"] for each in found.values())


async def test_a_key_whose_messages_become_due_by_the_thousand_goes_in_order(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        count = 2 * PORTION + 500
        # The later a message was published, the earlier it is due.
        await store.publish_batch(
            [
                message(b"%d" % number, ordering_key="k", due=HOUR - number * timedelta(milliseconds=1))
                for number in range(count)
            ]
        )
        clock.advance(2 * HOUR)

        found: list[int] = []
        for _ in range(20):
            claimed = await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())
            found += [int(each.body) for each in claimed.deliveries]
            await store.settle([Settlement(each, Done()) for each in claimed.deliveries])
            assert claimed.full or claimed.deliveries

        assert found == list(range(len(found)))
        assert len(found) > 10


async def test_while_one_key_lines_up_the_others_and_those_without_a_key_are_delivered(
    redis_url: str,
) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        await store.publish(message(b"head", ordering_key="long"))
        await store.publish_batch(
            [
                message(b"%d" % number, ordering_key="long", due=MINUTE - number * timedelta(milliseconds=1))
                for number in range(3 * PORTION)
            ]
        )
        clock.advance(HOUR)
        await store.publish_batch([message(b"plain"), message(b"keyed", ordering_key="other")])

        first = await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())

        # The lowest id of the long line may be among those that do not stand in it yet.
        assert [each.body for each in first.deliveries] == [b"plain", b"keyed"]
        assert first.full

        bodies = [each.body for claims in await drained(store) for each in claims]
        assert bodies == [b"head", *(b"%d" % number for number in range(3 * PORTION))]


async def test_keys_with_one_delayed_message_each_are_claimed_at_once(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        many = 2 * PORTION
        await store.publish_batch(
            [message(b"low %d" % number, ordering_key=str(number), due=HOUR) for number in range(many)]
        )
        await store.publish_batch(
            [message(b"high %d" % number, ordering_key=str(number), due=MINUTE) for number in range(many)]
        )
        clock.advance(2 * HOUR)

        claimed = await store.claim([QUEUE], limit=100, lease=LEASE, token=uuid4())

        assert len(claimed.deliveries) == 100
        assert all(each.body.startswith(b"low") for each in claimed.deliveries)


async def test_one_call_lines_up_one_portion_however_many_are_due(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        counts = []
        for size in (12, 24):
            await own.flushdb()
            await store.migrate()
            await store.publish_batch(
                [message(ordering_key=str(number % 50), due=SECOND) for number in range(size * PORTION)]
            )
            clock.advance(HOUR)
            before = await commands(own)
            await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())
            counts.append(await commands(own) - before)

        assert counts[1] < 1.1 * counts[0]


async def test_copies_of_a_follower_are_what_publishing_leaves(redis_url: str) -> None:
    async with open_store(redis_url, clock=ManualClock()) as store, client(redis_url) as own:
        await store.publish_batch([message(b"line", ordering_key="k") for _ in range(6)])
        published = await everything(own)
        await own.flushdb()
        await store.migrate()
        await store.publish_batch([message(b"line", ordering_key="k") for _ in range(2)])
        await copy_the_last(own, 4)

        assert await everything(own) == published


async def test_a_claim_costs_the_same_with_a_long_line_behind_one_key(
    server_in_memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "script", counted)
    costs = []
    for followers in (10, LONG):
        async with client(server_in_memory) as own:
            await own.flushdb()
            async with open_store(server_in_memory) as store:
                await store.publish_batch([message(b"line", ordering_key="k") for _ in range(2)])
                await copy_the_last(own, followers - 1)
                await store.publish_batch([message(b"other") for _ in range(5)])
                costs.append(await costs_of_a_line(store, own))

    assert costs[0] == costs[1]


async def costs_of_a_line(store: RedisStore, own: Any) -> list[int]:
    """What it costs to claim the first and what is behind its line, to claim nothing, to settle, to claim the next."""

    async def cost(work: Awaitable[T]) -> tuple[T, int]:
        await own.delete("cost")
        return await work, int(await own.get("cost"))

    async def claimed(*bodies: bytes) -> tuple[list[Delivery], int]:
        found, calls = await cost(store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4()))
        assert [each.body for each in found.deliveries] == [*bodies]
        assert not found.full
        return list(found.deliveries), calls

    first, free = await claimed(b"line", *[b"other"] * 5)
    _, held = await claimed()
    results, settled = await cost(store.settle([Settlement(each, Done()) for each in first]))
    assert set(results) == {WriteResult.WRITTEN}
    _, again = await claimed(b"line")
    return [free, held, settled, again]
