"""Mistakes that would otherwise be noticed only by what does not happen."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from faststream import Context
from faststream.exceptions import SetupError
from faststream_fastapi import FastStreamAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from nightmail import ConstantRetry, OutboxBroker, SyncPublisher
from nightmail.annotations import Logger, OutboxMessage, OutboxSession
from nightmail.annotations import OutboxBroker as TheBroker
from nightmail.errors import CannotJoin
from nightmail.stores.memory import MemoryStore
from nightmail.testing import TestOutboxBroker
from tests.broker.support import Heard, started

logger = logging.getLogger("tests.broker.silent_mistakes")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything from the level of information on."""
    caplog.set_level(logging.INFO, logger=logger.name)
    return caplog


def said(log: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """What the brokers of these tests said, at this level or above."""
    return [
        record.getMessage()
        for record in log.records
        if record.name == logger.name and record.levelno >= level
    ]


async def test_two_subscribers_of_one_queue_are_named_at_the_start(log: pytest.LogCaptureFixture) -> None:
    broker = OutboxBroker("memory://", logger=logger)

    @broker.subscriber("mail", "post")
    async def send(body: str) -> None: ...

    @broker.subscriber("mail")
    async def count(body: str) -> None: ...

    @broker.subscriber("mail", dead_letters=True)
    async def bury(body: str) -> None: ...

    async with started(broker):
        pass

    (warned,) = said(log, logging.WARNING)
    assert "queue mail has 2 subscribers (Count, Send)" in warned


async def test_one_handler_for_each_queue_is_no_mistake(log: pytest.LogCaptureFixture) -> None:
    broker = OutboxBroker("memory://", logger=logger)
    subscriber = broker.subscriber("mail")

    @subscriber(filter=lambda msg: "kind" in msg.headers)
    async def send(body: str) -> None: ...

    @subscriber
    async def count(body: str) -> None: ...

    async with started(broker):
        pass

    assert said(log, logging.WARNING) == []


@pytest.mark.parametrize("option", [{"tables": "other"}, {"keep_delivered": True}, {"max_body_bytes": 1024}])
def test_an_option_of_the_store_is_refused_beside_a_store_that_is_made_already(
    option: dict[str, Any],
) -> None:
    with pytest.raises(SetupError, match=f"{next(iter(option))} has no effect on a store that is made"):
        OutboxBroker(MemoryStore(), **option)


async def test_a_broker_that_was_only_connected_says_that_it_delivered_nothing(
    log: pytest.LogCaptureFixture,
) -> None:
    broker = OutboxBroker("memory://", logger=logger)

    @broker.subscriber("mail")
    async def send(body: str) -> None: ...

    async with broker:
        await broker.publish("tea", "mail")
    (first,) = said(log)
    async with broker:
        await broker.start()

    assert "`await broker.start()`" in first
    assert not any("never started" in each for each in said(log)[1:])


async def test_a_broker_that_only_publishes_says_nothing(log: pytest.LogCaptureFixture) -> None:
    async with OutboxBroker("memory://", logger=logger) as broker:
        await broker.publish("tea", "mail")

    assert said(log) == []


ENGINES = [
    create_async_engine("sqlite+aiosqlite://"),
    async_sessionmaker(create_async_engine("sqlite+aiosqlite://")),
    create_engine("sqlite://"),
]


@pytest.mark.parametrize("session", ENGINES, ids=lambda each: type(each).__name__)
async def test_what_makes_transactions_is_none(session: Any) -> None:
    """A test broker takes every object for a transaction, so this has to be noticed before."""
    broker = OutboxBroker("memory://", logger=None)

    async with TestOutboxBroker(broker):
        for verb in (
            lambda: broker.publish("tea", "mail", session=session),
            lambda: broker.publish_batch("tea", queue="mail", session=session),
            lambda: broker.cancel_timer("mail", "t", session=session),
            lambda: broker.reschedule_timer("mail", "t", activate_in=1, session=session),
            lambda: broker.pending("mail", session=session),
            lambda: broker.cancel_all("mail", session=session),
        ):
            with pytest.raises(CannotJoin, match=r"sessions\.begin"):
                await verb()


@pytest.mark.parametrize("session", ENGINES, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("batch", [False, True])
async def test_what_makes_transactions_acknowledges_nothing(session: Any, batch: bool) -> None:
    broker = OutboxBroker("memory://", logger=None)
    refusals = []

    async def handle(body: Any, msg: Any = Context("message")) -> None:
        for verb in (msg.ack, msg.hold):
            with pytest.raises(CannotJoin) as error:
                await verb(session)
            refusals.append(str(error.value))

    broker.subscriber("mail", batch=batch)(handle)

    async with TestOutboxBroker(broker):
        await broker.publish("tea", "mail")

    assert len(refusals) == 2
    assert all("`async with sessions.begin() as session`" in each for each in refusals)


@pytest.mark.parametrize("session", ENGINES, ids=lambda each: type(each).__name__)
async def test_in_synchronous_code_what_makes_transactions_is_none_either(session: Any) -> None:
    broker = OutboxBroker("memory://", logger=None)
    publisher, refusals = SyncPublisher(broker), []

    @broker.subscriber("mail")
    def handle(body: str, msg: OutboxMessage) -> None:
        for refused in (
            lambda: msg.ack(session=session),
            lambda: msg.hold(session),
            lambda: publisher.publish("tea", "mail", session=session),
            lambda: publisher.publish_batch("tea", queue="mail", session=session),
            lambda: publisher.cancel_timer("mail", "t", session=session),
            lambda: publisher.reschedule_timer("mail", "t", activate_in=1, session=session),
        ):
            with pytest.raises(CannotJoin) as error:
                refused()
            refusals.append(str(error.value))

    async with TestOutboxBroker(broker):
        await broker.publish("tea", "mail")

    assert len(refusals) == 6
    assert all("`with sessions.begin() as session`" in each for each in refusals)


@pytest.mark.parametrize("option", ["session_factory", "sync_session_factory"])
def test_what_makes_no_sessions_of_that_kind_is_no_session_factory(option: str) -> None:
    is_sync = option.startswith("sync")
    engine, sync_engine = create_async_engine("sqlite+aiosqlite://"), create_engine("sqlite://")
    other = async_sessionmaker(engine) if is_sync else sessionmaker(sync_engine)
    right = r"pass sessionmaker\(" if is_sync else r"pass async_sessionmaker\("

    for factory in (engine, sync_engine, other):
        options: Any = {option: factory}
        with pytest.raises(TypeError, match=right):
            OutboxBroker("sqlite:///never.db", **options)


async def test_under_fastapi_a_handler_gets_the_message_that_it_asks_for(heard: Heard) -> None:
    broker = OutboxBroker("memory://", logger=logger, observer=heard)
    seen: list[Any] = []

    @broker.subscriber("mail")
    async def send(body: str, msg: OutboxMessage, the_broker: TheBroker, log: Logger) -> None:
        seen.append((body, msg.id, the_broker is broker, log is logger))

    FastStreamAPI(broker, application=FastAPI(), safe_connection=True)

    async with started(broker):
        await broker.publish("one", "mail")
        await broker.publish("two", "mail")
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert sorted(seen) == [("one", 1, True, True), ("two", 2, True, True)]
    assert heard.errors == []


async def test_under_fastapi_a_session_is_refused_at_the_start() -> None:
    broker = OutboxBroker("memory://", logger=None)

    @broker.subscriber("mail")
    async def send(body: str, session: OutboxSession) -> None: ...

    FastStreamAPI(broker, application=FastAPI(), safe_connection=True)

    with pytest.raises(SetupError, match="open_session"):
        await broker.start()
    await broker.stop()


def slow() -> int:
    return 1


def slower(one: Annotated[int, Depends(slow)]) -> int:
    return one


async def quick() -> int:
    return 1


async def test_under_fastapi_synchronous_dependencies_of_many_workers_are_warned_of(
    log: pytest.LogCaptureFixture,
) -> None:
    broker = OutboxBroker("memory://", logger=logger)

    @broker.subscriber("mail", max_workers=41)
    def send(
        body: str,
        msg: OutboxMessage,
        one: Annotated[int, Depends(slower)],
        two: Annotated[int, Depends(quick)],
    ) -> None: ...

    FastStreamAPI(broker, application=FastAPI(), safe_connection=True)

    async with started(broker):
        pass

    (warned,) = said(log, logging.WARNING)
    assert "(slow, slower)" in warned


@pytest.mark.parametrize("end", ["nack", "postpone"])
async def test_a_delay_of_centuries_is_refused_and_the_message_comes_again(end: str) -> None:
    broker = OutboxBroker("memory://", logger=logger, retry=ConstantRetry(delay=1))
    refusals: list[str] = []

    @broker.subscriber("mail")
    async def send(body: str, msg: OutboxMessage) -> None:
        if not refusals:
            try:
                await getattr(msg, end)(10**12)
            except ValueError as refused:
                refusals.append(str(refused))
                raise

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb:
        await broker.publish("tea", "mail")
        await tb.advance(2)
        assert await broker.stats() == {}

    assert refusals == [
        "delay lies more than 200 years ahead. Numbers are seconds: was it meant in milliseconds?"
    ]
