"""Mistakes that would otherwise be noticed only by what does not happen."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fastapi import FastAPI
from faststream.exceptions import SetupError
from faststream_fastapi import FastStreamAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from nightmail import OutboxBroker
from nightmail.annotations import Logger, OutboxMessage, OutboxSession
from nightmail.annotations import OutboxBroker as TheBroker
from nightmail.errors import CannotJoin
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


def test_an_engine_is_no_session_factory() -> None:
    engine: Any = create_async_engine("sqlite+aiosqlite://")

    with pytest.raises(TypeError, match="async_sessionmaker"):
        OutboxBroker("sqlite:///never.db", session_factory=engine)


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
