"""What pauses cost, and what they leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from nightmail.errors import NightmailError
from nightmail.store import Claimed
from nightmail.stores.redis import RedisStore, script_calls, sweeping
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, MINUTE, QUEUE, bodies, message
from tests.stores.redis.backlogs import copy_the_last, counted
from tests.stores.redis.support import client, open_store
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.redis

PAUSES = "{nightmail:orders}:controls"
DAY = timedelta(days=1)
MORE_THAN_A_PORTION = 2_500


async def look(store: RedisStore, *queues: str, limit: int = 10) -> Claimed:
    return await store.claim(queues or (QUEUE,), limit=limit, lease=LEASE, token=uuid4())


async def cost_of_a_look(store: RedisStore, own: Any, limit: int = 10) -> tuple[Claimed, int]:
    """A claim, and how many commands its script ran and how many values they answered."""
    await own.delete("cost")
    return await look(store, limit=limit), int(await own.get("cost"))


async def paused_keys(store: RedisStore, own: Any, count: int) -> None:
    """So many ordering keys, paused, each with two messages that are due."""
    names = [str(number) for number in range(count)]
    await store.publish_batch([message(b"held back", ordering_key=name) for name in 2 * names])
    await store.pause(QUEUE, ordering_key="0", by="ann")
    pause = await own.hget(PAUSES, "k0")
    await own.hset(PAUSES, mapping={f"k{name}": pause for name in names})


# -------------------------------------------------------------------------------------------- cost


async def test_a_claim_costs_the_same_however_many_messages_of_a_paused_key_are_due(
    server_in_memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "script", counted)
    costs = []
    for followers in (10, 100_000):
        async with client(server_in_memory) as own, open_store(server_in_memory) as store:
            await own.flushdb()
            await store.publish_batch([message(b"line", ordering_key="k") for _ in range(2)])
            await copy_the_last(own, followers - 1)
            await store.publish(message(b"free"))
            await store.pause(QUEUE, ordering_key="k", by="ann")

            found, with_a_message = await cost_of_a_look(store, own)
            nothing, without = await cost_of_a_look(store, own)

            assert (bodies(found.deliveries), found.full) == ([b"free"], False)
            assert (list(nothing.deliveries), nothing.full) == ([], False)
            costs.append((with_a_message, without))

    assert costs[0] == costs[1]


@pytest.mark.parametrize("limit", [1, 10])
async def test_many_paused_keys_cost_a_claim_a_few_commands(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(script_calls, "script", counted)
    costs = []
    async with open_store(redis_url) as store, client(redis_url) as own:
        for count in (2, 200):
            await own.flushdb()
            await paused_keys(store, own, count)
            await store.publish(message(b"free"))
            found, cost = await cost_of_a_look(store, own, limit)
            assert bodies(found.deliveries) == [b"free"]
            # Their fields with their values, their heads, and the heads again: in front of what is free, and beside
            # their due times where the next message is looked for.
            costs.append(cost - (4 + (2 if not found.full else 0)) * count)

    assert costs[1] <= costs[0] + 5


async def test_more_paused_keys_than_a_claim_looks_at_hide_nothing(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await paused_keys(store, own, MORE_THAN_A_PORTION)
        await store.publish(message(b"free"))
        await store.publish(message(b"free", ordering_key="another"))

        first, second = await look(store, limit=1), await look(store)

        assert bodies([*first.deliveries, *second.deliveries]) == [b"free", b"free"]
        assert (second.full, second.next_in is not None and second.next_in > LEASE / 2) == (False, True)


async def test_a_paused_queue_costs_a_claim_one_command_more_than_one_that_is_not(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_calls, "script", counted)
    async with open_store(redis_url) as store, client(redis_url) as own:
        _, without = await cost_of_a_look(store, own)
        await store.publish_batch([message() for _ in range(1000)])
        await store.pause(QUEUE, by="ann")

        _, paused = await cost_of_a_look(store, own)

    # One command with a field and its value; but what the queue holds is not looked at.
    assert paused <= without + 3


# ------------------------------------------------------------------------------------- what is left


async def test_a_claim_removes_the_pauses_that_are_over(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        await store.pause(QUEUE, by="ann", until=MINUTE)
        await store.pause(QUEUE, ordering_key="a", by="ann", until=MINUTE)
        await store.pause(QUEUE, ordering_key="b", by="ann", until=HOUR)
        clock.advance(MINUTE)

        await look(store)
        assert await own.hkeys(PAUSES) == [b"kb"]
        clock.advance(HOUR)
        await look(store)

        assert await own.exists(PAUSES) == 0


@pytest.fixture
def ids_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are made by the machine's clock, and the test's clock is another: whatever was published is long ago."""
    monkeypatch.setattr(sweeping, "_id_of", lambda age: 2**62)


@pytest.mark.usefixtures("ids_age")
async def test_a_paused_queue_without_messages_is_listed_until_it_is_resumed_and_then_leaves_nothing(
    redis_url: str,
) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        await store.pause(QUEUE, by="ann")
        clock.advance(2 * DAY)
        await store.sweep(older_than=DAY, limit=100)

        assert [pause.queue for pause in await store.pauses()] == [QUEUE]
        await store.resume(QUEUE)
        await store.sweep(older_than=DAY, limit=100)

        assert await own.keys("{nightmail:*") == []
        assert await own.exists("{nightmail}:queues") == 0


@pytest.mark.usefixtures("ids_age")
async def test_a_sweep_removes_the_pauses_that_are_over_from_a_queue_that_is_used_no_more(
    redis_url: str,
) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        await store.pause(QUEUE, by="ann", until=MINUTE)
        await store.pause(QUEUE, ordering_key="a", by="ann", until=MINUTE)
        clock.advance(2 * DAY)

        await store.sweep(older_than=DAY, limit=100)

        assert await own.keys("{nightmail:*") == []


async def test_resuming_what_was_never_used_leaves_nothing(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        assert await store.resume("never used") is False

        assert await own.keys("{nightmail:*") == []


# ------------------------------------------------------------------------------ written by other software


async def test_a_pause_that_cannot_be_read_is_in_force_until_it_is_resumed(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message())
        await own.hset(PAUSES, "q", "not ours")

        assert await claim(store) == []
        (pause,) = await store.pauses()
        assert (pause.until, pause.automatic, pause.ordering_key) == (None, False, None)
        assert await store.resume(QUEUE) is True

        assert len(await claim(store)) == 1


async def test_a_key_of_another_type_in_place_of_the_pauses_refuses_a_claim_before_it_takes_anything(
    redis_url: str,
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message())
        await own.set(PAUSES, "not ours")

        with pytest.raises(NightmailError):
            await claim(store)
        await own.delete(PAUSES)

        assert [delivery.deliveries for delivery in await claim(store)] == [1]


# ------------------------------------------------------------------------------------- cancelled callers


@pytest.mark.parametrize("turns", range(1, 14, 3))
async def test_a_pause_is_carried_out_whether_or_not_its_caller_still_waits(
    redis_url: str, turns: int
) -> None:
    async with open_store(redis_url) as store:
        task = asyncio.ensure_future(store.pause(QUEUE, by="ann"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        async def paused() -> bool:
            return len(await store.pauses()) == 1

        await until(paused)


# -------------------------------------------------------------------------------------------- probes


async def test_of_many_processes_that_claim_at_once_one_gets_the_probe(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        await store.publish_batch([message() for _ in range(20)])
        await store.pause(QUEUE, by="breaker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)

        claims: Sequence[Claimed] = await asyncio.gather(*(look(store) for _ in range(10)))

        assert [len(each.deliveries) for each in claims if each.probe] == [1]
        assert [list(each.deliveries) for each in claims if not each.probe] == [[]] * 9


async def test_a_probe_may_be_larger_than_what_a_claim_reads(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        await store.publish(message(b"x" * 1000))
        await store.pause(QUEUE, by="breaker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)

        probe = await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4(), max_bytes=10)

        assert (len(probe.deliveries), probe.probe) == (1, True)


async def test_a_probe_passes_over_paused_keys(redis_url: str) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store:
        await store.publish(message(b"held back", ordering_key="a"))
        await store.pause(QUEUE, ordering_key="a", by="ann")
        await store.pause(QUEUE, by="breaker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)

        nothing = await look(store)
        await store.publish(message(b"free"))
        probe = await look(store)

        assert (list(nothing.deliveries), nothing.probe, nothing.next_in) == ([], False, None)
        assert (bodies(probe.deliveries), probe.probe) == ([b"free"], True)
        await done(store, probe.deliveries)
