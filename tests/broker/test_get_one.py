"""Messages taken by hand: `get_one`, and `async for`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from faststream import BaseMiddleware

from nightmail import Delivery, OutboxBroker
from nightmail.errors import LeaseLost
from nightmail.observe import Observer
from nightmail.outcome import Dead, Done, Postpone, Reason, Release, Retry
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.broker.support import AT_ONCE, HOUR, Heard, Make, in_memory


async def test_a_message_is_taken_and_gone_once_it_is_acknowledged(make: Make) -> None:
    async with make() as broker:
        subscriber = broker.subscriber("q")
        sent = await broker.publish({"id": 7}, "q")

        msg = await subscriber.get_one()

        assert msg is not None
        assert (msg.id, await msg.decode()) == (sent, {"id": 7})
        assert (await broker.stats())["q"].running == 1
        await msg.ack()
        assert await broker.stats() == {}


async def test_one_that_is_published_meanwhile_is_waited_for(make: Make) -> None:
    async with make() as broker:
        waiting = asyncio.create_task(broker.subscriber("q").get_one(timeout=10))
        await asyncio.sleep(0)
        sent = await broker.publish("x", "q")

        msg = await waiting

        assert msg is not None
        assert msg.id == sent
        await msg.ack()


async def test_when_none_comes_there_is_none(make: Make) -> None:
    async with make() as broker:
        await broker.publish("x", "q", activate_in=HOUR)

        assert await broker.subscriber("q").get_one(timeout=0) is None


async def test_every_decision_is_written_at_once(make: Make) -> None:
    async with make(retry=AT_ONCE) as broker:
        subscriber = broker.subscriber("q")
        await broker.publish("x", "q")

        async def take() -> Any:
            return await subscriber.get_one()

        await (first := await take()).nack()
        await (second := await take()).nack(delay=0)
        await (third := await take()).postpone(0.1)
        fourth = await take()
        await fourth.reject("enough")
        await fourth.ack()  # The first decision counts.

        assert [msg.attempt for msg in (first, second, third, fourth)] == [1, 2, 3, 1]
        assert [letter.reason for letter in await broker.dead_letters("q")] == ["enough"]


async def test_a_worker_that_lost_the_lease_is_told(make: Make) -> None:
    async with make() as broker:
        await broker.publish("x", "q")
        msg = await broker.subscriber("q").get_one()
        assert msg is not None
        await broker.store.settle([Settlement(msg.delivery, Release())])

        with pytest.raises(LeaseLost):
            await msg.ack()
        assert (await broker.stats())["q"].ready == 1


async def test_a_loop_takes_one_after_the_other(make: Make) -> None:
    async with make() as broker:
        await broker.publish_batch("a", "b", "c", queue="q")
        taken = []

        async for msg in broker.subscriber("q"):
            taken.append(await msg.decode())
            await msg.ack()
            if len(taken) == 3:
                break

        assert taken == ["a", "b", "c"]


async def test_dead_letters_can_be_taken_too(make: Make) -> None:
    async with make() as broker:
        await broker.publish("x", "q")
        msg = await broker.subscriber("q").get_one()
        assert msg is not None
        await msg.reject("why not")

        letter = await broker.subscriber("q", dead_letters=True).get_one()

        assert letter is not None
        assert letter.dead is not None
        assert letter.dead.reason == "why not"
        await letter.ack()
        assert await broker.stats() == {}


@in_memory
async def test_middlewares_and_parsers_see_what_is_taken(make: Make) -> None:
    seen = []

    class Watching(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.append(msg.id)
            return await call_next(msg)

    async def shouting(msg: Any, original: Any) -> Any:
        return (await original(msg)).upper()

    async with make(middlewares=[Watching]) as broker:
        sent = await broker.publish("x", "q")
        msg = await broker.subscriber("q", decoder=shouting).get_one()

        assert msg is not None
        assert await msg.decode() == "X"
        assert seen == [sent]


@in_memory
async def test_what_need_not_run_is_passed_over(make: Make) -> None:
    async with make(max_deliveries=1) as broker:
        subscriber = broker.subscriber("q", lease_ttl_seconds=0.06)
        await broker.publish("kills its process", "q")
        await subscriber.get_one()
        await broker.publish("x", "q", activate_in=0.1)

        msg = await subscriber.get_one()

        assert msg is not None
        assert await msg.decode() == "x"
        assert [letter.reason for letter in await broker.dead_letters()] == ["max_deliveries"]


def test_a_subscriber_with_a_handler_cannot_be_taken_from() -> None:
    broker = OutboxBroker("memory://", logger=None)
    subscriber = broker.subscriber("q")

    @subscriber
    async def handle(body: str) -> None: ...

    with pytest.raises(RuntimeError, match="has a handler"):
        asyncio.run(_take(subscriber))


async def _take(subscriber: Any) -> None:
    await subscriber.get_one()


# ── what observers hear ───────────────────────────────────────────────────────────────────────────────────


class Everything(Heard):
    """Remembers claims too."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[int] = []
        self.superseded_ids: list[int] = []

    def claimed(self, deliveries: Sequence[Delivery]) -> None:
        self.claims += [delivery.id for delivery in deliveries]

    def superseded(self, delivery: Delivery) -> None:
        self.superseded_ids.append(delivery.id)


async def test_observers_hear_of_the_claim_and_of_each_decision_once_it_is_written(make: Make) -> None:
    heard = Everything()
    async with make(observer=heard, retry=AT_ONCE) as broker:
        subscriber = broker.subscriber("q")
        sent = await broker.publish("x", "q")

        async def take() -> Any:
            return await subscriber.get_one()

        first = await take()
        assert (heard.claims, heard.outcomes) == ([sent], [])
        await first.nack()
        await (await take()).postpone(0.1)
        last = await take()
        await last.ack()
        await last.reject("too late")  # The first decision counts.

    assert heard.claims == [sent, sent, sent]
    assert heard.of(sent) == [Retry(timedelta(0)), Postpone(timedelta(milliseconds=100)), Done()]
    assert heard.lost == []


async def test_observers_hear_of_a_lost_lease(make: Make) -> None:
    heard = Everything()
    async with make(observer=heard) as broker:
        sent = await broker.publish("x", "q")
        msg = await broker.subscriber("q").get_one()
        assert msg is not None
        await broker.store.settle([Settlement(msg.delivery, Release())])

        with pytest.raises(LeaseLost):
            await msg.ack()

    assert (heard.claims, heard.outcomes, heard.lost) == ([sent], [], [sent])


@in_memory
async def test_observers_hear_of_what_is_passed_over(make: Make) -> None:
    heard = Everything()
    async with make(observer=heard, max_deliveries=1) as broker:
        subscriber = broker.subscriber("q", lease_ttl_seconds=0.06)
        sent = await broker.publish("kills its process", "q")
        await subscriber.get_one()

        assert await subscriber.get_one(timeout=0.2) is None

    assert heard.claims == [sent, sent]
    assert heard.of(sent) == [Dead(Reason.MAX_DELIVERIES, ran=False)]


@in_memory
async def test_observers_hear_of_a_message_that_was_replaced_while_a_worker_had_it(make: Make) -> None:
    heard = Everything()
    async with make(observer=heard) as broker:
        subscriber = broker.subscriber("q")
        sent = await broker.publish("old", "q", timer_id="t")
        msg = await subscriber.get_one()
        assert msg is not None
        await broker.publish("new", "q", timer_id="t", on_conflict="replace", activate_in=HOUR)
        await msg.nack()

        assert await subscriber.get_one(timeout=0) is None

    assert heard.superseded_ids == [sent]
    assert heard.claims == [sent, sent]
    assert isinstance(heard.of(sent)[-1], Done)


@in_memory
async def test_a_caller_that_takes_nothing_claims_nothing(make: Make) -> None:
    calls: list[int] = []

    class Counting(Observer):
        def claimed(self, deliveries: Sequence[Delivery]) -> None:
            calls.append(len(deliveries))

    async with make(observer=Counting()) as broker:
        assert await broker.subscriber("q").get_one(timeout=0) is None

    assert calls == []


async def test_a_probe_that_is_too_old_to_be_taken_makes_room_for_the_next_one() -> None:
    clock = ManualClock()
    async with OutboxBroker(MemoryStore(MemoryData(), clock=clock), logger=None) as broker:
        subscriber = broker.subscriber("q")
        await broker.publish("old", "q", expires_in=1)
        sent = await broker.publish("new", "q")
        await broker.store.pause("q", until=HOUR, by="host/1", automatic=True)
        clock.advance(HOUR)

        msg = await subscriber.get_one(timeout=10)

        assert msg is not None
        assert msg.id == sent
