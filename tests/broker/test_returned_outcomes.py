"""What a handler returns to say how it ended: an outcome, or what it would have raised."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage

from nightmail import Dead, Done, Postpone, PostponeMessage, Retry
from nightmail.annotations import OutboxMessage
from nightmail.outcome import Outcome
from tests.broker.support import IN_A_MINUTE, MINUTE, Heard, Make, in_memory, started

pytestmark = in_memory

answers = pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Done(), Done()),
        (Retry(timedelta(seconds=5)), Retry(timedelta(seconds=5))),
        (Postpone(MINUTE), Postpone(MINUTE)),
        (Dead("no such customer"), Dead("no such customer")),
        (PostponeMessage(30), Postpone(timedelta(seconds=30))),
        (NackMessage(delay=5), Retry(timedelta(seconds=5))),
        (RejectMessage(reason="no such customer"), Dead("no such customer")),
        (ValueError("half-way"), Retry(MINUTE)),
    ],
    ids=repr,
)


@answers
async def test_an_outcome_that_a_handler_returns_is_its_decision(
    make: Make, heard: Heard, answer: Any, outcome: Outcome
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q")
    async def take(body: str) -> Any:
        return answer

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [outcome]


@answers
async def test_one_outcome_that_a_batch_handler_returns_is_that_of_all(
    make: Make, heard: Heard, answer: Any, outcome: Outcome
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> Any:
        return answer

    async with broker:
        sent = await broker.publish_batch("a", "b", queue="q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[outcome], [outcome]]


async def test_what_the_handler_said_before_counts_more(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(body: str, msg: OutboxMessage) -> Outcome:
        await msg.reject("said first")
        return Done()

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Dead("said first")]


async def test_a_returned_outcome_is_a_decision_under_manual_too(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL)
    async def take(body: str) -> Outcome:
        return Done()

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Done()]


@pytest.mark.parametrize("answer", [Dead("no"), [Done(), None], RuntimeError("no")], ids=repr)
async def test_an_outcome_is_published_nowhere(make: Make, heard: Heard, answer: Any) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.publisher("next")
    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> Any:
        return answer

    async with broker:
        await broker.publish_batch("a", "b", queue="q", reply_to="answers")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)
        queues = set(await broker.stats())

    assert not queues & {"next", "answers"}


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR])
@pytest.mark.parametrize(
    "answer", [Retry, Postpone, NackMessage, ValueError, [Retry(MINUTE)], [None, Dead("x")]]
)
async def test_an_answer_that_makes_no_sense_is_never_taken_for_done(
    make: Make, heard: Heard, policy: AckPolicy, answer: Any
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.publisher("next")
    @broker.subscriber("q", ack_policy=policy)
    async def take(body: str) -> Any:
        return answer

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        waiting = await broker.pending("next")

    assert heard.of(sent) == [Retry(MINUTE)]
    assert heard.errors == ["NoDecision"]
    assert waiting == []


@pytest.mark.parametrize("answer", [Retry, [Retry]])
async def test_a_class_is_no_answer_on_a_batch_either(make: Make, heard: Heard, answer: Any) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> Any:
        return answer

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Retry(MINUTE)]
