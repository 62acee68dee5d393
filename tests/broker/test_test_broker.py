"""The test broker: virtual time, and what becomes of messages in it. The broker's own store is never asked."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage, StopConsume

from nightmail import (
    ConstantRetry,
    ExponentialRetry,
    NoRetry,
    OutboxBroker,
    OutboxRouter,
    PostponeMessage,
    SyncPublisher,
)
from nightmail.annotations import OutboxMessage
from nightmail.broker.config import OutboxBrokerConfig
from nightmail.errors import NoDecision, TimerExists
from nightmail.testing import TestOutboxBroker
from nightmail.testing.store import VirtualStore

START = datetime(2030, 1, 1, 9, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOWHERE = "postgresql://user:secret@nowhere.invalid/none"
TWICE = ExponentialRetry(initial=MINUTE, factor=2, jitter=0, maximum=None, max_attempts=4)


@pytest.fixture
def broker() -> OutboxBroker:
    """A broker whose database does not exist."""
    return OutboxBroker(NOWHERE)


# ── publishing ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_due_now_is_handled_before_publish_returns(broker: OutboxBroker) -> None:
    got: list[str] = []

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        got.append(body)

    async with TestOutboxBroker(broker) as br:
        assert br is broker
        assert await br.publish("tea", "q") == 1
        assert got == ["tea"]


async def test_messages_of_a_batch_are_handled_before_publish_batch_returns(broker: OutboxBroker) -> None:
    got: list[int] = []

    @broker.subscriber("q")
    async def handle(body: int) -> None:
        got.append(body)

    async with TestOutboxBroker(broker) as br:
        assert await br.publish_batch(1, 2, 3, queue="q") == [1, 2, 3]
        assert got == [1, 2, 3]


async def test_what_a_handler_publishes_is_handled_too_before_publish_returns(broker: OutboxBroker) -> None:
    got: list[str] = []

    @broker.publisher("third")
    @broker.subscriber("second")
    async def second(body: str) -> str:
        got.append(f"second {body}")
        return body

    @broker.subscriber("third")
    async def third(body: str) -> None:
        got.append(f"third {body}")

    @broker.subscriber("first")
    async def first(body: str) -> None:
        await broker.publish(body, "second")
        got.append(f"first {body}")

    async with TestOutboxBroker(broker) as br:
        await br.publish("tea", "first")

    assert got == ["first tea", "second tea", "third tea"]


async def test_in_manual_mode_nothing_is_handled_before_it_is_said(broker: OutboxBroker) -> None:
    got: list[str] = []

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        got.append(body)

    tb = TestOutboxBroker(broker, manual=True)
    async with tb as br:
        await br.publish("tea", "q")
        assert got == []
        await tb.run()
        assert got == ["tea"]
        await br.publish("cake", "q")
        await tb.advance(0)
        assert got == ["tea", "cake"]


async def test_what_a_handler_raises_comes_out_of_publish_and_the_message_is_retried(
    broker: OutboxBroker,
) -> None:
    @broker.subscriber("q", retry=TWICE)
    async def handle(body: str, msg: OutboxMessage) -> None:
        if msg.attempt == 1:
            raise ValueError("no tea")

    tb = TestOutboxBroker(broker)
    async with tb as br:
        with pytest.raises(ValueError, match="no tea"):
            await br.publish("tea", "q")
        assert [waiting.attempts for waiting in await tb.pending("q")] == [1]
        await tb.advance(MINUTE)
        assert await tb.pending("q") == []
        assert handle.mock.call_count == 2


async def test_what_a_handler_raises_comes_out_whatever_the_policy_makes_of_it(broker: OutboxBroker) -> None:
    @broker.subscriber("acked", ack_policy=AckPolicy.ACK)
    async def acked(body: str) -> None:
        raise ValueError("acked")

    @broker.subscriber("rejected", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def rejected(body: str) -> None:
        raise ValueError("rejected")

    @broker.subscriber("manual", ack_policy=AckPolicy.MANUAL)
    async def manual(body: str) -> None:
        pass

    tb = TestOutboxBroker(broker)
    async with tb as br:
        with pytest.raises(ValueError, match="acked"):
            await br.publish("tea", "acked")
        with pytest.raises(ValueError, match="rejected"):
            await br.publish("tea", "rejected")
        with pytest.raises(NoDecision):
            await br.publish("tea", "manual")
        assert [letter.queue for letter in await tb.dead_letters()] == ["rejected"]


async def test_a_decision_that_a_handler_raises_is_no_error(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(body: str) -> None:
        raise {
            "nack": NackMessage(delay=60),
            "reject": RejectMessage(reason="bad"),
            "later": PostponeMessage(60),
        }[body]

    tb = TestOutboxBroker(broker)
    async with tb as br:
        for body in ("nack", "reject", "later"):
            await br.publish(body, "q")
        assert tb.errors == []
        assert len(await tb.pending("q")) == 2
        assert [letter.reason for letter in await tb.dead_letters("q")] == ["bad"]


async def test_errors_can_be_kept_instead_of_raised(broker: OutboxBroker) -> None:
    @broker.subscriber("q", retry=NoRetry())
    async def handle(body: str) -> None:
        raise ValueError(body)

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb as br:
        await br.publish("tea", "q")
        await br.publish("cake", "q")
        assert [str(error) for error in tb.errors] == ["tea", "cake"]


async def test_an_assertion_in_a_handler_comes_out_of_advance(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(body: str) -> None:
        assert body == "tea"

    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("cake", "q", activate_in=DAY)
        with pytest.raises(AssertionError):
            await tb.advance(DAY)


async def test_a_test_can_be_failed_from_inside_a_handler(broker: OutboxBroker) -> None:
    @broker.subscriber("q", retry=NoRetry())
    async def handle(body: str) -> None:
        pytest.fail("must not be called")

    async with TestOutboxBroker(broker) as br:
        with pytest.raises(AssertionError, match="must not be called"):
            await br.publish("tea", "q")


async def test_a_body_that_does_not_fit_comes_out_of_publish(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(body: int) -> None:
        pass

    async with TestOutboxBroker(broker) as br:
        with pytest.raises(Exception, match="valid integer"):
            await br.publish("tea", "q")


# ── time ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_thirty_days_ahead(broker: OutboxBroker) -> None:
    got: list[datetime] = []
    tb = TestOutboxBroker(broker, start=START)

    @broker.subscriber("reminders")
    async def remind(body: str, msg: OutboxMessage) -> None:
        got.append(tb.now)
        assert msg.due_at == tb.now == tb.clock.now()

    async with tb as br:
        await br.publish("pay", "reminders", activate_in=30 * DAY)
        await tb.advance(30 * DAY - timedelta(microseconds=1))
        assert got == []
        await tb.advance(timedelta(microseconds=1))
        assert got == [START + 30 * DAY]


async def test_time_stops_at_each_moment_on_the_way(broker: OutboxBroker) -> None:
    got: list[tuple[str, datetime]] = []
    tb = TestOutboxBroker(broker, start=START)

    @broker.subscriber("q", "r")
    async def handle(body: str) -> None:
        got.append((body, tb.now))

    async with tb as br:
        await br.publish("third", "q", activate_at=START + 3 * DAY)
        await br.publish("first", "r", activate_in=1 * DAY)
        await br.publish("second", "q", activate_in=2 * DAY)
        await tb.advance(10 * DAY)
        assert tb.now == START + 10 * DAY

    assert got == [("first", START + DAY), ("second", START + 2 * DAY), ("third", START + 3 * DAY)]


async def test_time_begins_now_unless_it_is_given(broker: OutboxBroker) -> None:
    before = datetime.now(UTC)
    tb = TestOutboxBroker(broker)
    assert before <= tb.now <= datetime.now(UTC)
    with pytest.raises(ValueError, match="aware"):
        TestOutboxBroker(broker, start=datetime(2030, 1, 1))  # noqa: DTZ001 - refused for that


async def test_time_does_not_go_back(broker: OutboxBroker) -> None:
    tb = TestOutboxBroker(broker)
    async with tb:
        with pytest.raises(ValueError, match="forward"):
            await tb.advance(-SECOND)


async def test_a_year_of_daily_timers_takes_a_few_looks_a_day(
    broker: OutboxBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long that takes is measured by a benchmark; here, that the days in between cost nothing."""
    days: list[datetime] = []
    looks: list[datetime] = []
    tb = TestOutboxBroker(broker, start=START)
    claim = VirtualStore.claim

    async def counted(*args: Any, **kwargs: Any) -> Any:
        looks.append(tb.now)
        return await claim(*args, **kwargs)

    monkeypatch.setattr(VirtualStore, "claim", counted)

    @broker.subscriber("daily")
    async def daily(body: str) -> None:
        days.append(tb.now)
        await broker.publish(body, "daily", timer_id="report", activate_in=DAY)

    async with tb as br:
        await br.publish("report", "daily", timer_id="report", activate_in=DAY)
        looks.clear()
        await tb.advance(365 * DAY)

    assert days == [START + day * DAY for day in range(1, 366)]
    assert len(looks) <= 3 * 365


async def test_retries_come_at_their_exact_moments(broker: OutboxBroker) -> None:
    tried: list[tuple[int, datetime]] = []
    tb = TestOutboxBroker(broker, start=START, raise_errors=False)

    @broker.subscriber("q", retry=TWICE)
    async def handle(body: str, msg: OutboxMessage) -> None:
        tried.append((msg.attempt, tb.now))
        raise ConnectionError

    async with tb as br:
        await br.publish("tea", "q")
        await tb.advance(HOUR)

        assert tried == [
            (1, START),
            (2, START + 1 * MINUTE),
            (3, START + 3 * MINUTE),
            (4, START + 7 * MINUTE),
        ]
        (letter,) = await tb.dead_letters("q")
        assert letter.reason == "retries_exhausted"
        assert letter.attempts == 4
        assert letter.died_at == START + 7 * MINUTE
        assert letter.first_attempt_at == START


async def test_the_jitter_of_retries_is_left_out(broker: OutboxBroker) -> None:
    tried: list[datetime] = []
    tb = TestOutboxBroker(broker, start=START, raise_errors=False)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        tried.append(tb.now)
        raise ConnectionError

    async with tb as br:
        await br.publish("tea", "q")
        await tb.advance(20 * SECOND)

    assert tried == [START + seconds * SECOND for seconds in (0, 1, 3, 7, 15)]


async def test_a_message_can_be_postponed_a_thousand_times(broker: OutboxBroker) -> None:
    looks: list[datetime] = []
    tb = TestOutboxBroker(broker, start=START)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        assert msg.attempt == 1
        looks.append(tb.now)
        if len(looks) <= 1000:
            raise PostponeMessage(HOUR)

    async with tb as br:
        await br.publish("tea", "q")
        await tb.advance(2000 * HOUR)
        assert await tb.pending() == []

    assert looks == [START + hour * HOUR for hour in range(1001)]


async def test_an_expired_message_becomes_a_dead_letter_without_a_run(broker: OutboxBroker) -> None:
    tb = TestOutboxBroker(broker, start=START, raise_errors=False)

    @broker.subscriber("q", retry=ConstantRetry(delay=HOUR, jitter=0))
    async def handle(body: str) -> None:
        raise ConnectionError

    async with tb as br:
        await br.publish("tea", "q", expires_in=90 * MINUTE)
        await tb.advance(DAY)
        assert handle.mock.call_count == 2
        (letter,) = await tb.dead_letters("q")
        assert (letter.reason, letter.died_at) == ("expired", START + 2 * HOUR)


async def test_a_message_is_given_up_after_its_time(broker: OutboxBroker) -> None:
    tb = TestOutboxBroker(broker, start=START)

    @broker.subscriber("q", give_up_after=timedelta(hours=5))
    async def handle(body: str) -> None:
        raise PostponeMessage(2 * HOUR)

    async with tb as br:
        await br.publish("tea", "q")
        await tb.advance(DAY)
        assert handle.mock.call_count == 3
        (letter,) = await tb.dead_letters("q")
        assert letter.died_at == START + 6 * HOUR


async def test_a_message_of_a_key_waits_for_the_retry_of_the_one_before(broker: OutboxBroker) -> None:
    done: list[tuple[str, datetime]] = []
    tb = TestOutboxBroker(broker, start=START, raise_errors=False)

    @broker.subscriber("q", retry=ConstantRetry(delay=MINUTE, jitter=0))
    async def handle(body: str, msg: OutboxMessage) -> None:
        if body == "first" and msg.attempt < 3:
            raise ConnectionError
        done.append((body, tb.now))

    async with tb as br:
        await br.publish("first", "q", ordering_key="a")
        await br.publish("second", "q", ordering_key="a")
        await br.publish("other", "q", ordering_key="b")
        await tb.advance(HOUR)

    assert done == [("other", START), ("first", START + 2 * MINUTE), ("second", START + 2 * MINUTE)]


async def test_what_is_urgent_goes_first_but_one_in_eight_is_the_oldest(broker: OutboxBroker) -> None:
    got: list[int] = []
    tb = TestOutboxBroker(broker, manual=True)

    @broker.subscriber("q")
    async def handle(body: int) -> None:
        got.append(body)

    async with tb as br:
        for number in range(20):
            await br.publish(number, "q", priority=0 if number < 10 else 9)
        await tb.run()

    assert got == [10, 11, 12, 13, 14, 15, 16, 0, 17, 18, 19, 1, 2, 3, 4, 5, 6, 7, 8, 9]


async def test_the_same_test_has_the_same_order_every_time() -> None:
    async def once() -> list[str]:
        broker, got = OutboxBroker(NOWHERE), []

        @broker.subscriber("a", max_workers=5)
        async def a(body: int) -> None:
            await asyncio.sleep(0)
            got.append(f"a{body}")
            await broker.publish(body, "b", activate_in=body % 3)

        @broker.subscriber("b", max_workers=5)
        async def b(body: int) -> None:
            await asyncio.sleep(0)
            got.append(f"b{body}")

        @broker.subscriber("b", max_workers=5)
        async def rival(body: int) -> None:
            got.append(f"rival {body}")

        tb = TestOutboxBroker(broker, manual=True)
        async with tb as br:
            await br.publish_batch(*range(30), queue="a")
            await tb.advance(HOUR)
        return got

    first = await once()
    assert len(first) == 60
    for _ in range(5):
        assert await once() == first


# ── timers, dead letters, batches ──────────────────────────────────────────────────────────────────────────


async def test_timers_are_cancelled_moved_and_seen(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(body: str) -> None:
        pass

    tb = TestOutboxBroker(broker, start=START)
    async with tb as br:
        await br.publish("tea", "q", timer_id="a", activate_in=DAY)
        await br.publish("cake", "q", timer_id="b", activate_in=DAY)
        assert await br.publish("again", "q", timer_id="a") is None
        with pytest.raises(TimerExists):
            await br.publish("again", "q", timer_id="a", on_conflict="raise")
        assert await br.cancel_timer("q", "a")
        assert await br.reschedule_timer("q", "b", activate_in=HOUR)
        assert [(each.timer_id, each.due_at) for each in await tb.pending("q")] == [("b", START + HOUR)]
        await tb.advance(HOUR)
        handle.mock.assert_called_once_with("cake")


async def test_a_subscriber_of_dead_letters_gets_them_when_they_die(broker: OutboxBroker) -> None:
    buried: list[tuple[str, str, datetime]] = []
    tb = TestOutboxBroker(broker, start=START, raise_errors=False)

    @broker.subscriber("q", retry=ConstantRetry(delay=MINUTE, jitter=0, max_attempts=3))
    async def handle(body: str) -> None:
        raise ConnectionError

    @broker.subscriber("q", dead_letters=True)
    async def bury(body: str, msg: OutboxMessage) -> None:
        assert msg.dead is not None
        if msg.attempt == 1:
            raise NackMessage(delay=HOUR)
        buried.append((body, msg.dead.reason, tb.now))

    async with tb as br:
        await br.publish("tea", "q")
        await tb.advance(DAY)
        assert await tb.dead_letters() == []

    assert buried == [("tea", "retries_exhausted", START + 2 * MINUTE + HOUR)]


async def test_dead_letters_go_round_again(broker: OutboxBroker) -> None:
    sick = True

    @broker.subscriber("q", retry=NoRetry())
    async def handle(body: str) -> None:
        if sick:
            raise ConnectionError

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb as br:
        await br.publish("tea", "q")
        assert [letter.reason for letter in await tb.dead_letters("q", reason="retries_exhausted")] == [
            "retries_exhausted"
        ]
        sick = False
        assert await br.redrive("q") == 1
        await tb.run()
        assert await tb.dead_letters() == []
        assert await tb.pending() == []


async def test_a_batch_handler_gets_what_is_due_together(broker: OutboxBroker) -> None:
    got: list[list[int]] = []

    @broker.subscriber("q", batch=True, max_batch=4)
    async def handle(bodies: list[int]) -> None:
        got.append(bodies)

    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish_batch(*range(6), queue="q", activate_in=DAY)
        await tb.advance(DAY)

    assert got == [[0, 1, 2, 3], [4, 5]]


async def test_a_handler_that_stops_its_subscriber_gets_no_more(broker: OutboxBroker) -> None:
    got: list[str] = []

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        got.append(body)
        raise StopConsume

    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("tea", "q")
        await br.publish("cake", "q")
        await tb.advance(MINUTE)

    assert got == ["tea"]


# ── what surrounds it ──────────────────────────────────────────────────────────────────────────────────────


async def test_the_brokers_own_store_is_put_back_also_when_the_block_raises(broker: OutboxBroker) -> None:
    store, producer = broker.store, broker.config.producer
    with pytest.raises(KeyError):
        async with TestOutboxBroker(broker) as br:
            assert br.store is not store
            raise KeyError
    assert broker.store is store
    assert cast("OutboxBrokerConfig", broker.config.broker_config).store is store
    assert broker.config.producer is producer


async def test_each_block_begins_with_nothing(broker: OutboxBroker) -> None:
    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("tea", "q")
    async with tb:
        assert await tb.pending() == []
        assert tb.published == []


@pytest.mark.parametrize("with_real", [False, True])
async def test_outside_of_its_block_there_is_no_time_and_nothing_to_look_at(
    broker: OutboxBroker, with_real: bool
) -> None:
    own = OutboxBroker("memory://") if with_real else broker
    tb = TestOutboxBroker(own, with_real=with_real)

    async def refuses_everything() -> None:
        with pytest.raises(RuntimeError, match=r"advance\(\) .* is not open"):
            await tb.advance(DAY)
        with pytest.raises(RuntimeError, match=r"run\(\) .* is not open"):
            await tb.run()
        with pytest.raises(RuntimeError, match=r"pending\(\) .* is not open"):
            await tb.pending()
        with pytest.raises(RuntimeError, match=r"dead_letters\(\) .* is not open"):
            await tb.dead_letters()

    await refuses_everything()
    with pytest.raises(KeyError):
        async with tb as br:
            await br.publish("tea", "q")
            assert len(await tb.pending()) == 1
            assert await tb.dead_letters() == []
            raise KeyError
    await refuses_everything()
    assert [each.body for each in tb.published] == ["tea"]
    assert tb.errors == []


async def test_a_message_that_has_no_subscriber_stays_pending(broker: OutboxBroker) -> None:
    @broker.subscriber("orders")
    async def handle(body: str) -> None: ...

    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("tea", "oders")
        await tb.advance(DAY)
        handle.mock.assert_not_called()
        assert [waiting.queue for waiting in await tb.pending()] == ["oders"]


async def test_two_test_brokers_share_no_messages_though_their_brokers_share_a_url(
    broker: OutboxBroker,
) -> None:
    neighbour = OutboxBroker(NOWHERE)

    @neighbour.subscriber("q")
    async def handle(body: str) -> None: ...

    async with TestOutboxBroker(broker) as br, TestOutboxBroker(neighbour):
        await br.publish("tea", "q")
        handle.mock.assert_not_called()
    async with TestOutboxBroker(broker, neighbour):
        await broker.publish("tea", "q")
        handle.mock.assert_called_once_with("tea")


async def test_a_handler_can_neither_move_the_time_nor_run_the_others(broker: OutboxBroker) -> None:
    tb = TestOutboxBroker(broker)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        await tb.advance(DAY)

    async with tb as br:
        with pytest.raises(RuntimeError, match="a handler cannot move the time"):
            await br.publish("tea", "q")


async def test_no_time_passes_while_a_handler_takes_messages_by_hand(broker: OutboxBroker) -> None:
    tb = TestOutboxBroker(broker, start=START)
    letters = broker.subscriber("letters")

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        assert await letters.get_one(timeout=0.01) is None
        assert tb.now == START + HOUR

    async with tb as br:
        await br.publish("tea", "q", activate_in=HOUR)
        await br.publish("cake", "q", activate_in=DAY)
        await tb.advance(HOUR)
        assert handle.mock.call_count == 1


async def test_publishes_at_the_same_time_are_all_handled(broker: OutboxBroker) -> None:
    got: list[int] = []

    @broker.subscriber("q")
    async def handle(body: int) -> None:
        await asyncio.sleep(0)
        got.append(body)

    async with TestOutboxBroker(broker) as br:
        await asyncio.gather(*(br.publish(number, "q") for number in range(10)))

    assert got == list(range(10))


async def test_subscribers_of_routers_are_served(broker: OutboxBroker) -> None:
    router = OutboxRouter("shop.")

    @router.subscriber("orders", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str) -> None:
        pass

    broker.include_router(router)
    async with TestOutboxBroker(broker) as br:
        await br.publish("tea", "shop.orders")
        handle.mock.assert_called_once_with("tea")


async def test_several_brokers_share_the_time(broker: OutboxBroker) -> None:
    got: list[tuple[str, str, datetime]] = []
    other = OutboxBroker("redis://nowhere.invalid")
    neighbour = OutboxBroker(NOWHERE)
    tb = TestOutboxBroker(broker, other, neighbour, start=START)

    @neighbour.subscriber("q")
    async def here(body: str) -> None:
        got.append(("here", body, tb.now))

    @other.subscriber("q")
    async def there(body: str) -> None:
        got.append(("there", body, tb.now))

    async with tb as brokers:
        assert brokers == [broker, other, neighbour]
        await broker.publish("to the neighbour's database, which is mine", "q", activate_in=2 * DAY)
        await other.publish("to another", "q", activate_in=1 * DAY)
        assert len(await tb.pending("q")) == 2
        await tb.advance(3 * DAY)

    assert got == [
        ("there", "to another", START + DAY),
        ("here", "to the neighbour's database, which is mine", START + 2 * DAY),
    ]


async def test_synchronous_code_publishes_too() -> None:
    broker = OutboxBroker(NOWHERE)
    sync = SyncPublisher(broker)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        pass

    tb = TestOutboxBroker(broker)
    async with tb:
        sync.publish("tea", "q", session=object())
        assert [each.body for each in tb.published] == ["tea"]
        await tb.run()
        handle.mock.assert_called_once_with("tea")


async def test_what_the_real_store_cannot_do_is_refused_here_too() -> None:
    broker = OutboxBroker("redis://nowhere.invalid")
    async with TestOutboxBroker(broker) as br:
        with pytest.raises(TypeError, match="redis"):
            SyncPublisher(br).publish("x", "q", session=object())


async def test_with_real_runs_on_the_brokers_own_store() -> None:
    broker: Any = OutboxBroker("memory://")
    publisher = broker.publisher("q")

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        pass

    store = broker.store
    tb = TestOutboxBroker(broker, with_real=True)
    async with tb as br:
        assert br.store is store
        await publisher.publish("tea")
        await handle.wait_call(timeout=5)
        handle.mock.assert_called_once_with("tea")
        publisher.mock.assert_called_once_with("tea")
        await br.publish("cake", "other", activate_in=DAY)
        assert [each.queue for each in await tb.pending(due_before=tb.now + 2 * DAY)] == ["other"]
        await br.publish_batch("a", "b", queue="other", activate_in=DAY)
        assert [each.delay for each in tb.published] == [timedelta(0), DAY, DAY, DAY]
        with pytest.raises(RuntimeError, match="virtual time"):
            await tb.advance(DAY)
    assert not handle.is_test
    assert not broker.running
