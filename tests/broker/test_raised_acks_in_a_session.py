"""`raise AckMessage(session=...)` is `ack(session=...)` and a good end: under every policy, for one and for a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from nightmail import ConstantRetry
from nightmail.annotations import OutboxSession, SyncOutboxSession
from tests.broker.callers import Ledger
from tests.broker.support import Heard, Make, on_sqlite, one_or_many, started
from tests.broker.sync_ledger import SyncLedger, sync_ledger_at

IN_AN_HOUR = ConstantRetry(delay=3600, jitter=0)
policies = pytest.mark.parametrize(
    "policy",
    [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL],
    ids=lambda policy: policy.name,
)
said = pytest.mark.parametrize("how", ["raised", "returned"])


@pytest.fixture
def sync_ledger(url: str) -> Iterator[SyncLedger]:
    """The effects of `def` handlers."""
    with sync_ledger_at(url) as made:
        made.create()
        yield made


def ending(session: object, how: str) -> AckMessage:
    """End a handler with an acknowledgement in this session."""
    said = AckMessage(session=session)
    if how == "raised":
        raise said
    return said


@on_sqlite
@policies
@one_or_many
@said
async def test_in_a_session_of_its_own_the_message_leaves_with_its_commit(
    make: Make, heard: Heard, ledger: Ledger, policy: AckPolicy, batch: bool, how: str
) -> None:
    broker, opened = make(retry=IN_AN_HOUR), list[AsyncSession]()

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    async def handle(body: Any) -> Any:
        opened.append(session := ledger.sessions())
        await ledger.write(session, "tea")
        return ending(session, how)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.acked or heard.outcomes or heard.errors))
        [session] = opened
        await session.commit()
        await session.close()
        assert await broker.stats() == {}

    assert (heard.acked, heard.outcomes, heard.errors) == ([sent], [], [])
    assert await ledger.effects() == ["tea"]


@on_sqlite
@policies
@one_or_many
@said
async def test_in_the_outbox_session_it_commits_with_what_the_handler_wrote(
    make: Make, heard: Heard, ledger: Ledger, policy: AckPolicy, batch: bool, how: str
) -> None:
    broker = make(retry=IN_AN_HOUR, session_factory=ledger.sessions)

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    async def handle(body: Any, session: OutboxSession) -> Any:
        await ledger.write(session, "tea")
        return ending(session, how)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.acked or heard.outcomes or heard.errors))
        assert await broker.stats() == {}

    assert (heard.acked, heard.outcomes, heard.errors) == ([sent], [], [])
    assert await ledger.effects() == ["tea"]


@on_sqlite
@policies
@one_or_many
@said
async def test_a_def_handler_may_do_so_in_a_session_of_its_own(
    make: Make, heard: Heard, sync_ledger: SyncLedger, policy: AckPolicy, batch: bool, how: str
) -> None:
    broker, opened = make(retry=IN_AN_HOUR), list[Session]()

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    def handle(body: Any) -> Any:
        opened.append(session := sync_ledger.sessions())
        sync_ledger.write(session, "tea")
        return ending(session, how)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.acked or heard.outcomes or heard.errors))
        [session] = opened
        session.commit()
        session.close()
        assert await broker.stats() == {}

    assert (heard.acked, heard.outcomes, heard.errors) == ([sent], [], [])
    assert sync_ledger.effects() == ["tea"]


@on_sqlite
@policies
@one_or_many
@said
async def test_a_def_handler_may_do_so_in_its_outbox_session(
    make: Make, heard: Heard, sync_ledger: SyncLedger, policy: AckPolicy, batch: bool, how: str
) -> None:
    broker = make(retry=IN_AN_HOUR, sync_session_factory=sync_ledger.sessions)

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    def handle(body: Any, session: SyncOutboxSession) -> Any:
        sync_ledger.write(session, "tea")
        return ending(session, how)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.acked or heard.outcomes or heard.errors))
        assert await broker.stats() == {}

    assert (heard.acked, heard.outcomes, heard.errors) == ([sent], [], [])
    assert sync_ledger.effects() == ["tea"]


@on_sqlite
@policies
@one_or_many
async def test_one_that_is_refused_is_retried_under_every_policy(
    make: Make, heard: Heard, ledger: Ledger, policy: AckPolicy, batch: bool
) -> None:
    broker = make(retry=IN_AN_HOUR)

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    async def handle(body: Any) -> None:
        raise AckMessage(session=ledger.sessions)  # What makes sessions, and is none.

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.outcomes))

    [outcome] = heard.of(sent)
    assert "AckMessage cannot be obeyed (CannotJoin" in (getattr(outcome, "error", None) or "")
    assert heard.errors == ["NoDecision"]
