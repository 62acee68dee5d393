"""What a handler returned, and what middlewares do with a command on its way to the store."""

from __future__ import annotations

from typing import Any

import pytest
from faststream import BaseMiddleware, Response
from faststream.response import ensure_response

from nightmail.broker.commands import OutboxPublishCommand
from tests.broker.support import Make


def test_a_plain_value_becomes_a_command() -> None:
    cmd = OutboxPublishCommand.from_cmd(ensure_response(1).as_publish_command())

    assert cmd.batch_bodies == (1,)


def test_a_response_becomes_a_command_with_its_headers() -> None:
    response = ensure_response(Response(body=1, headers={"1": 1}))

    cmd = OutboxPublishCommand.from_cmd(response.as_publish_command())

    assert (cmd.body, cmd.headers) == (1, {"1": 1})


@pytest.mark.parametrize("body", [None, (), "123", "", b"", [1, 2, 3], [0, 1, 2]])
def test_whatever_is_returned_is_one_message(body: Any) -> None:
    cmd = OutboxPublishCommand.from_cmd(ensure_response(body).as_publish_command())

    assert cmd.batch_bodies == (body,)


def test_the_bodies_of_a_batch_can_be_replaced() -> None:
    cmd = OutboxPublishCommand((1, 2), queue="q")

    cmd.batch_bodies = (3, 4, 5)

    assert cmd.batch_bodies == (3, 4, 5)
    assert cmd.body == 3


def test_a_batch_can_be_emptied() -> None:
    cmd = OutboxPublishCommand((1, 2, 3), queue="q")

    cmd.batch_bodies = ()

    assert cmd.batch_bodies == ()
    assert cmd.body is None


async def test_a_middleware_changes_a_whole_batch(make: Make) -> None:
    class Doubled(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.batch_bodies = tuple(body * 2 for body in cmd.batch_bodies)
            return await call_next(cmd)

    async with make(middlewares=(Doubled,)) as broker:
        await broker.publish_batch("a", "b", queue="q")
        await broker.publish("c", "q")

        assert sorted(each.body for each in await broker.pending("q")) == [b"aa", b"bb", b"cc"]


async def test_a_middleware_adds_headers(make: Make) -> None:
    class Stamped(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.add_headers({"stamp": "1"})
            return await call_next(cmd)

    async with make(middlewares=(Stamped,)) as broker:
        await broker.publish("a", "q", headers={"own": "2"})

        (found,) = await broker.pending("q")
        assert (found.headers["stamp"], found.headers["own"]) == ("1", "2")


async def test_a_middleware_sends_elsewhere(make: Make) -> None:
    class Diverted(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.destination = f"test.{cmd.destination}"
            return await call_next(cmd)

    async with make(middlewares=(Diverted,)) as broker:
        await broker.publish("a", "q")

        assert [each.queue for each in await broker.pending()] == ["test.q"]
