"""A handler re-arms, cancels or moves its own timer, with and without a session that locks its message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from nightmail import SyncPublisher
from nightmail.annotations import OutboxMessage, OutboxSession
from nightmail.outcome import Done, Retry
from tests.broker.callers import Ledger
from tests.broker.support import HOUR, IN_A_MINUTE, MINUTE, Heard, Make, on_sqlite, started

on_postgres = pytest.mark.parametrize("url", ["postgres"], indirect=True)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The same database, for synchronous code."""
    made = create_engine(url)
    yield made
    made.dispose()


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
