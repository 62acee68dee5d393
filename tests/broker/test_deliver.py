"""From publish to the handler, and what each decision leads to."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faststream import AckPolicy, FastStream
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SkipMessage, StopConsume
from pydantic import BaseModel

from nightmail import ConstantRetry, Delivery, NoRetry, OutboxBroker, OutboxRouter
from nightmail.annotations import OutboxBroker as CurrentBroker
from nightmail.annotations import OutboxMessage
from nightmail.message import Message
from nightmail.outcome import Dead, Done, Postpone, Reason, Retry
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.broker.support import AT_ONCE, Heard, Make, soon, started


class Order(BaseModel):
    """A typed payload."""

    id: int
    lines: list[str]


async def test_a_handler_gets_the_message_as_the_type_it_asked_for(make: Make, heard: Heard) -> None:
    broker, got, arrived = make(), [], asyncio.Event()

    @broker.subscriber("orders")
    async def take(order: Order) -> None:
        got.append(order)
        arrived.set()

    async with started(broker):
        sent = await broker.publish({"id": 7, "lines": ["tea"]}, "orders")
        await soon(arrived)
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert got == [Order(id=7, lines=["tea"])]


async def test_a_delayed_message_arrives_after_its_time_and_never_before(make: Make) -> None:
    broker, arrived = make(), asyncio.Event()
    early: list[timedelta] = []

    @broker.subscriber("reminders")
    async def remind(body: str, msg: OutboxMessage) -> None:
        early.append(msg.due_at - msg.delivery.claimed_at)
        arrived.set()

    async with started(broker):
        await broker.publish("tea time", "reminders", activate_in=0.2)
        assert [pending.queue for pending in await broker.pending()] == ["reminders"]
        await soon(arrived)

    assert len(early) == 1
    assert early[0] <= timedelta(0)


async def test_what_a_handler_may_ask_of_its_message(make: Make) -> None:
    broker, arrived = make(), asyncio.Event()
    seen: dict[str, Any] = {}

    @broker.subscriber("q")
    async def look(body: str, msg: OutboxMessage, me: CurrentBroker) -> None:
        seen.update(
            queue=msg.queue,
            attempt=msg.attempt,
            deliveries=msg.deliveries,
            timer_id=msg.timer_id,
            ordering_key=msg.ordering_key,
            colour=msg.headers["colour"],
            correlation=msg.correlation_id,
            id=msg.id,
            broker=me,
        )
        assert msg.published_at <= msg.due_at <= datetime.now(UTC) + timedelta(seconds=5)
        arrived.set()

    async with started(broker):
        sent = await broker.publish(
            "x", "q", timer_id="t", ordering_key="k", headers={"colour": "red"}, correlation_id="c-1"
        )
        await soon(arrived)

    assert seen == {
        "queue": "q",
        "attempt": 1,
        "deliveries": 1,
        "timer_id": "t",
        "ordering_key": "k",
        "colour": "red",
        "correlation": "c-1",
        "id": sent,
        "broker": broker,
    }


async def test_a_failing_handler_is_tried_again_until_it_succeeds(make: Make, heard: Heard) -> None:
    broker, attempts = make(retry=AT_ONCE), []

    @broker.subscriber("q")
    async def third_time_lucky(body: str, msg: OutboxMessage) -> None:
        attempts.append(msg.attempt)
        if msg.attempt < 3:
            raise RuntimeError("not yet")

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: Done() in heard.of(sent))

    assert attempts == [1, 2, 3]
    assert heard.of(sent) == [Retry(), Retry(), Done()]


async def test_a_handler_that_always_fails_ends_in_the_dead_letters_with_its_error(
    make: Make, heard: Heard
) -> None:
    broker = make(retry=ConstantRetry(delay=0, jitter=0, max_attempts=2))

    @broker.subscriber("q")
    async def never(body: str) -> None:
        raise RuntimeError("no such customer")

    async with started(broker):
        sent = await broker.publish("x", "q", headers={"colour": "red"})
        await heard.until(lambda: len(heard.of(sent)) == 2)
        (letter,) = await broker.dead_letters("q")

    assert (letter.message_id, letter.reason, letter.attempts) == (sent, Reason.RETRIES_EXHAUSTED, 2)
    assert letter.error == "RuntimeError('no such customer')"
    assert (letter.body, letter.headers["colour"]) == (b"x", "red")


DECISIONS = [
    pytest.param(AckMessage(), Done(), id="ack"),
    pytest.param(NackMessage(delay=3600), Retry(timedelta(hours=1)), id="nack with a delay"),
    pytest.param(NackMessage(), Retry(timedelta(seconds=9)), id="nack by the policy"),
    pytest.param(NackMessage(delay=-5), Retry(timedelta(0)), id="a negative delay is now"),
    pytest.param(RejectMessage(), Dead(Reason.REJECTED), id="reject"),
    pytest.param(RejectMessage(reason="fraud"), Dead("fraud"), id="reject with a reason"),
    pytest.param(NackMessage(colour="red"), Retry(timedelta(seconds=9)), id="an unknown option is a retry"),
    pytest.param(SkipMessage(), Retry(timedelta(seconds=9)), id="skipped is a retry"),
]


@pytest.mark.parametrize(("raised", "outcome"), DECISIONS)
async def test_a_decision_by_raising(make: Make, heard: Heard, raised: Exception, outcome: object) -> None:
    broker, once = make(retry=ConstantRetry(delay=9, jitter=0)), [raised]

    @broker.subscriber("q")
    async def judge(body: str) -> None:
        if once:
            raise once.pop()

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent)[0] == outcome


async def test_a_decision_by_calling_and_the_first_one_wins(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q")
    async def judge(body: str, msg: OutboxMessage) -> None:
        await msg.postpone(timedelta(hours=2))
        await msg.reject()

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Postpone(timedelta(hours=2))]


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (AckPolicy.NACK_ON_ERROR, Retry(timedelta(seconds=9))),
        (AckPolicy.REJECT_ON_ERROR, Dead(Reason.REJECTED, "RuntimeError('no')")),
        (AckPolicy.ACK, Done()),
        (AckPolicy.MANUAL, Retry(timedelta(seconds=9))),
    ],
)
async def test_what_an_error_means_under_each_policy(
    make: Make, heard: Heard, policy: AckPolicy, outcome: object
) -> None:
    broker = make(ack_policy=policy, retry=ConstantRetry(delay=9, jitter=0))

    @broker.subscriber("q")
    async def fail(body: str) -> None:
        raise RuntimeError("no")

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [outcome]


async def test_a_forgotten_decision_under_manual_is_a_retry_and_never_a_delete(
    make: Make, heard: Heard
) -> None:
    broker = make(retry=ConstantRetry(delay=3600, jitter=0))

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL)
    async def forget(body: str) -> None:
        return

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        assert [pending.id for pending in await broker.pending("q")] == [sent]

    assert heard.errors == ["NoDecision"]
    assert heard.of(sent) == [Retry(timedelta(hours=1))]


async def test_nack_without_an_error_asks_the_policy_too(make: Make, heard: Heard) -> None:
    broker = make(retry=NoRetry())

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL)
    async def refuse(body: str, msg: OutboxMessage) -> None:
        await msg.nack()

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Dead(Reason.RETRIES_EXHAUSTED)]


async def test_nack_with_a_policy_that_says_nothing_makes_a_dead_letter_and_deletes_nothing(
    make: Make, heard: Heard
) -> None:
    def forgetful(delivery: Delivery, error: Exception | None) -> Any:
        return None

    broker = make(retry=forgetful)

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL)
    async def refuse(body: str, msg: OutboxMessage) -> None:
        await msg.nack()

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        (letter,) = await broker.dead_letters()

    assert (letter.message_id, letter.reason) == (sent, Reason.POLICY_ERROR)


async def test_an_undecodable_body_is_a_dead_letter_and_not_a_crash_loop(make: Make, heard: Heard) -> None:
    broker, ran = make(), []

    @broker.subscriber("q")
    async def take(order: Order) -> None:
        ran.append(order)

    async with started(broker):
        sent = await broker.store.publish(
            Message(queue="q", body=b"{broken", headers={"content-type": "application/json"})
        )
        await heard.until(lambda: bool(heard.of(sent)))
        (letter,) = await broker.dead_letters()

    assert (letter.reason, letter.body) == (Reason.UNDECODABLE, b"{broken")
    assert letter.error is not None
    assert "JSONDecodeError" in letter.error
    assert ran == []


async def test_a_decoder_that_raises_makes_a_dead_letter_too(make: Make, heard: Heard) -> None:
    broker = make()

    async def decode(message: object) -> object:
        raise ValueError("cannot")

    @broker.subscriber("q", decoder=decode)
    async def take(body: str) -> None:
        raise AssertionError("not reached")

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Dead(Reason.UNDECODABLE, "ValueError('cannot')", ran=False)]


async def test_stop_consume_stops_the_subscriber_without_a_deadlock(make: Make) -> None:
    stopped = asyncio.Event()

    class HeardTheEnd(Heard):
        def drained(self, left: int) -> None:
            stopped.set()

    heard = HeardTheEnd()
    broker = make(retry=ConstantRetry(delay=3600, jitter=0), observer=heard)

    @broker.subscriber("q")
    async def enough(body: str) -> None:
        raise StopConsume

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        (subscriber,) = broker.subscribers
        await soon(stopped)
        assert not subscriber.running

    assert heard.of(sent) == [Retry(timedelta(hours=1))]


async def test_a_timer_re_armed_by_its_own_handler_fires_again(make: Make, heard: Heard) -> None:
    broker, runs, finished = make(), [], asyncio.Event()

    @broker.subscriber("daily")
    async def run(day: int, msg: OutboxMessage, broker: CurrentBroker) -> None:
        runs.append(day)
        if day == 3:
            finished.set()
            return
        assert await broker.publish(day + 1, "daily", timer_id="report") is not None

    async with started(broker):
        await broker.publish(1, "daily", timer_id="report")
        await soon(finished)

    assert runs == [1, 2, 3]


async def test_a_task_left_behind_by_a_handler_publishes_like_anybody(make: Make, heard: Heard) -> None:
    broker, go, stored, over = make(), asyncio.Event(), [], asyncio.Event()
    left: list[asyncio.Task[None]] = []

    async def later() -> None:
        await go.wait()
        stored.append(await broker.publish("again", "q", timer_id="t"))
        over.set()

    @broker.subscriber("q")
    async def once(body: str) -> None:
        if body == "first":
            left.append(asyncio.create_task(later()))

    async with started(broker):
        sent = await broker.publish("first", "q", timer_id="t")
        await heard.until(lambda: heard.of(sent) == [Done()])
        go.set()
        await soon(over)

    assert stored[0] is not None


async def test_the_return_value_goes_to_the_queue_that_reply_to_names(make: Make) -> None:
    broker, answers, answered = make(), [], asyncio.Event()

    @broker.subscriber("questions")
    async def double(number: int) -> int:
        return number * 2

    @broker.subscriber("answers")
    async def take(number: int, msg: OutboxMessage) -> None:
        answers.append((number, msg.correlation_id))
        answered.set()

    async with started(broker):
        await broker.publish(21, "questions", reply_to="answers", correlation_id="c-9")
        await soon(answered)

    assert answers == [(42, "c-9")]


async def test_a_publisher_decorator_passes_the_return_value_on(make: Make) -> None:
    broker, got, arrived = make(), [], asyncio.Event()

    @broker.publisher("second")
    @broker.subscriber("first")
    async def increment(number: int) -> int:
        return number + 1

    @broker.subscriber("second")
    async def take(number: int) -> None:
        got.append(number)
        arrived.set()

    async with started(broker):
        await broker.publish(1, "first")
        await soon(arrived)

    assert got == [2]


async def test_a_router_prefixes_its_subscribers_and_publishers_alike(make: Make) -> None:
    router, got, arrived = OutboxRouter("shop."), [], asyncio.Event()
    publisher = router.publisher("orders")

    @router.subscriber("orders")
    async def take(body: str, msg: OutboxMessage) -> None:
        got.append((body, msg.queue))
        arrived.set()

    broker = make()
    broker.include_router(router)
    async with started(broker):
        await publisher.publish("tea")
        await soon(arrived)

    assert got == [("tea", "shop.orders")]


async def test_the_brokers_ack_policy_reaches_the_subscribers_of_a_router(make: Make, heard: Heard) -> None:
    router = OutboxRouter()

    @router.subscriber("q")
    async def fail(body: str) -> None:
        raise RuntimeError("no")

    broker = make(ack_policy=AckPolicy.REJECT_ON_ERROR)
    broker.include_router(router)
    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Dead(Reason.REJECTED, "RuntimeError('no')")]


async def test_one_subscriber_serves_several_queues(make: Make) -> None:
    broker, got, both = make(), set(), asyncio.Event()

    @broker.subscriber("orders", "refunds")
    async def take(body: str, msg: OutboxMessage) -> None:
        got.add((msg.queue, body))
        if len(got) == 2:
            both.set()

    async with started(broker):
        await broker.publish("a", "orders")
        await broker.publish("b", "refunds")
        await soon(both)

    assert got == {("orders", "a"), ("refunds", "b")}


async def test_filters_choose_among_handlers_and_what_none_wants_is_retried(make: Make, heard: Heard) -> None:
    broker, got = make(retry=ConstantRetry(delay=3600, jitter=0)), []
    subscriber = broker.subscriber("q")

    @subscriber(filter=lambda message: message.headers.get("kind") == "a")
    async def only_a(body: str) -> None:
        got.append(body)

    async with started(broker):
        wanted = await broker.publish("1", "q", headers={"kind": "a"})
        unwanted = await broker.publish("2", "q", headers={"kind": "b"})
        await heard.until(lambda: bool(heard.of(wanted) and heard.of(unwanted)))

    assert got == ["1"]
    assert heard.of(unwanted) == [Retry(timedelta(hours=1))]


async def test_bodies_keep_their_kind(make: Make) -> None:
    broker, got, all_there = make(), [], asyncio.Event()

    @broker.subscriber("q")
    async def take(body: Any) -> None:
        got.append(body)
        if len(got) == 4:
            all_there.set()

    async with started(broker):
        for body in (b"\x00\xff", "text", {"a": [1, None]}, 5):
            await broker.publish(body, "q", ordering_key="one after the other")
        await soon(all_there)

    assert got == [b"\x00\xff", "text", {"a": [1, None]}, 5]


def test_a_message_shows_no_payload_when_printed() -> None:
    broker = OutboxBroker("memory://")

    assert "secret" not in repr(Message(queue="q", body=b"secret", headers={"key": "secret"}))
    assert broker.store.capabilities.name == "memory"


async def test_headers_that_another_broke_make_a_dead_letter() -> None:
    data = MemoryData()
    store, heard = MemoryStore(data), Heard()
    sent = await store.publish(Message(queue="q", body=b"x"))
    (row,) = data.tables.queue("q").rows.values()
    row.encoded_headers = "[1, 2]"
    broker = OutboxBroker(store, logger=None, observer=heard)

    @broker.subscriber("q")
    async def take(body: str) -> None:
        raise AssertionError("not reached")

    async with started(broker):
        await heard.until(lambda: bool(heard.of(sent)))
        (letter,) = await broker.dead_letters()

    assert (letter.reason, letter.encoded_headers) == (Reason.UNDECODABLE, "[1, 2]")


@pytest.mark.parametrize("queue", ["x" * 256, 7, ["a"]])
async def test_a_stored_message_with_an_invalid_reply_queue_is_buried_before_its_handler_runs(
    heard: Heard, queue: Any
) -> None:
    store = MemoryStore()
    broker = OutboxBroker(store, logger=None, observer=heard)
    runs = []

    @broker.subscriber("q")
    async def handle(body: str) -> str:
        runs.append(body)
        return body

    async with started(broker):
        await store.publish(Message(queue="q", body=b"tea", headers={"reply_to": queue}))
        await heard.until(lambda: bool(heard.outcomes))
        (letter,) = await broker.dead_letters()

    assert letter.reason == "undecodable"
    assert "reply_to" in (letter.error or "")
    assert runs == []


async def test_a_handler_that_exits_stops_the_application_and_keeps_its_message() -> None:
    store = MemoryStore()
    broker = OutboxBroker(store, logger=None, retry=ConstantRetry(delay=3600, jitter=0))
    app = FastStream(broker, logger=None)

    @broker.subscriber("q")
    async def leave(body: str) -> None:
        raise SystemExit

    sent = await store.publish(Message(queue="q", body=b"x"))
    async with asyncio.timeout(15):
        await app.run()

    assert [(pending.id, pending.attempts) for pending in await store.peek("q")] == [(sent, 1)]
