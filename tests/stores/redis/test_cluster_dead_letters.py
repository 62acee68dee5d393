"""Dead letters in a cluster: to a queue in another slot they go in several steps, and none of them loses anything."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.message import DeadDelivery
from nightmail.outcome import Dead, Release, WriteResult
from nightmail.records import DeadFilter, DeadLetter
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore
from nightmail.stores.redis.cluster.crossing import Crossing
from nightmail.stores.redis.requests import Commands
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import LEASE, MINUTE, QUEUE, message
from testkit.servers.redis_cluster import RedisCluster
from tests.stores.redis.support import open_store
from tests.stores.support import claim, done

pytestmark = [pytest.mark.redis, pytest.mark.slow]
pytest_plugins = ["testkit.cluster_fixtures"]

ELSEWHERE = "refunds"
THIRD = "parcels"


async def buried(store: RedisStore, body: bytes = b"hello", **options: Any) -> DeadLetter:
    await store.publish(message(body, **options))
    (delivery,) = await claim(store, queue=options.get("queue", QUEUE))
    await store.settle([Settlement(delivery, Dead("rejected", "it was odd"))])
    return (await store.dead(DeadFilter(), limit=1))[0]


async def claim_dead(store: RedisStore, *queues: str) -> list[DeadDelivery]:
    claimed = await store.claim_dead(queues or [QUEUE], limit=10, lease=LEASE, token=uuid4())
    return [each for each in claimed.deliveries if isinstance(each, DeadDelivery)]


async def marks(store: RedisStore) -> int:
    """What came from another slot and is not forgotten."""
    key = f"{store.tag(ELSEWHERE)}:moved"
    (count,) = await store._runtime.publish.run(Commands(key, ("ZCARD", key)))
    return int(count)


def broken_off(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Until this is undone, this step of a move is not reached."""

    async def die(*_: Any, **__: Any) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(Crossing, step, die)


# -------------------------------------------------------------------------------------- whole moves


async def test_letters_of_several_slots_are_claimed_and_settled_in_one_go(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        await buried(store, b"a")
        await buried(store, b"b", queue=ELSEWHERE)
        letters = await claim_dead(store, QUEUE, ELSEWHERE)

        assert [letter.body for letter in letters] == [b"a", b"b"]
        assert await store.extend(letters, LEASE) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
        assert await done(store, list(letters)) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
        assert await store.stats() == {}


async def test_a_letter_moves_to_another_slot_whole(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        letter = await buried(
            store, b"\xff body", headers={"a": 1}, timer_id="t", ordering_key="k", priority=3, queue=QUEUE
        )
        (moved,) = await store.redrive([letter], to=ELSEWHERE)

        (delivery,) = await claim(store, queue=ELSEWHERE)
        assert (delivery.id, delivery.body, delivery.timer_id) == (moved, b"\xff body", "t")
        assert (delivery.ordering_key, delivery.priority, delivery.attempts) == ("k", 3, 0)
        assert delivery.headers["a"] == 1
        assert delivery.headers["nightmail-died-in"] == QUEUE
        assert await store.dead(DeadFilter()) == []
        assert await marks(store) == 0


async def test_letters_stay_in_their_own_queues_in_one_step_each(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        letters = [await buried(store), await buried(store, queue=ELSEWHERE)]
        moved = await store.redrive(letters)

        assert [(each.id, each.queue) for each in await store.peek()] == [
            (moved[0], QUEUE),
            (moved[1], ELSEWHERE),
        ]


async def test_a_letter_whose_name_is_taken_there_stays_and_may_be_looked_after(
    cluster: RedisCluster,
) -> None:
    async with open_store(cluster.url) as store:
        letter = await buried(store, timer_id="t")
        await store.publish(message(b"timer_owner", timer_id="t", queue=ELSEWHERE))

        assert await store.redrive([letter], to=ELSEWHERE) == []
        assert await store.dead(DeadFilter()) == [letter]
        assert [each.id for each in await claim_dead(store)] == [letter.id]
        assert [each.body for each in await store.peek(ELSEWHERE)] == [b"timer_owner"]


async def test_without_its_name_it_goes(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        letter = await buried(store, timer_id="t")
        await store.publish(message(b"timer_owner", timer_id="t", queue=ELSEWHERE))

        assert len(await store.redrive([letter], to=ELSEWHERE, keep_timer_ids=False)) == 1
        assert sorted(each.timer_id or "" for each in await store.peek(ELSEWHERE)) == ["", "t"]


async def test_of_several_from_several_slots_the_last_one_gets_the_name(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        letters = [
            await buried(store, b"first", timer_id="t"),
            await buried(store, b"second", timer_id="t", queue=ELSEWHERE),
            await buried(store, b"last", timer_id="t", queue=THIRD),
            await buried(store, b"nameless"),
        ]
        moved = await store.redrive(letters, to=ELSEWHERE)

        waiting = await store.peek(ELSEWHERE)
        assert [(each.id, each.body) for each in waiting] == [(moved[0], b"last"), (moved[1], b"nameless")]
        assert {letter.body for letter in await store.dead(DeadFilter())} == {b"first", b"second"}


async def test_a_letter_that_is_held_or_gone_stays_out_of_it(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        held, gone = await buried(store, b"held"), await buried(store, b"gone", queue=THIRD)
        await claim_dead(store)
        await store.purge(DeadFilter(ids=(gone.id,)), limit=1)

        assert await store.redrive([held, gone], to=ELSEWHERE) == []
        assert await store.peek() == []


# ------------------------------------------------------------------------------------- broken off


@pytest.mark.parametrize("step", ["_store", "_end"])
async def test_a_move_that_was_broken_off_keeps_the_letter_and_ends_when_it_is_repeated(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    clock = ManualClock()
    async with open_store(cluster.url, clock=clock) as store:
        letter = await buried(store, timer_id="t")
        broken_off(monkeypatch, step)
        with pytest.raises(StoreUnavailable):
            await store.redrive([letter], to=ELSEWHERE)
        monkeypatch.undo()
        there = [each.id for each in await store.peek(ELSEWHERE)]

        # Until then it can be neither claimed nor purged.
        assert await store.dead(DeadFilter()) == [letter]
        assert await claim_dead(store) == []
        assert await store.purge(DeadFilter(), limit=10) == 0
        assert await store.redrive([letter], to=ELSEWHERE) == []
        assert await store.redrive([letter]) == []

        clock.advance(MINUTE)
        moved = await store.redrive([letter], to=ELSEWHERE)
        assert [each.id for each in await store.peek(ELSEWHERE)] == moved
        assert there in ([], moved)
        assert await store.dead(DeadFilter()) == []
        assert await marks(store) == 0


async def test_a_repeated_move_stores_nothing_though_the_message_was_delivered_meanwhile(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with open_store(cluster.url, clock=clock) as store:
        letter = await buried(store)
        broken_off(monkeypatch, "_end")
        with pytest.raises(StoreUnavailable):
            await store.redrive([letter], to=ELSEWHERE)
        monkeypatch.undo()
        (delivery,) = await claim(store, queue=ELSEWHERE)
        await done(store, [delivery])

        clock.advance(MINUTE)
        assert await store.redrive([letter], to=ELSEWHERE) == [delivery.id]
        assert await store.stats() == {}


async def test_a_letter_that_was_given_up_is_not_offered_after_a_move_was_broken_off(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with open_store(cluster.url, clock=clock) as store:
        letter = await buried(store)
        (held,) = await claim_dead(store)
        await store.settle([Settlement(held, Dead("hopeless"))])
        broken_off(monkeypatch, "_store")
        with pytest.raises(StoreUnavailable):
            await store.redrive([letter], to=ELSEWHERE)
        monkeypatch.undo()

        clock.advance(MINUTE)
        assert await claim_dead(store) == []
        assert len(await store.redrive([letter], to=ELSEWHERE)) == 1


async def test_a_letter_that_was_taken_over_while_it_moved_is_there_twice_and_not_lost(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    end = Crossing._end
    async with open_store(cluster.url, clock=clock) as store:
        letter = await buried(store)
        taken: list[DeadDelivery] = []

        async def late(crossing: Crossing, *arguments: Any) -> set[int]:
            clock.advance(MINUTE)
            taken.extend(await claim_dead(store))
            return await end(crossing, *arguments)

        monkeypatch.setattr(Crossing, "_end", late)
        moved = await store.redrive([letter], to=ELSEWHERE)

        assert [each.id for each in await store.peek(ELSEWHERE)] == moved
        # Its holder may still have it moved to where it is already.
        monkeypatch.undo()
        assert await store.settle([Settlement(taken[0], Release())]) == [WriteResult.WRITTEN]
        assert await store.redrive([letter], to=ELSEWHERE) == moved
        assert [each.id for each in await store.peek()] == moved
        assert await store.dead(DeadFilter()) == []


async def test_a_letter_that_arrived_before_is_ended_though_a_later_one_has_its_name(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with open_store(cluster.url, clock=clock) as store:
        letter = await buried(store, b"arrived", timer_id="t")
        broken_off(monkeypatch, "_end")
        with pytest.raises(StoreUnavailable):
            await store.redrive([letter], to=ELSEWHERE)
        monkeypatch.undo()
        later = await buried(store, b"later", timer_id="t")
        clock.advance(MINUTE)

        moved = await store.redrive([letter, later], to=ELSEWHERE)
        assert [(each.id, each.body) for each in await store.peek()] == [(moved[0], b"arrived")]
        assert len(moved) == 1
        assert await store.dead(DeadFilter()) == [later]


async def test_what_a_move_left_behind_is_swept(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(cluster.url) as store:
        letter = await buried(store)
        broken_off(monkeypatch, "_forget")
        with pytest.raises(StoreUnavailable):
            await store.redrive([letter], to=ELSEWHERE)
        monkeypatch.undo()
        await store.sweep(older_than=timedelta(0), limit=10)
        assert await marks(store) == 1

        # As if all of it had been long ago.
        monkeypatch.setattr("nightmail.stores.redis.sweeping._SHORTEST_MEMORY", timedelta(days=-1))
        await store.sweep(older_than=timedelta(days=-1), limit=10)
        assert await marks(store) == 0


async def test_a_letter_that_its_new_queue_has_no_memory_for_is_not_held_any_longer(
    cluster: RedisCluster,
) -> None:
    async with open_store(cluster.url) as store:
        letter = await buried(store)
        await store.publish(message(b"listed", queue=ELSEWHERE))
        for node in cluster.masters():
            node.ask("CONFIG", "SET", "maxmemory", "1mb")
        try:
            with pytest.raises(StoreUnavailable):
                await store.redrive([letter], to=ELSEWHERE)
        finally:
            for node in cluster.masters():
                node.ask("CONFIG", "SET", "maxmemory", "0")

        assert len(await store.redrive([letter], to=ELSEWHERE)) == 1
