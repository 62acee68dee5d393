"""`SyncOutboxSession`: a synchronous session for a `def` handler, committed together with the end of its message."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from faststream.exceptions import NackMessage, SetupError
from sqlalchemy import text
from sqlalchemy.orm import Session

from nightmail import OutboxBroker, OutboxResponse, OutboxRouter, SyncPublisher
from nightmail.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession, SyncOutboxSession
from nightmail.errors import HandlerTimeout
from nightmail.outcome import Dead, Retry
from tests.broker.callers import ledger_at
from tests.broker.support import AT_ONCE, PATIENCE, Heard, Make, on_sql, on_sqlite, started
from tests.broker.sync_ledger import SyncLedger, sync_ledger_at


@pytest.fixture
def ledger(url: str) -> Iterator[SyncLedger]:
    """The effects of the handlers of this test."""
    with sync_ledger_at(url) as made:
        made.create()
        yield made


@on_sql
async def test_what_the_handler_wrote_commits_with_the_end_of_its_message(
    make: Make, heard: Heard, ledger: SyncLedger
) -> None:
    broker, threads = make(sync_session_factory=ledger.sessions), set()

    @broker.subscriber("q")
    def handle(body: str, session: SyncOutboxSession) -> None:
        assert isinstance(session, Session)
        threads.add(threading.current_thread())
        ledger.write(session, body)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        assert await broker.stats() == {}

    assert ledger.effects() == ["tea"]
    assert heard.outcomes == []
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("url", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("max_workers", [1, 2])
async def test_while_its_thread_runs_on_after_a_shutdown_its_session_is_left_alone(
    make: Make, ledger: SyncLedger, max_workers: int
) -> None:
    broker = make(
        sync_session_factory=ledger.sessions,
        graceful_timeout=0.05,
        lease_ttl_seconds=0.5,
        max_workers=max_workers,
    )
    begun, release, in_transaction = threading.Event(), threading.Event(), []

    @broker.subscriber("q")
    def handle(body: str, session: SyncOutboxSession) -> None:
        ledger.write(session, body)
        begun.set()
        while not release.is_set():
            with suppress(HandlerTimeout):
                release.wait(0.1)
        in_transaction.append(session.in_transaction())

    async with make() as other:
        await broker.start()
        sent = await broker.publish("tea", "q")
        await asyncio.to_thread(begun.wait, PATIENCE)
        await broker.stop()
        try:
            # Its lease cannot be renewed while its row is locked, but the lock keeps others away.
            assert await other.subscriber("q").get_one(timeout=1.5) is None
        finally:
            release.set()
        # The thread gives the session back, and with it the lock.
        taken = await other.subscriber("q").get_one(timeout=PATIENCE)
        assert taken is not None
        assert taken.id == sent
        await taken.ack()

    assert in_transaction == [True]
    assert ledger.effects() == []


@on_sql
async def test_a_def_handler_that_raises_leaves_nothing_behind(
    make: Make, heard: Heard, ledger: SyncLedger
) -> None:
    broker = make(sync_session_factory=ledger.sessions, retry=AT_ONCE)
    publisher = SyncPublisher(broker)

    @broker.publisher("next")
    @broker.subscriber("q")
    def handle(body: str, session: SyncOutboxSession, msg: OutboxMessage) -> str:
        ledger.write(session, f"attempt {msg.attempt}")
        publisher.publish(f"attempt {msg.attempt}", "other", session=session, activate_in=3600)
        if msg.attempt == 1:
            raise RuntimeError("half-way")
        if msg.attempt == 2:
            raise NackMessage(delay=0)
        if msg.attempt == 3:
            _ = msg.nack(delay=0)
        return "done"

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        other = [each.body for each in await broker.pending("other")]

    assert heard.of(sent) == [Retry(), Retry(), Retry()]
    assert ledger.effects() == ["attempt 4"]
    assert other == [b"attempt 4"]


@on_sql
async def test_the_return_value_is_published_in_the_same_transaction(
    make: Make, heard: Heard, ledger: SyncLedger
) -> None:
    broker = make(sync_session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.publisher("next")
    @broker.subscriber("q")
    def handle(body: str, session: SyncOutboxSession, msg: OutboxMessage) -> Any:
        ledger.write(session, f"attempt {msg.attempt}")
        if msg.attempt == 1:
            return OutboxResponse("never", session="no session at all")
        return OutboxResponse(f"attempt {msg.attempt}", activate_in=3600, timer_id="t")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        waiting = [(each.body, each.timer_id) for each in await broker.pending("next")]

    assert waiting == [(b"attempt 2", "t")]
    assert ledger.effects() == ["attempt 2"]


@on_sql
async def test_a_batch_has_one_session(make: Make, heard: Heard, ledger: SyncLedger) -> None:
    broker = make(sync_session_factory=ledger.sessions)

    @broker.subscriber("q", batch=True)
    def handle(bodies: list[str], session: SyncOutboxSession, msg: OutboxBatchMessage) -> None:
        for body in bodies:
            ledger.write(session, body)
        _ = msg.items[0].reject("bad")

    async with started(broker):
        sent = await broker.publish_batch("tea", "milk", queue="q")
        await heard.until(lambda: len(heard.outcomes) + len(heard.acked) == 2)

    assert ledger.effects() == ["milk", "tea"]
    assert heard.outcomes == [(sent[0], Dead("bad"))]
    assert heard.acked == [sent[1]]


@on_sql
async def test_a_handler_of_a_router_has_a_session_too(make: Make, heard: Heard, ledger: SyncLedger) -> None:
    router = OutboxRouter(prefix="shop.")

    @router.subscriber("q")
    def handle(body: str, session: SyncOutboxSession) -> None:
        ledger.write(session, body)

    broker = make(sync_session_factory=ledger.sessions)
    broker.include_router(router)
    async with started(broker):
        sent = await broker.publish("tea", "shop.q")
        await heard.until(lambda: heard.acked == [sent])

    assert ledger.effects() == ["tea"]


@on_sql
async def test_a_def_handler_acknowledges_in_a_session_of_its_own(
    make: Make, heard: Heard, ledger: SyncLedger
) -> None:
    broker = make(retry=AT_ONCE)

    @broker.subscriber("q")
    def handle(body: str, msg: OutboxMessage) -> None:
        with ledger.sessions.begin() as session:
            _ = msg.hold(session)
            ledger.write(session, f"attempt {msg.attempt}")
            _ = msg.ack(session)
            if msg.attempt == 1:
                raise RuntimeError("after the ack")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        assert await broker.stats() == {}

    assert ledger.effects() == ["attempt 2"]
    assert heard.of(sent) == [Retry()]


@on_sql
async def test_a_batch_is_acknowledged_in_a_session_of_its_handlers(
    make: Make, heard: Heard, ledger: SyncLedger
) -> None:
    broker = make()

    @broker.subscriber("q", batch=True)
    def handle(bodies: list[str], msg: OutboxBatchMessage) -> None:
        with ledger.sessions.begin() as session:
            _ = msg.hold(session)
            for body in bodies:
                ledger.write(session, body)
            _ = msg.ack(session)

    async with started(broker):
        sent = await broker.publish_batch("tea", "milk", queue="q")
        await heard.until(lambda: heard.acked == sent)
        assert await broker.stats() == {}

    assert ledger.effects() == ["milk", "tea"]


@on_sql
async def test_a_timer_is_armed_again_in_the_session_of_its_own_handler(
    make: Make, heard: Heard, ledger: SyncLedger
) -> None:
    broker, refused = make(sync_session_factory=ledger.sessions), []
    publisher = SyncPublisher(broker)

    @broker.subscriber("q")
    def handle(body: str, session: SyncOutboxSession) -> None:
        try:
            publisher.publish("again", "q", timer_id="t", activate_in=3600)
        except ValueError as error:
            refused.append(str(error))
        publisher.publish("again", "q", timer_id="t", activate_in=3600, session=session)

    async with started(broker):
        sent = await broker.publish("tea", "q", timer_id="t")
        await heard.until(lambda: heard.acked == [sent])
        waiting = [(each.body, each.timer_id) for each in await broker.pending("q")]

    assert waiting == [(b"again", "t")]
    assert len(refused) == 1


@on_sql
async def test_a_handler_has_one_session(url: str, make: Make, heard: Heard, ledger: SyncLedger) -> None:
    async with ledger_at(url) as other:
        broker = make(session_factory=other.sessions, sync_session_factory=ledger.sessions)

        @broker.subscriber("q")
        async def handle(body: str, session: OutboxSession, second: SyncOutboxSession) -> None:
            """Never called."""

        async with started(broker):
            sent = await broker.publish("tea", "q")
            await heard.until(lambda: bool(heard.of(sent)))

    assert heard.errors == ["RuntimeError"]


@on_sql
async def test_a_def_handler_that_closes_its_session_is_not_taken_for_done(
    make: Make, heard: Heard, ledger: SyncLedger
) -> None:
    broker = make(sync_session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.subscriber("q")
    def handle(body: str, session: SyncOutboxSession, msg: OutboxMessage) -> None:
        ledger.write(session, f"attempt {msg.attempt}")
        if msg.attempt == 1:
            with session:
                session.execute(text("select 1"))

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert ledger.effects() == ["attempt 2"]
    assert heard.of(sent) == [Retry()]


@on_sqlite
async def test_without_a_factory_there_is_no_session(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q")
    def handle(body: str, session: SyncOutboxSession) -> None:
        """Never called."""

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.errors == ["RuntimeError"]


def test_redis_has_no_synchronous_sessions() -> None:
    with pytest.raises(SetupError, match="redis"):
        OutboxBroker("redis://localhost", sync_session_factory=Session)


def test_redis_has_no_synchronous_publisher_with_a_session() -> None:
    with pytest.raises(TypeError, match="redis"):
        SyncPublisher(OutboxBroker("redis://localhost")).publish("x", "q", session=object())
