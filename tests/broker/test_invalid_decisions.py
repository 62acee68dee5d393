"""Decisions that cannot be carried out, and answers that make no sense: nothing of that ends in Done."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage, HandlerException, NackMessage, RejectMessage, SkipMessage

from nightmail import OutboxBroker
from nightmail.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from nightmail.errors import CannotJoin, NightmailError
from nightmail.outcome import Done, Retry
from nightmail.testing import TestOutboxBroker
from tests.broker.callers import Ledger
from tests.broker.support import IN_A_MINUTE, MINUTE, Heard, Make, in_memory, on_sqlite, started

AS_JSON = {"content-type": "application/json"}


@in_memory
@pytest.mark.parametrize("batch", [False, True])
async def test_a_decoder_may_fall_back_when_the_original_cannot_read_the_body(
    make: Make, heard: Heard, batch: bool
) -> None:
    broker, got = make(), []

    async def lenient(msg: Any, original: Any) -> Any:
        try:
            return await original(msg)
        except ValueError:  # json.JSONDecodeError
            return "as it is"

    @broker.subscriber("q", batch=batch, decoder=lenient)
    async def handle(body: Any) -> None:
        got.append(body)

    async with started(broker):
        sent = await broker.publish(b"{not json", "q", headers=AS_JSON)
        await heard.until(lambda: bool(heard.of(sent)))

    assert got == [["as it is"] if batch else "as it is"]
    assert heard.of(sent) == [Done()]


@pytest.mark.parametrize("batch", [False, True])
async def test_a_decision_that_cannot_be_carried_out_is_logged_with_what_is_wrong(
    heard: Heard, caplog: pytest.LogCaptureFixture, batch: bool
) -> None:
    logger = logging.getLogger("tests.a_decision_that_cannot_be_carried_out")
    broker = OutboxBroker("memory://", logger=logger, observer=heard, retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=batch)
    async def handle(body: Any) -> None:
        raise NackMessage(dellay=30)

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(logged) == 1
    assert "dellay" in logged[0].getMessage()


class Unheard(HandlerException):
    """An exception that the broker does not know."""


@pytest.mark.parametrize("raised", [SkipMessage, Unheard])
async def test_a_test_says_that_a_message_was_not_handled(raised: type[Exception]) -> None:
    broker = OutboxBroker("memory://", logger=None, retry=IN_A_MINUTE)

    @broker.subscriber("q")
    async def handle(body: Any) -> None:
        raise raised

    tested = TestOutboxBroker(broker)
    async with tested as br:
        with pytest.raises((NightmailError, HandlerException)):
            await br.publish("x", "q")
        assert len(await tested.pending("q")) == 1


@in_memory
@pytest.mark.parametrize(
    "policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL]
)
async def test_a_refused_acknowledgement_is_not_made_good_by_raising_one(
    make: Make, heard: Heard, policy: AckPolicy
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, msg: OutboxMessage) -> None:
        with suppress(CannotJoin):
            await msg.ack(session="no session at all")
        raise AckMessage

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Retry(MINUTE)]


@on_sqlite
@pytest.mark.parametrize("raised", [Unheard(), AckMessage(forever=True), NackMessage(dellay=3)])
async def test_what_was_acknowledged_and_undone_by_a_decision_that_is_not_understood_is_tried_again(
    make: Make, heard: Heard, ledger: Ledger, raised: Exception
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=AckPolicy.ACK)
    async def handle(body: str, msg: OutboxMessage, session: OutboxSession) -> None:
        await ledger.write(session, body)
        await msg.ack()
        raise raised

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent) or heard.acked))

    # Either both or neither: it would also do to commit what was acknowledged.
    assert (await ledger.effects() == ["tea"]) == (heard.acked == [sent])
    assert Done() not in heard.of(sent)


@in_memory
async def test_a_senseless_answer_for_one_of_a_batch_does_not_undo_the_decisions_on_the_others(
    make: Make, heard: Heard
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[Any], msg: OutboxBatchMessage) -> Any:
        await msg.items[0].ack()
        return [None, RejectMessage(reason=5)]

    async with broker:
        first, second = await broker.publish_batch("a", "b", queue="q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert heard.of(first) == [Done()]
    assert heard.of(second) == [Retry(MINUTE)]
