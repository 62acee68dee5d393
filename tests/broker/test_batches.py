"""A handler that takes several messages at once, and can tell them apart."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SetupError
from pydantic import BaseModel

from nightmail import ConstantRetry, Dead, Done, NoRetry, OutboxBroker, Postpone, PostponeMessage, Retry
from nightmail.annotations import OutboxBatchMessage, OutboxSession
from nightmail.errors import LeaseLost
from nightmail.outcome import Outcome, Release
from nightmail.store import Settlement
from tests.broker.callers import Ledger
from tests.broker.support import IN_A_MINUTE, MINUTE, Heard, Make, in_memory, on_sql, publish, started

AT_ONCE = ConstantRetry(delay=0, jitter=0, max_attempts=5)


class Order(BaseModel):
    """A typed payload."""

    id: int


async def test_a_handler_gets_a_list_of_the_type_it_asked_for(make: Make, heard: Heard) -> None:
    broker, got = make(), []

    @broker.subscriber("q", batch=True, max_batch=3)
    async def take(orders: list[Order], msg: OutboxBatchMessage) -> None:
        got.append(orders)
        assert [item.queue for item in msg.items] == ["q"] * len(orders)

    sent = await publish(broker, *({"id": number} for number in range(7)))
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 7)

    assert sorted(order.id for batch in got for order in batch) == list(range(7))
    assert max(len(batch) for batch in got) == 3
    assert [heard.of(each) for each in sent] == [[Done()]] * 7


@in_memory
async def test_each_can_have_a_decision_of_its_own(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str], msg: OutboxBatchMessage) -> None:
        await msg.items[1].nack(delay=5)
        await msg.items[2].reject("no such customer")
        await msg.items[3].postpone(30)

    sent = await publish(broker, "a", "b", "c", "d")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 4)

    assert [heard.of(each) for each in sent] == [
        [Done()],
        [Retry(timedelta(seconds=5))],
        [Dead("no such customer")],
        [Postpone(timedelta(seconds=30))],
    ]


@in_memory
async def test_a_handler_may_return_an_outcome_for_each(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> list[Outcome | None]:
        return [None, Retry(MINUTE), Dead("no such customer")]

    sent = await publish(broker, "a", "b", "c")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 3)

    assert [heard.of(each) for each in sent] == [[Done()], [Retry(MINUTE)], [Dead("no such customer")]]


@in_memory
async def test_an_outcome_may_be_returned_as_what_one_would_raise(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> list[Exception | None]:
        return [
            AckMessage(),
            PostponeMessage(30),
            NackMessage(delay=5),
            RejectMessage(reason="no such customer"),
            NackMessage(dealy=5),
        ]

    sent = await publish(broker, "a", "b", "c", "d", "e")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 5)

    assert [heard.of(each) for each in sent] == [
        [Done()],
        [Postpone(timedelta(seconds=30))],
        [Retry(timedelta(seconds=5))],
        [Dead("no such customer")],
        [Retry(MINUTE)],
    ]


@in_memory
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("half-way"), Retry(MINUTE)),
        (NackMessage(delay=5), Retry(timedelta(seconds=5))),
        (PostponeMessage(30), Postpone(timedelta(seconds=30))),
    ],
)
async def test_what_is_raised_applies_to_those_without_a_decision(
    make: Make, heard: Heard, error: Exception, outcome: Outcome
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str], msg: OutboxBatchMessage) -> None:
        await msg.items[0].ack()
        raise error

    sent = await publish(broker, "a", "b", "c")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 3)

    assert [heard.of(each) for each in sent] == [[Done()], [outcome], [outcome]]


async def test_one_that_fails_all_does_not_take_its_neighbours_along(make: Make, heard: Heard) -> None:
    broker = make(retry=AT_ONCE)

    @broker.subscriber("q", batch=True)
    async def take(orders: list[Order]) -> None: ...

    good = [{"id": number} for number in range(20)]
    sent = await publish(broker, *good[:10], {"id": "not a number"}, *good[10:])
    async with started(broker):
        await heard.until(lambda: sum(outcome == Done() for _, outcome in heard.outcomes) == 20)
        await heard.until(lambda: any(isinstance(outcome, Dead) for _, outcome in heard.outcomes))
        (letter,) = await broker.dead_letters("q")

    assert letter.message_id == sent[10]


@in_memory
async def test_what_cannot_be_decoded_is_buried_and_the_others_are_handled(make: Make, heard: Heard) -> None:
    broker, got = make(), []

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[Any], msg: OutboxBatchMessage) -> None:
        got.append((bodies, [item.body for item in msg.items]))

    async with broker:
        first = await broker.publish({"id": 1}, "q")
        bad = await broker.publish(b"{not json", "q", headers={"content-type": "application/json"})
        last = await broker.publish({"id": 2}, "q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 3)

    assert got == [([{"id": 1}, {"id": 2}], [b'{"id":1}', b'{"id":2}'])]
    assert [heard.of(each) for each in (first, last)] == [[Done()], [Done()]]
    assert [outcome.reason for outcome in heard.of(bad) if isinstance(outcome, Dead)] == ["undecodable"]


@in_memory
async def test_a_parser_of_ones_own_gets_one_message_at_a_time(make: Make, heard: Heard) -> None:
    broker, got = make(), []

    async def shouting(msg: Any, original: Any) -> Any:
        return (await original(msg)).upper()

    @broker.subscriber("q", batch=True, decoder=shouting)
    async def take(bodies: list[str]) -> None:
        got.append(bodies)

    await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert got == [["A", "B"]]


@in_memory
async def test_a_message_alone_does_not_wait_for_others(make: Make, heard: Heard) -> None:
    broker, got = make(), []

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> None:
        got.append(bodies)

    async with started(broker):
        sent = await broker.publish("a", "q")
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert got == [["a"]]


@on_sql
async def test_a_batch_is_acknowledged_in_a_transaction_all_or_none(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make()
    told: list[tuple[int, ...]] = []

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str], msg: OutboxBatchMessage) -> None:
        if not told:
            told.append(())
            await broker.store.settle([Settlement(msg.items[1].delivery, Release())])
        async with ledger.sessions() as session, session.begin():
            for body in bodies:
                await ledger.write(session, body)
            try:
                await msg.ack(session=session)
            except LeaseLost as lost:
                told.append(lost.ids)
                raise

    sent = await publish(broker, "a", "b", "c")
    async with started(broker):
        await heard.until(lambda: sorted(heard.acked) == sent)

    assert told == [(), (sent[1],)]
    assert await ledger.effects() == ["a", "b", "c"]
    assert heard.lost == [sent[1]]


@on_sql
async def test_a_batch_has_one_session_committed_with_those_that_are_done(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=NoRetry())

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str], msg: OutboxBatchMessage, session: OutboxSession) -> None:
        for body, item in zip(bodies, msg.items, strict=True):
            if body == "bad":
                await item.reject("bad")
            else:
                await ledger.write(session, body)

    sent = await publish(broker, "a", "bad", "c")
    async with started(broker):
        await heard.until(lambda: len(heard.acked) == 2 and len(heard.outcomes) == 1)

    assert sorted(heard.acked) == [sent[0], sent[2]]
    assert heard.of(sent[1]) == [Dead("bad")]
    assert await ledger.effects() == ["a", "c"]


@on_sql
async def test_a_batch_whose_items_were_acknowledged_one_by_one_commits_its_session(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions)

    @broker.subscriber("q", batch=True, ack_policy=AckPolicy.MANUAL)
    async def take(bodies: list[str], msg: OutboxBatchMessage, session: OutboxSession) -> None:
        for body, item in zip(bodies, msg.items, strict=True):
            await ledger.write(session, body)
            await item.ack()

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: sorted(heard.acked) == sent)

    assert await ledger.effects() == ["a", "b"]


@in_memory
async def test_outcomes_that_are_not_one_for_each_are_a_failure(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> list[Outcome | None]:
        return [Done()]

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[Retry(MINUTE)], [Retry(MINUTE)]]
    assert heard.errors == ["TypeError", "TypeError"]


@in_memory
async def test_an_exception_among_the_outcomes_fails_its_own_message(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> list[Any]:
        return [None, RuntimeError("this one")]

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[Done()], [Retry(MINUTE)]]
    assert heard.errors == ["RuntimeError"]


@in_memory
async def test_a_list_that_is_meant_to_be_published_is_no_list_of_outcomes(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.publisher("next")
    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> list[str]:
        return [body.upper() for body in bodies]

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)
        assert [waiting.body for waiting in await broker.pending("next")] == [b'["A","B"]']

    assert [heard.of(each) for each in sent] == [[Done()], [Done()]]


@in_memory
async def test_batches_run_beside_each_other_up_to_the_limit(make: Make, heard: Heard) -> None:
    broker, together = make(), asyncio.Barrier(2)

    @broker.subscriber("q", batch=True, max_batch=2, max_workers=2)
    async def take(bodies: list[str]) -> None:
        await together.wait()

    await publish(broker, "a", "b", "c", "d")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 4)


def test_a_batch_needs_a_size_that_makes_sense() -> None:
    broker = OutboxBroker("memory://")
    with pytest.raises(SetupError, match="batch=True"):
        broker.subscriber("q", max_batch=5)
    with pytest.raises(ValueError, match="at least 1"):
        broker.subscriber("q", batch=True, max_batch=0)
