"""How a handler's `OutboxSession` ends when something around the handler interferes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware

from nightmail import OutboxBroker, OutboxRouter
from nightmail.annotations import OutboxMessage, OutboxSession
from nightmail.outcome import Done, Retry
from nightmail.stores.memory import MemoryStore
from tests.broker.callers import Ledger
from tests.broker.support import AT_ONCE, Heard, Make, on_sql, started

pytestmark = on_sql


class Swallows(BaseMiddleware):
    """Turns what a handler raises into a return value."""

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        try:
            return await call_next(msg)
        except RuntimeError:
            return None


class SwallowsAtTheEnd(BaseMiddleware):
    """Swallows what the whole processing raised, as FastStream's `ExceptionMiddleware` does."""

    async def after_processed(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> bool:
        return isinstance(exc_val, RuntimeError)


def _on_the_broker(broker: OutboxBroker) -> Any:
    broker.add_middleware(Swallows)
    return broker


def _on_a_router(broker: OutboxBroker) -> Any:
    router = OutboxRouter(middlewares=[Swallows])
    broker.include_router(router)
    return router


def _where_a_router_is_included(broker: OutboxBroker) -> Any:
    router = OutboxRouter()
    broker.include_router(router, middlewares=[Swallows])
    return router


def _at_the_end(broker: OutboxBroker) -> Any:
    router = OutboxRouter(middlewares=[SwallowsAtTheEnd])
    broker.include_router(router)
    return router


@pytest.mark.parametrize("place", [_on_the_broker, _on_a_router, _where_a_router_is_included, _at_the_end])
async def test_an_error_that_any_middleware_swallows_still_rolls_back(
    make: Make, heard: Heard, ledger: Ledger, place: Callable[[OutboxBroker], Any]
) -> None:
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)
    registrator = place(broker)

    @registrator.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, f"attempt {msg.attempt}")
        if msg.attempt == 1:
            raise RuntimeError("half-way")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["attempt 2"]
    assert heard.of(sent) == [Retry()]


async def test_so_it_does_on_a_router_that_came_from_a_broker_without_sessions(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    router = OutboxRouter(middlewares=[Swallows])

    @router.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        await ledger.write(session, f"attempt {msg.attempt}")
        if msg.attempt == 1:
            raise RuntimeError("half-way")

    before = OutboxBroker(MemoryStore(), logger=None, observer=heard)
    before.include_router(router)
    async with started(before):
        refused = await before.publish("water", "q")
        await heard.until(lambda: heard.of(refused) == [Done()])

    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)
    broker.include_router(router)
    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["attempt 2"]


async def test_a_publish_that_fails_rolls_back_even_if_a_middleware_swallows_the_error(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)
    broker.add_middleware(SwallowsAtTheEnd)
    failures = [RuntimeError("the other broker is down")]

    class Fails(BaseMiddleware):
        async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: Any) -> Any:
            if failures and cmd.destination == "next":
                raise failures.pop()
            return await call_next(cmd)

    @broker.publisher("next")
    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> str:
        await ledger.write(session, f"attempt {msg.attempt}")
        return body

    broker.add_middleware(Fails)
    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        waiting = len(await broker.pending("next"))

    assert await ledger.effects() == ["attempt 2"]
    assert waiting == 1


async def test_a_return_value_for_another_database_is_published_there_by_itself(
    make: Make, heard: Heard, ledger: Ledger, tmp_path: Path
) -> None:
    elsewhere = OutboxBroker(f"sqlite:///{tmp_path / 'elsewhere.db'}", logger=None)
    in_memory = OutboxBroker(MemoryStore(), logger=None)
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)

    @elsewhere.publisher("there")
    @in_memory.publisher("here")
    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession) -> str:
        await ledger.write(session, body)
        return body

    async with elsewhere, in_memory, started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        arrived = [
            [each.body for each in await elsewhere.pending("there")],
            [each.body for each in await in_memory.pending("here")],
        ]

    assert arrived == [[b"tea"], [b"tea"]]
    assert await ledger.effects() == ["tea"]
    assert heard.errors == []


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.ACK])
async def test_a_handler_that_closes_its_session_has_failed(
    make: Make, heard: Heard, ledger: Ledger, policy: AckPolicy
) -> None:
    """What it wrote is undone by that, so its message must not be acknowledged."""
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, session: OutboxSession, msg: OutboxMessage) -> None:
        if msg.attempt == 1:
            async with session:
                await ledger.write(session, "attempt 1")
        else:
            await ledger.write(session, "attempt 2")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["attempt 2"]
    assert heard.errors == ["SessionClosed"]


async def test_a_handler_may_commit_and_then_close_its_session(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession) -> None:
        async with session:
            await ledger.write(session, body)
            await session.commit()

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await ledger.effects() == ["tea"]
    assert heard.errors == []


async def test_a_handler_may_roll_back_and_return(make: Make, heard: Heard, ledger: Ledger) -> None:
    broker = make(session_factory=ledger.sessions, retry=AT_ONCE)

    @broker.subscriber("q")
    async def handle(body: str, session: OutboxSession) -> None:
        await ledger.write(session, body)
        await session.rollback()

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent] or heard.of(sent) == [Done()])

    assert await ledger.effects() == []
    assert heard.errors == []
