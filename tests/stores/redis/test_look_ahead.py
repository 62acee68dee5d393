"""What an idle process is told of many queues at once: never later than a claim would find something."""

from __future__ import annotations

from uuid import uuid4

import pytest

from nightmail.stores.redis import RedisStore, script_calls
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import MINUTE, SECOND, claim_all, message
from tests.stores.redis.backlogs import counted
from tests.stores.redis.support import client, open_store
from tests.stores.shared.look_ahead import NOW, QUEUES, LookAheadPastWhatWaits
from tests.stores.support import opened

pytestmark = pytest.mark.redis


class TestLookAhead(LookAheadPastWhatWaits):
    """On this store."""


async def test_a_look_ahead_expects_the_end_of_an_automatic_pause_and_then_a_probe(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        await store.publish(message(queue="a"))
        await store.pause("a", until=MINUTE, by="breaker", automatic=True)

        assert await store.look_ahead(["a"]) == {"a": MINUTE}
        clock.advance(MINUTE)
        assert await store.look_ahead(["a"]) == {"a": NOW}
        assert (await store.claim(["a"], limit=1, lease=MINUTE, token=uuid4())).probe


async def test_a_look_ahead_of_a_queue_that_is_paused_twice_tells_the_first_end(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        await store.publish(message(queue="a"))
        await store.pause("a", until=MINUTE, by="me")
        await store.pause("a", until=SECOND * 90, by="breaker", automatic=True)

        # Too early, as a claim tells it too.
        assert await store.look_ahead(["a"]) == {"a": MINUTE}
        clock.advance(MINUTE)
        assert await claim_all(store, "a") == []
        assert await store.look_ahead(["a"]) == {"a": SECOND * 30}


async def test_a_look_ahead_ignores_a_pause_that_is_over(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        await store.publish(message(queue="a", due=MINUTE * 2))
        await store.pause("a", until=MINUTE, by="me")

        clock.advance(MINUTE)
        assert await store.look_ahead(["a"]) == {"a": MINUTE}


async def test_a_look_ahead_leaves_it_to_a_claim_what_is_paused_by_its_key(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        await store.publish(message(queue="a", ordering_key="paused", due=SECOND))
        await store.pause("a", ordering_key="paused", until=MINUTE, by="me")

        assert await store.look_ahead(["a"]) == {"a": SECOND}
        clock.advance(SECOND)
        assert await claim_all(store, "a") == []
        assert await store.look_ahead(["a"]) == {"a": NOW}


async def test_a_look_ahead_costs_the_same_whatever_is_in_a_queue(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "script", counted)
    costs = []
    async with client(redis_url) as own, open_store(redis_url, clock=ManualClock()) as store:
        for count in (1, 300):
            for number in range(count):
                await store.pause("a", ordering_key=f"paused {number}", by="me")
            keys = [f"paused {number}" for number in range(count)] + ["key"] * count
            await store.publish_batch([message(queue="a", ordering_key=key) for key in keys])
            await store.publish_batch([message(queue="a", due=MINUTE, priority=n) for n in range(10)] * count)
            await store.publish_batch([message(queue="a", due=MINUTE, ordering_key="key")] * count)
            await store.publish_batch([message(queue="a")] * count)
            await claim_all(store, "a", lease=MINUTE)
            await own.delete("cost")
            await store.look_ahead(["a"])
            costs.append(int(await own.get("cost")))

    # The pauses, then a first due time at each priority, of what is later and of what runs: a value and its score.
    assert costs == [3 + 12 * 3] * 2


async def test_many_queues_are_asked_for_in_several_calls(redis_url: str) -> None:
    """One call for a thousand would hold up all clients of the server for tens of milliseconds."""
    queues = [f"queue {number}" for number in range(120)]
    async with client(redis_url) as own, open_store(redis_url, clock=ManualClock()) as store:
        for queue in queues:
            await store.publish(message(queue=queue, due=MINUTE))
        await store.look_ahead(queues)
        before = (await own.info("commandstats"))["cmdstat_evalsha"]["calls"]

        assert await store.look_ahead(queues) == dict.fromkeys(queues, MINUTE)

        assert (await own.info("commandstats"))["cmdstat_evalsha"]["calls"] == before + 3


async def test_in_a_cluster_a_look_ahead_leaves_it_to_the_claims() -> None:
    async with opened(RedisStore("redis+cluster://nowhere"), migrate=False) as store:
        assert await store.look_ahead(QUEUES) == dict.fromkeys(QUEUES, NOW)
