"""Sessions under the test broker: real ones that commit or roll back, and fakes that only have to be accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from nightmail import OutboxBroker, OutboxResponse, SyncPublisher
from nightmail.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from nightmail.testing import TestOutboxBroker
from tests.broker.callers import Ledger, ledger_at
from tests.broker.support import IN_A_MINUTE, MINUTE

DAY = timedelta(days=1)
NOWHERE = "postgresql://user:secret@nowhere.invalid/none"


@pytest.fixture
async def ledger(tmp_path: Any) -> AsyncIterator[Ledger]:
    """A database of the code under test. Nightmail's own tables are not in it."""
    async with ledger_at(f"sqlite:///{tmp_path / 'business.db'}") as made:
        await made.create()
        yield made


@pytest.fixture
def broker() -> OutboxBroker:
    """A broker whose database does not exist, with one handler."""
    broker = OutboxBroker(NOWHERE)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        pass

    return broker


def handled(broker: OutboxBroker) -> list[Any]:
    """What the handler was called with."""
    (subscriber,) = broker.subscribers
    return [call.args[0] for call in subscriber.calls[0].handler.mock.call_args_list]


# ── publishing in a session ────────────────────────────────────────────────────────────────────────────────


async def test_a_message_waits_for_the_commit_of_its_session(broker: OutboxBroker, ledger: Ledger) -> None:
    tb = TestOutboxBroker(broker)
    async with tb as br, ledger.sessions() as session:
        await ledger.write(session, "ordered")
        assert await br.publish("tea", "q", session=session) == 1
        await tb.advance(DAY)
        assert handled(br) == []
        assert await tb.pending() == []
        assert [waiting.id for waiting in await tb.pending(session=session)] == [1]
        await session.commit()
        await tb.run()
        assert handled(br) == ["tea"]


async def test_a_message_is_withdrawn_with_its_session(broker: OutboxBroker, ledger: Ledger) -> None:
    tb = TestOutboxBroker(broker)
    async with tb as br:
        async with ledger.sessions() as session:
            await br.publish("tea", "q", session=session, timer_id="t")
            await session.rollback()
            await br.publish("cake", "q", session=session)
        await tb.advance(DAY)
        assert handled(br) == []
        assert await br.publish("scones", "q", timer_id="t") is not None
        assert handled(br) == ["scones"]


async def test_a_session_is_used_again_after_its_commit(broker: OutboxBroker, ledger: Ledger) -> None:
    tb = TestOutboxBroker(broker)
    async with tb as br, ledger.sessions() as session:
        await br.publish("tea", "q", session=session)
        await session.commit()
        await br.publish("cake", "q", session=session)
        await session.rollback()
        await br.publish("scones", "q", session=session)
        await session.commit()
        await tb.run()
        assert handled(br) == ["tea", "scones"]


async def test_releasing_a_savepoint_commits_nothing(broker: OutboxBroker, ledger: Ledger) -> None:
    tb = TestOutboxBroker(broker)
    async with tb as br, ledger.sessions() as session:
        async with session.begin_nested():
            await ledger.write(session, "ordered")
            await br.publish("tea", "q", session=session)
        await session.rollback()
        await tb.advance(DAY)
        assert handled(br) == []


async def test_what_a_session_changed_is_as_before_when_it_rolls_back(
    broker: OutboxBroker, ledger: Ledger
) -> None:
    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("tea", "q", timer_id="a", activate_in=DAY)
        await br.publish("cake", "q", timer_id="b", activate_in=DAY)
        async with ledger.sessions() as session:
            await br.publish("coffee", "q", timer_id="a", on_conflict="replace", session=session)
            assert await br.cancel_timer("q", "b", session=session)
            await session.rollback()
        await tb.advance(DAY)
        assert handled(br) == ["tea", "cake"]


async def test_a_connection_is_as_good_as_a_session(broker: OutboxBroker, ledger: Ledger) -> None:
    tb = TestOutboxBroker(broker)
    async with tb as br, ledger.engine.connect() as connection:
        await br.publish("tea", "q", session=connection)
        await connection.rollback()
        await br.publish("cake", "q", session=connection)
        await tb.run()
        assert handled(br) == []
        await connection.commit()
        await tb.run()
        assert handled(br) == ["cake"]


async def test_a_session_of_synchronous_code_commits_and_rolls_back_too(broker: OutboxBroker) -> None:
    engine = create_engine("sqlite://")
    tb = TestOutboxBroker(broker)
    async with tb as br:
        sync = SyncPublisher(br)
        with Session(engine) as session:
            sync.publish("tea", "q", session=session)
            session.rollback()
            sync.publish("cake", "q", session=session)
            session.commit()
        await tb.run()
        assert handled(br) == ["cake"]
    engine.dispose()


async def test_scoped_sessions_are_sessions(broker: OutboxBroker, ledger: Ledger) -> None:
    engine = create_engine("sqlite://")
    scoped = scoped_session(sessionmaker(engine))
    async_scoped = async_scoped_session(ledger.sessions, asyncio.current_task)
    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("tea", "q", session=async_scoped)
        await async_scoped.rollback()
        await br.publish("cake", "q", session=async_scoped)
        await async_scoped.commit()
        SyncPublisher(br).publish("coffee", "q", session=scoped)
        scoped.rollback()
        await tb.run()
        assert handled(br) == ["cake"]
        await async_scoped.remove()
        scoped.remove()
    engine.dispose()


async def test_a_synchronous_connection_commits_and_rolls_back_too(broker: OutboxBroker) -> None:
    engine = create_engine("sqlite://")
    tb = TestOutboxBroker(broker)
    async with tb as br:
        with engine.connect() as connection:
            SyncPublisher(br).publish("tea", "q", session=connection)
            connection.rollback()
            SyncPublisher(br).publish("cake", "q", session=connection)
            connection.commit()
        await tb.run()
        assert handled(br) == ["cake"]
    engine.dispose()


@pytest.mark.parametrize("fake", [object(), MagicMock(), AsyncMock(), MagicMock(spec=AsyncSession), [], {}])
async def test_whatever_is_no_session_is_taken_for_a_committed_one(broker: OutboxBroker, fake: Any) -> None:
    async with TestOutboxBroker(broker) as br:
        await br.publish("tea", "q", session=fake)
        await br.publish_batch("cake", "scones", queue="q", session=fake)
        assert handled(br) == ["tea", "cake", "scones"]


# ── a handler's session ────────────────────────────────────────────────────────────────────────────────────


class FakeSession:
    """What a test may use for a session."""

    def __init__(self) -> None:
        self.commit, self.rollback, self.close = AsyncMock(), AsyncMock(), AsyncMock()


@pytest.mark.parametrize("url", [NOWHERE, "sqlite:///nowhere/none.db", "mysql://nowhere.invalid/none"])
async def test_a_handlers_fake_session_is_committed(url: str) -> None:
    made: list[FakeSession] = []

    def make() -> Any:
        made.append(FakeSession())
        return made[-1]

    broker = OutboxBroker(url, session_factory=make, retry=IN_A_MINUTE)

    @broker.publisher("next")
    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> Any:
        if msg.attempt == 1:
            raise ConnectionError
        return OutboxResponse(body, activate_in=DAY)

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb as br:
        await br.publish("tea", "q")
        (first,) = made
        first.rollback.assert_awaited_once()
        first.commit.assert_not_awaited()
        await tb.advance(MINUTE)
        _, second = made
        second.commit.assert_awaited_once()
        second.close.assert_awaited_once()
        assert [waiting.queue for waiting in await tb.pending()] == ["next"]


async def test_a_handlers_session_commits_with_the_end_of_its_message(ledger: Ledger) -> None:
    broker = OutboxBroker(NOWHERE, session_factory=ledger.sessions, retry=IN_A_MINUTE)

    @broker.publisher("next")
    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> str:
        await ledger.write(session, f"attempt {msg.attempt}")
        await broker.publish("extra", "extras", session=session)
        if msg.attempt == 1:
            raise ConnectionError
        return body

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb as br:
        await br.publish("tea", "q")
        assert [waiting.queue for waiting in await tb.pending()] == ["q"]
        await tb.advance(MINUTE)
        assert sorted(waiting.queue for waiting in await tb.pending()) == ["extras", "next"]
    assert await ledger.effects() == ["attempt 2"]


async def test_a_handler_acknowledges_in_a_session_of_its_own(ledger: Ledger) -> None:
    broker = OutboxBroker(NOWHERE, retry=IN_A_MINUTE)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session:
            await ledger.write(session, f"attempt {msg.attempt}")
            await msg.ack(session=session)
            if msg.attempt == 1:
                raise ConnectionError
            await session.commit()

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb as br:
        await br.publish("tea", "q")
        assert [waiting.attempts for waiting in await tb.pending("q")] == [1]
        await tb.advance(DAY)
        assert handle.mock.call_count == 2
        assert await tb.pending() == []
    assert await ledger.effects() == ["attempt 2"]


async def test_a_handler_that_never_commits_its_acknowledgement_is_called_again_when_the_lease_ends(
    ledger: Ledger,
) -> None:
    broker = OutboxBroker(NOWHERE, lease_ttl_seconds=60)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session:
            await msg.ack(session=session)
            if msg.deliveries == 2:
                await session.commit()

    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("tea", "q")
        await tb.advance(59)
        assert handle.mock.call_count == 1
        await tb.advance(1)
        assert handle.mock.call_count == 2
        await tb.advance(DAY)
        assert handle.mock.call_count == 2


async def test_messages_are_acknowledged_with_fakes() -> None:
    broker = OutboxBroker(NOWHERE)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.hold(object())
        await msg.ack(session=object())

    @broker.subscriber("batches", batch=True)
    async def several(bodies: list[str], msg: OutboxBatchMessage) -> None:
        await msg.ack(session=object())

    @broker.subscriber("q", dead_letters=True)
    async def dead(body: str, msg: OutboxMessage) -> None:
        await msg.ack(session=object())

    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("tea", "q")
        await br.publish_batch("a", "b", queue="batches")
        await br.publish("late", "q", expires_in=MINUTE, activate_in=1)
        tb.clock.advance(DAY)
        await tb.advance(DAY)
        assert dead.mock.call_count == 1
        assert await br.stats() == {}


class FakePipeline:
    """What a test may use for a pipeline of Redis."""

    def __init__(self) -> None:
        self.execute = AsyncMock()

    async def __aenter__(self) -> FakePipeline:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def test_a_handlers_pipeline_is_executed_with_the_end_of_its_message() -> None:
    broker = OutboxBroker("redis://nowhere.invalid", retry=IN_A_MINUTE)
    pipelines = [FakePipeline(), FakePipeline()]

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        client = MagicMock()
        client.pipeline.return_value = pipelines[msg.attempt - 1]
        async with msg.transaction(client) as pipe:
            await broker.publish("extra", "extras", session=pipe)
            if msg.attempt == 1:
                raise ConnectionError

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb as br:
        await br.publish("tea", "q")
        pipelines[0].execute.assert_not_awaited()
        assert [waiting.queue for waiting in await tb.pending()] == ["q"]
        await tb.advance(MINUTE)
        pipelines[1].execute.assert_awaited_once()
        assert [waiting.queue for waiting in await tb.pending()] == ["extras"]
