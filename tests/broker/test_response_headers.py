"""Headers of a response: the correlation id may be one of them, and no caller's own dict is changed."""

from __future__ import annotations

import asyncio
from typing import Any

from faststream import BaseMiddleware

from nightmail import OutboxResponse
from nightmail.annotations import OutboxMessage
from nightmail.outcome import Done
from tests.broker.support import Heard, Make, in_memory, soon, started

pytestmark = in_memory


async def test_a_response_may_have_its_correlation_id_among_its_headers(make: Make, heard: Heard) -> None:
    broker, got = make(), asyncio.Event()
    found: list[str] = []

    @broker.publisher("next")
    @broker.subscriber("q")
    async def handle(body: str) -> OutboxResponse:
        return OutboxResponse("answer", headers={"correlation_id": "mine"})

    @broker.subscriber("next")
    async def take(body: str, msg: OutboxMessage) -> None:
        found.append(msg.correlation_id)
        got.set()

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        assert heard.of(sent) == [Done()]
        await soon(got)

    assert found == ["mine"]


async def test_what_a_middleware_adds_to_a_message_is_added_to_nothing_of_the_callers(
    make: Make, heard: Heard
) -> None:
    class Stamping(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.headers["stamped"] = "yes"
            return await call_next(cmd)

    defaults, given, broker = {"a": "b"}, {"c": "d"}, make(middlewares=[Stamping])
    publisher = broker.publisher("next", headers=defaults)
    response = OutboxResponse("answer", headers=given)

    @publisher
    @broker.subscriber("q")
    async def handle(body: str) -> OutboxResponse:
        return response

    async with started(broker):
        await publisher.publish("tea", headers=given)
        sent = await broker.publish("tea", "q", headers=given)
        await heard.until(lambda: heard.of(sent) == [Done()])
        assert len(await broker.pending("next")) == 2

    assert (defaults, given) == ({"a": "b"}, {"c": "d"})
