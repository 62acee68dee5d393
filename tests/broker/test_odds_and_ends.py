"""What fits nowhere else: timers that re-arm themselves, interrupted shutdowns, restarts, headers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import StopConsume
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from nightmail import ConstantRetry, Delivery, NoRetry, OutboxResponse, SyncPublisher
from nightmail.annotations import OutboxMessage, OutboxSession
from nightmail.outcome import Dead, Done, Release, Retry
from tests.broker.callers import Ledger, ledger_at
from tests.broker.support import Heard, Make, soon, started

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
IN_A_MINUTE = ConstantRetry(delay=MINUTE, jitter=0)

in_memory = pytest.mark.parametrize("url", ["memory"], indirect=True)
on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("url", ["postgres"], indirect=True)
memory_and_sqlite = pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)


class CountsDrains(Heard):
    """Hears of the workers that have ended, too."""

    def __init__(self) -> None:
        super().__init__()
        self.drains = 0

    def drained(self, left: int) -> None:
        self.drains += 1
        self._news.set()


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Ledger]:
    """The effects of the handlers of this test."""
    async with ledger_at(url) as made:
        await made.create()
        yield made


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The same database, for synchronous code."""
    made = create_engine(url)
    yield made
    made.dispose()


# ── timers that re-arm themselves ─────────────────────────────────────────────────────────────────────────


@on_sqlite
async def test_a_synchronous_handler_re_arms_its_own_timer(make: Make, heard: Heard, engine: Engine) -> None:
    broker, stored = make(), []
    publisher = SyncPublisher(broker)

    @broker.subscriber("daily")
    def report(day: str, msg: OutboxMessage) -> None:
        with Session(engine) as session, session.begin():
            stored.append(
                publisher.publish(
                    "tomorrow", "daily", session=session, timer_id=msg.timer_id, activate_in=HOUR
                )
            )

    async with started(broker):
        sent = await broker.publish("today", "daily", timer_id="report")
        await heard.until(lambda: bool(heard.of(sent)))
        waiting = [(each.id, each.body, each.timer_id) for each in await broker.pending("daily")]

    assert heard.of(sent) == [Done()]
    assert stored[0] is not None
    assert waiting == [(stored[0], b"tomorrow", "report")]


@on_postgres
async def test_a_timer_whose_message_the_session_holds_is_not_re_armed_beside_it(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    """It would wait for its own handler until that handler's time is up."""
    broker, told = make(session_factory=ledger.sessions, retry=IN_A_MINUTE), []

    @broker.subscriber("daily")
    async def report(day: str, session: OutboxSession, msg: OutboxMessage) -> None:
        try:
            await broker.publish("tomorrow", "daily", timer_id=msg.timer_id, activate_in=HOUR)
        except ValueError as error:
            told.append(str(error))
            raise

    async with started(broker):
        sent = await broker.publish("today", "daily", timer_id="report")
        await heard.until(lambda: bool(heard.of(sent) or heard.acked))

    assert heard.of(sent) == [Retry(MINUTE)]
    assert told == [
        "this timer's own message is locked by your OutboxSession: publish it there, with session=session"
    ]


@on_postgres
async def test_a_timer_whose_message_the_session_holds_is_re_armed_in_it(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE)

    @broker.subscriber("daily")
    async def report(day: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await broker.publish("tomorrow", "daily", session=session, timer_id=msg.timer_id, activate_in=HOUR)

    async with started(broker):
        sent = await broker.publish("today", "daily", timer_id="report")
        await heard.until(lambda: bool(heard.of(sent) or heard.acked))
        waiting = [(each.body, each.timer_id) for each in await broker.pending("daily")]

    assert heard.acked == [sent]
    assert waiting == [(b"tomorrow", "report")]


@on_postgres
async def test_no_caller_waits_for_a_message_that_its_handler_holds_to_cancel_or_move_its_timer(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(retry=IN_A_MINUTE)
    answers: list[bool | int] = []

    @broker.subscriber("daily")
    async def report(day: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session, session.begin(), asyncio.timeout(5):
            await msg.hold(session)
            answers.append(await broker.cancel_timer("daily", "report"))
            answers.append(await broker.reschedule_timer("daily", "report", activate_in=HOUR))
            answers.append(await broker.cancel_all("daily"))

    async with started(broker):
        sent = await broker.publish("today", "daily", timer_id="report")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Done()]
    assert answers == [False, False, 0]


# ── shutting down, and starting again ─────────────────────────────────────────────────────────────────────


@in_memory
@pytest.mark.parametrize("policy", [AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.NACK_ON_ERROR])
@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
async def test_what_a_shutdown_interrupts_is_handed_back_whatever_a_driver_makes_of_the_cancellation(
    make: Make, heard: Heard, policy: AckPolicy, batch: bool
) -> None:
    broker, running = make(retry=IN_A_MINUTE, graceful_timeout=0), asyncio.Event()

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    async def handle(body: Any) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the driver's word for it") from None

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await soon(running)

    assert heard.of(sent) == [Release()]
    assert heard.errors == []


@in_memory
async def test_a_subscriber_started_again_while_its_last_worker_still_drains_is_stopped_with_the_broker(
    make: Make,
) -> None:
    heard, hold, running = CountsDrains(), asyncio.Event(), asyncio.Event()
    broker = make(observer=heard, retry=IN_A_MINUTE)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        if body == "stop":
            raise StopConsume
        running.set()
        await hold.wait()

    (subscriber,) = broker.subscribers
    await broker.start()
    slow = await broker.publish("slow", "q")
    await soon(running)
    stop = await broker.publish("stop", "q")
    await heard.until(lambda: heard.of(stop) == [Retry(MINUTE)])
    assert not subscriber.running
    await subscriber.start()
    hold.set()
    await heard.until(lambda: heard.of(slow) == [Done()] and heard.drains == 1)
    for _ in range(10):
        await asyncio.sleep(0)  # Whoever stopped the first worker has its turn.

    await broker.stop()

    assert heard.drains == 2


@in_memory
async def test_stopping_twice_at_once_is_stopping(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    for runs in (1, 2):
        await broker.start()
        await broker.publish("tea", "q")
        await heard.until(lambda runs=runs: len(heard.outcomes) == runs)  # type: ignore[misc]
        await asyncio.gather(broker.stop(), broker.stop())

    assert [outcome for _, outcome in heard.outcomes] == [Done(), Done()]


# ── what is told and kept of a failure ────────────────────────────────────────────────────────────────────


@in_memory
async def test_a_letter_keeps_the_error_although_the_handler_had_said_when_to_try_again(
    make: Make, heard: Heard
) -> None:
    broker = make(retry=NoRetry())

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.nack(delay=5)
        raise ValueError("no such customer")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        (letter,) = await broker.dead_letters("q")

    assert letter.error == "ValueError('no such customer')"


@in_memory
async def test_an_observer_that_raises_changes_no_decision(make: Make) -> None:
    class Broken(Heard):
        def failed(self, delivery: Delivery, error: BaseException) -> None:
            raise RuntimeError("the metrics are down")

    heard = Broken()
    broker = make(observer=heard, retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str) -> None:
        raise ValueError("no such customer")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Dead("rejected", "ValueError('no such customer')")]


@memory_and_sqlite
@pytest.mark.parametrize(
    "which",
    [{"ids": ()}, {"queue": "q", "ids": []}, {"reason": ""}, {"error": "%"}],
    ids=["no ids", "no ids of a queue", "an empty reason", "a wildcard"],
)
async def test_a_filter_that_fits_no_letter_means_none_and_not_all(
    make: Make, heard: Heard, which: dict[str, Any]
) -> None:
    broker = make(retry=NoRetry())

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        raise RuntimeError

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

        assert await broker.dead_letters(**which) == []
        assert await broker.redrive(**which) == 0
        assert await broker.purge_dead(**which) == 0
        assert len(await broker.dead_letters()) == 1


# ── headers ───────────────────────────────────────────────────────────────────────────────────────────────


@in_memory
async def test_a_response_may_have_its_correlation_id_among_its_headers(make: Make, heard: Heard) -> None:
    broker, got = make(retry=IN_A_MINUTE), asyncio.Event()
    found: list[str] = []

    @broker.publisher("next")
    @broker.subscriber("q")
    async def handle(body: str) -> OutboxResponse:
        return OutboxResponse("answer", headers={"correlation_id": "mine"})

    @broker.subscriber("next")
    async def take(body: str, msg: OutboxMessage) -> None:
        found.append(msg.correlation_id)
        got.set()

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        assert heard.of(sent) == [Done()]
        await soon(got)

    assert found == ["mine"]


@in_memory
async def test_what_a_middleware_adds_to_a_message_is_added_to_nothing_of_the_callers(
    make: Make, heard: Heard
) -> None:
    class Stamping(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.headers["stamped"] = "yes"
            return await call_next(cmd)

    defaults, given, broker = {"a": "b"}, {"c": "d"}, make(middlewares=[Stamping])
    publisher = broker.publisher("next", headers=defaults)
    response = OutboxResponse("answer", headers=given)

    @publisher
    @broker.subscriber("q")
    async def handle(body: str) -> OutboxResponse:
        return response

    async with started(broker):
        await publisher.publish("tea", headers=given)
        sent = await broker.publish("tea", "q", headers=given)
        await heard.until(lambda: heard.of(sent) == [Done()])
        assert len(await broker.pending("next")) == 2

    assert (defaults, given) == ({"a": "b"}, {"c": "d"})
