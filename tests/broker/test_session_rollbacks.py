"""A handler's session: a message whose writes were undone is not done, and one whose writes stand is.

On SQLite: all stores are asked for the same, and there the message is locked at the end alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faststream import AckPolicy, ExceptionMiddleware
from faststream.exceptions import AckMessage

from nightmail.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from nightmail.broker.sessions import open_session
from nightmail.outcome import Dead, Done, Outcome, Release, Retry
from nightmail.store import Settlement
from tests.broker.callers import Ledger
from tests.broker.support import (
    AT_ONCE,
    IN_A_MINUTE,
    MINUTE,
    Heard,
    Make,
    in_memory,
    on_sqlite,
    publish,
    soon,
    started,
)


async def gone_away() -> None:
    """A commit that does not reach the server."""
    raise ConnectionError("the server went away")


# ── the end of the session fails ──────────────────────────────────────────────────────────────────────────


@on_sqlite
async def test_a_message_whose_acknowledgement_fails_at_the_end_is_tried_again(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker, asked = make(session_factory=ledger.sessions, retry=AT_ONCE), []

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, f"attempt {msg.attempt}")

    ack = broker.store.ack

    async def failing_once(deliveries: Any, *, transaction: Any) -> None:
        asked.append(deliveries)
        if len(asked) == 1:
            await gone_away()
        await ack(deliveries, transaction=transaction)

    broker.store.ack = failing_once  # type: ignore[method-assign]
    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert heard.of(sent) == [Retry()]
    assert heard.errors == ["ConnectionError"]
    assert await ledger.effects() == ["attempt 2"]


@on_sqlite
async def test_of_a_batch_that_ends_with_one_lease_lost_the_others_go_again_at_once(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker, runs = make(session_factory=ledger.sessions, retry=IN_A_MINUTE), []

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str], msg: OutboxBatchMessage, session: OutboxSession) -> None:
        runs.append(bodies)
        if len(runs) == 1:
            # It goes to another worker, which is not known here before the end.
            await broker.store.settle([Settlement(msg.items[0].delivery, Release())])
        for body in bodies:
            await ledger.write(session, body)

    lost, *innocent = sent = await publish(broker, "a", "b", "c")
    async with started(broker):
        await heard.until(lambda: sorted(heard.acked) == sent)

    assert heard.lost == [lost]
    assert [heard.of(each) for each in innocent] == [[Release()], [Release()]]
    assert heard.errors == []
    assert await ledger.effects() == ["a", "b", "c"]


@on_sqlite
@pytest.mark.parametrize("decision", ["postpone", "reject"])
async def test_a_decision_whose_commit_fails_does_not_stand(
    make: Make, heard: Heard, ledger: Ledger, decision: str
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, body)
        await (msg.postpone(3600) if decision == "postpone" else msg.reject("no such customer"))
        session.commit = gone_away  # type: ignore[method-assign]

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Retry(MINUTE)]
    assert heard.errors == ["ConnectionError"]
    assert await ledger.effects() == []


@on_sqlite
async def test_a_decision_whose_message_cannot_be_locked_at_the_end_does_not_stand(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, body)
        await msg.reject("no such customer")

    async def refused(deliveries: Any, *, transaction: Any) -> None:
        await gone_away()

    broker.store.hold = refused  # type: ignore[method-assign]
    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Retry(MINUTE)]
    assert await ledger.effects() == []


@on_sqlite
async def test_an_answer_whose_commit_fails_is_not_sent(make: Make, heard: Heard, ledger: Ledger) -> None:
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> str:
        await ledger.write(session, f"attempt {msg.attempt}")
        if msg.attempt == 1:
            session.commit = gone_away  # type: ignore[method-assign]
        return f"answer {msg.attempt}"

    async with started(broker):
        sent = await broker.publish("tea", "q", reply_to="answers")
        await heard.until(lambda: heard.acked == [sent])
        answers = [each.body for each in await broker.pending("answers")]

    assert answers == [b"answer 2"]
    assert await ledger.effects() == ["attempt 2"]


# ── the handler fails after its decision ───────────────────────────────────────────────────────────────────


@on_sqlite
async def test_a_batch_that_is_acknowledged_and_then_fails_is_undone_and_tried_again(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str], msg: OutboxBatchMessage, session: OutboxSession) -> None:
        for body in bodies:
            await ledger.write(session, body)
        await msg.ack()
        raise RuntimeError("after the ack")

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[Retry(MINUTE)], [Retry(MINUTE)]]
    assert await ledger.effects() == []


@on_sqlite
async def test_outcomes_that_are_not_one_for_each_undo_what_an_item_was_acknowledged_with(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def handle(
        bodies: list[str], msg: OutboxBatchMessage, session: OutboxSession
    ) -> list[Outcome | None]:
        for body in bodies:
            await ledger.write(session, body)
        await msg.items[0].ack()
        return [Done(), Done(), Done()]

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[Retry(MINUTE)], [Retry(MINUTE)]]
    assert await ledger.effects() == []


@on_sqlite
async def test_an_error_that_a_middleware_swallows_undoes_an_acknowledgement_in_the_session_all_the_same(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    swallowing = ExceptionMiddleware(handlers={ValueError: lambda _error: None})
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE, middlewares=[swallowing])

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, body)
        await msg.ack(session=session)
        raise ValueError("after the ack")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent) or heard.acked))

    assert heard.of(sent) == [Retry(MINUTE)]
    assert heard.acked == []
    assert await ledger.effects() == []


# ── raising AckMessage ────────────────────────────────────────────────────────────────────────────────────


@on_sqlite
async def test_raising_ack_message_commits_where_decisions_are_the_handlers_own(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, session: OutboxSession) -> None:
        await ledger.write(session, body)
        raise AckMessage

    async with started(broker):
        await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.acked or heard.uncertainties or heard.outcomes))
        assert await broker.stats() == {}

    assert heard.outcomes == []
    assert await ledger.effects() == ["tea"]


@on_sqlite
async def test_raising_ack_message_commits_a_batch_where_decisions_are_the_handlers_own(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True, ack_policy=AckPolicy.MANUAL)
    async def handle(bodies: list[str], session: OutboxSession) -> None:
        for body in bodies:
            await ledger.write(session, body)
        raise AckMessage

    await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.acked + heard.uncertainties) + len(heard.outcomes) == 2)
        assert await broker.stats() == {}

    assert heard.outcomes == []
    assert await ledger.effects() == ["a", "b"]


# ── the handler's time is up ──────────────────────────────────────────────────────────────────────────────


@in_memory
async def test_a_decision_that_was_made_before_the_time_was_up_stands(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE, handler_timeout=0.05)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.reject("no such customer")
        await asyncio.Event().wait()

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Dead("no such customer")]


@in_memory
async def test_of_a_batch_whose_time_is_up_those_with_a_decision_keep_it_and_the_others_are_tried_again(
    make: Make, heard: Heard
) -> None:
    broker = make(retry=IN_A_MINUTE, handler_timeout=0.05)

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str], msg: OutboxBatchMessage) -> None:
        await msg.items[0].ack()
        await asyncio.Event().wait()

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[Done()], [Retry(MINUTE)]]
    assert heard.errors == ["TimeoutError"]


@on_sqlite
async def test_an_acknowledgement_does_not_stand_when_the_time_was_up_before_its_session_was_committed(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE, handler_timeout=0.05)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, body)
        await msg.ack()
        await asyncio.Event().wait()

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Retry(MINUTE)]
    assert await ledger.effects() == []


@on_sqlite
async def test_a_session_is_closed_although_its_handler_is_cancelled_a_second_time_meanwhile(
    make: Make, ledger: Ledger
) -> None:
    # Long enough to get as far as the write on a busy machine.
    broker = make(session_factory=ledger.sessions, handler_timeout=2.0, graceful_timeout=0)
    closing, network, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession) -> None:
        close = session.close

        async def slowly() -> None:
            closing.set()
            await network.wait()
            await close()
            closed.set()

        session.close = slowly  # type: ignore[method-assign]
        await ledger.write(session, body)
        await asyncio.Event().wait()

    async with started(broker):
        await broker.publish("tea", "q")
        await soon(closing)  # Its time is up, and now the application stops.
    network.set()

    await soon(closed)
    assert await ledger.effects() == []


@on_sqlite
async def test_a_task_that_outlives_its_handler_gets_no_session_that_would_not_be_closed(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker, over, left = make(session_factory=ledger.sessions), asyncio.Event(), []

    async def later() -> None:
        await over.wait()
        await open_session()

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        left.append(asyncio.create_task(later()))

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.of(sent) == [Done()])
        over.set()
        with pytest.raises(RuntimeError, match="the handler has ended"):
            await left[0]
