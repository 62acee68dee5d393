"""`ack(session=...)`: what a handler wrote, and that it is done, commit as one."""

from __future__ import annotations

import asyncio

import pytest

from nightmail.annotations import OutboxMessage
from nightmail.errors import LeaseLost, NotInTransaction
from nightmail.outcome import Done, Release, Retry
from nightmail.store import Settlement
from tests.broker.callers import Ledger, ledger_at
from tests.broker.support import AT_ONCE, Heard, Make, on_sql, soon, started

pytestmark = on_sql


async def test_the_effect_and_the_end_of_the_message_commit_together(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker, done = make(), asyncio.Event()

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, body)
            await msg.ack(session=session)
        # Already: there is no wait for the worker to write anything.
        assert await broker.stats() == {}
        done.set()

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await soon(done)
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["tea"]
    assert heard.outcomes == []
    assert heard.lost == []


async def test_a_worker_that_lost_the_lease_has_no_effect(make: Make, heard: Heard, ledger: Ledger) -> None:
    broker, runs = make(), []

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        runs.append(msg.id)
        if len(runs) == 1:
            await broker.store.settle([Settlement(msg.delivery, Release())])  # It goes to another worker.
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, f"run {len(runs)}")
            await msg.ack(session=session)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["run 2"]
    assert heard.lost == [sent]
    assert heard.errors == []


async def test_a_handler_that_fails_before_its_commit_is_tried_again(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(retry=AT_ONCE)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, f"attempt {msg.attempt}")
            await msg.ack(session=session)
            if msg.attempt == 1:
                raise RuntimeError("before the commit")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["attempt 2"]
    assert heard.of(sent) == [Retry()]
    assert heard.lost == []


async def test_a_handler_that_fails_after_its_commit_is_done_all_the_same_and_no_lease_was_lost(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(retry=AT_ONCE)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, body)
            await msg.ack(session=session)
        raise RuntimeError("after the commit")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.uncertainties == [sent])
        assert await broker.stats() == {}

    assert await ledger.effects() == ["tea"]
    assert heard.lost == []


async def test_a_nack_after_the_ack_takes_it_back(make: Make, heard: Heard, ledger: Ledger) -> None:
    broker = make(retry=AT_ONCE)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session:
            await ledger.write(session, f"attempt {msg.attempt}")
            await msg.ack(session=session)
            if msg.attempt == 1:
                await session.rollback()
                await msg.nack()
            else:
                await session.commit()

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["attempt 2"]


async def test_a_timer_can_be_set_again_after_it_was_acknowledged_in_the_same_transaction(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make()

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session, session.begin():
            await msg.ack(session=session)
            assert await broker.publish("again", "q", timer_id="t", activate_in=3600, session=session)

    async with started(broker):
        sent = await broker.publish("tea", "q", timer_id="t")
        await heard.until(lambda: heard.acked == [sent])
        (waiting,) = await broker.pending("q")

    assert (waiting.body, waiting.timer_id) == (b"again", "t")


async def test_a_session_without_a_transaction_is_refused_and_the_message_retried(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker, refused = make(retry=AT_ONCE), asyncio.Event()

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        if msg.attempt > 1:
            return
        async with ledger.engine.connect() as connection:
            await connection.close()
            with pytest.raises(NotInTransaction):
                await msg.ack(session=connection)
            refused.set()
            await msg.ack(session=connection)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: Done() in heard.of(sent))

    assert refused.is_set()
    assert heard.of(sent) == [Retry(), Done()]


async def test_a_message_can_be_held_before_the_first_read(
    make: Make, heard: Heard, ledger: Ledger, url: str
) -> None:
    """A caller at repeatable read would otherwise be refused once the lease was renewed."""
    broker = make()
    level = {} if url.startswith("sqlite") else {"isolation_level": "REPEATABLE READ"}

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger_at(url, **level) as mine, mine.sessions() as session, session.begin():
            await msg.hold(session)
            await ledger.write(session, body)
            await msg.extend(120)
            await msg.ack(session=session)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["tea"]


async def test_a_worker_that_lost_the_lease_learns_it_when_holding(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker, runs, told = make(), [], []

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        runs.append(msg.id)
        if len(runs) == 1:
            await broker.store.settle([Settlement(msg.delivery, Release())])
            async with ledger.sessions() as session, session.begin():
                with pytest.raises(LeaseLost) as lost:
                    await msg.hold(session)
                told.append(lost.value.ids)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: Done() in heard.of(sent))

    assert told == [(sent,)]


async def test_several_acknowledgements_of_one_message_are_one(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make()

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, body)
            await msg.ack(session=session)
        await msg.ack()

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert heard.outcomes == []
