"""`OutboxSession`: a session for the handler, committed together with the end of its message."""

from __future__ import annotations

from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage, NackMessage, SetupError

from nightmail import OutboxBroker, OutboxResponse, PostponeMessage
from nightmail.annotations import OutboxMessage, OutboxSession
from nightmail.outcome import Dead, Done, Postpone, Release, Retry
from nightmail.store import Settlement
from tests.broker.callers import Ledger
from tests.broker.support import AT_ONCE, Heard, Make, in_memory, on_sql, started


@on_sql
async def test_what_the_handler_wrote_commits_with_the_end_of_its_message(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession) -> None:
        await ledger.write(session, body)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        assert await broker.stats() == {}

    assert await ledger.effects() == ["tea"]
    assert heard.outcomes == []


@on_sql
async def test_the_return_value_is_published_in_the_same_transaction(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.publisher("next")
    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> Any:
        await ledger.write(session, f"attempt {msg.attempt}")
        if msg.attempt == 1:
            # Published last, and refused: nothing of the handler's may stay.
            return OutboxResponse("never", session="no session at all")
        return OutboxResponse(f"attempt {msg.attempt}", activate_in=3600, timer_id="t")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        waiting = [(each.body, each.timer_id) for each in await broker.pending("next")]

    assert waiting == [(b"attempt 2", "t")]
    assert await ledger.effects() == ["attempt 2"]


@on_sql
async def test_a_handler_that_raises_leaves_nothing_behind(make: Make, heard: Heard, ledger: Ledger) -> None:
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.publisher("next")
    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> str:
        await ledger.write(session, f"attempt {msg.attempt}")
        await broker.publish(f"attempt {msg.attempt}", "other", session=session, activate_in=3600)
        if msg.attempt == 1:
            raise RuntimeError("half-way")
        if msg.attempt == 2:
            raise NackMessage(delay=0)
        if msg.attempt == 3:
            await msg.nack(delay=0)
        return "done"

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        other = [each.body for each in await broker.pending("other")]

    assert heard.of(sent) == [Retry(), Retry(), Retry()]
    assert await ledger.effects() == ["attempt 4"]
    assert other == [b"attempt 4"]


@on_sql
async def test_a_handler_that_postpones_and_returns_keeps_what_it_wrote(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker, runs = make(session_factory=ledger.sessions), []

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        runs.append(msg.id)
        await ledger.write(session, f"run {len(runs)}")
        if len(runs) == 1:
            await msg.postpone(0.1)
        if len(runs) == 2:
            raise PostponeMessage(0.1)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["run 1", "run 3"]
    assert [type(outcome) for outcome in heard.of(sent)] == [Postpone, Postpone]


@on_sql
async def test_a_handler_that_rejects_and_returns_keeps_what_it_wrote(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, "marked as failed")
        await msg.reject("no such customer")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.of(sent) == [Dead("no such customer")])

    assert await ledger.effects() == ["marked as failed"]


@on_sql
async def test_a_worker_that_lost_the_lease_has_no_effect(make: Make, heard: Heard, ledger: Ledger) -> None:
    broker, runs = make(session_factory=ledger.sessions), []

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage, session: OutboxSession) -> None:
        runs.append(msg.id)
        await ledger.write(session, f"run {len(runs)}")

    original = broker.store.hold, broker.store.ack

    async def taken_over(deliveries: Any, *, transaction: Any) -> None:
        """What happens when another worker had the message before this transaction came to it."""
        if not runs:
            runs.append(0)
            await broker.store.settle([Settlement(each, Release()) for each in deliveries])
        await original[0](deliveries, transaction=transaction)

    async def taken_over_at_the_end(deliveries: Any, *, transaction: Any) -> None:
        if len(runs) == 1 and not broker.store.capabilities.concurrent_writers:
            runs.append(0)
            await transaction.rollback()  # One writer at a time: our own write lock would keep the other out.
            await broker.store.settle([Settlement(each, Release()) for each in deliveries])
        await original[1](deliveries, transaction=transaction)

    broker.store.hold = taken_over  # type: ignore[method-assign]
    broker.store.ack = taken_over_at_the_end  # type: ignore[method-assign]
    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert len(await ledger.effects()) == 1
    assert heard.lost == [sent]


@on_sql
@pytest.mark.parametrize("policy", [AckPolicy.MANUAL, AckPolicy.ACK])
async def test_other_policies_conclude_the_session_too(
    make: Make, heard: Heard, ledger: Ledger, policy: AckPolicy
) -> None:
    broker = make(session_factory=ledger.sessions)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, body)
        await msg.ack(session=session)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["tea"]


@on_sql
async def test_raising_ack_message_commits_as_returning_does(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession) -> None:
        await ledger.write(session, body)
        raise AckMessage

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["tea"]


@on_sql
@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL])
async def test_what_is_acknowledged_and_then_fails_is_undone_and_tried_again(
    make: Make, heard: Heard, ledger: Ledger, policy: AckPolicy
) -> None:
    """Otherwise the message would be gone, and what its handler wrote as well."""
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, f"attempt {msg.attempt}")
        await msg.ack()
        if msg.attempt == 1:
            raise RuntimeError("after the ack")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["attempt 2"]
    assert heard.of(sent) == [Retry()]


@on_sql
async def test_where_failing_is_as_good_as_done_a_failed_handler_leaves_neither_its_writes_nor_its_message(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions)

    @broker.subscriber("q", ack_policy=AckPolicy.ACK)
    async def handle(body: str, session: OutboxSession) -> None:
        await ledger.write(session, body)
        raise RuntimeError("half-way")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert await ledger.effects() == []


@on_sql
async def test_a_handler_that_does_not_ask_gets_no_session(make: Make, heard: Heard) -> None:
    def no_sessions_here() -> Any:
        raise AssertionError("no handler asked")

    broker = make(session_factory=no_sessions_here)

    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.of(sent) == [Done()])


@on_sql
async def test_a_commit_that_fails_is_a_failure_of_the_handler(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, f"attempt {msg.attempt}")
        if msg.attempt == 1:

            async def refuse() -> None:
                raise ConnectionError("the server went away")

            session.commit = refuse  # type: ignore[method-assign]

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["attempt 2"]
    assert heard.errors == ["ConnectionError"]
    assert heard.lost == []


@in_memory
async def test_asking_for_a_session_without_a_factory_says_what_is_missing(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession) -> None: ...

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.errors == ["RuntimeError"]


def test_a_session_factory_needs_a_store_that_joins_transactions() -> None:
    with pytest.raises(SetupError, match="redis"):
        OutboxBroker("redis://localhost", session_factory=lambda: None)  # type: ignore[arg-type, return-value]
