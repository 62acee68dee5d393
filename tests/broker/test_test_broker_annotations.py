"""What handlers ask for by type: the logger, the context, and bodies as they are.

Where the logger matters the workers run in earnest: FastStream's test brokers put a mock in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any

import anyio.to_thread
import faststream.annotations as upstream
import pytest
from faststream import Depends

from nightmail import OutboxBroker
from nightmail.annotations import ContextRepo, Logger, NoCast, OutboxMessage
from nightmail.annotations import OutboxBroker as AnyBroker
from nightmail.testing import TestOutboxBroker

LOGGER = logging.getLogger("shop")


@pytest.fixture
def broker() -> OutboxBroker:
    """A broker with a logger of its own."""
    return OutboxBroker("memory://", logger=LOGGER)


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is sent to a thread."""
    sent: list[Any] = []
    run_sync: Callable[..., Any] = anyio.to_thread.run_sync

    async def counted(call: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(call)
        return await run_sync(call, *args, **kwargs)

    monkeypatch.setattr(anyio.to_thread, "run_sync", counted)
    return sent


async def test_a_handler_gets_the_logger_and_the_context(broker: OutboxBroker) -> None:
    got: list[Any] = []

    @broker.subscriber("q")
    async def handle(body: str, logger: Logger, context: ContextRepo) -> None:
        got.extend([logger, context.get("message").queue, context is broker.context])

    async with TestOutboxBroker(broker, with_real=True) as br:
        await br.publish("tea", "q")
        await handle.wait_call(timeout=10)
    assert got == [LOGGER, "q", True]


async def test_a_handler_without_async_gets_them_too(broker: OutboxBroker) -> None:
    got: list[Any] = []

    @broker.subscriber("q")
    def handle(body: str, logger: Logger, context: ContextRepo) -> None:
        got.extend([logger, context.get("message").queue])

    async with TestOutboxBroker(broker, with_real=True) as br:
        await br.publish("tea", "q")
        await handle.wait_call(timeout=10)
    assert got == [LOGGER, "q"]


async def test_dependencies_get_them_with_and_without_async(broker: OutboxBroker) -> None:
    got: list[Any] = []

    async def name_of(logger: Logger) -> str:
        return logger.name

    def queue_of(context: ContextRepo, logger: Logger) -> str:
        return f"{logger.name} {context.get('message').queue}"

    @broker.subscriber("q")
    async def handle(
        body: str, name: Annotated[str, Depends(name_of)], queue: Annotated[str, Depends(queue_of)]
    ) -> None:
        got.extend([name, queue])

    async with TestOutboxBroker(broker, with_real=True) as br:
        await br.publish("tea", "q")
        await handle.wait_call(timeout=10)
    assert got == ["shop", "shop q"]


async def test_what_a_handler_puts_into_the_context_is_found_there(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(body: str, context: ContextRepo) -> None:
        context.set_global("last", body)

    async with TestOutboxBroker(broker) as br:
        await br.publish("tea", "q")
        assert br.context.get("last") == "tea"


async def test_asking_for_them_costs_no_thread(broker: OutboxBroker, hops: list[Any]) -> None:
    @broker.subscriber("ours")
    async def ours(
        body: str, logger: Logger, context: ContextRepo, msg: OutboxMessage, own: AnyBroker
    ) -> None: ...

    @broker.subscriber("theirs")
    async def theirs(body: str, logger: upstream.Logger) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish("tea", "ours")
        assert hops == []
        await br.publish("tea", "theirs")
        assert len(hops) == 1


async def test_a_body_that_must_not_be_cast_stays_as_it_is(broker: OutboxBroker) -> None:
    got: list[Any] = []

    @broker.subscriber("q")
    async def handle(body: NoCast[str]) -> None:
        got.append(body)

    async with TestOutboxBroker(broker) as br:
        await br.publish(7, "q")
    assert got == [7]
