"""Messages taken by hand when something goes wrong: no worker looks after them, so nothing may be forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from faststream import BaseMiddleware

from nightmail import Delivery, OutboxBroker
from nightmail.annotations import OutboxMessage
from nightmail.errors import StoreUnavailable, Undecodable
from nightmail.outcome import Done, Outcome, Release, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryStore
from tests.broker.callers import Ledger
from tests.broker.support import IN_A_MINUTE, MINUTE, Heard, Make, in_memory, on_sqlite, soon, started
from tests.unit.faulty import Call, FaultyStore, Gate, lost_reply, lost_request

memory_and_sqlite = pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)


async def taken(broker: OutboxBroker) -> OutboxMessage:
    """A message in hand."""
    await broker.publish("tea", "q")
    msg = await broker.subscriber("q").get_one()
    assert msg is not None
    return msg


def only_for_errors(delivery: Delivery, error: Exception | None) -> Outcome:
    """A retry policy whose author forgot that there may be no error."""
    assert error is not None
    return Retry(MINUTE)


# ── a caller is cancelled ─────────────────────────────────────────────────────────────────────────────────


@memory_and_sqlite
async def test_what_a_cancelled_claim_has_taken_is_handed_back(make: Make, heard: Heard) -> None:
    async with make() as broker:
        claim, carried_out, reply = broker.store.claim, asyncio.Event(), asyncio.Event()

        async def answered_late(*what: Any, **more: Any) -> Any:
            claimed = await claim(*what, **more)
            carried_out.set()
            await reply.wait()
            return claimed

        broker.store.claim = answered_late  # type: ignore[method-assign]
        sent = await broker.publish("tea", "q")
        taking = asyncio.create_task(broker.subscriber("q").get_one())
        await soon(carried_out)

        taking.cancel()
        await asyncio.sleep(0)
        reply.set()
        with pytest.raises(asyncio.CancelledError):
            await taking

        assert (await broker.stats())["q"].running == 0
        assert heard.of(sent) == [Release()]
        broker.store.claim = claim  # type: ignore[method-assign]
        msg = await broker.subscriber("q").get_one(timeout=0)
        assert msg is not None
        assert (msg.id, msg.attempt, msg.deliveries) == (sent, 1, 1)


@in_memory
async def test_a_message_whose_parser_is_cancelled_is_handed_back(make: Make) -> None:
    parsing = asyncio.Event()

    async def endless(msg: Any, original: Any) -> Any:
        parsing.set()
        await asyncio.Event().wait()

    async with make(retry=IN_A_MINUTE) as broker:
        await broker.publish("tea", "q")
        taking = asyncio.create_task(broker.subscriber("q", parser=endless).get_one())
        await soon(parsing)

        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking

        assert (await broker.stats())["q"].ready == 1


# ── what cannot be handed over ────────────────────────────────────────────────────────────────────────────


@in_memory
async def test_what_its_parser_cannot_read_goes_to_the_dead_letters(make: Make) -> None:
    async def picky(msg: Any, original: Any) -> Any:
        raise ValueError("poison")

    async with make(retry=IN_A_MINUTE) as broker:
        await broker.publish("tea", "q")
        with pytest.raises(Undecodable):
            await broker.subscriber("q", parser=picky).get_one()

        (letter,) = await broker.dead_letters("q")
        assert (letter.reason, letter.error) == ("undecodable", "ValueError('poison')")


@in_memory
async def test_for_what_a_middleware_raises_the_retry_policy_is_asked(make: Make) -> None:
    class Refusing(BaseMiddleware):
        async def on_receive(self) -> None:
            raise ConnectionError("no context today")

    async with make(retry=IN_A_MINUTE, middlewares=[Refusing]) as broker:
        await broker.publish("tea", "q")
        with pytest.raises(ConnectionError):
            await broker.subscriber("q").get_one()

        (waiting,) = await broker.pending("q")
        assert waiting.attempts == 1


# ── decisions that could not be written ────────────────────────────────────────────────────────────────────


@in_memory
async def test_a_decision_that_met_a_lock_is_written_when_that_is_gone(make: Make, heard: Heard) -> None:
    async with make() as broker:
        msg, asked = await taken(broker), []
        settle = broker.store.settle

        async def locked_at_first(batch: Sequence[Settlement]) -> list[WriteResult]:
            asked.append(batch)
            return [WriteResult.BUSY] if len(asked) < 3 else await settle(batch)

        broker.store.settle = locked_at_first  # type: ignore[method-assign]
        await msg.ack()

        assert len(asked) == 3
        assert heard.outcomes == [(msg.id, Done())]
        assert await broker.stats() == {}


@in_memory
async def test_a_decision_that_could_not_be_written_can_be_made_again(make: Make) -> None:
    async with make() as broker:
        msg = await taken(broker)
        settle = broker.store.settle

        async def down(batch: Sequence[Settlement]) -> list[WriteResult]:
            raise StoreUnavailable

        broker.store.settle = down  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await msg.ack()
        broker.store.settle = settle  # type: ignore[method-assign]
        await msg.ack()

        assert await broker.stats() == {}


@in_memory
async def test_after_a_decision_that_could_not_be_written_another_may_be_made(make: Make) -> None:
    async with make() as broker:
        msg = await taken(broker)
        settle = broker.store.settle

        async def down(batch: Sequence[Settlement]) -> list[WriteResult]:
            raise StoreUnavailable

        broker.store.settle = down  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await msg.ack()
        broker.store.settle = settle  # type: ignore[method-assign]
        await msg.reject("no such customer")

        assert [letter.reason for letter in await broker.dead_letters("q")] == ["no such customer"]


@on_sqlite
async def test_a_nack_after_an_acknowledgement_that_was_rolled_back_is_written(
    make: Make, ledger: Ledger, heard: Heard
) -> None:
    async with make(retry=IN_A_MINUTE) as broker:
        msg = await taken(broker)
        async with ledger.sessions() as session:
            await msg.ack(session=session)
            await session.rollback()

        await msg.nack()

        (waiting,) = await broker.pending("q")
        assert (waiting.id, waiting.attempts) == (msg.id, 1)
        assert heard.acked == [msg.id]
        assert heard.of(msg.id) == [Retry(MINUTE)]
        assert (await broker.stats())["q"].running == 0


@on_sqlite
async def test_a_nack_after_an_acknowledgement_that_was_committed_is_no_lost_lease(
    make: Make, ledger: Ledger, heard: Heard
) -> None:
    async with make(retry=IN_A_MINUTE) as broker:
        msg = await taken(broker)
        async with ledger.sessions() as session:
            await ledger.write(session, "tea")
            await msg.ack(session=session)
            await session.commit()

        await msg.nack()

        assert await broker.stats() == {}
        assert (heard.acked, heard.uncertainties, heard.lost) == ([msg.id], [msg.id], [])
    assert await ledger.effects() == ["tea"]


@on_sqlite
async def test_an_acknowledgement_in_a_transaction_is_told_once(
    make: Make, ledger: Ledger, heard: Heard
) -> None:
    async with make() as broker:
        msg = await taken(broker)
        async with ledger.sessions() as session:
            await msg.ack(session=session)
            await session.rollback()
        async with ledger.sessions() as session:
            await msg.ack(session=session)
            await session.commit()

        assert (heard.acked, heard.outcomes) == ([msg.id], [])


# ── policies that raise when there is no error ────────────────────────────────────────────────────────────


@in_memory
async def test_a_nack_by_hand_with_a_policy_that_raises_makes_a_dead_letter(make: Make) -> None:
    async with make(retry=only_for_errors) as broker:
        msg = await taken(broker)

        await msg.nack()

        assert [letter.reason for letter in await broker.dead_letters("q")] == ["policy_error"]


@in_memory
@pytest.mark.parametrize("delay", [None, 5])
async def test_a_nack_in_a_handler_with_a_policy_that_raises_makes_a_dead_letter(
    make: Make, heard: Heard, delay: int | None
) -> None:
    broker = make(retry=only_for_errors)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.nack(delay)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

        assert [letter.reason for letter in await broker.dead_letters("q")] == ["policy_error"]


# ── replies that are lost ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def test_what_a_claim_took_before_its_reply_was_lost_can_be_taken_at_once(store: FaultyStore) -> None:
    async with OutboxBroker(store, logger=None) as broker:
        sent = await broker.publish("tea", "q")
        subscriber = broker.subscriber("q")
        store.upset("claim", lost_reply)
        with pytest.raises(StoreUnavailable):
            await subscriber.get_one(timeout=0)

        msg = await subscriber.get_one(timeout=0)

        assert msg is not None
        assert (msg.id, msg.deliveries) == (sent, 1)


async def test_a_claim_whose_reply_was_lost_while_its_caller_was_cancelled_is_recalled(
    store: FaultyStore,
) -> None:
    async with OutboxBroker(store, logger=None) as broker:
        await broker.publish("tea", "q")
        subscriber = broker.subscriber("q")
        gate = Gate()

        async def late_and_lost(call: Call) -> Any:
            return await gate(lambda: lost_reply(call))

        store.upset("claim", late_and_lost)
        taking = asyncio.create_task(subscriber.get_one(timeout=0))
        await soon(gate.reached)
        taking.cancel()
        await asyncio.sleep(0)
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await taking

        assert await subscriber.get_one(timeout=0) is not None


async def test_the_error_of_the_claim_is_raised_when_it_cannot_be_recalled_either(store: FaultyStore) -> None:
    async with OutboxBroker(store, logger=None) as broker:
        await broker.publish("tea", "q")
        store.upset("claim", lost_reply)
        store.upset("recall", lost_request)

        with pytest.raises(StoreUnavailable, match="before the reply arrived"):
            await broker.subscriber("q").get_one(timeout=0)


async def test_a_decision_that_is_written_again_after_its_reply_was_lost_is_no_lost_lease(
    store: FaultyStore,
) -> None:
    async with OutboxBroker(store, logger=None) as broker:
        msg = await taken(broker)
        store.upset("settle", lost_reply)
        with pytest.raises(StoreUnavailable):
            await msg.ack()

        await msg.ack()

        assert await broker.stats() == {}
