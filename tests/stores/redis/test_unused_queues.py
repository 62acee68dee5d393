"""Queues that are used no more: nothing of them stays, and what is published to them later is found."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from nightmail.message import Message
from nightmail.stores.redis import sweeping
from nightmail.stores.redis.link import Link
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, MINUTE, message
from tests.stores.redis.support import client, open_store
from tests.stores.support import claim, done

pytestmark = pytest.mark.redis

DAY = timedelta(days=1)


@pytest.fixture
def ids_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are made by the machine's clock, and the test's clock is another: whatever was published is long ago."""
    monkeypatch.setattr(sweeping, "_id_of", lambda age: 2**62)


async def keys(own: Any) -> set[str]:
    return {key.decode() for key in await own.keys("{nightmail:*")}


@pytest.mark.usefixtures("ids_age")
async def test_nothing_is_left_of_a_queue_that_has_been_empty_for_long(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        await store.publish(message(timer_id="t", ordering_key="k", dedup_for=MINUTE))
        await done(store, await claim(store))
        await store.publish(Message(queue="in use", body=b"stays"))
        clock.advance(2 * HOUR)

        await store.sweep(older_than=DAY, limit=100)

        assert not any("orders" in key for key in await keys(own))
        assert await own.zrange("{nightmail}:queues", 0, -1) == [b"in use"]


@pytest.mark.usefixtures("ids_age")
async def test_a_queue_that_was_listed_not_long_ago_stays_listed(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        await store.publish(message())
        await done(store, await claim(store))
        clock.advance(30 * MINUTE)

        await store.sweep(older_than=DAY, limit=100)

        # A publisher may have listed it, and be about to publish.
        assert await own.zrange("{nightmail}:queues", 0, -1) == [b"orders"]


@pytest.mark.usefixtures("ids_age")
async def test_who_published_to_a_queue_that_was_struck_off_lists_it_again(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, open_store(redis_url, clock=clock) as other:
        await store.publish(message())
        await done(store, await claim(store))
        clock.advance(2 * HOUR)
        await other.sweep(older_than=DAY, limit=100)

        await store.publish(message(b"again"))

        assert [pending.body for pending in await other.peek()] == [b"again"]
        assert list(await other.stats()) == ["orders"]


async def test_a_queue_that_is_used_is_listed_again_now_and_then(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        await store.publish(message())
        (first,) = (await own.zrange("{nightmail}:queues", 0, -1, withscores=True))[0][1:]
        clock.advance(50 * MINUTE)
        await store.publish(message())
        (second,) = (await own.zrange("{nightmail}:queues", 0, -1, withscores=True))[0][1:]

        assert second - first == 50 * 60 * 1_000_000


async def test_statistics_of_many_queues_take_a_few_round_trips(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights: list[int] = []
    ask = Link.ask

    async def noted(link: Link, *commands: Sequence[Any]) -> list[Any]:
        flights.append(len(commands))
        return await ask(link, *commands)

    async with open_store(redis_url) as store:
        await store.publish_batch([Message(queue=f"queue {number}", body=b"") for number in range(500)])
        await store.stats()
        monkeypatch.setattr(Link, "ask", noted)

        assert len(await store.stats()) == 500
        assert len(flights) <= 11
        flights.clear()
        assert len(await store.peek(limit=1000)) == 500
        assert len(flights) <= 12
